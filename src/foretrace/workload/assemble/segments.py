"""What a layer does, as the ops it becomes: kernels that run without a break are one, collectives are placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import GroupedGemm, Kernel
from foretrace.workload.plan import CudaGraphs
from foretrace.workload.work import Communicate, Compute, Item

Detail = Literal["segment", "kernel"]

Beside = Literal["nothing", "next", "previous", "all"]
"""What a collective runs beside: the computation after it, the one before it, or whatever follows in its action."""

_BACKWARD = (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)


COLLECTIVE_LAUNCHES = 2
"""Of the host for one collective: torch.distributed records events and makes streams wait around NCCL's own launch."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Computations on the compute stream, one after the other. `launches` is how many kernels the host launches for
    them; what a CUDA graph replays is none."""

    items: tuple[Compute, ...]
    launches: int

    @property
    def name(self) -> str:
        """The computation, or the first and the last of them."""
        first, last = self.items[0].name, self.items[-1].name
        return first if len(self.items) == 1 else f"{first} … {last}"

    @property
    def phase(self) -> Phase:
        """What all are, or backward where input and weight gradients alternate."""
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

    @property
    def syncs_host(self) -> bool:
        """Whether the host waits for it before it launches more."""
        return self.items[-1].syncs_host


@dataclass(frozen=True, slots=True)
class Call:
    """A collective and what it runs beside."""

    item: Communicate
    beside: Beside
    launches: int

    @property
    def copied(self) -> bool:
        """Whether Transformer Engine's own overlap of tensor parallelism moves it, by copy engines around a ring
        (transformer_engine/common/comm_gemm_overlap)."""
        return self.item.axis == "tp" and self.beside in ("next", "previous") and not self.item.hidden


Part = Segment | Call


@dataclass(frozen=True, slots=True)
class Rules:
    """How items become segments and calls."""

    tp_overlap: bool = False
    moe_overlap: bool = False
    graphs: CudaGraphs = "none"


def parts_of(items: Sequence[Item], rules: Rules) -> list[Part]:
    """The items in order, adjacent computations of one phase merged; input and weight gradients that run together are
    one phase."""
    beside = [_beside(items, at, rules) for at in range(len(items))]
    launches = _launches(items, rules)
    parts: list[Part] = []
    run: list[int] = []

    def close() -> None:
        if run:
            parts.append(Segment(tuple(items[at] for at in run), sum(launches[at] for at in run)))  # type: ignore[misc]
            run.clear()

    for at, item in enumerate(items):
        if isinstance(item, Communicate):
            close()
            parts.append(Call(item, beside[at], launches[at]))
            continue
        alone = (at > 0 and beside[at - 1] == "next") or (at + 1 < len(items) and beside[at + 1] == "previous")
        before = items[run[-1]] if run else None
        if isinstance(before, Compute) and (alone or before.syncs_host or not _same_phase(before, item)):
            close()
        run.append(at)
        if alone:
            close()
    close()
    return parts


def _same_phase(one: Compute, other: Compute) -> bool:
    return one.phase == other.phase or (one.phase in _BACKWARD and other.phase in _BACKWARD)


def _beside(items: Sequence[Item], at: int, rules: Rules) -> Beside:
    """What an item runs beside, if it is a collective. Transformer Engine gathers beside the product that needs it and
    scatters beside the one whose result it is."""
    item = items[at]
    if not isinstance(item, Communicate):
        return "nothing"
    if rules.moe_overlap and item.axis == "ep":
        return "all"
    if item.hidden:
        return "next"
    if rules.tp_overlap and item.axis == "tp":
        if item.collective == Collective.ALL_GATHER and at + 1 < len(items) and isinstance(items[at + 1], Compute):
            return "next"
        if item.collective == Collective.REDUCE_SCATTER and at > 0 and isinstance(items[at - 1], Compute):
            return "previous"
    return "nothing"


def _launches(items: Sequence[Item], rules: Rules) -> list[int]:
    """How many launches of the host each item takes; under partial CUDA graphs what lies between the parts of experts
    is one launch in all."""
    if rules.graphs == "full":
        return [0] * len(items)
    counts, replayed = [], False
    for item in items:
        graphed = rules.graphs == "partial" and not _of_experts(item)
        counts.append(int(not replayed) if graphed else _launches_of(item))
        replayed = graphed
    return counts


def _of_experts(item: Item) -> bool:
    if isinstance(item, Communicate):
        return item.axis in ("ep", "etp")
    return any(isinstance(kernel, GroupedGemm) for _, kernel in item.kernels)


def _launches_of(item: Item) -> int:
    if isinstance(item, Communicate):
        return COLLECTIVE_LAUNCHES
    return sum(count * kernel.launches for count, kernel in item.kernels)
