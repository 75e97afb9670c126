"""The result of a search for plans: the best and what is shown about the others, as a screen and as JSON.

Every claim on the screen is about predictions. No line says that a plan is the fastest without saying that it is
predicted so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO

from foretrace.basics.errors import Diagnostic, printable
from foretrace.basics.units import (
    MINUS,
    format_bytes,
    format_count,
    format_difference,
    format_number,
    format_percent,
    format_time,
    parse_time,
)
from foretrace.report.json import read_record, to_json
from foretrace.report.plan_words import (
    SEPARATOR,
    common_words,
    data_parallel,
    pack_words,
    plan_notes,
    plan_text,
    plan_words,
    varying_fields,
)
from foretrace.report.table import table
from foretrace.report.terminal import MAX_DIAGNOSTICS, Screen, Span, diagnostic_lines, show
from foretrace.search.planner.request import LARGEST_FIELDS, Objective, PlanRequest
from foretrace.search.planner.result import OUT_OF_MEMORY, Evidence, PlanSearch, RankedPlan, SearchProof
from foretrace.workload.plan import Plan

PLAN_SCHEMA: Final = "foretrace.plan/1"

MAX_FRONT: Final = 8
"""Plans of the front of time and memory that a screen lists; JSON has all."""
MAX_MISSES: Final = 5
MAX_REASONS: Final = 8
MAX_PARTS: Final = 5
MIN_PART: Final = 1e-4
"""The share of the step below which a difference of two breakdowns is not named."""
FULL_WIDTH: Final = 80
"""The width of a screen from which on tables have all columns."""

_INDENT: Final = "  "
_SAME: Final = 1e-8
"""The share by which a bound and a step may differ and be the same: they are compared in nine digits."""
_ROUNDING_STEP: Final = 1e-4
"""By how much a time is lowered at once until it is not rounded up: less than its last digit."""
_GIB: Final = 1 << 30
_MILLION: Final = 1_000_000
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0

REASON_WORDS: Final[Mapping[str, str]] = {OUT_OF_MEMORY: "memory of a GPU", "misses-deadline": "the deadline"}
"""Words for the reasons of rejection; any other reason is the name of a rule of the software."""

_STOPPED_BY: Final[Mapping[str, str]] = {
    "gap": "--gap",
    "time": "--time",
    "simulations": "the limit of simulations",
    "interrupt": "an interrupt",
}
_SPACES: Final = {"launchable": "that can be launched", "hypothetical": "in the model"}
_PLANS: Final = {"launchable": "launchable plans", "hypothetical": "plans (some of which no software can launch)"}


@dataclass(frozen=True, slots=True)
class RankedPlanRecord:
    """A plan of a search: every field of it, with `dp` and `microbatches`, and what is predicted."""

    plan: Mapping[str, Any]
    options: str
    step_time_s: float
    evidence: Evidence
    bound_s: float | None
    peak_memory_bytes: int
    needed_memory_bytes: int
    headroom_bytes: int
    tokens_per_s_per_gpu: float
    wins: float
    ties: float
    cost_per_million_tokens: float | None
    training_s: float | None

    @classmethod
    def of(cls, ranked: RankedPlan, search: PlanSearch, request: PlanRequest) -> RankedPlanRecord:
        """Reads a plan; cost and time of the training where the request has what they need."""
        return read_record(
            cls,
            ranked,
            plan=_settled_fields(ranked.plan, search),
            cost_per_million_tokens=cost_per_million(ranked, request),
            training_s=training_s_of(ranked, request),
        )


@dataclass(frozen=True, slots=True)
class NearMissRecord:
    """A plan that was rejected, and what would have saved it."""

    reason: str
    plan: Mapping[str, Any]
    options: str
    step_time_s: float | None
    short_bytes: int | None
    saved_by: str | None


@dataclass(frozen=True, slots=True)
class DifferenceRecord:
    """The runner-up, and the parts of the breakdown as the best less the runner-up."""

    runner_up: RankedPlanRecord
    parts_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What was asked for; the number of workers is not part of it, since nothing depends on it."""

    axes: Mapping[str, str]
    gpu_counts: tuple[int, ...]
    gap: float
    time_s: float | None
    top: int
    price_per_gpu_hour: float | None
    tokens: int | None
    deadline_s: float | None
    largest: str | None


