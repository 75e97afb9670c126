"""A 1,024-GPU pipeline job written through the Python API, run, and compared under other schedules.

    python examples/pipeline.py [OUT.foretrace]

The durations are invented for illustration (a 70-billion-parameter model on H100s would be of this order); everything
else is what a real job has: tensor-parallel all-reduces inside the layers, transfers between stages, gradients reduced
in buckets under the last backward, a sharded optimizer, and parameters gathered into the next step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from foretrace import Mesh, Program, ProgramBuilder, Transfer, pipeline, save, schedule, simulate
from foretrace.basics.units import format_time
from foretrace.program.block import BlockBuilder
from foretrace.report.terminal import print_answer
from foretrace.schedules import Action, ActionKind

MESH = Mesh(tp=8, pp=8, dp=16)
MICROBATCHES = 16
LAYERS_PER_STAGE = 10
TOKENS_PER_MICROBATCH = 4096
HIDDEN_BYTES = TOKENS_PER_MICROBATCH * 8192 * 2  # one activation in bf16

ATTENTION_S, MLP_S, ALL_REDUCE_S = 0.55e-3, 0.95e-3, 0.24e-3
HEAD_S = 1.9e-3
TRANSFER = Transfer(bytes=HIDDEN_BYTES, duration_s=1.4e-3)
REDUCE_S, GATHER_S, OPTIMIZER_S = 9e-3, 5e-3, 6e-3

GIB = 1 << 30
ACTIVATIONS = int(1.05 * GIB)  # of a stage, for one microbatch


def build(name: str = "1f1b") -> Program:
    """The job under one schedule."""
    plan = schedule(name, MESH.pp, MICROBATCHES)
    tokens = MESH.dp * MICROBATCHES * TOKENS_PER_MICROBATCH
    job = ProgramBuilder(MESH, title=f"example: 80 layers, {plan.name}, durations invented", tokens_per_step=tokens)
    blocks: dict[tuple[int, ActionKind, int], BlockBuilder] = {}

    def block(stage: int, action: Action) -> BlockBuilder:
        key = (stage, action.kind, action.chunk)
        if key not in blocks:
            piece = int(plan.piece[stage, action.chunk])
            blocks[key] = write_block(job, action.kind, LAYERS_PER_STAGE // plan.chunks, piece == plan.pieces - 1)
        return blocks[key]

    placed = pipeline(job, plan, block, TRANSFER)
    dp = job.communicator("dp")
    for stage, role in enumerate(placed.stages):
        role.resident(weights=int(2.1 * GIB), gradients=int(4.2 * GIB), optimizer=int(1.6 * GIB))
        first_forward = placed.placed[stage, Action(ActionKind.FORWARD, 0, 0)]
        kinds = {action.kind for slot in plan.actions(stage) for action in slot}
        last = ActionKind.BACKWARD_WEIGHT if ActionKind.BACKWARD_WEIGHT in kinds else ActionKind.BACKWARD
        *_, (*_, final) = (slot for slot in plan.actions(stage) if slot[-1].kind == last)
        # The first half of the gradients is ready in the middle of the last backward, the rest at its end.
        backward = placed.placed[stage, final]
        role.collective("reduce_scatter", dp, REDUCE_S, bytes=GIB, after=backward["half"], name="gradients 1")
        second = role.collective("reduce_scatter", dp, REDUCE_S, bytes=GIB, after=backward["out"], name="gradients 2")
        updated = role.compute("optimizer", OPTIMIZER_S, phase="optimizer", after=second)
        gathered = role.collective("all_gather", dp, GATHER_S, bytes=GIB, after=updated, name="parameters")
        role.link(first_forward[0], after=gathered, steps=1)
    return job.program()


def write_block(job: ProgramBuilder, kind: ActionKind, layers: int, has_head: bool) -> BlockBuilder:
    """What a chunk of the model does in one action; a backward half costs as much as the forward."""
    block = job.block(kind.name.lower())
    tp = job.communicator("tp")
    phase = kind.name.lower()
    work = 2.0 if kind == ActionKind.BACKWARD else 1.0
    communicates = kind != ActionKind.BACKWARD_WEIGHT
    kernels = [(layer, *kernel) for layer in range(layers) for kernel in (("attention", ATTENTION_S), ("mlp", MLP_S))]
    kernels += [(layers, "head", HEAD_S)] if has_head else []
    held = {"activations": ACTIVATIONS * layers // LAYERS_PER_STAGE}
    for number, (layer, name, seconds) in enumerate(kernels):
        alloc = held if kind == ActionKind.FORWARD and number == 0 else None
        frees = kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT) and number == len(kernels) - 1
        op = block.compute(name, work * seconds, phase=phase, layer=layer, alloc=alloc, free=held if frees else None)
        if communicates and name != "head":
            # On the compute lane: the stream waits for it, as Megatron's does.
            op = block.collective("all_reduce", tp, ALL_REDUCE_S, bytes=HIDDEN_BYTES, lane="compute", layer=layer)
        if number == len(kernels) // 2:
            block.port("half", op)
    return block


def main() -> None:
    """Builds, saves, runs and shows the job, then runs it under other schedules."""
    program = build()
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        save(program, path)
        command = os.path.relpath(Path(sys.executable).parent / "foretrace")
        print(f"wrote {path} ({path.stat().st_size:,} bytes): try  {command} simulate {path} --straggler 5=1.2x")
    print_answer(simulate(program))
    print("\n  the same job under other schedules")
    for name in ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v"):
        answer = simulate(build(name), explain=False)
        bubble = answer.breakdown.mean_s.get("bubble", 0.0)
        peak = answer.peak_memory.bytes / GIB if answer.peak_memory else 0.0
        print(
            f"  {name:<17} step {format_time(answer.step_time_s):>8}   bubble {format_time(bubble):>8}"
            f"   peak memory {peak:5.1f} GiB"
        )


if __name__ == "__main__":
    main()
