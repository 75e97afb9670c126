"""Lists what two answers differ in before anything ran: the model, the plan, the hardware, the scenario, the prices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Literal

from foretrace.hardware.cluster import Cluster
from foretrace.readings.answer.answer import Answer

Subject = Literal["model", "plan", "stack", "hardware", "scenario", "prices", "follows"]
"""The noun that a difference is of; `follows`: it is a consequence of other differences of the plan."""

_FOLLOWS: Final = ("dp", "microbatches", "shard", "padded_vocab")
"""Fields of a settled plan that follow from others."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that two answers differ in, and what it is in each; None where it is not there."""

    of: Subject
    name: str
    a: Any
    b: Any


def differences(a: Answer, b: Answer) -> tuple[Difference, ...]:
    """Returns what two answers differ in, those that a person chose first."""
    return (*_jobs(a, b), *_hardware(a.cluster, b.cluster), *_scenario(a, b), *_prices(a, b), *_follows(a, b))


def _jobs(a: Answer, b: Answer) -> Iterator[Difference]:
    if a.model is None or b.model is None:
        if a.title != b.title:
            yield Difference("model", "job", a.title, b.title)
        if a.mesh != b.mesh:
            yield Difference("plan", "mesh", a.mesh, b.mesh)
        return
    if a.model.name != b.model.name:
        yield Difference("model", "name", a.model.name, b.model.name)
    # A stack has habits, so that other fields of the plan may follow from it.
    for name in dict.fromkeys(["stack", *a.model.plan, *b.model.plan]):
        values = (a.model.plan.get(name), b.model.plan.get(name))
        if values[0] != values[1] and name not in _FOLLOWS:
            yield Difference("stack" if name == "stack" else "plan", name, *values)


def _follows(a: Answer, b: Answer) -> Iterator[Difference]:
    if a.model is None or b.model is None:
        return
    for name in _FOLLOWS:
        values = (a.model.plan.get(name), b.model.plan.get(name))
        if values[0] != values[1]:
            yield Difference("follows", name, *values)


def _hardware(a: Cluster | None, b: Cluster | None) -> Iterator[Difference]:
    """Yields the names of two clusters, or the figures in which two of the same name differ."""
    if a == b:
        return
    if a is None or b is None or a.name != b.name:
        yield Difference("hardware", "cluster", None if a is None else a.name, None if b is None else b.name)
        gpus = (None if a is None else a.gpu.name, None if b is None else b.gpu.name)
        if gpus[0] != gpus[1]:
            yield Difference("hardware", "gpu", *gpus)
        return
    figures = (dict(_figures(a)), dict(_figures(b)))
    for name in dict.fromkeys([*figures[0], *figures[1]]):
        values = (figures[0].get(name), figures[1].get(name))
        if values[0] != values[1]:
            yield Difference("hardware", name, *values)


def _figures(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the numbers and names that a description of hardware holds, by their path in it."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _figures(getattr(value, field.name), f"{name}.{field.name}" if name else field.name)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _figures(inner, f"{name}.{key}")
    elif isinstance(value, int | float | str | None):
        yield name, value


def _scenario(a: Answer, b: Answer) -> Iterator[Difference]:
    changes = (a.describe_changes(), b.describe_changes())
    for text in dict.fromkeys([*changes[0], *changes[1]]):
        if (text in changes[0]) != (text in changes[1]):
            yield Difference("scenario", text, text in changes[0], text in changes[1])


def _prices(a: Answer, b: Answer) -> Iterator[Difference]:
    """Yields sources of prices that only one of two answers has, with the share of op time that each priced."""
    shares = tuple({part.source: part.share for part in answer.provenance} for answer in (a, b))
    for source in dict.fromkeys([*shares[0], *shares[1]]):
        if (source in shares[0]) != (source in shares[1]):
            yield Difference("prices", source, shares[0].get(source), shares[1].get(source))
