"""Finds the memory of millions of plans, to the byte what `static_memory` says of each.

Everything that memory depends on has few values. The moments of a schedule that can have the peak depend on its shape,
the sizes of units on the sizes of a microbatch (`memory_stages`), the state between steps on the software and on the
ranks that split it, and what a process holds besides on the mesh and a few fields more. Each is found once for its own
values, and the rest is arithmetic on columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, cast

import numpy as np

from foretrace.basics.arrays import Longs, Mask, ranges, stable_order
from foretrace.cost.machine import Machine
from foretrace.models.model import Model
from foretrace.program.columns import Category
from foretrace.readings.answer.memory_fit import reserved_gaps
from foretrace.search.planner.memory.memory_forms import FormKind, MemoryForms, steady_microbatches
from foretrace.search.planner.memory.memory_stages import (
    SplitParameters,
    StageColumn,
    UnitSizes,
    summed_stages,
    walked_stages,
)
from foretrace.search.planner.plan_table import PlanTable, combined
from foretrace.search.planner.shapes import StepShape, UnitKind
from foretrace.simulation.job_memory import MESH_FIELDS, OUTSIDE_SOURCES, OutsideSource
from foretrace.step.optimizer import Adam, Share
from foretrace.step.sharding import GRADIENT_BUFFERS
from foretrace.workload.plan import Plan
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle_allowed
from foretrace.workload.stack import Stack
from foretrace.workload.step_spec import keeps_gradients, optimizer_of, sharding_of

_BATCH: Final = ("gpus", "tp", "cp", "pp", "mbs", "gbs")
"""The fields of a plan that the number of microbatches depends on."""
_RECOMPUTE: Final = ("recompute", "recompute_modules")
_SHAPE: Final = (
    *("schedule", "pp", "vpp", "stage_layers", "layout", "account_for", "first_stage_layers", "last_stage_layers"),
    *(*_RECOMPUTE, "recompute_layers", "offload_layers", "routing"),
)
"""Those that the shape of a step depends on, apart from the number of microbatches."""
_STATE: Final = (
    *("stack", "zero", "precision", "grad_dtype", "master_dtype", "moment_dtype", "fp8_params", "offload_optimizer"),
    *("reshard", "prefetch", "offload_layers", "offload_modules"),
)
"""Those that the state between steps depends on, apart from the ranks, and how parameters and activations move."""
_WORK: Final = (
    *("mbs", "seq_len", "tp", "sequence_parallel", "cp", "cp_comm", "ep", "etp", "precision", "recompute"),
    *("recompute_modules", "fp8_activation_input", "tp_overlap", "moe_overlap", "cuda_graphs", "offload_modules"),
    *("documents", "routing", "dispatcher"),
)
"""Those that the sizes of units depend on, apart from the software."""
_FIELDS: Final = tuple(
    dict.fromkeys((*_SHAPE, *_STATE, *_WORK, *MESH_FIELDS, *(name for each in OUTSIDE_SOURCES for name in each.fields)))
)
"""All that memory depends on, apart from the number of microbatches."""

_COUNTS: Final = (
    StageColumn.PARAMETERS,
    StageColumn.EXPERTS,
    StageColumn.NARROW,
    StageColumn.NARROW_EXPERTS,
)
_LARGEST_UNITS: Final = {
    (True, False): StageColumn.UNIT_DENSE,
    (False, True): StageColumn.UNIT_EXPERTS,
    (True, True): StageColumn.UNIT_BOTH,
}
"""The column of the largest unit, by whether dense parameters and those of experts are split."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryColumns:
    """The memory of plans, one row each, as `MemoryFit` has it.

    Attributes:
        peak_bytes: The most that any rank allocates.
        needed_bytes: The memory that a GPU usually needs.
        fits: Whether the plan may run: False only where not even the lowest estimate fits.
        exact: Whether a run reaches the peak; otherwise it stays at or below it (ZeRO-3).
    """

    peak_bytes: Longs
    needed_bytes: Longs
    fits: Mask
    exact: Mask


_FindBytes = Callable[[Longs, Longs, "Sequence[_State]"], tuple[Longs, Longs, Longs]]

