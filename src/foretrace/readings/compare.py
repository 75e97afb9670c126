"""Two answers side by side: by how much the step differs, and where the difference comes from.

One answer is the base, the other the subject: a prediction next to a measurement of the same job, or a job B next to
the job A that it was made of. Differences are the subject's time minus that of the base.

The breakdowns of both sum to their steps, so the differences of their parts sum to that of the step; that is the
headline. Two predictions are divided further, by ops of the same name. A recording splits and names its work as it
likes: nothing of it is matched op by op. The rest shows where in the job a part's difference sits: what kind of op,
which rank, which stage, which group.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from foretrace.basics.errors import Diagnostic
from foretrace.basics.mesh import Mesh
from foretrace.basics.viewable import Viewable
from foretrace.readings.account import Account, Cause, Group, PerMicrobatch, Spent, account, causes
from foretrace.readings.answer.answer import Answer
from foretrace.readings.breakdown import IMBALANCE, STRAGGLER, Breakdown
from foretrace.readings.differences import Difference, differences

GAPS = "gaps between ops"
"""The part of a step in which no op of its critical path runs: recordings have such stretches, simulations do not."""

PREDICTED, MEASURED = "predicted", "measured"
A, B = "A", "B"

_AXES = ("tp", "cp", "dp", "pp", "ep", "etp")
_ROUNDING = 1e-9
"""A smaller share of the step than this is rounding."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Pair:
    """The same figure of both runs, in seconds."""

    subject_s: float
    base_s: float

    @property
    def difference_s(self) -> float:
        """The subject minus the base: above zero, a prediction is too slow, or B is slower than A."""
        return self.subject_s - self.base_s

    @property
    def error(self) -> float | None:
        """The difference as a share of the base; None where that is zero."""
        return self.difference_s / self.base_s if self.base_s > 0 else None


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """A named part of both steps."""

    name: str
    seconds: Pair


