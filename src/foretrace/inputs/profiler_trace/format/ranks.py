"""Traces of several ranks: which files they are in, and which is whose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.files import AnyPath, GivenPath, InputFile, given_path
from foretrace.inputs.profiler_trace.format import looks_like_profile, read_trace
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.profiler_trace.format.sniff import ENDINGS, SQLITE
from foretrace.inputs.profiler_trace.format.text import head_of

MAX_NAMED: Final = 5


def read_ranks(paths: Iterable[AnyPath]) -> list[RankProfile]:
    """Reads the traces that files, folders and patterns name, in order of ranks.

    A file that is named is read, and an error says what is wrong with it. One that was found is read if it looks like a
    trace, as soon as it does, so that no more than one is open.
    """
    names: list[str] = []
    seen: set[Path] = set()
    others: dict[Path, None] = {}
    traces: list[RankProfile] = []
    for given in map(given_path, paths):
        names.append(given.text)
        for file, is_candidate in _listed(given):
            if file.path in seen:
                continue
            if is_candidate and (not given.is_many or looks_like_profile(file)):
                seen.add(file.path)
                traces += _traces_of(file)
            else:
                file.close()
                others[file.path] = None
    if not seen:
        raise InputError(
            "nothing-to-do",
            "there is no profiler trace here",
            where=", ".join(names) or "nothing",
            hint=f"traces end in {', '.join(ENDINGS)}",
        )
    if others:
        traces[0] = replace(traces[0], diagnostics=(*traces[0].diagnostics, _skip_note(list(others))))
    if len(traces) == 1:
        return traces
    _check(traces)
    traces[0] = replace(traces[0], diagnostics=(*traces[0].diagnostics, *_same_recording(traces)))
    return sorted(traces, key=lambda trace: trace.rank or 0)


def _skip_note(others: Sequence[Path]) -> Diagnostic:
    named = ", ".join(path.name for path in others[:MAX_NAMED])
    more = f" and {len(others) - MAX_NAMED:,} more" if len(others) > MAX_NAMED else ""
    return Diagnostic("note", "files-skipped", f"no profiler traces, left out: {named}{more}", str(others[0].parent))


def _traces_of(file: InputFile) -> list[RankProfile]:
    """Reads the trace of a file; a report of Nsight Systems may hold several processes."""
    if head_of(file, len(SQLITE)) != SQLITE:
        return [read_trace(file)]
    from foretrace.inputs.profiler_trace.format.nsys import read_nsys_processes
    from foretrace.inputs.profiler_trace.plausible import plausible

    return [plausible(trace) for trace in read_nsys_processes(file)]


def _listed(given: GivenPath) -> Iterator[tuple[InputFile, bool]]:
    """Yields the files that a path names, and whether each may be a trace by its name.

    Files that are named, or that a pattern matches, may be; the files of a folder may be by their endings. Hidden files
    of a folder are passed over.
    """
    if given.is_pattern and not given.files:
        raise InputError("file-not-found", "no file matches this pattern", where=given.text)
    matches = set(given.matches)
    for file in given.files:
        if file.path in matches:
            yield file, True
        elif not file.name.startswith("."):
            yield file, file.name.endswith(ENDINGS)


def _same_recording(traces: Sequence[RankProfile]) -> list[Diagnostic]:
    """Returns a warning on traces of several ranks that hold the same events: one recording under several names."""
    seen: dict[tuple[object, ...], RankProfile] = {}
    for trace in traces:
        events = trace.events
        start_s, duration_s = events.start_s.round(9), events.duration_s.round(9)
        same = seen.setdefault((trace.origin_ns, len(events), start_s.tobytes(), duration_s.tobytes()), trace)
        if same is not trace:
            text = f"all events are at the same times as in {Path(same.path).name}: one recording under two names?"
            return [Diagnostic("warning", "duplicate-event", text, trace.path)]
    return []


def _check(traces: Sequence[RankProfile]) -> None:
    """Raises an error unless every trace is of a rank of its own."""
    seen: dict[int, str] = {}
    for trace in traces:
        if trace.rank is None:
            raise InputError(
                "missing-field",
                "the rank of this trace is not known: neither its distributedInfo nor its name says",
                where=trace.path,
                hint="call the files rank0.json, rank1.json, ..., or give one trace",
            )
        if trace.rank in seen:
            raise InputError(
                "duplicate-name",
                f"this and {seen[trace.rank]} are both of rank {trace.rank}",
                where=trace.path,
                hint="give one trace of each rank",
            )
        seen[trace.rank] = trace.path
