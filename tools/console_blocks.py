"""Checks the console blocks of the README and the docs against what the commands print, and rewrites them.

    python tools/console_blocks.py                      # report every block that differs; exit code 1 if any does
    python tools/console_blocks.py --write              # replace what differs
    python tools/console_blocks.py docs/predict.md …    # only these pages

A console block is a fenced block with lines that begin with `$ foretrace`. The lines below such a line are its output.
A line that is only `…` stands for left-out lines. All other lines must be printed exactly so: from the first line of
the output to its last, except where a `…` stands.

Commands run in order in one folder for each page, so that a later command finds what an earlier one wrote. The folder
has the `examples` and `benchmarks` of the repository. Sample files that are not part of the repository come from the
shared folder (`$FORETRACE_SHARED`, or `shared` next to the repository); a command that needs an absent one is skipped.

Outputs are those of the core install: `--no-silicon` is added where a command knows it. A block whose first line is a
comment such as `# needs [silicon]` is run as it stands, and skipped where the extra is not installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from functools import cache
from importlib.util import find_spec
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
EXTENDED: Final = ROOT / "docs" / "extending.md"
"""Its commands need what its recipes add: tests/unit/test_extending.py runs them on a changed copy of the package."""
ELISION: Final = "…"
EXTRAS: Final = {"silicon": "aiconfigurator_core", "fast": "numba", "packets": "ns", "bench": "hta", "trace": "torch"}
"""The module that tells whether an extra is installed."""

_SAMPLE_FOLDERS: Final = ("data/h200", "data/kineto", "data")
_INLINE: Final = re.compile(r"`(foretrace [^`]+)`")
_FILE: Final = re.compile(r"[\w./*-]+(?:/|\.(?:json|gz|ya?ml|txt|csv|jsonl|log|xml|sh|sqlite|profile|foretrace))")
_OUTPUT_OPTIONS: Final = ("-o", "--perfetto", "--plot", "--svg", "--heatmap", "--save", "--traces", "--csv")
_EXPENSIVE: Final = ("validate", "sweep", "plan", "measure", "calibrate", "serve")
_MIN_SIMILARITY: Final = 0.6
"""How similar a line must be to one of the new output to count as the same line with other numbers."""


class AbsentError(Exception):
    """A file or an extra that a command needs is absent."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a page shows.

    Attributes:
        page: The path of the page, relative to the repository.
        line: The number of the command's line, from 1.
        text: The command as written, without `$ `.
        shown: The lines of output below it; empty if none are shown.
        extras: The extras of the install that its block asks for.
    """

    page: str
    line: int
    text: str
    shown: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Returns the page and the line, as an editor understands them."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class _Parts:
    """A command line taken apart: environment, words of the command, and the word that `| grep` looks for."""

    environment: dict[str, str]
    words: list[str]
    grep: str | None


def pages() -> list[Path]:
    """Returns the README and all pages of the docs."""
    return [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {EXTENDED})]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


def page_commands(page: Path) -> list[Command]:
    """Returns every command in the fenced blocks of a page, with the output that is shown below it."""
    name = _name(page)
    return [
        command for first, block in _blocks(page.read_text(encoding="utf-8")) for command in _read(name, first, block)
    ]


def inline_commands(page: Path) -> list[Command]:
    """Returns every command in the running text of a page, such as `foretrace list models`."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page.read_text("utf-8"), flags=re.S | re.M)
    return [
        Command(_name(page), text.count("\n", 0, found.start()) + 1, " ".join(found[1].split()))
        for found in _INLINE.finditer(text)
    ]


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the lines of each fenced block, with the number of its first line."""
    inside: list[str] | None = None
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            if inside is None:
                inside, first = [], number + 1
            else:
                yield first, inside
                inside = None
        elif inside is not None:
            inside.append(line)


def _read(page: str, first: int, block: list[str]) -> Iterator[Command]:
    with_prompt = any(_is_prompt(line) for line in block)
    extras = tuple(re.findall(r"\[(\w+)\]", block[0])) if block and block[0].startswith("#") else ()
    starts = [
        index
        for index, line in enumerate(block)
        if (_is_prompt(line) if with_prompt else line.startswith("foretrace "))
    ]
    for start, end in pairwise([*starts, len(block)]):
        lines = block[start:end]
        if with_prompt:
            shown = next((lines[:index] for index, line in enumerate(lines) if index and line.startswith("$ ")), lines)[
                1:
            ]
            yield Command(page, first + start, lines[0].removeprefix("$ "), tuple(shown), extras)
        else:
            continued = [line for line in lines[1:] if line.startswith(" ")]
            text = " ".join(line.removesuffix("\\").strip() for line in [lines[0], *continued])
            yield Command(page, first + start, text, extras=extras)


def _is_prompt(line: str) -> bool:
    return re.match(r"\$ (?:\w+=\S+ )*foretrace ", line) is not None


def _parts(command: Command) -> _Parts:
    words = shlex.split(command.text, comments=True)
    environment = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    grep = None
    if "|" in words:
        bar = words.index("|")
        if words[bar + 1] != "grep" or len(words) != bar + 3:
            raise ValueError(f"{command.place}: only | grep WORD can follow a command")
        grep, words = words[-1], words[:bar]
    return _Parts(environment, words[1:], grep)


@cache
def _parser(name: str) -> Any:
    from foretrace.cli.main import LazyGroup

    return LazyGroup().get_command(None, name)


@cache
def known_options(name: str) -> frozenset[str]:
    """Returns the options of a command of Foretrace, such as `--json`; raises if there is no such command."""
    parser = _parser(name)
    if parser is None:
        raise ValueError(f"foretrace has no command {name}")
    named = {option for param in parser.params for option in (*param.opts, *param.secondary_opts)}
    return frozenset({option for option in named if option.startswith("-")} | {"-h", "--help"})


def option_problem(command: Command) -> str | None:
    """Returns what is wrong with the name or an option of a command; None if each exists.

    The command is not run. Optional parts in brackets and placeholders (`FILE`, `…`) are allowed.
    """
    words = _parts(command).words if "[" not in command.text else command.text.split()[1:]
    words = [word.strip("[],") for word in words if word not in ("…", "|")]
    if not words or words[0].isupper() or words[0].startswith("-"):
        return None
    try:
        options = known_options(words[0])
    except ValueError as error:
        return str(error)
    mine = words[: words.index("--")] if "--" in words else words
    unknown = [word for word in mine if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in options]
    return f"foretrace {words[0]} has no option {', '.join(unknown)}" if unknown else None


def parse_problem(command: Command) -> str | None:
    """Returns why a command line would be refused by its parser; None if it would not, or has placeholders."""
    words = _parts(command).words if "[" not in command.text else []
    if not words or any("…" in word for word in words):
        return None
    try:
        _parser(words[0]).make_context(words[0], list(words[1:]))
    except Exception as error:  # typer carries a click of its own, so its exceptions have no stable name
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    return None


@contextmanager
def page_folder(page: Path) -> Iterator[Path]:
    """Makes the temporary folder that the commands of a page run in."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work"
        folder.mkdir()
        for name in ("examples", "benchmarks"):
            (folder / name).symlink_to(ROOT / name)
        for name, text in _written_files(page).items():
            (folder / name).write_text(text, encoding="utf-8")
        yield folder


