"""Two answers side by side: by how much the step differs, and where the difference comes from.

Nothing is matched op by op: the two programs may split and name their work as they like. The breakdowns of both sum to
their steps, so the differences of their parts sum to the error of the step; that is the headline. The rest shows where
in the job a part's difference sits: what kind of op, which rank, which stage, which group.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from foretrace.basics.errors import Diagnostic
from foretrace.basics.mesh import Mesh
from foretrace.readings.account import Account, Group, PerMicrobatch, Spent, account
from foretrace.readings.answer.answer import Answer
from foretrace.readings.breakdown import IMBALANCE, STRAGGLER, Breakdown

GAPS = "gaps between ops"
"""The part of a step in which no op of its critical path runs: recordings have such stretches, simulations do not."""

_AXES = ("tp", "cp", "dp", "pp", "ep", "etp")
_ROUNDING = 1e-9
"""A smaller share of the step than this is rounding."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Pair:
    """The same figure of both runs, in seconds."""

    predicted_s: float
    measured_s: float

    @property
    def difference_s(self) -> float:
        """Predicted minus measured: above zero, the prediction is too slow."""
        return self.predicted_s - self.measured_s

    @property
    def error(self) -> float | None:
        """The difference as a share of the measured; None where that is zero."""
        return self.difference_s / self.measured_s if self.measured_s > 0 else None


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """A named part of both steps."""

    name: str
    seconds: Pair


@dataclass(frozen=True, slots=True)
class KindRow:
    """Ops of one kind, mean over ranks: running, and waiting for late partners before."""

    name: str
    running: Pair
    wait: Pair


@dataclass(frozen=True, slots=True)
class RankRow:
    """Ranks with identical times in both runs: computing, held up by late partners, and the end of the last op."""

    ranks: tuple[int, ...]
    compute: Pair
    held_up: Pair
    end: Pair


@dataclass(frozen=True, slots=True)
class StageRow:
    """The compute of one microbatch's pass (`forward` or `backward`) through a pipeline stage; None where a run has
    none."""

    stage: int
    direction: str
    predicted: PerMicrobatch | None
    measured: PerMicrobatch | None

    @property
    def mean(self) -> Pair | None:
        """The means of both runs, if both have one."""
        if self.predicted is None or self.measured is None:
            return None
        return Pair(self.predicted.mean_s, self.measured.mean_s)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Groups of one axis with identical times in both runs, by the ranks that meet: means over the members."""

    axis: str
    groups: tuple[tuple[int, ...], ...]
    running: Pair
    wait: Pair


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far a prediction is from a measurement, and where.

    `breakdown` sums to the step on both sides. `until_optimizer` is the time at which the last rank starts to update
    its parameters: fp16 runs skip the update of a step that overflowed, so that there only what precedes it compares.
    Parts, kinds and critical paths come with the largest difference first; ranks, stages and groups in their order,
    and are empty where the two jobs do not have the same ranks in the same places.
    """

    predicted: Answer
    measured: Answer
    step: Pair
    until_optimizer: Pair | None
    breakdown: tuple[ComparedPart, ...]
    kinds: tuple[KindRow, ...]
    critical_path: tuple[ComparedPart, ...]
    ranks: tuple[RankRow, ...]
    stages: tuple[StageRow, ...]
    groups: tuple[GroupRow, ...]
    unlike: tuple[str, ...]
    """In what the two are not the same job, in few words."""
    diagnostics: tuple[Diagnostic, ...]

    @property
    def measured_word(self) -> str:
        """The word for the second run: "measured", or "simulated" where no one recorded it."""
        return second_word(self.measured)

    @property
    def band_contains_measured(self) -> bool | None:
        """Whether the measured step lies in the predicted band; None where the prediction has none."""
        band = self.predicted.step_time_band_s
        if band is None or band[0] >= band[1]:
            return None
        return band[0] <= self.measured.step_time_s <= band[1]


