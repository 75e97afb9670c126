"""Finds the items of a work in an action and the ops they become, and counts the host's launches for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan

from foretrace.basics.errors import InputError
from foretrace.program.columns import Phase
from foretrace.program.kernels import GroupedGemm, Kernel, Stream
from foretrace.schedules import ActionKind
from foretrace.step.spec import Call, Compute, CudaGraphs, Cut, GraphScope, HostWork, Item, Work

PHASES = {
    ActionKind.FORWARD: Phase.FORWARD,
    ActionKind.BACKWARD: Phase.BACKWARD,
    ActionKind.BACKWARD_INPUT: Phase.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: Phase.BACKWARD_WEIGHT,
}
OPENS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
"""Actions with which the backward of a microbatch begins."""
CLOSES = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
"""Actions with which it ends."""
CUT_SLACK = 1e-12
"""The share of a backward within which a cut is at the end of a computation, and not within the next."""

_GRADIENTS = (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)

REPLAYED: dict[CudaGraphs, tuple[GraphScope, ...]] = {
    "none": (),
    "router": ("router",),
    "partial": ("attention", "router"),
}
"""The parts of a layer that CUDA graphs replay; `full` replays everything."""

LOOPED_LAUNCH = 0.25
"""Host time of each further kernel that one C++ loop launches, as a share of a launch from Python.

