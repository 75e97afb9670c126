"""Reads pages in tests: elements and their nesting, texts, and what a page could load or run."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "input", "link", "img", "hr"}


@dataclass
class PageElements(HTMLParser):
    """The elements of a page; `problems` says what is not well-formed."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    """The values of the key figures, in their order."""
    sections: dict[str, str] = field(default_factory=dict)
    """The texts of the sections, by their addresses."""
    _open: list[str] = field(default_factory=list)
    _section: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self._section = str(dict(attrs).get("id", ""))
            self.sections[self._section] = ""
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.words.append(data)
            if self._section and "section" in self._open:
                self.sections[self._section] += f" {' '.join(data.split())}"
            if self._open[-1] == "dd" and data.strip() and "value" in (self.tags[-1][1].get("class") or "").split():
                self.figures.append(data.strip())

    @property
    def text(self) -> str:
        """The words that a reader sees."""
        return " ".join(" ".join(self.words).split())

    def named(self, name: str) -> list[dict[str, str | None]]:
        """Returns the attributes of every element of a name."""
        return [attributes for tag, attributes in self.tags if tag == name]

    @property
    def ids(self) -> list[str]:
        """All addresses within the page."""
        return [str(attributes["id"]) for _, attributes in self.tags if "id" in attributes]


def read_page(html: str) -> PageElements:
    """Reads a page, to its end."""
    page = PageElements()
    page.feed(html)
    page.close()
    page.problems += [f"<{tag}> is not closed" for tag in page._open]
    return page


def check_page(html: str) -> PageElements:
    """Checks what holds for every page: it is well-formed, loads nothing, and runs and styles nothing inline."""
    page = read_page(html)
    assert page.problems == []
    assert len(page.ids) == len(set(page.ids))
    for _, attributes in page.tags:
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith("#")
        assert "src" not in attributes
    labels = [attributes["aria-labelledby"] for _, attributes in page.tags if "aria-labelledby" in attributes]
    assert set(labels) <= set(page.ids)
    assert "http://" not in html and "https://" not in html
    return page
