"""Writes a timeline as Megatron rank traces, as a tracer in the schedule would have written them had the job run.

The ops of one placement that belong to one op of Megatron (`forward_step`, `loss_func`, …) become a line. Collectives
of a microbatch become sub-operations of that line, whatever they run over. Transfers, and collectives that reduce
gradients or come between steps, become lines of their own. Host work is a gap between lines. Lines come in the order
in which they end, as in a recorded trace. No two lines of a rank overlap, except the two of an exchange, which have the
same span.

A tracer's communication times include waiting for partners. So does a span here: it begins when the op was ready and
the rank's compute lane did nothing else, and ends when the op does.

Read back, such traces give the same step, microbatches, computation and communication. The format cannot hold:

* Repetition. A trace is one iteration. Where steps repeat, a rank that is done waits for the next step, which the
  breakdown of the prediction counts as bubble; the traces end there, and the breakdown of what is read back says idle.
  The same holds for a reduction at the end: it delays nobody while another stage is later still, but in one iteration
  nothing comes after it.
* Overlap. A tracer waits for the GPU after each op, so lines do not run next to each other. If a transfer overlaps with
  another line, the one that ends later begins when the other ends; a reduction that ends next to computation takes no
  time. (Calls of a microbatch may run next to its computation: their source ends in `_async`.)
* Collectives other than all-reduce outside microbatches: reduce-scatters and all-gathers are written as such lines,
  described as what they are.
* Layers, the hidden size, and types of tensors that the program does not state.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs, Mask, distinct
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.megatron_trace.calls import GRADIENT_OPS
from foretrace.inputs.megatron_trace.format import Facts, RankTrace, SubOp, TraceOp, dtype_bytes, make_op, make_sub
from foretrace.inputs.megatron_trace.format.names import trace_name
from foretrace.inputs.megatron_trace.format.states import OpKey, states
from foretrace.inputs.megatron_trace.format.values import DTYPE_BYTES
from foretrace.inputs.megatron_trace.format.write import STAMP
from foretrace.inputs.megatron_trace.pieces import CUT_OPS
from foretrace.inputs.megatron_trace.whole_job.work import OPTIMIZER_PHASES
from foretrace.program.columns import Collective, Kind, Phase, label
from foretrace.program.program import Program
from foretrace.program.timeline import Timeline

ORIGIN_MS: Final = 1_000_000_000.0
"""When steps begin: milliseconds since the start of an imaginary host, twelve days."""

MAX_RANKS: Final = 64
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

_GRADIENT_AXES: Final = frozenset(("dp", "edp", "embd"))
"""Axes over which gradients are reduced."""

_GAP, _WEIGHTS = "gap", "backward_weight_step"
_OF_MICROBATCHES: Final = frozenset((*CUT_OPS, _WEIGHTS))
"""Ops whose collectives are sub-operations."""

_NAMED: Final = frozenset((*CUT_OPS, *GRADIENT_OPS, *OPTIMIZER_PHASES, "get_batch", "optimizer_step"))
"""Ops that blocks may be named after."""

_STEPS: Final = {
    Phase.FORWARD: "forward_step",
    Phase.BACKWARD: "backward_step",
    Phase.BACKWARD_INPUT: "backward_step",
    Phase.RECOMPUTE: "backward_step",
    Phase.BACKWARD_WEIGHT: _WEIGHTS,
    Phase.OPTIMIZER: "optimizer_step",
}
_FACTS: Final = ("kind", "phase", "name", "collective", "communicator", "bytes", "dtype", "chunk")
_BACKWARD: Final = (Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
_UNTYPED = "uint8"
_COUNTS: Final = ("int32", "int64")
"""Types in which ranks tell each other how many tokens go to each expert."""
_NS = 1e-9
_WAY = re.compile(r"(send|receive|recv)[ _-]?(forward|backward)")
_UNSAFE = re.compile(r"[^\w .:/+-]", re.ASCII)


def timeline_traces(timeline: Timeline, ranks: Sequence[int] | None = None) -> list[RankTrace]:
    """The step as traces of these ranks; by default of all, in a large job of one rank of every class."""
    program, classes = timeline.graph.program, timeline.graph.classes
    if ranks is None:
        few = program.world <= MAX_RANKS
        ranks = range(program.world) if few else sorted(classes.representative.tolist())
    writer = _Writer(timeline)
    chosen = dict.fromkeys(int(rank) for rank in ranks)
    for rank in chosen:
        if not 0 <= rank < program.world:
            raise InputError("no-such-rank", f"there is no rank {rank}; the job has ranks 0 to {program.world - 1}")
    return [writer.trace(rank) for rank in chosen]


def timeline_facts(timeline: Timeline) -> Facts:
    """Returns what the names of its trace files say of the job."""
    program = timeline.graph.program
    mesh = program.mesh
    ep = mesh.ep if mesh.ep > 1 else None
    return Facts(program.world, mesh.tp, mesh.pp, ep, mesh.dp, None if ep is None else _experts(program))


def _experts(program: Program) -> int | None:
    """How many experts there are, where ranks tell each other how many tokens they have for each; None elsewhere."""
    columns, strings = program.templates.columns, program.strings
    over = [number for number, communicator in enumerate(program.communicators) if communicator.axis == "ep"]
    gathers = np.isin(columns["communicator"], over) & (columns["collective"] == Collective.ALL_GATHER)
    counts = set()
    for op in np.flatnonzero(gathers).tolist():
        dtype = int(columns["dtype"][op])
        name = strings[dtype].removeprefix("torch.") if dtype >= 0 else ""
        counts.add(int(columns["bytes"][op]) // (program.mesh.ep * dtype_bytes(name)) if name in _COUNTS else None)
    return counts.pop() if len(counts) == 1 else None


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
    block: str
    microbatch: int
    sends: bool
    begin_s: float
    end_s: float
    overlaps: bool
    stream: bool
    """Whether it runs on the lane that computes."""


@dataclass(slots=True)
class _Line:
    """A line to be: its op, the batch id it wants (None: the next one), the rows that make it up, and its span.

    `twin` says that it is the second line of the exchange in the line before.
    """

    op: str
    batch: int | None
    rows: list[_Row]
    group: str | None = None
    description: str | None = None
    twin: bool = False
    id: int = 0
    begin_s: float = 0.0
    end_s: float = 0.0

    def settle(self) -> None:
        """Takes the span of its rows."""
        self.begin_s, self.end_s = min(row.begin_s for row in self.rows), max(row.end_s for row in self.rows)

    @property
    def computes(self) -> bool:
        """Whether it is on the lane that computes."""
        return any(row.stream for row in self.rows)


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
            raise InputError("nothing-to-do", f"rank {rank} does nothing that a trace could show")
        _number(lines)
        words = states([OpKey(line.op, line.id) for line in lines], stage, self.program.mesh.pp)
        state = {id(line): word for line, word in zip(lines, words, strict=True)}
        ordered, cut = _one_at_a_time(lines)
        ops = [self._op(line, rank, stage, state[id(line)], number) for number, line in enumerate(ordered, 1)]
        path = trace_name(self.facts, rank, STAMP)
        return RankTrace(path, rank, tuple(ops), tuple(_notes(rows, lines, cut, path)))

    @cached_property
    def _columns(self) -> dict[str, Longs]:
        columns = {name: self.ops.ints(name) for name in (*_FACTS, "lane", "enabled")}
        # Whatever size is written for an uneven all-to-all, a rank gives what it sends.
        templates = self.program.templates
        given, parts = np.zeros((2, len(templates.columns["kind"])), dtype=np.int64)
        np.add.at(given, templates.send_op, templates.send_bytes)
        np.add.at(parts, templates.send_op, 1)
        uneven = (columns["collective"] == Collective.ALL_TO_ALL) & (parts[self.ops.template] > 0)
        columns["bytes"] = np.where(uneven, given[self.ops.template], columns["bytes"])
        return columns

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
        spans = [column.tolist() for column in self._spans(nodes, ops)]
        columns = [self._columns[name][ops].tolist() for name in _FACTS]
        placements = self.ops.instance[ops]
        blocks = [self.program.blocks[block].name for block in self.program.instances.block[placements].tolist()]
        places = [placements.tolist(), blocks, self.ops.microbatch[ops].tolist()]
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
                *columns, *places, sends, *spans, strict=True
            )
        ]

    def _spans(self, nodes: Longs, ops: Ints) -> tuple[Floats, Floats, Mask, Mask]:
        """(begin, end, whether it overlaps computation, whether it is on its lane) of nodes of one rank; computation
        begins when it starts."""
        start, end = self.timeline.start_s[nodes], self.timeline.end_s[nodes]
        computes = self._columns["kind"][ops] == Kind.COMPUTE
        lanes = np.array([lane.kind == "compute" for lane in self.program.lanes], dtype=np.bool_)
        stream = computes | lanes[self._columns["lane"][ops]]
        ready = np.maximum(np.minimum(self.timeline.ready_s[nodes], start), 0.0)
        free = np.minimum(_busy_until(start, start[stream], end[stream]), start)
        begin = np.where(computes, start, np.maximum(ready, free))
        overlaps: Mask = ~computes & (_busy_until(end, start[computes], end[computes]) > begin + _NS)
        return begin, end, overlaps, stream

    def _lines(self, rows: Sequence[_Row], stage: int) -> list[_Line]:
        """The rows as lines, in the order of issue."""
        microbatches = max((row.microbatch for row in rows), default=-1) + 1
        lines: list[_Line] = []
        last: tuple[int, str] | None = None
        steps: dict[tuple[int, str], _Line] = {}
        for row, op in zip(rows, _ops(rows), strict=True):
            batch = row.microbatch + row.chunk * microbatches if row.microbatch >= 0 else None
            key = (row.placement, op)
            if op == _GAP:
                continue
            if row.kind == Kind.TRANSFER:
                group = _group(self.program.communicators[row.communicator].axis)
                ways = self._ways(row, stage)
                lines += [_Line(way, None if i else batch, [row], group, twin=i > 0) for i, way in enumerate(ways)]
                last = None
            elif row.kind == Kind.COLLECTIVE and self._is_outside(row, op, key == last):
                group = _group(self.program.communicators[row.communicator].axis)
                lines.append(_Line(f"{group}_allreduce", None, [row], group, _described(row)))
                last = None
            else:
                # A microbatch passes a stage once; what comes between steps may come in several parts.
                if key not in steps or (op not in _OF_MICROBATCHES and key != last):
                    steps[key] = _Line(op, batch, [], _reduced(op))
                    lines.append(steps[key])
                steps[key].rows.append(row)
                last = key
        for line in lines:
            line.settle()
        return lines

    def _is_outside(self, row: _Row, op: str, step_runs: bool) -> bool:
        """Whether a collective is a line of its own: it reduces gradients, or is not within a step."""
        over_replicas = self.program.communicators[row.communicator].axis in _GRADIENT_AXES
        if op in _OF_MICROBATCHES:
            # Buckets of gradients that are sent next to the last backward.
            return over_replicas and row.phase in _BACKWARD and not row.stream
        return over_replicas or op in GRADIENT_OPS or (row.phase == Phase.NONE and not step_runs)

    def _ways(self, row: _Row, stage: int) -> list[str]:
        """`send_forward` and the like: what a transfer's name says, otherwise where the partner is."""
        named = _WAY.findall(row.name.lower())
        if named:
            return [f"{'send' if verb == 'send' else 'recv'}_{way}" for verb, way in named]
        pair = self.program.communicators[row.communicator].pair or (0, 0)
        ahead = max(pair) > stage
        there, back = ("forward", "backward") if ahead else ("backward", "forward")
        if row.collective == Collective.EXCHANGE:
            return [f"send_{there}", f"recv_{back}"]
        return [f"send_{there}" if row.sends else f"recv_{back}"]

    def _op(self, line: _Line, rank: int, stage: int, state: str | None, number: int) -> TraceOp:
        communicates = line.group is not None
        begin_ms, end_ms = _milliseconds(line.begin_s), _milliseconds(line.end_s)
        shape, dtype = self._tensor(line.rows[0], rank) if communicates else (None, None)
        inner = () if communicates else sorted(line.rows, key=lambda row: (row.begin_s, row.end_s))
        return make_op(
            rank,
            line.op,
            stage=stage,
            batch=line.id,
            state=state,
            duration_ms=end_ms - begin_ms,
            timestamp_ms=ORIGIN_MS + end_ms,
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
            duration_ms=_milliseconds(row.end_s) - _milliseconds(row.begin_s),
            timestamp_ms=ORIGIN_MS + _milliseconds(row.end_s),
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
            name = _UNTYPED
        elements = size // dtype_bytes(name)
        # Readers take a list that is gathered among experts for their tokens, one number for each.
        gathers = row.collective == Collective.ALL_GATHER and self.program.communicators[row.communicator].axis == "ep"
        return [1, elements] if gathers and name not in _COUNTS else [elements], f"torch.{name}"

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
    before = np.searchsorted(starts[order], time - _NS)
    busy: Floats = np.where(before > 0, until[np.maximum(before, 1) - 1], 0.0)
    return busy


def _steps(rows: Sequence[_Row]) -> dict[int, tuple[str, ...]]:
    """Per placement the steps that its phases belong to, in their order."""
    steps_of: dict[int, dict[str, None]] = defaultdict(dict)
    for row in rows:
        if row.phase != Phase.NONE:
            steps_of[row.placement][_STEPS[row.phase]] = None
    return {placement: tuple(steps) for placement, steps in steps_of.items()}


def _ops(rows: Sequence[_Row]) -> list[str]:
    """The op of Megatron that each row is part of; `gap` for what the host does between them. Collectives are part of
    what was computed before them."""
    steps = _steps(rows)
    before: dict[tuple[int, Phase], str] = {}
    ops = []
    for row in rows:
        key = row.placement, row.phase
        communicates = row.kind in (Kind.COLLECTIVE, Kind.TRANSFER)
        op = before.get(key) if communicates and row.phase != Phase.NONE else None
        op = op or _op_of(row, steps.get(row.placement, ()))
        if row.kind == Kind.COMPUTE:
            before[key] = op
        ops.append(op)
    return ops


def _op_of(row: _Row, around: tuple[str, ...]) -> str:
    """The op that a row is part of: the one that it or its block is named after, its phase's, its placement's (`around`
    are the steps of that), or one of its own name."""
    if row.kind == Kind.HOST and "batch" in row.name.lower():
        return "get_batch"
    if row.kind == Kind.HOST and (row.block not in GRADIENT_OPS or row.name == _GAP):
        return _GAP
    if row.phase == Phase.BACKWARD_WEIGHT:
        # A backward that is not split in two is one step, however its ops are labelled.
        return "backward_step" if "backward_step" in around else _WEIGHTS
    named = next((name for name in (row.name, row.block) if name in _NAMED), None)
    if named is not None or row.phase != Phase.NONE:
        return named or _STEPS[row.phase]
    within = around and (row.microbatch >= 0 or row.kind == Kind.COLLECTIVE)
    return around[0] if within else _identifier(row.name)


def _one_at_a_time(lines: Sequence[_Line]) -> tuple[list[_Line], bool]:
    """Returns lines in the order in which they end, and whether any was cut short.

    No line begins before the one before it ends. Ends stay what they are, so that a replay that knows them finds the
    same step. A reduction that ended next to computation delayed nobody: it comes after the computation and takes no
    time.
    """
    ordered: list[_Line] = []
    for line in sorted(lines, key=lambda line: line.end_s):
        at = len(ordered)
        while line.computes and at and not ordered[at - 1].computes and ordered[at - 1].end_s > line.begin_s + _NS:
            at -= 1
        overlapping = ordered[at:]
        reductions = [earlier for earlier in overlapping if earlier.rows[0].kind == Kind.COLLECTIVE]
        ordered[at:] = [*(earlier for earlier in overlapping if earlier not in reductions), line, *reductions]
    cursor, cut = 0.0, False
    for number, line in enumerate(ordered):
        if line.twin:
            line.begin_s, line.end_s = ordered[number - 1].begin_s, ordered[number - 1].end_s
            continue
        cut |= cursor > line.begin_s + _NS
        line.begin_s = max(line.begin_s, cursor)
        cursor = line.end_s = max(line.end_s, line.begin_s)
    return ordered, cut


def _number(lines: Sequence[_Line]) -> None:
    """Gives every line a batch id that no other line of its op has: the one it wants, or the next."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for line in lines:
        used = numbers[line.op]
        number = len(used) if line.batch is None else line.batch
        while number in used:
            number += 1
        used.add(number)
        line.id = number


def _notes(rows: Sequence[_Row], lines: Sequence[_Line], cut: bool, path: str) -> list[Diagnostic]:
    """Returns notes on what the format cannot express."""
    notes = []
    communicates = [row for row in rows if row.kind in (Kind.COLLECTIVE, Kind.TRANSFER)]
    if any(row.dtype is None and row.bytes for row in communicates):
        notes.append(
            Diagnostic("note", "assumed", f"bytes whose type is not known are written as torch.{_UNTYPED}", path)
        )
    outside = [line for line in lines if line.group and line.rows[0].kind == Kind.COLLECTIVE]
    if any(line.rows[0].collective != Collective.ALL_REDUCE for line in outside):
        text = "other collectives than all-reduces are lines of that name too; descriptions say what they are"
        notes.append(Diagnostic("note", "lossy-format", text, path))
    if other := sorted({line.op for line in outside if line.op not in GRADIENT_OPS}):
        text = f"{', '.join(other)}: outside microbatches, traces have no communication over this axis"
        notes.append(Diagnostic("note", "lossy-format", text, path))
    if cut:
        text = "of ops that ran beside each other, all but the first to end are cut short: no two lines overlap"
        notes.append(Diagnostic("note", "lossy-format", text, path))
    if any(row.chunk for row in rows):
        text = "batch ids of a chunk count on from those of the chunk before"
        notes.append(Diagnostic("note", "lossy-format", text, path))
    if any(line.op == _WEIGHTS for line in lines):
        text = "weight gradients that run apart are lines of their own, backward_weight_step"
        notes.append(Diagnostic("note", "lossy-format", text, path))
    return notes


def _milliseconds(seconds: float) -> float:
    """To the nanosecond, so that what begins where another ends is written so."""
    return round(seconds * 1e3, 6)


def _reduced(op: str) -> str | None:
    """The group of a line that is named as a reduction, though all of it is computation: a group of one."""
    return op.removesuffix("_allreduce") if op in GRADIENT_OPS else None


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
