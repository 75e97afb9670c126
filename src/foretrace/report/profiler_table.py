"""The meaning of profiler tables, as a screen and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_count, format_percent, format_time
from foretrace.inputs.profiler_table.communication import TableCollective
from foretrace.inputs.profiler_table.labels import Label
from foretrace.inputs.profiler_table.parts import DeviceTime, Origin, TablePart
from foretrace.inputs.torch_ops.kinds import WorkKind
from foretrace.program.columns import Phase, label
from foretrace.readings.profiler_table import ExplainedTables, TableExplanation
from foretrace.report.json import read_record, to_json
from foretrace.report.table import TextTable
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show

EXPLANATION_SCHEMA: Final = "foretrace.table-explanation/1"
MAX_LABELS: Final = 40  # and rows of communication
NOT_RECORDED: Final = "not recorded"


@dataclass(frozen=True, slots=True)
class LabelRecord:
    """A label with what is inside it."""

    name: str
    phase: Phase
    calls: int
    device_s: float
    host_s: float
    rest_s: float
    how: str
    parts: tuple[LabelRecord, ...]

    @classmethod
    def of(cls, label: Label) -> LabelRecord:
        """Reads a label and all its parts."""
        return read_record(cls, label, parts=tuple(cls.of(part) for part in label.parts))


@dataclass(frozen=True, slots=True)
class HostRecord:
    """Seconds of the host over the whole table; `work_per_step_s` is without start-up, waits and the profiler."""

    wall_s: float
    wall_from: str
    start_up_s: float
    start_up_row: str
    waits_s: float
    profiler_s: float
    work_per_step_s: float
    launches: int
    launch_s: float
    self_sum_s: float


@dataclass(frozen=True, slots=True)
class TableExplanationRecord:
    """One table, explained; times in seconds over the whole table, unless a key says by step."""

    line: int
    rows: int
    device: str
    steps: int
    steps_from: str
    device_time_s: float
    device_time_basis: str
    kernels_s: float
    ops_s: float
    artefacts_s: float
    by_kind_s: Mapping[WorkKind, float]
    by_kind_in_labels_s: Mapping[WorkKind, float]
    by_kind_in_nodes_s: Mapping[WorkKind, float]
    host_by_kind_s: Mapping[WorkKind, float]
    by_phase_s: Mapping[str, float]
    parts: tuple[TablePart, ...]
    labels: tuple[LabelRecord, ...]
    host: HostRecord
    bound: str
    why: str
    communication_recorded: bool
    communication: tuple[TableCollective, ...]
    do_not_add: tuple[str, ...]
    cannot_tell: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]

    @classmethod
    def of(cls, explanation: TableExplanation) -> TableExplanationRecord:
        """Reads an explanation."""
        profile = explanation.profile
        table, device, host = profile.table, profile.device, profile.host
        return read_record(
            cls,
            explanation,
            line=table.line,
            rows=len(table.rows),
            device=table.device,
            steps=host.steps,
            steps_from=host.steps_from,
            device_time_s=device.total_s,
            device_time_basis=device.basis,
            kernels_s=device.kernels_s,
            ops_s=device.ops_s,
            artefacts_s=device.artefacts_s,
            by_kind_s=device.by_kind(),
            by_kind_in_labels_s=device.by_kind("label"),
            by_kind_in_nodes_s=device.by_kind("autograd node"),
            by_phase_s={label(phase): seconds for phase, seconds in device.by_phase().items()},
            parts=device.parts,
            labels=tuple(LabelRecord.of(outer) for outer in device.labels),
            host=read_record(HostRecord, host, profiler_s=host.artefacts_s, work_per_step_s=host.work_s),
            communication=profile.calls,
            diagnostics=table.diagnostics,
        )


def explanations_json(explained: ExplainedTables) -> dict[str, Any]:
    """Returns what the profiler tables of a file mean."""
    tables = [TableExplanationRecord.of(explanation) for explanation in explained.tables]
    return to_json(EXPLANATION_SCHEMA, {"format": "PyTorch profiler table", "tables": tables})


def print_explanations(explained: ExplainedTables) -> None:
    """Prints a screen for each table of a file."""
    explanations, path = explained.tables, Path(explained.path)
    screen = Screen.of(sys.stdout)
    lines: list[list[Span]] = []
    for number, explanation in enumerate(explanations):
        which = f", table {number + 1} of {len(explanations)}" if len(explanations) > 1 else ""
        lines += [[]] if number else []
        lines += _explanation(explanation, path.name + which)
    show(
        screen,
        [*lines, [(f"  see      foretrace simulate {path} · foretrace inspect {path} · --json", "bright_black")]],
    )


def _explanation(explanation: TableExplanation, name: str) -> list[list[Span]]:
    profile = explanation.profile
    host, device = profile.host, profile.device
    lines: list[list[Span]] = [
        [(f"  {name}: a PyTorch profiler table, {format_count(len(profile.table.rows))} rows", "")],
        [(f"  steps    {host.steps} ({host.steps_from})", "")],
        [(f"  device   {device_text(device, host.steps)}", "")],
        [(f"  host     {host_text(explanation)}", "")],
        [(f"  bound    {bound_text(explanation)}", "bold")],
    ]
    kinds = kinds_table(explanation)
    lines += [[], *kinds.lines()] if kinds.rows else []
    if device.labels:
        lines += [[], *labels_table(device, host.steps).first(MAX_LABELS).lines()]
    if profile.calls:
        lines += [[], *communication_table(explanation).first(MAX_LABELS).lines()]
    lines += [[], *_list("do not add", explanation.do_not_add), *_list("it cannot tell", explanation.cannot_tell)]
    return [*lines, *diagnostic_lines(profile.table.diagnostics)]


_BOUND: Final = {"device": "by the device", "host": "by the host", "unknown": "not known"}


def bound_text(explanation: TableExplanation) -> str:
    """Returns what bounds the step, and why."""
    return f"{_BOUND[explanation.bound]}: {explanation.why}"


def _list(title: str, texts: Sequence[str]) -> list[list[Span]]:
    if not texts:
        return []
    return [[(f"  {title}", "bold")], *([(f"  · {text}", "")] for text in texts), []]


def device_text(device: DeviceTime, steps: int) -> str:
    """Returns the time of the device by phase."""
    if not device.parts:
        return "no device time in the table"
    phases = " · ".join(
        f"{label(phase) if phase is not Phase.NONE else 'elsewhere'} {format_time(seconds)}"
        for phase, seconds in device.by_phase().items()
    )
    each = f", {format_time(device.total_s / steps)} each" if steps > 1 else ""
    return f"{format_time(device.total_s)}{_in_all(steps)}{each} ({_BASIS[device.basis]}): {phases}"


def _in_all(steps: int) -> str:
    """Returns how many steps a time covers, where these are several."""
    return f" in {steps} steps" if steps > 1 else ""


_BASIS: Final = {
    "ops": "Self times of the ops",
    "kernels": "Self times of the kernels",
    "labels": "labels without their parts, and autograd nodes",
    "op totals": "totals of ops that call no others",
    "none": "",
}


def host_text(explanation: TableExplanation) -> str:
    """Returns the time of the host and its parts."""
    host = explanation.profile.host
    parts = [f"{format_time(host.start_up_s)} start-up ({host.start_up_row})"] if host.start_up_s else []
    parts += [f"{format_time(host.waits_s)} waiting for streams"] if host.waits_s else []
    parts += [f"{format_time(host.artefacts_s)} the profiler's"] if host.artefacts_s else []
    each = " a step" if host.steps > 1 else ""
    parts.append(f"{format_time(host.work_s)}{each} its own work")
    launches = f" · {format_count(host.launches)} launches in {format_time(host.launch_s)}" if host.launches else ""
    return f"{format_time(host.wall_s)}{_in_all(host.steps)} ({host.wall_from}): {', '.join(parts)}{launches}"


def _times(seconds: float, steps: int) -> list[str]:
    """Returns a time of the whole table and, where it holds several steps, of one of them."""
    return [format_time(seconds)] if steps == 1 else [format_time(seconds), format_time(seconds / steps)]


def kinds_table(explanation: TableExplanation) -> TextTable:
    """Returns device time by kind of work; where there is none, the host's."""
    device = explanation.profile.device
    if device.parts:
        return _device_kinds(device, explanation.profile.host.steps)
    return _host_kinds(explanation.host_by_kind_s)


