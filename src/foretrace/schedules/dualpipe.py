"""DualPipe, two pipelines in opposite directions, and DualPipeV, which is one half of it.

Published with DeepSeek-V3 (arXiv:2412.19437, section 3.2.1; the order of actions is that of the DualPipe
repository). Forwards and backwards of different microbatches overlap in one slot.

With F, I, W the times of a chunk's forward, input gradient and weight gradient, B = I + W, and F&B that of an
overlapped pair, a model of n pieces leaves (n/2 − 1)(F&B + B − 3W) idle per step where F = I ≥ W, and a stage
holds n + 1 chunk activations.
"""

from __future__ import annotations

import numpy as np

from foretrace.basics.errors import InputError
from foretrace.schedules.pattern import Phase, stage_from_phases
from foretrace.schedules.pieces import facing_pieces, one_way, vee_pieces
from foretrace.schedules.schedule import Schedule, StageActions


def dualpipe(stages: int, microbatches: int) -> Schedule:
    """DualPipe: half of the microbatches enter at stage 0, the other half at the last stage.

    Chunk 0 of every stage serves the first direction, chunk 1 the second.
    """
    if stages % 2:
        raise InputError(
            "invalid-schedule",
            f"dualpipe needs an even number of stages, not {stages}",
            hint=f"Use {stages + 1} stages, or dualpipe-v, which takes any number.",
        )
    if microbatches % 2 or microbatches < 2 * stages:
        raise InputError(
            "invalid-schedule",
            f"dualpipe with {stages} stages needs an even number of microbatches, at least {2 * stages}, "
            f"not {microbatches}",
            hint=f"Use {max(2 * stages, microbatches + microbatches % 2)} microbatches, "
            "or a schedule without that rule such as 1f1b or zb-v.",
        )
    half, each_way = stages // 2, microbatches // 2
    first_half = [stage_from_phases(_vee_phases(stage, half, each_way)) for stage in range(half)]
    outward = [_set_apart(actions, each_way, near=0) for actions in first_half]
    inward = [_set_apart(actions, each_way, near=1) for actions in reversed(first_half)]
    return Schedule(
        name="dualpipe",
        stages=stages,
        chunks=2,
        microbatches=microbatches,
        piece=facing_pieces(stages),
        chunk_direction=np.array([0, 1]),
        direction=np.repeat([0, 1], each_way),
        stage_actions=(*outward, *inward),
    )


def dualpipe_v(stages: int, microbatches: int) -> Schedule:
    """DualPipeV: the first half of DualPipe folded into a V, so that no weight is held twice."""
    if microbatches < 2 * stages:
        raise InputError(
            "invalid-schedule",
            f"dualpipe-v with {stages} stages needs at least {2 * stages} microbatches, not {microbatches}",
            hint="Use more microbatches, or a schedule without that rule such as 1f1b or zb-v.",
        )
    actions = [stage_from_phases(_vee_phases(stage, stages, microbatches)) for stage in range(stages)]
    return one_way("dualpipe-v", microbatches, vee_pieces(stages), actions)


def _vee_phases(stage: int, stages: int, microbatches: int) -> list[Phase]:
    """The phases of one stage of a V; chunk 0 is on the way to its tip, chunk 1 on the way back."""
    beyond, upto = stages - stage - 1, stage + 1
    steady = microbatches - 2 * stages + upto
    # At the tip the first pair does not overlap, which starts the first backward one forward earlier.
    apart = 1 if beyond == 0 else 0
    # Of the last 2·upto backwards by turns, the second half leaves its weight gradients for the end.
    whole, odd = divmod(upto, 2)
    return [
        ("F0", 2 * beyond),
        ("F0 F1", upto),
        ("I1 W F1", beyond),
        ("F0 B1 F1&B0", apart),
        ("F0&B1 F1&B0", steady - apart),
        ("B1 F1&B0", beyond),
        ("B1 B0", whole),
        ("B1 I0", odd),
        ("I1 I0", whole),
        ("W I0", beyond),
        ("W", upto),
    ]


def _set_apart(actions: StageActions, each_way: int, near: int) -> StageActions:
    """Give a half's actions to the two directions: chunk 0 of the V is the direction that enters near by.

    The microbatches of direction 1 are numbered after those of direction 0.
    """
    chunk = actions.chunk ^ near
    return StageActions(actions.slot, actions.kind, actions.microbatch + each_way * chunk, chunk)
