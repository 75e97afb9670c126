"""Makes HTML documents of views: the report, a single file that needs no network, and styles for parts of others.

The report holds one style sheet and one script, both inline; its content security policy names their hashes, so that
nothing else in the file can run or load anything.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from foretrace.report.design import css_variables
from foretrace.report.page.blocks import View
from foretrace.report.page.markup import ORIGIN_TITLE, render_view, tag, text

_WEB: Final = "foretrace.report.web"
_MODULES: Final = (
    "times.js",
    "gantt_data.js",
    "gantt_palette.js",
    "gantt_line.js",
    "gantt_tracks.js",
    "gantt_scene.js",
    "gantt_facts.js",
    "gantt_draw.js",
    "gantt_input.js",
    "gantt.js",
    "report.js",
)
"""The scripts of a report, in the order in which they are joined."""
_IMPORT: Final = re.compile(r"^import .*;\n", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(async )?(function|const|class)\b)", re.MULTILINE)


@cache
def style_sheet() -> str:
    """Returns the style sheet of all pages."""
    return css_variables() + _web_file("style.css")


def _web_file(name: str) -> str:
    return files(_WEB).joinpath(name).read_text("utf-8")


@cache
def report_script() -> str:
    """Returns the script of a report: the modules of the page, joined to one that imports nothing."""
    joined = "\n".join(_EXPORT.sub("", _IMPORT.sub("", _web_file(name))) for name in _MODULES)
    return f"{joined}\nactivate(document);\n"


@cache
def notebook_style() -> str:
    """Returns the style sheet of a notebook cell. It affects only elements of the class `foretrace`."""
    body = "background: var(--page); color: var(--ink); font: var(--t-body)/1.45 var(--font); padding: var(--s4);"
    nested = _web_file("style.css").replace(":root {", "& {", 1)
    return css_variables(".foretrace") + f".foretrace {{ {body} {nested} }}"


def report_html(views: Sequence[View]) -> str:
    """Returns a report of some answers as one HTML file."""
    styles, script = style_sheet(), report_script()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(styles)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = " · ".join(dict.fromkeys(view.title for view in views)) or "Foretrace"
    prefixes = [f"a{number}-" if len(views) > 1 else "" for number in range(1, len(views) + 1)]
    articles = "\n".join(render_view(view, prefix) for view, prefix in zip(views, prefixes, strict=True))
    bar = tag("h1", "Foretrace") + _contents(views, prefixes) + _scheme_buttons()
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            tag("title", text(f"{title} · Foretrace")),
            f"<style>{styles}</style>",
            "</head>",
            '<body class="report">',
            tag("a", "Skip to the answer", class_="skip", href="#content"),
            tag("header", bar, class_="topbar"),
            tag("main", articles, id="content", tabindex="-1"),
            f'<script type="module">{script}</script>',
            "</body>",
            "</html>",
            "",
        ]
    )


def _contents(views: Sequence[View], prefixes: Sequence[str]) -> str:
    """Returns links to the sections; to the answers where there are several."""
    if len(views) > 1:
        links = [(f"{prefix}answer", view.title) for view, prefix in zip(views, prefixes, strict=True)]
    else:
        links = [(section.key, section.title) for view in views for section in view.sections]
        links += [("origin", ORIGIN_TITLE) for view in views if view.states_origin]
    items = "".join(tag("li", tag("a", text(title), href=f"#{key}")) for key, title in links)
    return tag("nav", tag("ul", items), aria_label="Contents")


def _scheme_buttons() -> str:
    return tag("button", "Light or dark", type="button", data_scheme=True)


def _hash(inline: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(inline.encode()).digest()).decode()