def second_word(answer: Answer) -> str:
    """Returns "measured" for a recording, "simulated" for anything that stands in its place."""
    return "measured" if answer.timeline.recorded else "simulated"


def compare(predicted: Answer, measured: Answer) -> Comparison:
    """Compares a prediction with a measurement of the same job, or with another simulation."""
    ours, theirs = account(predicted), account(measured)
    same_mesh = _same_mesh(predicted.timeline.graph.program.mesh, measured.timeline.graph.program.mesh)
    until = (ours.until_optimizer_s, theirs.until_optimizer_s)
    unlike = _unlike(predicted, measured, ours, theirs, same_mesh)
    return Comparison(
        predicted=predicted,
        measured=measured,
        step=Pair(predicted.step_time_s, measured.step_time_s),
        until_optimizer=None if until[0] is None or until[1] is None else Pair(until[0], until[1]),
        breakdown=_parts(*_breakdowns(predicted.breakdown, measured.breakdown)),
        kinds=_kinds(ours.kinds, theirs.kinds),
        critical_path=_parts(_path_parts(predicted), _path_parts(measured)),
        ranks=_ranks(ours, theirs) if same_mesh else (),
        stages=_stages(ours, theirs) if same_mesh else (),
        groups=_groups(ours.groups, theirs.groups) if same_mesh else (),
        unlike=tuple(difference.words for difference in unlike),
        diagnostics=(
            *(Diagnostic("warning", difference.code, f"{difference.words}: {difference.so}") for difference in unlike),
            *_differences(predicted, measured, ours, theirs),
            *_carried("predicted", predicted.diagnostics),
            *_carried(second_word(measured), measured.diagnostics),
        ),
    )


def _parts(predicted: Mapping[str, float], measured: Mapping[str, float]) -> tuple[ComparedPart, ...]:
    rows = [
        ComparedPart(name, Pair(predicted.get(name, 0.0), measured.get(name, 0.0)))
        for name in _either(predicted, measured)
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.seconds.difference_s)))


def _breakdowns(predicted: Breakdown, measured: Breakdown) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the means of both, with one name for waits that one run calls imbalance and the other a straggler's."""
    if STRAGGLER not in (*predicted.parts, *measured.parts):
        return predicted.mean_s, measured.mean_s
    ours, theirs = (
        {STRAGGLER if part == IMBALANCE else part: seconds for part, seconds in side.mean_s.items()}
        for side in (predicted, measured)
    )
    return ours, theirs


def _kinds(predicted: Mapping[str, Spent], measured: Mapping[str, Spent]) -> tuple[KindRow, ...]:
    rows = [
        KindRow(name, *_spent(predicted.get(name, Spent()), measured.get(name, Spent())))
        for name in _either(predicted, measured)
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.running.difference_s)))


def _path_parts(simulation: Answer) -> dict[str, float]:
    """Returns the parts of the critical path and the stretches between its ops, so that they make up the whole step."""
    path, step = simulation.critical_path, simulation.step_time_s
    gaps = step - path.length_s
    return {**path.parts_s, GAPS: gaps} if gaps > _ROUNDING * step else dict(path.parts_s)


def _ranks(predicted: Account, measured: Account) -> tuple[RankRow, ...]:
    """Returns every rank once, those with equal times together."""
    by_times: dict[tuple[float, ...], list[int]] = {}
    sides = [
        column
        for times_of_side in (predicted.ranks, measured.ranks)
        for column in (times_of_side.compute_s, times_of_side.held_up_s, times_of_side.end_s)
    ]
    for rank, times in enumerate(zip(*(column.tolist() for column in sides), strict=True)):
        by_times.setdefault(times, []).append(rank)
    return tuple(RankRow(tuple(ranks), *map(Pair, times[:3], times[3:])) for times, ranks in by_times.items())


