"""Bounds and estimates the step of many plans at once, in closed form.

Everything that a step costs depends on a few fields of its plan at a time: the work of a layer on the sizes of one
rank, the order of actions on the schedule, the end of the step on how parameters are divided. Each is found once for
each combination of those fields (`ClosedForm`), and plans are then evaluated as columns of numbers. Arithmetic on
columns uses only sums, products and maxima, so that a plan has the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.collector import collector_paused
from foretrace.basics.mesh import Mesh
from foretrace.cost.kernels.clocks import least_products_factor
from foretrace.cost.machine import Machine
from foretrace.cost.overlap import ResourceUse
from foretrace.cost.unit_costs import MeshPrices, UnitPricer
from foretrace.models.model import Model
from foretrace.schedules import ActionKind
from foretrace.schedules.pipeline import BATCHED
from foretrace.schedules.registry import resolve
from foretrace.search.planner.ends import EndCosts, end_costs
from foretrace.search.planner.paths import KINDS, ActionChains, rounds
from foretrace.search.planner.plan_table import PlanTable, combined
from foretrace.search.planner.shapes import StepShape, UnitKind
from foretrace.search.planner.work_costs import UNIT_AXES, KnownUnits, WorkCosts
from foretrace.simulation.simulate_input import on_host
from foretrace.step.spec import Compute
from foretrace.workload.plan import Plan
from foretrace.workload.rules.sizes import BOTH_ENDS, PlanSizes
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle_allowed
from foretrace.workload.step_spec import step_spec

DIVISION: Final = ("stage_layers", "layout", "account_for", "first_stage_layers", "last_stage_layers")
"""Fields that divide the layers among pieces."""

MESH: Final = ("gpus", "tp", "cp", "pp", "ep", "etp", "shard", "rank_order")

SHAPE: Final = ("pp", "vpp", "schedule", "recompute_layers", "offload_layers", "pp_overlap", "routing", *DIVISION)
"""Fields that the order of actions and the kinds of units depend on, besides the number of microbatches."""

WORK: Final = (
    *("stack", "mbs", "seq_len", "tp", "sequence_parallel", "cp", "cp_comm", "ep", "etp", "precision"),
    *("recompute", "recompute_modules", "offload_modules", "dispatcher", "routing", "documents", "tp_overlap"),
    *("moe_overlap", "cuda_graphs", "grad_dtype", "master_dtype", "moment_dtype", "fp8_params"),
    *("fp8_activation_input", "gpus"),
)
"""Fields that the seconds of units depend on, besides the places of groups and what data-parallel ranks split."""

END: Final = (
    *MESH,
    *("vpp", "schedule", "zero", "stack", "precision", "grad_overlap", "param_overlap", "offload_optimizer"),
    *("grad_dtype", "master_dtype", "moment_dtype", "fp8_params", "cuda_graphs"),
    *DIVISION,
)
"""Fields that the end of a step depends on."""

ROWS_AT_ONCE: Final = 1 << 14
"""Plans that are evaluated at once, so that columns stay in a processor's cache."""

_UNDIVIDED: Final[dict[str, Any]] = dict.fromkeys(DIVISION)


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """The step of each plan.

    Attributes:
        bound_s: No simulation is faster.
        estimate_s: The expected result of a simulation.
    """

    bound_s: Floats
    estimate_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A shape with its chains, and the kinds of its pieces as counts of the search's kinds of units."""

    chains: ActionChains
    pieces: tuple[tuple[UnitKind, ...], ...]
    """The units of each kind of piece, in the order of the forward."""
    piece_units: Longs
    """How many of these are of each of the search's kinds, `[piece kinds, kinds]`."""
    chunks: int
    """Chunks of a stage."""
    stages: int