_SIMPLEST: Final[dict[str, Any]] = {
    "mbs": 1,
    "gbs": None,
    "recompute": "none",
    "recompute_layers": None,
    "recompute_modules": None,
    "offload_layers": 0,
    "offload_modules": (),
    "sequence_parallel": None,
    "cp_comm": "p2p",
    "tp_overlap": False,
    "moe_overlap": False,
    "pp_overlap": False,
    "dispatcher": "alltoall",
}
"""Fields that parameters, gradients and states do not depend on."""


class _Software(NamedTuple):
    """The part of the software that the units of a plan depend on."""

    stack: Stack
    gradient_bytes: int
    """The size of a gradient that the first backward of a step allocates; 0 where it allocates none."""


_Movement = FormKind | SplitParameters
"""How activations and parameters come and go: as a sum of sizes, or as ranks that split parameters move them."""


class _State(NamedTuple):
    """The state between steps, and how activations and parameters move."""

    optimizer: Adam
    keeps_gradients: bool
    buffers_gradients: bool
    """Whether whole gradients of units wait in buffers for their reduction (ZeRO-2)."""
    expandable: bool
    movement: _Movement


class _Shape(NamedTuple):
    step: StepShape
    has_head_table: bool
    splits_backward: bool


class MemoryTable:
    """Finds the memory of plans of a model on a machine, and keeps what it has found for the next ones.

    The plans are known to be allowed (`workload.constraints`).
    """

    def __init__(self, model: Model, machine: Machine, stack: Stack | None = None) -> None:
        """Prepares for plans of a model.

        Args:
            model: The model.
            machine: The machine.
            stack: The software, where no field of the plans names it.
        """
        self.machine = machine
        self._sizes = PlanSizes.of(model, Plan(gpus=1), stack)
        self._capacity_bytes = int(machine.needed_cluster().gpu.memory_bytes)
        self._known: dict[Hashable, Any] = {}
        """Results of `_find`, by their purpose and the values that they depend on."""
        self._shapes: list[_Shape] = []
        self._units: list[UnitSizes] = []
        self._states: dict[_State, int] = {}
        self._software: dict[_Software, int] = {}
        self._kinds: dict[tuple[UnitKind, ...], int] = {}
        self._movements: dict[_Movement, int] = {}
        self._stages: dict[tuple[int, int, int], Longs] = {}

    def needs(self, table: PlanTable) -> MemoryColumns:
        """Returns the memory of every plan of a table."""
        if not len(table):
            return MemoryColumns(*np.zeros((2, 0), dtype=np.int64), *np.zeros((2, 0), dtype=bool))
        microbatches = self._microbatches(table)
        examples, number = combined(table.keys(*_FIELDS)[1], microbatches)
        rows = _Rows(self._sizes, table.select(examples), microbatches[examples])
        peak_bytes, usual_bytes, low_bytes, exact = self._allocated(rows)
        outside_bytes, unsure_bytes = self._outside(rows)
        needed_bytes = usual_bytes + outside_bytes
        fits = low_bytes + outside_bytes - unsure_bytes <= self._capacity_bytes
        return MemoryColumns(peak_bytes[number], needed_bytes[number], fits[number], exact[number])

    def held_bytes(self, table: PlanTable) -> Longs:
        """Returns what each plan at least holds all the time: parameters, gradients and states of its largest stage.

        They do not depend on microbatches, recomputation or overlap, so that far fewer plans are told apart than by
        `needs`. A plan that holds more than there is does not fit, whatever else it needs.
        """
        if not len(table):
            return np.zeros(0, dtype=np.int64)
        simple = table.fixed(**_SIMPLEST)
        microbatches = 2 * simple.column("pp")  # what any schedule takes: DualPipe needs two for each stage
        examples, number = combined(simple.keys(*_FIELDS)[1], microbatches)
        rows = _Rows(self._sizes, simple.select(examples), microbatches[examples])
        return self._allocated(rows, _held)[0][number]

    def _microbatches(self, table: PlanTable) -> Longs:
        """Returns the smallest number of microbatches with which each plan needs the same memory, [rows]."""
        batches, batch = table.keys(*_BATCH)
        counts = [self._sizes.with_plan(table.plan(row)).microbatches for row in batches.tolist()]
        schedules, schedule = table.keys("schedule", "pp", "vpp", "layout")
        limits = []
        for row in schedules.tolist():
            sizes = self._sizes.with_plan(table.plan(row))
            name = sizes.schedule if sizes.plan.pp > 1 else "1f1b"
            limits.append(steady_microbatches(name, sizes.plan.pp, max(counts)))
        microbatches: Longs = np.minimum(np.array(counts)[batch], np.array(limits)[schedule])
        return microbatches

    def _allocated(self, rows: _Rows, find: _FindBytes | None = None) -> tuple[Longs, Longs, Longs, Mask]:
        """Returns the peak of what is allocated, what is usually and at least reserved, and whether it is exact.

        `find` finds the three for stages; by default `_reserved`.
        """
        shape, state = self._shape_numbers(rows), self._state_numbers(rows)
        states = list(self._states)
        movement = np.array([self._movements[each.movement] for each in states])[state]
        units = self._unit_numbers(rows, shape)
        examples, pair = combined(shape, units, movement)
        stages = self._stages_of(examples, shape, units, movement)
        lengths = np.array([len(each) for each in stages])
        starts = np.cumsum(lengths) - lengths
        examples, number = combined(pair, state)
        own = pair[examples]
        entries = np.concatenate(stages)[ranges(starts[own], lengths[own])]
        peak, usual, low = (find or _reserved)(entries, np.repeat(state[examples], lengths[own]), states)
        begins = np.cumsum(lengths[own]) - lengths[own]
        most = [np.maximum.reduceat(column, begins)[number] for column in (peak, usual, low)]
        exact = np.array([isinstance(each.movement, FormKind) for each in states])[state]
        return most[0], most[1], most[2], exact

    def _shape_numbers(self, rows: _Rows) -> Longs:
        same = rows.table.values_of("recompute_layers") == (None,)  # then all layers of a plan do the same
        fields = tuple(name for name in _SHAPE if not (same and name in _RECOMPUTE))
        examples, number = combined(rows.table.keys(*fields)[1], rows.microbatches)
        numbers = [
            self._find(("shape", int(rows.microbatches[row]), rows.values(row, fields)), self._shape, rows, row)
            for row in examples.tolist()
        ]
        return np.array(numbers)[number]

    def _shape(self, rows: _Rows, row: int) -> int:
        setting = rows.setting(row)
        step = StepShape.of(setting)
        key = (setting.schedule, setting.plan.pp, setting.microbatches, setting.has_head_table, step.kinds, step.pieces)
        return cast(int, self._find(("same shape", *key), self._new_shape, step, setting.has_head_table))

    def _new_shape(self, step: StepShape, has_head_table: bool) -> int:
        self._kinds.setdefault(step.kinds, len(self._kinds))
        self._shapes.append(_Shape(step, has_head_table, step.schedule.splits_backward))
        return len(self._shapes) - 1

    def _state_numbers(self, rows: _Rows) -> Longs:
        examples, number = rows.table.keys(*MESH_FIELDS, *_STATE)
        numbers = [
            self._find(("state", rows.values(row, (*MESH_FIELDS, *_STATE))), self._state, rows, row)
            for row in examples.tolist()
        ]
        return np.array(numbers)[number]

    def _state(self, rows: _Rows, row: int) -> int:
        state = cast(_State, self._find(("software", rows.values(row, _STATE)), _state_of, rows, row))
        sizes = rows.sizes(row)
        optimizer = replace(state.optimizer, ranks=sizes.shard, expert_ranks=sizes.mesh.edp)
        state = state._replace(optimizer=optimizer)
        if isinstance(state.movement, SplitParameters):
            # Other memory depends on whether several ranks split parameters, and not on how many do.
            sharding = sharding_of(rows.setting(row))
            assert sharding is not None
            ranks, expert_ranks = min(sharding.ranks, 2), min(sharding.expert_ranks, 2)
            sharding = replace(sharding, ranks=ranks, expert_ranks=expert_ranks, replicas=1)
            state = state._replace(movement=state.movement._replace(sharding=sharding))
        self._movements.setdefault(state.movement, len(self._movements))
        return self._states.setdefault(state, len(self._states))

    def _unit_numbers(self, rows: _Rows, shape: Longs) -> Longs:
        examples, number = rows.table.keys(*_STATE)
        software = [
            self._find(("units' software", rows.values(row, _STATE)), self._software_number, rows, row)
            for row in examples.tolist()
        ]
        kinds = np.array([self._kinds[each.step.kinds] for each in self._shapes])[shape]
        flags = np.array([2 * each.has_head_table + each.splits_backward for each in self._shapes])[shape]
        columns = (rows.table.keys(*_WORK)[1], np.array(software)[number], kinds, flags)
        examples, number = combined(*columns)
        numbers = [
            self._find(
                ("units", rows.values(row, _WORK), *(int(column[row]) for column in columns[1:])),
                self._new_units,
                rows,
                row,
                self._shapes[shape[row]],
            )
            for row in examples.tolist()
        ]
        return np.array(numbers)[number]

    def _software_number(self, rows: _Rows, row: int) -> int:
        setting = rows.setting(row)
        gradient_bytes = 0 if keeps_gradients(setting) else optimizer_of(setting).gradient_bytes
        return self._software.setdefault(_Software(setting.stack, gradient_bytes), len(self._software))

    def _new_units(self, rows: _Rows, row: int, shape: _Shape) -> int:
        setting = rows.setting(row)
        gradient_bytes = 0 if keeps_gradients(setting) else optimizer_of(setting).gradient_bytes
        units = UnitSizes.of(
            setting, shape.step.kinds, gradient_bytes=gradient_bytes, splits_backward=shape.splits_backward
        )
        self._units.append(units)
        return len(self._units) - 1

    def _stages_of(self, examples: Longs, shape: Longs, units: Longs, movement: Longs) -> list[Longs]:
        """Returns what the stages of each example hold, each `[types, columns]`, for rows by number."""
        keys = [(int(shape[row]), int(units[row]), int(movement[row])) for row in examples.tolist()]
        movements = list(self._movements)
        groups: dict[tuple[int, int], list[int]] = {}
        for of_shape, unit, number in keys:
            if (of_shape, unit, number) not in self._stages:
                groups.setdefault((of_shape, number), []).append(unit)
        for (of_shape, number), missing in groups.items():
            step, how = self._shapes[of_shape].step, movements[number]
            sizes = [self._units[unit] for unit in missing]
            if isinstance(how, FormKind):
                forms = self._find(("forms", of_shape, how), MemoryForms.of, step, how)
                columns = list(summed_stages(step, forms, sizes))
            else:
                columns = [walked_stages(step, each, how) for each in sizes]
            self._stages |= {(of_shape, unit, number): each for unit, each in zip(missing, columns, strict=True)}
        return [self._stages[key] for key in keys]

    def _outside(self, rows: _Rows) -> tuple[Longs, Longs]:
        """Returns what processes hold outside the allocator, and how much of it no measurement supports."""
        total = np.zeros((len(rows.table), 2), dtype=np.int64)
        for at, source in enumerate(OUTSIDE_SOURCES):
            fields = (*MESH_FIELDS, *source.fields)
            examples, number = rows.table.keys(*fields)
            sizes = [
                self._find(("outside", at, rows.values(row, fields)), self._outside_of, source, rows, row)
                for row in examples.tolist()
            ]
            total += np.array(sizes, dtype=np.int64)[number]
        return total[:, 0], total[:, 1]

    def _outside_of(self, source: OutsideSource, rows: _Rows, row: int) -> tuple[int, int]:
        parts = list(source.parts(rows.setting(row), self.machine))
        return sum(part.bytes for part in parts), sum(part.unsure_bytes for part in parts)

    def _find(self, key: Hashable, find: Callable[..., Any], *arguments: Any) -> Any:
        """Returns what was found for a key, or finds it."""
        if key not in self._known:
            self._known[key] = find(*arguments)
        return self._known[key]


