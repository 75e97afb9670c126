"""Reading a job, whatever files it is in."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from foretrace.errors import InputError
from foretrace.formats.aicb import read_workload
from foretrace.formats.megatron_trace import looks_like_trace
from foretrace.formats.profiler_trace.sniff import ENDINGS, REPORTS, begins_as_profile
from foretrace.formats.profiler_trace.text import unpacked
from foretrace.lower.aicb import lower_workload
from foretrace.lower.choices import Choices
from foretrace.program.program import Program

FileKind = Literal["program", "aicb", "traces", "profile", "execution", "table"]

MAGIC = b"\x93FOR"
"""How a program file begins."""

_SNIFFED_BYTES = 65536
_MOST_FILES = 1000
_JSON_OR_PACKED = (b"{", b"[", b"\x1f\x8b", b"SQLite format 3")


def file_kind(path: str | Path) -> FileKind:
    """What a path is by its name or its first bytes: a Foretrace program, Megatron traces of ranks (a folder, a pattern
    or a file), a profiler's traces (likewise), PyTorch's execution trace, a profiler's table, or else a workload,
    readable or not."""
    if Path(path).suffix == ".foretrace":
        return "program"
    if looks_like_trace(path):
        return "traces"
    files = _files_of(path)
    if files is None:
        kind = _kind_of_file(path)
        # What is called a profile and is none is refused as one: no workload is called so.
        misread = kind == "aicb" and Path(path).name.endswith(ENDINGS) and Path(path).is_file()
        return "profile" if misread else kind
    if any(_kind_of_file(one) == "profile" for one in files if one.name.endswith(ENDINGS)):
        return "profile"
    return "traces"  # Megatron's come as folders and patterns, workloads never do


def _files_of(path: str | Path) -> list[Path] | None:
    """The first files of a folder, or those that a pattern fits; None where a path is one file."""
    try:
        if Path(path).is_dir():
            return sorted(islice(Path(path).iterdir(), _MOST_FILES))
        if glob.has_magic(str(path)) and not Path(path).exists():
            found = glob.iglob(str(path), recursive=True)  # noqa: PTH207 - may be absolute
            return sorted(Path(one) for one in islice(found, _MOST_FILES))
    except OSError:
        return []
    return None


def _kind_of_file(path: str | Path) -> FileKind:
    if not Path(path).is_file():  # what a pipe has given cannot be read again
        return "aicb"
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(_SNIFFED_BYTES)
    except OSError:
        return "aicb"
    if head.startswith(MAGIC):
        return "program"
    if Path(path).suffix in REPORTS:
        return "profile"  # not read, but an error says how to export it
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(_JSON_OR_PACKED):
        kind = _kind_of_json(unpacked(head, _SNIFFED_BYTES))
        if kind != "aicb":
            return kind  # else it may be a log, whose lines may begin with a time in brackets
    if b"-----  ---" in head or b"CPU total" in head or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        from foretrace.formats.torch_table import looks_like_table  # a workload does without

        return "table" if looks_like_table(path) else "aicb"
    return "aicb"


def _kind_of_json(head: bytes) -> FileKind:
    """What JSON or SQLite is by its first bytes."""
    from foretrace.formats.execution_trace import begins_as_execution_trace  # a workload does without

    if begins_as_profile(head):
        return "profile"
    return "execution" if begins_as_execution_trace(head) else "aicb"


def load(path: str | Path | Sequence[str | Path], choices: Choices | None = None) -> Program:
    """The program of a job: a Foretrace program, a SimAI/AICB workload, Megatron rank traces, of which several folders
    may be campaigns of one job, a profiler's traces of one or many ranks (with PyTorch's execution traces beside them),
    or a profiler's table. `choices` decides what they leave open."""
    paths = [Path(one) for one in ([path] if isinstance(path, str | Path) else path)]
    if not paths:
        raise InputError("no file is given", hint="name a workload, a program, a profile or a folder of traces")
    chosen = choices or Choices()
    kind = file_kind(paths[0])
    if kind in ("profile", "execution"):
        from foretrace.lower.profiler_trace import lower_profile  # a workload does without, and starts faster

        return lower_profile(paths, chosen)
    if kind != "table":  # which says itself what it cannot do
        chosen.refuse(("sizes",), "only what a profile does not hold can be set", str(paths[0]))
        chosen.refuse(("host", "steps", "batch", "gpu"), "only a profiler's trace can be run like this", str(paths[0]))
    if kind == "traces":
        from foretrace.lower.megatron_trace import lower_traces  # a workload does without, and starts faster

        return lower_traces(paths, chosen)
    if len(paths) > 1:
        raise InputError(f"{len(paths)} files, of which only traces are read together", where=str(paths[0]))
    if kind == "table":
        from foretrace.lower.torch_table import lower_table  # a workload does without, and starts faster

        return lower_table(paths[0], chosen)
    if kind == "program":
        if chosen.made():
            raise InputError("these choices are made already in a program file", where=str(paths[0]))
        from foretrace.program.file import load as load_program  # a workload does without, and starts faster

        return load_program(paths[0])
    return lower_workload(read_workload(paths[0]), chosen)
