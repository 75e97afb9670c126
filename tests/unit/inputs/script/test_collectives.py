"""Traced collectives are those that the same script really issues with gloo on CPUs.

`benchmarks/frameworks.py --gloo` compares more scripts with more processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.inputs.script.tracing import TraceRequest, trace_script
from tests.real_collectives import run_really
from tests.traced_collectives import traced_calls

torch = pytest.importorskip("torch")

SCRIPTS = Path(__file__).parents[4] / "examples" / "scripts"
CASES = {
    "ddp_gpt.py": "--layers 4 --hidden 512 --heads 4 --seq 16 --vocab 256 --batch 1 --accumulate 2",
    "llama_fsdp2.py": "--size tiny --seq 32",
}


@pytest.mark.parametrize("name", CASES)
def test_traced_collectives_are_those_of_real_processes(name: str) -> None:
    script, arguments = SCRIPTS / name, [*CASES[name].split(), "--steps", "3"]
    real = run_really(script, [*arguments, "--device", "cpu"], 2)
    job = trace_script(TraceRequest(str(script), tuple(arguments), 2, ranks=(0, 1), steps=(2, 2)))
    assert [traced_calls(recording) for recording in job.recordings] == real
    assert all(real)
