"""Finds what the stages of a step hold, apart from the state between steps, for many sizes of units at once.

Where parameters are whole, a peak is the largest of a few sums of sizes of units (`memory_forms`). Where ranks split
them, gathers and reductions run on a lane of their own, and `step.memory` walks every stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.mesh import Mesh
from foretrace.program.columns import Category, Phase
from foretrace.search.planner.memory.memory_forms import MemoryForms, unit_memory
from foretrace.search.planner.shapes import StepShape, UnitKind, unit_works
from foretrace.step.memory import schedule_memory
from foretrace.step.sharding import ShardedUnits
from foretrace.step.spec import ChunkSpec, Compute, EndItem, RoleSpec, Sharding, StepSpec, Unit, Work
from foretrace.workload.setting import Setting
from foretrace.workload.step_spec import with_overlap, workspace_bytes


class StageColumn(IntEnum):
    """The numbers of a stage, or of a type of stages. `LOW` is the first of a column for each `Category`."""

    PEAK = 0
    """The most that activations, temporaries and gathered parameters take beyond the state."""
    NET = 1
    """By how much memory has changed when the schedule has ended."""
    PARAMETERS = 2
    EXPERTS = 3
    NARROW = 4
    NARROW_EXPERTS = 5
    LARGEST = 6
    """The bytes of the largest tensor."""
    BUFFERS = 7
    """Workspaces, received activations, and parameters that stay gathered."""
    UNIT_DENSE = 8
    """The most dense parameters of a unit, then those of experts, then both."""
    UNIT_EXPERTS = 9
    UNIT_BOTH = 10
    LOW = 11


WIDTH = StageColumn.LOW + len(Category)
_COUNTS = slice(StageColumn.PARAMETERS, StageColumn.NARROW_EXPERTS + 1)


class SplitParameters(NamedTuple):
    """How ranks split parameters, and how many units ahead these are gathered, forward and backward."""

    sharding: Sharding
    prefetch: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class UnitSizes:
    """The sizes of one unit of each kind, on one rank.

    Attributes:
        works: What the units do.
        sizes: As `MemoryForms.peaks` takes them, `[SIZES * kinds]`.
        peaks: As `MemoryForms.peaks` takes them, `[PEAKS * kinds + 1]`.
        counts: Parameters, experts' ones, and those of either in 8 bits or fewer, `[4, kinds]`.
        largest_bytes: The largest tensor of each, `[kinds]`.
        workspace_bytes: Workspaces of matrix products.
        output_bytes: The activation that a layer hands on.
    """

    works: tuple[Work, ...]
    sizes: Longs
    peaks: Longs
    counts: Longs
    largest_bytes: Longs
    workspace_bytes: int
    output_bytes: int

    @classmethod
    def of(
        cls, setting: Setting, kinds: Sequence[UnitKind], *, gradient_bytes: int, splits_backward: bool
    ) -> UnitSizes:
        """Returns the sizes of units under a setting.

        Args:
            setting: Any setting with the sizes of a microbatch that the units depend on.
            kinds: The kinds of units.
            gradient_bytes: The size of a gradient that the first backward allocates; 0 where it allocates none.
            splits_backward: Whether input and weight gradients may be actions of their own.
        """
        works = [with_overlap(work, setting) for work in unit_works(setting, kinds)]
        each = [
            unit_memory(work, offloaded=kind.offloaded, gradient_bytes=gradient_bytes, splits_backward=splits_backward)
            for work, kind in zip(works, kinds, strict=True)
        ]
        layer = next((work for work, kind in zip(works, kinds, strict=True) if kind.role == "layer"), None)
        return cls(
            works=tuple(works),
            sizes=np.array([sizes for sizes, _ in each], dtype=np.int64).T.ravel(),
            peaks=np.array([*(size for _, peaks in each for size in peaks), 0], dtype=np.int64),
            counts=np.array([_counts(work) for work in works], dtype=np.int64).T,
            largest_bytes=np.array([work.largest_bytes for work in works], dtype=np.int64),
            workspace_bytes=workspace_bytes(setting),
            output_bytes=layer.output_bytes if layer else 0,
        )


def summed_stages(shape: StepShape, forms: MemoryForms, plans: Sequence[UnitSizes]) -> Longs:
    """Returns what each type of stage holds for each plan where parameters are whole, `[plans, types, columns]`.

    Args:
        shape: The shape of all plans.
        forms: Its moments.
        plans: The sizes of units of each plan.
    """
    counts, kinds = forms.counts, len(shape.kinds)
    sizes = np.stack([units.sizes for units in plans])
    columns = np.zeros((len(plans), len(counts), WIDTH), dtype=np.int64)
    columns[:, :, StageColumn.PEAK] = forms.peaks(sizes, np.stack([units.peaks for units in plans]))
    columns[:, :, StageColumn.NET] = sizes[:, -kinds:] @ counts.T  # gradients that were not there before
    _add_units(columns, counts, plans, shape.schedule.stages)
    return columns


def walked_stages(shape: StepShape, units: UnitSizes, split: SplitParameters) -> Longs:
    """Returns what each stage holds where ranks split parameters, `[stages, columns]`; `PEAK` is an upper bound."""
    schedule = shape.schedule
    chunks: dict[tuple[int, ...], ChunkSpec] = {}
    for piece in shape.pieces:
        if piece not in chunks:
            chunks[piece] = ChunkSpec(tuple(_units(shape.kinds, units.works, piece)))
    # The update waits for all reductions.
    end = (EndItem(Compute("update", Phase.OPTIMIZER), after_reductions=True),)
    roles = tuple(
        RoleSpec(stage, str(stage), (), tuple((chunks[shape.pieces[piece]],) for piece in pieces), end)
        for stage, pieces in enumerate(schedule.piece.tolist())
    )
    spec = StepSpec("", Mesh(), schedule, roles, sharding=split.sharding, prefetch=split.prefetch)
    sharded = ShardedUnits(split.sharding, {})
    held = [sum(sharded.held_bytes(unit) for (chunk,) in role.chunks for unit in chunk.units) for role in roles]
    memory = schedule_memory(spec)
    columns = np.zeros((len(roles), WIDTH), dtype=np.int64)
    columns[:, StageColumn.PEAK] = [stage.peak_bytes for stage in memory]
    columns[:, StageColumn.NET] = [stage.net_bytes for stage in memory]
    columns[:, StageColumn.LOW :] = [stage.low for stage in memory]
    _add_units(columns[None], shape.counts[schedule.piece].sum(axis=1), [units], schedule.stages)
    columns[:, StageColumn.BUFFERS] += held
    return columns


def _add_units(columns: Longs, counts: Longs, plans: Sequence[UnitSizes], stages: int) -> None:
    """Adds what follows from the numbers of units of each kind, `counts[types, kinds]`, to `columns`."""
    parameters = np.stack([units.counts for units in plans])
    columns[:, :, _COUNTS] = (parameters @ counts.T).transpose(0, 2, 1)
    present = (counts > 0).astype(np.int64)
    largest = np.stack([units.largest_bytes for units in plans])
    for column, sizes in (
        (StageColumn.LARGEST, largest),
        (StageColumn.UNIT_DENSE, parameters[:, 0]),
        (StageColumn.UNIT_EXPERTS, parameters[:, 1]),
        (StageColumn.UNIT_BOTH, parameters[:, 0] + parameters[:, 1]),
    ):
        columns[:, :, column] = (sizes[:, None] * present).max(axis=2)
    # Activations and gradients that a stage has received and not yet used.
    received = [2 * units.output_bytes if stages > 1 else 0 for units in plans]
    workspaces = [units.workspace_bytes for units in plans]
    columns[:, :, StageColumn.BUFFERS] = (np.array(received) + np.array(workspaces))[:, None]


def _units(kinds: Sequence[UnitKind], works: Sequence[Work], piece: Sequence[int]) -> list[Unit]:
    """Returns the units of a piece. Only ends of the model have no number as a layer."""
    is_layer = [kinds[number].role in ("layer", "mtp") for number in piece]
    layers = np.cumsum(is_layer) - 1
    return [
        Unit(works[number], int(layer) if inside else -1, kinds[number].offloaded and works[number].saved_bytes > 0)
        for number, layer, inside in zip(piece, layers, is_layer, strict=True)
    ]


def _counts(work: Work) -> tuple[int, int, int, int]:
    return work.parameters, work.expert_parameters, work.narrow_parameters, work.narrow_expert_parameters
