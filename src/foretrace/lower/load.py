"""Reading a job, whatever file it is in."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from foretrace.errors import InputError
from foretrace.formats.aicb import read_workload
from foretrace.lower.aicb import Choices, lower_workload
from foretrace.program.program import Program

FileKind = Literal["program", "aicb"]

MAGIC = b"\x93FOR"
"""How a program file begins."""


def file_kind(path: str | Path) -> FileKind:
    """What a file is by its name or its first bytes: a Foretrace program, or else a workload, readable or not."""
    if Path(path).suffix == ".foretrace":
        return "program"
    if not Path(path).is_file():  # what a pipe has given cannot be read again
        return "aicb"
    try:
        with Path(path).open("rb") as stream:
            return "program" if stream.read(len(MAGIC)) == MAGIC else "aicb"
    except OSError:
        return "aicb"


def load(path: str | Path, choices: Choices | None = None) -> Program:
    """The program in a file: a Foretrace program, or a SimAI/AICB workload, for which `choices` decides what it leaves
    open."""
    if file_kind(path) == "program":
        if choices is not None and choices != Choices():
            raise InputError("these choices are made already in a program file", where=str(path))
        from foretrace.program.file import load as load_program  # a workload does without, and starts faster

        return load_program(path)
    return lower_workload(read_workload(path), choices or Choices())
