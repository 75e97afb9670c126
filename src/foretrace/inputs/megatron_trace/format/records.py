"""Rank traces of Megatron as records, as they are written: nothing is corrected, guessed or left out here.

A file holds what one rank did in one or more iterations, a line per op in the order in which they ended. Times are
milliseconds, as in the file; `timestamp_ms` is when an op *ended*, on the clock of its host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from foretrace.basics.errors import Diagnostic

MAX_NAMED: Final = 5
"""Files, folders or runs that a text names one by one."""


@dataclass(frozen=True, slots=True)
class SubOp:
    """A communication within an op: what it is, over which group, and the tensor this rank gave to it.

    `text` is every field as written, in its order; the rest is read off it. `group` is the file's word (`tp`, `dp`,
    `exp`, …), `comm` the collective in one spelling (`allreduce`, `allgather`, `reduce_scatter`, `all_to_all`,
    `broadcast`). `overlaps` means that the span from launch to wait runs next to computation.
    """

    text: Mapping[str, str]
    source: str
    name: str | None
    group: str | None
    comm: str | None
    duration_ms: float
    timestamp_ms: float
    shape: tuple[int, ...] | None
    dtype: str | None
    overlaps: bool

    @property
    def start_ms(self) -> float:
        """When it began."""
        return self.timestamp_ms - self.duration_ms


@dataclass(frozen=True, slots=True)
class TraceOp:
    """One line: an op of a rank.

    `text` is every field but the sub-operations as written, in its order. A field that the line does not have, or that
    says None, is None here; a timestamp of 0 means that the tracer gave none and is None as well. `subs_at` is how many
    fields stand before the sub-operations: -1 for all, None where the line does not have any list of them.
    """

    rank: int
    op: str
    text: Mapping[str, str]
    stage: int | None
    batch: int | None
    state: str | None
    duration_ms: float | None
    timestamp_ms: float | None
    description: str | None
    group: str | None
    shape: tuple[int, ...] | None
    dtype: str | None
    subs: tuple[SubOp, ...]
    subs_at: int | None = -1
    line: int = field(default=0, compare=False)

    @property
    def start_ms(self) -> float | None:
        """When it began; None where the tracer gave no time."""
        if self.timestamp_ms is None or self.duration_ms is None:
            return None
        return self.timestamp_ms - self.duration_ms


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The file of one rank."""

    path: str
    rank: int
    ops: tuple[TraceOp, ...]
    diagnostics: tuple[Diagnostic, ...] = field(default=(), compare=False)

    def at(self, line: int) -> str:
        """`file:line`."""
        return f"{self.path}:{line}"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that the names of files and folders tell about a job; None where they do not.

    Files: `wd{world}_tp{}_pp{}[_exp{ep}_expNum{experts}]_numl{layers}|_l{layers}_bs{micro batch}[_{tokenizer}]_rank{}
    _{YYYYmmddHHMMSS}.txt`. Folders: `pp{}_tp{}_ep{}|_exp{}_expn{experts}_dp{}_nl{layers}_hs{hidden}_sl{sequence}`.
    """

    world: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    dp: int | None = None
    experts: int | None = None
    layers: int | None = None
    hidden: int | None = None
    sequence: int | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The ranks of one run, by number: those of one folder, separated from other runs there by their times.

    A real run may have a folder for each node; `paths` are all of them then, and `path` is the first.
    """

    path: str
    facts: Facts
    ranks: Mapping[int, RankTrace]
    diagnostics: tuple[Diagnostic, ...] = ()
    paths: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name for messages: its folder or folders, or its file where it is a single one."""
        if len(self.paths) < 2:
            return Path(self.path).name
        names = _short_names([Path(path) for path in self.paths])
        more = [f"{len(names) - MAX_NAMED:,} more"] if len(names) > MAX_NAMED else []
        return " + ".join([*names[:MAX_NAMED], *more])


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Names of paths without the folders above that all have in common; each keeps at least its own name."""
    shared = 0
    for parts in zip(*(path.parts[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared += 1
    return ["/".join(path.parts[shared:]) for path in paths]