class ClosedForm:
    """Bounds and estimates plans of one model on one machine; what it has worked out serves all further plans."""

    def __init__(self, model: Model, machine: Machine) -> None:
        self.model, self.machine = model, machine
        self._sizes: PlanSizes | None = None
        self._kinds: dict[UnitKind, int] = {}
        self._pricers: dict[int, UnitPricer] = {}
        self._works: dict[Plan, WorkCosts] = {}
        self._known_units = KnownUnits()
        self._shapes: dict[tuple[Plan, int, bool], _Shape] = {}
        self._raw_shapes: dict[tuple[Plan, int, bool], _Shape] = {}
        self._ends: dict[Plan, EndCosts] = {}

    @cached_property
    def least_factor(self) -> float:
        """The share of its price that a kernel takes at least, whatever the others of its step are.

        It is below 1 where a calibration was recorded at the frequency of a step. Prices are then converted to the
        frequency of each job, which follows from all its kernels (`Machine.price`).
        """
        fit = self.machine.calibration
        at_step_clocks = fit is not None and fit.at_step_clocks
        return least_products_factor(self.machine.needed_cluster().gpu) if at_step_clocks else 1.0

    def bounds(self, table: PlanTable) -> Bounds:
        """Bounds and estimates all plans of a table, which break no constraint."""
        with collector_paused():
            return _Evaluation(self, table).bounds()

    def setting(self, plan: Plan) -> Setting:
        """Returns a plan that breaks no constraint with every choice made, on a host as the machine has it."""
        return on_host(settle_allowed(self.sizes(plan), plan), self.machine)

    def sizes(self, plan: Plan) -> PlanSizes:
        """Returns the sizes that follow from a plan."""
        if self._sizes is None:
            self._sizes = PlanSizes.of(self.model, plan)
        return self._sizes.with_plan(plan)

    def prices(self, setting: Setting) -> MeshPrices:
        """Returns the prices of a setting's calls and kernels."""
        return self.mesh_prices(setting.mesh)

    def mesh_prices(self, mesh: Mesh) -> MeshPrices:
        """Returns the prices of kernels and of calls over the axes of a mesh."""
        if mesh.world not in self._pricers:
            self._pricers[mesh.world] = UnitPricer(self.machine, mesh.world)
        return self._pricers[mesh.world].on(mesh)

    def shape(self, plan: Plan, microbatches: int, *, pairs: bool) -> _Shape:
        """Returns the structure of a plan's step. `plan` is the simplest with the same one.

        With `pairs` units in paired actions are of other kinds than those in unpaired ones.
        """
        key = plan, microbatches, pairs
        if key not in self._shapes:
            name = self.sizes(plan).schedule if plan.pp > 1 else "1f1b"
            low, size, times = rounds(name, plan.pp, microbatches)
            shape = self._raw_shape(plan, low, pairs=pairs)
            chains = shape.chains
            if times:
                chains = chains.grown(self._raw_shape(plan, low + size, pairs=pairs).chains, times)
            self._shapes[key] = replace(shape, chains=chains.longest())
        return self._shapes[key]

    def _raw_shape(self, plan: Plan, microbatches: int, *, pairs: bool) -> _Shape:
        """Returns the structure of a step with all its chains."""
        key = plan, microbatches, pairs
        if key not in self._raw_shapes:
            setting = self.setting(replace(plan, gbs=microbatches))
            shape = StepShape.of(setting)
            paired = [tuple(shape.kinds[kind] for kind in piece) for piece in shape.pieces]
            unpaired = [tuple(kind._replace(paired=not pairs) for kind in piece) for piece in paired]
            pieces = {piece: number for number, piece in enumerate(dict.fromkeys([*paired, *unpaired]))}
            kinds_of_pieces = np.array([[pieces[piece] for piece in form] for form in (unpaired, paired)])
            numbers = [[self._kinds.setdefault(kind, len(self._kinds)) for kind in piece] for piece in pieces]
            units = np.zeros((len(pieces), 1 + max(number for piece in numbers for number in piece)), dtype=np.int64)
            for of_piece, kinds in zip(units, numbers, strict=True):
                np.add.at(of_piece, np.array(kinds, dtype=np.int64), 1)
            batched = setting.schedule in BATCHED and not plan.pp_overlap
            chains = ActionChains.of(shape, kinds_of_pieces, batched=batched)
            self._raw_shapes[key] = _Shape(chains, tuple(pieces), units, shape.schedule.chunks, shape.schedule.stages)
        return self._raw_shapes[key]

    def work(self, plan: Plan) -> WorkCosts:
        """Returns the costs of units under a plan, which is the simplest with the same ones."""
        if plan not in self._works:
            setting = self.setting(plan)
            self._works[plan] = WorkCosts(setting, self.prices(setting), self._known_units)
        return self._works[plan]

    def end(self, plan: Plan, stages: tuple[int, ...]) -> EndCosts:
        """Returns the costs of the end of a step under a plan, which is the simplest with the same ones."""
        if plan not in self._ends:
            setting = self.setting(plan)
            self._ends[plan] = end_costs(step_spec(setting), self.prices(setting), stages)
        return self._ends[plan]

    @property
    def pricers(self) -> list[UnitPricer]:
        """The prices of jobs of each size."""
        return list(self._pricers.values())

    @property
    def kinds(self) -> list[UnitKind]:
        """The kinds of units that shapes have so far."""
        return list(self._kinds)


