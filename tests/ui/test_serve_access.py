"""The served page for everybody: keyboard only, narrow screens, both schemes, and the rules of axe-core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ui.axe import violations
from ui.served import ServedPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCHEMES = ("light", "dark")


@pytest.mark.parametrize("context_options", [{"color_scheme": scheme} for scheme in SCHEMES], ids=SCHEMES)
def test_axe_finds_no_serious_problem(served: ServedPage, page: Page) -> None:
    served.open()
    assert violations(page) == []
    for group in ("Machine", "Scenario", "Best plan"):
        served.form.get_by_role("heading", name=group).click()
    served.form.get_by_text("More options").click()
    served.form.get_by_role("button", name="Add a what-if").click()
    page.get_by_role("main").get_by_role("button", name="Llama 3 70B").click()
    served.wait_complete()
    assert violations(page) == []
    served.figures.get_by_role("button", name="Pin", exact=True).click()
    served.field("tp").fill("3")
    served.problem.wait_for()
    assert violations(page) == []
    page.get_by_role("button", name="History").click()
    page.get_by_role("dialog", name="History").get_by_role("listitem").first.wait_for()
    assert violations(page) == []


def test_the_theme_switch_overrides_the_system_and_is_remembered(served: ServedPage, page: Page) -> None:
    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    served.open()
    light = background()
    page.get_by_role("group", name="Theme").get_by_text("Dark").click()
    dark = background()
    assert dark != light
    page.reload()
    served.open()
    assert background() == dark
    page.get_by_role("group", name="Theme").get_by_text("Auto").click()
    assert background() == light


@pytest.mark.parametrize(
    "context_options", [{"viewport": {"width": width, "height": 800}} for width in (900, 400)], ids=("900", "400")
)
def test_narrow_screens_do_not_scroll_sideways(served: ServedPage, page: Page) -> None:
    def widths() -> Any:
        return page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")

    served.open()
    assert widths()[0] <= widths()[1]
    for group in ("Machine", "Scenario", "Best plan"):
        served.form.get_by_role("heading", name=group).click()
    page.get_by_role("main").get_by_role("button", name="Llama 3 70B").click()
    served.wait_complete()
    assert widths()[0] <= widths()[1]
    served.figures.get_by_role("button", name="Pin", exact=True).click()
    assert widths()[0] <= widths()[1]


def press_until(page: Page, key: str, name: str, limit: int = 60) -> None:
    """Presses a key until the focus is on the element with this accessible name."""
    for _ in range(limit):
        page.keyboard.press(key)
        focused = page.evaluate(
            "document.activeElement?.labels?.[0]?.textContent ?? document.activeElement?.textContent"
        )
        if (focused or "").strip() == name:
            return
    raise AssertionError(f"{limit} times {key} did not reach {name}")


def test_the_keyboard_alone_changes_tp_and_reads_the_step(served: ServedPage, page: Page) -> None:
    served.open()
    press_until(page, "Tab", "tp")
    page.keyboard.press("ArrowUp")
    served.wait_complete()
    first = served.step()
    assert served.field("tp").input_value() == "8"
    page.keyboard.press("ArrowDown")
    served.figures.get_by_text("tp 8 → 4").wait_for()
    served.wait_complete()
    announced = page.get_by_role("status").filter(has_text="Step ").last.inner_text()
    assert announced.startswith(f"Step {served.step()}")
    assert served.step() != first
    press_until(page, "Shift+Tab", "Help")
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="Help").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog", name="Help").wait_for(state="hidden")


def test_the_skip_link_leads_to_the_answer_and_leaves_the_address(served: ServedPage, page: Page) -> None:
    served.open_example()
    address = page.url
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    page.get_by_role("link", name="Skip to the answer").press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "MAIN"
    assert page.url == address


def test_the_list_of_models_is_searched_by_keyboard(served: ServedPage, page: Page) -> None:
    served.open_example()
    served.field("Model").fill("llama 3 8b")
    options = served.form.get_by_role("listbox").get_by_role("option")
    assert options.first.inner_text().startswith("llama3-8b")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    served.answer.get_by_text("Llama 3 8B").first.wait_for()
    assert served.field("Model").input_value() == "llama3-8b"
    assert served.form.get_by_role("listbox").get_by_role("option").count() == 0
    served.wait_complete()
    assert served.field("Model").evaluate("(input) => input === document.activeElement")
