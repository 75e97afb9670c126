"""Sweeps a job over a range of one quantity, with a simulation for each value.

`microbatches=8,16,32`       values written out
`gpus=16:1024:x2`            from low to high, multiplied by 2 each time (the default factor)
`compute=1x,1.5x,2x`         how fast ops or a resource are, as in a what-if; `network` is all communication
`straggler:5=1x,1.2x`        how slow rank 5 is
`batch=1x,2x,4x`             how many times the recorded samples a profiler trace has; `gpu=h100-sxm,b200` on other GPUs
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from foretrace.basics.errors import Diagnostic, ForetraceError, InputError, UsageError, did_you_mean
from foretrace.basics.progress import doing
from foretrace.basics.units import format_count, parse_count, parse_factor, parse_times, parse_tokens
from foretrace.cost.machine import Machine
from foretrace.hardware.presets import check_gpu
from foretrace.readings.answer.answer import Answer
from foretrace.readings.jitter import check_jitter
from foretrace.readings.scenario import Scenario
from foretrace.simulation.simulate_input import simulate_input

if TYPE_CHECKING:
    from foretrace.inputs.base import Input

AxisKind = Literal["count", "cluster", "gpu", "batch", "jitter", "routing", "straggler", "what-if"]
Value = int | float | str

AXES = ("dp", "pp", "ep", "tp", "cp")
COUNTS = ("microbatches", "gpus", *AXES, "etp", "vpp", "mbs", "gbs", "seq_len", "zero", "recompute_layers")
KINDS: dict[str, AxisKind] = {
    "cluster": "cluster",
    "gpu": "gpu",
    "batch": "batch",
    "jitter": "jitter",
    "routing": "routing",
}
"""The kinds of axes by name; an axis that is neither here nor in `COUNTS` is a what-if."""
MAX_POINTS = 1000
"""Values of a range; more would take long, and nobody would read them."""

_NAMED = {"cluster": "cluster=a100-dgx,h100-dgx", "gpu": "gpu=h100-sxm,b200"}
_FORM = "expected NAME=v1,v2,… or NAME=low:high:x2, as in --over microbatches=8,16,32"


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """A quantity that is varied, and its values: counts, shares, factors, or names.

    `what` is the family of a what-if, `rank` the rank of a straggler.
    """

    name: str
    kind: AxisKind
    values: tuple[Value, ...]
    what: str = ""
    rank: int = -1

    def label(self, value: Value) -> str:
        """Returns a value as people write it."""
        if isinstance(value, str):
            return value
        if self.kind == "count":
            return format_count(int(value))
        return f"{100 * value:g} %" if self.kind == "jitter" else f"{value:g}×"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One value of a sweep and what came of it, or why nothing did (`error`).

    `efficiency` is the work done per second and GPU, relative to the first value that ran: by tokens where they are
    known; otherwise a step is taken to be as much work per GPU as the first, but in proportion to the microbatches or
    the batch, and to the GPUs it is spread over where pp varies.
    """

    value: Value
    label: str
    world_size: int | None = None
    step_time_s: float | None = None
    step_time_band_s: tuple[float, float] | None = None
    tokens_per_s_per_gpu: float | None = None
    efficiency: float | None = None
    breakdown_s: dict[str, float] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The outcomes of a sweep in the order of its values; those finished, where it was `interrupted`. `title` is what
    the titles of all that ran have in common."""

    axis: SweepAxis
    outcomes: tuple[Outcome, ...]
    interrupted: bool = False
    title: str = ""
    warnings: tuple[Diagnostic, ...] = ()
    """The warnings of all values, each once, and notes on the whole sweep."""

    @property
    def best(self) -> Outcome | None:
        """The first of those that do most work per second and GPU; None where fewer than two ran."""
        outcomes = [outcome for outcome in self.outcomes if outcome.efficiency is not None]
        return max(outcomes, key=lambda outcome: outcome.efficiency or 0.0) if len(outcomes) > 1 else None


def sweep(job: Input, axis: SweepAxis, machine: Machine, scenario: Scenario) -> Sweep:
    """Simulates a job for every value of an axis.

    An error of one value is kept as its outcome. An interrupt ends the sweep and keeps the finished values.

    Args:
        job: The job to vary.
        axis: What is varied, and its values.
        machine: What the job runs on; without a cluster where the axis names clusters.
        scenario: What is different from normal, for every value.

    Raises:
        UsageError: The axis means nothing for this job.
        InputError: No value can be run.
    """
    _check(job, axis, machine)
    with doing(f"sweep over {axis.name}") as progress:

        def show(number: int, part: Sweep) -> None:
            best = f", best so far {part.best.label}" if part.best is not None else ""
            what = f"{axis.name} {axis.label(axis.values[number])}"
            progress.text = f"sweep: {what}, {number + 1} of {len(axis.values)}{best}"

        result = run_axis(axis, lambda value: _run(job, axis, value, machine, scenario), show)
    if result.outcomes and all(row.error is not None for row in result.outcomes) and not result.interrupted:
        first = result.outcomes[0]
        raise InputError("nothing-to-do", f"no value of {axis.name} can be run; {first.label}: {first.error}")
    if job.kind != "profiler-trace" or job.options.host != "profiled":
        return result
    text = "steps as recorded, slowed by the profiler; without it: --what-if unprofiled"
    return replace(result, warnings=(*result.warnings, Diagnostic("note", "profiled-steps", text)))


def _check(job: Input, axis: SweepAxis, machine: Machine) -> None:
    """Raises an error where no value of the axis could mean anything."""
    if axis.kind == "cluster" and machine.cluster is not None:
        raise UsageError("conflicting-options", "--over cluster=… names the clusters", hint="leave out --cluster")
    is_option = job.has_option(axis.name)
    if axis.kind in ("batch", "gpu", "routing") and not is_option:
        raise job.refuse_option(axis.name)
    if axis.kind in ("batch", "gpu") and getattr(job.options, axis.name) not in (None, 1.0):
        hint = f"leave out --what-if {axis.name}=…"
        raise UsageError("conflicting-options", f"--over {axis.name} names them all", hint=hint)
    if axis.kind == "gpu":
        for value in axis.values:
            check_gpu(str(value), "--over gpu")
    if axis.kind == "count" and not is_option and axis.name not in AXES:
        raise job.refuse_option(axis.name)
    if axis.kind == "count" and not fields(job.Options):
        raise UsageError(
            "option-not-for-input",
            f"{job.title} is {job.noun}: {axis.name}",
            hint="sweep over what-ifs, stragglers, jitter or clusters, or sweep the workload it was made of",
        )
    if axis.kind == "count" and not is_option:
        with suppress(InputError):  # what is wrong with one value alone is kept as its outcome
            job.with_axis(axis.name, int(axis.values[0]))


def _run(job: Input, axis: SweepAxis, value: Value, machine: Machine, scenario: Scenario) -> Answer:
    """Simulates the job at one value."""
    match axis.kind:
        case "cluster":
            machine = machine.with_(cluster=str(value))
        case "count":
            job = _counted(job, axis.name, int(value))
        case "batch" | "routing":
            job = job.with_options(**{axis.name: float(value)})
        case "gpu":
            job = job.with_options(gpu=str(value))
        case "jitter":
            scenario = replace(scenario, jitter=float(value))
        case "straggler":
            scenario = replace(scenario, stragglers={**scenario.stragglers, axis.rank: float(value)})
        case "what-if":
            scenario = replace(scenario, what_if={**scenario.what_if, axis.what: float(value)})
    return simulate_input(job, machine, scenario)


def _counted(job: Input, name: str, count: int) -> Input:
    """Returns the job with one count: an option of its own, or an axis of its mesh, the others as they are."""
    if job.has_option(name):
        return job.with_options(**{name: count})
    return job.with_axis(name, count)


def run_axis(
    axis: SweepAxis, run: Callable[[Value], Answer], starts: Callable[[int, Sweep], None] | None = None
) -> Sweep:
    """Runs every value of an axis.

    `starts` is called before each with the number of the value and the sweep so far.
    """
    part = Sweep(axis, ())
    for number, value in enumerate(axis.values):
        label = axis.label(value)
        if starts is not None:
            starts(number, part)
        try:
            answer = run(value)
            outcome = _outcome(axis, value, answer, part.outcomes)
            title = _common(part.title, answer.title) if part.title else answer.title
            fresh = [note for note in answer.diagnostics if note.level == "warning"]
            warnings = tuple(dict.fromkeys((*part.warnings, *fresh)))
            part = replace(part, title=title, warnings=warnings)
        except ForetraceError as error:
            place = f"{error.where}: " if error.where else ""
            outcome = Outcome(value, label, error=f"{place}{error.message}")
        except KeyboardInterrupt:
            return replace(part, interrupted=True)
        part = replace(part, outcomes=(*part.outcomes, outcome))
    return part


def _common(title: str, other: str) -> str:
    """Returns the parts that two titles have in common, place by place."""
    parts = [
        part for part, other_part in zip(title.split(" · "), other.split(" · "), strict=False) if part == other_part
    ]
    return " · ".join(parts)


def _outcome(axis: SweepAxis, value: Value, answer: Answer, before: Iterable[Outcome]) -> Outcome:
    mine = Outcome(
        value,
        axis.label(value),
        answer.world_size,
        answer.step_time_s,
        answer.step_time_band_s,
        answer.tokens_per_s_per_gpu,
        1.0,
        answer.breakdown.mean_s,
    )
    first = next((outcome for outcome in before if outcome.step_time_s is not None), mine)
    return replace(mine, efficiency=_efficiency(axis, mine, first))


def _efficiency(axis: SweepAxis, mine: Outcome, first: Outcome) -> float | None:
    if not mine.step_time_s or not first.step_time_s or not mine.world_size or not first.world_size:
        return None
    if mine.tokens_per_s_per_gpu and first.tokens_per_s_per_gpu:
        return mine.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu
    work = 1.0
    if axis.name in ("microbatches", "batch"):
        work = float(mine.value) / float(first.value)
    elif axis.name == "pp":
        work = first.world_size / mine.world_size
    return work * first.step_time_s / mine.step_time_s


def parse_axis(text: str) -> SweepAxis:
    """Reads an axis as it is written on the command line."""
    name, equals, values = (part.strip() for part in text.partition("="))
    where = f"--over {text}"
    if not equals or not name or not values:
        raise UsageError("missing-argument", "a sweep needs a name and values", where=where, hint=_FORM)
    name = "communication" if name == "network" else name
    try:
        axis = _kind_of(name, values, where)
        points = _values(axis, values, where)
    except InputError as error:
        raise UsageError(error.code, error.message, where=where, hint=error.hint) from None
    if len(set(points)) < len(points):
        twice = next(value for value in points if points.count(value) > 1)
        raise UsageError("repeated-option", f"{axis.label(twice)} is given twice", where=where)
    return replace(axis, values=points)


def _kind_of(name: str, values: str, where: str) -> SweepAxis:
    head, colon, rest = name.partition(":")
    if head == "straggler":
        rank = rest.removeprefix("rank").strip()
        if not colon or not rank.isdecimal():
            raise UsageError(
                "missing-argument", "which rank is slow?", where=where, hint="example: --over straggler:5=1x,1.2x,1.5x"
            )
        return SweepAxis(name, "straggler", (), rank=int(rank))
    if name in KINDS:
        return SweepAxis(name, KINDS[name], ())
    factors = re.search(r"[0-9.]\s*[x×%]", values.split(":")[0]) is not None
    if name in COUNTS and not factors:
        return SweepAxis(name, "count", ())
    if name in COUNTS and name not in AXES:
        # An axis with an x is a speed: dp=2x makes what dp ranks communicate twice as fast.
        raise UsageError("bad-value", f'"{name}" takes counts', where=where, hint="a count has no x")
    if not factors:
        raise UsageError(
            "bad-value",
            f'"{name}" takes factors{did_you_mean(name, (*COUNTS, *KINDS))}',
            where=where,
            hint=f"{name}=1x,2x makes it 1 and 2 times as fast; counts: {', '.join(COUNTS)}",
        )
    return SweepAxis(name, "what-if", (), what=name)


def _values(axis: SweepAxis, text: str, where: str) -> tuple[Value, ...]:
    if axis.kind in ("cluster", "gpu"):
        names = tuple(part.strip() for part in text.split(","))
        if not all(names):
            raise UsageError(
                "missing-argument", "a name is missing", where=where, hint=f"example: --over {_NAMED[axis.kind]}"
            )
        return names
    if ":" in text:
        return _range(axis, text, where)
    # 1,024 in a list of values is two of them: thousands are not set apart here.
    return tuple(_value(axis, part, where) for part in text.split(","))


def _value(axis: SweepAxis, text: str, where: str) -> int | float:
    match axis.kind:
        case "count":
            count = (parse_tokens if axis.name == "seq_len" else parse_count)(text, where=where)
            if count < 1:
                raise UsageError(
                    "out-of-range", f"{axis.name} of {count} cannot be", where=where, hint="counts begin at 1"
                )
            return count
        case "jitter":
            return check_jitter(0.0 if text.strip() in ("0", "0%") else parse_factor(text, where=where))
        case "straggler":
            factor = parse_times(text, where=where)
            if factor < 1:
                raise UsageError(
                    "out-of-range", f"{factor:g} times as slow would be faster", where=where, hint="20 % slower is 1.2x"
                )
            return factor
        case _:
            factor = (parse_times if axis.kind == "what-if" else parse_factor)(text, where=where)
            if axis.kind == "what-if" and factor < 1 and text.strip().endswith("%"):
                hint = "20 % faster is 1.2x; a fifth as fast is 0.2x"
                raise UsageError("bad-value", f"{text.strip()} of what?", where=where, hint=hint)
            return factor


def _range(axis: SweepAxis, text: str, where: str) -> tuple[Value, ...]:
    """Reads `low:high` or `low:high:x3`; each value is the one before times the factor (2 by default)."""
    parts = text.split(":")
    times = re.fullmatch(r"x\s*([0-9.]+)", parts[2].strip()) if len(parts) == 3 else None
    if len(parts) > 3 or (len(parts) == 3 and times is None):
        raise UsageError(
            "bad-value",
            f'"{text}" is not a range',
            where=where,
            hint="a range is low:high or low:high:xFACTOR, as 4:64:x2",
        )
    low, high = _value(axis, parts[0], where), _value(axis, parts[1], where)
    factor = parse_factor(times[1], where=where) if times else 2.0
    if low <= 0 or high < low or factor <= 1:
        raise UsageError(
            "out-of-range",
            f'"{text}" goes nowhere',
            where=where,
            hint="low is above 0, high above low, the factor above 1",
        )
    points: list[Value] = []
    value = float(low)
    while value <= high * (1 + 1e-9):
        if len(points) == MAX_POINTS:
            raise UsageError(
                "too-large", f'"{text}" has more than {MAX_POINTS:,} values', where=where, hint="take a larger factor"
            )
        exact = round(value) if axis.kind == "count" else float(f"{value:.12g}")
        points += [exact] if exact not in points else []
        value *= factor
    return tuple(points)
