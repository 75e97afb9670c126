"""Tells traces taken ex situ, where one GPU acted as each rank in turn, from those of a real run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foretrace.inputs.megatron_trace.format.records import RankTrace, Run

TRANSFERS: Final = ("send_forward", "recv_forward", "send_backward", "recv_backward")
"""The ops of a pipeline's transfers."""

_SIMULATED = "simulation"
"""How the description of an op begins that was traced ex situ."""


def is_ex_situ(runs: Sequence[Run]) -> bool:
    """Returns whether one GPU acted as each rank.

    Such traces say so. Others are taken ex situ where they have several stages but no transfers between them, or
    neither transfers nor phases of the schedule.
    """
    traces = [trace for run in runs for trace in run.ranks.values()]
    if any(says_ex_situ(trace) for trace in traces):
        return True
    ops = [op for trace in traces for op in trace.ops]
    computes = [op for op in ops if op.op in ("forward_step", "backward_step")]
    if not computes or any(op.op in TRANSFERS for op in ops):
        return False
    staged = any((op.stage or 0) > 0 for op in computes) or any((run.facts.pp or 1) > 1 for run in runs)
    return staged or all(op.state is None for op in computes)


def says_ex_situ(trace: RankTrace) -> bool:
    """Returns whether a trace itself says that it was taken ex situ."""
    return any((op.description or "").startswith(_SIMULATED) for op in trace.ops)
