"""Reading a job, whatever files it is in."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from foretrace.errors import InputError
from foretrace.formats.aicb import read_workload
from foretrace.formats.megatron_trace import looks_like_trace
from foretrace.lower.aicb import lower_workload
from foretrace.lower.choices import Choices
from foretrace.program.program import Program

FileKind = Literal["program", "aicb", "traces"]

MAGIC = b"\x93FOR"
"""How a program file begins."""


def file_kind(path: str | Path) -> FileKind:
    """What a path is by its name or its first bytes: a Foretrace program, traces of ranks (a folder, a pattern or a
    file), or else a workload, readable or not."""
    if Path(path).suffix == ".foretrace":
        return "program"
    # Traces come as folders and patterns, workloads never do.
    if looks_like_trace(path) or Path(path).is_dir() or (glob.has_magic(str(path)) and not Path(path).exists()):
        return "traces"
    if not Path(path).is_file():  # what a pipe has given cannot be read again
        return "aicb"
    try:
        with Path(path).open("rb") as stream:
            return "program" if stream.read(len(MAGIC)) == MAGIC else "aicb"
    except OSError:
        return "aicb"


def load(path: str | Path | Sequence[str | Path], choices: Choices | None = None) -> Program:
    """The program of a job: a Foretrace program, a SimAI/AICB workload, or Megatron rank traces, of which several
    folders may be campaigns of one job. `choices` decides what they leave open."""
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not paths:
        raise InputError("no file is given", hint="name a workload, a program or a folder of traces")
    chosen = choices or Choices()
    kind = file_kind(paths[0])
    if kind == "traces":
        from foretrace.lower.megatron_trace import lower_traces  # a workload does without, and starts faster

        return lower_traces(paths, chosen)
    if len(paths) > 1:
        raise InputError(f"{len(paths)} files, of which only traces are read together", where=str(paths[0]))
    if kind == "program":
        if chosen.made():
            raise InputError("these choices are made already in a program file", where=str(paths[0]))
        from foretrace.program.file import load as load_program  # a workload does without, and starts faster

        return load_program(paths[0])
    return lower_workload(read_workload(paths[0]), chosen)
