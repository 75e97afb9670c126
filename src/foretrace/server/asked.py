"""Makes the nouns of a question, and the command that asks the same in a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from foretrace.basics.errors import InputError, UsageError
from foretrace.cost.machine import Machine
from foretrace.hardware.presets import cluster as load_cluster
from foretrace.inputs.base import Input
from foretrace.inputs.model.input import ModelInput
from foretrace.inputs.option_texts import INPUT_OPTIONS, split_what_ifs
from foretrace.inputs.registry import open_input
from foretrace.readings.scenario import Scenario
from foretrace.readings.scenario_texts import read_jitter, read_slow_links, read_stragglers, read_what_ifs
from foretrace.search.plan_texts import plan_request
from foretrace.search.planner.request import PlanRequest
from foretrace.server.examples import example_of
from foretrace.server.questions import Pairs, Value, WebQuestion

MAX_DOMAIN_GPUS: Final = 100_000

_COMMANDS: Final = {"plan": "plan", "explain": "explain", "step": "simulate"}
_MACHINE_FLAGS: Final = {
    "cluster": "--cluster",
    "network": "--network",
    "prices": "--prices",
    "domain_gpus": "--domain-gpus",
    "overlap_cost": "--no-overlap-cost",
}
_SCENARIO_FLAGS: Final = {
    "what_if": "--what-if",
    "straggler": "--straggler",
    "slow_link": "--slow-link",
    "jitter": "--jitter",
    "steady": "--steady/--one-step",
}
_USUAL: Final = {"network": "analytic", "prices": "best", "overlap_cost": True}
"""Values of options of a machine that a command line leaves out."""


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
    rebuilds, _ = split_what_ifs(_texts(question.scenario, "what_if"))
    try:
        return job.read_options({**set_options(question), **rebuilds})
    except InputError as error:
        raise error.at("options") from None


def set_options(question: WebQuestion) -> dict[str, Any]:
    """Returns the options of a question as a command line gives them: without flags that are not set and empty texts.

    A flag that has a counterpart, such as `--no-sp`, is False where the counterpart is given.
    """
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in question.options
        if _is_given(name, value)
    }


def _is_given(name: str, value: Value) -> bool:
    if value is False:
        return "/" in INPUT_OPTIONS[name].flag
    return value is True or bool(value if isinstance(value, tuple) else value.strip())


def scenario_of(question: WebQuestion) -> Scenario:
    """Returns the scenario of a question."""
    _, what_ifs = split_what_ifs(_texts(question.scenario, "what_if"))
    texts: dict[str, Any] = dict(question.scenario)
    return Scenario(
        read_what_ifs(what_ifs),
        read_stragglers(_texts(question.scenario, "straggler")),
        read_slow_links(_texts(question.scenario, "slow_link")),
        read_jitter(texts.get("jitter", "").strip() or None),
        texts.get("steady"),
    )


def _texts(pairs: Pairs, name: str) -> list[str]:
    values: dict[str, Any] = dict(pairs)
    return [text for text in values.get(name, ()) if text.strip()]


def machine_key(question: WebQuestion, job: Input) -> tuple[object, ...]:
    """Returns what the machine of a question depends on."""
    own = () if dict(question.machine).get("cluster") else (job.cluster, job.paths)
    return (question.machine, *own)


def machine_of(question: WebQuestion, job: Input) -> Machine:
    """Makes the machine of a question; its cluster is the one that is named, else the input's own."""
    options: dict[str, Any] = dict(question.machine)
    named = options.get("cluster") or job.cluster
    details: dict[str, Any] = {
        "prices": options.get("prices", "best"),
        "network": options.get("network", "analytic"),
        "overlap_cost": options.get("overlap_cost", True),
    }
    gpus = _domain_gpus(options.get("domain_gpus", ""))
    if named is None:
        if gpus is not None or details["network"] != "analytic":
            problem = "the network and the GPUs of a domain are those of a cluster, and none is named"
            raise UsageError("needs-cluster", problem, where="machine.cluster")
        return Machine(None, **details)
    cluster = load_cluster(named)
    return Machine(cluster if gpus is None else replace(cluster, domain_gpus=gpus), **details)


def _domain_gpus(text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_DOMAIN_GPUS:
        problem = f"domain_gpus: expected a whole number from 1 to {MAX_DOMAIN_GPUS:,}"
        raise UsageError("bad-value", problem, where="machine.domain_gpus")
    return int(text)


def request_of(question: WebQuestion, job: Input) -> PlanRequest:
    """Returns what a search is asked for; `job` is the model without options."""
    if not isinstance(job, ModelInput):
        raise InputError("option-not-for-input", f"{job.title} is {job.noun}, which has no plan to search for")
    texts = {**set_options(question), **{name: text for name, text in question.axes if text.strip()}}
    try:
        return plan_request(job, texts, {"objective": question.objective, "time_s": question.search_s})
    except InputError as error:
        raise error.at("options") from None


def command_line(question: WebQuestion, paths: tuple[str, ...], *, even_if_oom: bool = False) -> str:
    """Returns the command that asks the same, as a shell reads it.

    Args:
        question: The question; a comparison has no such command.
        paths: The files of an upload, by the names that the user gave.
        even_if_oom: Whether the job does not fit into memory, so that its time has to be asked for.
    """
    if question.ask == "compare":
        return ""
    is_model = question.source == "model"
    command = "predict" if is_model and question.ask == "step" else _COMMANDS[question.ask]
    if question.source == "example":
        paths = (example_of(question.names[0]).path,)
    words = ["foretrace", command, *(question.names if is_model else paths)]
    words += _option_words(question)
    words += _machine_words(question)
    words += _flag_words(question.scenario, _SCENARIO_FLAGS)
    if question.ask == "plan":
        words += ["--objective", question.objective] if question.objective != "step" else []
        words += ["--time", f"{question.search_s:g}s"]
    words += ["--even-if-oom"] if even_if_oom else []
    return shlex.join(words)


def _option_words(question: WebQuestion) -> Iterator[str]:
    axes = dict(question.axes) if question.ask == "plan" else {}
    options = {**set_options(question), **{name: text for name, text in axes.items() if text.strip()}}
    yield from _flag_words(
        tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in options.items()),
        {name: option.flag for name, option in INPUT_OPTIONS.items()},
    )


def _machine_words(question: WebQuestion) -> Iterator[str]:
    pairs = tuple((name, value) for name, value in question.machine if value != _USUAL.get(name))
    for name, value in pairs:
        if value is False:
            yield _MACHINE_FLAGS[name]
        elif isinstance(value, str) and value.strip():
            yield from (_MACHINE_FLAGS[name], value.strip())


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
