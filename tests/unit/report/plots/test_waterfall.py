"""The way from one step time to another."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from foretrace.report.design import LONGER, SERIES, SHORTER
from foretrace.report.plots.waterfall import MAX_STEPS, OTHERS, waterfall_svg

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str) -> list[dict[str, str]]:
    """Returns the bars from top to bottom, without the page."""
    return [rect.attrib for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect")][1:]


def edges(bar: dict[str, str]) -> tuple[float, float]:
    return float(bar["x"]), float(bar["x"]) + float(bar["width"])


@pytest.mark.parametrize("count", [2, MAX_STEPS, 3 * MAX_STEPS])
def test_each_bar_begins_where_the_one_before_ends_and_the_last_one_ends_at_the_end(count: int) -> None:
    steps = [(f"part {number}", (0.05 if number % 2 else -0.03) * (1 + number)) for number in range(count)]
    start_s = 10.0
    end_s = start_s + sum(seconds for _, seconds in steps)
    first, *parts, last = bars(waterfall_svg(("A", start_s), ("B", end_s), steps, ""))
    assert len(parts) == min(count, MAX_STEPS)
    place = edges(first)[1]
    for part in parts:
        left, right = edges(part)
        grows = part["fill"] == SERIES[LONGER].light
        assert part["fill"] in (SERIES[LONGER].light, SERIES[SHORTER].light)
        assert place == pytest.approx(left if grows else right, abs=0.03)
        place = right if grows else left
    assert place == pytest.approx(edges(last)[1], abs=0.03)


def test_the_smallest_of_many_parts_share_a_bar_and_lose_nothing() -> None:
    steps = [(f"part {number}", 0.01 * (1 + number)) for number in range(MAX_STEPS + 6)]
    svg = waterfall_svg(("A", 1.0), ("B", 1.0 + sum(seconds for _, seconds in steps)), steps, "")
    words = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    small = sum(0.01 * (1 + number) for number in range(7))
    assert words[words.index(OTHERS) + 1].startswith(f"+{1e3 * small:.0f}")  # type: ignore[union-attr]


@pytest.mark.parametrize(("start_s", "is_cut"), [(9.0, True), (1.0, False)])
def test_the_axis_of_a_small_difference_is_cut_and_says_so(start_s: float, is_cut: bool) -> None:
    svg = waterfall_svg(("A", start_s), ("B", 9.1), [("x", 9.1 - start_s)], "")
    first, _, last = bars(svg)
    share = float(first["width"]) / float(last["width"])
    assert (share != pytest.approx(start_s / 9.1, abs=1e-3)) == is_cut
    remarks = [text for text in ElementTree.fromstring(svg).iter(f"{SVG}text") if text.get("font-size") == "11"]
    assert len(remarks) == is_cut
