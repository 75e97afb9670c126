"""Reads what the names of trace files and of their folders tell about a job."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.numbers import NumberError, whole_number
from foretrace.inputs.megatron_trace.format.records import Facts

FOLDERS_UP: Final = 3
"""How many folders above a file may be named after its job."""

_FILE = re.compile(
    r"wd(?P<world>\d+)_tp(?P<tp>\d+)_pp(?P<pp>\d+)"
    r"(?:_exp(?P<ep>\d+))?(?:_expNum(?P<experts>\d+|None))?"
    r"(?:_(?:numl|l)(?P<layers>\d+))?(?:_bs(?P<micro_batch>\d+))?(?:_.+?)??"
    r"_rank(?P<rank>\d+)(?:_(?P<stamp>\d{14}))?",
    re.ASCII,
)
_RENAMED = re.compile(r"(?:.*_)?rank(?P<rank>\d+)(?:_(?P<stamp>\d{14}))?", re.ASCII)
_WORD = re.compile(r"(wd|tp|pp|ep|exp|expn|expNum|dp|nl|numl|hs|sl|bs)(\d+)", re.ASCII)
_FOLDER_WORDS: Final = {
    "wd": "world",
    "tp": "tp",
    "pp": "pp",
    "ep": "ep",
    "exp": "ep",
    "expn": "experts",
    "expNum": "experts",
    "dp": "dp",
    "nl": "layers",
    "numl": "layers",
    "hs": "hidden",
    "sl": "sequence",
    "bs": "micro_batch",
}


@dataclass(frozen=True, slots=True)
class FileName:
    """A file's facts, and its rank and time (YYYYmmddHHMMSS) where its name has them."""

    facts: Facts
    rank: int | None
    stamp: str | None


def file_name(path: Path) -> FileName:
    """Reads the name of a file; the result is empty where it is not named as tracers name files."""
    match = _FILE.fullmatch(path.stem)
    if match is None:
        renamed = _RENAMED.fullmatch(path.stem)
        if renamed is None:
            return FileName(Facts(), None, None)
        return FileName(Facts(), _number(renamed["rank"]), renamed["stamp"])
    words = match.groupdict()
    rank, stamp = words.pop("rank"), words.pop("stamp")
    return FileName(Facts(**{name: _number(word) for name, word in words.items()}), _number(rank), stamp)


@lru_cache(maxsize=64)
def folder_facts(name: str) -> Facts:
    """Reads the name of a folder, if two or more of its words are facts: a single word may be anything."""
    facts: dict[str, int | None] = {}
    for word in name.split("_"):
        match = _WORD.fullmatch(word)
        if match and _FOLDER_WORDS[match[1]] not in facts:
            facts[_FOLDER_WORDS[match[1]]] = _number(match[2])
    return Facts(**facts) if len(facts) > 1 else Facts()


def facts_of(path: Path) -> tuple[FileName, Facts]:
    """Returns the facts of a file's name, and these joined with those of the nearest folder named after a job."""
    named = file_name(path)
    for folder in path.absolute().parents[:FOLDERS_UP]:
        above = folder_facts(folder.name)
        if above != Facts():
            return named, _joined(named.facts, above, path, folder)
    _check_world(named.facts, path)
    return named, named.facts


def trace_name(facts: Facts, rank: int, stamp: str) -> str:
    """The file name that a tracer gives to a rank; parts that are not known are left out."""
    if facts.world is None or facts.tp is None or facts.pp is None:
        return f"rank{rank}_{stamp}.txt"
    words = [f"wd{facts.world}", f"tp{facts.tp}", f"pp{facts.pp}"]
    words += [] if facts.ep is None else [f"exp{facts.ep}"]
    words += [] if facts.ep is None or facts.experts is None else [f"expNum{facts.experts}"]
    words += [] if facts.layers is None else [f"{'numl' if facts.ep is None else 'l'}{facts.layers}"]
    words += [] if facts.micro_batch is None else [f"bs{facts.micro_batch}"]
    return "_".join([*words, f"rank{rank}", f"{stamp}.txt"])


def _number(word: str | None) -> int | None:
    try:
        return whole_number(word) if word and word != "None" else None
    except NumberError:  # no name of a tracer
        return None


def _joined(own: Facts, above: Facts, path: Path, folder: Path) -> Facts:
    """Facts of a file and of its folder; where both say something, it must be the same."""
    joined: dict[str, int] = {}
    for field in fields(Facts):
        mine, theirs = getattr(own, field.name), getattr(above, field.name)
        if mine is not None and theirs is not None and mine != theirs:
            raise InputError(
                "conflicting-values",
                f"the file's name says {field.name} = {mine}, that of its folder {folder.name} says {theirs}",
                where=str(path),
                hint="rename the one that is wrong",
            )
        if mine is None and theirs is not None:
            joined[field.name] = theirs
    facts = replace(own, **joined)
    _check_world(facts, path)
    return facts


def _check_world(facts: Facts, path: Path) -> None:
    zero = next((field.name for field in fields(Facts) if getattr(facts, field.name) == 0), None)
    if zero is not None:
        raise InputError("bad-mesh", f"the name says {zero} = 0", where=str(path), hint="rename the file or its folder")
    sizes = {name: getattr(facts, name) or 1 for name in ("tp", "pp", "dp")}
    ranks = sizes["tp"] * sizes["pp"] * sizes["dp"]
    if facts.world is not None and facts.world % ranks:
        listed = " · ".join(f"{name} {size}" for name, size in sizes.items())
        raise InputError(
            "bad-mesh",
            f"{facts.world:,} ranks (wd) cannot be {listed}",
            where=str(path),
            hint="rename the file or its folder",
        )
