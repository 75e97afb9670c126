"""The served page in a real browser: questions, links, uploads, searches, comparisons, history, downloads."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server_client import LONG_SEARCH, SEEDS
from ui.conftest import Watch
from ui.served import ROOT, SEARCH_MS, ServedPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route


@pytest.fixture
def served(page: Page, server: str, watch: Watch) -> ServedPage:
    watch.origin = server
    return ServedPage(page, server)


def change(served: ServedPage, label: str, value: str) -> None:
    """Types a value into a field, and waits for the complete answer."""
    served.field(label).fill(value)
    served.figures.get_by_text(re.compile(rf"{label} .* → {value}")).wait_for()
    served.wait_complete()


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


SMALL_SEARCH = {
    "ask": "plan",
    "input": {"model": "llama3-8b"},
    "options": {"gpus": "16", "gbs": "32"},
    "machine": {"cluster": "h100-dgx"},
    "scenario": {},
    "search": {"axes": {"tp": "2,4", "pp": "1", "mbs": "1"}},
}


def question_link(question: Mapping[str, object]) -> str:
    """Returns the link to a question."""
    link = base64.urlsafe_b64encode(json.dumps(dict(question)).encode()).decode().rstrip("=")
    return f"/#q={link}"


def start_search(served: ServedPage) -> None:
    """Starts a search for the best plan of a small job."""
    served.open_example()
    change(served, "gpus", "64")
    served.form.get_by_role("heading", name="Best plan").click()
    served.form.get_by_role("button", name="Find the best plan").click()


def start_long_search(served: ServedPage) -> None:
    """Starts a search that runs for a minute."""
    served.open(question_link(LONG_SEARCH))


def wait_for_plans(served: ServedPage, page: Page) -> None:
    """Waits until a search that still runs shows plans."""
    served.answer.get_by_role("button", name="Open this plan").first.wait_for(timeout=SEARCH_MS)
    assert page.locator("#current[aria-busy=true]").count() == 1


def test_a_search_shows_a_front_and_opens_a_plan(served: ServedPage, page: Page) -> None:
    start_search(served)
    wait_for_plans(served, page)
    served.wait_complete(SEARCH_MS)
    served.answer.get_by_role("button", name="Open this plan").first.click()
    served.answer.get_by_role("heading", name="plans").first.wait_for(state="detached")
    served.wait_complete()
    assert served.field("tp").input_value() != ""
    assert served.field("gpus").input_value() == "64"


def test_a_search_can_be_cancelled_and_keeps_its_plans(served: ServedPage, page: Page) -> None:
    start_long_search(served)
    served.figures.get_by_role("button", name="Cancel").wait_for()
    wait_for_plans(served, page)
    page.keyboard.press("Escape")
    served.wait_complete()
    assert served.answer.get_by_role("button", name="Open this plan").count() > 0
    assert "#a=" in page.url


def test_a_search_goes_on_while_other_questions_are_asked(served: ServedPage, page: Page) -> None:
    start_long_search(served)
    wait_for_plans(served, page)
    served.field("tp").fill("8")
    served.answer.get_by_text("prediction", exact=True).wait_for()
    served.wait_complete()
    note = served.figures.get_by_role("status").filter(has_text="Search in the background")
    note.get_by_role("button", name="Show").click()
    wait_for_plans(served, page)
    served.field("tp").fill("4")
    served.answer.get_by_text("prediction", exact=True).wait_for()
    served.wait_complete()
    note.get_by_role("button", name="Stop the search").click()
    ended = served.figures.get_by_role("status").filter(has_text="The search has ended")
    ended.get_by_role("button", name="Show its plans").click()
    served.answer.get_by_role("button", name="Open this plan").first.wait_for()
    served.wait_complete()


def test_two_answers_stand_next_to_each_other(served: ServedPage, page: Page) -> None:
    served.open_example()
    step = served.step()
    served.figures.get_by_role("button", name="Pin", exact=True).click()
    change(served, "tp", "8")
    assert step in served.pinned.inner_text()
    left, right = served.pinned.bounding_box(), served.answer.bounding_box()
    assert left is not None and right is not None
    assert left["x"] + left["width"] <= right["x"]
    served.figures.get_by_role("button", name="Difference").click()
    served.difference.get_by_role("article").wait_for()
    before = served.difference.inner_text()
    change(served, "pp", "8")
    served.difference.get_by_text("pp 8").first.wait_for()
    assert served.difference.inner_text() != before
    page.reload()
    served.pinned.get_by_text(step).first.wait_for()
    served.pinned.get_by_role("button", name="Unpin").click()
    served.pinned.wait_for(state="hidden")


def test_history_opens_compares_and_deletes(served: ServedPage, page: Page) -> None:
    served.open_example()
    first = served.step()
    change(served, "tp", "8")
    history = page.get_by_role("dialog", name="History")
    page.get_by_role("button", name="History").click()
    history.get_by_role("listitem").nth(1).wait_for()
    assert history.get_by_role("listitem").count() == 2
    history.get_by_role("button", name=re.compile(f"^Compare .*{re.escape(first)}")).click()
    served.difference.get_by_role("article").wait_for()
    page.get_by_role("button", name="History").click()
    history.get_by_role("button", name=re.compile(f"^(?!Compare|Delete).*{re.escape(first)}")).first.click()
    served.wait_complete()
    served.figures.get_by_text("tp 8 → 4").wait_for()
    assert served.step() == first
    assert served.field("tp").input_value() == "4"
    page.get_by_role("button", name="History").click()
    delete = history.get_by_role("button", name="Delete")
    delete.first.wait_for()
    count = delete.count()
    delete.last.click()
    delete.nth(count - 1).wait_for(state="detached")
    assert delete.count() == count - 1
    page.keyboard.press("Escape")
    history.wait_for(state="hidden")


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
    assert len(jobs) == 2  # the first job had sent nothing yet


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


@pytest.mark.parametrize("context_options", [{"permissions": ["clipboard-read", "clipboard-write"]}], ids=["allowed"])
def test_a_copied_link_restores_the_pinned_answer(served: ServedPage, page: Page) -> None:
    served.open_example()
    first = served.step()
    served.figures.get_by_role("button", name="Pin", exact=True).click()
    change(served, "tp", "8")
    served.figures.get_by_role("button", name="Copy link").click()
    served.figures.get_by_text("Copied", exact=True).wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    page.evaluate("localStorage.clear()")
    other = ServedPage(page.context.new_page(), served.origin)
    other.open(link.removeprefix(served.origin))
    other.pinned.get_by_text(first).first.wait_for()
    other.wait_complete()
    assert other.step() == served.step()


def posted_questions(page: Page) -> list[dict[str, object]]:
    """Returns the list that the questions of a page are added to as they are asked."""
    posted: list[dict[str, object]] = []
    page.on(
        "request",
        lambda request: posted.append(request.post_data_json) if request.url.endswith("/api/jobs") else None,
    )
    return posted


def open_examples(served: ServedPage) -> None:
    served.form.get_by_text("Examples", exact=True).click()


def test_a_pinned_plan_opens_with_its_own_input(served: ServedPage, page: Page) -> None:
    served.open(question_link(SMALL_SEARCH))
    served.answer.get_by_role("button", name="Open this plan").first.wait_for(timeout=SEARCH_MS)
    served.wait_complete(SEARCH_MS)
    served.figures.get_by_role("button", name="Pin", exact=True).click()
    plan = served.pinned.get_by_role("button", name="Open this plan").first
    options = plan.evaluate("(button) => button.dataset.openPlan")
    open_examples(served)
    served.form.get_by_role("button", name="Megatron trace of a real run").click()
    served.answer.get_by_text("explanation", exact=True).wait_for()
    served.wait_complete()
    posted = posted_questions(page)
    plan.click()
    served.wait_complete()
    tp = re.search(r"--tp (\d+)", options)
    asked = next(question for question in posted if question["ask"] == "step")
    assert asked["input"] == {"model": "llama3-8b"}
    assert tp is not None and asked["options"]["tp"] == tp[1]  # type: ignore[index]
    assert not served.problem.is_visible()


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


def test_a_search_started_twice_leaves_none_behind(served: ServedPage, page: Page) -> None:
    served.open_example()
    change(served, "gpus", "64")
    served.form.get_by_role("heading", name="Best plan").click()
    served.field("tp values to try").fill("4,8")
    served.field("pp values to try").fill("1,2")
    cancelled: list[str] = []
    page.on("request", lambda request: cancelled.append(request.url) if request.url.endswith("/cancel") else None)
    jobs: list[str] = []
    page.on("response", lambda response: jobs.append(response.url) if response.url.endswith("/api/jobs") else None)
    page.route("**/api/jobs", lambda route: (page.wait_for_timeout(200), route.continue_()))
    served.form.get_by_role("button", name="Find the best plan").dblclick()
    served.wait_complete(SEARCH_MS)
    assert len(jobs) - len(cancelled) == 1
    assert served.answer.get_by_role("button", name="Open this plan").count() > 0


def test_a_search_is_followed_again_after_a_reload(served: ServedPage, page: Page) -> None:
    start_long_search(served)
    wait_for_plans(served, page)
    posted = posted_questions(page)
    page.reload()
    wait_for_plans(served, page)
    assert posted == []
    page.keyboard.press("Escape")
    served.wait_complete()
    assert served.answer.get_by_role("button", name="Open this plan").count() > 0


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


def test_a_difference_that_fails_is_not_left_on_show(served: ServedPage, page: Page, watch: Watch) -> None:
    watch.expected = {500}
    served.open_example()
    served.figures.get_by_role("button", name="Pin", exact=True).click()
    change(served, "tp", "8")
    served.figures.get_by_role("button", name="Difference").click()
    served.difference.get_by_role("article").wait_for()

    def refuse(route: Route) -> None:
        if '"compare"' in (route.request.post_data or ""):
            route.fulfill(status=500, json={"error": {"code": "internal-error", "message": "a defect"}})
        else:
            route.continue_()

    page.route("**/api/jobs", refuse)
    served.field("pp").fill("8")
    served.problem.wait_for()
    served.difference.wait_for(state="hidden")


def test_the_address_restores_the_difference(served: ServedPage, page: Page) -> None:
    served.open_example()
    first = served.step()
    served.figures.get_by_role("button", name="Pin", exact=True).click()
    change(served, "tp", "8")
    served.figures.get_by_role("button", name="Difference").click()
    served.difference.get_by_role("article").wait_for()
    other = ServedPage(page.context.new_page(), served.origin)
    other.open(page.url.removeprefix(served.origin))
    other.difference.get_by_role("article").wait_for()
    assert first in other.pinned.inner_text()
    assert "tp 4 → 8" in other.figures.inner_text()
    served.pinned.get_by_role("button", name="Unpin").click()
    assert "pin=" not in page.url
    page.set_viewport_size({"width": 900, "height": 900})
    other.page.set_viewport_size({"width": 900, "height": 900})
    pinned, current = other.pinned.bounding_box(), other.answer.bounding_box()
    assert pinned is not None and current is not None
    assert current["y"] < pinned["y"]


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
