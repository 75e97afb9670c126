"""Turns the items of an action into the ops they become, and counts the host's launches for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from foretrace.program.columns import Phase
from foretrace.program.kernels import GroupedGemm, Kernel
from foretrace.step.spec import Call, Compute, CudaGraphs, HostWork, Item

_GRADIENTS = (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)

COLLECTIVE_LAUNCHES = 2
"""Launches of the host for one collective: torch.distributed records events and makes streams wait around NCCL's own
launch."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Computations that run one after the other on the compute lane, written as one op.

    Attributes:
        items: The computations.
        continues: Whether it runs within the computation before it, which a cut divided. It waits for nothing more.
    """

    items: tuple[Compute, ...]
    continues: bool = False

    @property
    def name(self) -> str:
        """The computation, or the first and the last of them."""
        first, last = self.items[0].name, self.items[-1].name
        return first if len(self.items) == 1 else f"{first} … {last}"

    @property
    def phase(self) -> Phase:
        """The phase of all, or backward where input and weight gradients alternate."""
        phases = {item.phase for item in self.items}
        return phases.pop() if len(phases) == 1 else Phase.BACKWARD

    @property
    def kernels(self) -> tuple[tuple[int, Kernel], ...]:
        """All kernels, each with how often it runs."""
        counts: dict[Kernel, int] = {}
        for item in self.items:
            for count, kernel in item.kernels:
                counts[kernel] = counts.get(kernel, 0) + count
        return tuple((count, kernel) for kernel, count in counts.items())

    @property
    def temporary_bytes(self) -> int:
        """The most that any of them needs while it runs."""
        return max(item.temporary_bytes for item in self.items)


UnitPart = Segment | Call | HostWork


def parts_of(items: Sequence[Item]) -> list[UnitPart]:
    """Returns the items in order, with adjacent computations joined to segments.

    Computations are joined if they are priced by kernels and of one phase. Input and weight gradients that run together
    count as one phase. A computation that a collective runs next to is a segment of its own.
    """
    parts: list[UnitPart] = []
    run: list[Compute] = []

    def close() -> None:
        if run:
            parts.append(Segment(tuple(run)))
            run.clear()

    for at, item in enumerate(items):
        if not isinstance(item, Compute):
            close()
            parts.append(item)
            continue
        alone = (
            not _joins(item)
            or (at > 0 and _concurrent(items[at - 1]) == "next")
            or (at + 1 < len(items) and _concurrent(items[at + 1]) == "previous")
        )
        if run and (alone or run[-1].syncs_host or not _same_phase(run[-1], item)):
            close()
        run.append(item)
        if alone:
            close()
    close()
    return parts


def count_launches(items: Sequence[Item], graphs: CudaGraphs) -> int:
    """Counts the host's launches of a unit's items.

    Under partial CUDA graphs everything between the parts of experts is one launch.
    """
    if graphs == "full":
        return 0
    count, replayed = 0, False
    for item in items:
        graphed = graphs == "partial" and not _is_of_experts(item)
        count += int(not replayed) if graphed else _launches(item)
        replayed = graphed
    return count


def _joins(item: Compute) -> bool:
    return isnan(item.seconds) and not item.moved_bytes


def _concurrent(item: Item) -> str | None:
    return item.concurrent if isinstance(item, Call) else None


def _same_phase(first: Compute, other: Compute) -> bool:
    return first.phase == other.phase or (first.phase in _GRADIENTS and other.phase in _GRADIENTS)


def _is_of_experts(item: Item) -> bool:
    if isinstance(item, Compute):
        return any(isinstance(kernel, GroupedGemm) for _, kernel in item.kernels)
    return isinstance(item, Call) and item.axis in ("ep", "etp")


def _launches(item: Item) -> int:
    if isinstance(item, Compute):
        return sum(count * kernel.launches for count, kernel in item.kernels)
    return COLLECTIVE_LAUNCHES if isinstance(item, Call) else 0
