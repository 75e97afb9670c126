"""Defines `PlanSearch`, the result of a search for the fastest plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from foretrace.basics.errors import Diagnostic
from foretrace.basics.viewable import Viewable
from foretrace.search.planner.request import Objective, PlanRequest
from foretrace.workload.plan import Plan

Evidence = Literal["simulated", "estimated"]

OUT_OF_MEMORY: Final = "out-of-memory"
"""The reason of plans that do not fit, among those of `PlanSearch.rejected`."""


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A plan of a search, with what is predicted for it.

    Attributes:
        plan: Every field that the search decided or the user gave.
        options: The options of `foretrace predict` that make it.
        step_time_s: The step, as `evidence` says; simulated steps are those of `foretrace predict`.
        evidence: Whether the step was simulated or estimated in closed form.
        bound_s: No simulation of the plan is faster; None where there is no bound.
        peak_memory_bytes: The allocated peak of the stage that needs most.
        needed_memory_bytes: With all that a process holds besides, as `foretrace memory` has it.
        headroom_bytes: Memory of the GPU that is left.
        tokens_per_s_per_gpu: The rate.
        wins: The share of draws of plan-specific price errors in which the plan is the fastest.
        ties: The share of draws in which it is faster than the best plan.
    """

    plan: Plan
    options: str
    step_time_s: float
    evidence: Evidence
    bound_s: float | None
    peak_memory_bytes: int
    needed_memory_bytes: int
    headroom_bytes: int
    tokens_per_s_per_gpu: float
    wins: float = 0.0
    ties: float = 0.0


@dataclass(frozen=True, slots=True)
class SearchProof:
    """States what a search has shown about predictions.

    Attributes:
        complete: Whether no plan of the space is predicted to be faster than the best by more than `gap`.
        lower_bound_s: No plan is predicted below this step, or below the equivalent where plans differ in the tokens of
            a step; None where there is no best plan.
        gap: By how much such a plan may be faster than the best, as a share of the best; 0 where complete.
        simulations: Full simulations.
        action_runs: Runs at the level of actions.
        space: Whether every plan can be launched, or some only exist in the model.
        undecided: Plans that were not simulated and whose bound is not above the best.
        stopped_by: The limit that ended the search early, if any.
    """

    complete: bool
    lower_bound_s: float | None
    gap: float
    simulations: int
    action_runs: int
    space: Literal["launchable", "hypothetical"]
    undecided: int = 0
    stopped_by: Literal["gap", "time", "simulations", "interrupt"] | None = None


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The best plan of a family that a reason removed.

    Attributes:
        reason: The reason, as in `PlanSearch.rejected`.
        plan: The plan.
        options: The options of `foretrace predict` that make it.
        step_time_s: Its step, where that is known.
        short_bytes: The memory that it lacks on a GPU; None where memory is not the reason.
        saved_by: The smallest change of options that would have saved it; None where none is known.
    """

    reason: str
    plan: Plan
    options: str
    step_time_s: float | None
    short_bytes: int | None
    saved_by: str | None


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """Why the best plan beats the runner-up: seconds of each part of the breakdown, best less runner-up."""

    runner_up: RankedPlan
    parts_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PlanSearch(Viewable):
    """The result of a search.

    Attributes:
        model: The model's name.
        cluster: The cluster's name.
        gpus: GPUs of the job.
        gbs: Sequences of a step.
        seq_len: Tokens of a sequence.
        objective: What was asked for.
        searched: Combinations of values that were considered.
        distinct: Plans that can be launched and differ in what they do, whether they fit or not.
        feasible: Launchable plans that fit into memory.
        best: The best plan; None where nothing fits or meets the deadline, or no simulation has ended.
        plans: The best plans in order, the best first.
        rejected: How many combinations each rule removed, by its name, and how many distinct plans do not fit
            (`OUT_OF_MEMORY`).
        search: What the search has shown.
        indistinguishable: Plans that predictions cannot tell from the best, which is among them.
        measure_first: The few of them to measure first.
        spread: By how much predictions of two plans err against each other, as a share (one standard deviation).
        front: The plans of which none is both faster and smaller, by time.
        near_misses: The nearest miss of each family that was rejected.
        why: Why the best beats the runner-up.
        launch: The script that starts the best plan, by framework.
        launch_options: The options of that framework that say the plan, by name; those that are off are left out.
        diagnostics: What a reader should know.
        request: What was asked for; None for a result that was put together without a search.
        seconds: CPU time of the parts of the search, by name; not part of the result's identity.
    """

    model: str
    cluster: str
    gpus: int
    gbs: int
    seq_len: int
    objective: Objective
    searched: int
    distinct: int
    feasible: int
    best: RankedPlan | None
    plans: tuple[RankedPlan, ...]
    rejected: Mapping[str, int]
    search: SearchProof
    indistinguishable: tuple[RankedPlan, ...] = ()
    measure_first: tuple[RankedPlan, ...] = ()
    spread: float | None = None
    front: tuple[RankedPlan, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    why: PlanDifference | None = None
    launch: Mapping[str, str] = field(default_factory=dict)
    launch_options: Mapping[str, Any] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()
    request: PlanRequest | None = field(default=None, compare=False)
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def misses_deadline(self) -> bool:
        """Whether plans fit, and none meets the deadline."""
        return any(note.code == "deadline-missed" for note in self.diagnostics)

    @property
    def nearest_miss(self) -> NearMiss | None:
        """The miss that lacks least memory, of those for which a change is known that saves them, if there are any."""
        misses = [miss for miss in self.near_misses if miss.saved_by] or list(self.near_misses)
        return min(misses, key=lambda miss: miss.short_bytes or 0, default=None)
