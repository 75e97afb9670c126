"""Reports in a real browser, opened from disk with the network off: every kind of answer, and the live pipeline."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from foretrace.basics.units import format_time, parse_time
from foretrace.cli.main import run
from foretrace.report.page.document import report_script
from page_cases import CASES, MISFITS, page_words, write_page_inputs
from ui.axe import violations
from ui.conftest import Watch
from ui.served import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

EXAMPLES = ROOT / "examples"
CLUSTER = ("--cluster", "h100-dgx")
JOB = ("--gpus", "512", "--tp", "4", "--pp", "4", "--gbs", "256", *CLUSTER)
COMMANDS: dict[str, tuple[str | Path, ...]] = {
    "prediction": ("predict", "llama3-70b", *JOB, "--vpp", "5"),
    "workload file": ("simulate", EXAMPLES / "llama405b_1024gpu.txt", *CLUSTER),
    "workload of experts": ("simulate", EXAMPLES / "moe_128gpu.txt", *CLUSTER),
    "profiler table": ("simulate", EXAMPLES / "moe_fairseq_profile.txt"),
    "rank trace": ("simulate", EXAMPLES / "traces" / "gpt13b_real_rank0.txt"),
    "rank trace of experts": ("simulate", EXAMPLES / "traces" / "moe_ex_situ_rank2.txt"),
    "comparison": ("compare", "llama3-70b", *JOB, "--with", "tp=8"),
    "plan search": (
        "plan", "llama3-8b", "--gpus", "16", "--gbs", "32", "--tp", "1,2,4", "--pp", "1,2", "--mbs", "1", *CLUSTER,
    ),
    "sweep": ("sweep", "llama3-8b", "--over", "gpus=16:64:x2", "--tp", "8", "--gbs", "64", *CLUSTER),
}  # fmt: skip
SCHEMES = ("light", "dark")
WIDTHS = (1440, 900, 400)
OFFLINE = {"offline": True}
each_report = pytest.mark.parametrize("name", COMMANDS)
offline = pytest.mark.parametrize("context_options", [OFFLINE], ids=["offline"])

PICTURE = """
async (canvas) => {
  // A change is drawn in the next frame.
  for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
  return canvas.toDataURL();
}
"""
REMEMBER_PRINTED = """
() => addEventListener("beforeprint", () => (window.printed = document.querySelector("canvas").toDataURL()))
"""
REMEMBER_PRINTED_SIZE = """
() => addEventListener("beforeprint", () => {
  const canvas = document.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, Math.min(canvas.height, 800));
  window.printed = [canvas.width, canvas.height, new Set(new Uint32Array(data.buffer)).size];
})
"""
UNSORTED = """
() => [...document.querySelectorAll("table[data-sortable] tbody .number")]
  .filter((cell) => cell.textContent.trim() && cell.dataset.sort === undefined)
  .map((cell) => cell.textContent.trim())
  .filter((text) => !/^[+−-]?[\\d,.]+(e[+-]?\\d+)?( to [+−-]?[\\d,.]+)?( %)?$|^–$/.test(text))
"""
"""The cells of columns of numbers that have no number to be sorted by: neither plain ones nor shares."""
LUMINANCE = """
() => {
  const parts = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
  return parts[0] + parts[1] + parts[2];
}
"""


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports of all commands."""
    folder = tmp_path_factory.mktemp("reports")
    paths = {name: folder / f"{name.replace(' ', '_')}.html" for name in COMMANDS}
    for name, words in COMMANDS.items():
        with pytest.raises(SystemExit) as stopped:
            run([str(word) for word in (*words, "--html", paths[name])])
        assert not stopped.value.code, name
    return paths


@pytest.fixture
def prediction(page: Page, reports: dict[str, Path]) -> Page:
    """The report of a prediction, whose pipeline is drawn."""
    page.goto(reports["prediction"].as_uri())
    pipeline(page).wait_for()
    return page


def pipeline(page: Page) -> Locator:
    return page.get_by_role("application", name=re.compile("^Pipeline of a step"))


def picture(page: Page) -> str:
    """Returns what the canvas of the pipeline shows."""
    return str(pipeline(page).evaluate(PICTURE))


def facts(page: Page) -> str:
    """Returns the facts of the selected bar, as a screen reader says them."""
    return page.locator("[aria-live=polite]").inner_text()


def press(page: Page, *keys: str) -> None:
    """Presses keys on the pipeline."""
    for key in keys:
        pipeline(page).press(key)


