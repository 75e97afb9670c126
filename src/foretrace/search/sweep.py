"""Runs a job for every combination of the values of some axes, with a simulation for each.

A value that cannot be run, or whose job does not fit into memory, keeps its reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from foretrace.basics.errors import Diagnostic, ForetraceError, InputError, UsageError
from foretrace.basics.progress import doing
from foretrace.basics.units import format_bytes
from foretrace.readings.answer.answer import Answer
from foretrace.search.axes import AxisValue, Point, SweepAxis, Value, points_of
from foretrace.search.progress import SearchProgress
from foretrace.search.scaling import SCALED_BY, Scaling

Run = Callable[[], Answer]
Ask = Callable[[Mapping[str, str]], Run]
"""Returns what simulates the job with some options changed: texts by name, one for each axis."""

OUT_OF_MEMORY, TIGHT, UNKNOWN = "out-of-memory", "memory-tight", "unknown-name"


@dataclass(frozen=True, slots=True)
class SweepError:
    """Why a value has no result: the code and the message of the error, and what can be done about it."""

    code: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A point of a sweep and its result, or the reason why there is none (`error`).

    `efficiency` is the work done per second and GPU, relative to the first point that ran: by tokens where they are
    known; otherwise a step is taken to be as much work per GPU as the first, but in proportion to the microbatches or
    the batch, and to the GPUs it is spread over where pp varies. Over GPUs, the first point is the first that has the
    same values of all other axes. `needed_memory_bytes` is what a model usually needs of a GPU, and
    `peak_memory_bytes` what it allocates of that; both are also known where the job does not fit.
    """

    point: Point
    world_size: int | None = None
    step_time_s: float | None = None
    step_time_band_s: tuple[float, float] | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    peak_memory_bytes: int | None = None
    needed_memory_bytes: int | None = None
    efficiency: float | None = None
    breakdown_s: dict[str, float] | None = None
    error: SweepError | None = None

    @property
    def label(self) -> str:
        """Returns the values as people write them."""
        return " · ".join(value.label for value in self.point)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The outcomes of a sweep in the order of its points; those finished, where it was `interrupted`.

    `title` is what the titles of all that ran have in common. `scaling` is None unless GPUs vary.
    """

    axes: tuple[SweepAxis, ...]
    outcomes: tuple[Outcome, ...]
    interrupted: bool = False
    title: str = ""
    warnings: tuple[Diagnostic, ...] = ()
    """The warnings of all points, each once, and notes on the whole sweep."""
    scaling: Scaling | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The axes that vary."""
        return tuple(axis.name for axis in self.axes)

    @property
    def ran(self) -> tuple[Outcome, ...]:
        """The points that have a result."""
        return tuple(outcome for outcome in self.outcomes if outcome.error is None)

    @property
    def best(self) -> Outcome | None:
        """The first of those that do most work per second and GPU; None where fewer than two ran."""
        ran = [outcome for outcome in self.ran if outcome.efficiency is not None]
        if len(ran) < 2:
            return None
        if all(outcome.tokens_per_s_per_gpu is not None for outcome in ran):
            return max(ran, key=lambda outcome: outcome.tokens_per_s_per_gpu or 0.0)
        return max(ran, key=lambda outcome: outcome.efficiency or 0.0)


def sweep(axes: Sequence[SweepAxis], ask: Ask, scaling: Scaling | None = None) -> Sweep:
    """Simulates a job for every combination of the values of some axes.

    Every point is asked for before the first is run, so that an option that cannot be meant is refused at once. An
    interrupt ends the sweep and keeps the finished points; where none has run, it is raised again.

    Args:
        axes: What is varied, and the values.
        ask: Returns what simulates the job with the options of a point.
        scaling: How the batch follows the GPUs, where these vary; it is reported.

    Raises:
        UsageError: An axis or value means nothing for this job.
        InputError: No point runs, for a reason that does not depend on the values.
    """
    points = points_of(axes)
    notes = () if scaling is None else (scaling.note,)
    result, names = Sweep(tuple(axes), (), warnings=notes, scaling=scaling), [axis.name for axis in axes]
    with doing(f"sweep over {' and '.join(names)}") as work:
        runs: list[Run | SweepError] = [_asked(ask, dict(zip(names, point, strict=True))) for point in points]
        progress = SearchProgress(work)
        progress.begin("", len(points))
        for number, (point, run) in enumerate(zip(points, runs, strict=True)):
            progress.reach(number, _place(axes, point), "" if result.best is None else result.best.label)
            try:
                result = _with(result, point, run)
            except KeyboardInterrupt:
                if not result.ran:
                    raise
                return replace(result, interrupted=True)
    _refuse_constant(result)
    return result


def _asked(ask: Ask, values: Mapping[str, AxisValue]) -> Run | SweepError:
    try:
        return ask({name: value.text for name, value in values.items()})
    except ForetraceError as error:
        if isinstance(error, UsageError) or error.code == UNKNOWN:
            raise
        return _error(error)


