"""Parameters that data-parallel ranks split (ZeRO-3, FSDP): gathered before a unit needs them, gradients scattered."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import DTYPE_BYTES, Stream
from foretrace.schedules import ActionKind
from foretrace.workload.assemble.groups import Groups
from foretrace.workload.assemble.pieces import Unit
from foretrace.workload.setting import Setting
from foretrace.workload.work import Compute, Item, Work


@dataclass(frozen=True, slots=True)
class Sharding:
    """How the parameters of units are split, gathered and reduced."""

    setting: Setting
    groups: Groups

    @property
    def gathered_bytes_each(self) -> int:
        """Of a gathered parameter: computation is in bf16 or fp16 unless it is in full precision."""
        return 4 if self.setting.plan.precision in ("fp32", "tf32") else 2

    @property
    def gradient_bytes_each(self) -> int:
        """Of a gradient as it is reduced."""
        return int(DTYPE_BYTES[self.setting.stack.gradient_dtype])

    def gathered_bytes(self, unit: Unit) -> int:
        """What a unit's parameters take while they are gathered; what no other rank shares is not."""
        return self.gathered_bytes_each * sum(count for count, _ in self._shared(unit))

    def released(self, unit: Unit) -> bool:
        """Whether a unit's parameters are dropped after its forward. Ends are used right away again, or, as the root of
        FSDP, kept."""
        return self.setting.plan.reshard and unit.end == "layer"

    def gather(self, block: BlockBuilder, unit: Unit, after: list[OpRef], phase: Phase, chunk: int) -> list[OpRef]:
        """The all-gathers of a unit's parameters, dense and experts'."""
        size = self.gathered_bytes_each
        return [
            block.collective(
                Collective.ALL_GATHER,
                self.groups[group],
                name=f"gather {unit.work.name}",
                lane="dp",
                bytes=size * count,
                phase=phase,
                chunk=chunk,
                layer=unit.layer,
                after=after,
                alloc={"buffers": size * count},
            )
            for count, group in self._shared(unit)
        ]

    def reduce(self, block: BlockBuilder, unit: Unit, after: list[OpRef], chunk: int) -> list[OpRef]:
        """The reduce-scatters of a unit's gradients, which free them; under HSDP replicas all-reduce their part."""
        ops = []
        size, held = self.gradient_bytes_each, self.gathered_bytes_each
        for count, group in self._shared(unit):
            # A gradient that is reduced in another dtype than it was computed in is copied for it.
            copied = size * count if size != held else 0
            op = block.collective(
                Collective.REDUCE_SCATTER,
                self.groups[group],
                name=f"reduce {unit.work.name}",
                lane="dp",
                bytes=size * count,
                phase=Phase.BACKWARD,
                chunk=chunk,
                layer=unit.layer,
                after=after,
                alloc={"buffers": copied} if copied else None,
                free={"buffers": copied + held * count},
            )
            if group == "shard" and self.setting.mesh.replicate > 1:
                op = block.collective(
                    Collective.ALL_REDUCE,
                    self.groups["replicate"],
                    name=f"replicate {unit.work.name}",
                    lane="replicate",
                    bytes=size * count // self.setting.shard,
                    phase=Phase.BACKWARD,
                    chunk=chunk,
                    layer=unit.layer,
                    after=op,
                )
            ops.append(op)
        return ops

    def with_copies(self, work: Work, kind: ActionKind, items: list[Item]) -> list[Item]:
        """A unit's items in an action, between copies out of the buffer that parameters are gathered in, and of
        gradients into the one they are reduced from, where the stack has such."""
        count = work.parameters if self.setting.shard > 1 else 0
        if not count or not self.setting.stack.copies_gathered:
            return items
        gathered = self.gathered_bytes_each * count
        out = Compute(
            "copy parameters",
            Phase.FORWARD if kind == ActionKind.FORWARD else Phase.BACKWARD_INPUT,
            ((1, Stream("copy", gathered, gathered)),),
        )
        if kind == ActionKind.FORWARD:
            return [out, *items]
        reduced = self.gradient_bytes_each * count
        into = Compute("copy gradients", Phase.BACKWARD_WEIGHT, ((1, Stream("cast", gathered, reduced)),))
        first = [out] if kind != ActionKind.BACKWARD_WEIGHT and self.setting.plan.reshard else []
        return [*first, *items, *([into] if kind != ActionKind.BACKWARD_INPUT else [])]

    def _shared(self, unit: Unit) -> list[tuple[int, str]]:
        """The parameters of a unit that several ranks split, with the group that does."""
        work = unit.work
        both = ((work.parameters, "shard", self.setting.shard), (work.expert_parameters, "edp", self.setting.mesh.edp))
        return [(count, group) for count, group, ranks in both if count and ranks > 1]
