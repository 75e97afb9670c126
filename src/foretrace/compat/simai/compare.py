"""SimAI's number and ours side by side, and why they differ."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretrace.analysis.answer import Answer
from foretrace.analysis.simulate import simulate
from foretrace.compat.simai.defects import Defect, explain, remainder
from foretrace.compat.simai.flags import SimaiFlags
from foretrace.compat.simai.own import own_choices, own_cluster
from foretrace.compat.simai.tables import RatioTables
from foretrace.compat.simai.totals import Figures, figures
from foretrace.errors import Diagnostic, ForetraceError
from foretrace.formats.aicb import Workload
from foretrace.lower.aicb import lower_workload
from foretrace.lower.choices import Choices


@dataclass(frozen=True, slots=True)
class Comparison:
    """SimAI's figures for a workload, our answer on the same cluster (or why there is none: what SimAI lets pass may
    have no meaning), and the defects that lie between."""

    figures: Figures
    own: Answer | ForetraceError
    defects: tuple[Defect, ...]
    diagnostics: tuple[Diagnostic, ...]
    """What was seen in the file and the flags; part of our answer, where there is one."""


def compare(
    workload: Workload,
    flags: SimaiFlags,
    tables: RatioTables,
    choices: Choices,
    *,
    explained: bool,
    silicon: bool | None = None,
) -> Comparison:
    """Both numbers; with `explained`, what each defect of SimAI's that touches this file amounts to. `silicon` says
    whether NVIDIA's tables price ours (None: if they are installed)."""
    theirs = figures(workload, flags, tables)
    chosen, notes = own_choices(flags, choices)
    seen = (*flags.diagnostics, *notes)
    own = _own(workload, flags, chosen, seen, silicon)
    defects: list[Defect] = []
    if explained:
        defects = explain(workload, flags, tables)
        if isinstance(own, Answer):
            defects.append(remainder(defects, theirs.total_us, own.step_time_s * 1e6))
    return Comparison(theirs, own, tuple(defects), (*workload.diagnostics, *seen))


def _own(
    workload: Workload, flags: SimaiFlags, choices: Choices, seen: tuple[Diagnostic, ...], silicon: bool | None
) -> Answer | ForetraceError:
    try:
        program = lower_workload(workload, choices)
        program = replace(program, diagnostics=(*program.diagnostics, *seen))
        return simulate(program, cluster=own_cluster(flags), silicon=silicon)
    except ForetraceError as error:
        return error
