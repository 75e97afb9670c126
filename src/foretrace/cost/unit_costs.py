"""Prices the units of a step without a program: what a layer takes forward and backward, alone.

`UnitPricer` prices kernels and calls as `pricing.py` prices the ops of a program, each once for all meshes. A planner
asks it for thousands of units; `build_step` asks it for the seconds of units that it writes as one op.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import Final

import numpy as np

from foretrace.basics.mesh import Mesh
from foretrace.cost.kernels.interface import KernelPricer
from foretrace.cost.local_overlap import BlockOps, local_cost, longest_chain
from foretrace.cost.machine import Machine
from foretrace.cost.network.call_book import CallBook
from foretrace.cost.overlap import USE_STEP, ResourceUse, resource_use, slowdowns
from foretrace.cost.pricing import stream_s
from foretrace.hardware.cluster import Gpu
from foretrace.program.columns import Collective
from foretrace.program.dispatch import COPIES
from foretrace.program.kernels import Kernel
from foretrace.program.program import Communicator
from foretrace.schedules import ActionKind
from foretrace.step.contract import ends_alone
from foretrace.step.groups import group_axes
from foretrace.step.segments import Segment, UnitPart, count_launches, items_of, parts_of
from foretrace.step.sharding import ShardedUnits
from foretrace.step.spec import Call, Compute, Item, Launches, Work
from foretrace.step.units import sync_gap_s

KINDS: Final = tuple(ActionKind)

Kernels = tuple[tuple[int, Kernel], ...]

_WAITED: Final = ("next", "previous", "phase")
"""Concurrent calls that a later part of their unit, or the next unit, waits for."""

CallId = tuple[Hashable, Collective, str, int]
"""A layout, a collective, the way it goes, and bytes."""


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """The costs of one unit, by kind of action: forward, backward, input gradient, weight gradient.

    Attributes:
        slowed_s: From its first op to the begin of the next unit, with nothing else on its rank, and with what its own
            calls cost its computation.
        trailing_s: How long calls go on at the end of that while nothing is computed, with that cost or without.
        launches: Kernels and calls that the host launches.
        kernels: The kernels of its computation, each with how often it runs.
        gating: Those of them with which `slowed_s` grows: computation next to calls that take longer is not among them.
    """

    slowed_s: tuple[float, ...]
    trailing_s: tuple[float, ...]
    launches: tuple[float, ...]
    kernels: tuple[Kernels, ...]
    gating: tuple[Kernels, ...]


class CallPricer:
    """Looks up single calls in a book, with what they take of a GPU."""

    def __init__(self, book: CallBook, gpu: Gpu) -> None:
        self.book, self._gpu = book, gpu
        self._seconds: dict[CallId, float] = {}
        self._uses: dict[CallId, ResourceUse | None] = {}

    def learn(self, calls: Iterable[CallId]) -> None:
        """Prices the calls that are not known yet, those of one layout, collective and way at once."""
        sizes: dict[tuple[Hashable, Collective, str], list[int]] = {}
        for layout, collective, way, size in dict.fromkeys(calls):
            if (layout, collective, way, size) not in self._seconds:
                sizes.setdefault((layout, collective, way), []).append(size)
        for (layout, collective, way), each in sizes.items():
            priced = self.book.price(collective, layout, np.array(each, dtype=np.float64), way).duration_s
            for size, seconds in zip(each, priced.tolist(), strict=True):
                self._seconds[layout, collective, way, size] = seconds

    def seconds(self, call: CallId) -> float:
        """Returns the seconds of a call."""
        if call not in self._seconds:
            self.learn([call])
        return self._seconds[call]

    def use(self, call: CallId) -> ResourceUse | None:
        """Returns what a call takes of a GPU while it runs, rounded as `call_uses` does; None for copy engines."""
        if call not in self._uses:
            layout, collective, way, size = call
            if way == COPIES:
                self._uses[call] = None
            else:
                use = resource_use(self.book.explain(collective, layout, float(size), way), collective)
                step = max(self._gpu.memory_bytes_per_s * USE_STEP, 1.0)
                self._uses[call] = ResourceUse(use.sms, step * round(use.bytes_per_s / step))
        return self._uses[call]


class UnitPricer:
    """Prices units and calls of jobs of `world` ranks on a machine, and remembers what it has priced."""

    def __init__(self, machine: Machine, world: int) -> None:
        self.machine, self.world = machine, world
        self.kernel_s: dict[Kernel, float] = {}
        self._slower: dict[ResourceUse, dict[Kernel, float]] = {}
        self._meshes: dict[Mesh, MeshPrices] = {}
        self._calls: dict[CallBook, CallPricer] = {}

    @cached_property
    def _kernels(self) -> KernelPricer:
        return self.machine.kernel_pricer(self.world)

    def on(self, mesh: Mesh) -> MeshPrices:
        """Returns the prices of jobs with this mesh."""
        prices = self._meshes.get(mesh)
        if prices is None:
            book = self.machine.calls(mesh.world, mesh)
            if book not in self._calls:
                self._calls[book] = CallPricer(book, self.machine.needed_cluster().gpu)
            prices = self._meshes[mesh] = MeshPrices(self, self._calls[book], mesh)
        return prices

    def learn_kernels(self, kernels: Iterable[Kernel]) -> None:
        """Prices the kernels that are not known yet, all at once."""
        unknown = list(dict.fromkeys(kernel for kernel in kernels if kernel not in self.kernel_s))
        if unknown:
            self.kernel_s.update(zip(unknown, self._kernels.price(unknown).duration_s.tolist(), strict=True))

    def slower(self, kernels: Sequence[tuple[int, Kernel]], use: ResourceUse | None) -> float:
        """Returns how many times as long kernels take while a call with this use runs."""
        if use is None or not kernels:
            return 1.0
        known, times = self._slower.setdefault(use, {}), self.kernel_s
        try:
            under_s = sum(count * times[kernel] * known[kernel] for count, kernel in kernels)
        except KeyError:
            unknown = list(dict.fromkeys(kernel for _, kernel in kernels if kernel not in known))
            self.learn_kernels(unknown)
            alone = np.array([times[kernel] for kernel in unknown])
            slower = slowdowns(unknown, alone, [use], self.machine.needed_cluster().gpu)[:, 0]
            known.update(zip(unknown, slower.tolist(), strict=True))
            under_s = sum(count * times[kernel] * known[kernel] for count, kernel in kernels)
        alone_s = sum(count * times[kernel] for count, kernel in kernels)
        return under_s / alone_s if alone_s > 0 else 1.0


class MeshPrices:
    """The prices of calls over the axes of one mesh, and of units on it."""

    def __init__(self, pricer: UnitPricer, calls: CallPricer, mesh: Mesh) -> None:
        self.pricer, self.calls, self.mesh = pricer, calls, mesh
        self._axes: dict[str, list[Hashable]] = {}

    def layouts(self, axis: str) -> list[Hashable]:
        """Returns the distinct layouts of the groups that a call's axis names."""
        if axis not in self._axes:
            pair = (0, self.mesh.pp - 1) if axis == "embd" else None
            axes = group_axes(self.mesh, axis) if pair is None else ("pp",)
            self._axes[axis] = self._placed(Communicator(axis, axis, axes=axes, pair=pair))
        return self._axes[axis]

    def _placed(self, communicator: Communicator) -> list[Hashable]:
        groups = self.calls.book.placed(communicator, self.mesh)
        return list(dict.fromkeys(layout for part in groups for layout in part.layouts))

    def seconds(self, call: Call) -> float:
        """Returns the seconds of a call, of the fastest of its groups where these differ."""
        return min(map(self.calls.seconds, self._ids(call))) if isnan(call.seconds) else call.seconds

    def transfer_s(self, size: int, collective: Collective = Collective.TRANSFER) -> float:
        """Returns the seconds of a transfer between neighbouring stages, of the fastest pair."""
        return min(self.calls.seconds((layout, collective, "", size)) for layout in self._pairs)

    def transfer_use(self, size: int) -> ResourceUse | None:
        """Returns what a transfer between neighbouring stages takes of a GPU."""
        return self.calls.use((self._pairs[0], Collective.TRANSFER, "", size))

    def use(self, call: Call) -> ResourceUse | None:
        """Returns what a call takes of a GPU while it runs."""
        return self.calls.use(self._ids(call)[0])

    def _ids(self, call: Call) -> list[CallId]:
        return [(layout, call.collective, call.way or "", call.bytes) for layout in self.layouts(call.axis)]

    @cached_property
    def _pairs(self) -> list[Hashable]:
        pairs = [(stage, stage + 1) for stage in range(self.mesh.pp - 1)]
        layouts = (
            layout for pair in pairs for layout in self._placed(Communicator("pp", "pp", axes=("pp",), pair=pair))
        )
        return list(dict.fromkeys(layouts))

    def items(self, works: Sequence[Work], sharded: ShardedUnits | None = None) -> list[Item]:
        """Returns all that works do, and the calls by which data-parallel ranks split them."""
        return [item for work in works for item in _all_items(work, sharded)]

    def learn_items(self, items: Sequence[Item]) -> None:
        """Prices all kernels and calls of items at once."""
        self.pricer.learn_kernels(kernel for item in items if isinstance(item, Compute) for _, kernel in item.kernels)
        calls = (call for item in items if isinstance(item, Call) and isnan(item.seconds) for call in self._ids(item))
        self.calls.learn(calls)

    def unit_costs(self, work: Work, launches: Launches | None, sharded: ShardedUnits | None = None) -> UnitCosts:
        """Returns the costs of a unit. It is faster where its items were priced before, with those of others.

        Args:
            work: The unit's work.
            launches: The host's launches.
            sharded: How data-parallel ranks split it; the calls of that are not counted, its copies are.
        """
        slowed, trailing, counts = ([0.0] * len(KINDS) for _ in range(3))
        kernels: list[Kernels] = [()] * len(KINDS)
        gating: list[Kernels] = [()] * len(KINDS)
        for kind in KINDS:
            items = items_in(work, kind, sharded)
            parts = parts_of(items)
            slowed[kind], trailing[kind] = self._chain(parts, launches)
            counts[kind] = 0.0 if launches is None else count_launches(items, launches.graphs)
            kernels[kind] = tuple(each for item in items if isinstance(item, Compute) for each in item.kernels)
            gating[kind] = kernels[kind]
            if self.pricer.machine.overlap_cost and _has_waited_calls(parts):
                costs, gating[kind] = self._local_costs(parts)
                slowed[kind], trails_s = self._chain(parts, launches, costs)
                trailing[kind] = max(trailing[kind], trails_s)
        return UnitCosts(tuple(slowed), tuple(trailing), tuple(counts), tuple(kernels), tuple(gating))

    def compute_s(self, item: Compute) -> float:
        """Returns the seconds of a computation alone."""
        if not isnan(item.seconds):
            return item.seconds
        if item.moved_bytes and not item.kernels:
            return float(stream_s(np.array(item.moved_bytes), self.pricer.machine.needed_cluster().gpu))
        known = self.pricer.kernel_s
        try:
            return float(sum(count * known[kernel] for count, kernel in item.kernels))
        except KeyError:
            self.pricer.learn_kernels(kernel for _, kernel in item.kernels)
            return self.compute_s(item)

    def _local_costs(self, parts: Sequence[UnitPart]) -> tuple[dict[int, float], Kernels]:
        """Returns what the concurrent calls of a unit cost its segments, by their place among the parts.

        Calls that may go on next to other units are left out: what they cost is not the unit's own.

        Returns:
            The cost, and the kernels that make the unit longer if they take longer, as far as they are known.
        """
        if any(isinstance(part, Call) and part.concurrent not in (None, *_WAITED) for part in parts):
            return {}, ()
        writer = _BlockWriter(self, parts)
        block = writer.ops()
        cost = local_cost(block, writer.slowdowns())
        costs = {at: seconds for at, seconds in zip(writer.places, cost.cost_s, strict=True) if seconds > 0}
        if any(isinstance(part, Segment) and part.items[-1].syncs_host for part in parts):
            return costs, ()
        chain = (parts[at] for at in longest_chain(block, cost.cost_s))
        return costs, tuple(each for part in chain if isinstance(part, Segment) for each in part.kernels)

    def _chain(
        self, parts: Sequence[UnitPart], launches: Launches | None, more_s: Mapping[int, float] | None = None
    ) -> tuple[float, float]:
        """Returns when the next unit begins after parts that begin at 0, and how long it has then waited for calls.

        The order of waits is that of `step.units.UnitWriter`. `more_s` is added to parts by their place.
        """
        lane, before, waits, later = [0.0, 0.0], 0.0, 0.0, 0.0
        phase, phase_begin = 0.0, -1  # when the calls of the present phase end, and where on the lane it began
        queues: dict[str, float] = {}  # when the last concurrent call over an axis ends; calls over one run in order
        for at, part in enumerate(parts):
            if isinstance(part, Call) and part.concurrent is not None:
                begin = max(lane[-2], before) if part.concurrent == "previous" else max(lane[-1], waits)
                end = max(begin, queues.get(part.axis, 0.0)) + self.seconds(part)
                queues[part.axis] = end
                if part.concurrent == "phase":
                    if phase_begin != len(lane):
                        waits, phase_begin = max(waits, phase), len(lane)
                    phase = max(phase, end)
                elif part.concurrent == "previous":
                    waits = max(waits, end)
                elif part.concurrent == "next":
                    later = max(later, end)
                continue
            if isinstance(part, Segment):
                duration = sum(self.compute_s(item) for item in part.items) + (more_s.get(at, 0.0) if more_s else 0.0)
                before, waits, later = waits, later, 0.0
            else:
                duration = self.seconds(part) if isinstance(part, Call) else part.seconds
                before, waits, later = max(waits, later), 0.0, 0.0
            lane.append(max(lane[-1], before) + duration)
            if isinstance(part, Segment) and launches is not None and part.items[-1].syncs_host:
                before, waits, later = waits, later, 0.0
                lane.append(max(lane[-1], before) + sync_gap_s(launches.seconds))
        end_s = max(lane[-1], waits, later, phase)
        return end_s, end_s - lane[-1]


