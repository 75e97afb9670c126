"""Writes the ops of units whose gradients, or parameters too, data-parallel ranks split: scatters and gathers."""

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
        """Returns the memory that a unit's parameters take while they are gathered."""
        return 0 if self.spec.holds else gathered_bytes(self.spec, unit)

    def gradient_bytes(self, unit: Unit) -> int:
        """Returns the memory that a unit's whole gradients take until they are scattered, beyond buffers that stay."""
        counts = (count for count, _, _ in _split(self.spec, unit))
        return self.spec.parameter_bytes * sum(counts) if self.spec.gathers else 0

    def reduces(self, unit: Unit) -> bool:
        """Returns whether a unit has gradients that several ranks split."""
        return bool(_split(self.spec, unit))

    def releases(self, unit: Unit) -> bool:
        """Returns whether a unit's parameters are dropped after its forward.

        Ends of the model are used again right away or, as the root module of FSDP, kept.
        """
        return self.spec.reshard and unit.layer >= 0

    def gathers(self, unit: Unit, kind: ActionKind) -> bool:
        """Returns whether an action gathers a unit's parameters."""
        if not self.spec.gathers:
            return False
        return kind == ActionKind.FORWARD or (kind in OPENS and self.releases(unit))

    def reduction_bytes(self, unit: Unit) -> tuple[int, int]:
        """Returns the memory that the reduction of a unit's gradients takes, and what it gives back in the end."""
        copied = self._copied_bytes(sum(count for count, _, _ in _split(self.spec, unit)))
        return copied, copied + self.gradient_bytes(unit)

    def gather(self, block: BlockBuilder, unit: Unit, after: Sequence[OpRef], **facts: Any) -> list[OpRef]:
        """Appends the all-gathers of a unit's parameters, dense ones and those of experts."""
        return [
            block.collective(
                Collective.ALL_GATHER,
                self.groups[group],
                name=f"gather {unit.work.name}",
                lane="dp",
                bytes=_gathered(self.spec, count, narrow),
                layer=unit.layer,
                after=after,
                alloc=None if self.spec.holds else {"buffers": _gathered(self.spec, count, narrow)},
                **facts,
            )
            for count, narrow, group in _split(self.spec, unit)
        ]

    def reduce(self, block: BlockBuilder, unit: Unit, after: Sequence[OpRef], chunk: int) -> list[OpRef]:
        """Appends the reduce-scatters of a unit's gradients, which free them. Replicas then all-reduce their part."""
        ops = []
        size, held = self.spec.gradient_bytes, self.spec.parameter_bytes
        facts: dict[str, Any] = {"phase": Phase.BACKWARD, "chunk": chunk, "layer": unit.layer}
        for count, _, group in _split(self.spec, unit):
            copied = self._copied_bytes(count)
            freed = copied + held * count if self.spec.gathers else 0
            op = block.collective(
                Collective.REDUCE_SCATTER,
                self.groups[group],
                name=f"reduce {unit.work.name}",
                lane="dp" if self.spec.overlap else "compute",
                bytes=size * count,
                after=after,
                alloc={"buffers": copied} if copied else None,
                free={"buffers": freed} if freed else None,
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
        return spec.gradient_bytes * count if spec.gathers and spec.gradient_bytes != spec.parameter_bytes else 0


def gathered_bytes(spec: Sharding, unit: Unit) -> int:
    """Returns the size of a unit's parameters that several ranks split, as they are gathered."""
    return sum(_gathered(spec, count, narrow) for count, narrow, _ in _split(spec, unit)) if spec.gathers else 0


def _split(spec: Sharding, unit: Unit) -> list[tuple[int, int, str]]:
    """Returns the parameters of a unit that several ranks split, those in 8 bits or fewer, and the group."""
    work = unit.work
    both = (
        # Parameters that stay whole are gathered after the update, by the communicator that reduces gradients.
        (work.parameters, work.narrow_parameters, "shard" if spec.gathers else "dp", spec.ranks),
        (work.expert_parameters, work.narrow_expert_parameters, "edp", spec.expert_ranks),
    )
    return [(count, narrow, group) for count, narrow, group, ranks in both if count and ranks > 1]


def _gathered(spec: Sharding, count: int, narrow: int) -> int:
    size, small = spec.parameter_bytes, spec.narrow_parameter_bytes
    return size * count if small is None else size * (count - narrow) + round(small * narrow)
