"""Explains what happened in a run and why it took so long: all answers in one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.viewable import Viewable
from foretrace.readings.account import account
from foretrace.readings.answer.answer import Answer, Remedy
from foretrace.readings.explain.advice import Advice, advice
from foretrace.readings.explain.communication import CallKind, WorstCall, call_kinds, worst_calls
from foretrace.readings.explain.experts import ExpertBalance, experts
from foretrace.readings.explain.path import HostGaps, PathReading, host_gaps, path_reading
from foretrace.readings.explain.pipeline import PipelineUse, pipeline
from foretrace.readings.explain.rows import OpRows
from foretrace.readings.explain.stragglers import RankLateness, lateness
from foretrace.readings.explain.variation import Variation, variation

MAX_REPLAY_ERROR: Final = 0.1
"""The share by which a replay may differ from the recorded step without a word; real recordings have 0.5 %."""


@dataclass(frozen=True, slots=True)
class Explanation(Viewable):
    """Why a step took as long as it did, in SI units.

    `ranks` has every rank class in the order of ranks; `experts` is None without expert parallelism; `variation` is
    empty with fewer than three microbatches. `replay_step_s` is what the engine makes of the same ops where the run was
    recorded and someone has run it: how far the story told here accounts for the step.
    """

    answer: Answer
    calls: tuple[CallKind, ...]
    worst_calls: tuple[WorstCall, ...]
    pipeline: PipelineUse
    ranks: tuple[RankLateness, ...]
    experts: ExpertBalance | None
    variation: tuple[Variation, ...]
    critical_path: PathReading
    host: HostGaps
    replay_step_s: float | None = None
    remedies: tuple[Remedy, ...] = ()
    """Changes that were tried, and the step that each would have."""

    @property
    def step_s(self) -> float:
        """The step."""
        return self.answer.step_time_s

    @property
    def advice(self) -> tuple[Advice, ...]:
        """Advice on what cost the most, in sentences."""
        return advice(self)

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """Notes on what the run has too little of to be analysed, and on a recording that contradicts its replay."""
        return (*_missing(self), *_replay_notes(self))

    @property
    def recorded(self) -> bool:
        """Whether the run was recorded; otherwise it is a prediction."""
        return self.answer.executor == "recorded"

    @property
    def replay_error(self) -> float | None:
        """By how much the replay differs from the recorded step, as a share of it; None without either."""
        step = self.answer.step_time_s
        return None if self.replay_step_s is None or step <= 0 else self.replay_step_s / step - 1

    @property
    def stragglers(self) -> tuple[RankLateness, ...]:
        """The ranks that are flagged, those that hold others up longest first."""
        return tuple(sorted((rank for rank in self.ranks if rank.flags), key=lambda rank: -rank.held_others_s))


def explain(simulation: Answer) -> Explanation:
    """Reads a run: recorded or simulated, of any program."""
    rows, spent = OpRows.of(simulation), account(simulation)
    ranks = lateness(rows, spent)
    return Explanation(
        answer=simulation,
        calls=call_kinds(rows),
        worst_calls=worst_calls(rows),
        pipeline=pipeline(simulation, rows, spent),
        ranks=ranks,
        experts=experts(rows, ranks, spent.microbatches),
        variation=variation(rows),
        critical_path=path_reading(simulation, rows),
        host=host_gaps(rows),
    )


def _replay_notes(explanation: Explanation) -> list[Diagnostic]:
    error = explanation.replay_error
    if error is None or abs(error) <= MAX_REPLAY_ERROR:
        return []
    text = (
        f"run again from its ops the step takes {explanation.replay_step_s or 0.0:.4g} s instead of "
        f"{explanation.step_s:.4g} s ({error:+.1%}): times of the recording contradict each other"
    )
    return [Diagnostic("warning", "replay-differs", text)]


def _missing(explanation: Explanation) -> list[Diagnostic]:
    texts = []
    if explanation.answer.world_size == 1 and explanation.calls:
        texts.append("one rank alone: what it waited for others cannot be told from what communication took")
    elif explanation.answer.world_size == 1:
        texts.append("one rank: there are no partners to wait for, and no peers to compare it with")
    elif not explanation.calls:
        texts.append("nothing communicates: ranks do not wait for each other")
    count = explanation.pipeline.microbatches
    if not explanation.variation and any(stage.microbatch_s > 0 for stage in explanation.pipeline.stages):
        texts.append(f"{count} microbatch{'' if count == 1 else 'es'}: too few to see how much the same op varies")
    return [Diagnostic("note", "too-little-data", text) for text in texts]
