"""An answer in a file: its program and timeline as arrays, everything else as plain values in the header."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, get_type_hints

from foretrace.basics.arguments import check_fields
from foretrace.basics.errors import ForetraceError, InputError, located, shown
from foretrace.basics.files import InputFile
from foretrace.basics.limits import check_gpus
from foretrace.basics.origin import UNKNOWN_ORIGIN, Origin, origin_of_command
from foretrace.basics.placement import Placement
from foretrace.basics.plain import from_plain, to_plain
from foretrace.cost.network.nccl.layout import check_placement
from foretrace.engine.fixed_run import FixedRun
from foretrace.inputs.answer_file.input import ENDING
from foretrace.program.file import load_timeline, save_timeline
from foretrace.readings.answer.answer import Answer
from foretrace.readings.answer.memory_fit import MemoryFit, ProcessMemory, memory_fit
from foretrace.readings.answer.model_figures import ModelFigures
from foretrace.readings.memory import memory_tracks
from foretrace.workload.plan import Plan

VERSION: Final = 2

_REQUIRED_TYPES: Final = {
    "dp": int,
    "gbs": int,
    "seq_len": int,
    "microbatches": int,
    "zero": int,
    "schedule": str,
    "stack": str,
}
"""Values that the plan of an answer has, and their types; a plan that is asked for may leave them open."""

DERIVED: Final = {Answer: {"timeline", "memory_tracks", "model", "placement", "origin"}, ModelFigures: {"memory"}}
"""Fields that are not saved with the others: they are in the arrays, follow from them, or have keys of their own."""

_MAX_MICROBATCH_RATIO: Final = 1e6
"""The largest ratio of a remedy's microbatches to those of the job."""


def save_answer(answer: Answer, path: str | Path) -> None:
    """Writes an answer to a file; a file that is there is replaced as a whole."""
    if Path(path).suffix != ENDING:
        hint = f"for example {Path(path).stem or 'job'}{ENDING}"
        raise InputError("bad-value", f"a saved answer ends in {ENDING}", where=str(path), hint=hint)
    attached: dict[str, Any] = {"version": VERSION, "answer": _saved_fields(answer), "model": None}
    attached["origin"] = to_plain(answer.origin or origin_of_command())
    if answer.placement is not None:
        attached["placement"] = to_plain(answer.placement)
    if answer.model is not None:
        attached["model"] = _saved_fields(answer.model)
        attached["process_memory"] = to_plain(answer.model.memory.process)
    save_timeline(answer.timeline, path, attached)


def open_answer(path: str | Path | InputFile) -> Answer:
    """Reads an answer from a file."""
    timeline, header = load_timeline(path)
    if header.get("version") != VERSION:
        raise InputError(
            "unknown-version",
            "this is not an answer of a known version",
            where=str(path),
            hint="simulate the job again, and save the answer with this version",
        )
    try:
        _check_finite(header)
        FixedRun(timeline.graph)  # ops that wait for each other deadlock here; readings would go around in circles
        saved = _opened_fields(Answer, header["answer"])
        tracks, placement = tuple(memory_tracks(timeline)), _opened_placement(header)
        origin = from_plain(Origin | None, header.get("origin")) or UNKNOWN_ORIGIN
        answer = Answer(**saved, timeline=timeline, memory_tracks=tracks, placement=placement, origin=origin)
        _check_figures(answer, str(path))
        if answer.cluster is not None and placement is not None:
            check_placement(answer.cluster, placement)
        if header["model"] is None:
            return answer
        figures = _opened_fields(ModelFigures, header["model"])
        _check_plan(figures["plan"])
        process = from_plain(ProcessMemory, header["process_memory"])
        _check_memory(process)
        memory = memory_fit(answer, process)
        return replace(answer, model=ModelFigures(**figures, memory=memory))
    except ForetraceError as error:
        raise error if str(path) in str(error.where) else located(error, str(path)) from None
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        problem = f"the header of the answer cannot be read: {shown(str(error))}"
        raise InputError("damaged-file", problem, where=str(path)) from None


