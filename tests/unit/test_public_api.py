"""The public names: what a user imports, and that importing them late keeps the command line quick."""

from __future__ import annotations

import subprocess
import sys

import pytest

import foretrace


def test_the_public_names_are_these() -> None:
    assert foretrace.__all__ == [
        "__version__",
        "Answer",
        "Cluster",
        "Diagnostic",
        "ForetraceError",
        "Input",
        "Machine",
        "Mesh",
        "Model",
        "NcclSettings",
        "NetworkAnswer",
        "Placement",
        "Plan",
        "PlanRequest",
        "PlanSearch",
        "PriceSources",
        "ProfilerTrace",
        "Program",
        "ProgramBuilder",
        "Scenario",
        "ScriptTrace",
        "Timeline",
        "Transfer",
        "load_cluster",
        "load_model",
        "make_calibration",
        "model",
        "network",
        "open",
        "pipeline",
        "plan",
        "save",
        "schedule",
        "simulate",
        "trace",
        "trace_step",
    ]
    for name in foretrace.__all__:
        assert getattr(foretrace, name) is not None
    with pytest.raises(AttributeError):
        _ = foretrace.nothing


def test_help_imports_neither_numpy_nor_rich() -> None:
    code = "import sys\nfrom foretrace.cli.main import run\ntry:\n    run(['--help'])\nfinally:\n"
    code += "    print(sorted({'numpy', 'rich', 'numba', 'yaml', 'torch'} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
