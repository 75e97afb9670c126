"""Bounds and estimates the step of many plans at once, in closed form.

Everything that a step costs depends on a few fields of its plan at a time: the work of a layer on the sizes of one
rank, the order of actions on the schedule, the end of the step on how parameters are divided. Each is found once for
each combination of those fields (`ClosedForm`), and plans are then evaluated as columns of numbers. Arithmetic on
columns uses only sums, products and maxima, so that a plan has the same bits in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.basics.collector import collector_paused
from foretrace.cost.machine import Machine
from foretrace.cost.unit_costs import MeshPrices, UnitCosts, UnitPricer
from foretrace.models.model import Model
from foretrace.program.columns import Collective
from foretrace.schedules import ActionKind
from foretrace.schedules.pipeline import BATCHED
from foretrace.search.planner.ends import EndCosts, end_costs
from foretrace.search.planner.paths import KINDS, Chains, has_chains
from foretrace.search.planner.plan_table import PlanTable
from foretrace.search.planner.shapes import StepShape, UnitKind, unit_works
from foretrace.step.sharding import ShardedUnits
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import launches_of, sharding_of, step_spec

DIVISION: Final = ("stage_layers", "layout", "account_for", "first_stage_layers", "last_stage_layers")
"""Fields that divide the layers among pieces."""

MESH: Final = ("gpus", "tp", "cp", "pp", "ep", "etp", "shard", "rank_order")

SHAPE: Final = (
    *("pp", "vpp", "schedule", "recompute", "recompute_layers", "offload_layers", "pp_overlap", "routing", "zero"),
    *("stack", "gpus", "tp", "cp", "mbs", "gbs"),
    *DIVISION,
)
"""Fields that the order of actions and the kinds of units depend on; the last of them by the microbatches."""

WORK: Final = (
    *("stack", "mbs", "seq_len", "tp", "sequence_parallel", "cp", "cp_comm", "ep", "etp", "zero", "precision"),
    *("recompute", "recompute_modules", "offload_modules", "dispatcher", "routing", "documents", "tp_overlap"),
    *("moe_overlap", "cuda_graphs", "grad_dtype", "master_dtype", "moment_dtype", "fp8_params"),
    *("fp8_activation_input", "gpus", "pp", "shard", "rank_order"),
)
"""Fields that the seconds of units depend on; the last of them by the places of groups."""

END: Final = (
    *MESH,
    *("vpp", "schedule", "zero", "stack", "precision", "grad_overlap", "param_overlap", "offload_optimizer"),
    *("grad_dtype", "master_dtype", "moment_dtype", "fp8_params", "cuda_graphs"),
    *DIVISION,
)
"""Fields that the end of a step depends on."""

_UNDIVIDED: Final[dict[str, Any]] = dict.fromkeys(DIVISION)

MAX_LOST: Final = 0.75
"""As in `simulation.overlap_cost`."""


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """The step of each plan.

    Attributes:
        bound_s: No simulation is faster; 0 where there is no bound.
        estimate_s: The expected result of a simulation.
        meets: Whether all ranks meet once a step, so that the bound counts the pipeline's fill and drain.
    """

    bound_s: Floats
    estimate_s: Floats
    meets: Mask


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A shape with its chains, and the kinds of its pieces as counts of the search's kinds of units."""

    chains: Chains | None
    piece_units: Longs
    """Units of each of the search's kinds in each kind of piece, `[piece kinds, kinds]`."""
    microbatch_chunks: int
    """Microbatches times chunks of a stage."""
    batched: bool
    stages: int


@dataclass(frozen=True, slots=True, eq=False)
class _Transfers:
    """Seconds of a transfer and of an exchange between stages, and the pace that a layer loses next to transfers."""

    transfer_s: float
    exchange_s: float
    lost: tuple[float, float]


