"""Reports numbers of a profiler table that contradict each other; each kind once, with the first line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError, shown
from foretrace.basics.units import format_time
from foretrace.inputs.plausibility import MAX_GPU_FLOPS
from foretrace.inputs.profiler_table.format.records import TableRow

MIN_CALL_S: Final = 10e-9
"""The time of a call, on the host or a device: to record one takes longer."""

MAX_SHORTEST_CALL_S: Final = 50e-6
"""The shortest mean time of a call on the host in a table of `_MIN_ROWS` rows or more: 0.1 µs in real tables."""
_MIN_ROWS: Final = 50
_PYTHON: Final = re.compile(r"\.py(\(\d+\)|\.\.\.)|^<|^nn\.Module: ")
"""Names of Python functions (`with_stack`): PyTorch prints negative times of their own for some of them."""

_ROUNDING: Final = 0.01
_ROUNDING_S: Final = 2e-6
"""Times have three digits after the point, and at most of milliseconds where they are short."""
_MAX_SHARE: Final = 1.05
_AVERAGE_DIFFERS: Final = 0.2


def row_notes(rows: Sequence[TableRow], path: str) -> list[Diagnostic]:
    """Reports rows that contradict themselves.

    Raises:
        InputError: The host's own times add up to less than nothing.
    """
    notes = []
    for code, describe in _CHECKS:
        odd = [(row, text) for row in rows if (text := describe(row))]
        if odd:
            row, text = odd[0]
            more = f" ({len(odd):,} such rows)" if len(odd) > 1 else ""
            notes.append(Diagnostic("warning", code, f"{shown(row.name)} {text}{more}", f"{path}:{row.line}"))
    averages = [(row.cpu_average_s, row) for row in rows if row.cpu_average_s and row.cpu_average_s > 0]
    if len(averages) >= _MIN_ROWS:
        shortest_s, row = min(averages, key=lambda entry: entry[0])
        if shortest_s > MAX_SHORTEST_CALL_S:
            text = f"{shown(row.name)} takes {format_time(shortest_s)} on the host, and no other row less"
            notes.append(Diagnostic("warning", "implausible-time", f"{text}: a unit?", f"{path}:{row.line}"))
    ops = [row for row in rows if not _PYTHON.search(row.name)]
    own_s = sum(row.self_cpu_s or 0.0 for row in ops)
    if own_s < 0:
        first = next(row for row in ops if (row.self_cpu_s or 0.0) < 0)
        raise InputError(
            "implausible-time",
            f"Self CPU adds up to {format_time(own_s)}: {shown(first.name)} is negative",
            where=f"{path}:{first.line}",
            hint="take the table again: prof.key_averages().table(row_limit=-1)",
        )
    return notes


def total_notes(
    rows: Sequence[TableRow], self_cpu_s: float | None, self_device_s: float | None, where: str
) -> list[Diagnostic]:
    """Reports rows that are more than the sums below their table; rows may be fewer, as tables have a row limit.

    Args:
        rows: The rows.
        self_cpu_s: "Self CPU time total" below the table.
        self_device_s: "Self CUDA time total" below the table. Ops and kernels both count the same time in their rows.
        where: The place of the table.
    """
    own_s = sum(max(row.self_cpu_s or 0.0, 0.0) for row in rows)
    longest_s = max((row.self_device_s or 0.0 for row in rows), default=0.0)
    room_s = _ROUNDING_S * len(rows)
    notes = []
    for what, seconds, total_s in (("Self CPU of all rows", own_s, self_cpu_s), ("a row", longest_s, self_device_s)):
        if total_s is not None and seconds > (1 + _ROUNDING) * total_s + room_s:
            text = f"{what} takes {format_time(seconds)}, more than the total of {format_time(total_s)} below the table"
            notes.append(Diagnostic("warning", "conflicting-values", f"{text}; rows count", where))
    return notes


def _negative(row: TableRow) -> str:
    low = min(row.self_cpu_s or 0.0, row.self_device_s or 0.0)
    return f"has a time of its own of {format_time(low)}: counted as 0" if low < 0 else ""


def _long_self(row: TableRow) -> str:
    for own, total in ((row.self_cpu_s, row.cpu_total_s), (row.self_device_s, row.device_total_s)):
        # In some versions rows of kernels have no total.
        if own is not None and total and own > (1 + _ROUNDING) * total + _ROUNDING_S:
            return f"takes {format_time(own)} itself, more than its total of {format_time(total)}"
    return ""


def _other_average(row: TableRow) -> str:
    for average, total in ((row.cpu_average_s, row.cpu_total_s), (row.device_average_s, row.device_total_s)):
        if average is None or total is None:
            continue
        product = average * row.calls
        if abs(product - total) > _AVERAGE_DIFFERS * max(product, total) + _ROUNDING_S * max(row.calls, 1):
            times = f"{row.calls:,} calls of {format_time(average)}"
            return f"has {times}, which is not its total of {format_time(total)}"
    return ""


def _never_called(row: TableRow) -> str:
    longest_s = _longest_s(row)
    return f"takes {format_time(longest_s)} in 0 calls" if not row.calls and longest_s > 0 else ""


def _longest_s(row: TableRow) -> float:
    return max(row.cpu_total_s or 0.0, row.self_cpu_s or 0.0, row.device_total_s or 0.0, row.self_device_s or 0.0)


def _large_share(row: TableRow) -> str:
    share = max(row.self_cpu_share or 0.0, row.self_device_share or 0.0)
    return f"has a share of {100 * share:.0f} %" if share > _MAX_SHARE else ""


def _fast(row: TableRow) -> str:
    seconds = row.device_total_s or row.self_device_s or row.cpu_total_s
    rate = row.flops / seconds if row.flops and seconds else row.flops_per_s or 0.0
    return f"computes at {rate / 1e15:,.0f} PFLOP/s, which no GPU does" if rate > MAX_GPU_FLOPS else ""


def _short_calls(row: TableRow) -> str:
    longest_s = _longest_s(row)
    each_s = longest_s / row.calls if row.calls else MIN_CALL_S
    short = 0 < each_s < MIN_CALL_S and row.calls * MIN_CALL_S > _ROUNDING_S
    return f"takes {format_time(longest_s)} in {row.calls:,} calls, less than a clock can tell apart" if short else ""


_CHECKS: Final[tuple[tuple[str, Callable[[TableRow], str]], ...]] = (
    ("implausible-time", _negative),
    ("conflicting-values", _long_self),
    ("conflicting-values", _other_average),
    ("conflicting-values", _never_called),
    ("conflicting-values", _large_share),
    ("implausible-rate", _fast),
    ("implausible-rate", _short_calls),
)