class _Rows:
    """Distinct plans, each with the fewest microbatches that need the same memory."""

    def __init__(self, sizes: PlanSizes, table: PlanTable, microbatches: Longs) -> None:
        self.table, self.microbatches = table, microbatches
        self._any = sizes
        self._settings: dict[int, Setting] = {}

    def values(self, row: int, fields: Sequence[str]) -> tuple[Any, ...]:
        """Returns the values of some fields of a plan."""
        codes, table = self.table.codes, self.table
        return tuple(
            table.values[field][codes[field][row]] if field in codes else getattr(table.base, field) for field in fields
        )

    def sizes(self, row: int) -> PlanSizes:
        """Returns the sizes of a plan."""
        return self._any.with_plan(self.table.plan(row))

    def setting(self, row: int) -> Setting:
        """Returns the setting of a plan."""
        if row not in self._settings:
            sizes = self.sizes(row)
            gbs = sizes.plan.mbs * sizes.dp * int(self.microbatches[row])
            self._settings[row] = settle_allowed(sizes, replace(sizes.plan, gbs=gbs))
        return self._settings[row]


def _state_of(rows: _Rows, row: int) -> _State:
    """Returns the state of a plan, whatever the ranks that split it."""
    setting = rows.setting(row)
    plan, optimizer, splits = setting.plan, optimizer_of(setting), setting.splits_parameters
    keeps = keeps_gradients(setting)
    backward = plan.prefetch if setting.stack.backward_prefetch else 0
    movement: _Movement = FormKind(backward if plan.offload_layers or plan.offload_modules else None, not keeps)
    if splits:
        sharding = sharding_of(setting)
        assert sharding is not None
        movement = SplitParameters(sharding, (plan.prefetch, backward))
    buffers = setting.zero == 2 and not splits
    return _State(optimizer, keeps, buffers, setting.stack.expandable_segments, movement)


