"""Describes the structure of a step apart from its sizes: which kinds of units each piece of a pipeline runs.

Plans that differ in tensor parallelism or in the size of a microbatch have the same structure and other costs. A search
therefore works out the structure once for each schedule and division of layers (`StepShape`), and the work of each kind
of unit once for each of the sizes that it depends on (`unit_works`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.schedules import Schedule
from foretrace.step.spec import Work
from foretrace.workload import layers
from foretrace.workload.setting import Setting
from foretrace.workload.settle import schedule_of
from foretrace.workload.step_spec import mtp_tables

UnitRole = Literal["embedding", "layer", "mtp", "head"]


class UnitKind(NamedTuple):
    """Units that do the same work under any plan with the same recomputation.

    Attributes:
        role: The part of the model.
        number: The first of equal layers, by number; of multi-token prediction, the tables that it holds copies of.
        recomputed: Whether the layer is one of those that a stage recomputes; None: as the plan says for all.
        offloaded: Whether all its saved activations go to the host and back.
        paired: Whether an opposite action of another microbatch runs next to it (`Schedule.paired`).
    """

    role: UnitRole
    number: int = 0
    recomputed: bool | None = None
    offloaded: bool = False
    paired: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class StepShape:
    """A schedule, and the units of each piece of the model.

    Attributes:
        schedule: The order of forwards and backwards.
        kinds: The distinct kinds of units.
        pieces: The units of every piece, as numbers of their kinds, in the order of the forward.
        counts: How many units of each kind a piece has, `[pieces, kinds]`.
    """

    schedule: Schedule
    kinds: tuple[UnitKind, ...]
    pieces: tuple[tuple[int, ...], ...]
    counts: Longs

    @classmethod
    def of(cls, setting: Setting) -> StepShape:
        """Returns the structure of a setting's step."""
        numbers: dict[UnitKind, int] = {}
        pieces = tuple(
            tuple(numbers.setdefault(kind, len(numbers)) for kind in piece) for piece in _kinds_of_pieces(setting)
        )
        counts = np.array([np.bincount(piece, minlength=len(numbers)) for piece in pieces], dtype=np.int64)
        return cls(schedule_of(setting), tuple(numbers), pieces, counts)


def unit_works(setting: Setting, kinds: Sequence[UnitKind]) -> list[Work]:
    """Returns the work of each kind under a setting, without the concurrency that its plan may ask for.

    A setting of another pipeline gives the same works, as long as both have one stage or both have several.
    """
    plan = setting.plan
    variants = {None: setting} | {
        recomputed: replace(
            setting, plan=replace(plan, recompute="full" if recomputed else "none", recompute_layers=None)
        )
        for recomputed in (True, False)
    }
    return [_work(variants[kind.recomputed], kind) for kind in kinds]


def _work(setting: Setting, kind: UnitKind) -> Work:
    if kind.role == "embedding":
        return layers.embedding_work(setting)
    if kind.role == "head":
        return layers.head_work(setting)
    if kind.role == "mtp":
        return layers.mtp_work(setting, kind.number)
    return layers.layer_work(setting, setting.model.layers[kind.number], kind.number)


def _kinds_of_pieces(setting: Setting) -> list[list[UnitKind]]:
    """Returns the kinds of the units of every piece, in the order of the forward."""
    plan, model = setting.plan, setting.model
    firsts: dict[object, int] = {}
    equal = [firsts.setdefault((layer, plan.routing_of(number)), number) for number, layer in enumerate(model.layers)]
    limit = plan.recompute_layers if plan.recompute == "full" else None
    last = len(setting.chunks) - 1
    pieces = []
    for piece, numbers in enumerate(setting.chunks):
        # Both count a stage's first layers, over all its chunks, as Megatron's block method does.
        before = sum(len(part) for part in setting.chunks[piece % plan.pp : piece : plan.pp])
        places = range(before, before + len(numbers))
        units = [
            UnitKind("layer", equal[number], None if limit is None else place < limit, place < plan.offload_layers)
            for number, place in zip(numbers, places, strict=True)
        ]
        if piece == setting.mtp_chunk % len(setting.chunks):
            done = before + len(numbers)
            units += [
                UnitKind("mtp", tables, offloaded=done + at < plan.offload_layers)
                for at, tables in enumerate(mtp_tables(setting))
            ]
        first = [UnitKind("embedding")] if piece == 0 and model.vocab else []
        pieces.append([*first, *units, *([UnitKind("head")] if piece == last else [])])
    return pieces
