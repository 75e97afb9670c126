"""Answers questions: what a worker does with one, and what it keeps for the next.

An `Answerer` keeps machines, whose prices make the next question fast, inputs that were opened, and its last answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from foretrace import api
from foretrace.basics.cache import SizedCache
from foretrace.basics.errors import ForetraceError, InputError, usage_errors
from foretrace.basics.origin import command_text, origin_of
from foretrace.basics.outputs import write_text
from foretrace.basics.progress import doing
from foretrace.basics.units import format_count, format_time
from foretrace.cost.machine import Machine
from foretrace.inputs.base import Input
from foretrace.readings.answer.answer import Answer
from foretrace.readings.compare import compare
from foretrace.readings.explain import Explanation
from foretrace.report.answer_words import place_text
from foretrace.report.json import json_text, write_json
from foretrace.report.page.document import report_html
from foretrace.report.page.markup import render_view
from foretrace.report.page.origin import with_origin
from foretrace.report.views import view_of
from foretrace.report.views.answer import answer_view
from foretrace.report.views.plan_search import running_search_view
from foretrace.search.plan_texts import searched_model
from foretrace.search.progress import SearchedPlans
from foretrace.server.question_nouns import (
    command_words,
    machine_key,
    machine_of,
    open_job,
    request_of,
    scenario_of,
    with_options,
)
from foretrace.server.questions import FilePlace, WebQuestion
from foretrace.simulation.relief import find_relief

if TYPE_CHECKING:
    from foretrace.report.page.blocks import View
    from foretrace.workload.setting import Setting

Format = Literal["json", "report", "perfetto", "saved", "launch"]
"""Formats in which an answer can be downloaded."""

_FORMAT_NOUNS: Final[dict[Format, str]] = {
    "json": "JSON",
    "report": "page",
    "perfetto": "timeline for Perfetto",
    "saved": "saved answer",
    "launch": "launch script",
}
"""The names of the formats in messages."""

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
        """Returns the view, with the command that asks the same."""
        return replace(self.make_view(), command=command)

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

    def quick(self, question: WebQuestion, place: FilePlace) -> dict[str, Any]:
        """Returns the step, its breakdown and the memory of a job, without what takes further runs."""
        place.enter()
        opened = self._open(question, place.names)
        answer = api.simulate(opened.job, opened.machine, scenario_of(question), explain=False, even_if_oom=True)
        answered = _of_answer(opened, answer)
        return {"html": render_view(answer_view(answer, quick=True)), "summary": answered.summary()}

    def full(self, question: WebQuestion, place: FilePlace, show_front: Callable[[str], None]) -> dict[str, Any]:
        """Returns the whole answer to a question.

        Args:
            question: The question.
            place: Where its files are.
            show_front: Is given the plans that a search has found so far, as HTML.
        """
        place.enter()
        answered = self._answered(question, place.names, show_front)
        command = command_text(command_words(question, place.shown_names, even_if_oom=not answered.fits))
        return {
            "html": render_view(answered.view(command)),
            "summary": answered.summary(),
            "command": command,
            "downloads": answered.formats,
            "files": _stored_files(answered, command),
        }

    def compared(self, questions: Sequence[tuple[WebQuestion, FilePlace]]) -> dict[str, Any]:
        """Returns the comparison of the answers to two questions; the first is what the other is compared with.

        A comparison is not stored, so that it has nothing to download.
        """
        answered = self._comparison(questions)
        return {"html": render_view(answered.view()), "summary": answered.summary(), "command": "", "downloads": []}

    def inspected(self, question: WebQuestion, place: FilePlace) -> dict[str, Any]:
        """Returns what an upload is: its kind, whether it was measured or profiled, and whether it needs a cluster."""
        place.enter()
        job = self._bare_job(question, place.names)
        return {
            "kind": job.kind,
            "noun": job.noun,
            "title": job.title,
            "is_measured": job.is_measured or job.is_profile,
            "needs_cluster": job.cluster is None and _needs_cluster(job),
        }

    def export(self, question: WebQuestion, place: FilePlace, kind: Format, path: Path) -> None:
        """Writes the answer to a question to a file of a format."""
        place.enter()
        answered = self._answered(question, place.names)
        if kind not in answered.formats:
            known = ", ".join(answered.formats)
            raise InputError("not-expressible", f"this answer has no {_FORMAT_NOUNS[kind]}", hint=f"it has: {known}")
        words = command_words(question, place.shown_names, even_if_oom=not answered.fits)
        if kind == "json":
            write_json(answered.to_json(), path)
        elif kind == "report":
            view = answered.view(command_text(words))
            write_text(path, report_html(with_origin([view], origin_of((), place.names))), "page")
        elif kind == "launch":
            assert answered.launch is not None
            write_text(path, answered.launch(), "launch script")
        else:
            assert answered.answer is not None
            origin = origin_of(words, place.names)
            _write_timeline(replace(answered.answer, origin=answered.answer.origin or origin), kind, path)

    def export_comparison(self, questions: Sequence[tuple[WebQuestion, FilePlace]], path: Path) -> None:
        """Writes the comparison of two answers, and both, as one page."""
        views = [self._comparison(questions).view()]
        for question, place in questions:
            place.enter()
            answered = self._answered(question, place.names)
            words = command_words(question, place.shown_names, even_if_oom=not answered.fits)
            view = answered.view()
            views.append(replace(view, origin=view.origin or origin_of(words, place.names)))
        write_text(path, report_html(with_origin(views, origin_of((), ()))), "page")

    def _answered(
        self, question: WebQuestion, paths: tuple[str, ...], show_front: Callable[[str], None] = lambda _: None
    ) -> WebAnswer:
        if question.ask == "plan":  # ended by time or its user, a search has another answer the next time
            return self._plan(question, paths, show_front)
        make = self._explanation if question.ask == "explain" else self._step
        return self._answer_cache.get(question.text, lambda: make(question, paths))

    def _bare_job(self, question: WebQuestion, paths: tuple[str, ...]) -> Input:
        return self._jobs.get((question.source, question.names), lambda: open_job(question, paths))

    def _open(self, question: WebQuestion, paths: tuple[str, ...]) -> _Opened:
        job = with_options(self._bare_job(question, paths), question)
        if job.answer_file is not None and not dict(question.machine).get("cluster") and not scenario_of(question):
            return _Opened(job, Machine())
        return _Opened(job, self._machines.get(machine_key(question, job), lambda: machine_of(question, job)))

    def _step(self, question: WebQuestion, paths: tuple[str, ...]) -> WebAnswer:
        opened = self._open(question, paths)
        scenario = scenario_of(question)
        answer = api.simulate(opened.job, opened.machine, scenario, even_if_oom=True, try_changes=True)
        answered, setting = _of_answer(opened, answer), opened.job.setting()
        if answered.fits or setting is None:
            return answered
        with doing("looking for what would fit"):
            relief = find_relief(setting, opened.machine, scenario)
        return replace(answered, make_view=partial(answer_view, answer, relief))

    def _explanation(self, question: WebQuestion, paths: tuple[str, ...]) -> WebAnswer:
        opened = self._open(question, paths)
        explained = api.explain(opened.job, opened.machine, scenario_of(question))
        make_view, to_json = partial(view_of, explained), explained.to_dict
        if isinstance(explained, Explanation):
            return replace(_of_answer(opened, explained.answer), make_view=make_view, to_json=to_json)
        return WebAnswer(make_view, opened.job.kind, opened.job.title, None, None, to_json)

    def _plan(self, question: WebQuestion, paths: tuple[str, ...], show_front: Callable[[str], None]) -> WebAnswer:
        bare = searched_model(self._bare_job(question, paths))
        machine = self._machines.get(machine_key(question, bare), lambda: machine_of(question, bare))
        request = request_of(question, bare)
        machine.needed_cluster()
        shown_s = -math.inf

        def show(plans: Callable[[], SearchedPlans]) -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s >= MIN_FRONT_INTERVAL_S:
                show_front(render_view(running_search_view(plans(), bare.title)))
                shown_s = time.monotonic()

        with usage_errors("--"):  # of texts that are not values of their axes
            search = api.plan(bare.model, machine, request, watch=show)
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

    def _comparison(self, questions: Sequence[tuple[WebQuestion, FilePlace]]) -> WebAnswer:
        both = []
        for question, place in questions:
            place.enter()
            both.append(self._answered(question, place.names))
        base, subject = both
        for answered in both:
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
    text = json_text(answered.to_json())
    if answered.kind != "plan":
        return {"json": text} if len(text) <= MAX_JSON_BYTES else {}
    files = {"json": text, "report": report_html(with_origin([answered.view(command)], origin_of((), ())))}
    return files if answered.launch is None else {**files, "launch": answered.launch()}


def _needs_cluster(job: Input) -> bool:
    """Returns whether a job has ops that only a cluster can price, as far as this can be told without its options."""
    if job.answer_file is not None or job.is_measured or job.is_profile:
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


def _write_timeline(answer: Answer, kind: Format, path: Path) -> None:
    if kind == "saved":
        answer.save(path)
        return
    from foretrace.export.perfetto import write_perfetto

    write_perfetto(answer.timeline, path, memory=answer.memory_by_rank())
