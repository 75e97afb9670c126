"""Writes the ops of parameters that data-parallel ranks split (ZeRO-3, FSDP): gathers and scatters around units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import Stream
from foretrace.program.program import Communicator
from foretrace.schedules import ActionKind
from foretrace.step.segments import OPENS
from foretrace.step.spec import Compute, Item, Sharding, Unit, Work


@dataclass(frozen=True, slots=True)
class ShardedUnits:
    """Writes the gathers and reductions of units."""

    spec: Sharding
    groups: Mapping[str, Communicator]

    def gathered_bytes(self, unit: Unit) -> int:
        """Returns the memory of a unit's parameters while they are gathered."""
        return self.spec.parameter_bytes * sum(count for count, _ in self._split(unit))

    def releases(self, unit: Unit) -> bool:
        """Returns whether a unit's parameters are dropped after its forward.

        Ends of the model are used again right away or, as the root module of FSDP, kept.
        """
        return self.spec.reshard and unit.layer >= 0

    def gathers(self, unit: Unit, kind: ActionKind) -> bool:
        """Returns whether an action gathers a unit's parameters."""
        if kind == ActionKind.FORWARD:
            return True
        return kind in OPENS and self.releases(unit)

    def reduction_bytes(self, unit: Unit) -> tuple[int, int]:
        """Returns the memory that the reduction of a unit's gradients takes, and what it gives back in the end."""
        copied = self._copied_bytes(sum(count for count, _ in self._split(unit)))
        return copied, copied + self.gathered_bytes(unit)

    def gather(self, block: BlockBuilder, unit: Unit, after: Sequence[OpRef], **facts: Any) -> list[OpRef]:
        """Appends the all-gathers of a unit's parameters, dense ones and those of experts."""
        size = self.spec.parameter_bytes
        return [
            block.collective(
                Collective.ALL_GATHER,
                self.groups[group],
                name=f"gather {unit.work.name}",
                lane="dp",
                bytes=size * count,
                layer=unit.layer,
                after=after,
                alloc={"buffers": size * count},
                **facts,
            )
            for count, group in self._split(unit)
        ]

    def reduce(self, block: BlockBuilder, unit: Unit, after: Sequence[OpRef], chunk: int) -> list[OpRef]:
        """Appends the reduce-scatters of a unit's gradients, which free them. Replicas then all-reduce their part."""
        ops = []
        size, held = self.spec.gradient_bytes, self.spec.parameter_bytes
        facts: dict[str, Any] = {"phase": Phase.BACKWARD, "chunk": chunk, "layer": unit.layer}
        for count, group in self._split(unit):
            copied = self._copied_bytes(count)
            op = block.collective(
                Collective.REDUCE_SCATTER,
                self.groups[group],
                name=f"reduce {unit.work.name}",
                lane="dp",
                bytes=size * count,
                after=after,
                alloc={"buffers": copied} if copied else None,
                free={"buffers": copied + held * count},
                **facts,
            )
            if group == "shard" and self.spec.replicas > 1:
                op = block.collective(
                    Collective.ALL_REDUCE,
                    self.groups["replicate"],
                    name=f"replicate {unit.work.name}",
                    lane="replicate",
                    bytes=size * count // self.spec.ranks,
                    after=op,
                    **facts,
                )
            ops.append(op)
        return ops

    def with_copies(self, work: Work, kind: ActionKind, items: Sequence[Item]) -> Sequence[Item]:
        """Returns a unit's items in an action between copies from and to the buffers of its collectives, if any."""
        count = work.parameters if self.spec.ranks > 1 else 0
        if not count or not self.spec.copies:
            return items
        gathered, reduced = self.spec.parameter_bytes * count, self.spec.gradient_bytes * count
        phase = Phase.FORWARD if kind == ActionKind.FORWARD else Phase.BACKWARD_INPUT
        out = Compute("copy parameters", phase, ((1, Stream("copy", gathered, gathered)),))
        if kind == ActionKind.FORWARD:
            return [out, *items]
        into = Compute("copy gradients", Phase.BACKWARD_WEIGHT, ((1, Stream("cast", gathered, reduced)),))
        first = [out] if kind != ActionKind.BACKWARD_WEIGHT and self.spec.reshard else []
        return [*first, *items, *([into] if kind != ActionKind.BACKWARD_INPUT else [])]

    def _copied_bytes(self, count: int) -> int:
        """Returns the size of the copies of gradients that are reduced in another dtype than they are computed in."""
        spec = self.spec
        return spec.gradient_bytes * count if spec.gradient_bytes != spec.parameter_bytes else 0

    def _split(self, unit: Unit) -> list[tuple[int, str]]:
        """Returns the parameters of a unit that several ranks split, with the group that does."""
        work, spec = unit.work, self.spec
        both = ((work.parameters, "shard", spec.ranks), (work.expert_parameters, "edp", spec.expert_ranks))
        return [(count, group) for count, group, ranks in both if count and ranks > 1]
