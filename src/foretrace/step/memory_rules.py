"""Says what memory a unit takes and gives back, for the program of a step and for the walk that finds its peaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foretrace.schedules import ActionKind
from foretrace.step.segments import CLOSES, OPENS, UnitPart
from foretrace.step.sharding import ShardedUnits
from foretrace.step.spec import Call, Unit

BytesByCategory = Mapping[str, int]
"""Bytes by category of memory."""

NO_PART = -1
"""Stands for the part of a unit that has none on the compute lane."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that a unit takes when it begins and when its last op begins, and gives back when that op ends."""

    at_first: BytesByCategory = field(default_factory=dict)
    at_last: BytesByCategory = field(default_factory=dict)
    freed: BytesByCategory = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.at_first or self.at_last or self.freed)


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """The memory of units in actions.

    Attributes:
        sharded: The units whose parameters data-parallel ranks split, if any.
        gradient_bytes: As in `StepSpec`.
    """

    sharded: ShardedUnits | None
    gradient_bytes: int

    def unit(self, unit: Unit, kind: ActionKind, *, allocates_gradients: bool) -> Memory:
        """Returns the memory that a unit takes and gives back in an action, without what is fetched or sent away."""
        work, sharded = unit.work, self.sharded
        gathered = sharded.gathered_bytes(unit) if sharded else 0
        whole = sharded.gradient_bytes(unit) if sharded else 0
        first, last, freed = dict[str, int](), dict[str, int](), dict[str, int]()
        if kind == ActionKind.FORWARD:
            last["activations"] = work.saved_bytes
            if sharded and sharded.releases(unit):
                freed["buffers"] = gathered
        if kind in OPENS:
            first["activations"] = work.recomputed_bytes
            freed["buffers"] = gathered  # weight gradients need no parameters
        if kind in CLOSES:
            first["buffers"] = whole  # the gradients of whole parameters, until they are scattered
            freed["activations"] = work.saved_bytes + work.recomputed_bytes
            if allocates_gradients:
                last["gradients"] = self.gradient_bytes * (work.parameters + work.expert_parameters)
        return Memory(_nonzero(first), _nonzero(last), _nonzero(freed))

    def fetched(self, unit: Unit, kind: ActionKind) -> BytesByCategory:
        """Returns the memory into which an action fetches what a unit needs."""
        fetched = dict[str, int]()
        if kind in OPENS:
            fetched["activations"] = unit.offloaded_bytes
        if self.sharded and self.sharded.gathers(unit, kind):
            fetched["buffers"] = self.sharded.gathered_bytes(unit)
        return _nonzero(fetched)


def lane_memory(parts: Sequence[UnitPart], memory: Memory) -> dict[int, tuple[BytesByCategory, BytesByCategory]]:
    """Returns what each part of a unit on the compute lane takes and gives back, by its number.

    A unit that has no such part is an op of no time, `NO_PART`. Temporaries of segments come on top.
    """
    on_lane = [at for at, part in enumerate(parts) if not isinstance(part, Call) or part.concurrent is None]
    takes = {at: (dict[str, int](), dict[str, int]()) for at in on_lane or [NO_PART]}
    first, last = (on_lane[0], on_lane[-1]) if on_lane else (NO_PART, NO_PART)
    takes[first] = dict(memory.at_first), {}
    takes[last] = add_bytes(takes[last][0], memory.at_last), dict(memory.freed)
    return dict[int, tuple[BytesByCategory, BytesByCategory]](takes)


def add_bytes(left: BytesByCategory, other: BytesByCategory) -> dict[str, int]:
    """Returns the sum of sizes by category."""
    return {key: left.get(key, 0) + other.get(key, 0) for key in (*left, *other)}


def temporaries(size: int) -> dict[str, int]:
    """Returns the memory of a computation while it runs."""
    return {"temporaries": size} if size else {}


def _nonzero(sizes: Mapping[str, int]) -> dict[str, int]:
    return {category: size for category, size in sizes.items() if size}
