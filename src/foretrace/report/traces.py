"""A timeline as rank traces of Megatron: what a tracer in the schedule would have written down, had the job run.

The ops of one placement that belong to one phase become a line, their collectives its sub-operations; transfers, and
collectives that reduce gradients or come between steps, become lines of their own. Lines come in the order in
which they end, as in a recorded trace.

A tracer's communication times include waiting for partners. So does a span here: it begins when the op was ready and
the rank's compute lane did nothing else, and ends when the op does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import Diagnostic, InputError
from foretrace.formats.megatron_trace import Facts, RankTrace, SubOp, TraceOp, dtype_bytes, make_op, make_sub
from foretrace.formats.megatron_trace.names import trace_name
from foretrace.formats.megatron_trace.states import Turn, states
from foretrace.formats.megatron_trace.values import DTYPE_BYTES
from foretrace.formats.megatron_trace.write import STAMP
from foretrace.program.arrays import distinct
from foretrace.program.columns import Collective, Kind, Phase, label
from foretrace.program.program import Floats, Ints, Longs
from foretrace.program.timeline import Timeline

Flags = NDArray[np.bool_]

ORIGIN_MS: Final = 1_000_000_000.0
"""When steps begin: milliseconds since the start of an imaginary host, twelve days."""

MOST_RANKS: Final = 64
"""Ranks of a job that are all written unless some are named; of a larger one, a rank of each class is."""

GROUP_WORDS: Final = {"ep": "exp", "edp": "exp_dp", "embd": "ep"}
"""Axes that traces call otherwise; their `ep` is the embedding group."""

COMM_WORDS: Final = {
    Collective.ALL_REDUCE: "allreduce",
    Collective.ALL_GATHER: "allgather",
    Collective.REDUCE_SCATTER: "reduce_scatter",
    Collective.ALL_TO_ALL: "all_to_all",
    Collective.BROADCAST: "broadcast",
}

_OUTSIDE: Final = frozenset(("dp", "edp", "embd"))
"""Axes whose collectives are lines of their own."""

_STEPS: Final = {
    Phase.FORWARD: "forward_step",
    Phase.BACKWARD: "backward_step",
    Phase.BACKWARD_INPUT: "backward_step",
    Phase.RECOMPUTE: "backward_step",
    Phase.BACKWARD_WEIGHT: "backward_weight_step",
    Phase.OPTIMIZER: "optimizer_step",
}
_FACTS: Final = ("kind", "phase", "name", "collective", "communicator", "bytes", "dtype", "chunk")
_UNTYPED = "torch.uint8"
_ALONE_S = 1e-9
_WAY = re.compile(r"(send|receive|recv)[ _-]?(forward|backward)")
_UNSAFE = re.compile(r"[^\w .:/+-]", re.ASCII)


def timeline_traces(timeline: Timeline, ranks: Sequence[int] | None = None) -> list[RankTrace]:
    """The step as traces of these ranks; by default of all, in a large job of one rank of every class."""
    program, classes = timeline.graph.program, timeline.graph.classes
    if ranks is None:
        few = program.world <= MOST_RANKS
        ranks = range(program.world) if few else sorted(classes.representative.tolist())
    writer = _Writer(timeline)
    chosen = dict.fromkeys(int(rank) for rank in ranks)
    for rank in chosen:
        if not 0 <= rank < program.world:
            raise InputError(f"there is no rank {rank}; the job has ranks 0 to {program.world - 1}")
    return [writer.trace(rank) for rank in chosen]


def timeline_facts(timeline: Timeline) -> Facts:
    """What the names of its trace files say of the job."""
    program = timeline.graph.program
    mesh = program.mesh
    return Facts(world=program.world, tp=mesh.tp, pp=mesh.pp, ep=mesh.ep if mesh.ep > 1 else None, dp=mesh.dp)


@dataclass(frozen=True, slots=True)
class _Row:
    """An op of a rank, with the span that a tracer would see, in seconds."""

    kind: Kind
    phase: Phase
    name: str
    collective: Collective
    communicator: int
    bytes: int
    dtype: str | None
    chunk: int
    placement: int
    microbatch: int
    sends: bool
    begin_s: float
    end_s: float
    overlaps: bool


@dataclass(slots=True)
class _Line:
    """A line to be: its op, the batch id it wants (None: the next one), and the rows that make it up."""

    op: str
    batch: int | None
    rows: list[_Row]
    group: str | None = None
    description: str | None = None
    id: int = field(default=0)


class _Writer:
    """Reads rows off one timeline and writes them down."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.graph = timeline, timeline.graph
        self.program, self.ops = timeline.graph.program, timeline.graph.ops
        self.facts = timeline_facts(timeline)
        self._sizes: dict[tuple[int, int], int] = {}

    def trace(self, rank: int) -> RankTrace:
        """The trace of one rank."""
        rows, stage = self._rows(rank), int(self.program.mesh.coordinate("pp")[rank])
        lines = self._lines(rows, stage)
        if not lines:
            raise InputError(f"rank {rank} does nothing that a trace could show")
        _number(lines)
        turns = [Turn(line.op, line.id) for line in lines]
        said = states(turns, stage, self.program.mesh.pp)
        # A stable sort: the two lines of an exchange stay together, in their order.
        order = sorted(range(len(lines)), key=lambda index: max(row.end_s for row in lines[index].rows))
        ops = [self._op(lines[at], rank, stage, said[at], number) for number, at in enumerate(order, 1)]
        path = trace_name(self.facts, rank, STAMP)
        return RankTrace(path, rank, tuple(ops), tuple(_notes(rows, lines, path)))

    @cached_property
    def _columns(self) -> dict[str, Longs]:
        return {name: self.ops.ints(name) for name in (*_FACTS, "lane", "enabled")}

    @cached_property
    def _sending(self) -> Longs:
        """The ops that send to someone by name."""
        sending, _ = self.ops.side_table(self.program.templates.send_op)
        return distinct(sending)

    def _rows(self, rank: int) -> list[_Row]:
        """The ops of a rank that happen, in the order of issue."""
        owner = self.graph.classes.of_rank[rank]
        nodes = np.arange(self.graph.start[owner], self.graph.start[owner + 1])
        nodes = nodes[self._columns["enabled"][self.graph.op[nodes]] > 0]
        ops = self.graph.op[nodes]
        begin, end, overlaps = self._spans(nodes, ops)
        columns = [self._columns[name][ops].tolist() for name in _FACTS]
        places = [self.ops.placement[ops].tolist(), self.ops.microbatch[ops].tolist()]
        sends = np.isin(ops, self._sending).tolist()
        strings = self.program.strings
        return [
            _Row(
                Kind(kind),
                Phase(phase),
                strings[name],
                Collective(collective),
                communicator,
                size,
                strings[dtype] if dtype >= 0 else None,
                chunk,
                *rest,
            )
            for kind, phase, name, collective, communicator, size, dtype, chunk, *rest in zip(
                *columns, *places, sends, begin.tolist(), end.tolist(), overlaps.tolist(), strict=True
            )
        ]

    def _spans(self, nodes: Longs, ops: Ints) -> tuple[Floats, Floats, Flags]:
        """(begin, end, whether it overlaps computation) of nodes of one rank; computation begins when it starts."""
        start, end = self.timeline.start_s[nodes], self.timeline.end_s[nodes]
        computes = self._columns["kind"][ops] == Kind.COMPUTE
        lanes = np.array([lane.kind == "compute" for lane in self.program.lanes], dtype=np.bool_)
        stream = computes | lanes[self._columns["lane"][ops]]
        ready = np.maximum(np.minimum(self.timeline.ready_s[nodes], start), 0.0)
        free = np.minimum(_busy_until(start, start[stream], end[stream]), start)
        begin = np.where(computes, start, np.maximum(ready, free))
        overlaps: Flags = ~computes & (_busy_until(end, start[computes], end[computes]) > begin + _ALONE_S)
        return begin, end, overlaps

    def _lines(self, rows: Sequence[_Row], stage: int) -> list[_Line]:
        """The rows as lines, in the order of issue."""
        steps = _steps(rows)
        microbatches = max((row.microbatch for row in rows), default=-1) + 1
        lines: list[_Line] = []
        steps_written: dict[tuple[int, str], _Line] = {}
        for row in rows:
            key = (row.placement, _step(row, steps))
            batch = row.microbatch + row.chunk * microbatches if row.microbatch >= 0 else None
            if row.kind == Kind.TRANSFER:
                group = _group(self.program.communicators[row.communicator].axis)
                ways = self._ways(row, stage)
                lines += [_Line(way, None if i else batch, [row], group) for i, way in enumerate(ways)]
            elif row.kind == Kind.COLLECTIVE and self._is_outside(row, key in steps_written):
                group = _group(self.program.communicators[row.communicator].axis)
                lines.append(_Line(f"{group}_allreduce", None, [row], group, _described(row)))
            else:
                if key not in steps_written:
                    steps_written[key] = _Line(key[1], batch, [])
                    lines.append(steps_written[key])
                steps_written[key].rows.append(row)
        return lines

    def _is_outside(self, row: _Row, step_runs: bool) -> bool:
        """Whether a collective is a line of its own: it reduces gradients, or is not within a step."""
        axis = self.program.communicators[row.communicator].axis
        return axis in _OUTSIDE or (row.microbatch < 0 and row.phase == Phase.NONE and not step_runs)

    def _ways(self, row: _Row, stage: int) -> list[str]:
        """`send_forward` and the like: what a transfer's name says, otherwise where the partner is."""
        said = _WAY.findall(row.name.lower())
        if said:
            return [f"{'send' if verb == 'send' else 'recv'}_{way}" for verb, way in said]
        pair = self.program.communicators[row.communicator].pair or (0, 0)
        ahead = max(pair) > stage
        there, back = ("forward", "backward") if ahead else ("backward", "forward")
        if row.collective == Collective.EXCHANGE:
            return [f"send_{there}", f"recv_{back}"]
        return [f"send_{there}" if row.sends else f"recv_{back}"]

    def _op(self, line: _Line, rank: int, stage: int, state: str | None, number: int) -> TraceOp:
        communicates = line.group is not None
        begin_s, end_s = min(row.begin_s for row in line.rows), max(row.end_s for row in line.rows)
        shape, dtype = self._tensor(line.rows[0], rank) if communicates else (None, None)
        inner = () if communicates else sorted(line.rows, key=lambda row: row.end_s)
        return make_op(
            rank,
            line.op,
            stage=stage,
            batch=line.id,
            state=state,
            duration_ms=(end_s - begin_s) * 1e3,
            timestamp_ms=ORIGIN_MS + end_s * 1e3,
            description=line.description,
            group=line.group,
            shape=shape,
            dtype=dtype,
            subs=[self._sub(row, rank) for row in inner if row.kind == Kind.COLLECTIVE],
            line=number,
        )

    def _sub(self, row: _Row, rank: int) -> SubOp:
        comm, (shape, dtype) = COMM_WORDS.get(row.collective), self._tensor(row, rank)
        source = comm or label(row.collective)
        return make_sub(
            f"{source}_async" if row.overlaps else source,
            duration_ms=(row.end_s - row.begin_s) * 1e3,
            timestamp_ms=ORIGIN_MS + row.end_s * 1e3,
            shape=shape,
            dtype=dtype,
            name=_safe(row.name),
            group=_group(self.program.communicators[row.communicator].axis),
            comm=comm,
        )

    def _tensor(self, row: _Row, rank: int) -> tuple[list[int], str]:
        """Shape and type of what this rank gives to a collective or transfer."""
        size = row.bytes
        if row.collective in (Collective.ALL_GATHER, Collective.GATHER):
            size = -(-size // self._group_size(row.communicator, rank))
        name = (row.dtype or "").removeprefix("torch.")
        if name not in DTYPE_BYTES or size % dtype_bytes(name):
            return [size], _UNTYPED
        return [size // dtype_bytes(name)], f"torch.{name}"

    def _group_size(self, communicator: int, rank: int) -> int:
        if (communicator, rank) not in self._sizes:
            group = self.program.communicators[communicator].group_of(self.program.mesh, self.program.world)
            self._sizes[communicator, rank] = max(int((group == group[rank]).sum()), 1)
        return self._sizes[communicator, rank]


def _busy_until(time: Floats, starts: Floats, ends: Floats) -> Floats:
    """When the last of these spans ends that began before each time; 0 where none did."""
    if not len(starts):
        return np.zeros(len(time))
    order = np.argsort(starts, kind="stable")
    until = np.maximum.accumulate(ends[order])
    before = np.searchsorted(starts[order], time - _ALONE_S)
    busy: Floats = np.where(before > 0, until[np.maximum(before, 1) - 1], 0.0)
    return busy


def _steps(rows: Sequence[_Row]) -> dict[int, tuple[str, ...]]:
    """Per placement the steps that its phases belong to, in their order."""
    found: dict[int, dict[str, None]] = defaultdict(dict)
    for row in rows:
        if row.phase != Phase.NONE:
            found[row.placement][_STEPS[row.phase]] = None
    return {placement: tuple(steps) for placement, steps in found.items()}


def _step(row: _Row, steps: dict[int, tuple[str, ...]]) -> str:
    """The op that a row is part of: its phase's; without one, its placement's; without that, one of its own name."""
    if row.kind == Kind.HOST and "batch" in row.name.lower():
        return "get_batch"
    around = steps.get(row.placement, ())
    if row.phase == Phase.NONE:
        return around[0] if around else _identifier(row.name)
    step = _STEPS[row.phase]
    # A backward that is not split in two is one step, however its ops are labelled.
    return "backward_step" if step == "backward_weight_step" and "backward_step" in around else step


def _number(lines: Sequence[_Line]) -> None:
    """Gives every line a batch id that no other line of its op has: the one it wants, or the next."""
    taken: dict[str, set[int]] = defaultdict(set)
    for line in lines:
        used = taken[line.op]
        number = len(used) if line.batch is None else line.batch
        while number in used:
            number += 1
        used.add(number)
        line.id = number


def _notes(rows: Sequence[_Row], lines: Sequence[_Line], path: str) -> list[Diagnostic]:
    """What the format has no words for."""
    notes = []
    communicates = [row for row in rows if row.kind in (Kind.COLLECTIVE, Kind.TRANSFER)]
    if any(row.dtype is None and row.bytes for row in communicates):
        notes.append(f"bytes whose type is not known are written as {_UNTYPED}")
    outside = [line.rows[0].collective for line in lines if line.op.endswith("_allreduce") and line.group]
    if any(collective != Collective.ALL_REDUCE for collective in outside):
        notes.append("other collectives than all-reduces are lines of that name too; descriptions say what they are")
    if any(row.chunk for row in rows):
        notes.append("batch ids of a chunk count on from those of the chunk before")
    if any(line.op == "backward_weight_step" for line in lines):
        notes.append("weight gradients that run apart are lines of their own, backward_weight_step")
    return [Diagnostic("note", note, path) for note in notes]


def _group(axis: str) -> str:
    return GROUP_WORDS.get(axis) or _identifier(axis)


def _described(row: _Row) -> str | None:
    kind = label(row.collective)
    return _safe(row.name if kind in row.name else f"{row.name}: {kind}")


def _safe(name: str) -> str | None:
    """A name without the marks that part fields."""
    text = _UNSAFE.sub("_", name).strip()
    return None if text in ("", "None") else text


def _identifier(name: str) -> str:
    text = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return text if text[:1].isalpha() else f"op_{text}".rstrip("_")