class ClosedForm:
    """Bounds and estimates plans of one model on one machine; what it has worked out serves all further plans."""

    def __init__(self, model: Model, machine: Machine) -> None:
        self.model, self.machine = model, machine
        self._kinds: dict[UnitKind, int] = {}
        self._pricers: dict[int, UnitPricer] = {}
        self._works: dict[Plan, _WorkCosts] = {}
        self._shapes: dict[Plan, _Shape] = {}
        self._ends: dict[Plan, EndCosts] = {}

    def bounds(self, table: PlanTable) -> Bounds:
        """Bounds and estimates all plans of a table, which break no constraint."""
        with collector_paused():
            return _Evaluation(self, table).bounds()

    def prices(self, setting: Setting) -> MeshPrices:
        """Returns the prices of a setting's calls and kernels."""
        world = setting.mesh.world
        if world not in self._pricers:
            self._pricers[world] = UnitPricer(self.machine, world)
        return self._pricers[world].on(setting.mesh)

    def shape(self, plan: Plan) -> _Shape:
        """Returns the structure of a plan's step."""
        if plan not in self._shapes:
            setting = settle(self.model, plan)
            shape = StepShape.of(setting)
            numbers = [self._kinds.setdefault(kind, len(self._kinds)) for kind in shape.kinds]
            pieces, kinds_of_pieces = np.unique(shape.counts, axis=0, return_inverse=True)
            units = np.zeros((len(pieces), max(numbers) + 1), dtype=np.int64)
            units[:, numbers] = pieces
            batched = setting.schedule in BATCHED and not plan.pp_overlap
            schedule = shape.schedule
            chains = Chains.of(shape, kinds_of_pieces.ravel(), batched=batched) if has_chains(schedule) else None
            self._shapes[plan] = _Shape(
                chains, units, schedule.microbatches * schedule.chunks, batched, schedule.stages
            )
        return self._shapes[plan]

    def work(self, plan: Plan) -> _WorkCosts:
        """Returns the costs of units under a plan, which is the simplest with the same ones."""
        if plan not in self._works:
            self._works[plan] = _WorkCosts(self, settle(self.model, plan))
        return self._works[plan]

    def end(self, plan: Plan, stages: tuple[int, ...]) -> EndCosts:
        """Returns the costs of the end of a step under a plan, which is the simplest with the same ones."""
        if plan not in self._ends:
            setting = settle(self.model, plan)
            self._ends[plan] = end_costs(step_spec(setting), self.prices(setting), stages)
        return self._ends[plan]

    @property
    def kinds(self) -> list[UnitKind]:
        """The kinds of units that shapes have so far."""
        return list(self._kinds)


class _WorkCosts:
    """The costs of units of one setting, each kind when it is first asked for."""

    def __init__(self, owner: ClosedForm, setting: Setting) -> None:
        self.setting, self.prices = setting, owner.prices(setting)
        self.launches = launches_of(setting)
        sharding = sharding_of(setting)
        self.sharded = None if sharding is None else ShardedUnits(sharding, {})
        self._units: dict[UnitKind, UnitCosts] = {}

    def learn(self, kinds: list[UnitKind]) -> None:
        """Prices kinds that are not known yet."""
        unknown = [kind for kind in kinds if kind not in self._units]
        works = unit_works(self.setting, unknown)
        self.prices.learn(works, self.sharded)
        for kind, work in zip(unknown, works, strict=True):
            self._units[kind] = self.prices.unit_costs(work, self.launches, self.sharded)

    def unit(self, kind: UnitKind) -> UnitCosts:
        """Returns the costs of a kind that has been learned."""
        return self._units[kind]

    def transfers(self) -> _Transfers:
        """Returns what transfers between stages cost."""
        if self.setting.plan.pp == 1:
            return _Transfers(0.0, 0.0, (0.0, 0.0))
        size = unit_works(self.setting, [_body(self._units)])[0].output_bytes
        use, body = self.prices.transfer_use(size), self._units[_body(self._units)]
        lost = self.prices.pricer.lost_share
        return _Transfers(
            self.prices.transfer_s(size),
            self.prices.transfer_s(size, Collective.EXCHANGE),
            (lost(body.kernels[ActionKind.FORWARD], use), lost(body.kernels[ActionKind.BACKWARD], use)),
        )


def _body(units: dict[UnitKind, UnitCosts]) -> UnitKind:
    """Returns the kind of a layer, of which a model has most."""
    return max((kind for kind in units if kind.role == "layer"), key=lambda kind: kind.number)


