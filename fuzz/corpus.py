"""Keeps small inputs that once broke the contract, as regression tests, in tests/fixtures/hostile.

`TARGET/NAME/` holds the files of an input and `words`, the command line that is run there. `lines.txt` holds command
lines and calls of the Python API, one a line after the name of its target; they run in the folder of that target.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fuzz.oracle import Case
from fuzz.samples import ROOT
from fuzz.targets import all_targets

CORPUS: Final = ROOT / "tests" / "fixtures" / "hostile"
WORDS: Final = "words"
LINES: Final = "lines.txt"
_CALL: Final = "python:call"


def kept_cases(folder: Path = CORPUS) -> Iterator[tuple[str, Case]]:
    """Yields every kept input with its name, such as `kineto/number_as_category`."""
    for words in sorted(folder.glob(f"*/*/{WORDS}")):
        place = words.parent
        paths = [path for path in sorted(place.rglob("*")) if path.is_file() and path != words]
        files = {path.relative_to(place).as_posix(): path.read_bytes() for path in paths}
        case = Case(place.parent.name, files, tuple(shlex.split(words.read_text("utf-8"))))
        yield f"{place.parent.name}/{place.name}", case
    lines = folder / LINES
    for number, line in enumerate(lines.read_text("utf-8").splitlines() if lines.is_file() else (), 1):
        target, _, text = line.partition(" ")
        line_words = (_CALL, text) if target.startswith("api:") else tuple(shlex.split(text))
        yield f"{LINES}:{number}", Case(target, all_targets()[target].samples()[0].files, line_words)


def keep(case: Case, name: str, folder: Path = CORPUS) -> Path:
    """Writes an input into the corpus; a line needs no name. Returns where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    if ":" in case.target:
        path = folder / LINES
        lines = set(path.read_text("utf-8").splitlines()) if path.is_file() else set()
        text = case.words[1] if case.words[0] == _CALL else shlex.join(case.words)
        path.write_text("\n".join(sorted(lines | {f"{case.target} {text}"})) + "\n", "utf-8")
        return path
    place = folder / case.target / name
    place.mkdir(parents=True)
    (place / WORDS).write_text(shlex.join(case.words) + "\n", "utf-8")
    for file, data in case.files.items():
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_bytes(data)
    return place