def _check_figures(answer: Answer, path: str) -> None:
    """Raises an error where figures of an answer are negative or contradict its timeline."""
    timeline, memory, placement = answer.timeline, answer.peak_memory, answer.placement
    same = (
        answer.step_time_s == timeline.step_time_s
        and answer.world_size == timeline.graph.program.world
        and answer.repeats == timeline.graph.program.repeats
        and (placement is None or (answer.cluster is not None and placement.world == answer.world_size))
    )
    seconds = (answer.unchanged_step_time_s, answer.step_time_unprofiled_s, answer.unchanged_step_time_unprofiled_s)
    bands = (*(answer.step_time_band_s or ()), *(answer.step_time_unprofiled_band_s or ()))
    shares = [number for entry in answer.provenance for number in (entry.share, entry.low, entry.high)]
    no_bands = any(not 0 < part.low <= 1 <= part.high for part in answer.band_parts)
    amounts = [answer.tokens_per_s_per_gpu or 0, 0 if memory is None else memory.bytes, answer.overlap_cost_s]
    remedies = answer.remedies or ()
    times = [number for remedy in remedies for number in (remedy.before_s, remedy.after_s)]
    unlikely = any(not 1 / _MAX_MICROBATCH_RATIO <= remedy.microbatches <= _MAX_MICROBATCH_RATIO for remedy in remedies)
    if (
        not same
        or unlikely
        or no_bands
        or min((*(value or 0.0 for value in seconds), *bands, *shares, *amounts, *times)) < 0
    ):
        raise InputError("damaged-file", "the figures of the answer do not fit its timeline", where=path)


def _opened_placement(header: dict[str, Any]) -> Placement | None:
    """Returns the placement of a header; None where none was given, and in older files."""
    saved = header.get("placement")
    if saved is None:
        return None
    placement = Placement(saved["host"], saved["slot"], tuple(map(str, saved["names"])))
    check_gpus(placement.hosts, "placement")
    return placement


def _check_plan(plan: dict[str, Any]) -> None:
    """Raises an error where a value of a settled plan is of another type, or not settled."""
    known = {field.name: plan[field.name] for field in fields(Plan) if field.name in plan}
    try:
        check_fields(from_plain(Plan, {**to_plain(Plan(gpus=1)), **known}))
    except InputError as error:
        raise ValueError(f"plan: {error.message}") from None
    for name, kind in _REQUIRED_TYPES.items():
        if type(plan[name]) is not kind:
            raise ValueError(f"plan: {name} is not settled")


def _check_memory(process: ProcessMemory) -> None:
    """Raises an error where sizes of memory are negative."""
    sizes = [process.capacity_bytes, *process.largest_bytes.values()]
    for part in process.outside:
        sizes += [part.unsure_bytes, part.bytes - part.unsure_bytes]
    if min(sizes) < 0:
        raise ValueError("sizes of memory are negative")


def _check_finite(value: Any) -> None:
    """Raises an error where a number of the header is not finite, as JSON makes of 1e400."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is not finite")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_finite(item)


def _saved_fields(value: Answer | ModelFigures) -> dict[str, Any]:
    """Returns the fields that a header holds, as plain values."""
    names = [field.name for field in fields(value) if field.name not in DERIVED[type(value)]]
    return {name: to_plain(getattr(value, name)) for name in names}


def _opened_fields(kind: type[Answer] | type[ModelFigures], saved: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that a header holds, as they were before they were saved."""
    hints = get_type_hints(kind, localns={"MemoryFit": MemoryFit, "ModelFigures": ModelFigures})
    names = [field.name for field in fields(kind) if field.name not in DERIVED[kind]]
    return {name: from_plain(hints[name], saved[name]) for name in names if name in saved}
