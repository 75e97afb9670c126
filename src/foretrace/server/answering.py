"""Answers questions: what a worker does with one, and what it keeps for the next.

An `Answerer` keeps machines, whose prices make the next question fast, inputs that were opened, and its last answers.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from foretrace import api
from foretrace.basics.cache import SizedCache
from foretrace.basics.errors import ForetraceError, InputError, UsageError
from foretrace.basics.origin import origin_of
from foretrace.basics.outputs import write_text
from foretrace.basics.units import format_count, format_time
from foretrace.cost.machine import Machine
from foretrace.inputs.base import Input
from foretrace.inputs.profiler_table.input import ProfilerTableInput
from foretrace.inputs.profiler_trace.input import ProfilerTraceInput
from foretrace.readings.answer.answer import Answer
from foretrace.readings.compare import compare
from foretrace.report.answer_words import place_text
from foretrace.report.page.document import report_html
from foretrace.report.page.markup import render_view
from foretrace.report.page.origin import with_origin
from foretrace.report.views import view_of
from foretrace.report.views.answer import answer_view
from foretrace.search.progress import SearchedPlan, plans_shown_by
from foretrace.server.front import front_view
from foretrace.server.question_nouns import (
    command_line,
    machine_key,
    machine_of,
    open_job,
    request_of,
    scenario_of,
    with_options,
)
from foretrace.server.questions import WebQuestion

if TYPE_CHECKING:
    from foretrace.report.page.blocks import View
    from foretrace.workload.setting import Setting

Format = Literal["json", "report", "perfetto", "saved", "launch"]
"""Formats in which an answer can be downloaded."""

MIN_FRONT_INTERVAL_S: Final = 0.5
"""Seconds from one view of the plans of a search to the next."""
MAX_KEPT_MACHINES: Final = 8
MAX_KEPT_JOBS: Final = 8
MAX_KEPT_ANSWERS: Final = 2
MAX_JSON_BYTES: Final = 4_000_000
"""The size up to which the JSON of a step is stored with its answer; a larger one is made when it is asked for."""


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """The answer to a question, whatever was asked.

    Attributes:
        make_view: Makes its view.
        kind: What it is, for lists: the kind of input, `plan` or `comparison`.
        title: What it is about, in a few words.
        step_time_s: The step that it is about; None where there is none.
        band_s: The ends of its band.
        to_json: Makes its JSON.
        answer: The answer with the timeline; None where there is none.
        launch: Makes the script that starts the job; None where there is none.
        fits: Whether the job fits into memory.
    """

    make_view: Callable[[], View]
    kind: str
    title: str
    step_time_s: float | None
    band_s: tuple[float, float] | None
    to_json: Callable[[], dict[str, Any]]
    answer: Answer | None = None
    launch: Callable[[], str] | None = None
    fits: bool = True

    def view(self, command: str = "") -> View:
        """Returns the whole view, with the command that makes it; that of a saved answer is the one that made it."""
        view = self.make_view()
        return replace(view, command=view.command or command)

    @property
    def formats(self) -> list[Format]:
        """What can be downloaded."""
        formats: list[Format] = ["json", "report"]
        if self.answer is not None:
            formats += ["perfetto", "saved"]
        if self.launch is not None:
            formats.append("launch")
        return formats

    def summary(self) -> dict[str, Any]:
        """Returns the headline, as JSON has it."""
        step_s = self.step_time_s
        answer = self.answer
        figures = None if answer is None else answer.model
        return {
            "title": self.title,
            "step_time_s": step_s,
            "band_s": None if self.band_s is None else list(self.band_s),
            "step_text": "" if step_s is None else format_time(step_s),
            "kind": self.kind,
            "fits": self.fits,
            "gpus": None if answer is None else answer.world_size,
            "tokens_per_step": None if figures is None else figures.tokens_per_step,
            "tokens_per_s_per_gpu": None if answer is None else answer.tokens_per_s_per_gpu,
            "plan": {} if figures is None else _plan_texts(figures.plan),
        }


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files of a question are.

    Attributes:
        enter: Goes to their folder, the only one that can then be read, and returns their paths from there.
        shown_names: The names that the user gave them.
    """

    enter: Callable[[], tuple[str, ...]]
    shown_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Opened:
    """An input of a question with its options, and the machine."""

    job: Input
    machine: Machine


