"""A browser for the tests of pages, and a server for those of the served page.

Every page is watched: a console error, a failed request or a request to another machine fails the test that caused it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from server_client import server as running_server
from ui.chromium import CHROMIUM, CHROMIUM_OPTIONS
from ui.served import ServedPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response

WAIT_MS = 20_000
"""How long a page may take to show what a test waits for, on a machine that is busy with other tests."""


@dataclass
class Watch:
    """What went wrong on the pages of a browser context.

    `expected` holds the statuses that a test provokes, and `is_offline` is set while it breaks the connection.
    """

    origin: str = ""
    expected: set[int] = field(default_factory=set)
    is_offline: bool = False
    problems: list[str] = field(default_factory=list)

    def follow(self, context: BrowserContext) -> None:
        """Watches all pages of a context."""
        context.on("console", self._console)
        context.on("weberror", lambda error: self.problems.append(f"page error: {error.error}"))
        context.on("request", self._request)
        context.on("requestfailed", self._failed)
        context.on("response", self._response)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        is_expected = any(f"status of {status}" in message.text for status in self.expected)
        if not is_expected and not (self.is_offline and "ERR_" in message.text):
            self.problems.append(f"console {message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("data", "blob", "file", "about"):
            return
        if f"{address.scheme}://{address.netloc}" != self.origin:
            self.problems.append(f"request to another origin: {request.url}")

    def _failed(self, request: Request) -> None:
        # A page that needs an answer no more closes its stream of events, and a download is no page.
        if request.failure != "net::ERR_ABORTED" and not self.is_offline:
            self.problems.append(f"failed request: {request.url}: {request.failure}")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.problems.append(f"status {response.status}: {response.url}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Starts Debian's Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    if not CHROMIUM.exists():
        pytest.skip(f"needs Chromium at {CHROMIUM}: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(CHROMIUM_OPTIONS))
        yield browser
        browser.close()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Fails the test if something went wrong on one of its pages."""
    watch = Watch()
    yield watch
    assert watch.problems == []


@pytest.fixture
def context_options() -> dict[str, Any]:
    """The options of the browser context of a test; parametrize it to change them."""
    return {}


@pytest.fixture
def context(browser: Browser, watch: Watch, context_options: dict[str, Any]) -> Iterator[BrowserContext]:
    """A browser without history and cookies."""
    size = {"width": 1440, "height": 900}
    # Without motion nothing on a page depends on when it is looked at.
    context = browser.new_context(**{"viewport": size, "reduced_motion": "reduce", **context_options})
    context.set_default_timeout(WAIT_MS)
    watch.follow(context)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """An empty page."""
    return context.new_page()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Starts `foretrace serve`, and returns its origin."""
    for module in ("starlette", "uvicorn"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f'needs {module}: pip install "foretrace[server]"')
    with running_server(tmp_path_factory.mktemp("serve"), folder=Path(__file__).parents[2]) as running:
        yield running.url.rstrip("/")


@pytest.fixture
def served(page: Page, server: str, watch: Watch) -> ServedPage:
    """An empty page, on which nothing is requested but from the server."""
    watch.origin = server
    return ServedPage(page, server)
