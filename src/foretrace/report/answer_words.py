"""The words of an answer that its screen and its page share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foretrace.basics.codes import RECORDED_TIMES
from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import (
    MINUS,
    difference_s,
    format_bytes,
    format_count,
    format_difference,
    format_flops,
    format_percent,
    format_time,
)
from foretrace.inputs.inventory import mesh_text
from foretrace.readings.answer.answer import Answer, Remedy
from foretrace.readings.critical_path import Bound
from foretrace.report.plan_words import SEPARATOR, setting_words

if TYPE_CHECKING:
    from foretrace.cost.network.interface import LimitKind
    from foretrace.readings.answer.model_figures import ModelFigures
    from foretrace.readings.sharing import NetworkUse

MIN_GAIN = 0.001
"""The share of the step below which a change does not count as a help."""
BOUND_BY: Final[dict[Bound, str]] = {
    "host": "bound by the host",
    "compute": "bound by computation",
    "communication": "bound by communication",
    "mixed": "bound by no part alone",
}
"""Words for what more than half of a critical path consists of."""
LIMIT_WORDS: Final[dict[LimitKind, str]] = {
    "nic": "NICs",
    "uplink": "uplinks",
    "nvlink": "GPU links",
    "pcie": "PCIe",
    "channels": "channels",
    "latency": "latency",
    "none": "",
}
"""Words for the limit of the exposed communication of an axis."""
KERNEL_LIMITS: Final = {"flops": "tensor cores", "hbm": "memory bandwidth", "fixed": "launches and latency"}
"""Words for the limits of kernels."""
_PART_WORDS: Final = {"backward_input": "input gradient", "backward_weight": "weight gradient"}
MIN_SHOWN_PART = 1.005
"""Parts of a band that reach less far are left out; --json has them."""
ROUNDING = 1e-9
"""A smaller share of the step than this is rounding, not a change."""


def utilisation_text(model: ModelFigures, step_s: float) -> str:
    """Returns how fast the model is computed, and what share of the peak that is."""
    used = f"MFU {format_percent(model.mfu(step_s))} {utilised_peak_text(model, step_s)}"
    return f"{format_flops(model.flops_per_s_per_gpu(step_s))} per GPU: {used}"


def utilised_peak_text(model: ModelFigures, step_s: float) -> str:
    """Returns which peak a utilisation is a share of, its share of bf16's peak, and that with recomputation."""
    peak = f"of {format_flops(model.peak_flops)} ({model.peak_dtype})"
    of_bf16 = model.mfu_bf16(step_s)
    if of_bf16 is not None and model.bf16_peak_flops is not None:
        peak += f", {format_percent(of_bf16)} of bf16's {format_flops(model.bf16_peak_flops)}"
    return f"{peak}, HFU {format_percent(model.hfu(step_s))}"


def band_text(step: float, low: float, high: float) -> str:
    """Returns the band as ± where it is even, otherwise both ends; nothing where the prices have none."""
    below, above = step - low, high - step
    if abs(above - below) <= 0.05 * (above + below):
        return f"± {format_time((above + below) / 2)}" if above > ROUNDING * step else ""
    ends = ((above, "+"), (below, MINUS))
    shown = [f"{sign}{format_time(off)}" for off, sign in ends if off > ROUNDING * step]
    return " ".join(shown)


def remedy_effect_text(remedy: Remedy) -> str:
    """Returns what a change does to the part that it is aimed at, and to memory."""
    words = [f"{remedy.part} {format_time(remedy.part_before_s)} → {format_time(remedy.part_after_s)}"]
    if remedy.microbatches != 1:
        words = [f"of {remedy.microbatches:g} times the batch, for as much of it"]
    if remedy.memory_bytes:
        sign = "+" if remedy.memory_bytes > 0 else MINUS
        words.append(f"memory {sign}{format_bytes(abs(remedy.memory_bytes))}")
    return f"{remedy.why}: {', '.join(words)}" if remedy.why else ", ".join(words)


def gain_text(seconds: float, rounding: float) -> str:
    """Returns by how much shorter a step gets."""
    return f"{MINUS}{format_time(seconds)}" if seconds > rounding else "nothing"


def factor_band_text(low: float, high: float) -> str:
    """Returns the band of a source, as how far it may be off; empty where it has none."""
    if low == high == 1.0:
        return ""
    below = f"{(1 - low) * 100:.0f}"
    return f"{MINUS * (below != '0')}{below} to +{(high - 1) * 100:.0f} %"


def with_band(name: str, low: float, high: float) -> str:
    """Returns the name of a source or of a reason, with its band in brackets."""
    band = factor_band_text(low, high)
    return f"{name} ({band})" if band else name


def _urgency(diagnostic: Diagnostic) -> tuple[bool, int, bool]:
    """Returns what diagnostics are sorted by; those to read first are the least."""
    warns = diagnostic.level == "warning"
    on_times = warns and diagnostic.code in RECORDED_TIMES
    order = RECORDED_TIMES.index(diagnostic.code) if on_times else len(RECORDED_TIMES)
    return not warns, order, diagnostic.where is not None


def part_text(part: str) -> str:
    """Returns what a part of a critical path or of a breakdown is called, as in the legend of a pipeline."""
    return _PART_WORDS.get(part, part)


