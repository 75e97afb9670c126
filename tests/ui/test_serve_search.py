"""Searches, comparisons and earlier answers on the served page, in a real browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from server_client import LONG_SEARCH
from ui.conftest import Watch
from ui.served import SEARCH_MS, ServedPage, change, question_link

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


SMALL_SEARCH = {
    "ask": "plan",
    "input": {"model": "llama3-8b"},
    "options": {"gpus": "16", "gbs": "32"},
    "machine": {"cluster": "h100-dgx"},
    "scenario": {},
    "search": {"axes": {"tp": "2,4", "pp": "1", "mbs": "1"}},
}


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
    served.field("gbs").fill("64")
    served.answer.get_by_text("prediction", exact=True).wait_for()
    served.wait_complete()
    note = served.figures.get_by_role("status").filter(has_text="Search in the background")
    note.get_by_role("button", name="Show").click()
    wait_for_plans(served, page)
    served.field("gbs").fill("128")
    served.answer.get_by_text("prediction", exact=True).wait_for()
    served.wait_complete()
    note.get_by_role("button", name="Stop the search").click()
    ended = served.figures.get_by_role("status").filter(has_text="The search has ended")
    ended.get_by_role("button", name="Show its plans").click()
    served.answer.get_by_role("button", name="Open this plan").first.wait_for()
    served.wait_complete()


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


def test_the_form_has_its_plan_again_when_going_back_to_a_search(served: ServedPage, page: Page) -> None:
    served.open(question_link(SMALL_SEARCH))
    served.answer.get_by_role("button", name="Open this plan").first.wait_for(timeout=SEARCH_MS)
    served.wait_complete(SEARCH_MS)
    before = {label: served.field(label).input_value() for label in ("tp", "zero", "overlap")}
    served.answer.get_by_role("button", name="Open this plan").first.click()
    served.answer.get_by_text("prediction", exact=True).wait_for()
    assert {label: served.field(label).input_value() for label in before} != before
    page.go_back()
    served.answer.get_by_role("button", name="Open this plan").first.wait_for()
    assert {label: served.field(label).input_value() for label in before} == before


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


def test_a_search_is_followed_when_a_reload_meets_a_broken_connection(
    served: ServedPage, page: Page, watch: Watch
) -> None:
    watch.is_offline = True
    start_long_search(served)
    wait_for_plans(served, page)
    posted = posted_questions(page)
    page.route("**/events", lambda route: route.abort("connectionreset"), times=2)
    page.reload()
    wait_for_plans(served, page)
    assert posted == []
    page.keyboard.press("Escape")
    served.wait_complete()


def test_a_search_cancelled_while_its_connection_is_broken_keeps_its_plans(
    served: ServedPage, page: Page, watch: Watch
) -> None:
    watch.is_offline = True
    start_long_search(served)
    wait_for_plans(served, page)
    posted = posted_questions(page)
    page.route("**/events", lambda route: route.abort("connectionreset"))
    page.reload()
    served.figures.get_by_text("cannot be reached").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_timeout(500)
    page.unroute("**/events")
    served.wait_complete()
    assert served.answer.get_by_role("button", name="Open this plan").count() > 0
    assert posted == []


def test_a_failed_search_is_repaired_as_a_search(served: ServedPage, page: Page) -> None:
    posted = posted_questions(page)
    served.open(question_link({**SMALL_SEARCH, "options": {"gpus": "16", "gbs": "32", "precision": "pf8"}}))
    served.problem.get_by_role("button", name="Use fp8").click()
    served.answer.get_by_role("button", name="Open this plan").first.wait_for(timeout=SEARCH_MS)
    served.wait_complete(SEARCH_MS)
    assert posted[-1]["ask"] == "plan"
    assert posted[-1]["search"] == SMALL_SEARCH["search"]
    assert posted[-1]["options"]["precision"] == "fp8"  # type: ignore[index]


def test_going_back_to_a_search_keeps_what_came_after_it(served: ServedPage, page: Page) -> None:
    start_long_search(served)
    wait_for_plans(served, page)
    served.field("gbs").fill("64")
    served.answer.get_by_text("prediction", exact=True).wait_for()
    served.wait_complete()
    served.figures.get_by_role("button", name="Pin", exact=True).click()
    later = page.url
    page.go_back()
    wait_for_plans(served, page)
    page.go_forward()
    served.answer.get_by_text("prediction", exact=True).wait_for()
    served.wait_complete()
    assert page.url == later


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


def test_a_difference_follows_what_is_pinned(served: ServedPage, page: Page) -> None:
    served.open_example()
    pin = served.figures.get_by_role("button", name="Pin", exact=True)
    pin.click()
    change(served, "tp", "8")
    served.figures.get_by_role("button", name="Difference").click()
    served.difference.get_by_role("article").wait_for()
    pin.click()
    served.difference.wait_for(state="hidden")
    assert "diff=" not in page.url


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