class _Evaluation:
    """Evaluates one table."""

    def __init__(self, owner: ClosedForm, table: PlanTable) -> None:
        self.owner, self.table = owner, table
        self._find_shapes()
        self._price_units()
        self._price_ends()

    def _find_shapes(self) -> None:
        """Finds the structure of each row's step: `shapes`, and the number of each row's."""
        owner, table = self.owner, self.table
        batches, batch_of = table.keys("gpus", "tp", "cp", "pp", "mbs", "gbs")
        counts = np.array([owner.sizes(table.plan(row)).microbatches for row in batches.tolist()])
        partly = table.gather("recompute_layers", lambda value: value is not None)
        partly &= table.gather("recompute", lambda value: value == "full")
        pairs = table.column("moe_overlap") & (table.column("ep") > 1)
        key = table.keys(*SHAPE)[1], counts[batch_of], partly.astype(np.int64), pairs.astype(np.int64)
        rows, self.shape_of = combined(*key)
        microbatches = counts[batch_of[rows]].tolist()
        self.shapes = [
            owner.shape(_simplest_shape(table.plan(row)), count, pairs=bool(pairs[row]))
            for row, count in zip(rows.tolist(), microbatches, strict=True)
        ]

    def _price_units(self) -> None:
        """Fills the tables of units and transfers.

        Seconds and launches are `[works, kinds, 4]`. What depends on the places of stages too is `[pairs, …]`.
        """
        owner, table = self.owner, self.table
        meshes, mesh_of = table.keys(*MESH)
        prices = [owner.mesh_prices(owner.sizes(table.plan(row)).mesh) for row in meshes.tolist()]
        places = number_each(tuple(tuple(each.layouts(axis)) for axis in UNIT_AXES) for each in prices)
        together = np.where(table.column("pp") == 1, 1, np.where(table.gather("schedule", _has_both_ends), 2, 0))
        # Optimizer states may be split without a change of the layers' work; gradients and parameters may not.
        split = table.gather("zero", lambda zero: 0 if zero in (0, 1) else 1 if zero is None else zero)
        waits = np.where(split > 0, table.column("grad_overlap") + 1, 0)
        where = np.where(split > 0, mesh_of + 1, 0)
        rows, self.work_of = combined(table.keys(*WORK)[1], places[mesh_of], together, split, waits, where)
        kinds = owner.kinds
        works = [owner.work(_simplest_work(table.plan(row))) for row in rows.tolist()]
        self.seconds = np.zeros((len(rows), len(kinds), KINDS))
        self.launched = np.zeros((len(rows), len(kinds), KINDS))
        self.split = np.zeros((len(rows), len(kinds), KINDS))
        self.works = works
        self._learn(works, kinds)
        for number, work in enumerate(works):
            for at, kind in enumerate(kinds):
                if not work.knows(kind):
                    continue
                costs = work.unit(kind)
                self.seconds[number, at] = costs.slowed_s
                self.split[number, at] = work.split_s(kind)
                if work.launches is not None:
                    self.launched[number, at] = [count * work.launches.seconds for count in costs.launches]
        pairs, self.pair_of = combined(self.work_of, mesh_of)
        pair_meshes = (prices[number] for number in mesh_of[pairs].tolist())
        self.work_of_pair = self.work_of[pairs]
        pair_works = (works[number] for number in self.work_of_pair.tolist())
        self.transfers, self.slowed = np.zeros((len(pairs), 2)), np.zeros((3, len(pairs), len(kinds), KINDS))
        for number, (work, each) in enumerate(zip(pair_works, pair_meshes, strict=True)):
            self.transfers[number] = work.transfers(each)
            self.slowed[:, number] = work.slowed_by_transfers(each, kinds)

    def _learn(self, works: Sequence[WorkCosts], kinds: list[UnitKind]) -> None:
        """Finds the costs of the units that rows have. Kernels of all are priced at once."""
        asked: list[dict[UnitKind, None]] = [{} for _ in works]
        pairs, _ = combined(self.work_of, self.shape_of)
        for row in pairs.tolist():
            units = self.shapes[int(self.shape_of[row])].piece_units.any(axis=0)
            asked[int(self.work_of[row])].update((kinds[at], None) for at in np.flatnonzero(units).tolist())
        items = [work.read(each) for work, each in zip(works, asked, strict=True)]
        for pricer in self.owner.pricers:
            mine = (
                item for work, each in zip(works, items, strict=True) if work.prices.pricer is pricer for item in each
            )
            pricer.learn_kernels(kernel for item in mine if isinstance(item, Compute) for _, kernel in item.kernels)
        for work, each in zip(works, items, strict=True):
            work.prices.learn_items(each)
            work.learn()

    def _price_ends(self) -> None:
        owner, table = self.owner, self.table
        rows, self.end_of = table.keys(*END)
        self.end_rows = rows
        shape_of_row = self.shape_of[rows].tolist()
        self.ends = [
            owner.end(_simplest_end(table.plan(row)), self.shapes[number].chains.stages)
            for row, number in zip(rows.tolist(), shape_of_row, strict=True)
        ]

        self._find_losses()

    def _find_losses(self) -> None:
        """Finds what reductions and gathers at the end of a step cost the layers that they run next to.

        Those that may be hidden are `[reductions and gathers, one chunk or several, ends]`; a layer loses `lost`
        `[forward and backward, works, uses]` of its pace; `use_of` has the use of either at each end.
        """
        numbers: dict[ResourceUse | None, int] = {None: 0}
        self.use_of = np.zeros((2, len(self.ends)), dtype=np.int64)
        self.hidden_s = np.zeros((2, 2, len(self.ends)))
        for at, (row, end) in enumerate(zip(self.end_rows.tolist(), self.ends, strict=True)):
            prices = self.works[int(self.work_of[row])].prices.pricer.on(self.owner.sizes(self.table.plan(row)).mesh)
            calls = (end.reduction, end.gather)
            self.use_of[:, at] = [
                numbers.setdefault(None if call is None else prices.use(call), len(numbers)) for call in calls
            ]
            all_s, first_s = (end.reduced_s[0], end.gathered_s[0]), (end.tail_s[0], end.head_s[0, 0])
            self.hidden_s[:, 0, at] = [max(whole - part, 0.0) for whole, part in zip(all_s, first_s, strict=True)]
            self.hidden_s[:, 1, at] = all_s
        self.lost = np.zeros((2, len(self.works), len(numbers)))
        examples, _ = combined(self.work_of, self.end_of)
        for row in examples.tolist():
            work = int(self.work_of[row])
            for use in set(self.use_of[:, int(self.end_of[row])].tolist()) - {0}:
                if not self.lost[1, work, use]:
                    resources = list(numbers)[use]
                    for kind in (ActionKind.FORWARD, ActionKind.BACKWARD):
                        self.lost[kind, work, use] = self.works[work].lost_to(resources, kind)

    def bounds(self) -> Bounds:
        """Evaluates all rows, those of one shape at once."""
        count = len(self.table)
        bound, estimate = np.zeros(count), np.zeros(count)
        order = np.argsort(self.shape_of, kind="stable")
        starts = np.searchsorted(self.shape_of[order], np.arange(len(self.shapes) + 1)).tolist()
        for number, shape in enumerate(self.shapes):
            for first in range(starts[number], starts[number + 1], ROWS_AT_ONCE):
                rows = order[first : min(first + ROWS_AT_ONCE, starts[number + 1])]
                bound[rows], estimate[rows] = self._of_shape(shape, rows)
        return Bounds(bound * self.owner.least_factor, estimate)

    def _of_shape(self, shape: _Shape, rows: Longs) -> tuple[Floats, Floats]:
        """Returns the bounds and estimates of rows of one shape."""
        chains = shape.chains
        pairs, pair = distinct_of(self.pair_of[rows])
        works, work_of_pair = distinct_of(self.work_of_pair[pairs])
        seconds = _of_pieces(shape.piece_units, self.seconds[works])
        last_reduction = np.zeros((len(chains.stages), len(works)))
        for at, number in enumerate(works.tolist()):
            costs_of = self.works[number]
            if costs_of.sharded is not None:
                seconds[:, at] += [wait for piece in shape.pieces for wait in costs_of.waits_s(piece)]
                finals = (shape.pieces[column // KINDS] for column in chains.finals.tolist())
                last_reduction[:, at] = [costs_of.last_reduction_s(piece) for piece in finals]
        ends, end = distinct_of(self.end_of[rows])
        costs = [self.ends[number] for number in ends.tolist()]
        head, tail, reduce, host = (
            np.array([getattr(each, name) for each in costs]) for name in ("head_s", "tail_s", "reduce_s", "host_s")
        )
        meets = np.array([each.meets for each in costs])
        # The end of a step before and after each chain, [chains, ends].
        final = np.where(chains.leaves < 0, tail[:, chains.last], reduce[:, chains.last, np.maximum(chains.leaves, 0)])
        fixed = (head[:, chains.first, chains.enters] + final).T
        fixed = np.where((chains.whole_stage[:, None] > 0) | meets, fixed, -np.inf)
        # All that depends on the work and the mesh, [chains, pairs]: there are far fewer pairs than rows.
        between = np.where(chains.leaves < 0, 1.0, 0.0)[:, None] * last_reduction[chains.last]
        for column in np.flatnonzero(chains.counts.any(axis=0)).tolist():
            between += chains.counts[:, column, None] * seconds[column]
        between = between[:, work_of_pair]
        between += chains.transfers[:, None] * self.transfers[pairs, 0]
        between += chains.exchanges[:, None] * self.transfers[pairs, 1]
        if chains.moves.any() and self.slowed.any():
            between += self._slowed_by_transfers(shape, pairs)
        chain = between[:, pair]
        chain += fixed[:, end]
        computing = chain.max(axis=0)
        # The host launches the last action after all others; what follows waits for that action.
        launched = _of_pieces(shape.piece_units, self.launched[works])
        launching = _totals(chains, launched) - launched[chains.finals]
        by_host = (launching + seconds[chains.finals])[:, work_of_pair][:, pair]
        by_host += np.where(meets, (host + tail).T, -np.inf)[:, end]
        meeting = np.array([each.meeting_s for each in costs])[end]
        other = by_host.max(axis=0)
        if self.split[works].any():
            lane = _totals(chains, _of_pieces(shape.piece_units, self.split[works]))[:, work_of_pair][:, pair]
            lane += np.where(meets, head[:, :, 0].T + tail.T, 0.0)[:, end]
            other = np.maximum(other, lane.max(axis=0))
        slowed = computing + self._hidden(shape, rows)
        return np.maximum(computing, other) + meeting, np.maximum(slowed, other) + meeting

    def _hidden(self, shape: _Shape, rows: Longs) -> Floats:
        """Estimates what computation loses next to calls of the step, and next to those of split parameters.

        Reductions run next to the last backwards, gathers next to the first forwards. With one stage, all but the last
        reduction and the first gather do; with several chunks on a stage, those of all chunks but one; else hardly any.
        """
        part = 1.0 if shape.stages == 1 else (shape.chunks - 1) / shape.chunks
        lost = np.zeros(len(rows))
        if part:
            reduced, gathered = self.hidden_s[:, int(shape.chunks > 1), self.end_of[rows]]
            lost += part * reduced * self.lost[1, self.work_of[rows], self.use_of[0, self.end_of[rows]]]
            lost += part * gathered * self.lost[0, self.work_of[rows], self.use_of[1, self.end_of[rows]]]
        works, work_at = distinct_of(self.work_of[rows])
        if not self.split[works].any():
            return lost
        costs = [self.works[number] for number in works.tolist()]
        split_lost = np.array([[s for piece in shape.pieces for s in work.split_lost_s(piece)] for work in costs])
        return np.asarray(lost + _totals(shape.chains, split_lost.T).max(axis=0)[work_at])

    def _slowed_by_transfers(self, shape: _Shape, pairs: Longs) -> Floats:
        """Returns how much longer the actions of chains take on their own stage next to transfers, `[chains, pairs]`.

        As in `simulation.overlap_cost`, transfers cover the computation of all microbatches of a stage evenly.
        """
        chains = shape.chains
        alone, longer, seen = (_of_pieces(shape.piece_units, each[pairs]) for each in self.slowed)
        under = _totals(chains, alone) + _totals(chains, longer)
        covered = chains.moves[:, None] * self.transfers[pairs, 0]
        share = np.minimum(np.divide(covered, under, out=np.zeros(under.shape), where=under > 0), 1.0)
        extra = np.zeros((len(chains.own), len(pairs)))
        for column in np.flatnonzero(chains.own.any(axis=0)).tolist():
            extra += chains.own[:, column, None] * seen[column]
        return np.asarray(extra * share[chains.through])


def _totals(chains: ActionChains, table: Floats) -> Floats:
    """Returns the sums of a table `[piece kinds · 4, works]` over all actions of stages, `[stages, works]`."""
    sums = np.zeros((len(chains.totals), table.shape[1]))
    for column in np.flatnonzero(chains.totals.any(axis=0)).tolist():
        sums += chains.totals[:, column, None] * table[column]
    return sums


def distinct_of(numbers: Longs) -> tuple[Longs, Longs]:
    """Returns distinct numbers, and the place of each row's among them."""
    examples, place = combined(numbers)
    return numbers[examples], place


def number_each(values: Iterable[object]) -> Longs:
    """Returns a number for each value that equal values have in common."""
    known: dict[object, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)


def _of_pieces(units: Longs, table: Floats) -> Floats:
    """Returns the sums of a table `[works, kinds, 4]` over the units of pieces, `[piece kinds · 4, works]`."""
    sums = np.zeros((len(units), KINDS, len(table)))
    for kind in np.flatnonzero(units.any(axis=0)).tolist():
        sums += units[:, kind, None, None] * table[:, kind].T
    return sums.reshape(-1, len(table))


def _simplest_shape(plan: Plan) -> Plan:
    """Returns a plan with the same order of actions and kinds of units, equal for as many plans as possible."""
    return Plan(
        gpus=plan.pp,
        pp=plan.pp,
        vpp=plan.vpp,
        schedule=plan.schedule,
        pp_overlap=plan.pp_overlap,
        recompute=plan.recompute if plan.recompute_layers is not None else "none",
        recompute_layers=plan.recompute_layers if plan.recompute == "full" else None,
        offload_layers=plan.offload_layers,
        routing=plan.routing,
        stack=plan.stack,
        **{name: getattr(plan, name) for name in DIVISION},
    )


def _simplest_work(plan: Plan) -> Plan:
    """Returns the plan with the same work of units and the fewest actions."""
    both_ends = _has_both_ends(plan.schedule)  # a head that is tied to an embedding on its stage has no parameters
    return replace(
        plan,
        gbs=_smallest_batch(plan),
        vpp=plan.vpp if both_ends else 1,
        schedule=plan.schedule if both_ends else None,
        pp_overlap=False,
        recompute_layers=None,
        offload_layers=0,
        grad_overlap=plan.grad_overlap if plan.zero in (None, 2, 3) else None,
        param_overlap=None,
        offload_optimizer=False,
        **_UNDIVIDED,
    )


def _has_both_ends(schedule: str | None) -> bool:
    """Returns whether a schedule has the first and the last piece on one stage."""
    return schedule is not None and resolve(schedule) in BOTH_ENDS


def _smallest_batch(plan: Plan) -> int | None:
    """Returns a batch that any schedule takes; None: a microbatch for each stage. DualPipe needs two."""
    return 2 * plan.gpus * plan.mbs // (plan.tp * plan.cp) if _has_both_ends(plan.schedule) else None


def _simplest_end(plan: Plan) -> Plan:
    """Returns the plan with the same end of the step and the fewest actions."""
    return replace(
        plan,
        gbs=_smallest_batch(replace(plan, mbs=1)),
        mbs=1,
        recompute="none",
        recompute_layers=None,
        recompute_modules=None,
        offload_layers=0,
        offload_modules=(),
        tp_overlap=False,
        moe_overlap=False,
        sequence_parallel=None,
        cp_comm="p2p",
        dispatcher="alltoall",
        pp_overlap=False,
    )
