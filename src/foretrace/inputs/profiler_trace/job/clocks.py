"""One clock for the traces of several ranks, each of which counts from an origin of its own."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_time
from foretrace.inputs.matching import Meeting, align_clocks


def clock_offsets(origins_ns: Sequence[int], meetings: Sequence[Meeting]) -> tuple[tuple[float, ...], list[Diagnostic]]:
    """Returns what to subtract from the times of each trace, in seconds, to bring it to the clock of the first.

    Args:
        origins_ns: Where each trace counts from, by its host's clock.
        meetings: When each collective ended, by trace. A trace that meets no other keeps its own clock.
    """
    count = len(origins_ns)
    alignment = align_clocks([0.0] * count, meetings)
    offset = alignment.offset
    notes = []
    if count > 1 and meetings:
        ends = [[end - offset[trace] for trace, end in meeting.items()] for meeting in meetings]
        spread_s = median(max(moments) - min(moments) for moments in ends)
        apart_s = [offset[trace] + (origin - origins_ns[0]) * 1e-9 for trace, origin in enumerate(origins_ns)]
        text = (
            f"clocks of {count} traces are set by the ends of {len(meetings):,} communications: they are up to "
            f"{format_time(max(apart_s) - min(apart_s))} apart, the ends then {format_time(spread_s)}"
        )
        notes.append(Diagnostic("note", "clocks-aligned", text))
    if alignment.apart:
        sets = len(alignment.apart) + 1
        notes.append(Diagnostic("note", "clocks-apart", f"{sets} sets of traces never meet: their clocks stay apart"))
    return offset, notes