@dataclass(frozen=True, slots=True)
class PlanSearchRecord:
    """The JSON of a search, one field for every key."""

    model: str
    cluster: str
    gpus: int
    gbs: int
    seq_len: int
    objective: Objective
    request: RequestRecord
    searched: int
    distinct: int
    feasible: int
    best: RankedPlanRecord | None
    plans: tuple[RankedPlanRecord, ...]
    rejected: Mapping[str, int]
    search: SearchProof
    indistinguishable: tuple[RankedPlanRecord, ...]
    measure_first: tuple[RankedPlanRecord, ...]
    spread: float | None
    front: tuple[RankedPlanRecord, ...]
    near_misses: tuple[NearMissRecord, ...]
    why: DifferenceRecord | None
    launch: Mapping[str, str]
    launch_options: Mapping[str, Any]
    diagnostics: tuple[Diagnostic, ...]


def plan_json(search: PlanSearch) -> dict[str, Any]:
    """Returns a search as JSON. Times of the search itself are left out, so that equal searches are equal bytes."""
    request = request_of(search)

    def records(plans: Sequence[RankedPlan]) -> tuple[RankedPlanRecord, ...]:
        return tuple(RankedPlanRecord.of(plan, search, request) for plan in plans)

    why = search.why
    record = read_record(
        PlanSearchRecord,
        search,
        request=read_record(RequestRecord, request),
        best=records([search.best])[0] if search.best is not None else None,
        plans=records(search.plans),
        indistinguishable=records(search.indistinguishable),
        measure_first=records(search.measure_first),
        front=records(search.front),
        near_misses=tuple(
            read_record(NearMissRecord, miss, plan=_settled_fields(miss.plan, search)) for miss in search.near_misses
        ),
        why=None if why is None else DifferenceRecord(records([why.runner_up])[0], why.parts_s),
    )
    return to_json(PLAN_SCHEMA, record)


def request_of(search: PlanSearch) -> PlanRequest:
    """Returns what a search was asked for."""
    assert search.request is not None, "the result of a search has its request"
    return search.request


def _settled_fields(plan: Plan, search: PlanSearch) -> dict[str, Any]:
    """Returns the fields of a plan with what follows from them."""
    gbs = search.gbs if plan.gbs is None else plan.gbs
    seq_len = search.seq_len if plan.seq_len is None else plan.seq_len
    fields = {name: getattr(plan, name) for name in Plan.__slots__}
    dp = data_parallel(plan)
    return {**fields, "gbs": gbs, "seq_len": seq_len, "dp": dp, "microbatches": gbs // (plan.mbs * dp)}


def cost_per_million(ranked: RankedPlan, request: PlanRequest) -> float | None:
    """Returns what a million tokens cost; None where no price is given."""
    if request.price_per_gpu_hour is None:
        return None
    return request.price_per_gpu_hour * gpu_hours_per_million(ranked)


def gpu_hours_per_million(ranked: RankedPlan) -> float:
    """Returns the GPU-hours that a million tokens take."""
    return _MILLION / ranked.tokens_per_s_per_gpu / _HOUR_S


def training_s_of(ranked: RankedPlan, request: PlanRequest) -> float | None:
    """Returns how long the whole training takes; None where its tokens are not given."""
    return None if request.tokens is None else request.tokens / (ranked.tokens_per_s_per_gpu * ranked.plan.gpus)


def print_plans(
    search: PlanSearch,
    next_command: str = "",
    stream: TextIO | None = None,
    *,
    with_launch: bool = False,
) -> None:
    """Prints the screen of a search.

    Args:
        search: The result.
        next_command: The command that predicts the best plan.
        stream: Where to print; None: stdout.
        with_launch: Whether the launch script is printed; otherwise its options for the plan are.
    """
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[], *_headline(search)]
    lines += _best_plans(search, screen)
    lines += _front(search, screen)
    lines += _why(search)
    lines += _rejected(search)
    lines += _near_misses(search)
    lines += _launch(search, with_launch)
    lines += [[], *diagnostic_lines(search.diagnostics, MAX_DIAGNOSTICS)]
    if next_command and search.best is not None:
        lines.append([(f"  next     {next_command}", "bright_black")])
    show(screen, lines)
    for script in search.launch.values() if with_launch else ():
        # A script is for pasting, so that no line of it is folded or indented.
        print(f"\n{printable(script)}", file=screen.stream)