@dataclass(frozen=True, slots=True)
class CauseRow:
    """A cause of both steps; without a name where the two name the ops of its kind differently."""

    cause: Cause
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
    subject: PerMicrobatch | None
    base: PerMicrobatch | None

    @property
    def mean(self) -> Pair | None:
        """The means of both runs, if both have one."""
        if self.subject is None or self.base is None:
            return None
        return Pair(self.subject.mean_s, self.base.mean_s)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Groups of one axis with identical times in both runs, by the ranks that meet: means over the members."""

    axis: str
    groups: tuple[tuple[int, ...], ...]
    running: Pair
    wait: Pair


class Side(NamedTuple):
    """One of the two answers, and its label on screens."""

    label: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Comparison(Viewable):
    """How far a subject is from its base, and where.

    `sides` are the subject and the base in the order of columns: predicted and measured, or A and B.

    `breakdown` sums to the step on both sides. `until_optimizer` is the time at which the last rank starts to update
    its parameters: fp16 runs skip the update of a step that overflowed, so that there only what precedes it compares.
    Parts, causes, kinds and critical paths come with the largest difference first; ranks, stages and groups in their
    order, and are empty where the two jobs do not have the same ranks in the same places. `causes` sum to the step as
    `breakdown` does, and `differences` are what the jobs, machines and prices of two predictions differ in; both are
    empty where the base was measured.
    """

    subject: Answer
    base: Answer
    sides: tuple[Side, Side]
    step: Pair
    until_optimizer: Pair | None
    differences: tuple[Difference, ...]
    breakdown: tuple[ComparedPart, ...]
    causes: tuple[CauseRow, ...]
    kinds: tuple[KindRow, ...]
    critical_path: tuple[ComparedPart, ...]
    ranks: tuple[RankRow, ...]
    stages: tuple[StageRow, ...]
    groups: tuple[GroupRow, ...]
    unlike: tuple[str, ...]
    """The differences that keep the two from being the same job, in few words."""
    diagnostics: tuple[Diagnostic, ...]

    @property
    def with_measured(self) -> bool:
        """Whether a prediction is compared with a measurement."""
        return _is_measured(self.subject, self.base)

    def in_columns(self, of_subject: Value, of_base: Value) -> tuple[Value, Value]:
        """Returns two values in the order of columns."""
        return (of_subject, of_base) if self.with_measured else (of_base, of_subject)

    @property
    def subject_label(self) -> str:
        """The label of the subject."""
        first, second = self.sides
        return first.label if self.with_measured else second.label

    @property
    def base_label(self) -> str:
        """The label of the base."""
        first, second = self.sides
        return second.label if self.with_measured else first.label

    @property
    def band_contains_base(self) -> bool | None:
        """Whether the step of the base lies in the band of the subject; None where that has none."""
        band = self.subject.step_time_band_s
        if band is None or band[0] >= band[1]:
            return None
        return band[0] <= self.base.step_time_s <= band[1]


def _is_measured(subject: Answer, base: Answer) -> bool:
    return base.timeline.recorded and not subject.timeline.recorded


def compare(subject: Answer, base: Answer, names: tuple[str, str] | None = None) -> Comparison:
    """Compares a prediction with a measurement of the same job, or a job with another that it is a change of.

    Args:
        subject: The prediction, or the changed job.
        base: The measurement, or the job before the change.
        names: Names of the subject and the base for their labels, such as those of files; None: A and B.
    """
    ours, theirs = account(subject), account(base)
    same_mesh = _same_mesh(subject.timeline.graph.program.mesh, base.timeline.graph.program.mesh)
    until = (ours.until_optimizer_s, theirs.until_optimizer_s)
    measured = _is_measured(subject, base)
    sides = _sides(subject, base, names)
    unlike = _unlike(sides, ours, theirs, same_mesh)
    ours_s, theirs_s, late = _breakdowns(subject.breakdown, base.breakdown)
    return Comparison(
        subject=subject,
        base=base,
        sides=sides,
        step=Pair(subject.step_time_s, base.step_time_s),
        until_optimizer=None if until[0] is None or until[1] is None else Pair(until[0], until[1]),
        differences=() if measured else differences(base, subject),
        breakdown=_parts(ours_s, theirs_s),
        causes=() if measured else _causes(causes(subject.timeline, late), causes(base.timeline, late)),
        kinds=_kinds(ours.kinds, theirs.kinds),
        critical_path=_parts(_path_parts(subject), _path_parts(base)),
        ranks=_ranks(ours, theirs) if same_mesh else (),
        stages=_stages(ours, theirs) if same_mesh else (),
        groups=_groups(ours.groups, theirs.groups) if same_mesh else (),
        unlike=tuple(difference.words for difference in unlike),
        diagnostics=(
            *(difference.diagnostic(measured) for difference in unlike),
            *_step_notes(sides),
            *_carried(sides),
        ),
    )


def _sides(subject: Answer, base: Answer, names: tuple[str, str] | None) -> tuple[Side, Side]:
    """Returns the subject and the base with their labels, in the order of columns."""
    if _is_measured(subject, base):
        of_subject, of_base = (PREDICTED, MEASURED)
        if names is not None:
            of_subject, of_base = f"{names[0]} ({PREDICTED})", f"{names[1]} ({MEASURED})"
        return Side(of_subject, subject), Side(of_base, base)
    of_subject, of_base = names or (B, A)
    return Side(of_base, base), Side(of_subject, subject)


def _causes(subject: Mapping[Cause, float], base: Mapping[Cause, float]) -> tuple[CauseRow, ...]:
    """Returns every cause once; ops whose name only one of the two has are added up by what they do."""

    def matched(spent: Mapping[Cause, float], other: Mapping[Cause, float]) -> dict[Cause, float]:
        sums: dict[Cause, float] = {}
        for cause, seconds in spent.items():
            key = cause if cause in other else cause.nameless
            sums[key] = sums.get(key, 0.0) + seconds
        return sums

    ours, theirs = matched(subject, base), matched(base, subject)
    rows = [CauseRow(cause, Pair(ours.get(cause, 0.0), theirs.get(cause, 0.0))) for cause in _either(ours, theirs)]
    return tuple(sorted(rows, key=lambda row: -abs(row.seconds.difference_s)))


def _parts(subject: Mapping[str, float], base: Mapping[str, float]) -> tuple[ComparedPart, ...]:
    rows = [ComparedPart(name, Pair(subject.get(name, 0.0), base.get(name, 0.0))) for name in _either(subject, base)]
    return tuple(sorted(rows, key=lambda row: -abs(row.seconds.difference_s)))


def _breakdowns(subject: Breakdown, base: Breakdown) -> tuple[dict[str, float], dict[str, float], str]:
    """Returns the means of both, and the one name for waits that one calls imbalance and the other a straggler's."""
    late = STRAGGLER if STRAGGLER in (*subject.parts, *base.parts) else IMBALANCE
    ours, theirs = (
        {late if part == IMBALANCE else part: seconds for part, seconds in side.mean_s.items()}
        for side in (subject, base)
    )
    return ours, theirs, late


def _kinds(subject: Mapping[str, Spent], base: Mapping[str, Spent]) -> tuple[KindRow, ...]:
    rows = [
        KindRow(name, *_spent(subject.get(name, Spent()), base.get(name, Spent()))) for name in _either(subject, base)
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.running.difference_s)))


def _path_parts(simulation: Answer) -> dict[str, float]:
    """Returns the parts of the critical path and the stretches between its ops, so that they make up the whole step."""
    path, step = simulation.critical_path, simulation.step_time_s
    gaps = step - path.length_s
    return {**path.parts_s, GAPS: gaps} if gaps > _ROUNDING * step else dict(path.parts_s)


def _ranks(subject: Account, base: Account) -> tuple[RankRow, ...]:
    """Returns every rank once, those with equal times together."""
    by_times: dict[tuple[float, ...], list[int]] = {}
    sides = [
        column
        for times_of_side in (subject.ranks, base.ranks)
        for column in (times_of_side.compute_s, times_of_side.held_up_s, times_of_side.end_s)
    ]
    for rank, times in enumerate(zip(*(column.tolist() for column in sides), strict=True)):
        by_times.setdefault(times, []).append(rank)
    return tuple(RankRow(tuple(ranks), *map(Pair, times[:3], times[3:])) for times, ranks in by_times.items())