class UnitTimes:
    """The seconds of works on a mesh, with what their own calls cost them: `step.contract.UnitSeconds`."""

    def __init__(self, prices: MeshPrices) -> None:
        self._prices = prices
        self._costs: dict[int, tuple[Work, UnitCosts | None]] = {}

    def seconds(self, work: Work, kind: ActionKind) -> float | None:
        """Returns how long a work's items take in an action; None where ranks pay differently or calls go on."""
        if id(work) not in self._costs:
            self._costs[id(work)] = work, self._unit_costs(work)
        costs = self._costs[id(work)][1]
        return costs.slowed_s[kind] if costs is not None and ends_alone(items_of(work, kind)) else None

    def _unit_costs(self, work: Work) -> UnitCosts | None:
        calls = [item for item in _all_items(work, None) if isinstance(item, Call)]
        if any(len(self._prices.layouts(call.axis)) > 1 for call in calls):
            return None
        self._prices.learn_items(_all_items(work, None))
        return self._prices.unit_costs(work, None)


class _BlockWriter:
    """Lists the parts of a unit as ops, with the waits that `step.units.UnitWriter` gives them."""

    def __init__(self, prices: MeshPrices, parts: Sequence[UnitPart]) -> None:
        self.prices, self.parts = prices, parts
        self.places = list(range(len(parts)))
        self._segments = [part for part in parts if isinstance(part, Segment)]
        self._uses: dict[ResourceUse, int] = {}

    def ops(self) -> BlockOps:
        """Returns the ops, one for each part."""
        alone, lanes, kernels, uses, after = [], [], [], [], []
        lane: list[int] = []
        before: list[int] = []
        waits: list[int] = []
        later: list[int] = []
        phase: list[int] = []
        phase_begin = -1
        axes: dict[str, int] = {}
        number = 0
        for at, part in enumerate(self.parts):
            kernel = use = -1
            if isinstance(part, Call) and part.concurrent is not None:
                seconds, queue = self.prices.seconds(part), axes.setdefault(part.axis, 1 + len(axes))
                resources = self.prices.use(part)
                if resources is not None:
                    use = self._uses.setdefault(resources, len(self._uses))
                if part.concurrent == "previous":
                    after.append([*lane[-2:-1], *before])
                    waits.append(at)
                elif part.concurrent == "phase":
                    after.append([*lane[-1:], *waits])
                    if phase_begin != len(lane):
                        waits, phase, phase_begin = [*waits, *phase], [], len(lane)
                    phase.append(at)
                else:
                    after.append([*lane[-1:], *waits])
                    later.append(at)
            else:
                queue = 0
                if isinstance(part, Segment):
                    seconds = sum(self.prices.compute_s(item) for item in part.items)
                    kernel, number = (number, number + 1)
                    before, waits, later = waits, later, []
                else:
                    seconds = self.prices.seconds(part) if isinstance(part, Call) else part.seconds
                    before, waits, later = [*waits, *later], [], []
                after.append(before)
                lane.append(at)
            alone.append(seconds)
            lanes.append(queue)
            kernels.append(kernel)
            uses.append(use)
        return BlockOps(alone, lanes, kernels, uses, after)

    def slowdowns(self) -> list[list[float]]:
        """Returns how many times as long each segment takes under each use; `ops` has found the uses."""
        slower = self.prices.pricer.slower
        return [[slower(segment.kernels, use) for use in self._uses] for segment in self._segments]


def _has_waited_calls(parts: Sequence[UnitPart]) -> bool:
    return any(isinstance(part, Call) and part.concurrent in _WAITED for part in parts)


def items_in(work: Work, kind: ActionKind, sharded: ShardedUnits | None) -> Sequence[Item]:
    """Returns what a work does in an action, with the copies of split parameters."""
    items = items_of(work, kind)
    return items if sharded is None else sharded.with_copies(work, kind, items)


def _all_items(work: Work, sharded: ShardedUnits | None) -> list[Item]:
    return [*items_in(work, ActionKind.FORWARD, sharded), *items_in(work, ActionKind.BACKWARD, sharded)]
