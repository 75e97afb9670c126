"""Blocks as HTML: all texts are escaped, all numbers are there without a picture."""

from __future__ import annotations

import json
import re

import pytest

from foretrace.basics.errors import Diagnostic
from foretrace.basics.origin import Origin, OriginFile
from foretrace.report.page.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Code,
    Fold,
    KeyFigure,
    KeyFigures,
    Notes,
    Picture,
    Section,
    StackedBar,
    StackedBars,
    Table,
    Text,
    View,
)
from foretrace.report.page.markup import render, render_view, script_json
from foretrace.report.svg import Canvas
from page_elements import read_page

HOSTILE = '<script>alert(\'x\')</script>" onload="x" &amp; \x1b[31m\u202e</style>'


def picture(words: str) -> Picture:
    canvas = Canvas(200, 100, words)
    canvas.rect(1, 50, 20, 10, words, fill="#0072b2")
    canvas.text(5, 90, words)
    return Picture(canvas.svg(), words)


HOSTILE_BLOCKS: list[Block] = [
    KeyFigures([KeyFigure(HOSTILE, HOSTILE, HOSTILE)]),
    Bars([Bar(HOSTILE, 1.0, HOSTILE, remark=HOSTILE, share=HOSTILE)], (HOSTILE, HOSTILE, HOSTILE)),
    StackedBars([(HOSTILE, "blue")], [StackedBar(HOSTILE, [1.0], HOSTILE)]),
    Table([HOSTILE], [[HOSTILE], [Cell(HOSTILE, options=HOSTILE)]], HOSTILE, summary=HOSTILE),
    picture(HOSTILE),
    Text(HOSTILE),
    Notes([Diagnostic("warning", "assumed", HOSTILE, HOSTILE)]),
    Code(HOSTILE, HOSTILE),
    Fold(HOSTILE, [Text(HOSTILE)]),
]


@pytest.mark.parametrize("block", HOSTILE_BLOCKS, ids=lambda block: type(block).__name__)
def test_no_text_becomes_an_element_or_an_attribute(block: Block) -> None:
    harmless = read_page(render(block))
    assert harmless.problems == []
    names = {name for name, _ in harmless.tags}
    assert not names & {"script", "style"}
    for _, attributes in harmless.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    assert "\x1b" not in render(block) and "\u202e" not in render(block)
    assert "alert('x')" in harmless.text or type(block) is Picture


def test_a_view_is_well_formed_and_its_addresses_are_its_own() -> None:
    sections = [Section(f"part-{number}", HOSTILE, [block], HOSTILE) for number, block in enumerate(HOSTILE_BLOCKS)]
    origin = Origin((HOSTILE,), (HOSTILE,), (OriginFile(HOSTILE),))
    view = View(HOSTILE, HOSTILE, sections, HOSTILE, origin, [(HOSTILE, HOSTILE)], HOSTILE)
    page = read_page(render_view(view, "a1-") + render_view(view, "a2-"))
    assert page.problems == []
    assert len(page.ids) == len(set(page.ids)) > 2 * len(sections)


def test_json_in_a_script_element_cannot_end_it() -> None:
    values = {"name": "</script><script>alert(1)</script><!--"}
    text = script_json(values)
    assert "<" not in text
    assert json.loads(text) == values
    with pytest.raises(ValueError, match="JSON"):
        script_json({"step": float("nan")})


@pytest.mark.parametrize(("values", "length"), [([3.0, 1.0], [100, 33.333]), ([1.0, -1.0], [50, 50]), ([0.0], [0])])
def test_bars_are_as_long_as_their_values(values: list[float], length: list[float]) -> None:
    page = read_page(render(Bars([Bar("a", value, "") for value in values])))
    assert [float(rect["width"] or 0) for rect in page.named("rect")] == length


def test_bars_are_drawn_on_the_scale_of_what_they_are_a_part_of() -> None:
    page = read_page(render(Bars([Bar("a", 2.0, "")], whole=8.0)))
    assert [rect["width"] for rect in page.named("rect")] == ["25"]


def test_a_stack_shows_all_parts_and_says_all_numbers() -> None:
    bars = [StackedBar("s", [1.0, 3.0], ""), StackedBar("t", [2.0, 0.0], "")]
    block = StackedBars([("x", "blue"), ("y", "blue")], bars)
    page = read_page(render(block))
    shares = [(rect["x"], rect["width"]) for rect in page.named("rect") if "x" in rect]
    assert shares == [("0", "25"), ("25", "75"), ("0", "50")]
    for seconds in ("1.00 s", "2.00 s", "3.00 s"):
        assert page.text.count(seconds) >= 1


def test_long_tables_are_folded_and_lose_no_row() -> None:
    page = read_page(render(Table(["n"], [[str(number)] for number in range(100)], shown=10)))
    assert len(page.named("details")) == 1
    assert all(str(number) in page.text.split() for number in range(100))


def test_a_picture_on_a_page_follows_its_scheme_and_has_no_page_of_its_own() -> None:
    html = render(picture("plans"))
    assert 'fill="var(--blue)"' in html
    assert re.search(r"#[0-9a-f]{6}", html) is None
    assert 'fill="white"' not in html
    assert 'aria-label="plans"' in html


def test_a_bar_beyond_its_whole_is_in_the_colour_of_what_is_bad() -> None:
    within, beyond = (render(KeyFigures([KeyFigure("Memory", "1 GiB", share=share)])) for share in (0.9, 1.1))
    assert "--bad" not in within
    assert "--bad" in beyond


def test_stacks_are_sorted_by_their_sizes() -> None:
    block = StackedBars(
        [("a", "blue")], [StackedBar("stage 0", [0.452], "452 ms"), StackedBar("stage 1", [3.3], "3.30 s")]
    )
    sizes = [float(size) for size in re.findall(r'data-sort="([^"]*)"', render(block))]
    assert sizes == [0.452, 3.3]