def _stages(subject: Account, base: Account) -> tuple[StageRow, ...]:
    keys = sorted(_either(subject.stages, base.stages), key=lambda key: (key[0], key[1] == "backward"))
    return tuple(StageRow(*key, subject.stages.get(key), base.stages.get(key)) for key in keys)


def _groups(subject: Mapping[Group, Spent], base: Mapping[Group, Spent]) -> tuple[GroupRow, ...]:
    """Returns every group once, those of an axis with equal times together."""
    by_spent: dict[tuple[str, Spent, Spent], list[tuple[int, ...]]] = {}
    for group in _either(subject, base):
        spent = (subject.get(group, Spent()), base.get(group, Spent()))
        by_spent.setdefault((group[0], *spent), []).append(group[1])
    return tuple(
        GroupRow(axis, tuple(groups), *_spent(ours, theirs)) for (axis, ours, theirs), groups in by_spent.items()
    )


def _spent(subject: Spent, base: Spent) -> tuple[Pair, Pair]:
    return Pair(subject.running_s, base.running_s), Pair(subject.wait_s, base.wait_s)


def _either(subject: Iterable[Key], base: Iterable[Key]) -> list[Key]:
    """Returns the keys that either run has, in the order of the prediction."""
    return list(dict.fromkeys([*subject, *base]))


def _same_mesh(subject: Mesh, base: Mesh) -> bool:
    """Returns whether every rank has the same place in both."""
    if any(subject.size(axis) != base.size(axis) for axis in _AXES):
        return False
    dense = [axis for axis in ("tp", "cp", "dp", "pp") if subject.size(axis) > 1]
    return all((subject.coordinate(axis) == base.coordinate(axis)).all() for axis in dense)


@dataclass(frozen=True, slots=True)
class _Unlike:
    """Something in which two runs are not the same job, and what follows from it."""

    code: str
    words: str
    consequence: str

    def diagnostic(self, measured: bool) -> Diagnostic:
        # Who compares two plans knows that they differ.
        return Diagnostic("warning" if measured else "note", self.code, f"{self.words}: {self.consequence}")


def _unlike(sides: tuple[Side, Side], ours: Account, theirs: Account, same_mesh: bool) -> list[_Unlike]:
    """Returns the differences that keep the two runs from being the same job; `ours` is of the subject."""
    unlike = []
    (first, one_side), (second, other_side) = sides
    measured = _is_measured(one_side, other_side)
    subject, base = (one_side, other_side) if measured else (other_side, one_side)
    consequence = "the step and means over ranks are compared, single ranks, stages and groups are not"

    def words(what: str, of_subject: str, of_base: str) -> str:
        if measured:
            return f"{what}: {of_subject} predicted, {of_base} measured"
        return f"{what}: {of_base} in {first}, {of_subject} in {second}"

    if subject.world_size != base.world_size:
        text = words("ranks", f"{subject.world_size:,}", f"{base.world_size:,}")
        unlike.append(_Unlike("different-mesh", text, consequence))
    elif not same_mesh:
        unlike.append(_Unlike("different-mesh", words("mesh", subject.mesh, base.mesh), consequence))
    tokens = {None if answer.model is None else answer.model.tokens_per_step for answer in (subject, base)}
    same_work = len(tokens) == 1 and None not in tokens
    if ours.microbatches and theirs.microbatches and ours.microbatches != theirs.microbatches and not same_work:
        text = words("microbatches", str(ours.microbatches), str(theirs.microbatches))
        unlike.append(_Unlike("different-microbatches", text, "the steps may not do the same work"))
    return unlike


def _step_notes(sides: tuple[Side, Side]) -> list[Diagnostic]:
    """Returns warnings about what the two runs time differently, although the job may be the same."""
    notes = []
    if len({answer.repeats for _, answer in sides}) > 1:
        kinds = {True: "the steady period of steps that follow each other", False: "the makespan of one step"}
        first, second = (f"{label}: {kinds[answer.repeats]}" for label, answer in sides)
        notes.append(Diagnostic("warning", "different-step-times", f"the step times differ in kind; {first}, {second}"))
    missing = [label for label, answer in sides if answer.until_optimizer_s is None]
    if len(missing) == 1:
        text = "the step has no optimizer: the time up to it is not compared"
        notes.append(Diagnostic("note", "too-little-data", text, missing[0]))
    return notes


def _carried(sides: tuple[Side, Side]) -> list[Diagnostic]:
    """Returns the diagnostics of both answers with the side each is about; those that both have come once."""
    texts: dict[Diagnostic, list[str]] = {}
    for label, answer in sides:
        for diagnostic in answer.diagnostics:
            texts.setdefault(diagnostic, []).append(label)
    return [
        Diagnostic(each.level, each.code, f"{' and '.join(dict.fromkeys(labels))}: {each.message}", each.where)
        for each, labels in texts.items()
    ]
