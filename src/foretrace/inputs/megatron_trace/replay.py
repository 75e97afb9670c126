"""A real run as a program that takes as long as the run did: computation, calls without waiting, and gaps.

No recorded start is an input: when things happen follows from what they wait for. So every what-if starts from the
real step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.megatron_trace.calls import GRADIENT_OPS
from foretrace.inputs.megatron_trace.format import TraceOp
from foretrace.inputs.megatron_trace.layout import TraceJob
from foretrace.inputs.megatron_trace.recording import Item, Recording, channel
from foretrace.program.block import BlockBuilder, OpRef, PlacedOp
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import UNPRICED, Collective, Kind
from foretrace.program.program import Communicator, Program, Source

RECORDED = Source("recorded")

MAX_MICROBATCHES = 1_000_000

_PHASES = {
    "forward_step": "forward",
    "loss_func": "forward",
    "backward_step": "backward",
    "optimizer_step": "optimizer",
}


def replay(recording: Recording, notes: Iterable[Diagnostic], *, priced: bool = False) -> Program:
    """The program of a recording, a role for each trace; with `priced`, communication is left to a cluster's prices."""
    job = recording.job
    build = ProgramBuilder(job.mesh, title=f"{job.name} · real run", repeats=False, diagnostics=notes)
    writer = _Writer(build, recording, priced)
    ranks: dict[int, list[int]] = {}
    for rank, source in enumerate(recording.source_of):
        ranks.setdefault(source, []).append(rank)
    for source, those in ranks.items():
        writer.write(source, those)
    return build.program()


def recorded_times(recording: Recording, ranks: Iterable[int]) -> tuple[Floats, Floats, Floats]:
    """When each op of these ranks was really ready, began and ended, rank by rank in the order of the replay's
    program. A call begins when the last of its members has come."""
    items = [item for rank in ranks for item in recording.traced[recording.source_of[rank]]]
    ready = np.array([item.start_s for item in items])
    end = np.array([item.end_s for item in items])
    net = np.array([item.net_s if item.call is not None else item.taken_s for item in items])
    return ready, np.maximum(ready, end - net), end


@dataclass(slots=True)
class _Beside:
    """Calls that run beside the next computation; what comes after that waits for them."""

    calls: list[OpRef] = field(default_factory=list)
    _computing: bool = False

    def begin(self, call: OpRef) -> None:
        """A call is launched."""
        self.calls, self._computing = [call], False

    def computed(self) -> list[OpRef]:
        """What a computation waits for: nothing if it is the one that runs beside."""
        if not self._computing:
            self._computing = True
            return []
        return self.finished()

    def finished(self) -> list[OpRef]:
        """What anything else waits for."""
        calls, self.calls = self.calls, []
        return calls


class _Writer:
    """Writes the ranks of a recording."""

    def __init__(self, build: ProgramBuilder, recording: Recording, priced: bool) -> None:
        self.build, self.recording, self.priced = build, recording, priced
        self._communicators: dict[tuple[str, int, int], Communicator] = {}

    def write(self, rank: int, ranks: list[int]) -> None:
        """What one rank did, and others that are taken to be as it is."""
        more = f" and {len(ranks) - 1} like it" if len(ranks) > 1 else ""
        role = self.build.role(f"rank {rank}{more}", ranks)
        block: BlockBuilder | None = None
        now: TraceOp | None = None
        beside = _Beside()
        unfinished: list[PlacedOp] = []
        for item in self.recording.traced[rank]:
            if item.op is not now or block is None:
                if block is not None and now is not None:
                    placed = role.place(block, microbatch=_microbatch(now, self.recording.job), after=unfinished)
                    # What runs beside an op ends with it: the tracer waits for the GPU after each.
                    unfinished = [placed[op] for op in beside.calls]
                block, now, beside = self.build.block(item.op.op), item.op, _Beside()
            self._add(block, rank, item, beside)
        if block is not None and now is not None:
            role.place(block, microbatch=_microbatch(now, self.recording.job), after=unfinished)

    def _add(self, block: BlockBuilder, rank: int, item: Item, beside: _Beside) -> None:
        """Appends an item."""
        facts: dict[str, Any] = {"phase": _PHASES.get(item.op.op, "none"), "layer": item.layer, "source": RECORDED}
        call = item.call
        if call is None:
            kind = Kind.HOST if item.kind == "host" else Kind.COMPUTE
            block.add(kind, item.name, item.taken_s, "compute", "compute", after=beside.computed(), **facts)
            return
        takes = UNPRICED if self.priced and not self.recording.job.alone else item.net_s
        pair = self._communicator(rank, item)
        if isnan(takes) and item.op.op in GRADIENT_OPS and call.axis != "embd":
            block.compute(f"scale {item.name}", UNPRICED, moved_bytes=2.0 * call.bytes)
        here = [OpRef(block.number, len(block.rows) - 1)] if block.rows else []
        if call.collective in (Collective.TRANSFER, Collective.EXCHANGE):
            to = 0 if item.peer is not None and item.peer < self.recording.job.stage(rank) else 1
            sends = {to: call.bytes} if item.sends else {}
            if self.recording.job.alone:
                # The other end is not known: a call of one member, which a transfer cannot be.
                block.collective(
                    Collective.BARRIER, pair, takes, name=item.name, bytes=call.bytes, lane="compute", **facts
                )
            elif call.collective == Collective.EXCHANGE:
                block.exchange(item.name, pair, takes, sends=sends or {to: call.bytes}, lane="compute", **facts)
            else:
                block.transfer(
                    item.name, pair, takes, to=to if item.sends else None, bytes=call.bytes, lane="compute", **facts
                )
            return
        lane = None if call.concurrent else "compute"
        facts["after"] = [*here, *beside.calls] if call.concurrent else beside.finished()
        facts["dtype"] = call.dtype
        done = block.collective(call.collective, pair, takes, name=item.name, lane=lane, bytes=call.bytes, **facts)
        if call.concurrent:
            beside.begin(done)

    def _communicator(self, rank: int, item: Item) -> Communicator:
        job = self.recording.job
        key = channel(job, rank, item)
        if key not in self._communicators:
            self._communicators[key] = self._made(job.mesh, job.alone, *key)
        return self._communicators[key]

    def _made(self, mesh: Mesh, alone: bool, what: str, low: int, high: int) -> Communicator:
        if alone:
            axis = "pp" if what in ("forward", "backward", "exchange") else what
            return self.build.groups(f"{axis} {what} {low}-{high}", [[0]], axis=axis)
        if what == "embd":
            return self.build.pair("pp", 0, mesh.pp - 1, name="embd", axis="embd")
        if what in ("forward", "backward", "exchange"):
            return self.build.pair("pp", low, high, name=f"pp {low}-{high} {what}")
        return self.build.communicator(what)


def _microbatch(op: TraceOp, job: TraceJob) -> int:
    """The microbatch of an op; -1 for what happens once a step."""
    if op.batch is not None and op.batch > MAX_MICROBATCHES:
        raise InputError(
            "out-of-range",
            f"batch_id {op.batch:,} is not the number of a microbatch",
            where=next(job.traces(op.rank)).at(op.line),
            hint=f"at most {MAX_MICROBATCHES:,}",
        )
    return -1 if op.batch is None or op.op.endswith("allreduce") or op.op == "optimizer_step" else op.batch
