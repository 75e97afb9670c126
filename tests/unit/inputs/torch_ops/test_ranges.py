"""Phases in the names of ranges: of tables, whose labels are whole phases or parts of them, and of traces."""

from __future__ import annotations

import pytest

from foretrace.inputs.torch_ops.ranges import phase_within, whole_phase
from foretrace.program.columns import Phase


@pytest.mark.parametrize(
    ("name", "whole", "within"),
    [
        ("forward", Phase.FORWARD, Phase.FORWARD),
        ("model.fwd_step", Phase.FORWARD, Phase.FORWARD),
        ("FORWARD_EMBEDDING", Phase.NONE, Phase.FORWARD),
        ("backward pass", Phase.BACKWARD, Phase.BACKWARD),
        ("model.bwd_step", Phase.BACKWARD, Phase.BACKWARD),
        ("fwd", Phase.FORWARD, Phase.FORWARD),
        ("bwd", Phase.BACKWARD, Phase.BACKWARD),
        ("bwd_layer_3", Phase.NONE, Phase.BACKWARD),
        ("adamw", Phase.NONE, Phase.OPTIMIZER),
        ("Optimizer.step#AdamW.step", Phase.OPTIMIZER, Phase.OPTIMIZER),
        ("DistributedOptimizer.step", Phase.NONE, Phase.OPTIMIZER),
        ("clip-grads", Phase.OPTIMIZER, Phase.OPTIMIZER),
        ("multiply-grads", Phase.OPTIMIZER, Phase.OPTIMIZER),
        ("zero_grad", Phase.OPTIMIZER, Phase.OPTIMIZER),
        ("feedforward", Phase.NONE, Phase.NONE),
        ("LAYER_3", Phase.NONE, Phase.NONE),
    ],
)
def test_phases(name: str, whole: Phase, within: Phase) -> None:
    assert (whole_phase(name), phase_within(name)) == (whole, within)