def _written_files(page: Path) -> dict[str, str]:
    """Returns the files whose content a page shows: a YAML block with a `name: my-cluster` is `my-cluster.yaml`."""
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    named = [(re.search(r"^name: (\S+)$", block, re.MULTILINE), block) for block in blocks]
    return {f"{found[1]}.yaml": block for found, block in named if found}


@dataclass(frozen=True, slots=True)
class Printed:
    """The lines that a command printed, those of errors included, and its exit code."""

    lines: list[str]
    code: int


def printed_by(command: Command, folder: Path) -> Printed:
    """Runs a command in this process and returns what it prints.

    Raises:
        AbsentError: a sample file or an extra that it needs is not at hand.
    """
    parts = _parts(command)
    for extra in command.extras:
        if find_spec(EXTRAS[extra]) is None:
            raise AbsentError(f"[{extra}] is not installed")
    for word in parts.words:
        _provide(word, folder)
    words = list(parts.words)
    core = not command.extras and not {"--no-silicon", "--prices"} & set(words)
    if core and "--no-silicon" in known_options(words[0]):
        words.insert(1, "--no-silicon")
    text, code = _run(words, folder, parts.environment)
    lines = [line.rstrip() for line in text.splitlines() if parts.grep is None or parts.grep in line]
    return Printed(lines, code)


