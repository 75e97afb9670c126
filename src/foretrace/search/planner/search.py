"""Searches for the best plan of a model on a machine.

`search_plans` lists the plans of a space, rejects those that do not fit into memory, bounds and estimates the others in
closed form, and simulates until bounds rule out all that were not simulated (`proof.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Protocol, TypeVar

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.basics.collector import collector_paused
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.units import format_time
from foretrace.cost.machine import Machine
from foretrace.cost.unit_costs import UnitTimes
from foretrace.engine import jit
from foretrace.inputs.inventory import counted_text
from foretrace.inputs.model.options import options_between, plan_options
from foretrace.models.model import Model
from foretrace.search.planner.asked_axes import space_of
from foretrace.search.planner.closed_form import Bounds, ClosedForm
from foretrace.search.planner.memory.memory_table import MemoryTable
from foretrace.search.planner.plan_table import PlanTable
from foretrace.search.planner.proof import Limits, Prover
from foretrace.search.planner.request import LARGEST_FIELDS, PlanRequest
from foretrace.search.planner.result import (
    OUT_OF_MEMORY,
    NearMiss,
    PlanDifference,
    PlanSearch,
    RankedPlan,
    SearchProof,
)
from foretrace.search.planner.robust import Rivals, front_of, rivals_of
from foretrace.search.planner.simulator import PlanSimulator, SimulatedPlan
from foretrace.search.planner.space import Enumeration, Space
from foretrace.search.progress import SearchedPlan, SearchedPlans
from foretrace.simulation.action_level import action_step_s
from foretrace.workload.plan import Plan
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.step_spec import step_spec

MAX_SIMULATIONS: Final = 400
"""Simulations after which a search stops although bounds leave plans open. A proof takes some tens (docs/planner.md);
plans that are still open after ten times as many are nearly equal, and the gap that is left says how nearly."""
MAX_FRONT: Final = 12
"""Plans of a front that are simulated: more than a screen lists."""
MAX_SHOWN: Final = 100
"""Plans of the front, and others, that a running search shows."""
NEAR: Final = 1.25
"""Times the memory of a GPU up to which a plan that does not fit is a near miss: with less than a quarter to save, one
more option such as partial recomputation may be enough."""
MAX_NEAR: Final = 400
"""Near misses that are estimated, those that lack least first: bounds of as many take a fraction of a second."""
_SHARED_CODES: Final = ("nearest-version", "uncertain", "field-ignored", "not-modelled")
"""Codes of the best plan's notes that hold for every plan of a search."""

FIRST_ROWS: Final = 1024
"""Rows of the first slice. For the slowest models its work takes about a second."""
SLICE_S: Final = 0.2
"""Seconds below which the next slice has twice as many plans, so that fast searches have few slices."""

MIN_TIME_S: Final = 1e-3
"""The time that is left to a search whose time is over: it simulates one plan."""


Result = TypeVar("Result")


class ShowsProgress(Protocol):
    """Shows how far a search has come."""

    def begin(self, what: str, count: int) -> None:
        """Begins a part of the work."""

    def reach(self, done: int, place: str = "", best: str = "") -> None:
        """Says how much of the part is finished."""

    def show(self, plans: Callable[[], SearchedPlans]) -> None:
        """Offers the plans that were found so far."""


def search_plans(
    model: Model, machine: Machine, request: PlanRequest, *, progress: ShowsProgress, space: Space | None = None
) -> PlanSearch:
    """Searches as a request asks.

    Args:
        model: The model.
        machine: What it runs on.
        request: What is asked for.
        progress: Is told how far the search has come.
        space: The plans, where these are not given by the request's axes.

    Raises:
        InputError: The request contradicts itself, the model or the cluster.
    """
    if request.largest is not None:
        result = _largest(model, machine, request, progress)
    else:
        result = _of_sizes(model, machine, request, progress, space)
    return replace(result, request=request)