class Answerer:
    """Answers questions, one after the other."""

    def __init__(self) -> None:
        self._machines: SizedCache[object, Machine] = SizedCache(MAX_KEPT_MACHINES, lambda _: 1)
        self._jobs: SizedCache[object, Input] = SizedCache(MAX_KEPT_JOBS, lambda _: 1)
        self._answer_cache: SizedCache[object, WebAnswer] = SizedCache(MAX_KEPT_ANSWERS, lambda _: 1)

    def quick(self, question: WebQuestion, place: Place) -> dict[str, Any]:
        """Returns the step, its breakdown and the memory of a job, without what takes further runs."""
        opened = self._open(question, place.enter())
        answer = api.simulate(opened.job, opened.machine, scenario_of(question), explain=False, even_if_oom=True)
        answered = _of_answer(opened, answer)
        return {"html": render_view(answer_view(answer, quick=True)), "summary": answered.summary()}

    def full(self, question: WebQuestion, place: Place, show_front: Callable[[str], None]) -> dict[str, Any]:
        """Returns the whole answer to a question.

        Args:
            question: The question.
            place: Where its files are.
            show_front: Is given the plans that a search has simulated so far, as HTML.
        """
        answered = self._answered(question, place, show_front)
        command = command_line(question, place.shown_names, even_if_oom=not answered.fits)
        return {
            "html": render_view(answered.view(command)),
            "summary": answered.summary(),
            "command": command,
            "downloads": answered.formats,
            "files": _stored_files(answered, command),
        }

    def compared(self, questions: Sequence[tuple[WebQuestion, Place]]) -> dict[str, Any]:
        """Returns the comparison of the answers to two questions; the first is what the other is compared with.

        A comparison is not stored, so that it has nothing to download.
        """
        answered = self._comparison(questions)
        return {"html": render_view(answered.view()), "summary": answered.summary(), "command": "", "downloads": []}

    def inspected(self, question: WebQuestion, place: Place) -> dict[str, Any]:
        """Returns what an upload is: its kind, whether it was measured, and whether it needs a cluster."""
        job = self._bare_job(question, place.enter())
        return {
            "kind": job.kind,
            "noun": job.noun,
            "title": job.title,
            "is_measured": job.is_measured,
            "needs_cluster": job.cluster is None and _needs_cluster(job),
        }

    def export(self, question: WebQuestion, place: Place, kind: Format, path: Path) -> None:
        """Writes the answer to a question to a file of a format."""
        answered = self._answered(question, place, lambda _: None)
        if kind not in answered.formats:
            known = ", ".join(answered.formats)
            raise InputError("not-expressible", f"this answer has no {kind}", hint=f"it has: {known}")
        command = command_line(question, place.shown_names, even_if_oom=not answered.fits)
        if kind == "json":
            write_text(path, json.dumps(answered.to_json(), indent=1, allow_nan=False) + "\n", "JSON file")
        elif kind == "report":
            write_text(path, report_html(with_origin([answered.view(command)], (), place.enter())), "page")
        elif kind == "launch":
            assert answered.launch is not None
            write_text(path, answered.launch(), "launch script")
        else:
            assert answered.answer is not None
            origin = origin_of(shlex.split(command)[1:], place.enter())
            _write_timeline(replace(answered.answer, origin=answered.answer.origin or origin), kind, path)

    def _answered(self, question: WebQuestion, place: Place, show_front: Callable[[str], None]) -> WebAnswer:
        if question.ask == "plan":  # ended by time or its user, a search has another answer the next time
            return self._plan(question, place.enter(), show_front)
        make = self._explanation if question.ask == "explain" else self._step
        return self._answer_cache.get(question.text, lambda: make(question, place.enter()))

    def _bare_job(self, question: WebQuestion, paths: tuple[str, ...]) -> Input:
        return self._jobs.get((question.source, question.names), lambda: open_job(question, paths))

    def _open(self, question: WebQuestion, paths: tuple[str, ...]) -> _Opened:
        job = with_options(self._bare_job(question, paths), question)
        if job.answer_file is not None and not dict(question.machine).get("cluster") and not scenario_of(question):
            return _Opened(job, Machine())
        try:
            machine = self._machines.get(machine_key(question, job), lambda: machine_of(question, job))
        except InputError as error:
            raise error.at(", ".join(job.paths) or None) from None
        return _Opened(job, machine)

    def _step(self, question: WebQuestion, paths: tuple[str, ...]) -> WebAnswer:
        opened = self._open(question, paths)
        scenario = scenario_of(question)
        answer = api.simulate(opened.job, opened.machine, scenario, even_if_oom=True, try_changes=True)
        return _of_answer(opened, answer)

    def _explanation(self, question: WebQuestion, paths: tuple[str, ...]) -> WebAnswer:
        opened = self._open(question, paths)
        if isinstance(opened.job, ProfilerTraceInput | ProfilerTableInput):
            _refuse_changes(question, opened.job)
            return _of_profile(opened.job)
        from foretrace.report.explain import explanation_json

        explanation = api.explain(opened.job, opened.machine, scenario_of(question))
        answered = _of_answer(opened, explanation.answer)
        return replace(answered, make_view=partial(view_of, explanation), to_json=lambda: explanation_json(explanation))

    def _plan(self, question: WebQuestion, paths: tuple[str, ...], show_front: Callable[[str], None]) -> WebAnswer:
        bare = self._bare_job(question, paths)
        machine = self._machines.get(machine_key(question, bare), lambda: machine_of(question, bare))
        request = request_of(question, bare)
        machine.needed_cluster()
        model = bare.model  # type: ignore[attr-defined]

        shown_s = -math.inf

        def show(plans: Callable[[], Sequence[SearchedPlan]]) -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s >= MIN_FRONT_INTERVAL_S:
                show_front(render_view(front_view(plans(), bare.title)))
                shown_s = time.monotonic()

        with plans_shown_by(show):
            try:
                search = api.plan(model, machine, request)
            except InputError as error:
                raise UsageError.of(error) if (error.where or "").startswith("--") else error from None
        from foretrace.report.plan import plan_json

        best = search.best
        script = next(iter(search.launch.values()), None)
        return WebAnswer(
            partial(view_of, search),
            "plan",
            f"{search.model} on {format_count(search.gpus)} GPUs of {search.cluster}, best plan",
            None if best is None else best.step_time_s,
            None,
            lambda: plan_json(search),
            launch=None if script is None else lambda: script,
        )

    def _comparison(self, questions: Sequence[tuple[WebQuestion, Place]]) -> WebAnswer:
        base, subject = (self._answered(question, place, lambda _: None) for question, place in questions)
        for answered in (base, subject):
            if answered.answer is None:
                problem = f"{answered.title} has no timeline that could be compared"
                raise InputError("not-expressible", problem, hint="compare two steps")
        assert base.answer is not None and subject.answer is not None
        if subject.answer.timeline.recorded and not base.answer.timeline.recorded:
            base, subject = subject, base  # predictions are compared with what was measured
        assert base.answer is not None and subject.answer is not None
        comparison = compare(subject.answer, base.answer)
        from foretrace.report.compare import comparison_json

        return WebAnswer(
            partial(view_of, comparison),
            "comparison",
            f"{subject.title} compared with {base.title}",
            subject.step_time_s,
            subject.band_s,
            lambda: comparison_json(comparison),
        )