def _stages(predicted: Account, measured: Account) -> tuple[StageRow, ...]:
    keys = sorted(_either(predicted.stages, measured.stages), key=lambda key: (key[0], key[1] == "backward"))
    return tuple(StageRow(*key, predicted.stages.get(key), measured.stages.get(key)) for key in keys)


def _groups(predicted: Mapping[Group, Spent], measured: Mapping[Group, Spent]) -> tuple[GroupRow, ...]:
    """Returns every group once, those of an axis with equal times together."""
    by_spent: dict[tuple[str, Spent, Spent], list[tuple[int, ...]]] = {}
    for group in _either(predicted, measured):
        spent = (predicted.get(group, Spent()), measured.get(group, Spent()))
        by_spent.setdefault((group[0], *spent), []).append(group[1])
    return tuple(
        GroupRow(axis, tuple(groups), *_spent(ours, theirs)) for (axis, ours, theirs), groups in by_spent.items()
    )


def _spent(predicted: Spent, measured: Spent) -> tuple[Pair, Pair]:
    return Pair(predicted.running_s, measured.running_s), Pair(predicted.wait_s, measured.wait_s)


def _either(predicted: Iterable[Key], measured: Iterable[Key]) -> list[Key]:
    """Returns the keys that either run has, in the order of the prediction."""
    return list(dict.fromkeys([*predicted, *measured]))


def _same_mesh(predicted: Mesh, measured: Mesh) -> bool:
    """Returns whether every rank has the same place in both."""
    if any(predicted.size(axis) != measured.size(axis) for axis in _AXES):
        return False
    dense = [axis for axis in ("tp", "cp", "dp", "pp") if predicted.size(axis) > 1]
    return all((predicted.coordinate(axis) == measured.coordinate(axis)).all() for axis in dense)


@dataclass(frozen=True, slots=True)
class _Unlike:
    """Something in which two runs are not the same job, and what follows from it."""

    code: str
    words: str
    so: str


def _unlike(predicted: Answer, measured: Answer, ours: Account, theirs: Account, same_mesh: bool) -> list[_Unlike]:
    """Returns the differences that keep the two runs from being the same job."""
    differences = []
    so = "the step and means over ranks are compared, single ranks, stages and groups are not"
    if predicted.world_size != measured.world_size:
        words = f"{predicted.world_size:,} ranks are predicted, {measured.world_size:,} {second_word(measured)}"
        differences.append(_Unlike("different-mesh", words, so))
    elif not same_mesh:
        words = f"the predicted run has {predicted.mesh}, the {second_word(measured)} {measured.mesh}"
        differences.append(_Unlike("different-mesh", words, so))
    if ours.microbatches and theirs.microbatches and ours.microbatches != theirs.microbatches:
        words = f"microbatches: {ours.microbatches} predicted, {theirs.microbatches} {second_word(measured)}"
        differences.append(_Unlike("different-microbatches", words, "the steps do not do the same work"))
    return differences


def _differences(predicted: Answer, measured: Answer, ours: Account, theirs: Account) -> list[Diagnostic]:
    """Returns warnings about what the two runs measure differently, although the job may be the same."""
    notes = []
    if predicted.repeats != measured.repeats:
        kinds = {True: "the steady period of steps that follow each other", False: "the makespan of one step"}
        second = second_word(measured)
        text = f"the predicted step time is {kinds[predicted.repeats]}, the {second} {kinds[measured.repeats]}"
        notes.append(Diagnostic("warning", "different-step-times", text))
    sides = (("predicted", ours), (second_word(measured), theirs))
    missing = [name for name, spent in sides if spent.until_optimizer_s is None]
    if len(missing) == 1:
        text = f"the {missing[0]} run has no optimizer: the time up to it is not compared"
        notes.append(Diagnostic("note", "too-little-data", text))
    return notes


def _carried(side: str, diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    return [
        Diagnostic(diagnostic.level, diagnostic.code, f"{side}: {diagnostic.message}", diagnostic.where)
        for diagnostic in diagnostics
    ]
