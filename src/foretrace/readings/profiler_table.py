"""Explains what a profiler table tells of a step, what it does not, and which of its numbers must not be added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from foretrace.basics.errors import listed
from foretrace.basics.units import format_percent, format_time
from foretrace.basics.viewable import Viewable
from foretrace.inputs.profiler_table.format import Field, ProfilerTable
from foretrace.inputs.profiler_table.profile import TableProfile, understand
from foretrace.inputs.profiler_table.rows import RowKind, device_s
from foretrace.inputs.torch_ops.kinds import WorkKind, kind_of_op

Bound = Literal["device", "host", "unknown"]

COUNTED_TWICE: Final = 1.2
"""How many times the step the column Self CPU must add up to, to say that it counts something twice."""
SHOWN: Final = 0.995
"""The share of the written total that rows must reach for the table to count as whole."""


@dataclass(frozen=True, slots=True)
class TableExplanation:
    """One table, explained: what bounds the step and why, what must not be added, what the table cannot tell."""

    profile: TableProfile
    bound: Bound
    why: str
    do_not_add: tuple[str, ...]
    cannot_tell: tuple[str, ...]
    host_by_kind_s: Mapping[WorkKind, float]
    """Self CPU of the ops, by what they do."""

    @property
    def communication_recorded(self) -> bool:
        """Whether the device time of every communication is in the table."""
        return all(call.device_s is not None for call in self.profile.calls)


@dataclass(frozen=True, slots=True)
class ExplainedTables(Viewable):
    """The profiler tables of a file, each explained."""

    tables: tuple[TableExplanation, ...]
    path: str


def explain_tables(tables: Sequence[ProfilerTable]) -> tuple[TableExplanation, ...]:
    """Explains every table of a file."""
    return tuple(explain_table(table) for table in tables)


def explain_table(table: ProfilerTable) -> TableExplanation:
    """Explains a table."""
    profile = understand(table)
    bound, why = _bound(profile)
    do_not_add, cannot_tell = tuple(_do_not_add(profile)), tuple(_cannot_tell(profile))
    return TableExplanation(profile, bound, why, do_not_add, cannot_tell, _host_by_kind(profile))


def _host_by_kind(profile: TableProfile) -> dict[WorkKind, float]:
    by_kind: dict[WorkKind, float] = {}
    for row in profile.rows.of(RowKind.OP):
        seconds = max(row.self_cpu_s or 0.0, 0.0)
        if seconds:
            by_kind[kind_of_op(row.name)] = by_kind.get(kind_of_op(row.name), 0.0) + seconds
    return dict(sorted(by_kind.items(), key=lambda entry: -entry[1]))


def _bound(profile: TableProfile) -> tuple[Bound, str]:
    """Returns whether host or device holds a step up: whichever has more of its own to do."""
    host, device = profile.host, profile.device.total_s / profile.host.steps
    if not profile.device.parts:
        return "host" if not profile.table.device else "unknown", "the table has no device time"
    each = " a step" if host.steps > 1 else ""
    work = (
        f"{format_time(device)} of computation on the device{each}, {format_time(host.work_s)} of the host's own work"
    )
    missing = [call.name for call in profile.calls if call.device_s is None]
    if host.start_up_s:
        return "unknown", f"{work}, but this was a first step, with what only a first step does"
    if device >= host.work_s:
        return "device", f"{work}: the host is ahead"
    if missing:
        return "unknown", f"{work}, and communication beside it that is not recorded"
    return "host", f"{work}: the device waits for launches (CUDA graphs, or larger batches, would help)"


def _do_not_add(profile: TableProfile) -> list[str]:
    table, device, host = profile.table, profile.device, profile.host
    word = table.device or "device"
    texts: list[str] = []
    if device.parts and table.has(Field.DEVICE_TOTAL):
        column = sum(device_s(row) for row in table.rows)
        heading = f"{word} total"
        texts.append(
            f"{heading} has everything called under a row in it: the column adds up to {format_time(column)}, "
            f"{column / device.total_s:.1f} times the device's {format_time(device.total_s)}"
        )
    if device.kernels_s and device.ops_s:
        same = "the same" if device.agree else "not the same, so some launches have no op"
        texts.append(
            f"kernels ({format_time(device.kernels_s)}) and the ops that launched them ({format_time(device.ops_s)}) "
            f"are two counts of one work: {same}"
        )
    texts += _labels_and_nodes(profile)
    marked = profile.rows.of(RowKind.DEVICE_LABEL)
    if marked:
        names = ", ".join(dict.fromkeys(row.name for row in marked[:4]))
        texts.append(f"{names}: rows of labels on the device, from their first kernel to their last; gaps count too")
    if device.artefacts_s:
        names = listed([row.name for row in profile.rows.of(RowKind.ARTEFACT) if row.self_device_s])
        texts.append(
            f"{names}: {format_time(device.artefacts_s)} of kernels counted a second time, which totals above them "
            "have in them too"
        )
    if host.wall_s and host.self_sum_s > COUNTED_TWICE * host.wall_s:
        texts.append(
            f"Self CPU adds up to {format_time(host.self_sum_s)} in steps of {format_time(host.wall_s)}: threads run "
            "at once, and old versions count runtime calls again in what called them"
        )
    return texts


def _labels_and_nodes(profile: TableProfile) -> list[str]:
    """Returns why autograd nodes come on top of labels, where that is so."""
    device = profile.device
    nodes = sum(part.device_s for part in device.parts if part.origin == "autograd node")
    labels = sum(part.device_s for part in device.parts if part.origin == "label")
    if not nodes or not labels:
        return []
    outer = device.labels[0]
    held = [row for row in profile.rows.of(RowKind.COLLECTIVE) if device_s(row) > 0]
    inside = [f"{row.name} ({format_time(device_s(row))}) is inside other rows" for row in held]
    return [
        *inside,
        f"labels nest: {outer.name} ({format_time(outer.device_s)}) has all others in it",
        f"autograd nodes ({format_time(nodes)}) are in no label: they run on another thread, and {outer.name} has only "
        f"{format_time(outer.rest_s)} besides its parts",
    ]


def _cannot_tell(profile: TableProfile) -> list[str]:
    device = profile.device
    texts: list[str] = []
    missing = [f"{call.name} ×{call.calls}" for call in profile.calls if call.device_s is None]
    if missing:
        texts.append(f"device time of communication: not recorded, which does not mean 0 ({listed(missing)})")
    if profile.calls:
        texts.append("bytes and groups of communication (foretrace simulate asks for them: --set)")
    texts.append("when anything ran: gaps of the device, what overlapped, and the order within a row's calls")
    if device.basis == "labels":
        texts.append("kernels: Self times of the device are all 0, so labels and autograd nodes stand for them")
        rest = sum(part.device_s for part in device.parts if part.rest and part.kind == "other")
        if rest:
            texts.append(
                f"what {format_time(rest)} ({format_percent(rest / device.total_s)}) is that labels have in them "
                "besides their parts"
            )
    if device.basis == "op totals":
        texts.append("which ops called which: without Self times, composite ops are left out by name")
    if any(row.cut for row in profile.rows.of(RowKind.KERNEL)):
        texts.append("whole names of kernels: they are cut, and one row may be several (max_name_column_width=None)")
    texts += _rows_missing(profile)
    return texts


def _rows_missing(profile: TableProfile) -> list[str]:
    """Returns what a row limit left out, by the totals below the table."""
    table = profile.table
    if table.top_level_only:
        return ["ops called by others: the table has top-level ops only"]
    total, shown_s = table.self_cpu_total_s, profile.host.self_sum_s
    if total and shown_s < SHOWN * total:
        return [f"{format_time(total - shown_s)} of Self CPU is in rows that are not shown (row_limit=-1 shows all)"]
    return []
