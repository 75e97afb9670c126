"""Writes SimAI-Analytical's EndToEnd.csv, to the byte."""

from __future__ import annotations

import math
import re
from pathlib import PurePosixPath
from typing import Final

from foretrace.compat.simai.flags import SimaiFlags
from foretrace.compat.simai.machine import divide, f32
from foretrace.compat.simai.tables import RatioTables
from foretrace.compat.simai.totals import RowFigures, SimaiCommunication, Sums, report
from foretrace.inputs.aicb.format import Workload

_RUN: Final = "Analytical_test"
_SUMMARY: Final = (
    "File name, Expose DP comm, Expose DP_EP comm, Expose TP comm, Expose_EP_comm, Expose_PP_comm, bubble time, "
    "total comp, total exposed comm, Total time"
)
_LAYERS: Final = (
    f"layer_name,{_RUN},fwd compute,wg compute,ig compute,fwd exposed comm,wg exposed comm,ig exposed comm,"
    "fwd total comm,algbw,busbw,wg total comm,algbw,busbw,ig total comm,algbw,busbw"
)


def end_to_end_csv(workload: Workload, flags: SimaiFlags, tables: RatioTables) -> str:
    """The text of EndToEnd.csv.

    Where SimAI throws at a size above its tables, the file holds the rows before that one, or nothing; where SimAI
    crashes, nothing.
    """
    done = report(workload, flags, tables)
    lines = [_layer(row) for row in done.rows]
    if lines:
        lines.insert(0, _LAYERS)
    if done.sums is not None:
        lines[:0] = [_SUMMARY, _summary(run_name(workload, flags), done.sums)]
    return "".join(f"{line}\n" for line in lines)


def run_name(workload: Workload, flags: SimaiFlags) -> str:
    """Returns the name that SimAI gives the run: the prefix `-r`, else a name made of the AICB file name.

    SimAI crashes on a file whose name states no tp and pp; such a run is named after the file here.
    """
    if flags.prefix is not None and flags.prefix != "None":
        return flags.prefix.rpartition("/")[2]
    file = PurePosixPath(flags.workload or workload.path).name
    model, separator, _ = file.partition("world_size")
    sizes = {key: int(number) for key, number in re.findall(r"(world_size|tp|pp|ep|gbs|mbs|seq)([0-9]+)", file)}
    tp, pp = sizes.get("tp", 0), sizes.get("pp", 0)
    if not tp * pp:
        return f"{PurePosixPath(file).stem}-"
    dp = sizes.get("world_size", 0) // (tp * pp)
    ga = divide(float(sizes.get("gbs", 0)), float(dp * sizes.get("mbs", 0)))
    whole_ga = int(ga) if math.isfinite(ga) else -(1 << 31)
    nic = -1.0 if flags.nic_gb_per_s is None else f32(flags.nic_gb_per_s)
    return (
        f"{model[:-1] if separator else ''}-tp{tp}-pp{pp}-dp{dp}-ga{whole_ga}-ep{sizes.get('ep', 0)}"
        f"-NVL{flags.gpus_per_server}-{nic * 8:.1f}G-DP{f32(flags.dp_overlap):.1f}-"
    )


def _summary(name: str, sums: Sums) -> str:
    parts = (
        sums.dp_us,
        sums.dp_ep_us,
        sums.tp_us,
        sums.ep_us,
        sums.pp_us,
        sums.bubble_us,
        sums.compute_us,
        sums.exposed_us,
    )
    shown = [f"{_whole(part)} ({_two_places(divide(part, sums.total_us) * 100)}%)" for part in parts]
    return ", ".join((_cell(name), *shown, _whole(sums.total_us)))


def _layer(figures: RowFigures) -> str:
    work = figures.work
    cells = [_cell(figures.row.name), _RUN, *map(_whole, work.compute_us), *map(_whole, work.exposed_us)]
    for part in (work.forward, work.weight_grad, work.input_grad):
        algorithm, bus = _bandwidths(part)
        cells += [_whole(part.time_ns / 1000.0), _two_places(algorithm), _two_places(bus)]
    return ",".join(cells)


def _cell(name: str) -> str:
    """Returns a name that stays one cell, and is not a formula for a spreadsheet; SimAI writes any name as it is."""
    if name.startswith(("=", "+", "-", "@")):
        name = f"'{name}"
    return '"{}"'.format(name.replace('"', '""')) if any(mark in name for mark in ',"\r\n') else name


def _bandwidths(part: SimaiCommunication) -> tuple[float, float]:
    """Algorithm and bus bandwidth in GiB/s, C++ `float`s; infinite or NaN for what takes no time."""
    algorithm = f32(divide(float(part.size_bytes), part.time_ns / 1000.0) * 1000000 / 1024.0**3)
    if part.kind == "NONE":
        return algorithm, 0.0
    bus = f32(algorithm * 2) if part.kind == "ALLREDUCE" else algorithm
    return algorithm, f32(divide(f32(bus * (part.ranks - 1)), float(part.ranks)))


def _whole(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "NaN or Inf"


def _two_places(value: float) -> str:
    """As C++ prints it; the NaN that x86 makes of an invalid operation is a negative one."""
    return "-nan" if math.isnan(value) else f"{value:.2f}"
