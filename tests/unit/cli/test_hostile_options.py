"""Option texts that cannot be meant end with a code and a short line: no traceback, no endless range."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foretrace.basics.errors import ForetraceError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.option_texts import read_number_list, read_numbers, read_routing, read_steps, read_whole_number
from foretrace.readings.scenario_texts import read_jitter, read_slow_links, read_stragglers, read_what_ifs
from foretrace.search.axes import parse_axis, read_axes

HOSTILE = ("9" * 5000, "nan", "inf", "1e400", "-1", "٣", "0x10", "∞", "a" * 100_000, "x y " * 5000, "{}", "%s", "=")


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "read",
    [
        lambda text: read_stragglers([f"{text}=2x"]),
        lambda text: read_stragglers([f"0={text}"]),
        lambda text: read_slow_links([f"{text}:dp=2x"]),
        lambda text: read_slow_links([f"0:dp={text}"]),
        lambda text: read_what_ifs([f"compute={text}"]),
        lambda text: read_jitter(f"{text}%"),
        lambda text: read_steps(text),
        lambda text: read_numbers(f"0-{text}", "--ranks", "rank", "0-7"),
        lambda text: read_number_list("documents", least=1)(text),
        lambda text: read_routing(text),
        lambda text: parse_axis(f"microbatches=4:{text}:x2"),
        lambda text: parse_axis(f"microbatches=4:8:x{text}"),
        lambda text: Mesh.parse(f"tp={text}"),
    ],
)
def test_hostile_texts_are_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ForetraceError) as refused:
        read(text)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize("text", [text for text in HOSTILE[:8] if text != "-1"])
def test_whole_numbers_may_be_negative_and_nothing_else(text: str) -> None:
    read = read_whole_number("tp")
    assert read("-1") == -1
    with pytest.raises(ForetraceError, match=r"\[(bad-value|out-of-range)\]"):
        read(text)


@pytest.mark.parametrize("text", ["4:1000000000:x1.0000001", "1:1e9", "0:1:+1e-9", "1e-9:1:x1.001", "1:5:+0", "8:1"])
def test_ranges_are_bounded(text: str) -> None:
    with pytest.raises(ForetraceError, match=r"\[(too-large|out-of-range)\]"):
        read_axes([f"microbatches={text}"])


def test_many_ranges_together_are_bounded() -> None:
    with pytest.raises(ForetraceError, match="out-of-range"):
        read_numbers(",".join(["0-9999"] * 1000), "--ranks", "rank", "0-7")
