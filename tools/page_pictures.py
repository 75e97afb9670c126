"""Takes the pictures of docs/pages.md in Chromium: a report, and the served page with an answer pinned.

    python tools/page_pictures.py        # writes docs/img/report.png and docs/img/serve.png

Needs Playwright for Python and Chromium, as the tests of pages do. The numbers are those of the core install.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from answer_picture import COMMAND

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURES: Final = ROOT / "docs" / "img"
REPORT_SIZE: Final = {"width": 1200, "height": 1330}
SERVE_SIZE: Final = {"width": 1440, "height": 960}


def take_report(browser: Any, folder: Path) -> None:
    """Takes the picture of the report of the demo."""
    from foretrace.cli.main import run

    report = folder / "report.html"
    with suppress(SystemExit):
        run([*COMMAND.split(), "--no-silicon", "--html", str(report)])
    page = browser.new_page(viewport=REPORT_SIZE, reduced_motion="reduce")
    page.goto(report.as_uri())
    page.locator("canvas").wait_for()
    page.wait_for_timeout(300)
    page.screenshot(path=PICTURES / "report.png")


def take_served_page(browser: Any, folder: Path) -> None:
    """Takes the picture of the served page after a change."""
    from server_client import server
    from ui.served import ServedPage

    with server(folder / "state") as running:
        page = browser.new_page(viewport=SERVE_SIZE, reduced_motion="reduce")
        served = ServedPage(page, running.url.rstrip("/"))
        served.open_example()
        served.field("tp").fill("8")
        served.figures.get_by_text("tp 4 → 8").wait_for()
        served.wait_complete()
        page.wait_for_timeout(300)
        page.screenshot(path=PICTURES / "serve.png")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    from playwright.sync_api import sync_playwright

    from ui.chromium import CHROMIUM, CHROMIUM_OPTIONS

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(CHROMIUM_OPTIONS))
        take_report(chromium, Path(name))
        take_served_page(chromium, Path(name))
        chromium.close()