def _of_sizes(
    model: Model, machine: Machine, request: PlanRequest, progress: ShowsProgress, space: Space | None
) -> PlanSearch:
    """Returns the best search among the sizes of the cluster that are asked for."""
    began = time.monotonic()
    counts = request.gpu_counts or (request.plan.gpus,)
    results: list[PlanSearch] = []
    refused: list[InputError] = []
    for gpus in counts:
        sized = replace(_with_time_left(request, began), plan=replace(request.plan, gpus=gpus), gpu_counts=())
        try:
            results.append(_Search(model, machine, sized, progress, space).run())
        except InputError as error:
            refused.append(error)
            continue
        except KeyboardInterrupt:
            if not results:
                raise
            results[-1] = _interrupted(results[-1])
        is_met = request.deadline_s is not None and _meets_deadline(results[-1], request)
        if is_met:
            return results[-1]
        if results[-1].search.stopped_by == "interrupt":
            return _interrupted(min(results, key=lambda result: _value(result, request)))
    if not results:
        raise refused[0]
    if request.deadline_s is not None:
        return _too_late(results[-1], request)
    best = min(results, key=lambda result: _value(result, request))
    notes = (Diagnostic("note", "no-plans", f"a number of GPUs was left out: {error.message}") for error in refused)
    return replace(best, diagnostics=(*best.diagnostics, *notes))


def _interrupted(result: PlanSearch) -> PlanSearch:
    """Returns a result as that of a search which an interrupt has ended."""
    return replace(result, search=replace(result.search, stopped_by="interrupt"))


def _with_time_left(request: PlanRequest, began: float) -> PlanRequest:
    """Returns a request whose time is what is left of it since `began`, so that several searches share it."""
    if request.time_s is None:
        return request
    return replace(request, time_s=max(request.time_s - (time.monotonic() - began), MIN_TIME_S))


def _meets_deadline(result: PlanSearch, request: PlanRequest) -> bool:
    return result.best is not None and _training_s(result, request) <= (request.deadline_s or 0.0)


def _training_s(result: PlanSearch, request: PlanRequest) -> float:
    """Returns how long the training of all tokens takes with the best plan, without interruptions."""
    assert result.best is not None and request.tokens is not None
    return result.best.step_time_s * request.tokens / (result.gbs * result.seq_len)


def _too_late(result: PlanSearch, request: PlanRequest) -> PlanSearch:
    """Returns a result without a best plan, because none meets the deadline."""
    if result.best is None:
        return result
    days = _training_s(result, request) / 86400
    text = f"{result.gpus:,} GPUs, the most that were allowed, take {days:.3g} days"
    return replace(result, best=None, diagnostics=(*result.diagnostics, Diagnostic("warning", "deadline-missed", text)))


def _value(result: PlanSearch, request: PlanRequest) -> tuple[bool, float]:
    """Returns what the best of several results is least in."""
    best = result.best
    if best is None:
        return True, 0.0
    if request.objective == "memory":
        return False, float(best.needed_memory_bytes)
    if request.objective in ("tokens", "cost"):
        return False, -best.tokens_per_s_per_gpu if request.objective == "cost" else -_rate(result, best)
    return False, best.step_time_s


def _rate(result: PlanSearch, best: RankedPlan) -> float:
    return best.tokens_per_s_per_gpu * result.gpus


def _largest(model: Model, machine: Machine, request: PlanRequest, progress: ShowsProgress) -> PlanSearch:
    """Returns the search for the largest batch or sequence with which any plan fits."""
    name, began = LARGEST_FIELDS[request.largest], time.monotonic()  # type: ignore[index]
    fixed = {axis: text for axis, text in request.axes.items() if axis != name}
    if name in request.axes:
        space = space_of(
            model, replace(request.plan, gbs=request.plan.gbs or 1), machine.needed_cluster(), request.axes
        )
        values = sorted({value for axis in space.axes if axis.name == name for (value,) in axis.choices})
    else:
        start = request.plan.gpus if name == "gbs" else 1024
        values = [start << power for power in range(24)]
    searches: list[_Search] = []
    for value in values:
        plan = replace(request.plan, **{name: value})
        sized = replace(_with_time_left(request, began), axes=fixed, largest=None, plan=plan)
        search = _Search(model, machine, sized, progress)
        try:
            fits = search.fits_any()
        except InputError:
            if not searches:
                raise
            break  # more microbatches, or longer sequences, than can be run
        if fits or not searches:
            searches.append(search)
        if not fits:
            break
    # Simulations may refute all plans that might fit (`_divided`); then a smaller value is the largest.
    result = searches.pop().run()
    while result.best is None and result.search.stopped_by != "interrupt" and searches:
        result = searches.pop().run()
    return result