def _device_kinds(device: DeviceTime, steps: int) -> TextTable:
    """Returns device time by kind; where labels and autograd nodes stand for kernels, each in its own column."""
    apart = device.basis == "labels"
    rows = []
    for kind, seconds in device.by_kind().items():
        cells = [str(kind), *_times(seconds, steps), format_percent(seconds / device.total_s)]
        if apart:
            cells += [_of_origin(device, kind, "label"), _of_origin(device, kind, "autograd node")]
        rows.append(cells)
    total = ["all", *_times(device.total_s, steps), format_percent(1.0)]
    heads = ["device time by kind", *(["time"] if steps == 1 else [f"{steps} steps", "one step"]), "share"]
    if apart:
        outer = device.labels[0].name if device.labels else "labels"
        heads += [f"in {outer}", "autograd nodes"]
        total += [_of_origin(device, None, "label"), _of_origin(device, None, "autograd node")]
    return TextTable(heads, [*rows, total])


def _host_kinds(seconds: Mapping[WorkKind, float]) -> TextTable:
    total = sum(seconds.values())
    rows = [(str(kind), format_time(of_kind), format_percent(of_kind / total)) for kind, of_kind in seconds.items()]
    rows += [("all", format_time(total), "100.0 %")] if rows else []
    return TextTable(("Self CPU of ops by kind", "time", "share"), rows)


