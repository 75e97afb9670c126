"""Finds the costs of units under one plan: what layers take, what they wait for, and what they lose next to calls."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.cost.overlap import ResourceUse
from foretrace.cost.unit_costs import MeshPrices, UnitCosts
from foretrace.program.columns import Collective
from foretrace.schedules import ActionKind
from foretrace.search.planner.paths import KINDS
from foretrace.search.planner.shapes import UnitKind, unit_works
from foretrace.step.segments import CLOSES, OPENS
from foretrace.step.sharding import ShardedUnits
from foretrace.step.spec import Call, Item, Unit, Work
from foretrace.workload.setting import Setting
from foretrace.workload.step_spec import launches_of, prefetch_of, sharding_of, with_overlap

UNIT_AXES: Final = ("tp", "cp", "ep", "etp")
"""Axes over which units communicate."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownUnits:
    """The costs of units that plans have in common, each with its work, by all that they depend on."""

    costs: dict[Hashable, tuple[Work, UnitCosts]] = field(default_factory=dict)


class WorkCosts:
    """The costs of units of one setting, each kind when it is first asked for."""

    def __init__(self, setting: Setting, prices: MeshPrices, known: KnownUnits) -> None:
        self.setting, self.prices, self._known = setting, prices, known
        self.launches = launches_of(setting)
        sharding = sharding_of(setting)
        self.sharded = None if sharding is None else ShardedUnits(sharding, {})
        self._units: dict[UnitKind, UnitCosts] = {}
        self._new: dict[UnitKind, Work] = {}
        self._split: dict[UnitKind, tuple[float, float]] = {}
        self._split_calls: dict[UnitKind, tuple[Call | None, Call | None]] = {}
        self._waits: dict[tuple[UnitKind, ...], tuple[float, ...]] = {}
        self._lost: dict[tuple[object, ActionKind], float] = {}
        self._slowed: dict[object, dict[UnitKind, Floats]] = {}
        self.output_bytes = 0

    def read(self, kinds: Iterable[UnitKind]) -> list[Item]:
        """Finds the works of kinds that are not known yet; returns the items that have to be priced for them."""
        unknown = [kind for kind in kinds if kind not in self._units]
        self._new.update(zip(unknown, unit_works(self.setting, unknown), strict=True))
        new = [(kind, work) for kind, work in self._new.items() if self._key(kind, work) not in self._known.costs]
        return self.prices.items([self._placed(kind, work) for kind, work in new], self.sharded)

    def learn(self) -> None:
        """Finds the costs of the kinds that were read."""
        works, self._new = self._new, {}
        for kind, work in works.items():
            key = self._key(kind, work)
            if key not in self._known.costs:
                costs = self.prices.unit_costs(self._placed(kind, work), self.launches, self.sharded)
                self._known.costs[key] = work, costs
            self._units[kind] = self._known.costs[key][1]
            if kind.role == "layer":
                self.output_bytes = work.output_bytes
            if self.sharded is not None:
                unit = Unit(work, kind.number if kind.role == "layer" else -1)
                gathers, reductions = self.sharded.calls(unit)
                self._split[kind] = sum(map(self.prices.seconds, gathers)), sum(map(self.prices.seconds, reductions))
                self._split_calls[kind] = next(iter(gathers), None), next(iter(reductions), None)

    def _placed(self, kind: UnitKind, work: Work) -> Work:
        """Returns a work with the concurrency that the plan asks for."""
        return with_overlap(work, self.setting, paired=kind.paired)

    def _key(self, kind: UnitKind, work: Work) -> Hashable:
        return id(work), kind.paired, *self._places

    @cached_property
    def _places(self) -> tuple[Hashable, ...]:
        """All that the costs of a work depend on besides the work."""
        plan, prices, launches = self.setting.plan, self.prices, self.launches
        sharding = None if self.sharded is None else self.sharded.spec
        split = (
            None
            if sharding is None
            else (
                sharding.copies,
                sharding.ranks > 1,
                sharding.reshard,
                sharding.parameter_bytes,
                sharding.gradient_bytes,
            )
        )
        return (
            prices.pricer,
            plan.tp_overlap,
            plan.moe_overlap,
            None if launches is None else (launches.seconds, launches.graphs),
            split,
            *(tuple(prices.layouts(axis)) if prices.mesh.size(axis) > 1 else () for axis in UNIT_AXES),
        )

    def knows(self, kind: UnitKind) -> bool:
        """Returns whether the costs of a kind have been learned."""
        return kind in self._units

    def unit(self, kind: UnitKind) -> UnitCosts:
        """Returns the costs of a kind that has been learned."""
        return self._units[kind]

    def split_s(self, kind: UnitKind) -> tuple[float, ...]:
        """Returns the seconds of a unit's gathers and reductions on their lane, by kind of action."""
        if self.sharded is None or not self.sharded.spec.overlap:
            return (0.0,) * KINDS
        gather, reduce = self._split[kind]
        again = gather if self._releases(kind) else 0.0
        return gather, again + reduce, again, reduce

    def split_lost_s(self, piece: tuple[UnitKind, ...]) -> tuple[float, ...]:
        """Estimates what a piece loses next to gathers and reductions that it does not wait for, by kind of action."""
        if self.sharded is None:
            return (0.0,) * KINDS
        calls = next((self._split_calls[kind] for kind in piece if any(self._split_calls[kind])), (None, None))
        waits, lost = self.waits_s(piece), []
        for action, waited in zip(ActionKind, waits, strict=True):
            hidden = sum(self.split_s(kind)[action] for kind in piece) - waited
            lost.append(max(hidden, 0.0) * max(self.lost_share(call, action) for call in calls))
        return tuple(lost)

    def waits_s(self, piece: tuple[UnitKind, ...]) -> tuple[float, ...]:
        """Returns how long a piece at least waits for its own gathers and reductions, by kind of action.

        A unit begins no sooner than its gather ends. That begins with the unit before it, or after it where nothing is
        fetched ahead, and comes after the reduction of the unit before that one. Where gathers are further ahead, only
        the first is counted.
        """
        if self.sharded is None:
            return (0.0,) * KINDS
        if piece not in self._waits:
            forward, backward = prefetch_of(self.setting)
            self._waits[piece] = (
                self._wait_s(piece, ActionKind.FORWARD, forward),
                *(self._wait_s(piece[::-1], kind, backward) for kind in list(ActionKind)[1:]),
            )
        return self._waits[piece]

    def _wait_s(self, units: tuple[UnitKind, ...], kind: ActionKind, ahead: int) -> float:
        assert self.sharded is not None
        opens, closes = kind in (ActionKind.FORWARD, *OPENS), kind in CLOSES
        gathers = [
            self._split[unit][0] if opens and (kind == ActionKind.FORWARD or self._releases(unit)) else 0.0
            for unit in units
        ]
        reductions = [self._split[unit][1] if closes else 0.0 for unit in units]
        # In a pipeline the first gather may run while the stage waits for an activation, and the last reduction while
        # the gradient of the input is on its way to another stage.
        one_stage = self.setting.plan.pp == 1
        first = gathers[0] if one_stage else 0.0
        if not self.sharded.spec.overlap:
            return sum(reductions if one_stage else reductions[:-1])
        if not ahead:
            return first + sum(gathers[1:])
        if ahead > 1:
            return first
        waited = first
        for at in range(len(units) - 1):
            busy = gathers[at + 1] + (reductions[at - 1] if at else 0.0)
            # It begins with the last computation of the unit before, while calls of that may still go on.
            busy -= self._units[units[at - 1]].trailing_s[kind] if at else 0.0
            waited += max(busy - self._units[units[at]].slowed_s[kind], 0.0)
        return waited

    def last_reduction_s(self, piece: tuple[UnitKind, ...]) -> float:
        """Returns the reduction that follows the last unit of a piece's backward."""
        if self.sharded is None or not self.sharded.spec.overlap:
            return 0.0
        return self._split[piece[0]][1]

    def _releases(self, kind: UnitKind) -> bool:
        """Returns whether a unit gathers its parameters again for the backward."""
        return (
            self.sharded is not None
            and self.sharded.spec.gathers
            and self.sharded.spec.reshard
            and (kind.role in ("layer", "mtp"))
        )

    def transfers(self, prices: MeshPrices) -> tuple[float, float]:
        """Returns the seconds of a transfer and of an exchange between the stages of a mesh."""
        if prices.mesh.pp == 1:
            return 0.0, 0.0
        size = self.output_bytes
        return prices.transfer_s(size), prices.transfer_s(size, Collective.EXCHANGE)

    def lost_share(self, call: Call | None, kind: ActionKind) -> float:
        """Returns the share of its pace that a layer loses in an action while a call of its mesh runs."""
        return 0.0 if call is None else self.lost_to(self.prices.use(call), kind)

    def lost_to(self, use: ResourceUse | None, kind: ActionKind) -> float:
        """Returns the share of its pace that a layer loses in an action to a call with this use of the GPU."""
        if use is None or not self.prices.pricer.machine.overlap_cost:
            return 0.0
        if (use, kind) not in self._lost:
            layers = [each for each in self._units if each.role == "layer"]
            # Most models have most of these.
            body = self._units[max(layers, key=lambda each: (each.number, each.paired))]
            self._lost[use, kind] = 1 - 1 / self.prices.pricer.slower(body.kernels[kind], use)
        return self._lost[use, kind]

    def slowed_by_transfers(self, prices: MeshPrices, kinds: list[UnitKind]) -> Floats:
        """Returns what units compute alone, how much longer that takes next to transfers, and how much of it is seen.

        The last are the seconds by which a unit takes longer, at least: calls, gathers and reductions that its
        computation runs next to may last as long anyway, `[3, kinds, 4]`.
        """
        table = np.zeros((3, len(kinds), KINDS))
        if prices.mesh.pp == 1 or not prices.pricer.machine.overlap_cost:
            return table
        use = prices.transfer_use(self.output_bytes)
        known = self._slowed.setdefault(use, {})
        pricer = self.prices.pricer
        for at, kind in enumerate(kinds):
            if kind not in self._units:
                continue
            if kind not in known:
                rows, unit = np.zeros((3, KINDS)), self._units[kind]
                for action, kernels in enumerate(unit.kernels):
                    rows[0, action] = sum(count * pricer.kernel_s[kernel] for count, kernel in kernels)
                    rows[1, action] = rows[0, action] * (pricer.slower(kernels, use) - 1)
                    gating = unit.gating[action]
                    if self.sharded is not None:
                        continue
                    if gating is kernels:
                        rows[2, action] = rows[1, action]
                    else:
                        alone_s = sum(count * pricer.kernel_s[kernel] for count, kernel in gating)
                        rows[2, action] = alone_s * (pricer.slower(gating, use) - 1)
                known[kind] = rows
            table[:, at] = known[kind]
        return table