def _slices(count: int) -> Iterator[Longs]:
    """Yields all row numbers in slices, which grow while the work on a slice takes less than `SLICE_S`."""
    first, size = 0, FIRST_ROWS
    while first < count:
        began = time.monotonic()
        yield np.arange(first, min(first + size, count))
        first += size
        if time.monotonic() - began < SLICE_S:
            size *= 2


@dataclass(frozen=True, slots=True, eq=False)
class _Fitting:
    """The plans that fit, with their memory, and those that do not.

    Attributes:
        table: Plans that fit, or may fit.
        peak_bytes: Their allocated peaks, or upper limits of these.
        needed_bytes: The memory that they need, or upper limits of it.
        exact: Whether their memory is known, and not only an upper limit of it.
        misses: Plans that do not fit.
        missing_bytes: Memory that these lack at least.
    """

    table: PlanTable
    peak_bytes: Longs
    needed_bytes: Longs
    exact: Mask
    misses: PlanTable
    missing_bytes: Longs

    def first(self, count: int) -> _Fitting:
        """Returns the first of the plans that fit, and all that do not."""
        return replace(
            self,
            table=self.table.select(np.arange(count)),
            peak_bytes=self.peak_bytes[:count],
            needed_bytes=self.needed_bytes[:count],
            exact=self.exact[:count],
        )