def _stored_files(answered: WebAnswer, command: str) -> dict[str, str]:
    """Returns the downloads to store with an answer.

    They are all of a search, which may find other plans the next time, and the JSON of a step unless it is large.
    """
    text = json.dumps(answered.to_json(), indent=1, allow_nan=False) + "\n"
    if answered.kind != "plan":
        return {"json": text} if len(text) <= MAX_JSON_BYTES else {}
    files = {"json": text, "report": report_html(with_origin([answered.view(command)], (), ()))}
    return files if answered.launch is None else {**files, "launch": answered.launch()}


def _needs_cluster(job: Input) -> bool:
    """Returns whether a job has ops that only a cluster can price, as far as this can be told without its options."""
    if job.answer_file is not None or job.is_measured or isinstance(job, ProfilerTableInput | ProfilerTraceInput):
        return False
    try:
        Machine().price(job.program())
    except ForetraceError as error:
        return error.code in ("unpriced-op", "needs-cluster", "missing-argument")
    return False


def _of_answer(opened: _Opened, answer: Answer) -> WebAnswer:
    job = opened.job
    setting = job.setting()
    script = None
    if setting is not None and opened.machine.cluster is not None and _can_be_launched(setting):
        script = partial(_launch_script, setting, opened.machine)
    return WebAnswer(
        partial(answer_view, answer),
        job.kind,
        " · ".join(word for word in (job.title, place_text(answer)) if word),
        answer.step_time_s,
        answer.step_time_band_s,
        answer.to_dict,
        answer,
        script,
        answer.memory is None or answer.memory.fits,
    )