def _headline(search: PlanSearch) -> list[list[Span]]:
    job = f"{search.model}{SEPARATOR}{format_count(search.gpus)} GPUs of {search.cluster}{SEPARATOR}"
    job += f"{format_count(search.gbs)} sequences of {format_count(search.seq_len)} tokens"
    space = f"{format_count(search.searched)} combinations, {format_count(search.distinct)} distinct plans "
    space += f"{_SPACES[search.search.space]}, {format_count(search.feasible)} that fit"
    return [
        *_best(search),
        _labelled("Proof", proof_text(search)),
        *_robust(search),
        _labelled("Job", job),
        _labelled("Space", space),
    ]


def _labelled(label: str, text: str) -> list[Span]:
    return [(f"  {label:<7}  {text}", "")]


def _best(search: PlanSearch) -> list[list[Span]]:
    best = search.best
    if best is None:
        return [[("  Best     ", ""), (no_best_text(search), "bold red")]]
    facts = [
        f"{format_number(best.tokens_per_s_per_gpu)} tokens/s per GPU",
        f"{format_bytes(best.needed_memory_bytes)}, {spare_text(best.headroom_bytes)}",
    ]
    predicted = "" if best.evidence == "simulated" else " (estimated)"
    lines: list[list[Span]] = [
        [
            ("  Best     ", ""),
            (plan_text(best.plan, varying_fields([each.plan for each in search.plans])), "bold"),
            ("     ", ""),
            (format_time(best.step_time_s), "bold"),
            (f"{predicted}     {'     '.join(facts)}", ""),
        ]
    ]
    goal = goal_text(search, best)
    return [*lines, _labelled("Goal", goal)] if goal else lines


def _has_shown(search: PlanSearch) -> bool:
    """Returns whether a search without a best plan has shown anything: one that was interrupted early has not."""
    return search.search.simulations > 0 or search.search.stopped_by is None


def no_best_text(search: PlanSearch) -> str:
    """Returns why there is no best plan."""
    return f"no plan is predicted to {_failure(search)}" if _has_shown(search) else "not known yet"


def _failure(search: PlanSearch) -> str:
    """Returns what no plan is predicted to do, where there is no best one."""
    return "meet the deadline" if search.misses_deadline else fit_text(search)


def fit_text(search: PlanSearch) -> str:
    """Returns what the plans do that a search has not rejected: fit, as far as it got."""
    return "fit" if search.search.complete else "fit so far"


def spare_text(size: int) -> str:
    """Returns how much memory of a GPU is left, or lacking."""
    return (
        f"{format_bytes(size)} to spare"
        if size >= 0
        else f"{format_bytes(-size)} too little as memory usually fragments"
    )


