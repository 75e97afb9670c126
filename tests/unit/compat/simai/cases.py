"""Small workloads and command lines for SimAI's arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foretrace.compat.simai import SimaiFlags, parse_flags
from foretrace.inputs.aicb.format import Header, Pass, Workload, WorkloadRow

NOTHING = Pass(0, "NONE", 0)


def simai(arguments: str, *, gpus: int = 128) -> SimaiFlags:
    """Flags for servers of 8 GPUs and 8 NICs, with more of them, or others, in `arguments`."""
    return parse_flags(f"-g {gpus} -g_p_s 8 -n_p_s 8 {arguments}".split())


def row(
    forward: Pass = NOTHING, input_grad: Pass = NOTHING, weight_grad: Pass = NOTHING, *, name: str = "layer"
) -> WorkloadRow:
    return WorkloadRow(name, -1, forward, input_grad, weight_grad, 100)


def workload(*rows: WorkloadRow, declared: int | None = None, **header: Any) -> Workload:
    """A workload of these rows, from line 3 on; header keys that are not given are 1."""
    sizes = {"tp": 1, "ep": 1, "pp": 1, "vpp": 1, "ga": 1} | header
    policy = sizes.pop("policy", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")
    lines = tuple(replace(one, line=line) for line, one in enumerate(rows, start=3))
    return Workload(Header(policy, **sizes), len(rows) if declared is None else declared, lines, "small.txt")