def _plan_texts(plan: Mapping[str, Any]) -> dict[str, str]:
    """Returns the plain values of a plan as the form writes them."""
    texts = {True: "on", False: "off"}
    return {
        name: texts[value] if isinstance(value, bool) else str(value)
        for name, value in plan.items()
        if isinstance(value, bool | int | float | str) and value != ""
    }


def _can_be_launched(setting: Setting) -> bool:
    from foretrace.export.launch import launch_problem

    try:
        return launch_problem(setting) is None
    except InputError:
        return False


def _launch_script(setting: Setting, machine: Machine) -> str:
    from foretrace.export.launch import launch_text

    return launch_text(setting, machine.needed_cluster()).text


def _of_profile(job: ProfilerTraceInput | ProfilerTableInput) -> WebAnswer:
    """Returns the explanation of a profile, as it was recorded."""
    if isinstance(job, ProfilerTableInput):
        from foretrace.readings.profiler_table import explain_tables
        from foretrace.report.profiler_table import explanations_json
        from foretrace.report.views.profiler_table import profiler_tables_view

        tables = explain_tables(job.tables)
        make_view = partial(profiler_tables_view, tables, Path(job.title).name)
        return WebAnswer(make_view, job.kind, job.title, None, None, lambda: explanations_json(tables))
    from foretrace.readings.profiler_views import ProfilerTrace
    from foretrace.report.profiler_trace.views_json import profiler_trace_json

    if not job.traces:
        hint = "give the profiler's trace of the same run with it"
        raise InputError("missing-argument", "an execution trace has no times", where=job.title, hint=hint)
    trace = ProfilerTrace(job.traces)
    make_view = partial(view_of, trace)
    return WebAnswer(make_view, job.kind, job.title, None, None, lambda: profiler_trace_json(trace, None, ""))


def _refuse_changes(question: WebQuestion, job: Input) -> None:
    if question.options or question.scenario or dict(question.machine).get("cluster"):
        raise UsageError(
            "option-not-for-command",
            f"{job.title} is {job.noun}, which is explained as it was recorded",
            hint="leave out what changes it, or ask for its step",
        )


def _write_timeline(answer: Answer, kind: Format, path: Path) -> None:
    if kind == "saved":
        answer.save(path)
        return
    from foretrace.export.perfetto import write_perfetto

    write_perfetto(answer.timeline, path, memory=answer.memory_by_rank())
