"""Puts SimAI's number and ours side by side, and says why they differ."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretrace.basics.errors import Diagnostic, ForetraceError
from foretrace.compat.simai.defects import Defect, explain, remainder
from foretrace.compat.simai.flags import SimaiFlags
from foretrace.compat.simai.own import own_cluster, own_options
from foretrace.compat.simai.tables import RatioTables
from foretrace.compat.simai.totals import Figures, figures
from foretrace.cost.kernels.interface import PriceSources
from foretrace.cost.machine import Machine
from foretrace.inputs.aicb.format import Workload
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.aicb.program import lower_workload
from foretrace.readings.answer.answer import Answer
from foretrace.readings.scenario import Scenario
from foretrace.simulation.simulate import simulate_program


@dataclass(frozen=True, slots=True)
class SimaiComparison:
    """SimAI's figures for a workload, our answer on the same cluster (or why there is none: what SimAI lets pass may
    have no meaning), and the defects that lie between."""

    figures: Figures
    own: Answer | ForetraceError
    defects: tuple[Defect, ...]
    diagnostics: tuple[Diagnostic, ...]
    """Notes on the file and the flags; part of our answer, where there is one."""


def compare(
    workload: Workload,
    flags: SimaiFlags,
    tables: RatioTables,
    options: WorkloadOptions,
    *,
    explained: bool,
    prices: PriceSources = PriceSources(),  # noqa: B008 - frozen
) -> SimaiComparison:
    """Both numbers; with `explained`, what each defect of SimAI's that touches this file amounts to. `prices` are the
    sources of ours."""
    theirs = figures(workload, flags, tables)
    chosen, notes = own_options(flags, options)
    seen = (*flags.diagnostics, *notes)
    own = _own(workload, flags, chosen, seen, prices)
    defects: list[Defect] = []
    if explained:
        defects = explain(workload, flags, tables)
        if isinstance(own, Answer):
            defects.append(remainder(defects, theirs.total_us, own.step_time_s * 1e6))
    return SimaiComparison(theirs, own, tuple(defects), (*workload.diagnostics, *seen))


def _own(
    workload: Workload, flags: SimaiFlags, options: WorkloadOptions, seen: tuple[Diagnostic, ...], prices: PriceSources
) -> Answer | ForetraceError:
    try:
        program = lower_workload(workload, options)
        program = replace(program, diagnostics=(*program.diagnostics, *seen))
        return simulate_program(program, Machine(own_cluster(flags), prices=prices), Scenario())
    except ForetraceError as error:
        return error
