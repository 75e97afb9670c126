"""The schedules that split the backward and delay weight gradients to fill idle time: ZB-H1 and ZB-V.

F, I and W are the times of a stage's forward, input gradient and weight gradient; p is the number of stages.
"""

from __future__ import annotations

from foretrace.schedules.pattern import Phase, keep_microbatches, stage_from_phases
from foretrace.schedules.pieces import looped_pieces, one_way, vee_pieces
from foretrace.schedules.schedule import Schedule


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """1F1B whose weight gradients lag s microbatches on stage s (Qi et al. 2023, arXiv:2401.10241, 2.1).

    Idle per step is (p − 1)(F + I − W) where W ≤ F, W ≤ I and microbatches ≥ p; no stage holds more than p
    microbatches.
    """
    # With fewer microbatches than stages the pattern has no steady part: the longer one, cut short.
    patterned = max(microbatches, stages)

    def phases(stage: int) -> list[Phase]:
        warmup = stages - stage - 1
        steady = patterned - warmup - stage
        return [("F0", warmup), ("F0 I0", stage), ("F0 I0 W", steady), ("I0 W", warmup), ("W", stage)]

    actions = [keep_microbatches(stage_from_phases(phases(stage)), microbatches) for stage in range(stages)]
    return one_way("zb-h1", microbatches, looped_pieces(stages, 1), actions)


def zb_v(stages: int, microbatches: int) -> Schedule:
    """Zero bubble on a V of two chunks a stage (Qi et al. 2023, arXiv:2401.10241, section 6).

    Idle per step is (p − 1)(I − W) where W ≤ F ≤ I and microbatches ≥ 2p, so none where F = I = W; no stage
    holds more than 2p chunk activations, which are p microbatches.
    """
    patterned = max(microbatches, 2 * stages)

    def phases(stage: int) -> list[Phase]:
        beyond = stages - stage  # stages from here to the tip of the V, this one included
        first_forwards = 2 * beyond - 1 + stage
        return [
            ("F0", 2 * beyond - 1),
            ("F1 F0", stage),
            ("F1 I1 W", beyond),
            ("F0 I0 W F1 I1 W", patterned - first_forwards),
            ("I0 W F1 I1 W", first_forwards - stages),
            ("I0 I1", stage),
            ("I0 W", beyond),
            ("W", 2 * stage),
        ]

    actions = [keep_microbatches(stage_from_phases(phases(stage)), microbatches) for stage in range(stages)]
    return one_way("zb-v", microbatches, vee_pieces(stages), actions)
