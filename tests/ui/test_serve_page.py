"""The served page in a real browser: questions, links, uploads, downloads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server_client import SEEDS
from ui.conftest import Watch
from ui.served import ROOT, ServedPage, change, question_link

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_a_changed_field_changes_the_numbers(served: ServedPage) -> None:
    served.open_example()
    before = served.step()
    change(served, "tp", "8")
    assert served.step() != before
    assert re.search(r"[+−][\d.]+ (m?s|µs), [+−][\d.]+ %", served.figures.inner_text())


def test_only_the_last_of_quick_changes_counts(served: ServedPage, page: Page) -> None:
    served.open_example()
    served.field("gpus").focus()
    for key in ("ArrowUp", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    served.answer.get_by_text("2,048 GPUs").first.wait_for()
    served.wait_complete()
    assert "2,048 GPUs" in served.answer.inner_text()
    other = ServedPage(page.context.new_page(), served.origin)
    other.open(page.url.removeprefix(served.origin))
    other.wait_complete()
    assert other.field("gpus").input_value() == "2048"
    assert other.step() == served.step()


REMEMBER_STAGES = """
() => {
  window.stages = [];
  const step = document.querySelector("#step-figure");
  const current = document.querySelector("#current");
  new MutationObserver(() => {
    const fresh = current.querySelector("article") ? current.innerText : "";
    window.stages.push([step.textContent, current.getAttribute("aria-busy") === "true", fresh]);
  }).observe(step, { childList: true });
}
"""
"""Notes what the page shows at each change of the step."""


def test_step_breakdown_and_memory_are_shown_before_the_rest(served: ServedPage, page: Page) -> None:
    served.open()
    page.evaluate(REMEMBER_STAGES)
    page.get_by_role("main").get_by_role("button", name="Llama 3 70B").first.click()
    served.wait_complete()
    first, last = (page.evaluate(f"window.stages.at({place})") for place in (0, -1))
    assert first[:2] == [served.step(), True]
    assert "compute" in first[2]
    assert "GiB" in first[2]
    assert "What would help" not in first[2]
    assert last[1] is False
    assert "What would help" in last[2]


def test_a_recorded_run_can_be_replayed_and_shown_again(served: ServedPage) -> None:
    served.open_example("Megatron trace of a real run")
    for name, kind in (("Replayed", "simulation"), ("As recorded", "explanation")):
        served.form.get_by_text(name).click()
        served.answer.get_by_text(kind, exact=True).wait_for()
        served.wait_complete()


@pytest.mark.parametrize("seed", SEEDS)
def test_each_seed_can_be_uploaded(served: ServedPage, seed: str) -> None:
    served.open()
    served.upload(ROOT / "examples" / seed)
    served.form.get_by_text(Path(seed).name).first.wait_for()
    served.wait_complete()
    assert served.answer.get_by_role("heading", level=2).count() == 1
    assert not served.problem.is_visible()


def test_a_broken_upload_shows_what_the_command_line_says(served: ServedPage, watch: Watch, tmp_path: Path) -> None:
    watch.expected = {400, 422}
    broken = tmp_path / "broken.txt"
    text = (ROOT / "examples" / "moe_128gpu.txt").read_text()
    broken.write_text(text.replace("ALLGATHER", "ALLGETHER"))
    served.open_example()
    step = served.step()
    served.upload(broken)
    served.problem.get_by_text("unknown-collective").wait_for()
    assert "broken.txt" in served.problem.inner_text()
    assert served.step() == step


def test_an_impossible_plan_marks_its_field_and_can_be_repaired(served: ServedPage, page: Page) -> None:
    served.open_example()
    served.field("tp").fill("3")
    served.problem.wait_for()
    assert page.locator("[aria-invalid=true]").count() > 0
    served.problem.get_by_role("button", name=re.compile("Use --tp")).first.click()
    served.problem.wait_for(state="hidden")
    served.wait_complete()
    assert page.locator("[aria-invalid=true]").count() == 0


def test_a_repair_of_two_options_sets_both(served: ServedPage) -> None:
    served.open_example()
    served.field("tp").fill("8")
    served.field("gpus").fill("1000")
    served.problem.wait_for()
    served.problem.get_by_role("button", name=re.compile(r"--gbs \d+ --pp \d+")).click()
    served.wait_complete()
    assert served.problem.count() == 0
    assert served.field("gpus").input_value() == "1000"
    assert (served.field("gbs").input_value(), served.field("pp").input_value()) != ("1024", "4")


def test_a_link_restores_fields_and_numbers(served: ServedPage, page: Page) -> None:
    served.open_example()
    change(served, "tp", "8")
    other = ServedPage(page.context.new_page(), served.origin)
    other.open(page.url.removeprefix(served.origin))
    other.wait_complete()
    assert other.step() == served.step()
    assert other.field("tp").input_value() == "8"
    assert other.field("Model").input_value() == "llama3-70b"
    assert other.answer.inner_text() == served.answer.inner_text()


def test_back_and_forward_lead_through_the_questions(served: ServedPage, page: Page) -> None:
    served.open_example()
    first = served.step()
    change(served, "tp", "8")
    second = served.step()
    page.go_back()
    served.figures.get_by_text("tp 8 → 4").wait_for()
    served.wait_complete()
    assert served.step() == first
    assert served.field("tp").input_value() == "4"
    page.go_forward()
    served.figures.get_by_text("tp 4 → 8").wait_for()
    served.wait_complete()
    assert served.step() == second
    page.go_back()
    page.go_back()
    page.get_by_role("heading", name="How long will a training step take?").wait_for()


def test_downloads_are_valid(served: ServedPage, page: Page, tmp_path: Path) -> None:
    served.open_example()
    files = {}
    for name in ("JSON", "Report", "Perfetto", "Saved answer", "Launch arguments"):
        served.figures.get_by_text("Download", exact=True).click()
        with page.expect_download() as download:
            served.figures.get_by_role("button", name=re.compile(f"^{name}")).click()
        files[name] = tmp_path / download.value.suggested_filename
        download.value.save_as(files[name])
    assert json.loads(files["JSON"].read_text())["step_time_s"] > 0
    assert files["Report"].read_text().startswith("<!doctype html>")
    assert files["Perfetto"].stat().st_size > 1000
    assert files["Saved answer"].stat().st_size > 1000
    assert "--tensor-model-parallel-size" in files["Launch arguments"].read_text()


def test_an_upload_may_be_dropped_onto_the_page(served: ServedPage, page: Page) -> None:
    served.open()
    text = (ROOT / "examples" / "moe_128gpu.txt").read_text()
    transfer = page.evaluate_handle(
        """(text) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([text], "dropped.txt", {type: "text/plain"}));
            return transfer;
        }""",
        text,
    )
    page.get_by_role("main").dispatch_event("drop", {"dataTransfer": transfer})
    served.form.get_by_text("dropped.txt").first.wait_for()
    served.wait_complete()


def test_what_ifs_are_rows_of_the_scenario(served: ServedPage) -> None:
    served.open_example()
    before = served.step()
    served.form.get_by_role("heading", name="Scenario").click()
    served.form.get_by_role("button", name="Add a what-if").click()
    served.field("What 1").fill("nvlink")
    served.field("What 1").press("Enter")
    served.figures.get_by_text("what if auto → nvlink=2x").wait_for()
    served.wait_complete()
    assert served.step() != before


def test_a_lost_connection_keeps_the_form_and_is_tried_again(served: ServedPage, page: Page, watch: Watch) -> None:
    served.open_example()
    watch.is_offline = True
    page.context.set_offline(True)
    served.field("tp").fill("8")
    served.figures.get_by_text("cannot be reached").wait_for()
    page.context.set_offline(False)
    served.figures.get_by_text("tp 4 → 8").wait_for()
    served.wait_complete()
    assert served.field("tp").input_value() == "8"


def test_an_empty_count_is_doubled_from_the_one_the_answer_took(served: ServedPage) -> None:
    served.open_example()
    assert served.field("seq").input_value() == ""
    served.field("seq").press("ArrowUp")
    assert served.field("seq").input_value() == "16384"
    served.wait_complete()


FIRST_PART = """event: quick
data: {"html": "<article class='answer'><section id='part'>a part</section></article>", "summary":
data: {"title": "a job", "step_text": "2 s", "kind": "prediction"}}

