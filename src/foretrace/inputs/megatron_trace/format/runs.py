"""Groups the rank traces of a folder into runs, by folder, facts and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.files import AnyPath, GivenPath, InputFile, given_paths
from foretrace.basics.limits import limited, too_large
from foretrace.inputs.megatron_trace.format.names import facts_of
from foretrace.inputs.megatron_trace.format.nodes import APART_S, RunPart, join_nodes, rank_spans, seconds_of
from foretrace.inputs.megatron_trace.format.read import read_trace
from foretrace.inputs.megatron_trace.format.records import MAX_NAMED, Facts, RankTrace, Run
from foretrace.inputs.megatron_trace.format.sniff import is_trace_in_folder, looks_like_trace

MAX_RUN_BYTES = 512 << 20
"""8,192 ranks of 50 kB each, which is an iteration of 8 microbatches, are 400 MB."""

_HINT = "give a folder of rank traces, a pattern such as 'run/*.txt', or a file"


@dataclass(frozen=True, slots=True)
class _File:
    """A trace with what its name says."""

    path: Path
    trace: RankTrace
    facts: Facts
    stamp: str | None


@dataclass(slots=True)
class _Collection:
    """Traces by their folder as the user named it, whether the folder was given as a whole, and what was left out."""

    files: dict[Path, list[_File]] = field(default_factory=dict)
    alone: set[Path] = field(default_factory=set)
    skipped: dict[Path, list[str]] = field(default_factory=dict)
    paths: set[Path] = field(default_factory=set)
    other_paths: set[Path] = field(default_factory=set)
    size: int = 0
    """Bytes of the files that were read."""

    def add(self, file: InputFile) -> None:
        """Reads a file, once however often it is named."""
        real = file.path.absolute()
        if real in self.paths:
            file.close()
            return
        self.paths.add(real)
        with suppress(OSError, ValueError):  # the reader says what is wrong with the file
            self.size += file.path.stat().st_size
        if self.size > limited(MAX_RUN_BYTES):
            raise too_large(f"the rank traces have more than {limited(MAX_RUN_BYTES) >> 20:,} MiB", str(file))
        self.files.setdefault(file.path.parent, []).append(_read(file))

    def choose(self, given: GivenPath) -> bool:
        """Reads the rank traces of a folder or pattern and notes the other files; whether there is any trace."""
        folders: set[Path] = set()
        others: list[Path] = []
        for file in given.files:
            real = file.path.absolute()
            if real in self.paths or (real not in self.other_paths and is_trace_in_folder(file)):
                folders.add(file.path.parent)
                self.add(file)
            elif real not in self.other_paths:
                self.other_paths.add(real)
                others.append(file.path)
        matches = set(given.matches)
        for path in others:
            # A folder that a pattern matches and that has no traces is none of the user's concern.
            if path in matches or path.parent in folders:
                self.skipped.setdefault(path.parent, []).append(path.name)
        return bool(folders)


def read_runs(paths: Sequence[AnyPath]) -> list[Run]:
    """Reads the runs in folders, patterns and files, by time; diagnostics report how they were separated.

    Files of one folder and with the same facts are a run, until a rank appears again. A real run may have a folder for
    each of its nodes.
    """
    if not paths:
        raise InputError("nothing-to-do", "there are no traces to read", hint=_HINT)
    collection = _Collection()
    for given in given_paths(paths):
        _find(given, collection)
    parts: list[RunPart] = []
    for folder, files in collection.files.items():
        groups = [_part(folder, group, folder in collection.alone) for group in _told_apart(files)]
        groups.sort(key=lambda part: part.time)
        runs = [part.run for part in groups]
        notes = (_count_note(folder, runs), *_skip_notes(folder, collection.skipped.get(folder, ())))
        groups[0] = replace(groups[0], run=replace(runs[0], diagnostics=notes))
        parts += groups
    parts.sort(key=lambda part: part.time)
    return join_nodes(parts)


def _find(given: GivenPath, collection: _Collection) -> None:
    if given.is_folder:
        if not collection.choose(given):
            raise InputError(
                "nothing-to-do", "the folder holds no rank traces", where=given.text, hint=_below(given.path)
            )
    elif given.is_pattern:
        if not given.matches:
            raise InputError("file-not-found", "nothing matches the pattern", where=given.text, hint=_HINT)
        if not collection.choose(given):
            raise InputError(
                "nothing-to-do", "nothing that matches the pattern is a rank trace", where=given.text, hint=_HINT
            )
    else:
        if given.path.parent not in collection.files:
            collection.alone.add(given.path.parent)
        collection.add(given.files[0])


def _below(folder: Path) -> str:
    """A hint for a folder without traces: its folders that have some."""
    inner = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and looks_like_trace(path)]
    return f"its folders do: {_listed(inner)}" if inner else _HINT


def _read(file: InputFile) -> _File:
    trace = read_trace(file)
    named, facts = facts_of(file.path)
    if named.rank is not None and named.rank != trace.rank:
        raise InputError(
            "conflicting-values",
            f"the file's name says rank {named.rank}, its lines say rank {trace.rank}",
            where=f"{file}:{trace.ops[0].line}",
            hint="rename the file",
        )
    return _File(file.path, trace, facts, named.stamp)


def _told_apart(files: list[_File]) -> list[list[_File]]:
    """Files as runs: those with the same facts, in order of time, until a rank appears again."""
    groups: list[list[_File]] = []
    for facts in dict.fromkeys(file.facts for file in files):
        campaign = [file for file in files if file.facts == facts]
        campaign.sort(key=lambda file: (file.stamp or "", file.trace.rank, file.path.name))
        together = {stamp for stamp, count in Counter(file.stamp for file in campaign).items() if count > 1}
        current: dict[int, _File] = {}
        for file in campaign:
            again = current.get(file.trace.rank)
            if again is not None and (again.stamp is None or file.stamp is None):
                raise InputError(
                    "duplicate-name",
                    f"rank {file.trace.rank} is also in {again.path.name}, and no times in their names tell them apart",
                    where=str(file.path),
                    hint="put each run into a folder of its own",
                )
            if again is not None or _is_another(current, file, together):
                groups.append(list(current.values()))
                current = {}
            current[file.trace.rank] = file
        groups.append(list(current.values()))
    return groups


def _is_another(current: dict[int, _File], file: _File, together: set[str | None]) -> bool:
    """Whether ranks that started together are followed by others that did so much later."""
    last = next(reversed(current.values()), None)
    if last is None or last.stamp is None or file.stamp is None or not {last.stamp, file.stamp} <= together:
        return False
    return abs(seconds_of(file.stamp) - seconds_of(last.stamp)) > APART_S


def _part(folder: Path, files: list[_File], alone: bool) -> RunPart:
    """The run of some files of a folder."""
    ranks = {file.trace.rank: file.trace for file in sorted(files, key=lambda file: file.trace.rank)}
    stamps = sorted(file.stamp for file in files if file.stamp is not None)
    path = str(files[0].path) if alone and len(files) == 1 else str(folder)
    return RunPart(folder, tuple(stamps), Run(path, files[0].facts, ranks))


def _count_note(folder: Path, runs: Sequence[Run]) -> Diagnostic:
    listed = "; ".join(rank_spans(list(run.ranks)) for run in runs)
    count = "1 run found" if len(runs) == 1 else f"{len(runs)} runs found, by time"
    return Diagnostic("note", "runs-found", f"{count}: {listed}", str(folder))


def _skip_notes(folder: Path, names: Sequence[str]) -> list[Diagnostic]:
    if not names:
        return []
    return [Diagnostic("note", "files-skipped", f"not rank traces, left out: {_listed(names)}", str(folder))]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
