"""What a stage does once per step: gradients reduced, the optimizer, parameters gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foretrace.program.block import After, BlockBuilder, OpRef
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import DTYPE_BYTES, Kernel, kernels_text
from foretrace.program.program import Source
from foretrace.program.role import Placement, RoleBuilder
from foretrace.workload.assemble import optimizer
from foretrace.workload.assemble.blocks import BlockWriter, Marks
from foretrace.workload.assemble.buckets import Bucket, buckets_of
from foretrace.workload.assemble.optimizer import Share
from foretrace.workload.assemble.pieces import Piece
from foretrace.workload.assemble.segments import COLLECTIVE_LAUNCHES

HOST_BYTES_PER_S = 100e9
"""What an optimizer on the host gets of its memory for one GPU: a socket with eight channels of DDR5-4800 moves
307 GB/s at most and serves up to four GPUs."""

_HOST_OPTIMIZER = Source("optimizer on the host", 0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Turns:
    """What the end of a stage's step is tied to: its last backward and its first forward of each chunk."""

    finals: Mapping[int, Placement]
    firsts: Mapping[int, Placement]


@dataclass(slots=True)
class _Written:
    """The block of a step's end: the ops that reduce each bucket, gather each, and the one that all gradients meet."""

    block: BlockBuilder
    reduces: list[tuple[OpRef, Bucket]] = field(default_factory=list)
    gathers: list[tuple[OpRef, Bucket]] = field(default_factory=list)
    meet: OpRef | None = None


