"""The report as a file: it runs its own script and nothing else, and two runs give the same bytes."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode

from foretrace.basics.origin import origin_of
from foretrace.report.design import SERIES, SURFACES
from foretrace.report.page.blocks import Code, KeyFigure, KeyFigures, Section, View
from foretrace.report.page.document import notebook_style, report_html, report_script, style_sheet
from foretrace.report.page.origin import with_origin
from page_elements import check_page


def view(title: str = "a job") -> View:
    sections = [
        Section("step", "The answer", [KeyFigures([KeyFigure("Step", "1.00 s")])]),
        Section("rest", "Rest", [Code("x")]),
    ]
    return View(title, "prediction", sections, command="foretrace predict x")


def sha(text: str) -> str:
    return b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_policy_allows_the_one_script_and_the_one_style_of_the_file() -> None:
    html = report_html([view()])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert policy is not None
    assert f"script-src 'sha256-{sha(script)}'" in policy[1]
    assert f"style-src 'sha256-{sha(style)}'" in policy[1]
    assert policy[1].startswith("default-src 'none'")


def test_a_report_is_well_formed_and_the_same_each_time() -> None:
    page = check_page(report_html([view()]))
    assert "1.00 s" in page.text
    assert report_html([view()]) == report_html([view()])


def test_several_answers_have_addresses_of_their_own() -> None:
    page = check_page(report_html([view("a"), view("b")]))
    assert {"a1-step", "a2-step"} <= set(page.ids)
    links = [link["href"] for link in page.named("a")]
    assert {"#a1-answer", "#a2-answer"} <= set(links)


def test_the_contents_have_every_section() -> None:
    page = check_page(report_html([view()]))
    links = {link["href"] for link in page.named("a")}
    assert {f"#{section['id']}" for section in page.named("section")} <= links


def test_the_script_of_a_report_is_one_module_without_imports() -> None:
    assert not re.search(r"^(import|export)\b", report_script(), re.MULTILINE)
    assert "</script" not in report_script()


def test_every_colour_that_styles_use_is_one_of_the_design() -> None:
    defined = {*SERIES, *SURFACES}
    used = set(re.findall(r"var\(--([a-z-]+[0-9]?)\)", style_sheet() + report_script()))
    rest = {name for name in used - defined if not re.fullmatch(r"s[1-6]|t-\w+|r-\w+|shadow-\w+|font|mono", name)}
    assert rest == set()
    assert not re.search(r"#[0-9a-f]{6}", style_sheet().partition("/* The look")[2].replace("#bbbbbb", ""))


def test_the_style_of_a_notebook_reaches_no_other_element() -> None:
    outer = re.sub(r"\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*\}", "", notebook_style())
    selectors = [line.strip() for line in outer.splitlines() if line.strip()]
    assert selectors
    assert all(".foretrace" in selector or selector.startswith("@media") for selector in selectors)


def test_the_origin_names_the_files_that_were_read(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "job.txt"
    file.write_text("x")
    (page,) = with_origin([view()], origin_of(["simulate", "my job.txt"], [str(file), str(tmp_path / "gone")]))
    assert page.command == "foretrace simulate 'my job.txt'"
    texts = [value for name, value in page.facts if name == "input"]
    assert hashlib.sha256(b"x").hexdigest() in texts[0]
    assert texts[1] == str(tmp_path / "gone")
