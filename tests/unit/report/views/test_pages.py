"""Every command that gives an answer writes it as a page: the same numbers, well-formed, the same bytes each time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.units import format_percent, format_time
from foretrace.report.answer_words import MIN_GAIN
from kineto_files import document, kernel, span, write
from output_jobs import JOBS
from page_cases import CASES, MISFITS, InSection, page_words, write_page_inputs
from page_elements import PageElements, check_page
from unit.cli.command_line import call


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    write_page_inputs(folder)
    return folder


def written(case: str, output: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Runs the command of a case; returns its exit code and the JSON."""
    Path("my.yaml").touch()  # a calibration that did not change is not read a second time, and no input then
    code = call(*page_words(case, output))
    return code, dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("case", CASES)
def test_a_page_has_the_numbers_of_the_json(
    case: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    _, headline = CASES[case]
    code, answer = written(case, "first.html", capsys)
    assert code == (4 if case in MISFITS else 0)
    first = Path("first.html").read_text(encoding="utf-8")
    page = checked(first, case)
    if isinstance(headline, InSection):
        assert headline.text(answer) in page.sections[headline.key]
    else:
        assert headline(answer) in page.figures
    for text in (*breakdown_texts(answer), *remedy_texts(answer), *price_texts(answer)):
        assert text in page.text
    assert len(page.named("section")) >= 2
    assert not re.search(r'(?:fill|stroke)="(?:#|white|black)', first), "a colour does not follow the scheme"
    assert written(case, "first.html", capsys)[0] == code
    assert Path("first.html").read_text(encoding="utf-8") == first


def breakdown_texts(answer: dict[str, Any]) -> Iterator[str]:
    """The name, the time and the share of every part of the breakdown, those left out that are rounding."""
    for name, seconds in answer.get("breakdown_s", {}).items():
        if seconds > 1e-9 * answer["step_time_s"]:
            yield f"{name} {format_time(seconds)} {format_percent(seconds / answer['step_time_s'])}"


def remedy_texts(answer: dict[str, Any]) -> Iterator[str]:
    """The options of all changes that shorten the step; of all that were tried where none does."""
    remedies = answer.get("remedies") or []
    helpful = [each for each in remedies if each["after_s"] / each["microbatches"] < (1 - MIN_GAIN) * each["before_s"]]
    yield from (each["option"] for each in helpful or remedies)


def price_texts(answer: dict[str, Any]) -> Iterator[str]:
    """Every source of prices with its share."""
    for part in answer.get("provenance", ()):
        yield f"{part['source']} {format_percent(part['share'])}"


def checked(html: str, case: str) -> PageElements:
    # The figures of hardware name their sources; these are texts, not links.
    return check_page(html.replace("https://", "") if case == "a cluster" else html)


def test_every_page_maps_the_links_of_the_placement(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    words, _ = CASES["a simulation with a placement"]
    packed, _ = CASES["a simulation on links"]
    assert call(*words, "--html", "placed.html", "--save", "placed.answer") == 0
    assert call(*packed, "--html", "packed.html") == 0
    assert call("explain", *words[1:], "--html", "explained.html") == 0
    assert call("report", "placed.answer", "-o", "saved.html") == 0
    first = link_map("placed.html")
    assert first != link_map("packed.html")
    assert link_map("explained.html") == first == link_map("saved.html")


def link_map(page: str) -> str:
    """The picture of how busy each link is."""
    html = Path(page).read_text(encoding="utf-8")
    (picture,) = re.findall(r'<svg [^>]*aria-label="how busy each of [^>]*>.*?</svg>', html, re.DOTALL)
    return picture


def test_every_command_with_pages_has_a_case() -> None:
    assert {name for name, option in JOBS if option == "--html"} == {words[0] for words, _ in CASES.values()}


def test_a_page_has_all_rows_that_a_screen_leaves_out(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    _, answer = written("a calibration's coverage", "all.html", capsys)
    page = checked(Path("all.html").read_text(encoding="utf-8"), "")
    for row in answer["coverage"]["kernels"]:
        assert row["how"] not in ("corrected", "not covered") or row["kernel"] in page.text


def test_names_of_files_and_ops_are_escaped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    events = [
        span("user_annotation", "ProfilerStep#0", 0, 1000),
        span("cpu_op", "<script>alert(1)</script>", 10, 30),
        span("cuda_runtime", "cudaLaunchKernel", 15, 2, correlation=1),
        kernel("<img src=x onerror=alert(2)>", 30, 40, 1),
    ]
    write(place, document(events), "<b>odd.json")
    assert call("explain", "<b>odd.json", "--html", "odd.html", "--json") == 0
    page = checked(Path("odd.html").read_text(encoding="utf-8"), "")
    assert "<b>odd.json" in page.text
    assert len(page.named("script")) <= 2
    assert not page.named("img")