def is_cheap(command: Command, folder: Path) -> bool:
    """Tells whether a command without shown output can be run as it stands, in a few seconds.

    It cannot if it has placeholders (`FILE`, `…`) or names a file that does not exist.
    """
    if "[" in command.text or ELISION in command.text:
        return False
    words = _parts(command).words
    if words[0] in _EXPENSIVE or any(re.fullmatch(r"[A-Z][A-Z_0-9]*", word) for word in words):
        return False
    inputs = [
        word for before, word in pairwise(["", *words]) if before not in _OUTPUT_OPTIONS and _FILE.fullmatch(word)
    ]
    return all((folder / name).exists() for name in inputs)


def _run(words: list[str], folder: Path, environment: dict[str, str]) -> tuple[str, int]:
    from foretrace.cli.main import run

    kept = dict(os.environ)
    stream = StringIO()
    code = 0
    try:
        for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ.update(environment)
        with chdir(folder), redirect_stdout(stream), redirect_stderr(stream):
            run(words)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    finally:
        os.environ.clear()
        os.environ.update(kept)
    return stream.getvalue(), code


def _shared() -> Path:
    return Path(os.environ.get("FORETRACE_SHARED") or ROOT.parent / "shared")


def _provide(word: str, folder: Path) -> None:
    """Puts a sample where a command looks for it, if the word names one."""
    if word.startswith("-") or (folder / word).exists():
        return
    if word in _MADE:
        _MADE[word](folder / word)
    elif re.fullmatch(r"[^/]+\.(json\.gz|table\.txt)", word):
        (folder / word).symlink_to(_sample(word))


def _sample(name: str) -> Path:
    """Returns a file or folder of the shared folder; raises if it is absent."""
    found = [path for folder in _SAMPLE_FOLDERS if (path := _shared() / folder / name).exists()]
    if not found:
        raise AbsentError(f"{name} is not in the shared folder (set FORETRACE_SHARED to one that has it)")
    return found[0]


def _cut_off(path: Path) -> None:
    whole = _sample("nccl_parser_config_nccl_data.json.gz").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def _simai_tables(path: Path) -> None:
    path.symlink_to(_sample("simai"))


_MADE: Final[dict[str, Callable[[Path], None]]] = {"cut.json.gz": _cut_off, "SIMAI_DIR": _simai_tables}
"""Files that are made of a sample: those that a page names, and what writes each."""


def difference(shown: Sequence[str], printed: Sequence[str]) -> str:
    """Returns how the shown lines differ from the printed ones, as a diff; empty if they agree."""
    segments, open_start, open_end = _segments(shown)
    lines = _trimmed(printed)
    position = 0
    for index, segment in enumerate(segments):
        first, last = index == 0, index == len(segments) - 1
        size = len(segment)
        if first and not open_start:
            starts = [0]
        elif last and not open_end:
            starts = [len(lines) - size]
        else:
            starts = list(range(position, len(lines) - size + 1))
        if last and not open_end and first and not open_start and size != len(lines):
            starts = []
        found = next((start for start in starts if start >= position and lines[start : start + size] == segment), None)
        if found is None:
            return "\n".join(unified_diff(segment, lines, "shown", "printed", lineterm="", n=1))
        position = found + size
    return ""