class _Search:
    """One search, for one number of GPUs."""

    def __init__(
        self,
        model: Model,
        machine: Machine,
        request: PlanRequest,
        progress: ShowsProgress,
        space: Space | None = None,
    ) -> None:
        self.model, self.machine, self.request, self.progress = model, machine, request, progress
        self.space = space or space_of(model, request.plan, machine.needed_cluster(), request.axes)
        machine.needed_cluster().check_fits(request.plan.gpus)
        self.capacity_bytes = int(machine.needed_cluster().gpu.memory_bytes)
        self.closed_form = ClosedForm(model, machine)
        self.seconds: dict[str, float] = {}
        self._memory = MemoryTable(model, machine)
        self._began = time.monotonic()
        self._is_interrupted = False
        """Whether an interrupt has come before the first simulation."""
        self._unbounded = 0
        """Plans that fit, but were not bounded, because the search was interrupted."""
        self._enumeration: Enumeration | None = None
        self._fitting: _Fitting | None = None

    def fits_any(self) -> bool:
        """Returns whether any plan fits."""
        return len(self.fitting().table) > 0

    def run(self) -> PlanSearch:
        """Runs the search and returns its result."""
        enumeration, fitting = self.enumeration(), self.fitting()
        if not len(fitting.table):
            return self._result(enumeration, fitting, None, None)
        bounds = self._timed("bounds", lambda: self._bounds(fitting))
        self._unbounded = len(fitting.table) - len(bounds.bound_s)
        fitting = fitting.first(len(bounds.bound_s)) if self._unbounded else fitting
        with PlanSimulator(self.model, self.machine, self.request.workers) as simulator:
            prover = self._prover(fitting, bounds, simulator)
            try:
                self._timed("simulations", lambda: self._prove(prover, fitting))
                return self._timed("reading", lambda: self._result(enumeration, fitting, prover, simulator))
            except KeyboardInterrupt:  # a second one ends the process
                prover.proof.stopped_by = "interrupt"
                return self._result(enumeration, fitting, prover, simulator)

    def enumeration(self) -> Enumeration:
        """Returns the plans of the space that can be launched."""
        if self._enumeration is None:
            self.progress.begin("listing plans", self.space.searched)
            self._enumeration = self._timed("plans", lambda: self.space.enumerate(self._reached))
        return self._enumeration

    def fitting(self) -> _Fitting:
        """Divides the plans into those that fit into memory and those that do not."""
        if self._fitting is None:
            table = self.enumeration().table
            self._fitting = self._timed("memory", lambda: self._divided(table))
        return self._fitting

    def _divided(self, table: PlanTable) -> _Fitting:
        """Divides plans by whether the memory that they usually need is there.

        Where only an upper limit is known, a plan stays as long as it may fit: its simulation tells.
        """
        memory, capacity = self._memory, self.capacity_bytes
        peak_bytes, needed_bytes = np.zeros((2, len(table)), dtype=np.int64)
        fits, exact = np.zeros((2, len(table)), dtype=bool)
        self.progress.begin("checking memory", len(table))
        for rows in _slices(len(table)):
            part = table.select(rows)
            needed_bytes[rows] = memory.held_bytes(part)
            within = np.flatnonzero(needed_bytes[rows] <= capacity)
            needs, rows_within = memory.needs(part.select(within)), rows[within]
            needed_bytes[rows_within], peak_bytes[rows_within] = needs.needed_bytes, needs.peak_bytes
            exact[rows_within] = needs.exact
            fits[rows_within] = np.where(needs.exact, needs.needed_bytes <= capacity, needs.fits)
            self.progress.reach(int(rows[-1]) + 1)
        return _Fitting(
            table.select(fits),
            peak_bytes[fits],
            needed_bytes[fits],
            exact[fits],
            table.select(~fits),
            np.maximum(needed_bytes[~fits] - capacity, 0),
        )

    def _bounds(self, fitting: _Fitting) -> Bounds:
        """Bounds and estimates the plans that fit, or the first of them where it is interrupted.

        Those of a slice have the same bits as those of the whole table.
        """
        table, done = fitting.table, 0
        bounds = Bounds(*np.full((2, len(table)), np.inf))
        self.progress.begin("bounding plans", len(table))
        try:
            for rows in _slices(len(table)):
                part = self.closed_form.bounds(table.select(rows))
                bounds.bound_s[rows], bounds.estimate_s[rows] = part.bound_s, part.estimate_s
                done = int(rows[-1]) + 1
                self.progress.reach(done)
                self.progress.show(lambda: self._plans_so_far(fitting, bounds.estimate_s))
        except KeyboardInterrupt:
            if not done:
                raise
            self._is_interrupted = True
        return Bounds(bounds.bound_s[:done], bounds.estimate_s[:done])

    def _reached(self, done: int, _total: int) -> None:
        self.progress.reach(done)

    def _timed(self, name: str, work: Callable[[], Result]) -> Result:
        began = time.process_time()
        with collector_paused():
            result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began
        return result

    def _prover(self, fitting: _Fitting, bounds: Bounds, simulator: PlanSimulator) -> Prover:
        """Returns what finds the best plan by the objective."""
        weights = self._weights(fitting.table)
        smallest = fitting.needed_bytes == fitting.needed_bytes.min()
        return Prover(
            fitting.table,
            bounds.bound_s * weights,
            bounds.estimate_s * weights,
            simulator,
            weights,
            self._action_s,
            smallest if self.request.objective == "memory" else None,
        )

    def _prove(self, prover: Prover, fitting: _Fitting) -> None:
        """Simulates until the best plan by the objective is known."""
        request = self.request
        left_s = None if request.time_s is None else request.time_s - (time.monotonic() - self._began)
        limits = Limits(request.gap, left_s, MAX_SIMULATIONS)
        self.progress.begin("simulating", 0)
        if self._is_interrupted:
            prover.proof.stopped_by = "interrupt"
        else:
            prover.prove(limits, lambda prover: self._simulated(prover, fitting))
        if prover.best() is None and prover.proof.stopped_by == "interrupt":
            prover.simulate(self._surest(prover, fitting))
        if request.objective == "pareto" and prover.proof.stopped_by not in ("interrupt", "time"):
            front = front_of(prover.weighted_s().tolist(), fitting.needed_bytes.tolist())
            prover.simulate(front[:: -(-len(front) // MAX_FRONT)])

    @staticmethod
    def _surest(prover: Prover, fitting: _Fitting) -> list[int]:
        """Returns the row with the least estimate that is known to fit, if any, for a search that has to end."""
        rows = np.flatnonzero(prover.competes & fitting.exact)
        return [int(row) for row in rows[np.argsort(prover.estimates_s[rows], kind="stable")][:1]]

    def _action_s(self, plan: Plan) -> float:
        """Returns a lower bound of a plan's step: its step at the level of actions."""
        setting = self.closed_form.setting(plan)
        units = UnitTimes(self.closed_form.prices(setting))
        with jit.using():
            return action_step_s(step_spec(setting), self.machine, units)

    def _weights(self, table: PlanTable) -> Floats:
        """Returns what a step of each plan counts: 1, or less where a plan trains more tokens in it."""
        if self.request.objective == "step" or not {"gbs", "seq_len"} & table.codes.keys():
            return np.ones(len(table))
        tokens = np.ones(len(table))
        for name in ("gbs", "seq_len"):
            if name in table.codes:
                tokens *= table.column(name)
        return np.asarray(tokens.max() / tokens)

    def _simulated(self, prover: Prover, fitting: _Fitting) -> None:
        best = prover.best()
        shown = "" if best is None else format_time(prover.proof.simulated[best].step_time_s)
        self.progress.reach(len(prover.proof.simulated), f"{counted_text(len(prover.undecided()), 'plan')} left", shown)
        self.progress.show(lambda: self._plans_so_far(fitting, prover.expected_s(), prover.proof.simulated))

    def _plans_so_far(
        self, fitting: _Fitting, steps_s: Floats, simulated: Mapping[int, SimulatedPlan] | None = None
    ) -> SearchedPlans:
        """Returns what the search has found so far.

        Args:
            fitting: The plans.
            steps_s: The expected step of each row; infinity for rows that are not estimated yet or do not fit.
            simulated: The simulated rows.
        """
        simulated = simulated or {}
        needed_bytes = fitting.needed_bytes.copy()
        for row, result in simulated.items():
            needed_bytes[row] = result.needed_memory_bytes
        rows = np.flatnonzero(np.isfinite(steps_s))
        front = rows[front_of(steps_s[rows].tolist(), needed_bytes[rows].tolist())].tolist()
        fastest = rows[np.argsort(steps_s[rows], kind="stable")].tolist()
        on_front = set(front)
        others = islice((row for row in fastest if row not in on_front), MAX_SHOWN)

        def plan(row: int) -> SearchedPlan:
            options = _options(fitting.table.plan(row))
            return SearchedPlan(options, float(steps_s[row]), int(needed_bytes[row]), row in simulated)

        return SearchedPlans(len(rows), len(simulated), tuple(map(plan, front[:MAX_SHOWN])), tuple(map(plan, others)))

    def _result(
        self, enumeration: Enumeration, fitting: _Fitting, prover: Prover | None, simulator: PlanSimulator | None
    ) -> PlanSearch:
        request, model = self.request, self.model
        best = None if prover is None else prover.best()
        sizes = PlanSizes.of(model, fitting.table.plan(best) if best is not None else enumeration.table.plan(0))
        misses = len(fitting.misses) + (0 if prover is None else len(prover.proof.refuted))
        result = PlanSearch(
            model=model.name,
            cluster=self.machine.needed_cluster().name,
            gpus=request.plan.gpus,
            gbs=sizes.gbs,
            seq_len=sizes.seq_len,
            objective=request.objective,
            searched=enumeration.searched,
            distinct=enumeration.distinct,
            feasible=enumeration.distinct - misses,
            best=None,
            plans=(),
            rejected={**enumeration.rejected, **({OUT_OF_MEMORY: misses} if misses else {})},
            search=self._proof(prover, fitting),
            near_misses=() if self._unbounded else self._near_misses(fitting),
            diagnostics=self._diagnostics(prover),
            seconds=dict(self.seconds),
        )
        if prover is None or simulator is None or best is None:
            return result
        listed = _Listed(self, fitting, prover, best)
        order = listed.order()
        return replace(
            result,
            diagnostics=(*self._notes_of(fitting.table.plan(best)), *result.diagnostics),
            best=listed.ranked(best),
            plans=tuple(listed.ranked(row) for row in order[: request.top]),
            indistinguishable=tuple(listed.ranked(row) for row in listed.indistinguishable()),
            measure_first=tuple(listed.ranked(row) for row in listed.measure_first()),
            spread=listed.rivals.spread,
            front=tuple(listed.ranked(row) for row in listed.front()),
            why=self._why(listed, simulator),
        )

    def _proof(self, prover: Prover | None, fitting: _Fitting) -> SearchProof:
        space = "hypothetical" if self.space.hypothetical else "launchable"
        if prover is None:
            return SearchProof(True, None, 0.0, 0, 0, space)  # type: ignore[arg-type]
        best_s, lower_s, left = prover.best_s(), prover.lower_bound_s(), prover.undecided(self.request.gap)
        proof, best = prover.proof, prover.best()
        smaller = self._may_be_smaller(prover, fitting)
        lower_s = 0.0 if self._unbounded else lower_s
        return SearchProof(
            complete=not left and not smaller and not self._unbounded,
            # Steps are compared in fewer digits than they have.
            lower_bound_s=None
            if best is None
            else min(lower_s / float(prover.weights[best]), proof.simulated[best].step_time_s),
            gap=0.0 if best is None else (best_s - lower_s) / best_s,
            simulations=len(proof.simulated),
            action_runs=proof.action_runs,
            space=space,  # type: ignore[arg-type]
            undecided=len(prover.undecided()) + smaller + self._unbounded,
            stopped_by=proof.stopped_by,
        )

    def _may_be_smaller(self, prover: Prover, fitting: _Fitting) -> int:
        """Returns how many plans may need less memory than the best, where memory decides and only limits are known."""
        best = prover.best()
        if self.request.objective != "memory" or best is None or fitting.exact.all():
            return 0
        is_open = ~fitting.exact & ~prover.competes
        is_open[list(prover.proof.simulated)] = False
        rows = np.flatnonzero(is_open)
        held_bytes = self._memory.held_bytes(fitting.table.select(rows))
        return int((held_bytes < prover.proof.simulated[best].needed_memory_bytes).sum())

    def _diagnostics(self, prover: Prover | None) -> tuple[Diagnostic, ...]:
        notes = list(self.machine.needed_cluster().remarks)
        reasons = {
            "do not count shared links": self.machine.network == "flow",
            "hold for any frequency, which follows from a whole step": self.closed_form.least_factor < 1,
        }
        for reason in (reason for reason, applies in reasons.items() if applies):
            text = f"bounds {reason}, so that more plans than usual are simulated"
            notes.append(Diagnostic("note", "loose-bound", text))
        request = self.request
        if self.model.has_experts and request.plan.routing is None and "routing" not in request.axes:
            text = "not given, taken: --routing by the experts of a rank, as predict does; --routing 1x is balanced"
            notes.append(Diagnostic("note", "assumed", text))
        if prover is not None and prover.proof.refuted:
            count = len(prover.proof.refuted)
            plans = "1 plan that might have fitted does" if count == 1 else f"{count:,} plans that might have fitted do"
            text = f"{plans} not, as simulation shows"
            notes.append(Diagnostic("note", "refuted-plans", text))
        return tuple(notes)

    def _notes_of(self, plan: Plan) -> list[Diagnostic]:
        """Returns what the answer of the best plan would say of all plans: its software, and what has no effect."""
        setting = self.closed_form.setting(plan)
        notes = [note for note in setting.diagnostics if note.code in _SHARED_CODES]
        if self.request.plan.stack is None and "stack" not in self.request.axes:
            text = f"not given, taken: software as {setting.stack.title}; {setting.stack.name} {setting.stack.version}"
            notes.insert(0, Diagnostic("note", "assumed", text.strip()))
        return notes

    def _near_misses(self, fitting: _Fitting) -> tuple[NearMiss, ...]:
        """Returns for each way of recomputing the fastest plan that nearly fits, and the change that saves it."""
        if not len(fitting.misses):
            return ()
        table, short_bytes = self._nearest(fitting)
        steps = self._timed("near misses", lambda: self.closed_form.bounds(table)).estimate_s
        misses = []
        examples, family = table.keys("recompute", "recompute_modules", "recompute_layers", "zero")
        for number in range(len(examples)):
            rows = np.flatnonzero(family == number)
            row = int(rows[np.lexsort((rows, steps[rows]))[0]])
            plan = table.plan(row)
            misses.append(
                NearMiss(
                    reason=OUT_OF_MEMORY,
                    plan=plan,
                    options=_options(plan),
                    step_time_s=float(steps[row]),
                    short_bytes=int(short_bytes[row]),
                    saved_by=_saving_change(plan, table, row, fitting.table),
                )
            )
        return tuple(sorted(misses, key=lambda miss: (miss.step_time_s or 0.0, miss.options)))

    def _nearest(self, fitting: _Fitting) -> tuple[PlanTable, Longs]:
        """Returns the plans that nearly fit, at least one, and the bytes that each lacks."""
        near = np.argsort(fitting.missing_bytes, kind="stable")[:MAX_NEAR]
        table = fitting.misses.select(near)
        short_bytes = np.maximum(self._memory.needs(table).needed_bytes - self.capacity_bytes, 0)
        limit = max((NEAR - 1) * self.capacity_bytes, int(short_bytes.min()))
        rows = np.flatnonzero(short_bytes <= limit)
        rows = rows[np.argsort(short_bytes[rows], kind="stable")]
        return table.select(rows), short_bytes[rows]

    def _why(self, listed: _Listed, simulator: PlanSimulator) -> PlanDifference | None:
        """Compares the breakdowns of the best plan and of the next that was simulated."""
        prover = listed.prover
        others = (row for row in prover.proof.simulated if row not in prover.proof.refuted and row != listed.best)
        simulated = [listed.best, *sorted(others, key=prover.rank)]
        if len(simulated) < 2:
            return None
        first, second = (simulator.answer(listed.prover.table.plan(row)).breakdown.mean_s for row in simulated[:2])
        parts = {name: first.get(name, 0.0) - second.get(name, 0.0) for name in (*first, *second)}
        return PlanDifference(
            listed.ranked(simulated[1]), {name: seconds for name, seconds in parts.items() if seconds}
        )


def _options(plan: Plan) -> str:
    return plan_options(plan, Plan(gpus=0))


def _saving_change(plan: Plan, misses: PlanTable, row: int, fitting: PlanTable) -> str | None:
    """Returns the smallest change of options by which a plan fits, as far as the search has such a plan.

    Both tables are parts of one, so that they have the same codes.
    """
    if not len(fitting):
        return None
    different = np.zeros(len(fitting), dtype=np.int64)
    for name, codes in fitting.codes.items():
        different += codes != misses.codes[name][row]
    return options_between(plan, fitting.plan(int(different.argmin())))


class _Listed:
    """The plans of a result, by row."""

    def __init__(self, search: _Search, fitting: _Fitting, prover: Prover, best: int) -> None:
        self.search, self.fitting, self.prover, self.best = search, fitting, prover, best
        self.steps_s, self.weighted_s = prover.expected_s(), prover.weighted_s()
        # Where memory decides, a plan that needs more is not a rival, however fast it is.
        rivalling_s = np.where(prover.competes, self.weighted_s, np.inf)
        self.rivals: Rivals = rivals_of(fitting.table, rivalling_s, best, search.model)
        self._place: Mapping[int, int] = {row: place for place, row in enumerate(self.rivals.rows.tolist())}

    def order(self) -> list[int]:
        """Returns rows from the best on: simulated plans by rank, among others by their estimates."""
        steps_s, needed = self.weighted_s, self.fitting.needed_bytes
        keys = (steps_s, needed) if self.search.request.objective == "memory" else (needed, steps_s)
        rows = np.lexsort((np.arange(len(needed)), *keys))
        limit = self.search.request.top + len(self.prover.proof.refuted)
        order = [row for row in rows[: limit + 1].tolist() if row not in self.prover.proof.refuted]
        return [self.best, *(row for row in order if row != self.best)]

    def indistinguishable(self) -> list[int]:
        """Returns the rows that cannot be told from the best."""
        return [int(self.rivals.rows[place]) for place in self.rivals.indistinguishable]

    def measure_first(self) -> list[int]:
        """Returns the rows to measure first."""
        return [int(self.rivals.rows[place]) for place in self.rivals.measure_first]

    def front(self) -> list[int]:
        """Returns the rows of which none is both faster and smaller."""
        needed = self.fitting.needed_bytes.tolist()
        for row, result in self.prover.proof.simulated.items():  # those that split parameters may need less
            needed[row] = result.needed_memory_bytes
        return front_of(self.weighted_s.tolist(), needed)

    def ranked(self, row: int) -> RankedPlan:
        """Returns a row as it is shown."""
        plan, simulated = self.prover.table.plan(row), self.prover.proof.simulated.get(row)
        sizes, place = PlanSizes.of(self.search.model, plan), self._place.get(row)
        step_s = float(self.steps_s[row]) if simulated is None else simulated.step_time_s
        needed = int(self.fitting.needed_bytes[row]) if simulated is None else simulated.needed_memory_bytes
        peak = int(self.fitting.peak_bytes[row]) if simulated is None else simulated.peak_memory_bytes
        return RankedPlan(
            plan=plan,
            options=_options(plan),
            step_time_s=step_s,
            evidence="estimated" if simulated is None else "simulated",
            bound_s=float(self.prover.proof.values[row] / self.prover.weights[row]),
            peak_memory_bytes=peak,
            needed_memory_bytes=needed,
            headroom_bytes=self.search.capacity_bytes - needed,
            tokens_per_s_per_gpu=sizes.gbs * sizes.seq_len / step_s / plan.gpus,
            wins=0.0 if place is None else float(self.rivals.wins[place]),
            ties=0.0 if place is None else float(self.rivals.ties[place]),
        )
