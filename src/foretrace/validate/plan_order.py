"""Tells whether predictions order the plans of one model on one machine as measurements do.

A common error of all plans of a model on a machine moves no plan before another. The part that differs from plan to
plan does. `plan_groups` therefore groups rows by everything that is not a plan, and plans are compared within a group
by the GPU time per token, so that steps of different global batches can be compared. `row_groups` groups rows by the
model and the kind of GPU alone, and compares each row with each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, geometric_mean
from typing import Final, Literal

from foretrace.validate.plans import release_of
from foretrace.validate.results import Compared, RowResult
from foretrace.validate.rows import RowJob, job_of
from foretrace.validate.training_runs import RunConfig

MIN_DIFFERENCE: Final = 0.05
"""Plans whose measured times differ by less are not ordered: reruns of one configuration differ by 3.6 % (median of 64
configurations of NVIDIA's published runs, each under two container releases)."""
_SAME: Final = 1e-9
"""Predictions that differ by less than this share are equal: the order of their plans is not predicted."""

Freedom = Literal["batch", "compilation", "precision", "release"]
"""What plans of one group may differ in besides their fields: the global batch, compiled or eager kernels, the
precision, the release of the software."""

PLAN_ERRORS: Final = {"dense": 0.05, "experts": 0.14}
"""By how much predictions of plans of one model on one machine err against each other: the standard deviation of the
part of the error that does not cancel, by whether the model has experts. The ratio of two plans errs √2 times as much.

`PlanOrder.spread` of published runs by `python benchmarks/plan_order.py`: 4.9 % without experts. With experts, 4.3 % on
one node, and 14.3 % where runs of several nodes under several releases of the software count too. The larger one is
used, because no other runs with experts span nodes. One pair dominates it: two runs of Qwen3 30B that are 75 % apart,
which their publisher does not explain.
"""


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A plan that was run: the rows that measured it, and its GPU time per token in seconds.

    The measured time of several rows is their geometric mean, and so is the predicted one. Plans with equal `fields`
    are not compared: they differ in nothing but the global batch, or in nothing but the release of the software.
    """

    ids: tuple[str, ...]
    token_time: Compared
    fields: Hashable

    @property
    def log_error(self) -> float:
        """The logarithm of predicted over measured."""
        return math.log(self.token_time.predicted / self.token_time.measured)


@dataclass(frozen=True, slots=True)
class PlanPair:
    """Two plans of a group, the one that was measured to be faster first."""

    faster: MeasuredPlan
    slower: MeasuredPlan

    @property
    def difference(self) -> float:
        """How much longer the slower one was measured to take, as a share."""
        return self.slower.token_time.measured / self.faster.token_time.measured - 1

    @property
    def predicted_difference(self) -> float:
        """The same as predicted; below 0 where the prediction has the other order, 0 where it has none."""
        difference = self.slower.token_time.predicted / self.faster.token_time.predicted - 1
        return 0.0 if abs(difference) <= _SAME else difference

    @property
    def right(self) -> bool:
        """Whether the prediction has the measured order."""
        return self.predicted_difference > 0


@dataclass(frozen=True, slots=True)
class PlanGroup:
    """Plans of one model on one machine, or rows of one model on one kind of GPU.

    `family` lists the families of its rows. With `repeated`, plans with equal fields are one plan under several
    releases of the software, which nobody chooses between.
    """

    family: str
    model: str
    has_experts: bool
    plans: tuple[MeasuredPlan, ...]
    repeated: bool = False

    @property
    def pairs(self) -> tuple[PlanPair, ...]:
        """All pairs of plans whose fields differ."""
        by_time = sorted(self.plans, key=lambda plan: plan.token_time.measured)
        pairs = (PlanPair(faster, slower) for faster, slower in combinations(by_time, 2))
        return tuple(pair for pair in pairs if pair.faster.fields != pair.slower.fields)

    @property
    def regret(self) -> float:
        """How much longer the plan predicted to be the fastest takes than the fastest, as a share of measured times.

        Of several plans with the same prediction, the slowest counts.
        """
        least = min(plan.token_time.predicted for plan in self.plans)
        chosen = [plan for plan in self.plans if plan.token_time.predicted <= least * (1 + _SAME)]
        return max(self._regret_of(plan) for plan in chosen)

    def _regret_of(self, chosen: MeasuredPlan) -> float:
        others = (plan for plan in self.plans if not (self.repeated and plan.fields == chosen.fields))
        fastest = min((plan.token_time.measured for plan in others), default=math.inf)
        return max(chosen.token_time.measured / fastest - 1, 0.0)

    @property
    def plan_errors(self) -> tuple[float, ...]:
        """The logarithmic error of each plan less their mean: the part that does not cancel between plans."""
        errors = [plan.log_error for plan in self.plans]
        mean = fmean(errors)
        return tuple(error - mean for error in errors)


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """How well predictions order the plans of groups; shares are None where there is nothing to take them of."""

    groups: int
    plans: int
    pairs: int
    """Pairs whose measured times differ by `MIN_DIFFERENCE` or more."""
    wrong: tuple[PlanPair, ...]
    """Those that are not predicted in their order, the largest measured difference first."""
    tau: float | None
    """Kendall's tau over all pairs, near ties included: pairs in order less pairs out of order, as a share."""
    mean_regret: float | None
    max_regret: float | None
    spread: float | None
    """The standard deviation within groups of the logarithm of predicted over measured."""

    @property
    def right_share(self) -> float | None:
        """The share of pairs whose order is predicted."""
        return 1 - len(self.wrong) / self.pairs if self.pairs else None


def plan_groups(
    configs: Iterable[RunConfig], rows: Sequence[RowResult], free: Iterable[Freedom] = ("batch",)
) -> tuple[PlanGroup, ...]:
    """Returns the groups of two or more different plans of one model on one machine.

    Rows of a group have the source, its release, the model, the cluster, the number of GPUs, the sequence length, the
    precision and the grade in common, and the global batch unless it is `free`. Rows that measured one plan again are
    put together.

    Args:
        configs: The configurations of the runs; those without a row are left out.
        rows: The predicted runs; those without a step time are left out.
        free: What plans of a group may differ in besides their fields.
    """
    free = frozenset(free)
    groups: dict[Hashable, list[_Run]] = {}
    for run in _runs(configs, rows):
        groups.setdefault(_group_key(run, free), []).append(run)
    return tuple(group for runs in groups.values() if (group := _group(runs)).pairs)


def row_groups(
    configs: Iterable[RunConfig], rows: Sequence[RowResult], *, releases: bool = True
) -> tuple[PlanGroup, ...]:
    """Returns the groups of two or more rows of one model and one kind of GPU, whatever else they differ in.

    Each row is a plan of its own, also where it measured one plan again.

    Args:
        configs: The configurations of the runs; those without a row are left out.
        rows: The predicted runs; those without a step time are left out.
        releases: Whether rows that differ in nothing but the release of the software are compared.
    """
    groups: dict[Hashable, list[_Run]] = {}
    for run in _runs(configs, rows):
        # Tables of positions are as long as a row's sequences.
        model = replace(run.job.model, name="", positions=0, seq_len=0)
        groups.setdefault((model, run.job.cluster.gpu.name), []).append(run)
    return tuple(group for runs in groups.values() if (group := _row_group(runs, releases)).pairs)


def _row_group(runs: Sequence[_Run], releases: bool) -> PlanGroup:
    plans = tuple(_measured_plan([run], run.config.id if releases else run.configuration) for run in runs)
    return replace(_group_of(runs, plans), repeated=not releases)


@dataclass(frozen=True, slots=True)
class _Run:
    """A predicted row with its configuration and its job."""

    config: RunConfig
    job: RowJob
    row: RowResult

    @property
    def stack(self) -> str | None:
        """The stack without its release."""
        return self.job.plan.stack and self.job.plan.stack.partition("@")[0]

    @property
    def fields(self) -> Hashable:
        """The plan of a run and the words that describe it, without the global batch."""
        # The words too: an option that is not modelled is a plan of its own, with the same prediction.
        config, plan = self.config, replace(self.job.plan, gbs=None, stack=self.stack)
        return plan, config.overlap, config.sharding, config.recompute

    @property
    def configuration(self) -> Hashable:
        """Everything that was run but the release of the software."""
        config = self.config
        return self.fields, config.family, config.model, _machine(config), config.seq_len, config.gbs

    @property
    def token_time(self) -> Compared:
        """The GPU time per token in seconds."""
        config, step = self.config, self.row.step
        assert step is not None and config.gbs is not None and config.seq_len is not None
        share = config.gpus / (config.gbs * config.seq_len)
        return Compared(step.measured * share, step.predicted * share)


def _runs(configs: Iterable[RunConfig], rows: Sequence[RowResult]) -> Iterator[_Run]:
    """Yields the rows with a step time and a known number of tokens."""
    config_of = {config.id: config for config in configs}
    for row in rows:
        config = config_of[row.id]
        if row.step is not None and config.gbs is not None and config.seq_len is not None:
            yield _Run(config, job_of(config), row)


def _machine(config: RunConfig) -> Hashable:
    return config.gpu, config.gpus, config.gpus_per_node, config.interconnect


def _group_key(run: _Run, free: frozenset[Freedom]) -> Hashable:
    config, plan = run.config, run.job.plan
    batch, compilation = ("batch" in free) or config.gbs, ("compilation" in free) or run.stack
    precision, version = ("precision" in free) or plan.precision, ("release" in free) or release_of(config)
    # DeepSpeed's runs of SC21 are another program than the Megatron that the paper compares them with.
    program = config.family, "deepspeed" in config.sharding.lower(), compilation, version
    return program, _machine(config), config.model, run.job.model, config.seq_len, config.grade, batch, precision


def _group(runs: Sequence[_Run]) -> PlanGroup:
    repeats: dict[tuple[Hashable, int | None], list[_Run]] = {}
    for run in runs:
        repeats.setdefault((run.fields, run.config.gbs), []).append(run)
    return _group_of(runs, tuple(_measured_plan(members, fields) for (fields, _), members in repeats.items()))


def _group_of(runs: Sequence[_Run], plans: tuple[MeasuredPlan, ...]) -> PlanGroup:
    families = ", ".join(sorted({run.config.family for run in runs}))
    return PlanGroup(families, runs[0].config.model, runs[0].job.model.has_experts, plans)


def _measured_plan(repeats: Sequence[_Run], fields: Hashable) -> MeasuredPlan:
    times = [run.token_time for run in repeats]
    measured = geometric_mean(time.measured for time in times)
    predicted = geometric_mean(time.predicted for time in times)
    return MeasuredPlan(tuple(run.config.id for run in repeats), Compared(measured, predicted), fields)


def order_of(groups: Iterable[PlanGroup]) -> PlanOrder:
    """Returns how well predictions order the plans of groups, taken together."""
    groups = tuple(groups)
    pairs = [pair for group in groups for pair in group.pairs]
    clear = [pair for pair in pairs if pair.difference >= MIN_DIFFERENCE]
    signs = [(pair.predicted_difference > 0) - (pair.predicted_difference < 0) for pair in pairs]
    regrets = [group.regret for group in groups]
    squares = sum(error**2 for group in groups for error in group.plan_errors)
    freedom = sum(len(group.plans) - 1 for group in groups)
    return PlanOrder(
        groups=len(groups),
        plans=sum(len(group.plans) for group in groups),
        pairs=len(clear),
        wrong=tuple(sorted((pair for pair in clear if not pair.right), key=lambda pair: -pair.difference)),
        tau=fmean(signs) if signs else None,
        mean_regret=fmean(regrets) if regrets else None,
        max_regret=max(regrets, default=None),
        spread=math.sqrt(squares / freedom) if freedom else None,
    )


def order_by(groups: Iterable[PlanGroup], name: Callable[[PlanGroup], str]) -> dict[str, PlanOrder]:
    """Returns the order of groups by what `name` calls them, sorted by name."""
    named: dict[str, list[PlanGroup]] = {}
    for group in groups:
        named.setdefault(name(group), []).append(group)
    return {key: order_of(named[key]) for key in sorted(named)}
