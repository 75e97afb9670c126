"""Lists the kinds of input, and opens a path as the first kind that recognises it.

A new kind of input is a folder next to this file and a line in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from foretrace.basics.errors import UsageError
from foretrace.basics.files import GivenPath, given_paths
from foretrace.inputs.base import Input

KINDS: list[str] = [
    "foretrace.inputs.answer_file.input:AnswerInput",
    "foretrace.inputs.program_file.input:ProgramInput",
    "foretrace.inputs.script.input:ScriptInput",
    "foretrace.inputs.model.input:ModelInput",
    "foretrace.inputs.profiler_trace.input:ProfilerTraceInput",
    "foretrace.inputs.megatron_trace.input:MegatronTraceInput",
    "foretrace.inputs.profiler_table.input:ProfilerTableInput",
    "foretrace.inputs.aicb.input:WorkloadInput",
]
"""The classes of inputs as `module:class`, in the order in which they are asked; each is imported when it is asked."""

_NO_PATH: Final = "name a model, a script, a workload file, a program, a profile or a folder of traces"


def open_model(name: str, options: Mapping[str, Any] | None = None) -> Input:
    """Opens a model by name, or the input that a file of this name is."""
    from foretrace.inputs.model.input import ModelInput

    path = GivenPath(name)
    if path.is_file or path.is_folder:
        return open_input([path], options)
    return ModelInput.open([path]).read_options(options or {})


def kinds() -> Iterator[type[Input]]:
    """Yields the classes of inputs in the order in which they are asked."""
    for place in KINDS:
        module, _, name = place.partition(":")
        yield getattr(import_module(module), name)


def open_input(paths: Sequence[str | Path | GivenPath], options: Mapping[str, Any] | None = None) -> Input:
    """Reads a job, whatever files it is in; a model's name is a job too.

    Args:
        paths: Files, folders, patterns, or the name of a model. Several belong to one job.
        options: Options as a command line gives them: texts, and True for flags.

    Raises:
        UsageError: Nothing is given, the paths do not belong together, or the input does not have one of the options.
        InputError: The files cannot be read.
    """
    job_paths = given_paths(paths)
    if not job_paths or not all(path.text for path in job_paths):
        raise UsageError("missing-argument", "no file is given", hint=_NO_PATH)
    try:
        for kind in kinds():
            if kind.recognises(job_paths):
                return kind.open(job_paths).read_options(options or {})
    finally:
        for path in job_paths:
            path.close()
    name = " ".join(path.text for path in job_paths)
    raise UsageError(
        "several-inputs", f"{name}: only traces of one job are read together", hint="give one file or model at a time"
    )
