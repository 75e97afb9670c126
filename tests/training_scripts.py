"""A tiny training script, and recordings that stand for a trace of it where nothing needs PyTorch."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from foretrace.inputs.script.recording import RankRecording
from foretrace.inputs.script.roles import TracedJob, with_roles
from foretrace.inputs.script.tracing import TraceRequest
from foretrace.program.columns import Category, Collective, Phase
from script_recordings import Script, group

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch, which runs scripts, is not installed")

SCRIPT = """
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=256)
parser.add_argument("--mode", default="")
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layers = [nn.Linear(args.hidden, args.hidden), nn.ReLU(), nn.Linear(args.hidden, args.hidden)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    loss = model(torch.randn(512, args.hidden, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if args.mode == "value" and loss.item() > 1:
        break
    if args.mode == "crash":
        raise KeyError("layers")
dist.destroy_process_group()
"""
"""Three steps of two layers under DDP."""


def write_script(folder: Path, text: str = SCRIPT) -> Path:
    """Writes a script."""
    path = folder / "train.py"
    path.write_text(text)
    return path


def recording(world: int, first: int, last: int) -> RankRecording:
    """Some steps of a rank with a forward, a backward, an all-reduce and an optimizer; the first allocates more."""
    script = Script(world=world, groups=[group("dp", range(world))])
    for step in range(last + 1):
        script.phase = Phase.FORWARD
        number = script.launch("aten::relu")
        script.storage(1 << 30, number, number + 2)
        script.phase = Phase.BACKWARD
        script.launch("aten::relu")
        script.wait(script.call(Collective.ALL_REDUCE, 0, 4096))
        script.phase = Phase.OPTIMIZER
        for _ in range(2 if step == 0 else 1):
            script.storage(1 << 12 if step == 0 else 0, script.launch("aten::add"), kind=Category.OPTIMIZER)
        script.end_step()
    return script.recording(torch_version="2.13.0", steps=script.steps[first:], first_step=first)


class Tracer:
    """Stands for `trace_script`: gives recordings of the asked steps, and keeps what was asked.

    Args:
        steps: How many steps the script makes at most.
    """

    def __init__(self, steps: int = 100) -> None:
        self.steps = steps
        self.requests: list[TraceRequest] = []

    def __call__(self, request: TraceRequest) -> TracedJob:
        self.requests.append(request)
        first, last = (min(step, self.steps - 1) for step in request.steps)
        made = recording(request.world, first, last)
        if request.ranks is None or len(request.ranks) == 1:
            return with_roles((made,), request.world)
        return with_roles(tuple(replace(made, rank=rank) for rank in request.ranks), request.world)
