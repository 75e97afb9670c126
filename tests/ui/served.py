"""The served page as its users see it: by roles, labels and texts, never by how it is built."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ROOT = Path(__file__).parents[2]
TIMEOUT_MS = 20_000
STEP = re.compile(r"\d[\d.,]* (?:s|ms|µs)")
SEARCH_MS = 60_000


class ServedPage:
    """A page of the server, with what tests do on it."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.form = page.get_by_role("form", name="Question")
        self.figures = page.get_by_role("region", name="Step and what to do with it")
        self.answer = page.get_by_role("region", name="Answer", exact=True)
        self.pinned = page.get_by_role("region", name="Pinned answer")
        self.difference = page.get_by_role("region", name="Difference", exact=True)
        self.problem = self.figures.get_by_role("alert")

    def open(self, link: str = "/") -> None:
        """Opens the page at a link, and waits until it can be used."""
        self.page.goto(self.origin + link)
        self.form.get_by_label("Model").or_(self.form.get_by_text("Use a model instead")).first.wait_for()

    def open_example(self, title: str = "Llama 3 70B") -> None:
        """Opens the start page, takes the example whose card has this text, and waits for its answer."""
        self.open()
        self.page.get_by_role("main").get_by_role("button", name=title).first.click()
        self.wait_complete()

    def wait_complete(self, timeout_ms: int = TIMEOUT_MS) -> None:
        """Waits for the complete answer. Raises AssertionError where a problem is shown and no answer."""
        article = self.answer.get_by_role("article").first
        article.or_(self.problem).first.wait_for(timeout=timeout_ms)
        assert article.is_visible(), self.problem.inner_text()
        self.page.locator("[aria-busy=true]").first.wait_for(state="detached", timeout=timeout_ms)

    def step(self) -> str:
        """Returns the step of the answer on show."""
        match = STEP.search(self.figures.inner_text())
        assert match is not None, self.figures.inner_text()
        return match.group()

    def field(self, label: str) -> Locator:
        """Returns the field of the form with this label."""
        return self.form.get_by_label(label, exact=True)

    def upload(self, *paths: Path) -> None:
        """Uploads files as one job."""
        with self.page.expect_file_chooser() as chooser:
            self.form.get_by_role("button", name="Open files").click()
        chooser.value.set_files([str(path) for path in paths])


def change(served: ServedPage, label: str, value: str) -> None:
    """Types a value into a field, and waits for the complete answer."""
    served.field(label).fill(value)
    served.figures.get_by_text(re.compile(rf"{label} .* → {value}")).wait_for()
    served.wait_complete()


def question_link(question: Mapping[str, object]) -> str:
    """Returns the link to a question."""
    link = base64.urlsafe_b64encode(json.dumps(dict(question)).encode()).decode().rstrip("=")
    return f"/#q={link}"
