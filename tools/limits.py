"""Writes docs/limits.md from the constants of the readers, so that the page and the code agree.

Usage: `python tools/limits.py > docs/limits.md`.
"""

from __future__ import annotations

import importlib

_BASICS, _PROGRAM, _TRACE = "basics", "program", "inputs.profiler_trace.format"

RAISED: dict[str, tuple[str, ...]] = {
    "SimAI or AICB workload": (
        "inputs.aicb.format.read:MAX_BYTES bytes",
        "inputs.aicb.format.read:MAX_LINES lines",
        "inputs.aicb.format.read:MAX_LINE_BYTES bytes a line",
    ),
    "Megatron rank trace": (
        "inputs.megatron_trace.format.read:MAX_BYTES bytes",
        "inputs.megatron_trace.format.read:MAX_LINES lines",
        "inputs.megatron_trace.format.read:MAX_LINE_BYTES bytes a line",
        "inputs.megatron_trace.format.runs:MAX_RUN_BYTES bytes of all ranks",
    ),
    "PyTorch trace, unpacked": (
        f"{_TRACE}.text:MAX_TEXT_BYTES bytes",
        f"{_TRACE}.text:_MAX_RATIO times its packed size",
        f"{_TRACE}.kineto_json:_MAX_VALUE characters a value",
        f"{_TRACE}.kineto_json:_MAX_BLANKS blanks in a row",
        f"{_TRACE}.kineto_json:_MIN_SECONDS seconds and more with its size",
    ),
    "Nsight export": (
        f"{_TRACE}.nsys_tables:_MAX_CELL_BYTES bytes a cell",
        f"{_TRACE}.nsys_tables:_MAX_TEXT_BYTES bytes of text",
        f"{_TRACE}.nsys_tables:_MIN_SECONDS seconds and more with its size",
    ),
    "execution trace, unpacked": (f"{_TRACE}.execution_trace:_MAX_TEXT_BYTES bytes",),
    "profiler table": (
        "inputs.profiler_table.format.read:MAX_BYTES bytes",
        "inputs.profiler_table.format.read:MAX_LINES lines",
        "inputs.profiler_table.format.read:MAX_LINE_BYTES bytes a line",
        "inputs.profiler_table.format.read:MAX_ROWS rows",
        "inputs.profiler_table.format.read:MAX_TABLES tables",
        "inputs.profiler_table.labels:MAX_LABELS labels",
    ),
    "memory snapshot": (f"{_BASICS}.files:MAX_FILE_BYTES bytes",),
    "program or saved answer": (
        f"{_PROGRAM}.sections:MAX_HEADER_BYTES bytes of header",
        f"{_PROGRAM}.sections:MAX_COLUMN_BYTES bytes of columns",
        f"{_PROGRAM}.check:MAX_ROWS rows of a table once unrolled",
        f"{_PROGRAM}.check:MAX_OVERRIDES overrides",
    ),
    "cluster, job or model in YAML or JSON": (
        f"{_BASICS}.documents:MAX_BYTES bytes",
        f"{_BASICS}.documents:MAX_NODES values with aliases",
    ),
    "training script": ("inputs.script.input:MAX_BYTES bytes",),
    "routing of experts": ("inputs.model.options:_MAX_ROUTING_BYTES bytes",),
    "launch script": (
        "workload.launch.arguments:MAX_BYTES bytes",
        "workload.launch.shell_words:_MAX_EXPANDED characters of variables",
        "workload.launch.read_launch:_MAX_CONFIG characters of a configuration",
    ),
    "hostfile, rankfile or placement": (f"{_BASICS}.placement:MAX_BYTES bytes",),
    "topology file": (
        "hardware.fabric.designs.simai_topology:MAX_FILE_BYTES bytes",
        "hardware.fabric.designs.simai_topology:MAX_LINKS links",
    ),
    "measured collectives": (
        "cost.network.nccl_tests.reader:MAX_BYTES bytes",
        "cost.network.nccl_tests.reader:MAX_LINES lines",
        "cost.network.nccl_tests.reader:MAX_FILES files of a folder",
    ),
    "NCCL log": (
        "cost.network.nccl_log.log:MAX_BYTES bytes",
        "cost.network.nccl_log.log:MAX_ENTRIES threads, communicators and calls",
        "cost.network.nccl_log.log:MAX_SECONDS seconds",
    ),
    "NCCL dump in XML": (
        "cost.network.nccl_log.xml:MAX_XML_BYTES bytes",
        "cost.network.nccl_log.xml:_MAX_ELEMENTS tags",
    ),
    "kernel profile, unpacked": (
        "cost.kernels.kernel_profile:MAX_BYTES bytes",
        "cost.kernels.kernel_profile:MAX_LINES lines",
    ),
    "calibration": ("cost.calibration:MAX_BYTES bytes",),
    "table of training runs": (
        "validate.training_runs:MAX_BYTES bytes",
        "validate.training_runs:MAX_LINES lines",
    ),
    "ratio table of SimAI": ("compat.simai.tables:MAX_BYTES bytes",),
    "event loop of a run": ("engine.bounded:MAX_RUN_S seconds",),
    "ns-3": ("simulation.network.packets:MAX_SECONDS seconds",),
}
"""Each input or run with its limits: module:constant, unit, and what it counts."""

