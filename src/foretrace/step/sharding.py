"""Writes the ops of units whose gradients, or parameters too, data-parallel ranks split: scatters and gathers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import Stream
from foretrace.program.program import Communicator
from foretrace.schedules import ActionKind
from foretrace.step.segments import CLOSES, OPENS
from foretrace.step.spec import Call, Compute, HostWork, Item, Sharding, Unit, Work

GRADIENT_BUFFERS: Final = 2
"""Units whose whole gradients are there at once where every backward reduces them.

FSDP2's `post_backward` waits for the reduction of the unit before (torch/distributed/fsdp/_fully_shard,
`reduce_scatter_state`), so that the unit after it begins when that has ended."""


@dataclass(frozen=True, slots=True)
class ShardedUnits:
    """Writes the gathers and reductions of units."""

    spec: Sharding
    groups: Mapping[str, Communicator]

    def gathered_bytes(self, unit: Unit) -> int:
        """Returns the memory that a unit's parameters take while they are gathered, beyond buffers that stay."""
        return 0 if self._holds(unit) else self._whole_bytes(unit)

    def held_bytes(self, unit: Unit) -> int:
        """Returns the memory of a unit's gathered parameters that stays allocated."""
        return self._whole_bytes(unit) if self._holds(unit) else 0

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

    def calls(self, unit: Unit) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
        """Returns the gathers of a unit's parameters and the reductions of its gradients, without those of replicas.

        An action may gather a unit twice (`_passes`); its gathers are listed once, and are a lower bound there.
        """
        split = _split(self.spec, unit)
        messages = self._messages(unit.work)

        def each(name: str, phase: Phase, what: Collective, group: str, size: int) -> Iterator[Call]:
            for number in range(messages):
                yield Call(name, phase, what, group, _part(size, messages, number))

        gathers = tuple(
            call
            for count, narrow, group in split
            if self.spec.gathers
            for call in each("gather", Phase.FORWARD, Collective.ALL_GATHER, group, _gathered(self.spec, count, narrow))
        )
        reductions = tuple(
            call
            for count, _, group in split
            for call in each(
                "reduce", Phase.BACKWARD, Collective.REDUCE_SCATTER, group, self.spec.gradient_bytes * count
            )
        )
        return gathers, reductions

    def gather(
        self, block: BlockBuilder, unit: Unit, kind: ActionKind, after: Sequence[OpRef], **facts: Any
    ) -> list[OpRef]:
        """Appends the all-gathers of a unit's parameters, dense ones and those of experts."""
        messages, passes = self._messages(unit.work), self._passes(unit.work, kind)
        gathers = list[OpRef]()
        for count, narrow, group in _split(self.spec, unit):
            size = _gathered(self.spec, count, narrow)
            for number in range(passes * messages):
                held = {} if self._holds(unit) or number >= messages else {"buffers": _part(size, messages, number)}
                gather = block.collective(
                    Collective.ALL_GATHER,
                    self.groups[group],
                    name=f"gather {unit.work.name}",
                    lane="dp",
                    bytes=_part(size, messages, number % messages),
                    layer=unit.layer,
                    after=after,
                    alloc=held or None,
                    **facts,
                )
                gathers.append(gather)
        return gathers

    def reduce(
        self, block: BlockBuilder, unit: Unit, after: Sequence[OpRef], chunk: int
    ) -> tuple[list[OpRef], list[OpRef]]:
        """Appends the reduce-scatters of a unit's gradients, which free them. Replicas then all-reduce their part.

        Returns the reduce-scatters and the all-reduces.
        """
        scattered, replicated = list[OpRef](), list[OpRef]()
        size, held = self.spec.gradient_bytes, self.spec.parameter_bytes
        facts: dict[str, Any] = {"phase": Phase.BACKWARD, "chunk": chunk, "layer": unit.layer}
        messages = self._messages(unit.work)
        for count, _, group in _split(self.spec, unit):
            copied = self._copied_bytes(count)
            freed = copied + held * count if self.spec.gathers else 0
            for number in range(messages):
                alloc, free = _part(copied, messages, number), _part(freed, messages, number)
                scatter = block.collective(
                    Collective.REDUCE_SCATTER,
                    self.groups[group],
                    name=f"reduce {unit.work.name}",
                    lane="dp" if self.spec.overlap else "compute",
                    bytes=_part(size * count, messages, number),
                    after=after,
                    alloc={"buffers": alloc} if alloc else None,
                    free={"buffers": free} if free else None,
                    **facts,
                )
                scattered.append(scatter)
            if group == "shard" and self.spec.replicas > 1:
                replica = block.collective(
                    Collective.ALL_REDUCE,
                    self.groups["replicate"],
                    name=f"replicate {unit.work.name}",
                    lane="replicate",
                    bytes=size * count // self.spec.ranks,
                    after=scattered[-1],
                    **facts,
                )
                replicated.append(replica)
        return scattered, replicated

    def with_copies(self, work: Work, kind: ActionKind, items: Sequence[Item]) -> Sequence[Item]:
        """Returns a unit's items in an action between copies from and to the buffers of its collectives, if any."""
        count = work.parameters if self.spec.ranks > 1 else 0
        if not count:
            return items
        if self.spec.listing is not None:
            items = self._listed(self.spec.listing, work, kind, items)
        if not self.spec.copies:
            return items
        gathered, reduced = self.spec.parameter_bytes * count, self.spec.gradient_bytes * count
        phase = Phase.FORWARD if kind == ActionKind.FORWARD else Phase.BACKWARD_INPUT
        out = Compute("copy parameters", phase, ((1, Stream("copy", gathered, gathered)),))
        if kind == ActionKind.FORWARD:
            return [out, *items]
        into = Compute("copy gradients", Phase.BACKWARD_WEIGHT, ((1, Stream("cast", gathered, reduced)),))
        first = [out] if self._opens(kind) else []
        return [*first, *items, *([into] if kind != ActionKind.BACKWARD_INPUT else [])]

    def _listed(self, listing: HostWork, work: Work, kind: ActionKind, items: Sequence[Item]) -> Sequence[Item]:
        """Returns a unit's items between the host's work for its collectives."""
        messages = self._messages(work)

        def host(times: int, phase: Phase) -> list[Item]:
            return [replace(listing, seconds=times * listing.seconds, phase=phase)] if times else []

        gathers = messages * self._passes(work, kind) * self._opens(kind)
        before = host(gathers, Phase.FORWARD if kind == ActionKind.FORWARD else Phase.BACKWARD)
        return [*before, *items, *host(messages * (kind in CLOSES), Phase.BACKWARD)]

    def _opens(self, kind: ActionKind) -> bool:
        """Returns whether an action gathers parameters first, if any are split."""
        return kind == ActionKind.FORWARD or (kind != ActionKind.BACKWARD_WEIGHT and self.spec.reshard)

    def _messages(self, work: Work) -> int:
        """Returns by how many collectives a unit's parameters are gathered, and its gradients reduced."""
        return 1 if self.spec.listing is None else max(work.tensors, 1)

    def _passes(self, work: Work, kind: ActionKind) -> int:
        """Returns how often an action gathers a unit.

        A recomputed unit is gathered twice: before its recomputation and before its backward. DeepSpeed drops a tensor
        if more than a billion parameters are used before it is needed again (`stage3_max_reuse_distance`).
        """
        return 2 if self.spec.listing is not None and kind in OPENS and work.recompute else 1

    def _holds(self, unit: Unit) -> bool:
        """Returns whether a unit's gathered parameters have memory of their own, which all microbatches use."""
        return self.spec.holds and not self.releases(unit)

    def _whole_bytes(self, unit: Unit) -> int:
        """Returns the size of a unit's parameters that several ranks split, as they are gathered."""
        split = _split(self.spec, unit) if self.spec.gathers else []
        return sum(_gathered(self.spec, count, narrow) for count, narrow, _ in split)

    def _copied_bytes(self, count: int) -> int:
        """Returns the size of the copies of gradients that are reduced in another dtype than they are computed in."""
        spec = self.spec
        return spec.gradient_bytes * count if spec.gathers and spec.gradient_bytes != spec.parameter_bytes else 0


def _split(spec: Sharding, unit: Unit) -> list[tuple[int, int, str]]:
    """Returns the parameters of a unit that several ranks split, those in 8 bits or fewer, and the group."""
    work = unit.work
    both = (
        # Parameters that stay whole are gathered after the update, by the communicator that reduces gradients.
        (work.parameters, work.narrow_parameters, "shard" if spec.gathers else "dp", spec.ranks),
        (work.expert_parameters, work.narrow_expert_parameters, "edp", spec.expert_ranks),
    )
    return [(count, narrow, group) for count, narrow, group, ranks in both if count and ranks > 1]


def _part(total: int, parts: int, number: int) -> int:
    """Returns the size of part `number` of `parts` nearly equal ones."""
    return total * (number + 1) // parts - total * number // parts


def _gathered(spec: Sharding, count: int, narrow: int) -> int:
    size, small = spec.parameter_bytes, spec.narrow_parameter_bytes
    return size * count if small is None else size * (count - narrow) + round(small * narrow)
