"""Keeps small inputs that once broke the contract, as regression tests: tests/fixtures/hostile/TARGET/NAME/.

A folder holds the files of the input and `words`, the command line that is run there; words and calls of the API are
run in the folder of their target.
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


def kept_cases(folder: Path = CORPUS) -> Iterator[tuple[str, Case]]:
    """Yields every kept input with its name, such as `kineto/number_as_category`."""
    for words in sorted(folder.glob(f"*/*/{WORDS}")):
        place = words.parent
        target = place.parent.name.replace("--", ":")
        files = {
            path.relative_to(place).as_posix(): path.read_bytes()
            for path in sorted(place.rglob("*"))
            if path.is_file() and path != words
        }
        if ":" in target:
            files = dict(all_targets()[target].samples()[0].files)
        yield f"{place.parent.name}/{place.name}", Case(target, files, tuple(shlex.split(words.read_text("utf-8"))))


def keep(case: Case, name: str, folder: Path = CORPUS) -> Path:
    """Writes an input into the corpus under a name."""
    place = folder / case.target.replace(":", "--") / name
    place.mkdir(parents=True)
    (place / WORDS).write_text(shlex.join(case.words) + "\n", "utf-8")
    for file, data in case.files.items() if ":" not in case.target else ():
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_bytes(data)
    return place
