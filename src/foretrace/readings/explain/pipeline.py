"""The pipeline: what stages compute for a microbatch, how long they wait for each other, and how long they had to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.readings.account import Account, PerMicrobatch
from foretrace.readings.answer.answer import Answer
from foretrace.readings.explain.rows import ACROSS_STAGES, OpRows

_ROUNDING = 1e-12
"""A mean below this share of the step is what adding up left over."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage, seconds per step, means over its ranks.

    `bubble_s` is as in the breakdown; `embd_wait_s` is what its ranks were held up in the group of first and last
    stage, and `idle_s` what is left after a rank's last op: at the end of a step both are waits for slower stages too.
    `forward` and `backward` are the compute of one microbatch; None where the stage has no such pass.
    """

    stage: int
    ranks: int
    forward: PerMicrobatch | None
    backward: PerMicrobatch | None
    bubble_s: float
    embd_wait_s: float
    idle_s: float

    @property
    def microbatch_s(self) -> float:
        """The compute of one microbatch, forward and backward."""
        return sum(direction.mean_s for direction in (self.forward, self.backward) if direction is not None)

    @property
    def waits_s(self) -> float:
        """All that it waits for other stages."""
        return self.bubble_s + self.embd_wait_s + self.idle_s


@dataclass(frozen=True, slots=True)
class PipelineUse:
    """All stages. `waits_share` is the share of the step that ranks wait for other stages, mean over ranks;
    `ideal_bubble` is (pp - 1) / (m + pp - 1), what it is in a pipeline of equal stages that takes m microbatches one
    chunk at a time and does nothing else; None without pipeline or microbatches."""

    microbatches: int
    stages: tuple[Stage, ...]
    waits_share: float
    bubble_share: float
    ideal_bubble: float | None

    @property
    def slowest(self) -> Stage | None:
        """The stage that computes longest for a microbatch; None with a single stage, or where no stage computes."""
        most = max(self.stages, key=lambda stage: stage.microbatch_s, default=None)
        return most if len(self.stages) > 1 and most is not None and most.microbatch_s > 0 else None


def pipeline(simulation: Answer, rows: OpRows, account: Account) -> PipelineUse:
    """Returns the stages of a run."""
    mesh, classes = rows.graph.program.mesh, rows.graph.classes
    ranks = np.zeros((len(classes), mesh.pp))
    np.add.at(ranks, (classes.of_rank, mesh.coordinate("pp")), 1.0)
    parts = simulation.breakdown.parts
    bubble, idle = (simulation.breakdown.per_class_s[:, parts.index(part)] for part in ("bubble", "idle"))
    axes = [axis for axis in ACROSS_STAGES if axis != "pp"]
    embd = np.flatnonzero(np.isin(rows.axis, axes))
    embd_wait = np.zeros(len(classes))
    np.add.at(embd_wait, rows.owner[embd], rows.held_s[embd])
    stages = []
    for number in range(mesh.pp):
        forward, backward = (account.stages.get((number, word)) for word in ("forward", "backward"))
        means = (_mean(waits, ranks[:, number], rows.step_s) for waits in (bubble, embd_wait, idle))
        stages.append(Stage(number, round(float(ranks[:, number].sum())), forward, backward, *means))
    total = max(rows.step_s * rows.world, 1e-300)
    count = account.microbatches
    return PipelineUse(
        microbatches=count,
        stages=tuple(stages),
        waits_share=sum(stage.waits_s * stage.ranks for stage in stages) / total if mesh.pp > 1 else 0.0,
        bubble_share=sum(stage.bubble_s * stage.ranks for stage in stages) / total,
        ideal_bubble=(mesh.pp - 1) / (count + mesh.pp - 1) if mesh.pp > 1 and count else None,
    )


def _mean(seconds: Floats, ranks: Floats, step_s: float) -> float:
    mean = float(seconds @ ranks) / max(float(ranks.sum()), 1.0)
    return mean if mean > _ROUNDING * step_s else 0.0