def goal_text(search: PlanSearch, best: RankedPlan) -> str:
    """Returns what the best plan is best in, where that is not the step alone."""
    request = request_of(search)
    cost, training_s = cost_per_million(best, request), training_s_of(best, request)
    words = []
    if request.largest is not None:
        value = getattr(best.plan, LARGEST_FIELDS[request.largest]) or getattr(search, LARGEST_FIELDS[request.largest])
        words.append(f"the largest {request.largest} that fits is {format_count(value)}")
    if training_s is not None and request.tokens is not None and request.deadline_s is not None:
        words.append(
            f"{format_count(request.tokens)} tokens take {days_text(training_s)} on "
            f"{format_count(best.plan.gpus)} GPUs, of {request.deadline_s / _DAY_S:,.1f} allowed"
        )
    if search.objective == "cost" or cost is not None:
        hours = gpu_hours_per_million(best)
        words.append(
            f"a million tokens cost {hours:.3g} GPU-hours"
            + ("" if cost is None else f", {cost:.3g} at {request.price_per_gpu_hour:g} a GPU-hour")
        )
    if search.objective == "memory":
        words.append("the most memory to spare; the fastest of equals")
    if search.objective == "pareto":
        words.append(f"the fastest of {len(search.front)} plans of which none is predicted both faster and smaller")
    return "; ".join(words)


def days_text(seconds: float) -> str:
    """Returns the time of a training in days."""
    return f"{seconds / _DAY_S:,.1f} days"


def proof_text(search: PlanSearch) -> str:
    """Returns what the search has shown, which is always about predictions."""
    proof, best = search.search, search.best
    plans = f"{format_count(search.distinct if best is None else search.feasible)} {_PLANS[proof.space]}"
    plans += "" if best is None else " that fit"
    runs = f"({format_count(proof.simulations)} simulated)"
    if best is None and not _has_shown(search):
        return f"stopped by {_STOPPED_BY[str(proof.stopped_by)]}: nothing has been simulated yet"
    if best is None:
        return f"none of {plans} is predicted to {_failure(search)}"
    stopped = f"stopped by {_STOPPED_BY.get(proof.stopped_by, proof.stopped_by)}: " if proof.stopped_by else ""
    if proof.complete:
        within = f" to {format_percent(proof.gap)}" if proof.gap > 0 else ""
        return f"Complete{within}: none of {plans} is predicted {_worse(search, best)} {runs}"
    if search.objective == "memory":
        return f"{stopped}{format_count(proof.undecided)} plans are left that may need less memory, or be faster {runs}"
    left = f"{stopped}{format_count(proof.undecided)} plans are left that may be predicted faster"
    return f"{left}; none of {plans} is predicted {_worse(search, best)} {runs}" if proof.lower_bound_s else left


def _worse(search: PlanSearch, best: RankedPlan) -> str:
    """Returns in words what no plan is predicted to do, by the objective."""
    if search.objective == "memory":
        return f"to leave more than {format_bytes(best.headroom_bytes)} of a GPU"
    bound_s, step_s = search.search.lower_bound_s, best.step_time_s
    if bound_s is None or bound_s >= step_s * (1 - _SAME):
        return f"below the best, {format_time(step_s)}"
    return f"below {_at_most(bound_s)}, {100 * (1 - bound_s / step_s):.2g} % less than the best"


def _at_most(seconds: float) -> str:
    """Returns a time rounded down, so that a bound that is shown is a bound."""
    shown_s = seconds
    while parse_time(format_time(shown_s)) > seconds:
        shown_s *= 1 - _ROUNDING_STEP
    return format_time(shown_s)


def robust_text(search: PlanSearch) -> str:
    """Returns how many plans the predictions cannot tell from the best; empty where that is not known."""
    best = search.best
    if search.spread is None or best is None:
        return ""
    others = sum(each.plan != best.plan for each in search.indistinguishable)
    told = {0: "every other plan can be told from the best", 1: "1 plan cannot be told from the best"}
    text = f"predictions of this kind err by ± {100 * search.spread:.2g} % against each other: "
    text += told.get(others, f"{format_count(others)} plans cannot be told from the best")
    count = len(search.measure_first)
    measure = f"; measure {'this' if count == 1 else f'these {count}'} first" if others and count else ""
    return text + measure