def refreshed(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Returns the shown lines as printed today, with the same parts left out.

    The ends of what is shown are found by similarity: a line counts as the same if only its numbers changed. Where no
    line is similar, the whole output is returned.
    """
    segments, open_start, open_end = _segments(shown)
    lines = _trimmed(printed)
    marks = iter([line for line in shown if line.strip() == ELISION])
    fresh = [""] if shown and not shown[0].strip() else []
    position = 0
    for index, segment in enumerate(segments):
        left_out = index > 0 or open_start
        start = _most_similar(segment[0], lines, position) if left_out else 0
        if start is None:
            return lines
        end = len(lines)
        if index < len(segments) - 1 or open_end:
            last = _most_similar(segment[-1], lines, start, start + len(segment) - 1)
            if last is None:
                return lines
            end = last + 1
        if left_out:
            fresh.append(next(marks))
        fresh += lines[start:end]
        position = end
    return [*fresh, *marks]


def _most_similar(line: str, lines: list[str], position: int, near: int | None = None) -> int | None:
    """Returns the index of the most similar line from `position` on; among equals, of the one nearest to `near`."""
    scores = [
        (SequenceMatcher(None, _shape(line), _shape(lines[index])).ratio(), index)
        for index in range(position, len(lines))
    ]
    if not scores:
        return None
    target = position if near is None else near
    score, index = max(scores, key=lambda found: (found[0], -abs(found[1] - target)))
    return index if score >= _MIN_SIMILARITY else None


def _shape(line: str) -> str:
    return " ".join(re.sub(r"[\d.,−+±]+", "0", line).split())


def _segments(shown: Sequence[str]) -> tuple[list[list[str]], bool, bool]:
    """Returns the runs of lines between elisions, and whether an elision stands before the first and after the last."""
    lines = _trimmed(shown)
    segments: list[list[str]] = [[]]
    for line in lines:
        if line.strip() == ELISION:
            segments.append([])
        else:
            segments[-1].append(line)
    open_start, open_end = not segments[0], not segments[-1]
    return [segment for segment in segments if segment], open_start, open_end


def _trimmed(lines: Sequence[str]) -> list[str]:
    text = [line.rstrip() for line in lines]
    filled = [index for index, line in enumerate(text) if line]
    return text[filled[0] : filled[-1] + 1] if filled else []


@dataclass(frozen=True, slots=True)
class Findings:
    """What running the commands of a page showed, each with its place: what differs, and what could not be run."""

    problems: list[str]
    absent: list[str]


def check_page(page: Path, write: bool = False) -> Findings:
    """Runs the commands of a page and compares what they print with what is shown.

    Args:
        page: The page.
        write: Whether to replace what differs in the page. Commands without shown output are then not run.
    """
    findings = Findings([], [])
    changes: list[tuple[Command, list[str]]] = []
    unwritten: set[str] = set()
    with page_folder(page) as folder:
        for command in page_commands(page):
            shown = any(line.strip() for line in command.shown)
            if not shown and (write or not is_cheap(command, folder)):
                continue
            words = _parts(command).words
            try:
                if unwritten & set(words):
                    raise AbsentError(f"an earlier command that writes {', '.join(unwritten & set(words))} was skipped")
                printed = printed_by(command, folder)
            except AbsentError as error:
                findings.absent.append(f"{command.place}: {error}")
                unwritten |= {word for before, word in pairwise(words) if before in _OUTPUT_OPTIONS}
                continue
            found = difference(command.shown, printed.lines) if shown else ""
            if not shown and printed.code:
                found = "\n".join(printed.lines)
            if found:
                findings.problems.append(f"{command.place}: $ {command.text}\n{found}")
                changes.append((command, refreshed(command.shown, printed.lines)))
    if write and changes:
        _rewrite(page, changes)
    return findings


def _rewrite(page: Path, changes: list[tuple[Command, list[str]]]) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    for command, fresh in sorted(changes, key=lambda change: -change[0].line):
        lines[command.line : command.line + len(command.shown)] = fresh
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Checks or rewrites pages; returns 1 if one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="only these pages")
    parser.add_argument("--write", action="store_true", help="replace what differs")
    arguments = parser.parse_args()
    differs = False
    for page in [path.resolve() for path in arguments.pages] or pages():
        findings = check_page(page, arguments.write)
        differs |= bool(findings.problems)
        for text in findings.problems:
            print(text, end="\n\n")
        for text in findings.absent:
            print(f"skipped {text}")
    return int(differs and not arguments.write)


if __name__ == "__main__":
    sys.exit(main())