Measured on an H200's host (`benchmarks/gpu/experts`): 6.5 to 7.9 us against 28 us. A tensor of an expert that the host
handles, and a hook of its gradient (Megatron-core's `_make_backward_post_hook`), are taken to cost as much, which is a
judgement. For comparison, TransformerEngine issue 2897: 1.2 ms forward and 2.1 ms backward of a grouped layer of 64
experts on a Grace CPU, launches left out.
"""

LOOPED_PRODUCT = 0.5
"""The same of a further product: cuBLAS looks for its algorithm, 14.4 to 15.3 us. Published grouped products of a B200
through Transformer Engine (SimuMax's, 80 and 160 groups) end at 8.6 to 9.1 us a group where their work would take 3 to
5; that host is faster."""

LISTED_PART = 0.25
"""The same of one part of a list that a collective takes, which Python slices and ProcessGroupNCCL copies: 7.3 us, with
a view before the slice 8.5 us, on our H200's host."""

FORWARD_WEIGHT = 0.855
OTHER_WEIGHT = 1.1
"""The host's time for a launch of the forward, and of all others, as a multiple of the mean: autograd takes longer.

A launch of a small model's forward and backward took 25.0 and 26.7 us on one host with an H200, 20.9 and 32.6 us on
another (`foretrace measure gpu`).
"""

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


def items_of(work: Work, kind: ActionKind) -> Sequence[Item]:
    """Returns what a work does in an action, before parameters are split."""
    if kind == ActionKind.FORWARD:
        return work.forward
    recompute = work.recompute if kind in OPENS else ()
    if kind == ActionKind.BACKWARD:
        return [*recompute, *work.backward] if recompute else work.backward
    if work.weight_share is not None:
        return [*recompute, *_share_of(work.backward, kind, work.weight_share)]
    weight = kind == ActionKind.BACKWARD_WEIGHT
    return [*recompute, *(item for item in work.backward if (item.phase == Phase.BACKWARD_WEIGHT) == weight)]


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


def cut_parts(units: Sequence[Sequence[Item]], cuts: Sequence[Cut]) -> list[list[UnitPart]]:
    """Returns the parts of each unit of a backward, given its items, with the items of cuts between them.

    A cut comes after its share of all computation: within a computation, which it divides, or after it, where what
    runs next to that computation is listed.

    Raises:
        InputError: A computation has no seconds.
    """
    computed = [item.seconds for items in units for item in items if isinstance(item, Compute)]
    if any(map(isnan, computed)):
        problem = "a cut comes after a share of a backward whose computations have no seconds"
        raise InputError("invalid-program", problem, hint="give them seconds, or reduce after units")
    total, left, done = sum(computed), len(computed), 0.0
    slack = CUT_SLACK * total
    waiting = sorted(cuts, key=lambda cut: cut.share)
    units_parts: list[list[UnitPart]] = []
    for items in units:
        parts: list[UnitPart] = []
        at = 0
        while at < len(items):
            item, at = items[at], at + 1
            if not isinstance(item, Compute):
                parts.append(item)
                continue
            end, left, continues = done + item.seconds, left - 1, False
            while not done and waiting and waiting[0].share * total <= slack:
                parts += _parts_of_cut(waiting.pop(0))
            while waiting and waiting[0].share * total < end - slack and waiting[0].share * total > done + slack:
                before = waiting[0].share * total - done
                parts += [Segment((replace(item, seconds=before),), continues), *_parts_of_cut(waiting.pop(0))]
                item, done, continues = replace(item, seconds=item.seconds - before), done + before, True
            parts.append(Segment((item,), continues))
            done = end
            while at < len(items) and isinstance(call := items[at], Call) and call.concurrent == "previous":
                parts.append(call)
                at += 1
            while waiting and (not left or waiting[0].share * total <= min(done, total - 2 * slack) + slack):
                parts += _parts_of_cut(waiting.pop(0))
        units_parts.append(parts)
    if waiting:  # nothing is computed
        units_parts[-1] += [part for cut in waiting for part in _parts_of_cut(cut)]
    return units_parts


def count_launches(items: Sequence[Item], graphs: CudaGraphs) -> float:
    """Counts the host's launches of a unit's items; further kernels of a loop in C++ count as `LOOPED_LAUNCH`.

    A run of items that CUDA graphs replay counts as one launch.
    """
    if graphs == "full":
        return 0.0
    count, replayed = 0.0, False
    for item in items:
        graphed = not isinstance(item, HostWork) and item.scope in REPLAYED[graphs]
        count += int(not replayed) if graphed else _launches(item)
        replayed = graphed
    return count


def _share_of(items: Sequence[Item], kind: ActionKind, weight_share: float) -> list[Item]:
    """Returns the part of a backward that gives input or weight gradients.

    Weight gradients take `weight_share` of the computation; collectives and the host belong to input gradients.
    """
    inputs, phase = kind == ActionKind.BACKWARD_INPUT, PHASES[kind]
    share = 1 - weight_share if inputs else weight_share
    shared: list[Item] = []
    for item in items:
        if not isinstance(item, Compute):
            shared += [replace(item, phase=phase)] if inputs else []
        elif item.kernels or isnan(item.seconds):
            problem = f"{item.name} has no seconds that a schedule could divide into input and weight gradients"
            raise InputError("invalid-program", problem, hint="list both, told apart by phase")
        else:
            shared.append(replace(item, seconds=share * item.seconds, phase=phase))
    return shared


def _parts_of_cut(cut: Cut) -> list[UnitPart]:
    """Returns the parts of a cut: its computations within what it divides, its calls next to the rest of the step."""
    return [
        Segment((item,), continues=True)
        if isinstance(item, Compute)
        else replace(item, concurrent="step")
        if isinstance(item, Call)
        else item
        for item in cut.items
    ]


def _joins(item: Compute) -> bool:
    return isnan(item.seconds) and not item.moved_bytes


def _concurrent(item: Item) -> str | None:
    return item.concurrent if isinstance(item, Call) else None


def _same_phase(first: Compute, other: Compute) -> bool:
    return first.phase == other.phase or (first.phase in _GRADIENTS and other.phase in _GRADIENTS)


def _launches(item: Item) -> float:
    weight = FORWARD_WEIGHT if item.phase == Phase.FORWARD else OTHER_WEIGHT
    if isinstance(item, Compute):
        launches = sum(count * _kernel_launches(kernel) for count, kernel in item.kernels)
        return weight * (launches + item.handled * LOOPED_LAUNCH)
    return weight * COLLECTIVE_LAUNCHES if isinstance(item, Call) else 0.0


def _kernel_launches(kernel: Kernel) -> float:
    if isinstance(kernel, GroupedGemm) and kernel.separate:
        return 1 + (kernel.launches - 1) * LOOPED_PRODUCT
    looped = isinstance(kernel, Stream) and kernel.looped
    return 1 + (kernel.launches - 1) * LOOPED_LAUNCH if looped else kernel.launches
