"""The schedules that run whole chunks in turn: GPipe, 1F1B, looped breadth-first, and forwards alone."""

from __future__ import annotations

from foretrace.schedules.pattern import Phase, stage_from_phases
from foretrace.schedules.pieces import looped_pieces, one_way
from foretrace.schedules.schedule import Schedule


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)."""
    stage = stage_from_phases([("F0", microbatches), ("B0", microbatches)])
    return one_way("gpipe", microbatches, looped_pieces(stages, 1), [stage] * stages)


def forward_only(stages: int, microbatches: int) -> Schedule:
    """Forwards and nothing else, as inference runs them."""
    stage = stage_from_phases([("F0", microbatches)])
    return one_way("forward-only", microbatches, looped_pieces(stages, 1), [stage] * stages)


def one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """1F1B with a flush (PipeDream-flush; Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1).

    Stage s holds at most stages − s microbatches in flight.
    """

    def phases(stage: int) -> list[Phase]:
        warmup = min(stages - stage - 1, microbatches)
        return [("F0", warmup), ("F0 B0", microbatches - warmup), ("B0", warmup)]

    actions = [stage_from_phases(phases(stage)) for stage in range(stages)]
    return one_way("1f1b", microbatches, looped_pieces(stages, 1), actions)


def looped_bfs(stages: int, microbatches: int, chunks: int) -> Schedule:
    """All microbatches of a chunk before the next chunk (Lamy-Poirier 2023, arXiv:2211.05953).

    Backwards take the chunks in reverse and the microbatches in rising order; with one chunk this is GPipe.
    """
    forward: list[Phase] = [(f"F{chunk}", microbatches) for chunk in range(chunks)]
    backward: list[Phase] = [(f"B{chunk}", microbatches) for chunk in reversed(range(chunks))]
    stage = stage_from_phases(forward + backward)
    return one_way("looped-bfs", microbatches, looped_pieces(stages, chunks), [stage] * stages)