def _place(axes: Sequence[SweepAxis], point: Point) -> str:
    return ", ".join(f"{axis.name} {value.label}" for axis, value in zip(axes, point, strict=True))


def _with(result: Sweep, point: Point, run: Run | SweepError) -> Sweep:
    """Runs a point and returns the sweep with its outcome."""
    if isinstance(run, SweepError):
        return replace(result, outcomes=(*result.outcomes, Outcome(point, error=run)))
    try:
        answer = run()
    except UsageError:
        raise
    except ForetraceError as error:
        return replace(result, outcomes=(*result.outcomes, Outcome(point, error=_error(error))))
    outcome = _outcome(result, point, answer)
    title = _common(result.title, answer.title) if result.title else answer.title
    # The row of a point that does not fit says so itself; one that is tight is named.
    fresh = [_of_point(note, outcome) for note in answer.diagnostics if note.level == "warning" and not outcome.error]
    warnings = tuple(dict.fromkeys((*result.warnings, *fresh)))
    return replace(result, outcomes=(*result.outcomes, outcome), title=title, warnings=warnings)


def _of_point(note: Diagnostic, outcome: Outcome) -> Diagnostic:
    """Returns a warning with the point that it is about, where points differ in it."""
    return replace(note, message=f"{outcome.label}: {note.message}") if note.code == TIGHT else note


def _error(error: ForetraceError) -> SweepError:
    place = f"{error.where}: " if error.where else ""
    return SweepError(error.code, f"{place}{error.message}", error.hint)


def _refuse_constant(result: Sweep) -> None:
    """Raises the error that every point has, where it does not depend on their values: a table would not help."""
    errors = [outcome.error for outcome in result.outcomes]
    first = errors[0] if errors else None
    if first is None or first.code == OUT_OF_MEMORY:
        return
    unknown = all(error is not None and error.code == UNKNOWN for error in errors)
    if unknown or (len(errors) > 1 and all(error == first for error in errors)):
        raise InputError(
            first.code, first.message, where=f"--over {result.names[0]}" if unknown else None, hint=first.hint
        )


def _common(title: str, other: str) -> str:
    """Returns the parts that two titles have in common, place by place."""
    parts = [
        part for part, other_part in zip(title.split(" · "), other.split(" · "), strict=False) if part == other_part
    ]
    return " · ".join(parts)


def _outcome(result: Sweep, point: Point, answer: Answer) -> Outcome:
    memory, peak = answer.memory, answer.peak_memory
    if memory is not None and not memory.fits:
        needs = format_bytes(memory.needed_band_bytes[0])
        text = f"needs at least {needs} of {format_bytes(memory.capacity_bytes)}"
        error = SweepError(OUT_OF_MEMORY, text)
        sizes = Outcome(point, peak_memory_bytes=memory.peak_bytes, needed_memory_bytes=memory.needed_bytes)
        return replace(sizes, world_size=answer.world_size, error=error)
    outcome = Outcome(
        point,
        answer.world_size,
        answer.step_time_s,
        answer.step_time_band_s,
        answer.tokens_per_s_per_gpu,
        answer.mfu,
        None if peak is None else peak.bytes,
        None if memory is None else memory.needed_bytes,
        1.0,
        answer.breakdown.mean_s,
    )
    first = next((earlier for earlier in result.ran if _on_one_curve(result, earlier, outcome)), outcome)
    return replace(outcome, efficiency=_efficiency(result, outcome, first))


def _on_one_curve(result: Sweep, first: Outcome, outcome: Outcome) -> bool:
    """Returns whether two points are compared: over GPUs those whose other values are the same, otherwise all."""
    if SCALED_BY not in result.names:
        return True
    pairs = zip(result.names, first.point, outcome.point, strict=True)
    return all(start == value for name, start, value in pairs if name != SCALED_BY)


ARGUMENTS: Final = ("args", "arguments")
"""The names of an axis that varies the arguments of a script."""


def _efficiency(result: Sweep, outcome: Outcome, first: Outcome) -> float | None:
    if not outcome.step_time_s or not first.step_time_s or not outcome.world_size or not first.world_size:
        return None
    if outcome.tokens_per_s_per_gpu and first.tokens_per_s_per_gpu:
        return outcome.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu
    if any(name in ARGUMENTS for name in result.names):
        return None  # the arguments of a script may change its work in any way
    work = 1.0
    for name, value, start in zip(result.names, outcome.point, first.point, strict=True):
        if name in ("microbatches", "batch"):
            work *= _number(value.value) / _number(start.value)
        elif name == "pp":
            work *= first.world_size / outcome.world_size
    return work * first.step_time_s / outcome.step_time_s


def _number(value: Value) -> float:
    return 1.0 if isinstance(value, str) else float(value)
