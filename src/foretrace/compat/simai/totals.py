"""Computes SimAI-Analytical's figures: what it adds up over the rows, and what it prints."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, fields
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.compat.simai.flags import SimaiFlags
from foretrace.compat.simai.load import Kind, LoadedPass, LoadedRow, SimaiWork, load_rows
from foretrace.compat.simai.machine import divide, f32, int32, scaled, tick, wrapped
from foretrace.compat.simai.tables import RatioTables, SizeBeyondTableError
from foretrace.compat.simai.times import CollectiveTimes
from foretrace.inputs.aicb.format import Header, Workload
from foretrace.inputs.aicb.microbatches import find_structure

_POLICIES: Final = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER")
"""The policies under which SimAI reads tp, ep, pp, vpp and ga at all."""


@dataclass(frozen=True, slots=True)
class Figures:
    """SimAI's figures in microseconds, before it rounds them to print; None where it prints "NaN or Inf" or nothing.

    `failure` says why SimAI prints nothing at all, where it does not.
    """

    dp_us: float | None
    dp_ep_us: float | None
    tp_us: float | None
    ep_us: float | None
    pp_us: float | None
    bubble_us: float | None
    compute_us: float | None
    exposed_us: float | None
    total_us: float | None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class SimaiCommunication:
    """A collective of one row: its time and the part of it that overlap leaves, in unsigned nanoseconds."""

    kind: Kind
    ranks: int
    size_bytes: int
    time_ns: int
    exposed_ns: int


@dataclass(frozen=True, slots=True)
class WorkFigures:
    """SimAI's report of a row's three passes, and what they add to its sums, in microseconds.

    The parts are added in its order and precision: `compute_us` and `exposed_us` are forward, weight grad, input grad.
    """

    forward: SimaiCommunication
    weight_grad: SimaiCommunication
    input_grad: SimaiCommunication
    compute_us: tuple[float, float, float]
    exposed_us: tuple[float, float, float]
    dp_us: float
    dp_ep_us: float
    tp_us: float
    ep_us: float
    bubble_us: float


@dataclass(frozen=True, slots=True)
class RowFigures:
    """One row of SimAI's report."""

    row: LoadedRow
    work: WorkFigures


@dataclass(slots=True)
class Sums:
    """The running sums of SimAI's report, in microseconds; they may end as infinity or NaN."""

    dp_us: float = 0.0
    dp_ep_us: float = 0.0
    tp_us: float = 0.0
    ep_us: float = 0.0
    pp_us: float = 0.0
    bubble_us: float = 0.0
    compute_us: float = 0.0
    exposed_us: float = 0.0
    total_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The report that SimAI computes: rows up to a failure, and the sums, which a failure leaves out."""

    rows: tuple[RowFigures, ...]
    sums: Sums | None
    failure: str | None = None


def figures(workload: Workload, flags: SimaiFlags, tables: RatioTables, mended: Set[str] = frozenset()) -> Figures:
    """SimAI's figures for a workload, with the defects in `mended` (ids such as "B6") mended."""
    done = report(workload, flags, tables, mended)
    if done.sums is None:
        return Figures(None, None, None, None, None, None, None, None, None, done.failure)
    values = (getattr(done.sums, field.name) for field in fields(Sums))
    return Figures(*(value if math.isfinite(value) else None for value in values))


def figures_json(answer: Figures) -> dict[str, int | None]:
    """The figures as SimAI prints them: whole microseconds, None for "NaN or Inf"."""
    values = {field.name: getattr(answer, field.name) for field in fields(Sums)}
    return {name: None if value is None else int(f"{value:.0f}") for name, value in values.items()}


