"""Divides layers among the parts of a pipeline so that its stages take equally long, by what a simulated step took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.program.timeline import Timeline
from foretrace.readings.lanes import unit_loads
from foretrace.workload.layout import Layout
from foretrace.workload.settle import schedule_of

if TYPE_CHECKING:
    from foretrace.workload.setting import Setting

MIN_RELIEF: Final = 0.002
"""The share of its time that the slowest stage must lose for a division to be worth a simulation."""

EQUAL: Final = 1e-3
"""The share by which sums of squares of two divisions may differ for the stages of both to be equally balanced. Equal
layers differ as much, since the collectives in them do."""


@dataclass(frozen=True, slots=True)
class Balance:
    """A division of the layers over which stages take more nearly equally long, and the stage that is slowest now."""

    layout: Layout
    slowest: int


def balance_stages(setting: Setting, timeline: Timeline, full: int | None = None) -> Balance | None:
    """Returns the division that moves layers from the slowest stages to the fastest; None where none is better.

    `full` is a stage that takes no more layers.

    A layer, the embedding, MTP and the head cost what they took on the compute lane of the simulated step. Layers are
    moved one at a time from the slowest stage to the fastest, as long as that brings the stages closer together. The
    chunks of both stages whose parts are then most nearly equal give it and take it.
    """
    costs = _Costs.of(setting, timeline)
    now = np.array([len(chunk) for chunk in setting.chunks])
    counts = now
    for _ in setting.model.layers:
        better = costs.moved(counts, full)
        if better is None:
            break
        counts = better
    before_s, after_s = costs.stages_s(now), costs.stages_s(counts)
    if after_s.max() > (1 - MIN_RELIEF) * before_s.max():
        return None
    layout = Layout.of(counts.tolist(), setting.model.mtp, setting.mtp_chunk)
    return Balance(layout, int(before_s.argmax()))


@dataclass(frozen=True, slots=True)
class _Costs:
    """Seconds of a step that every layer of a model takes, and what every part holds besides layers."""

    layers_s: Floats
    """Seconds of all layers up to a number: one more entry than there are layers."""
    ends_s: Floats
    piece: Longs
    """The part of each chunk of each stage."""
    copies: int
    """On how many stages each part is."""

    @classmethod
    def of(cls, setting: Setting, timeline: Timeline) -> _Costs:
        """Adds up what units took, wherever a copy of their part is."""
        schedule = schedule_of(setting)
        layers_s, ends_s = np.zeros(len(setting.model.layers)), np.zeros(len(setting.chunks))
        for (stage, chunk, layer), seconds in unit_loads(timeline).items():
            piece = int(schedule.piece[stage, chunk])
            held = setting.chunks[piece]
            if 0 <= layer < len(held):
                layers_s[held[layer]] += seconds
            else:  # embedding and head have no number, and MTP comes after the layers
                ends_s[piece] += seconds
        return cls(np.append(0.0, np.cumsum(layers_s)), ends_s, schedule.piece, schedule.directions)

    def parts_s(self, counts: Longs) -> Floats:
        """Returns what each part takes in a step."""
        return np.asarray(np.diff(self.layers_s[np.append(0, np.cumsum(counts))]) + self.ends_s)

    def stages_s(self, counts: Longs) -> Floats:
        """Returns what each stage takes in a step."""
        return np.asarray(self.parts_s(counts)[self.piece].sum(axis=1) / self.copies)

    def moved(self, counts: Longs, full: int | None) -> Longs | None:
        """Returns the numbers of layers with one moved from the slowest stage to the fastest that is not `full`; None
        where stages are not closer together then."""
        stages_s = self.stages_s(counts)
        fastest = min((stage for stage in range(len(stages_s)) if stage != full), key=stages_s.__getitem__)
        tried: list[tuple[float, float, Longs]] = []
        for source in self.piece[stages_s.argmax()].tolist():
            # Parts with an end of the model may do without layers.
            if counts[source] < (1 if self.ends_s[source] > 0 else 2):
                continue
            for target in self.piece[fastest].tolist():
                other = counts.copy()
                other[source] -= 1
                other[target] += 1
                tried.append((_spread(self.stages_s(other)), _spread(self.parts_s(other)), other))
        least = min((each[0] for each in tried), default=np.inf)
        better = [
            each for each in tried if each[0] <= (1 + EQUAL) * least and each[0] < (1 - EQUAL / 10) * _spread(stages_s)
        ]
        return min(better, key=lambda each: each[1])[2] if better else None


def _spread(seconds: Floats) -> float:
    """Returns a sum of squares: of numbers with the same sum, the least where all are equal."""
    return float(np.square(seconds).sum())