class _Evaluation:
    """Evaluates one table."""

    def __init__(self, owner: ClosedForm, table: PlanTable) -> None:
        self.owner, self.table = owner, table
        self.shape_rows, self.shape_of = table.keys(*SHAPE)
        self.shapes = [owner.shape(_with_few(table.plan(row), None)) for row in self.shape_rows.tolist()]
        self._price_units()
        self._price_ends()

    def _price_units(self) -> None:
        """Fills the tables of units: seconds and launches `[works, kinds, 4]`, transfers `[works, 4]`."""
        owner, table = self.owner, self.table
        rows, self.work_of = table.keys(*WORK)
        kinds = owner.kinds
        works = [owner.work(_simplest_work(table.plan(row))) for row in rows.tolist()]
        self.seconds = np.zeros((len(rows), len(kinds), KINDS))
        self.launched = np.zeros((len(rows), len(kinds), KINDS))
        self.transfers = np.zeros((len(rows), 4))
        for number, work in enumerate(works):
            work.learn(kinds)
            for at, kind in enumerate(kinds):
                costs = work.unit(kind)
                self.seconds[number, at] = costs.seconds
                if work.launches is not None:
                    self.launched[number, at] = np.array(costs.launches) * work.launches.seconds
            moved = work.transfers()
            self.transfers[number] = moved.transfer_s, moved.exchange_s, *moved.lost

    def _price_ends(self) -> None:
        owner, table = self.owner, self.table
        rows, self.end_of = table.keys(*END)
        shape_of_row = self.shape_of[rows].tolist()
        self.ends = []
        for row, number in zip(rows.tolist(), shape_of_row, strict=True):
            chains = self.shapes[number].chains
            stages = chains.stages if chains is not None else (0,)
            self.ends.append(owner.end(_simplest_end(table.plan(row)), stages))

    def bounds(self) -> Bounds:
        """Evaluates all rows, those of one shape at once."""
        count = len(self.table)
        bound, estimate, meets = np.zeros(count), np.zeros(count), np.zeros(count, dtype=bool)
        order = np.argsort(self.shape_of, kind="stable")
        starts = np.searchsorted(self.shape_of[order], np.arange(len(self.shapes) + 1))
        for number, shape in enumerate(self.shapes):
            rows = order[starts[number] : starts[number + 1]]
            if len(rows):
                bound[rows], estimate[rows], meets[rows] = self._of_shape(shape, rows)
        return Bounds(bound, estimate, meets)

    def _of_shape(self, shape: _Shape, rows: Longs) -> tuple[Floats, Floats, Mask]:
        work, chains = self.work_of[rows], shape.chains
        seconds = _of_pieces(shape.piece_units, self.seconds, work)
        if chains is None:
            raise NotImplementedError
        used, end_at = np.unique(self.end_of[rows], return_inverse=True)
        ends = [self.ends[number] for number in used.tolist()]
        head, tail, reduce, host = (
            np.array([getattr(end, name) for end in ends]) for name in ("head_s", "tail_s", "reduce_s", "host_s")
        )
        meeting, meets = np.array([end.meeting_s for end in ends]), np.array([end.meets for end in ends])
        transfer, exchange = self.transfers[work, 0], self.transfers[work, 1]
        bound = np.zeros(len(rows))
        for at in range(len(chains.counts)):
            chain = transfer * float(chains.transfers[at]) + exchange * float(chains.exchanges[at])
            for column in np.flatnonzero(chains.counts[at]).tolist():
                chain += seconds[column] * float(chains.counts[at, column])
            leaves, last = int(chains.leaves[at]), int(chains.last[at])
            ending = tail[:, last] if leaves < 0 else reduce[:, last, leaves]
            fixed = head[:, int(chains.first[at]), int(chains.enters[at])] + ending
            chain += fixed[end_at]
            bound = np.maximum(bound, chain if chains.whole_stage[at] else np.where(meets[end_at], chain, 0.0))
        launched = _of_pieces(shape.piece_units, self.launched, work)
        for place, total in enumerate(chains.totals):
            final = int(chains.finals[place])
            launching = host[:, place][end_at] - launched[final] + seconds[final] + tail[:, place][end_at]
            for column in np.flatnonzero(total).tolist():
                launching += launched[column] * float(total[column])
            bound = np.maximum(bound, np.where(meets[end_at], launching, 0.0))
        bound = bound + meeting[end_at]
        return bound, bound + self._overlap(shape, rows, seconds), meets[end_at]

    def _overlap(self, shape: _Shape, rows: Longs, seconds: list[Floats]) -> Floats:
        """Estimates what computation loses next to communication."""
        work = self.work_of[rows]
        transfer, lost_forward, lost_backward = (self.transfers[work, column] for column in (0, 2, 3))
        extra = np.zeros(len(rows))
        if shape.stages > 1 and not shape.batched:
            # Activations come and go forward, gradients backward.
            extra += 2 * float(shape.microbatch_chunks) * transfer * (lost_forward + lost_backward)
        return extra


def _of_pieces(units: Longs, table: Floats, work: Longs) -> list[Floats]:
    """Returns the sums of a table `[works, kinds, 4]` over the units of each kind of piece, by piece and action."""
    columns = []
    for piece in units:
        for action in range(KINDS):
            total = np.zeros(len(table))
            for kind in np.flatnonzero(piece).tolist():
                total += table[:, kind, action] * float(piece[kind])
            columns.append(total[work])
    return columns


def _with_few(plan: Plan, gbs: int | None) -> Plan:
    del gbs
    return plan


def _simplest_work(plan: Plan) -> Plan:
    """Returns the plan with the same work of units and the fewest actions."""
    return replace(
        plan,
        gbs=None,
        vpp=1,
        schedule=None,
        pp_overlap=False,
        recompute_layers=None,
        offload_layers=0,
        grad_overlap=None,
        param_overlap=None,
        offload_optimizer=False,
        **_UNDIVIDED,
    )


def _simplest_end(plan: Plan) -> Plan:
    """Returns the plan with the same end of the step and the fewest actions."""
    return replace(
        plan,
        gbs=None,
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