event: failed
data: {"code": "gave-up", "message": "took too long"}

"""
"""The events of a job that fails after the first part of its answer."""


def test_the_first_part_of_the_first_answer_is_not_an_earlier_one(served: ServedPage, page: Page) -> None:
    headers = {"Content-Type": "text/event-stream"}
    page.route("**/events", lambda route: route.fulfill(body=FIRST_PART, headers=headers))
    served.open()
    page.get_by_role("main").get_by_role("button", name="Llama 3 70B").first.click()
    served.problem.wait_for()
    assert served.answer.get_by_text("a part").is_visible()
    assert not page.locator("#held-note").is_visible()


def test_a_what_if_brings_its_usual_value(served: ServedPage) -> None:
    served.open_example()
    served.form.get_by_role("heading", name="Scenario").click()
    served.form.get_by_role("button", name="Add a what-if").click()
    for name, value in (("gpu", "h200-sxm"), ("nic", "2x")):
        served.field("What 1").fill(name)
        served.field("What 1").press("Enter")
        assert served.field("Factor 1").input_value() == value
    served.figures.get_by_text("nic=2x").wait_for()
    served.wait_complete()


def test_a_stream_that_breaks_is_followed_again(served: ServedPage, page: Page, watch: Watch) -> None:
    watch.is_offline = True
    jobs: list[str] = []
    page.on("request", lambda request: jobs.append(request.url) if request.url.endswith("/api/jobs") else None)
    page.route("**/events", lambda route: route.abort("connectionreset"), times=1)
    served.open_example()
    assert served.step()
    assert len(jobs) == 1  # its job is still there


def test_a_failed_question_can_be_asked_again(served: ServedPage, page: Page, watch: Watch) -> None:
    watch.expected = {500}
    served.open_example()
    error = {"error": {"code": "internal-error", "message": "a defect of the server", "where": None, "hint": None}}
    page.route("**/api/jobs", lambda route: route.fulfill(status=500, json=error), times=1)
    served.field("tp").fill("8")
    served.problem.get_by_role("button", name="Ask again").click()
    served.figures.get_by_text("tp 4 → 8").wait_for()
    served.wait_complete()
    assert not served.problem.is_visible()


def test_enter_asks_again(served: ServedPage, page: Page) -> None:
    served.open_example()
    with page.expect_request("**/api/jobs"):
        served.field("gbs").press("Enter")
    served.wait_complete()


def test_a_broken_link_is_reported(served: ServedPage, page: Page) -> None:
    served.open_example()
    page.goto(page.url[:-10])
    page.reload()
    served.problem.get_by_text("bad-link").wait_for()


def test_a_newer_problem_stays_when_an_older_answer_comes(served: ServedPage, page: Page) -> None:
    served.open_example()
    step = served.step()
    held = []
    page.route("**/events", lambda route: held.append(route))
    with page.expect_request("**/events"):
        served.field("tp").fill("8")
    page.evaluate(
        """() => {
            const dataTransfer = new DataTransfer();
            for (let i = 0; i < 2000; i++) dataTransfer.items.add(new File(["x"], `${i}.txt`));
            document.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
        }"""
    )
    served.problem.get_by_text("input-too-large").wait_for()
    for route in held:
        route.continue_()
    page.unroute("**/events")
    page.wait_for_timeout(1500)
    assert served.problem.is_visible()
    assert served.step() == step
    assert served.figures.get_by_role("button", name="Pin", exact=True).is_disabled()


def test_what_failed_is_tried_again(served: ServedPage, page: Page, watch: Watch) -> None:
    watch.expected = {500}
    served.open_example()
    first = served.step()
    change(served, "tp", "8")
    error = {"error": {"code": "internal-error", "message": "a defect of the server", "where": None, "hint": None}}
    page.route("**/api/answers/*", lambda route: route.fulfill(status=500, json=error), times=1)
    page.get_by_role("button", name="History").click()
    history = page.get_by_role("dialog", name="History")
    history.get_by_role("button", name=re.compile(f"^(?!Compare|Delete).*{re.escape(first)}")).first.click()
    served.problem.get_by_role("button", name="Try again").click()
    served.problem.wait_for(state="hidden")
    served.wait_complete()
    assert served.step() == first


def test_the_pipeline_keeps_what_was_set(served: ServedPage, page: Page) -> None:
    served.open_example()
    rows, path = served.answer.get_by_label("Rows"), served.answer.get_by_role("checkbox", name="Critical path")
    rows.select_option("rank")
    path.check()
    served.answer.get_by_role("application").scroll_into_view_if_needed()
    place = page.evaluate("window.scrollY")
    change(served, "gbs", "512")
    served.answer.get_by_role("application").wait_for()
    assert rows.input_value() == "rank"
    assert path.is_checked()
    assert abs(page.evaluate("window.scrollY") - place) < 300


def test_a_step_of_other_work_is_compared_by_its_rate(served: ServedPage) -> None:
    served.open_example()
    change(served, "gbs", "128")
    text = served.figures.inner_text()
    assert "tokens/s per GPU" in text
    assert not re.search(r"[+−][\d.]+ m?s,", text)


def test_a_plan_that_does_not_fit_says_so_in_the_bar(served: ServedPage) -> None:
    served.open_example()
    change(served, "pp", "1")
    change(served, "tp", "1")
    assert served.figures.get_by_text("does not fit").is_visible()


def test_a_misspelt_name_can_be_repaired(served: ServedPage) -> None:
    served.open_example()
    served.field("precision").fill("pf8")
    served.field("precision").press("Tab")
    served.problem.get_by_role("button", name="Use fp8").click()
    served.problem.wait_for(state="hidden")
    served.wait_complete()
    assert served.field("precision").input_value() == "fp8"


@pytest.mark.parametrize("scenario", [{"what_if": [1]}, {"what_if": {"a": "b"}}, [1], "x"])
def test_a_link_that_holds_something_else_is_reported(served: ServedPage, scenario: object) -> None:
    question = {"ask": "step", "input": {"model": "llama3-8b"}, "options": {}, "machine": {}, "scenario": scenario}
    served.open(question_link(question))
    served.problem.get_by_text("bad-link").wait_for()
    assert served.page.get_by_role("heading", name="How long will a training step take?").is_visible()


def test_the_start_page_stays_when_an_upload_fails(served: ServedPage, watch: Watch, tmp_path: Path) -> None:
    watch.expected = {400, 422}
    broken = tmp_path / "broken.txt"
    broken.write_text("nothing of the kind")
    served.open()
    served.upload(broken)
    served.problem.wait_for()
    assert served.page.get_by_role("main").get_by_role("button", name="Llama 3 70B").first.is_visible()


def test_the_examples_open_by_keyboard_only_when_chosen(served: ServedPage, page: Page) -> None:
    served.open()
    menu = served.form.get_by_text("Examples", exact=True)
    menu.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert "#q=" not in page.url
    page.keyboard.press("Enter")
    served.wait_complete()
    assert "#q=" in page.url


def test_a_narrow_page_does_not_scroll_sideways(served: ServedPage, page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 700})
    served.open_example()
    room, content = page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollWidth]")
    assert content <= room


def test_a_colleague_opens_the_link_of_an_upload(served: ServedPage, browser: Browser) -> None:
    served.open()
    served.upload(ROOT / "examples" / "moe_128gpu.txt")
    served.wait_complete()
    context = browser.new_context()
    colleague = ServedPage(context.new_page(), served.origin)
    colleague.open(served.page.url.removeprefix(served.origin))
    colleague.wait_complete()
    assert colleague.step() == served.step()
    context.close()


def test_a_profile_is_shown_as_recorded_whatever_the_form_holds(served: ServedPage) -> None:
    served.open_example("PyTorch profiler table")
    served.form.get_by_text("Replayed").click()
    served.answer.get_by_text("simulation", exact=True).wait_for()
    served.wait_complete()
    served.form.get_by_role("heading", name="Scenario").click()
    served.form.get_by_role("button", name="Add a what-if").click()
    served.field("What 1").fill("compute")
    served.field("What 1").press("Enter")
    served.figures.get_by_text("compute=2x").wait_for()
    served.wait_complete()
    served.form.get_by_text("As recorded").click()
    served.figures.get_by_text("compute=2x").wait_for(state="detached")
    served.wait_complete()
    assert not served.problem.is_visible()
    assert not served.form.get_by_role("heading", name="Scenario").is_visible()


def test_an_answer_that_comes_late_does_not_replace_a_newer_one(served: ServedPage, page: Page) -> None:
    served.open_example()
    change(served, "tp", "8")
    held = []
    page.route("**/api/answers/*", lambda route: held.append(route))
    page.get_by_role("button", name="History").click()
    history = page.get_by_role("dialog", name="History")
    history.get_by_role("button", name=re.compile("^(?!Compare|Delete|Close)")).last.click()
    page.wait_for_timeout(100)
    change(served, "tp", "2")
    step = served.step()
    for route in held:
        route.continue_()
    page.wait_for_timeout(300)
    assert served.step() == step
    assert served.field("tp").input_value() == "2"