class StepEndWriter:
    """Writes the end of the step of each stage."""

    def __init__(self, build: ProgramBuilder, writer: BlockWriter) -> None:
        self.build, self.writer, self.setting, self.groups = build, writer, writer.setting, writer.groups
        self._blocks: dict[tuple[object, ...], _Written] = {}

    def write(self, role: RoleBuilder, stage: int, pieces: Sequence[tuple[int, Piece]], turns: Turns) -> Share:
        """The end of a stage's step, for the pieces of its chunks; returns what the stage's ranks update."""
        setting = self.setting
        share = optimizer.share_of(
            setting,
            sum(piece.parameters for _, piece in pieces),
            sum(piece.expert_parameters for _, piece in pieces),
        )
        order = sorted(turns.finals, key=lambda chunk: turns.finals[chunk].number)
        held = dict(pieces)
        buckets: list[Bucket] = []
        if setting.zero < 3:
            ranks = setting.dp * setting.plan.cp
            buckets = buckets_of(stage, [(chunk, held[chunk]) for chunk in order], ranks, setting.mesh.edp)
        tied = setting.model.tied and setting.plan.pp > 1 and stage in (0, setting.plan.pp - 1)
        key = (tuple(buckets), share, tied)
        if key not in self._blocks:
            self._blocks[key] = self._write(buckets, share, tied)
        written = self._blocks[key]
        after: dict[str | int, After] = {}
        for op, bucket in written.reduces:
            final = turns.finals[bucket.chunk]
            after[op.op] = final[self._marks(final).last[bucket.first]]
        if written.meet is not None:
            after[written.meet.op] = [final[op] for final in turns.finals.values() for op in self._marks(final).reduces]
        placed = role.place(written.block, after=after)
        for op, bucket in written.gathers:
            first = turns.firsts[bucket.chunk]
            role.link(first[self._marks(first).first[bucket.first]], after=placed[op], steps=1)
        return share

    def _marks(self, placed: Placement) -> Marks:
        return self.writer.marks[placed.block.number]

    def _write(self, buckets: list[Bucket], share: Share, tied: bool) -> _Written:
        written = _Written(self.build.block("step end"))
        waits = self._reduce(written, buckets, tied)
        waits = self._norm(written, share, waits)
        updated = self._update(written, share, waits)
        self._gather(written, buckets, updated)
        return written

    def _reduce(self, written: _Written, buckets: list[Bucket], tied: bool) -> list[OpRef]:
        """The reductions of gradients: as they come, or all at the end; then those that first and last stage share."""
        setting, block = self.setting, written.block
        size = int(DTYPE_BYTES[setting.stack.gradient_dtype])
        what = Collective.REDUCE_SCATTER if setting.zero else Collective.ALL_REDUCE
        waits: dict[str, OpRef] = {}
        for bucket in buckets:
            op = block.collective(
                what,
                self.groups[bucket.group],
                name="reduce gradients" if bucket.group == "dp" else "reduce expert gradients",
                lane=bucket.group if setting.grad_overlap else "compute",
                bytes=size * bucket.count,
                phase=Phase.BACKWARD,
                chunk=bucket.chunk,
            )
            if setting.grad_overlap:
                written.reduces.append((op, bucket))
                waits[bucket.group] = op
        ends = list(waits.values())
        if tied:
            shared = size * setting.vocab // setting.plan.tp * setting.model.hidden
            block.collective(
                Collective.ALL_REDUCE,
                self.groups["embd"],
                name="reduce tied embedding",
                lane="compute",
                bytes=shared,
                phase=Phase.BACKWARD,
                after=ends,
            )
            ends = []
        return ends

    def _norm(self, written: _Written, share: Share, waits: list[OpRef]) -> list[OpRef]:
        """The norm of all gradients, for which all ranks meet and the host waits; returns what the update waits for."""
        setting, host = self.setting, self.writer.host
        ops: list[OpRef] = []
        if setting.stack.clips_gradients:
            kernels = optimizer.norm_kernels(setting, share)
            ops.append(self._compute(written, "grad norm", kernels, waits))
            if setting.mesh.world > 1:
                ops.append(
                    written.block.collective(
                        Collective.ALL_REDUCE,
                        self.groups["world"],
                        name="reduce grad norm",
                        lane="compute",
                        bytes=4,
                        phase=Phase.OPTIMIZER,
                    )
                )
            waits = []
        update = optimizer.update_kernels(setting, share)
        launches = sum(kernel.launches for _, kernel in update) + COLLECTIVE_LAUNCHES * (setting.zero in (1, 2))
        if host.launch_s > 0 and launches:
            seconds = launches * host.launch_s
            launch = written.block.host("launch", seconds, source=host.source, phase=Phase.OPTIMIZER, after=ops[-1:])
            return [*waits, launch]
        return waits

    def _update(self, written: _Written, share: Share, waits: list[OpRef]) -> OpRef:
        """The optimizer and what resets gradients; returns the op after which parameters are new."""
        setting, block = self.setting, written.block
        kernels = optimizer.update_kernels(setting, share)
        free = 0 if self.writer.keeps_gradients else int(DTYPE_BYTES[setting.stack.gradient_dtype]) * share.total
        freed = {"gradients": free} if free else {}
        if not setting.plan.offload_optimizer or not kernels:
            op = self._compute(written, "optimizer", kernels, waits, freed)
        else:
            there, back = kernels
            copied = self._compute(written, "gradients to host", [there], waits)
            seconds = optimizer.host_optimizer_bytes(setting, share) / HOST_BYTES_PER_S
            update = block.host("optimizer", seconds, source=_HOST_OPTIMIZER, phase=Phase.OPTIMIZER, after=copied)
            op = self._compute(written, "parameters to gpu", [back], [update], freed)
        zero = optimizer.zero_kernels(setting, share)
        if zero:
            self._compute(written, "zero gradients", zero, [])
        return op

    def _compute(
        self,
        written: _Written,
        name: str,
        kernels: Sequence[tuple[int, Kernel]],
        waits: list[OpRef],
        freed: dict[str, int] | None = None,
    ) -> OpRef:
        facts = {"kernel": kernels_text(kernels)} if kernels else {"duration_s": 0.0}
        op = written.block.compute(
            name,
            phase=Phase.OPTIMIZER,
            moved_bytes=sum(count * kernel.moved_bytes for count, kernel in kernels),
            after=waits,
            free=freed,
            **facts,
        )
        written.meet = written.meet or op
        return op

    def _gather(self, written: _Written, buckets: list[Bucket], updated: OpRef) -> None:
        """Updated parameters from the ranks that have them: for the next step's forward, beside it or before it."""
        setting = self.setting
        if setting.zero not in (1, 2):
            return
        size = int(DTYPE_BYTES[setting.stack.parameter_dtype])
        for bucket in sorted(buckets, key=lambda one: (one.chunk, one.first)):
            op = written.block.collective(
                Collective.ALL_GATHER,
                self.groups[bucket.group],
                name="gather parameters" if bucket.group == "dp" else "gather expert parameters",
                lane=bucket.group if setting.param_overlap else "compute",
                bytes=size * bucket.count,
                phase=Phase.OPTIMIZER,
                chunk=bucket.chunk,
                after=updated if setting.param_overlap else (),
            )
            if setting.param_overlap:
                written.gathers.append((op, bucket))
