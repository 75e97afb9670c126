"""An answer in a file: its program and timeline as arrays, everything else as plain values in the header."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from foretrace.analysis.answer import Answer, Bottleneck, PeakMemory, Provenance
from foretrace.analysis.memory import memory_tracks
from foretrace.analysis.memory_fit import memory_fit
from foretrace.analysis.model_figures import ModelFigures
from foretrace.analysis.scenario import Scenario
from foretrace.analysis.sharing import NetworkUse
from foretrace.errors import Diagnostic, InputError
from foretrace.files import InputFile
from foretrace.hardware.cluster import Cluster
from foretrace.inputs.answer_file.input import ENDING
from foretrace.plain import from_plain, to_plain
from foretrace.program.file import load_timeline, save_timeline

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class _Saved:
    """The fields of an answer that a header holds."""

    title: str
    world_size: int
    mesh: str
    cluster: Cluster | None
    executor: str
    scenario: Scenario
    unchanged_step_time_s: float | None
    step_time_s: float
    step_time_band_s: tuple[float, float] | None
    repeats: bool
    steps_run: int
    tokens_per_s_per_gpu: float | None
    gains: tuple[Bottleneck, ...] | None
    peak_memory: PeakMemory | None
    provenance: tuple[Provenance, ...]
    diagnostics: tuple[Diagnostic, ...]
    network: NetworkUse | None
    step_time_unprofiled_s: float | None
    step_time_unprofiled_band_s: tuple[float, float] | None
    unchanged_step_time_unprofiled_s: float | None
    overlap_cost_s: float
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _SavedModel:
    """The figures of a model that a header holds; its memory follows from the timeline."""

    name: str
    plan: dict[str, Any]
    gpus: int
    tokens_per_step: int
    model_flops: float
    hardware_flops: float
    peak_flops: float
    peak_dtype: str
    capacity_bytes: int


def save_answer(answer: Answer, path: str | Path) -> None:
    """Writes an answer to a file; a file that is there is replaced as a whole."""
    if Path(path).suffix != ENDING:
        hint = f"for example {Path(path).stem or 'job'}{ENDING}"
        raise InputError("bad-value", f"a saved answer ends in {ENDING}", where=str(path), hint=hint)
    kept = {name: getattr(answer, name) for name in _names(_Saved)}
    attached: dict[str, Any] = {
        "version": VERSION,
        "answer": to_plain(_Saved(**kept)),
        "model": None if answer.model is None else to_plain(_model(answer.model)),
    }
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
        saved: _Saved = from_plain(_Saved, header["answer"])
        figures = header["model"] and from_plain(_SavedModel, header["model"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError("damaged-file", f"the header of the answer cannot be read: {error}", where=str(path)) from None
    answer = Answer(
        **{name: getattr(saved, name) for name in _names(_Saved)},
        memory_tracks=tuple(memory_tracks(timeline)),
        timeline=timeline,
    )
    if not figures:
        return answer
    kept = {name: getattr(figures, name) for name in _names(_SavedModel) if name != "capacity_bytes"}
    return replace(answer, model=ModelFigures(**kept, memory=memory_fit(answer, figures.capacity_bytes)))


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def _model(model: ModelFigures) -> _SavedModel:
    kept = {name: getattr(model, name) for name in _names(_SavedModel) if name != "capacity_bytes"}
    return _SavedModel(**kept, capacity_bytes=model.memory.capacity_bytes)
