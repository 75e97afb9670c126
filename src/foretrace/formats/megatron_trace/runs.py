"""Folders of rank traces as runs: which files belong together, told by their folders, facts and times."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from foretrace.errors import Diagnostic, InputError
from foretrace.formats.megatron_trace.names import facts_of
from foretrace.formats.megatron_trace.read import read_trace
from foretrace.formats.megatron_trace.records import Facts, RankTrace, Run
from foretrace.formats.megatron_trace.sniff import looks_like_trace

APART_S: Final = 60.0
"""Ranks that start together write times that differ by a second or so; sets of them farther apart are two runs."""

_NAMED = 5
_HINT = "give a folder of rank traces, a pattern such as 'run/*.txt', or a file"


@dataclass(frozen=True, slots=True)
class _File:
    """A trace with what its name says."""

    path: Path
    trace: RankTrace
    facts: Facts
    stamp: str | None


@dataclass(slots=True)
class _Found:
    """Files by their folder as the user named it, whether the folder was given as a whole, and what was left out."""

    files: dict[Path, list[Path]] = field(default_factory=dict)
    alone: set[Path] = field(default_factory=set)
    skipped: dict[Path, list[str]] = field(default_factory=dict)
    seen: set[Path] = field(default_factory=set)

    def add(self, path: Path) -> None:
        """Takes a file, once however often it is named."""
        real = path.absolute()
        if real not in self.seen:
            self.seen.add(real)
            self.files.setdefault(path.parent, []).append(path)

    def choose(self, paths: Iterable[Path]) -> bool:
        """Takes those files that are rank traces and notes the others; whether there is any trace."""
        some = False
        for path in paths:
            if path.is_dir():
                continue
            if path.suffix == ".txt" and looks_like_trace(path):
                some = True
                self.add(path)
            else:
                self.skipped.setdefault(path.parent, []).append(path.name)
        return some


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """The runs in folders, patterns and files, by time; diagnostics say how they were told apart.

    Files of one folder and with the same facts are a run, until a rank appears again.
    """
    if not paths:
        raise InputError("nothing-to-do", "there are no traces to read", hint=_HINT)
    found = _Found()
    for path in paths:
        _find(path, found)
    runs: list[tuple[str, Run]] = []
    for folder, files in found.files.items():
        told = [_run(folder, group, folder in found.alone) for group in _told_apart([_read(one) for one in files])]
        told.sort(key=lambda item: item[0])
        notes = (_count_note(folder, [run for _, run in told]), *_skip_notes(folder, found.skipped.get(folder, ())))
        first = replace(told[0][1], diagnostics=notes)
        runs += [(told[0][0], first), *told[1:]]
    runs.sort(key=lambda item: item[0])
    return [run for _, run in runs]


def _find(path: str | Path, found: _Found) -> None:
    text, given = str(path), Path(path)
    try:
        if given.is_dir():
            if not found.choose(sorted(given.iterdir())):
                raise InputError("nothing-to-do", "the folder holds no rank traces", where=text, hint=_below(given))
            return
        if not given.exists() and any(mark in text for mark in "*?["):
            _find_pattern(text, found)
            return
    except OSError as error:
        raise InputError("unreadable-file", f"the folder cannot be read: {error.strerror}", where=text) from None
    except ValueError as error:
        raise InputError("bad-value", f"this is not a path: {error}", where=repr(text)) from None
    if given.parent not in found.files:
        found.alone.add(given.parent)
    found.add(given)


def _find_pattern(pattern: str, found: _Found) -> None:
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - may be absolute
    if not matches:
        raise InputError("file-not-found", "nothing matches the pattern", where=pattern, hint=_HINT)
    folders = [match for match in matches if match.is_dir() and looks_like_trace(match)]
    some = found.choose(matches)
    for folder in folders:
        some = found.choose(sorted(folder.iterdir())) or some
    if not some:
        raise InputError("nothing-to-do", "nothing that matches the pattern is a rank trace", where=pattern, hint=_HINT)


def _below(folder: Path) -> str:
    """A hint for a folder without traces: its folders that have some."""
    inner = [one.name for one in sorted(folder.iterdir()) if one.is_dir() and looks_like_trace(one)]
    return f"its folders do: {_listed(inner)}" if inner else _HINT


def _read(path: Path) -> _File:
    trace = read_trace(path)
    said, facts = facts_of(path)
    if said.rank is not None and said.rank != trace.rank:
        raise InputError(
            "conflicting-values",
            f"the file's name says rank {said.rank}, its lines say rank {trace.rank}",
            where=f"{path}:{trace.ops[0].line}",
            hint="rename the file",
        )
    return _File(path, trace, facts, said.stamp)


def _told_apart(files: list[_File]) -> list[list[_File]]:
    """Files as runs: those with the same facts, in order of time, until a rank appears again."""
    groups: list[list[_File]] = []
    for facts in dict.fromkeys(one.facts for one in files):
        alike = [one for one in files if one.facts == facts]
        alike.sort(key=lambda one: (one.stamp or "", one.trace.rank, one.path.name))
        together = {stamp for stamp, count in Counter(one.stamp for one in alike).items() if count > 1}
        current: dict[int, _File] = {}
        for one in alike:
            again = current.get(one.trace.rank)
            if again is not None and (again.stamp is None or one.stamp is None):
                raise InputError(
                    "duplicate-name",
                    f"rank {one.trace.rank} is also in {again.path.name}, and no times in their names tell them apart",
                    where=str(one.path),
                    hint="put each run into a folder of its own",
                )
            if again is not None or _is_another(current, one, together):
                groups.append(list(current.values()))
                current = {}
            current[one.trace.rank] = one
        groups.append(list(current.values()))
    return groups


def _is_another(current: dict[int, _File], one: _File, together: set[str | None]) -> bool:
    """Whether ranks that started together are followed by others that did so much later."""
    last = next(reversed(current.values()), None)
    if last is None or last.stamp is None or one.stamp is None or not {last.stamp, one.stamp} <= together:
        return False
    return abs(_seconds(one.stamp) - _seconds(last.stamp)) > APART_S


def _seconds(stamp: str) -> float:
    """Seconds since some time; a stamp that is no date counts from its digits."""
    try:
        return (datetime.strptime(stamp, "%Y%m%d%H%M%S") - datetime(1, 1, 1)).total_seconds()
    except ValueError:
        return float(stamp)


def _run(folder: Path, files: list[_File], alone: bool) -> tuple[str, Run]:
    """The time of the first file, or one after all others, and the run."""
    ranks = {one.trace.rank: one.trace for one in sorted(files, key=lambda one: one.trace.rank)}
    stamps = [one.stamp for one in files if one.stamp is not None]
    path = str(files[0].path) if alone and len(files) == 1 else str(folder)
    return min(stamps, default="~"), Run(path, files[0].facts, ranks)


def _count_note(folder: Path, runs: Sequence[Run]) -> Diagnostic:
    said = "; ".join(_ranks(list(run.ranks)) for run in runs)
    count = "1 run found" if len(runs) == 1 else f"{len(runs)} runs found, by time"
    return Diagnostic("note", "runs-found", f"{count}: {said}", str(folder))


def _skip_notes(folder: Path, names: Sequence[str]) -> list[Diagnostic]:
    if not names:
        return []
    return [Diagnostic("note", "files-skipped", f"not rank traces, left out: {_listed(names)}", str(folder))]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _ranks(ranks: Sequence[int]) -> str:
    """`ranks 0-3, 8`, or how many and from which to which."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    noun = "rank" if len(ranks) == 1 else "ranks"
    if len(spans) > _NAMED:
        return f"{len(ranks):,} ranks from {ranks[0]} to {ranks[-1]}"
    return f"{noun} {', '.join(str(low) if low == high else f'{low}-{high}' for low, high in spans)}"