def report(workload: Workload, flags: SimaiFlags, tables: RatioTables, mended: Set[str] = frozenset()) -> Report:
    """All that SimAI computes for a workload."""
    rows = load_rows(workload, mended)
    failure = _crash(workload, rows)
    if failure is not None:
        return Report((), None, failure)
    sizes = _Sizes.of(workload, flags, mended)
    times = sizes.times(flags, tables, mended)
    works: dict[int, WorkFigures] = {}
    done: list[RowFigures] = []
    for row in rows:
        work = works.get(id(row.work))
        if work is None:
            try:
                work = works[id(row.work)] = _work_figures(row.work, times, flags, "B13" in mended)
            except SizeBeyondTableError:
                where = workload.at(row.line)
                return Report(tuple(done), None, f"{where}: a size above SimAI's tables (16 GiB) makes it throw")
        done.append(RowFigures(row, work))
    return Report(tuple(done), _sums(done, sizes, sizes.pp_us(flags, mended)))


def layers_of_microbatch(workload: Workload) -> int:
    """Transformer layers of one microbatch of one stage, as our own reading counts them; 0 where there are none."""
    try:
        return find_structure(workload).layers
    except InputError:
        return 0


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The header's numbers as SimAI uses them: a missing one is 0, DP comes from the command line's -g."""

    tp: int
    ep: int
    pp: int
    dp: int
    vpp: int
    ga: int
    pp_comm_bytes: int

    @classmethod
    def of(cls, workload: Workload, flags: SimaiFlags, mended: Set[str]) -> _Sizes:
        header = workload.header
        tp, pp = header.tp or 0, header.pp or 0
        vpp, ga = header.vpp or 0, header.ga or 0
        if "B2" in mended:
            vpp, ga = vpp or 1, ga or 1
        if "B3" in mended and vpp > 1 and vpp == layers_of_microbatch(workload):
            vpp = 1
        return cls(tp, header.ep or 0, pp, flags.gpus // (tp * pp), vpp, ga, _pp_comm_bytes(header))

    def times(self, flags: SimaiFlags, tables: RatioTables, mended: Set[str]) -> CollectiveTimes:
        return CollectiveTimes(
            tp=self.tp,
            ep=self.ep,
            dp=self.dp,
            gpus_per_server=flags.gpus_per_server,
            nics_per_server=flags.nics_per_server,
            nvlink_gb_per_s=flags.nvlink_rate_gb_per_s,
            nic_gb_per_s=flags.nic_rate_gb_per_s,
            tables=tables,
            mended=mended,
        )

    def pp_us(self, flags: SimaiFlags, mended: Set[str]) -> float:
        """Exposed transfers between stages. SimAI divides by the overlap where a bandwidth should be."""
        overlap = f32(flags.pp_overlap)
        divisor = overlap
        if "B1" in mended:
            overlap = overlap if flags.pp_overlap_given else 0.0
            divisor = self._stage_gb_per_s(flags)
        if "B1" in mended and self.pp <= 1:
            return 0.0
        one_ns = divide(self.pp_comm_bytes / 1024.0**3, divisor) * 1e9
        all_us = tick(int32(2 * self.vpp * self.ga) * one_ns / 1000.0)
        return float(scaled(all_us, 1 - overlap))

    def _stage_gb_per_s(self, flags: SimaiFlags) -> float:
        """Bandwidth between neighbouring stages: NVLink where the whole job stands in one server, else NICs of a GPU.

        Neighbours are TP times DP ranks apart in Megatron's order of ranks, so no smaller job keeps them together.
        """
        if flags.gpus <= flags.gpus_per_server:
            return flags.nvlink_rate_gb_per_s
        nics = flags.nics_per_server // min(self.tp, flags.gpus_per_server)
        return flags.nic_rate_gb_per_s * max(nics, 1)


def _pp_comm_bytes(header: Header) -> int:
    return int(header.pp_comm_bytes or 0) % (1 << 32)


def _crash(workload: Workload, rows: tuple[LoadedRow, ...]) -> str | None:
    """Why SimAI ends before it reports, or None. A key that is missing is 0 in its memory."""
    header, where = workload.header, workload.at_header
    if header.policy not in _POLICIES:
        return f"{where}: SimAI reads no parallel sizes from a {header.policy} header and divides by zero"
    for key, value in (("model_parallel_NPU_group", header.tp), ("pp", header.pp)):
        if not value:
            return f"{where}: SimAI divides by {key}, which is {'missing' if value is None else 0}"
    if not header.ep and any(_uses_dp_ep(row.work) for row in rows):
        return f"{where}: SimAI divides by ep, which is {'missing' if header.ep is None else 0}"
    if int(header.pp_comm_bytes or 0) >= 1 << 31:
        return f"{where}: SimAI cannot read a pp_comm of 2 GiB or more"
    if not rows:
        return f"{workload.at_count}: SimAI stops at a workload without rows"
    return None


def _uses_dp_ep(work: SimaiWork) -> bool:
    return "DP_EP" in (work.forward.group, work.input_grad.group, work.weight_grad.group)


def _work_figures(work: SimaiWork, times: CollectiveTimes, flags: SimaiFlags, own_class: bool) -> WorkFigures:
    """Times and sums of three passes, asked for in the order of SimAI's report, which decides where it throws."""
    to_dp_ep = work.weight_grad.group == "DP_EP"
    forward_ep = work.forward.group == "EP"
    # SimAI asks the forward pass what the input-grad collective counts as (B13).
    classed = work.input_grad if own_class and work.input_grad.kind != "NONE" else work.forward
    input_ep = classed.group == "EP"

    def communication(loaded: LoadedPass, ranks: int, overlap: float) -> SimaiCommunication:
        time_ns = times.time_ns(loaded.kind, loaded.group, ranks, loaded.size_bytes)
        return SimaiCommunication(loaded.kind, ranks, loaded.size_bytes, time_ns, scaled(time_ns, 1 - f32(overlap)))

    def over_model(loaded: LoadedPass, ep_class: bool) -> SimaiCommunication:
        ranks = times.ep if loaded.group == "EP" else times.tp
        return communication(loaded, ranks, flags.ep_overlap if ep_class else flags.tp_overlap)

    forward = over_model(work.forward, forward_ep)
    weight_grad = communication(work.weight_grad, times.dp // times.ep if to_dp_ep else times.dp, flags.dp_overlap)
    input_grad = over_model(work.input_grad, input_ep)
    compute_ns = (work.forward.compute_ns, work.weight_grad.compute_ns, work.input_grad.compute_ns)
    exposed_ns = (forward.exposed_ns, weight_grad.exposed_ns, input_grad.exposed_ns)
    ep_ns = forward_ep * forward.exposed_ns + input_ep * input_grad.exposed_ns
    return WorkFigures(
        forward,
        weight_grad,
        input_grad,
        compute_us=_all_us(compute_ns),
        exposed_us=_all_us(exposed_ns),
        dp_us=0.0 if to_dp_ep else _us(weight_grad.exposed_ns),
        dp_ep_us=_us(weight_grad.exposed_ns) if to_dp_ep else 0.0,
        tp_us=_us(forward.exposed_ns + input_grad.exposed_ns - ep_ns),
        ep_us=_us(ep_ns),
        bubble_us=_us(forward.time_ns + sum(compute_ns) + input_grad.time_ns),
    )


def _us(time_ns: int) -> float:
    """Microseconds of a sum of ticks, which wraps at 2^64."""
    return wrapped(time_ns) / 1000.0


def _all_us(times_ns: tuple[int, int, int]) -> tuple[float, float, float]:
    first, second, third = times_ns
    return _us(first), _us(second), _us(third)


def _sums(rows: list[RowFigures], sizes: _Sizes, pp_us: float) -> Sums:
    """All rows added up, one after the other as SimAI does: a double forgets differently in another order."""
    sums = Sums(pp_us=pp_us)
    for row in rows:
        work = row.work
        if row.row.name != "embedding_layer":
            sums.bubble_us += work.bubble_us
        sums.dp_us += work.dp_us
        sums.dp_ep_us += work.dp_ep_us
        sums.tp_us += work.tp_us
        sums.ep_us += work.ep_us
        for compute_us in work.compute_us:
            sums.compute_us += compute_us
        for exposed_us in work.exposed_us:
            sums.exposed_us += exposed_us
    sums.bubble_us *= divide(float(sizes.pp - 1), float(int32(sizes.ga * sizes.vpp)))
    sums.total_us = sums.compute_us + sums.exposed_us + sums.bubble_us + sums.pp_us
    return sums
