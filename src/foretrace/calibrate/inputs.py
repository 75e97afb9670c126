"""Recognises the files that a calibration is made of, by their content."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.files import given_path, head_bytes, open_binary
from foretrace.cost.calibration import InputKind

_PROFILE: Final = b"# foretrace kernel profile"
_HEAD: Final = 4096
_LOG_HEAD: Final = 1 << 20
"""Lines of NCCL may stand before the table of nccl-tests."""
_STEP_COLUMNS: Final = ("step_time_s", "step_time_derived_s")
KNOWN: Final = (
    "a calibration is made of profiler traces and tables with shapes, kernel profiles (foretrace measure gpu), logs "
    "and tables of nccl-tests, and rows of whole steps (CSV or JSON lines)"
)


def input_kind(path: str | Path) -> InputKind:
    """Returns what a file or folder holds. Raises InputError if a calibration cannot be made of it."""
    from foretrace.inputs.profiler_trace.format import looks_like_profile

    given = Path(path)
    folder = given_path(path)
    if folder.is_folder:
        return "trace" if any(looks_like_profile(file.path) for file in folder.first_files) else "collectives"
    head = _head(given)
    if head.startswith(_PROFILE):
        return "kernel profile"
    if looks_like_profile(given):
        return "trace"
    text = head.decode("utf-8", "replace")
    first = text.lstrip("\ufeff").partition("\n")[0]
    if "step_ms" in first or any(name in first for name in _STEP_COLUMNS):
        return "steps"
    return _by_reader(given, text)


def _by_reader(path: Path, text: str) -> InputKind:
    from foretrace.cost.network.nccl_tests.logs import is_log
    from foretrace.cost.network.nccl_tests.tables import is_table
    from foretrace.inputs.profiler_table.format import looks_like_table

    if is_table(text):
        return "collectives"
    if looks_like_table(path):
        return "table"
    if is_log(head_bytes(path, _LOG_HEAD).decode("utf-8", "replace")):
        return "collectives"
    raise InputError("wrong-format", "nothing here can be calibrated with", where=str(path), hint=KNOWN)


def _head(path: Path) -> bytes:
    """The first bytes of a file, unpacked."""
    from foretrace.inputs.profiler_trace.format.text import head_of

    if given_path(path).is_file and not path.is_file():
        hint = "write it to a file, and give that"
        raise InputError("unreadable-file", "measurements are read from files", where=str(path), hint=hint)
    open_binary(path, "measurement").close()  # raises where it cannot be read
    head = head_of(path, _HEAD)
    if not head.strip():
        raise InputError("empty-file", "the file is empty", where=str(path), hint=KNOWN)
    return head