@offline
@each_report
def test_a_report_opens_from_disk_at_all_widths(page: Page, reports: dict[str, Path], name: str) -> None:
    page.goto(reports[name].as_uri())
    assert page.get_by_role("article").get_by_role("heading", level=2).count() == 1
    assert page.get_by_role("article").get_by_role("region").count() > 2
    for canvas in page.get_by_role("application").all():
        canvas.wait_for()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        room, content = page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollWidth]")
        assert content <= room, f"{width} px"


@offline
def test_every_kind_of_answer_opens_without_a_problem(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: Watch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_page_inputs(tmp_path)
    for number, case in enumerate(CASES):
        with pytest.raises(SystemExit) as stopped:
            run(page_words(case, f"{number}.html"))
        assert stopped.value.code in (0, None) or case in MISFITS, case
        page.goto((tmp_path / f"{number}.html").as_uri())
        for canvas in page.get_by_role("application").all():
            canvas.wait_for()
        for details in page.locator("details").all():
            details.evaluate("(details) => (details.open = true)")
        assert page.get_by_role("article").get_by_role("region").count() > 1, case
        assert page.evaluate(UNSORTED) == [], case
        assert watch.problems == [], case


@pytest.mark.parametrize("context_options", [{**OFFLINE, "color_scheme": scheme} for scheme in SCHEMES], ids=SCHEMES)
@each_report
def test_axe_finds_no_serious_problem(page: Page, reports: dict[str, Path], name: str) -> None:
    page.goto(reports[name].as_uri())
    page.locator("[data-live]").first.wait_for(state="attached")
    for details in page.locator("details").all():
        details.evaluate("(details) => (details.open = true)")
    assert violations(page) == []


@pytest.mark.parametrize("context_options", [{"color_scheme": scheme} for scheme in SCHEMES], ids=SCHEMES)
def test_the_scheme_follows_the_system_and_its_button(prediction: Page, context_options: dict[str, Any]) -> None:
    is_dark, drawn = prediction.evaluate(LUMINANCE) < 384, picture(prediction)
    assert is_dark == (context_options["color_scheme"] == "dark")
    prediction.get_by_role("button", name="Light or dark").click()
    assert (prediction.evaluate(LUMINANCE) < 384) != is_dark
    assert picture(prediction) != drawn


def test_the_pipeline_zooms_and_pans_by_keyboard(prediction: Page) -> None:
    whole = picture(prediction)
    press(prediction, "+")
    zoomed = picture(prediction)
    press(prediction, "ArrowRight")
    assert len({whole, zoomed, picture(prediction)}) == 3
    press(prediction, "ArrowLeft")
    assert picture(prediction) == zoomed
    press(prediction, "0")
    assert picture(prediction) == whole


def test_the_pipeline_zooms_by_its_buttons(prediction: Page) -> None:
    whole = picture(prediction)
    prediction.get_by_role("button", name="Zoom in").click()
    assert picture(prediction) != whole
    prediction.get_by_role("button", name="Whole step").click()
    assert picture(prediction) == whole


def test_a_bar_is_selected_by_keyboard_and_its_facts_are_said(prediction: Page) -> None:
    nothing = facts(prediction)
    press(prediction, "n")
    first = facts(prediction)
    time = r"[\d.]+ (?:s|ms|µs)"
    assert re.search(rf"stage 0, rank 0 and 127 identical, lane compute, start {time}, duration {time}", first)
    press(prediction, "n")
    assert facts(prediction) not in (first, nothing)
    press(prediction, "p")
    assert facts(prediction) == first
    press(prediction, "Escape")
    assert facts(prediction) == nothing


def test_a_bar_is_selected_by_a_click_and_framed(prediction: Page) -> None:
    drawn, nothing = picture(prediction), facts(prediction)
    size = pipeline(prediction).bounding_box()
    assert size is not None
    pipeline(prediction).click(position={"x": size["width"] / 2, "y": 40})
    assert "stage 0" in facts(prediction) != nothing
    pipeline(prediction).hover(position={"x": 10, "y": 40})
    assert picture(prediction) != drawn


def tracks_of_a_stage(page: Page) -> int:
    """Returns how many rows the arrow keys visit before the next stage."""
    press(page, "Escape", "n")
    visited = 0
    while "stage 0," in facts(page):
        press(page, "ArrowDown")
        visited += 1
    return visited


def test_by_stage_each_axis_has_one_row(prediction: Page) -> None:
    rows = prediction.get_by_label("Rows")
    axes = prediction.get_by_role("listitem").filter(has_text=re.compile("communication$")).count()
    assert tracks_of_a_stage(prediction) == 1 + axes + 1
    rows.select_option("rank")
    # Five chunks send and receive in two directions, each on a lane of its own.
    assert tracks_of_a_stage(prediction) > 10


def test_the_critical_path_can_be_shown_alone(prediction: Page) -> None:
    drawn = picture(prediction)
    path = prediction.get_by_role("checkbox", name="Critical path")
    path.press("Space")
    assert picture(prediction) != drawn
    path.press("Space")
    assert picture(prediction) == drawn


def test_a_table_is_sorted_by_keyboard(prediction: Page) -> None:
    prediction.get_by_role("region", name="The step over time").get_by_text("as a table").press("Enter")
    table = prediction.get_by_role("table").filter(has=prediction.get_by_role("columnheader", name="last end"))
    head = table.get_by_role("columnheader", name="last end")

    def values() -> list[float]:
        cells = table.locator("tbody td:last-child")
        return [float(value) for value in cells.evaluate_all("(cells) => cells.map((cell) => cell.dataset.sort)")]

    unsorted = values()
    assert unsorted != sorted(unsorted)
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert values() == sorted(unsorted)
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert values() == sorted(unsorted, reverse=True)


@pytest.mark.parametrize("context_options", [{"permissions": ["clipboard-read", "clipboard-write"]}], ids=["allowed"])
def test_the_command_is_copied(prediction: Page) -> None:
    prediction.get_by_role("button", name="Copy the command").press("Enter")
    prediction.get_by_text("Copied", exact=True).wait_for()
    copied = prediction.evaluate("navigator.clipboard.readText()")
    assert copied == prediction.get_by_role("region", name="command").inner_text()
    assert copied.startswith("foretrace predict llama3-70b ")


def test_paper_has_no_buttons_and_the_whole_pipeline(prediction: Page) -> None:
    press(prediction, "+", "+")
    zoomed = picture(prediction)
    prediction.evaluate(REMEMBER_PRINTED)
    assert prediction.pdf(format="A4").startswith(b"%PDF")
    assert prediction.evaluate("window.printed") not in (None, zoomed)
    assert picture(prediction) == zoomed
    prediction.emulate_media(media="print")
    assert prediction.get_by_role("button", name=re.compile("Copy|Zoom|Light")).count() == 0
    assert prediction.get_by_role("columnheader", name="effect").is_visible()
    assert pipeline(prediction).is_visible()


def test_long_tables_sort_all_rows_and_say_on_paper_what_is_folded(page: Page, reports: dict[str, Path]) -> None:
    page.goto(reports["profiler table"].as_uri())
    table = page.locator("table:has(tbody + tbody)").first
    more = page.locator(".scroll:has(tbody + tbody) + details").first
    for details in page.locator("details:not(.rest)").all():
        details.evaluate("(details) => (details.open = true)")
    shown = table.locator("tbody tr:visible").count()
    count = table.locator("tbody tr").count()
    assert shown < count
    assert more.inner_text() == f"{count - shown} more rows"
    head = table.locator("thead th.number").first
    column = head.evaluate("(head) => head.cellIndex")
    head.get_by_role("button").press("Enter")
    head.get_by_role("button").press("Enter")
    texts = table.locator(f"tbody tr > :nth-child({column + 1})").all_inner_texts()
    sizes = [parse_time(text) for text in texts if text]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 1
    assert table.locator("tbody tr:visible").count() == shown
    page.emulate_media(media="print")
    assert more.is_visible() == (count - shown > 100)
    assert table.locator("tbody tr:visible").count() == (shown if more.is_visible() else count)
    page.emulate_media(media="screen")
    more.locator("summary").click()
    assert table.locator("tbody tr:visible").count() == count


@pytest.mark.parametrize("exponent", range(-9, 7))
def test_times_are_written_as_on_the_screen(page: Page, exponent: int) -> None:
    page.goto("about:blank")
    page.add_script_tag(content=report_script())
    values = [factor * 10.0**exponent for factor in (1, 1.0049, 2.5, 9.994, 9.9961)]
    values += [-value for value in values]
    assert page.evaluate("(values) => values.map((value) => formatTime(value))", values) == list(
        map(format_time, values)
    )


def test_paper_shows_by_stage_what_is_higher_than_a_page(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "ranks.html"
    with pytest.raises(SystemExit):
        run(
            [
                "predict",
                "llama3-8b",
                "--gpus",
                "64",
                "--pp",
                "8",
                "--gbs",
                "64",
                *CLUSTER,
                "--straggler",
                "9=1.3x",
                "--html",
                str(path),
            ]
        )
    page.goto(path.as_uri())
    pipeline(page).wait_for()
    page.get_by_label("Rows").select_option("rank")
    page.evaluate(REMEMBER_PRINTED_SIZE)
    page.pdf(format="A4")
    width, height, colours = page.evaluate("window.printed")
    assert max(width, height) <= 16_384
    assert height < 2 * width
    assert colours > 1
    assert page.get_by_label("Rows").input_value() == "rank"