def _reserved(entries: Longs, state: Longs, states: Sequence[_State]) -> tuple[Longs, Longs, Longs]:
    """Returns the peak of each entry, and what is usually and at least reserved for it.

    Args:
        entries: What types of stages hold, `[entries, columns]`.
        state: The number of the state of each.
        states: All states.
    """
    result = np.empty((3, len(entries)), dtype=np.int64)
    order = stable_order(state)
    for rows in np.split(order, np.flatnonzero(np.diff(state[order])) + 1):
        here = states[int(state[rows[0]])]
        columns = entries[rows].T
        peak = _peak_bytes(columns, here)
        low, usual, _ = reserved_gaps(peak, columns[StageColumn.LARGEST], expandable=here.expandable)
        result[:, rows] = peak, peak + usual, peak + low
    return result[0], result[1], result[2]


def _held(entries: Longs, state: Longs, states: Sequence[_State]) -> tuple[Longs, Longs, Longs]:
    """Returns the parameters, gradients and states of each entry, in place of what `_reserved` returns."""
    held = np.empty(len(entries), dtype=np.int64)
    order = stable_order(state)
    for rows in np.split(order, np.flatnonzero(np.diff(state[order])) + 1):
        here = states[int(state[rows[0]])]
        share = _share(entries[rows].T, here)
        gradients = here.optimizer.held_gradient_bytes(share) if here.keeps_gradients else 0
        held[rows] = here.optimizer.held_weight_bytes(share) + gradients + here.optimizer.held_state_bytes(share)
    return held, held, held