FIXED: dict[str, tuple[str, ...]] = {
    "job": (
        f"{_BASICS}.limits:MAX_GPUS GPUs",
        f"{_BASICS}.limits:MAX_STAGES pipeline stages",
        f"{_BASICS}.limits:MAX_OPS ops of one rank of every kind",
        "models.compose:MAX_LAYERS layers",
    ),
    "sweep": ("search.axes:MAX_POINTS points", "search.axes:MAX_AXES options"),
    "memory snapshot": ("inputs.memory_snapshot:MAX_ENTRIES segments, events, lists and dictionaries",),
    "JSON": (f"{_BASICS}.records:MAX_NESTING levels of lists and objects",),
    "number": (f"{_BASICS}.numbers:_MAX_CHARACTERS characters",),
}

_PAGE = """# Limits

A file above its limits is not of its kind, or was made to do harm. Reading stops with
`input-too-large`, `too-deep` or `gave-up` and exit code 3; [codes](diagnostics.md) lists all codes
and exit codes. `python tools/limits.py > docs/limits.md` writes this page from the code.

## Files and time

`FORETRACE_LIMITS=4x` multiplies all of these by four, for a file that is large and real.

| input | at most |
| --- | --- |
{raised}

## Jobs

These stay, because more cannot be run or is a slip (`too-large`, `out-of-range`, `too-deep`).

| what | at most |
| --- | --- |
{fixed}

Figures of hardware have [ranges of their own](clusters.md#a-file). Measurements are checked
against the hardware ([collectives](network.md#measured-collectives),
[kernels](calibration.md#what-is-refused), [recorded times](profiler-trace-files.md)).
"""


def limits_page() -> str:
    """Returns the page."""
    return _PAGE.format(raised=_table(RAISED), fixed=_table(FIXED))


def _table(rows: dict[str, tuple[str, ...]]) -> str:
    return "\n".join(f"| {what} | {', '.join(map(_limit, limits))} |" for what, limits in rows.items())


def _limit(text: str) -> str:
    """Returns a limit in words, with the value of its constant."""
    place, _, noun = text.partition(" ")
    module, _, name = place.partition(":")
    value = getattr(importlib.import_module(f"foretrace.{module}"), name)
    unit, _, rest = noun.partition(" ")
    if unit == "bytes":
        return f"{_size(value)} {rest}".rstrip()
    return f"{value:,g} s {rest}".rstrip() if unit == "seconds" else f"{value:,} {noun}"


def _size(size_bytes: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes % (1 << power) == 0:
            return f"{size_bytes >> power:,} {unit}"
    return f"{size_bytes / 1e6:,g} MB"


if __name__ == "__main__":
    print(limits_page(), end="")
