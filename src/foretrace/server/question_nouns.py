"""Makes the nouns of a question, and the command that asks the same in a shell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from foretrace.basics.errors import InputError, UsageError
from foretrace.basics.limits import MAX_GPUS
from foretrace.basics.numbers import whole_field
from foretrace.cost.machine import Machine
from foretrace.cost.machine_texts import read_machine
from foretrace.inputs.base import Input
from foretrace.inputs.model.input import ModelInput
from foretrace.inputs.option_texts import INPUT_OPTIONS
from foretrace.inputs.registry import open_input
from foretrace.readings.scenario import Scenario
from foretrace.readings.scenario_texts import ScenarioOptions, read_scenario
from foretrace.search.plan_texts import plan_request
from foretrace.search.planner.request import PlanRequest
from foretrace.server.examples import example_of
from foretrace.server.form_fields import MACHINE, SCENARIO, SEARCH, FormField
from foretrace.server.questions import Pairs, Value, WebQuestion


def open_job(question: WebQuestion, paths: tuple[str, ...]) -> Input:
    """Opens the input of a question, without options.

    Args:
        question: The question.
        paths: The files of an upload or example, from the current folder.
    """
    if question.source == "model":
        from foretrace.models import presets

        return ModelInput(presets.model(question.names[0]), {})
    return open_input(paths)


def with_options(job: Input, question: WebQuestion) -> Input:
    """Returns the input with the options of a question, and with the what-ifs that are options of an input."""
    try:
        return job.read_options({**set_options(question), **_scenario_options(question).options})
    except InputError as error:
        raise error.at("options") from None


def set_options(question: WebQuestion) -> dict[str, Any]:
    """Returns the options of a question as a command line gives them: without flags that are not set and empty texts.

    A flag that has a counterpart, such as `--no-sp`, is False where the counterpart is given.
    """
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in question.options
        if _is_set(name, value)
    }


def _is_set(name: str, value: Value) -> bool:
    if value is False:
        return "/" in INPUT_OPTIONS[name].flag
    return value is True or bool(value if isinstance(value, tuple) else value.strip())


def scenario_of(question: WebQuestion) -> Scenario:
    """Returns the scenario of a question."""
    return _scenario_options(question).scenario


def _scenario_options(question: WebQuestion) -> ScenarioOptions:
    return read_scenario(_without_blanks(question.scenario))


def _without_blanks(pairs: Pairs) -> dict[str, Any]:
    """Returns options as a command line gives them: lists, and no text that is empty."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if isinstance(value, tuple):
            values[name] = [text for text in value if text.strip()]
        elif isinstance(value, bool) or value.strip():
            values[name] = value
    return values


def machine_key(question: WebQuestion, job: Input) -> tuple[object, ...]:
    """Returns what the machine of a question depends on."""
    own = () if dict(question.machine).get("cluster") else (job.cluster, question.source, question.names)
    return (question.machine, *own)


def machine_of(question: WebQuestion, job: Input) -> Machine:
    """Makes the machine of a question; its cluster is the one that is named, else the input's own."""
    options = _without_blanks(question.machine)
    if "domain_gpus" in options:
        place = "machine.domain_gpus"
        options["domain_gpus"] = whole_field("domain_gpus", options["domain_gpus"], place, least=1, most=MAX_GPUS)
    options["no_overlap_cost"] = not options.pop("overlap_cost", True)
    try:
        return read_machine(options).machine(job)
    except UsageError as error:
        raise error.at("machine.cluster") from None


def request_of(question: WebQuestion, job: ModelInput) -> PlanRequest:
    """Returns what a search is asked for; `job` is the model without options."""
    goals = {"objective": question.objective, "time_s": question.search_s}
    try:
        return plan_request(job, _texts(question), goals)
    except InputError as error:
        raise error.at("options") from None


def command_words(question: WebQuestion, paths: tuple[str, ...], *, even_if_oom: bool = False) -> tuple[str, ...]:
    """Returns the words, after `foretrace`, of the command that asks the same.

    Args:
        question: The question; a comparison has no such command.
        paths: The files of an upload, by the names that the user gave.
        even_if_oom: Whether the job does not fit into memory, so that its time has to be asked for.
    """
    is_model = question.source == "model"
    command = question.kind.model_command if is_model else question.kind.command
    if not command:
        return ()
    if question.source == "example":
        paths = (example_of(question.names[0]).path,)
    # A file whose name begins with a dash would be read as an option.
    files = (f"./{path}" if path.startswith("-") else path for path in paths)
    words = [command, *(question.names if is_model else files)]
    words += _option_words(question)
    words += _field_words(question.machine, MACHINE)
    words += _field_words(question.scenario, SCENARIO)
    if question.ask == "plan":
        words += _field_words((("objective", question.objective), ("time_s", f"{question.search_s:g}s")), SEARCH)
    words += ["--even-if-oom"] if even_if_oom and question.ask == "step" else []
    return tuple(words)


def _option_words(question: WebQuestion) -> Iterator[str]:
    yield from _flag_words(
        tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in _texts(question).items()),
        {name: option.flag for name, option in INPUT_OPTIONS.items()},
    )


def _texts(question: WebQuestion) -> dict[str, Any]:
    """Returns the options of a question, with the axes of a search."""
    return {**set_options(question), **_without_blanks(question.axes)}


def _field_words(pairs: Pairs, fields: Mapping[str, FormField]) -> Iterator[str]:
    """Yields the words of options whose values a command would not have without them."""
    changed = tuple((name, value) for name, value in pairs if value != fields[name].omitted)
    yield from _flag_words(changed, {name: field.flag for name, field in fields.items()})


def _flag_words(pairs: Pairs, flags: dict[str, str]) -> Iterator[str]:
    """Yields the words of options; a flag with a counterpart is `--on/--off`."""
    for name, value in pairs:
        flag, _, negated = flags[name].partition("/")
        if isinstance(value, bool):
            yield flag if value else negated
        else:
            for text in value if isinstance(value, tuple) else (value,):
                if text.strip():
                    # A value that begins with a dash would be read as an option.
                    yield from (f"{flag}={text}",) if text.startswith("-") else (flag, text)