def _robust(search: PlanSearch) -> list[list[Span]]:
    """Returns which plans the predictions cannot tell from the best, and which to measure."""
    text, first = robust_text(search), search.measure_first
    if not text:
        return []
    lines = [_labelled("Robust", text)]
    if all(each == search.best for each in search.indistinguishable):
        return lines
    varying = varying_fields([each.plan for each in first])
    for number, ranked in enumerate(first, 1):
        wins = f", fastest in {100 * ranked.wins:.0f} % of draws of price errors" if ranked.wins else ""
        words = plan_text(ranked.plan, varying)
        lines.append(_labelled("", f"{number}. {format_time(ranked.step_time_s)}{wins}: {words}"))
    return lines


def _best_plans(search: PlanSearch, screen: Screen) -> list[list[Span]]:
    if not search.plans:
        return []
    title = f"the best {len(search.plans)}" if len(search.plans) > 1 else "the best"
    return _plan_table(title, search.plans, screen, _COLUMNS)


def _front(search: PlanSearch, screen: Screen) -> list[list[Span]]:
    """Returns the plans of which none is both faster and smaller, where they are not just the best plan."""
    if len(search.front) < 2:
        return []
    shown = search.front[:: -(-len(search.front) // MAX_FRONT)]
    lines = _plan_table("time against memory", shown, screen, _COLUMNS[:1] + _COLUMNS[2:4])
    left = len(search.front) - len(shown)
    more = f"; {left} more in --json, all in --plot" if left else ""
    return [*lines, [(f"  no plan is predicted both faster and smaller than one of these{more}", "bright_black")]]


_COLUMNS: Final[tuple[tuple[str, Callable[[RankedPlan], str]], ...]] = (
    ("step", lambda ranked: format_time(ranked.step_time_s)),
    ("tokens/s/GPU", lambda ranked: format_number(ranked.tokens_per_s_per_gpu)),
    ("GiB", lambda ranked: f"{ranked.needed_memory_bytes / _GIB:.1f}"),
    ("spare", lambda ranked: f"{ranked.headroom_bytes / _GIB:.1f}".replace("-", MINUS)),
    ("evidence", lambda ranked: ranked.evidence),
)
"""The columns of a table of plans: their heads and cells."""


def _plan_table(
    title: str,
    plans: Sequence[RankedPlan],
    screen: Screen,
    columns: Sequence[tuple[str, Callable[[RankedPlan], str]]],
) -> list[list[Span]]:
    """Returns a table of plans, whose words go on below where they are longer than their column.

    On a narrow screen the rate is left out, which follows from the step.
    """
    varying = varying_fields([each.plan for each in plans])
    words = [plan_words(each.plan, varying) for each in plans]
    common = common_words(words)
    words = [[word for word in row if word not in common] for row in words]
    heads, cells = [], []
    for head, cell in columns:
        if head != "tokens/s/GPU" or screen.fold is None or screen.fold >= FULL_WIDTH:
            heads.append(head)
            cells.append([cell(each) for each in plans])
    used = sum(max(map(len, (head, *column))) + 2 for head, column in zip(heads, cells, strict=True))
    longest = max(len(word) for row in words for word in row) + len(_INDENT)
    room = None if screen.fold is None else max(screen.fold - used - 2, longest)
    rows = []
    for own, numbers in zip(words, zip(*cells, strict=True), strict=True):
        first, *others = pack_words(own, room, _INDENT)
        rows += [[first, *numbers], *([line, *("" for _ in heads)] for line in others)]
    notes = plan_notes(plans, common)
    return [[], *table([title, *heads], rows), *([(f"  {note}", "bright_black")] for note in notes)]


def _why(search: PlanSearch) -> list[list[Span]]:
    """Returns the parts of the step in which the best plan and the runner-up differ, the largest first."""
    why, best = search.why, search.best
    if why is None or best is None:
        return []
    runner_up = why.runner_up
    behind = format_difference(runner_up.step_time_s, best.step_time_s)
    name = plan_text(runner_up.plan, varying_fields([best.plan, runner_up.plan]))
    parts = sorted(why.parts_s.items(), key=lambda part: (-abs(part[1]), part[0]))
    shown = [(part, size) for part, size in parts if abs(size) > MIN_PART * best.step_time_s][:MAX_PARTS]
    text = SEPARATOR.join(f"{part} {'+' if size > 0 else MINUS}{format_time(abs(size))}" for part, size in shown)
    return [
        [],
        [
            ("  why the best beats the next plan that was simulated", "bold"),
            (f" ({name}: {format_time(runner_up.step_time_s)}, {behind})", ""),
        ],
        [(f"  best less that plan: {text or f'no part differs by {100 * MIN_PART:g} % of the step'}", "")],
    ]


def _rejected(search: PlanSearch) -> list[list[Span]]:
    if not search.rejected:
        return []
    counts = sorted(search.rejected.items(), key=lambda item: (-item[1], item[0]))
    rows = [[format_count(count), reason_words(reason)] for reason, count in counts[:MAX_REASONS]]
    note = f"{len(counts) - MAX_REASONS} more reasons in --json" if len(counts) > MAX_REASONS else ""
    return [[], *_two_columns("rejected", "by", rows), *([[(f"  {note}", "bright_black")]] if note else [])]


def _two_columns(first: str, second: str, rows: Sequence[Sequence[str]]) -> list[list[Span]]:
    """Returns rows whose second column is folded below itself, unlike that of a table."""
    width = max(len(first), *(len(row[0]) for row in rows))
    lines: list[list[Span]] = [[(f"  {first:<{width}}", "bold"), (f"  {second}", "")]]
    return lines + [[(f"  {row[0]:>{width}}  {row[1]}", "")] for row in rows]


def reason_words(reason: str) -> str:
    """Returns why plans were rejected, in words."""
    return REASON_WORDS.get(reason, reason.replace("-", " "))


def _near_misses(search: PlanSearch) -> list[list[Span]]:
    if not search.near_misses:
        return []
    lines: list[list[Span]] = [[], [("  nearest misses", "bold"), (" (the best plan of each family rejected)", "")]]
    varying = varying_fields([miss.plan for miss in search.near_misses])
    for miss in search.near_misses[:MAX_MISSES]:
        words = plan_text(miss.plan, varying)
        facts = [] if miss.step_time_s is None else [f"{format_time(miss.step_time_s)} predicted"]
        lacks = f"lacks {format_bytes(miss.short_bytes)}" if miss.short_bytes else ""
        facts.append(lacks or f"rejected by {reason_words(miss.reason)}")
        saved = f"; {miss.saved_by} would save it" if miss.saved_by else ""
        lines.append([(f"  {words}: {', '.join(facts)}{saved}", "")])
    left = len(search.near_misses) - MAX_MISSES
    return [*lines, [(f"  {left} more in --json", "bright_black")]] if left > 0 else lines


def _launch(search: PlanSearch, in_full: bool) -> list[list[Span]]:
    """Returns the options of the framework that say the best plan; none where the whole script is printed."""
    if in_full or not search.launch:
        return []
    (framework, *_) = search.launch
    options = SEPARATOR.join(_option_text(name, value) for name, value in search.launch_options.items())
    return [
        [],
        [("  launch", "bold"), (f" (options of {framework}; --launch {framework} prints the script)", "")],
        [(f"  {options}", "")],
    ]


def _option_text(name: str, value: object) -> str:
    if value is True:
        return name
    return f"{name} {','.join(map(str, value)) if isinstance(value, tuple) else value}"
