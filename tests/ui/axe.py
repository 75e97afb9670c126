"""The rules of axe-core for accessible pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ui.served import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"


def violations(page: Page) -> list[str]:
    """Returns the serious and critical problems that axe-core finds."""
    if not AXE.is_file():
        pytest.skip("needs axe-core: npm ci")
    page.evaluate(AXE.read_text())
    results = page.evaluate("(tags) => axe.run(document, {resultTypes: ['violations'], runOnly: tags})", list(TAGS))
    return [
        f"{violation['id']}: {node['target']} {node['failureSummary']}"
        for violation in results["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
