"""Joins the parts of a real run whose nodes wrote to a folder each; campaigns taken ex situ stay apart.

Timestamps count from the start of their host: those of two nodes overlap by chance only, and in a recorded run of two
nodes they are a week apart. So the times in the names of files decide, which are those of a calendar. Where names have
no times, timestamps must overlap, as they do on one host or where a tracer writes times of a calendar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Final

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.megatron_trace.format.ex_situ import is_ex_situ
from foretrace.inputs.megatron_trace.format.records import MAX_NAMED, Facts, Run

APART_S: Final = 60.0
"""Ranks that start together write times that differ by a second or so; sets of them farther apart are two runs."""


@dataclass(frozen=True)
class RunPart:
    """A run as one folder has it, and the times in the names of its files, in order."""

    folder: Path
    stamps: tuple[str, ...]
    run: Run

    @property
    def time(self) -> str:
        """The time of the first file, or one after all others."""
        return self.stamps[0] if self.stamps else "~"

    @cached_property
    def is_real(self) -> bool:
        """Whether it is of a real run, not taken ex situ."""
        return not is_ex_situ([self.run])

    @cached_property
    def span_ms(self) -> tuple[float, float] | None:
        """When its ops began and ended on its hosts' clocks; None where the tracer gave no times."""
        ops = [op for trace in self.run.ranks.values() for op in trace.ops]
        ends = [op.timestamp_ms for op in ops if op.timestamp_ms is not None]
        starts = [op.start_ms for op in ops if op.start_ms is not None]
        return (min([*starts, *ends]), max(ends)) if ends else None


def join_nodes(parts: Sequence[RunPart]) -> list[Run]:
    """Returns the runs that these parts are, in their order: those of nodes of one real run are joined.

    Parts belong together if they come from different folders, the facts in their names agree, no rank is in two of
    them, and they were recorded at the same time.
    """
    groups: list[list[RunPart]] = []
    for part in parts:
        group = next((group for group in groups if _belongs(part, group)), None)
        if group is None:
            groups.append([part])
        else:
            group.append(part)
    return [_joined(group) if len(group) > 1 else group[0].run for group in groups]


def seconds_of(stamp: str) -> float:
    """Returns the seconds of a time in a file's name; one that is not a date counts from its digits."""
    try:
        return (datetime.strptime(stamp, "%Y%m%d%H%M%S") - datetime(1, 1, 1)).total_seconds()
    except ValueError:
        return float(stamp)


def rank_spans(ranks: Sequence[int]) -> str:
    """Returns ranks in words: `ranks 0-3, 8`, or how many and from which to which."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    noun = "rank" if len(ranks) == 1 else "ranks"
    if len(spans) > MAX_NAMED:
        return f"{len(ranks):,} ranks from {ranks[0]} to {ranks[-1]}"
    return f"{noun} {', '.join(str(low) if low == high else f'{low}-{high}' for low, high in spans)}"


def _belongs(part: RunPart, group: Sequence[RunPart]) -> bool:
    return (
        all(
            part.folder != other.folder
            and part.run.ranks.keys().isdisjoint(other.run.ranks)
            and _agree(part.run.facts, other.run.facts)
            for other in group
        )
        and any(_at_the_same_time(part, other) for other in group)
        and all(other.is_real for other in (part, *group))
    )


def _agree(first: Facts, other: Facts) -> bool:
    """Whether two names say the same, as far as both say something."""
    values = [(getattr(first, field.name), getattr(other, field.name)) for field in fields(Facts)]
    return all(mine == theirs or mine is None or theirs is None for mine, theirs in values)


def _at_the_same_time(first_part: RunPart, other: RunPart) -> bool:
    """Whether the times in the names of two parts' files are close, or, where there are none, timestamps overlap."""
    if first_part.stamps and other.stamps:
        (first, last), (other_first, other_last) = (
            (seconds_of(part.stamps[0]), seconds_of(part.stamps[-1])) for part in (first_part, other)
        )
        return first - APART_S <= other_last and other_first - APART_S <= last
    mine, theirs = first_part.span_ms, other.span_ms
    return mine is not None and theirs is not None and mine[0] <= theirs[1] and theirs[0] <= mine[1]


def _joined(group: Sequence[RunPart]) -> Run:
    runs = sorted((part.run for part in group), key=lambda run: min(run.ranks))
    ranks = {rank: trace for run in runs for rank, trace in run.ranks.items()}
    facts = {
        field.name: value
        for field in fields(Facts)
        for run in runs
        if (value := getattr(run.facts, field.name)) is not None
    }
    shown = "; ".join(f"{rank_spans(list(run.ranks))} in {run.path}" for run in runs[:MAX_NAMED])
    more = f"; and {len(runs) - MAX_NAMED:,} more" if len(runs) > MAX_NAMED else ""
    note = Diagnostic("note", "runs-joined", f"{len(runs)} folders are nodes of one run: {shown}{more}", runs[0].path)
    return replace(
        runs[0],
        facts=replace(Facts(), **facts),
        ranks=dict(sorted(ranks.items())),
        diagnostics=(note, *(diagnostic for run in runs for diagnostic in run.diagnostics)),
        paths=tuple(run.path for run in runs),
    )
