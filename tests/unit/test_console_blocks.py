"""Every command that the README and the docs show runs, and prints what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from console_blocks import (
    Command,
    check_page,
    difference,
    inline_commands,
    option_problem,
    page_commands,
    pages,
    parse_problem,
    refreshed,
)

PAGES = [page for page in pages() if page_commands(page)]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_commands_print_what_the_page_shows(page: Path) -> None:
    findings = check_page(page)
    advice = "run python tools/console_blocks.py --write"
    assert not findings.problems, "\n\n".join([*findings.problems, advice])
    if findings.absent:
        pytest.skip("; ".join(findings.absent))


@pytest.mark.parametrize("page", pages(), ids=[page.name for page in pages()])
def test_options_exist(page: Path) -> None:
    commands = page_commands(page)
    assert not [f"{one.place}: {found}" for one in commands if (found := option_problem(one) or parse_problem(one))]
    # The running text names commands without their arguments, so only names are checked.
    assert not [f"{one.place}: {found}" for one in inline_commands(page) if (found := option_problem(one))]


class TestDifference:
    PRINTED = ("", "  Step   1.5 s", "", "  compute   1.0 s", "  bubble   0.5 s", "  see   --json")

    @pytest.mark.parametrize(
        "shown",
        [
            PRINTED,
            PRINTED[1:],
            ("  Step   1.5 s", "  …"),
            ("…", "  see   --json"),
            ("  Step   1.5 s", "…", "  bubble   0.5 s", "…"),
        ],
    )
    def test_lines_left_out_are_marked(self, shown: tuple[str, ...]) -> None:
        assert not difference(shown, self.PRINTED)

    @pytest.mark.parametrize(
        "shown",
        [
            ("  Step   1.6 s", "…"),
            ("  Step   1.5 s",),
            ("  compute   1.0 s", "…"),
            ("…", "  bubble   0.5 s"),
            ("…", "  bubble   0.5 s", "…", "  compute   1.0 s", "…"),
            ("  Step   1.5 s", "", "  bubble   0.5 s", "…"),
        ],
    )
    def test_anything_else_differs(self, shown: tuple[str, ...]) -> None:
        assert difference(shown, self.PRINTED)

    @pytest.mark.parametrize(
        ("shown", "expected"),
        [
            (("  Step   9 ms", "  …"), ("  Step   1.5 s", "  …")),
            (("…", "  compute   2 s", "  bubble   3 s", "…"), ("…", *PRINTED[3:5], "…")),
            (("  Step   9 ms", "…", "  bubble   0.1 s", "  see   --json"), (PRINTED[1], "…", *PRINTED[4:])),
            (("", "  Step   9 ms"), PRINTED),
            (("…", "  nothing of the kind 1 2 3", "…"), PRINTED[1:]),
        ],
    )
    def test_rewriting_keeps_what_is_left_out(self, shown: tuple[str, ...], expected: tuple[str, ...]) -> None:
        assert tuple(refreshed(shown, self.PRINTED)) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("foretrace simulate FILE --jason", "no option --jason"),
        ("foretrace simulat FILE", "no command simulat"),
        ("foretrace compare A… B [--cluster NAME] [--clutser NAME]", "no option --clutser"),
        ("foretrace simulate FILE --compat simai -- -g 128", None),
        ("foretrace simulate FILE --what-if dp=2x  # faster", None),
    ],
)
def test_a_wrong_option_is_found(text: str, problem: str | None) -> None:
    found = option_problem(Command("page.md", 1, text))
    assert found is None if problem is None else problem in (found or "")
