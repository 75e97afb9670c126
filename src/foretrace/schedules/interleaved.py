"""The schedules that interleave several chunks on each stage: 1F1B, with backwards whole or split.

Microbatches go round the stages in groups of as many as there are stages: a stage runs the group's forwards
in its first chunk, then in its second, and so on; backwards run the chunks the other way.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from foretrace.basics.errors import InputError
from foretrace.schedules.pattern import Phase, columns, number_microbatches
from foretrace.schedules.pieces import looped_pieces, one_way
from foretrace.schedules.schedule import ActionKind, Schedule, StageActions


def interleaved_1f1b(stages: int, microbatches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B as Megatron runs it (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2).

    It divides the idle time of 1F1B by the number of chunks.
    """
    _require_whole_groups("interleaved-1f1b", stages, microbatches)
    total = microbatches * chunks

    def phases(stage: int) -> list[Phase]:
        # All chunks but the last for one group, and the way to the last stage and back.
        warmup = min((chunks - 1) * stages + 2 * (stages - stage - 1), total)
        return [("F", warmup), ("F B", total - warmup), ("B", warmup)]

    actions = [_deal_chunks(phases(stage), stages, chunks) for stage in range(stages)]
    return one_way("interleaved-1f1b", microbatches, looped_pieces(stages, chunks), actions)


def interleaved_zero_bubble(stages: int, microbatches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B with the delayed weight gradients of ZB-H1 (Qi et al. 2023, arXiv:2401.10241).

    It divides the idle time of ZB-H1 by the number of chunks, and every stage holds at most stages·chunks
    chunk activations, as much as 1F1B's first stage.
    """
    _require_whole_groups("interleaved-zb", stages, microbatches)
    total = microbatches * chunks

    def phases(stage: int) -> list[Phase]:
        # One way only: without weight gradients in between, gradients come back as fast as inputs go out.
        warmup = min((chunks - 1) * stages + stages - stage - 1, total)
        delay = min(stage, total - warmup)
        steady = total - warmup - delay
        return [("F", warmup), ("F I", delay), ("F I W", steady), ("I W", warmup), ("W", delay)]

    actions = [_deal_chunks(phases(stage), stages, chunks) for stage in range(stages)]
    return one_way("interleaved-zb", microbatches, looped_pieces(stages, chunks), actions)


def _deal_chunks(phases: Iterable[Phase], stages: int, chunks: int) -> StageActions:
    """Fill in the chunks that the patterns leave open, group by group."""
    slot, kind, chunk = columns(phases)
    is_forward = kind == ActionKind.FORWARD
    is_backward = (kind == ActionKind.BACKWARD) | (kind == ActionKind.BACKWARD_INPUT)
    dealt = np.arange(np.count_nonzero(is_forward)) % (stages * chunks) // stages
    chunk[is_forward] = dealt
    chunk[is_backward] = chunks - 1 - dealt
    return number_microbatches(slot, kind, chunk)


def _require_whole_groups(name: str, stages: int, microbatches: int) -> None:
    # Megatron-Core refuses a last group smaller than the pipeline, and its groups are by default
    # (microbatch_group_size_per_vp_stage) as large as the pipeline: so nothing may be left over.
    if microbatches % stages:
        below = microbatches // stages * stages
        fitting = f"{below} or {below + stages}" if below else f"{stages}"
        raise InputError(
            "not-divisible",
            f"{name} needs microbatches to be a multiple of its {stages} stages, not {microbatches}",
            hint=f"Use {fitting} microbatches, or a schedule without that rule such as 1f1b or zb-v.",
        )
