"""Reads the headings of a profiler table's columns, in every version of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from foretrace.basics.errors import InputError, did_you_mean
from foretrace.inputs.profiler_table.format.records import Column, Field

MAX_COLUMNS: Final = 100
"""Columns of a table; PyTorch writes up to 24."""

_PLAIN: Final = {
    "Name": Field.NAME,
    "Overload Name": Field.OVERLOAD,
    "# of Calls": Field.CALLS,
    "Number of Calls": Field.CALLS,
    "Node ID": Field.NODE,
    "Input Shapes": Field.SHAPES,
    "Source Location": Field.STACK,
}

_TIMES: Final = {
    "Self {} %": (Field.SELF_CPU_SHARE, Field.SELF_DEVICE_SHARE),
    "Self {} total %": (Field.SELF_CPU_SHARE, Field.SELF_DEVICE_SHARE),
    "Self {}": (Field.SELF_CPU, Field.SELF_DEVICE),
    "Self {} total": (Field.SELF_CPU, Field.SELF_DEVICE),
    "{} total %": (Field.CPU_TOTAL_SHARE, Field.DEVICE_TOTAL_SHARE),
    "{} total": (Field.CPU_TOTAL, Field.DEVICE_TOTAL),
    "{} time avg": (Field.CPU_AVERAGE, Field.DEVICE_AVERAGE),
    "{} Mem": (Field.CPU_MEMORY, Field.DEVICE_MEMORY),
    "Self {} Mem": (Field.SELF_CPU_MEMORY, Field.SELF_DEVICE_MEMORY),
}
"""Headings with a processor in them; the first field is that of the CPU. PyTorch 1.6 still wrote "Self CPU total"."""

_PATTERNS: Final = tuple(
    (re.compile(re.escape(text).replace(r"\{\}", r"([A-Za-z_]\w*)")), fields) for text, fields in _TIMES.items()
)

_FLOPS: Final = re.compile(r"(Total )?([KMGTP]?)FLOP[sS]")
_SCALE: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}

TIMES: Final = (Field.CPU_TOTAL, Field.SELF_CPU, Field.DEVICE_TOTAL, Field.SELF_DEVICE)
"""Columns of which a table needs one."""


def split_headings(line: str) -> list[str]:
    """The headings of a line. They are split where two spaces are, since one that is longer than its column pushes the
    others to the right."""
    return [heading for heading in re.split(r" {2,}", line.strip()) if heading]


def looks_like_headings(line: str) -> bool:
    """Whether a line is that of a table's headings."""
    if not any(word in line for word in ("CPU", "Name", "Calls")):
        return False
    headings = split_headings(line)
    if len(headings) > MAX_COLUMNS:
        return False
    known = sum(
        heading in _PLAIN or any(pattern.fullmatch(heading) for pattern, _ in _PATTERNS) for heading in headings
    )
    return len(headings) >= 3 and known >= 3 and known >= len(headings) / 2


def read_headings(headings: Sequence[str], where: str) -> tuple[tuple[Column | None, ...], str, list[str]]:
    """Returns what each column holds, None where not known; the word for the device; and the unknown headings."""
    columns: list[Column | None] = []
    unknown: list[str] = []
    device = ""
    for heading in headings:
        column, processor = _read(heading)
        if column is not None and processor not in ("", "CPU"):
            device = device or processor
            column = column if processor == device else None
        if column is not None and any(other is not None and other.field is column.field for other in columns):
            raise InputError("duplicate-name", f'column "{heading}" is there twice', where=where)
        columns.append(column)
        if column is None:
            unknown.append(heading)
    _check(columns, unknown, where)
    return tuple(columns), device, unknown


def _read(heading: str) -> tuple[Column | None, str]:
    """A column, and the processor it is of."""
    if heading in _PLAIN:
        return Column(heading, _PLAIN[heading]), ""
    match = _FLOPS.fullmatch(heading)
    if match is not None:
        # Without "Total" it was a rate: PyTorch 1.8 divided by the time before it wrote them.
        return Column(heading, Field.FLOPS if match[1] else Field.FLOPS_RATE, _SCALE[match[2]]), ""
    for pattern, (of_cpu, of_device) in _PATTERNS:
        match = pattern.fullmatch(heading)
        if match is not None:
            return Column(heading, of_cpu if match[1] == "CPU" else of_device), match[1]
    return None, ""


def _check(columns: Sequence[Column | None], unknown: list[str], where: str) -> None:
    fields = {column.field for column in columns if column is not None}
    if Field.NAME not in fields:
        raise InputError("missing-field", "the table has no column Name", where=where, hint=_HINT)
    if Field.CALLS not in fields:
        meant = did_you_mean("# of Calls", unknown) if unknown else ""
        raise InputError("missing-field", f"the table has no column # of Calls{meant}", where=where, hint=_HINT)
    if not fields & set(TIMES):
        raise InputError("missing-field", "the table has no column of times", where=where, hint=_HINT)


_HINT: Final = "give all of what print(prof.key_averages().table()) wrote: Name, Self CPU, CPU total, …, # of Calls"
