"""An export of Nsight Systems becomes a program as a trace of PyTorch does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace.inputs.profiler_trace.format.nsys import read_nsys
from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.registry import open_input
from nsys_export import steps, write_export
from opened import program_of


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return write_export(tmp_path / "report.sqlite", steps(4))


def test_its_file_is_a_profile(export: Path) -> None:
    assert open_input([export]).kind == "profiler-trace"


def test_kernels_run_under_the_ops_of_nvtx(export: Path) -> None:
    trace = read_nsys(export)
    links = EventLinks(trace)
    gemms = [at for at in trace.events.of(EventCategory.KERNEL) if "gemm" in trace.strings[trace.events.name[at]]]
    assert len(gemms) == 4
    assert {trace.strings[trace.events.name[links.op[at]]] for at in gemms} == {"aten::mm"}


def test_the_step_is_found_and_written(export: Path) -> None:
    program = program_of([export])
    assert any("by annotation step" in note.message for note in program.diagnostics)
    names = [program.strings[number] for number in program.templates.columns["name"].tolist()]
    assert {"void gemm<float>(int)", "add", "Memcpy HtoD"} <= set(names)
    gemm = names.index("void gemm<float>(int)")
    assert program.templates.columns["duration_s"][gemm] == pytest.approx(20e-6, rel=0.1)
    add = names.index("add")
    waits_for = {names[one] for one in program.templates.dep_src[program.templates.dep_dst == add].tolist()}
    assert "Memcpy HtoD" in waits_for  # the second stream waits for the mark behind the copy
    assert np.isfinite(program.templates.columns["duration_s"]).all()
