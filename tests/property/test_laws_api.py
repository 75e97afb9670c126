"""Whatever Python code passes to the public functions, classes and methods is used, or refused with a ForetraceError.

The callables come from `foretrace.__all__`, so that a new one joins. Each is called with junk for one of its arguments
and with a valid value for the others, where `VALID` has one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretrace
from foretrace import ForetraceError

RESULTS = {"Answer", "NetworkAnswer", "PlanSearch", "Program", "Timeline", "Input"}
"""Classes that functions return; nobody makes one by hand."""

INTERNAL = {"open", "recognises", "parse_options"}
"""Methods of inputs that the registry calls with paths it has looked at."""


class Opaque:
    """Has nothing that anybody could use."""


def closed_file() -> Any:
    with Path(__file__).open() as stream:
        return stream


JUNK: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**30, -(10**30), 10**400]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["9" * 5000, "1e400", "\0", "/nonexistent/file", "a" * 100_000, "gpt2", "h100-dgx"]),
    st.binary(max_size=4),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.floats(), st.none()), max_size=3),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), st.one_of(st.floats(), st.text(max_size=3))),
    st.sampled_from([np.zeros(3), np.int64(-3), np.float64("nan"), 1j, Path("/nonexistent"), range(3), int, len]),
    st.builds(Opaque),
    st.builds(closed_file),
)


@cache
def valid() -> dict[str, tuple[Any, ...]]:
    """Returns valid leading arguments by the name of what is called."""
    machine, plan = foretrace.Machine("h100-dgx"), foretrace.Plan(gpus=2, gbs=2)
    job = foretrace.model("gpt2", plan)
    program = foretrace.simulate(job, machine, explain=False).timeline.graph.program
    return {
        "model": ("gpt2", plan),
        "simulate": (job, machine),
        "plan": ("gpt2", "h100-dgx"),
        "network": ("all-reduce", 1024, machine),
        "save": (program,),
        "schedule": ("1f1b", 4, 8),
        "Cluster": ("name", "title", machine.needed_cluster().node),
        "PlanRequest": (plan,),
    }


@cache
def instances() -> dict[str, Any]:
    """Returns an object of each class whose methods are called."""
    machine = foretrace.Machine("h100-dgx")
    job = foretrace.model("gpt2", foretrace.Plan(gpus=2, gbs=2))
    answer = foretrace.simulate(job, machine, explain=False)
    return {
        "Input": job,
        "Machine": machine,
        "Answer": answer,
        "Scenario": foretrace.Scenario(),
        "Plan": foretrace.Plan(gpus=2),
        "Mesh": foretrace.Mesh(tp=2, dp=2),
        "Placement": foretrace.Placement.packed(8, 8),
        "Timeline": answer.timeline,
    }


def callables() -> Iterator[str]:
    for name in foretrace.__all__:
        value = getattr(foretrace, name)
        if callable(value) and name not in RESULTS:
            yield name
    for name in ("Input", "Machine", "Answer", "Scenario", "Plan", "Mesh", "Placement", "Timeline"):
        for method, value in inspect.getmembers(getattr(foretrace, name), callable):
            if not method.startswith("_") and method not in INTERNAL and not isinstance(value, type):
                yield f"{name}.{method}"


@pytest.mark.parametrize("name", list(callables()))
@settings(max_examples=10 if not os.environ.get("FORETRACE_FUZZ") else 1000)
@given(data=st.data())
def test_junk_is_refused(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    owner, _, method = name.partition(".")
    call: Callable[..., Any] = getattr(instances()[owner], method) if method else getattr(foretrace, name)
    parameters = [
        parameter
        for parameter in inspect.signature(call).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    args, kwargs = list(valid().get(name, ())), {}
    if parameters:
        chosen = data.draw(st.sampled_from(parameters))
        place, junk = parameters.index(chosen), data.draw(JUNK)
        if place < len(args):
            args[place] = junk
        elif chosen.kind is chosen.VAR_POSITIONAL:
            args.append(junk)
        else:
            kwargs[chosen.name] = junk
        kwargs |= {
            parameter.name: data.draw(JUNK)
            for parameter in parameters[len(args) :]
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        try:
            call(*args, **kwargs)
        except ForetraceError:
            pass
        except TypeError as error:
            # A call that lacks an argument, or gives one twice, is a mistake in the code and not in a value.
            if not any(word in str(error) for word in ("missing a required", "required positional", "multiple values")):
                raise


def test_the_error_names_the_argument() -> None:
    with pytest.raises(ForetraceError) as refused:
        foretrace.simulate("gpt2", executor=3)  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.where) == ("bad-value", "simulate")
    assert "executor" in refused.value.message


def test_an_error_of_the_code_stays_what_it_is() -> None:
    with pytest.raises(AttributeError):
        foretrace.Machine("h100-dgx").no_such_method()  # type: ignore[attr-defined]