def _of_origin(device: DeviceTime, kind: WorkKind | None, origin: Origin) -> str:
    by_kind = device.by_kind(origin)
    seconds = sum(by_kind.values()) if kind is None else by_kind.get(kind, 0.0)
    return format_time(seconds) if seconds else "–"


def labels_table(device: DeviceTime, steps: int) -> TextTable:
    """Returns the labels of the device, each with what is inside it."""
    rows = [row for label in device.labels for row in _label_rows(label, 0)]
    note = "what is inside what is inferred from order, calls, sums and names; a label's time has its parts in it"
    if device.basis in ("ops", "kernels"):
        note += "; the backward's kernels are launched by another thread and are in no label"
    if device.artefacts_s:
        note += f"; {format_time(device.artefacts_s)} that the profiler counts twice are in these times"
    return TextTable(
        (f"what the {f'{steps} steps do' if steps > 1 else 'step does'}", "device", "host", "calls"),
        rows,
        note,
    )


def _label_rows(label: Label, depth: int) -> Iterator[tuple[str, str, str, str]]:
    def seconds(value: float) -> str:
        return format_time(value) if value else "–"

    name = f"{'  ' * depth}{label.name}"
    yield name, seconds(label.device_s), seconds(label.host_s), format_count(label.calls)
    for part in label.parts:
        yield from _label_rows(part, depth + 1)
    if label.parts and label.rest_s:
        yield f"{'  ' * (depth + 1)}(the rest)", seconds(label.rest_s), "", ""


def communication_table(explanation: TableExplanation) -> TextTable:
    """Returns the calls of communication."""
    rows = [
        (
            call.name,
            format_count(call.calls),
            format_time(call.host_s),
            NOT_RECORDED if call.device_s is None else format_time(call.device_s),
        )
        for call in explanation.profile.calls
    ]
    note = "host times run from a call to its end as the host saw it, and are no times of transfer"
    return TextTable(("communication", "calls", "on the host", "on the device"), rows, note)