def place_text(answer: Answer) -> str:
    """Returns how many ranks run on what, and how they are divided into axes."""
    what = "rank" if answer.cluster is None else "GPU"
    plural = "" if answer.world_size == 1 else "s"
    cluster = f" of {answer.cluster.name}" if answer.cluster else ""
    return f"{format_count(answer.world_size)} {what}{plural}{cluster} · {mesh_text(answer.mesh)}"


def job_text(answer: Answer) -> str:
    """Returns the title of a job; of a model also what is unusual in its plan, and its software."""
    if answer.model is None:
        return answer.title
    values = answer.model.plan
    return SEPARATOR.join((answer.title, *setting_words(values), values["stack"].replace("@", " ")))


def work_text(answer: Answer) -> str:
    """Returns in a sentence what a step of a model trains, how long it takes, and how sure that is; else nothing."""
    if answer.model is None:
        return ""
    values = answer.model.plan
    text = f"A step trains {format_count(values['gbs'])} sequences of {format_count(values['seq_len'])} tokens"
    text += f" in {format_time(answer.step_time_s)}"
    if answer.step_time_band_s is not None:
        low, high = map(format_time, answer.step_time_band_s)
        text += f"; with a probability of 90 %, in {low} to {high}"
    return f"{text}."


def misfit_text(answer: Answer) -> str:
    """Returns in a sentence that a job does not fit into memory, and what its times then are; nothing where it fits."""
    memory = answer.memory
    if memory is None or memory.worst is None or memory.fits:
        return ""
    least, has = format_bytes(memory.needed_band_bytes[0]), format_bytes(memory.capacity_bytes)
    return (
        f"This plan does not fit: a GPU of {memory.worst.role} needs at least {least} and has {has}. "
        "The times are those of GPUs with more memory."
    )


def answer_band_text(answer: Answer) -> str:
    """Returns the band of the step; empty where there is none."""
    if answer.step_time_band_s is None:
        return ""
    words = band_text(answer.step_time_s, *answer.step_time_band_s)
    unsure = any(part.low != part.high for part in answer.provenance)
    if words and unsure and any(part.low == part.high for part in answer.provenance):
        words += " (recorded times carry no band)"  # a price without a band is not thereby certain
    return words


class StepDifference(NamedTuple):
    """A change of the job as given in words: the change, by how much the step changes, from what, and both steps."""

    changes: str
    by: str
    remark: str
    after_s: float
    before_s: float


def step_difference(answer: Answer) -> StepDifference | None:
    """Returns how what differs from the job as given changes the step; None where nothing is different.

    For a profiler trace these are steps without the profiler.
    """
    step_s, before_s, what = answer.step_time_s, answer.unchanged_step_time_s, ""
    if answer.step_time_unprofiled_s is not None and answer.unchanged_step_time_unprofiled_s is not None:
        step_s, before_s = answer.step_time_unprofiled_s, answer.unchanged_step_time_unprofiled_s
        what = " without the profiler"
    if before_s is None:
        return None
    by_s = difference_s(step_s, before_s)
    changes = " · ".join(answer.describe_changes())
    if by_s == 0:
        return StepDifference(changes, "no change", f"from {format_time(before_s)}{what}", step_s, before_s)
    by = f"{'+' if by_s > 0 else MINUS}{format_time(abs(by_s))}"
    return StepDifference(changes, by, f"on {format_time(before_s)}{what}", step_s, before_s)


def helpful_remedies(answer: Answer) -> list[Remedy]:
    """Returns the simulated changes that shorten the step, the best first."""
    return [remedy for remedy in answer.remedies or () if remedy.change < -MIN_GAIN]


def remedy_gain_s(remedy: Remedy) -> float:
    """Returns by how much shorter the step of as many microbatches gets."""
    return remedy.before_s - remedy.after_s / remedy.microbatches


def source_texts(answer: Answer) -> list[str]:
    """Returns the sources of prices with their shares and bands."""
    several = len(answer.provenance) > 1
    return [
        with_band(part.source + (f" {format_percent(part.share)}" if several else ""), part.low, part.high)
        for part in answer.provenance
    ]


def sorted_diagnostics(diagnostics: tuple[Diagnostic, ...]) -> list[Diagnostic]:
    """Returns notes and warnings, those to read first at the front.

    Where all are about one file, its name is left out: `line 9`. The file of a cluster is named: it is not the one
    that a screen is about.
    """
    files = {diagnostic.where.rpartition(":")[0] for diagnostic in diagnostics if diagnostic.where}
    ordered = []
    for diagnostic in sorted(diagnostics, key=_urgency):
        place = diagnostic.where or ""
        is_input = diagnostic.code != "unusual-hardware"
        if is_input and len(files) == 1 and place.rpartition(":")[2].isdecimal():
            place = f"line {place.rpartition(':')[2]}"
        ordered.append(replace(diagnostic, where=place or None))
    return ordered


def sharing_text(step_s: float, use: NetworkUse) -> str:
    """Returns how much longer the step takes because communications share links."""
    alone = format_time(use.analytic_step_time_s)
    if abs(step_s - use.analytic_step_time_s) <= ROUNDING * step_s:
        return f"no longer than with each communication alone, {alone}"
    return f"{format_difference(step_s, use.analytic_step_time_s)} on {alone} with each communication alone"


def signed_percent(share: float | None) -> str:
    """Returns a share in percent, with its sign; empty for None."""
    if share is None:
        return ""
    text = format_percent(share)
    return f"+{text}" if share > 0 and text != format_percent(0.0) else text


def value_text(value: Any) -> str:
    """Returns the value of a field of a plan or of a machine."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, int):
        return format_count(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