def _share(columns: Longs, state: _State) -> Share:
    """Returns the parameters of stages; `Adam` computes with columns as with numbers."""
    dense, experts, narrow, narrow_experts = (cast(int, columns[at]) for at in _COUNTS)
    return state.optimizer.share(dense, experts, (narrow, narrow_experts))


def _peak_bytes(columns: Longs, state: _State) -> Longs:
    """Returns the peaks of stages with a state, given their columns, `[columns, stages]`."""
    optimizer, share = state.optimizer, _share(columns, state)
    buffers = columns[StageColumn.BUFFERS]
    if state.buffers_gradients:
        divided = optimizer.ranks > 1, optimizer.expert_ranks > 1
        if any(divided):
            largest = columns[_LARGEST_UNITS[divided]]
            waiting = np.minimum(GRADIENT_BUFFERS * largest, cast(Longs, share.total - share.owned))
            buffers = buffers + optimizer.gradient_bytes * waiting
    resident = {
        Category.WEIGHTS: optimizer.held_weight_bytes(share),
        Category.GRADIENTS: optimizer.held_gradient_bytes(share) if state.keeps_gradients else 0,
        Category.OPTIMIZER: optimizer.held_state_bytes(share),
        Category.BUFFERS: buffers,
    }
    # The end of a step copies gradients when all activations are gone.
    step = np.maximum(columns[StageColumn.PEAK], columns[StageColumn.NET] + optimizer.copied_gradient_bytes(share))
    total: Longs = step + sum(resident.values())
    for category in Category:
        low = columns[StageColumn.LOW + category]
        if (low < 0).any():  # what is freed before it is taken was held from before
            total = total + np.maximum(-(resident.get(category, 0) + low), 0)
    return total
