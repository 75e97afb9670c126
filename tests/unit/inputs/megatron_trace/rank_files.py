"""Rank traces written in code: what a rank did, op after op, as a tracer would have written it down.

    rank = Rank(0, stage=0, state="warmup")
    rank.op("forward_step", 10, subs=[sub(6, 1, shape=[1024, 1024])])
    rank.gap(0.5)
    folder = write(tmp_path / "run", [rank], Facts(world=1, tp=1, pp=1))

Times are milliseconds. A sub-operation is (when it begins after its op does, its own duration, what it is).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foretrace import Answer, Machine, Program, Scenario, simulate
from foretrace.inputs.megatron_trace.format import Facts, RankTrace, SubOp, TraceOp, make_op, make_sub, write_runs
from foretrace.program.expand import expand
from opened import program_of
from shared_files import ROOT
from unit.inputs.aicb.workloads import CLUSTER

ORIGIN_MS = 5_000_000.0
"""When a host's clock shows the first op; any time but 0, which traces write for "none"."""

EXAMPLES = ROOT / "examples"


@dataclass(frozen=True, slots=True)
class Sub:
    """A sub-operation, begun so many ms after its op."""

    after_ms: float
    duration_ms: float
    source: str
    comm: str
    group: str | None
    shape: Sequence[int] | None
    dtype: str | None
    name: str | None

    def at(self, start_ms: float) -> SubOp:
        """The record of it in an op that began at a time."""
        return make_sub(
            self.source,
            duration_ms=self.duration_ms,
            timestamp_ms=start_ms + self.after_ms + self.duration_ms,
            shape=self.shape,
            dtype=self.dtype,
            name=self.name,
            group=self.group,
            comm=self.comm,
        )


def sub(
    after_ms: float,
    duration_ms: float,
    *,
    source: str | None = None,
    comm: str = "allreduce",
    group: str | None = "tp",
    shape: Sequence[int] | None = (1024, 1024),
    dtype: str | None = "torch.float16",
    name: str | None = None,
) -> Sub:
    """A tp all-reduce of 2 MiB unless said otherwise."""
    return Sub(after_ms, duration_ms, source or comm, comm, group, shape, dtype, name)


def all_to_all(after_ms: float, rows: int, hidden: int = 1024, duration_ms: float = 0.0) -> Sub:
    """An expert all-to-all in bf16, as MoE traces have them."""
    shape, dtype = (rows, hidden), "torch.bfloat16"
    return sub(after_ms, duration_ms, comm="all_to_all", group="exp", shape=shape, dtype=dtype)


@dataclass(slots=True)
class Rank:
    """The trace of one rank in the making."""

    rank: int
    stage: int = 0
    ex_situ: bool = False
    state: str | None = "steady"
    now_ms: float = ORIGIN_MS
    ops: list[TraceOp] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)

    def gap(self, ms: float) -> Rank:
        """Nothing happens for a while."""
        self.now_ms += ms
        return self

    def op(
        self,
        name: str,
        ms: float,
        *,
        subs: Iterable[Sub] = (),
        group: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        batch: int | None = None,
    ) -> Rank:
        """The next op."""
        self._counts[name] = number = self._counts.get(name, -1) + 1
        start, self.now_ms = self.now_ms, self.now_ms + ms
        made = make_op(
            self.rank,
            name,
            stage=self.stage,
            batch=number if batch is None else batch,
            state=None if self.ex_situ else self.state,
            duration_ms=ms,
            timestamp_ms=self.now_ms,
            description="simulation" if self.ex_situ and group is None else None,
            group=group,
            shape=shape,
            dtype=dtype,
            subs=[one.at(start) for one in subs],
            line=len(self.ops) + 1,
        )
        self.ops.append(made)
        return self

    def transfer(self, *names: str, until_ms: float, shape: Sequence[int] = (1024, 1024)) -> Rank:
        """A transfer that ends so long after the start of the trace; of two names, one call that does both."""
        start, end = self.now_ms, ORIGIN_MS + until_ms
        for name in names:
            self.now_ms = start
            self.op(name, end - start, group="pp", shape=shape, dtype="torch.float16")
        return self

    def reduction(
        self, name: str = "dp_allreduce", ms: float = 0.02, *, elements: int = 1_000_000, dtype: str = "torch.float32"
    ) -> Rank:
        """A gradient reduction."""
        group = name.removesuffix("_allreduce")
        return self.op(name, ms, group=group, shape=[elements], dtype=dtype)


def write(folder: Path, ranks: Iterable[Rank], facts: Facts | None = None, *, stamp: str = "20250101000000") -> Path:
    """A folder with the traces of these ranks."""
    traces = [RankTrace("", one.rank, tuple(one.ops)) for one in ranks]
    write_runs(traces, folder, facts or Facts(), stamp=stamp)
    return folder


def program(folder: Path | Sequence[Path], **options: object) -> Program:
    """The program of traces."""
    return program_of(folder, **options)


def answer(folder: Path | Sequence[Path], what_if: dict[str, float] | None = None, **options: object) -> Answer:
    """What traces come to on the cluster of round numbers."""
    return simulate(program(folder, **options), Machine(CLUSTER), Scenario(what_if or {}), explain=False)


def said(of: Program | Answer) -> str:
    """All notes and warnings as one text."""
    return "\n".join(f"{one.level}: {one.message}" for one in of.diagnostics)


def durations(of: Program, name: str, role: int = 0) -> list[float]:
    """What the ops of a name take in one role, in the order of issue (NaN: not priced yet)."""
    ops = expand(of)
    seconds = ops.column("duration_s")
    return [
        float(seconds[number])
        for number, called in enumerate(ops.names)
        if called == name and int(ops.role[number]) == role
    ]
