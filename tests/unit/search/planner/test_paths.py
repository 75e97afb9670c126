"""Chains of actions are parts of the schedule, and none is longer than the schedule takes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from foretrace.cost.machine import Machine
from foretrace.models.model import Model
from foretrace.models.presets import model as preset
from foretrace.schedules import ActionKind, Schedule
from foretrace.schedules.registry import make, names
from foretrace.search.planner.closed_form import ClosedForm
from foretrace.search.planner.paths import KINDS, MAX_STAGES, ActionChains, sampled_stages
from foretrace.search.planner.shapes import StepShape
from foretrace.workload.plan import Plan

SIZES = {"dualpipe": (4, 8, None), "dualpipe-v": (4, 8, None), "zb-v": (4, 8, None)}


def model(layers: int) -> Model:
    whole = preset("llama3.2-1b")
    return replace(whole, layers=whole.layers[:layers])


def shape_of(schedule: str | None, pp: int, vpp: int, microbatches: int) -> StepShape:
    plan = Plan(pp, pp=pp, vpp=vpp, schedule=schedule, gbs=microbatches)
    return StepShape.of(ClosedForm(model(pp * vpp), Machine("h100-dgx")).setting(plan))


def chains_of(shape: StepShape, *, batched: bool = False) -> ActionChains:
    return ActionChains.of(shape, np.tile(np.arange(len(shape.pieces)), (2, 1)), batched=batched)


def ends_s(schedule: Schedule, seconds: np.ndarray) -> float:
    """Runs a schedule without transfers, an action as soon as it can, and returns when the last one ends."""
    ends: dict[tuple[int, int, int], float] = {}
    rows = [list(zip(each.kind.tolist(), each.chunk.tolist(), each.microbatch.tolist(), strict=True)) for each in
            schedule.stage_actions]  # fmt: skip
    free, at = [0.0] * schedule.stages, [0] * schedule.stages
    last = schedule.stages * schedule.chunks - 1
    opens = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)

    def ready(stage: int) -> float | None:
        kind, chunk, microbatch = rows[stage][at[stage]]
        piece = int(schedule.piece[stage, chunk])
        if kind == ActionKind.FORWARD:
            return 0.0 if piece == 0 else ends.get((0, piece - 1, microbatch))
        if kind == ActionKind.BACKWARD_WEIGHT:
            return ends.get((1, piece, microbatch))
        return ends.get((0, piece, microbatch) if piece == last else (1, piece + 1, microbatch))

    while any(at[stage] < len(rows[stage]) for stage in range(schedule.stages)):
        for stage in range(schedule.stages):
            while at[stage] < len(rows[stage]) and (begin := ready(stage)) is not None:
                kind, chunk, microbatch = rows[stage][at[stage]]
                piece = int(schedule.piece[stage, chunk])
                free[stage] = max(free[stage], begin) + float(seconds[piece, kind])
                if kind != ActionKind.BACKWARD_WEIGHT:
                    ends[int(kind in opens), piece, microbatch] = free[stage]
                at[stage] += 1
    return max(free)


@pytest.mark.parametrize("stages", [1, 2, 3, 5, 16, 64])
def test_sampled_stages_have_the_ends(stages: int) -> None:
    sampled = sampled_stages(stages)
    assert len(sampled) <= MAX_STAGES and sorted(set(sampled)) == list(sampled)
    assert sampled[0] == 0 and sampled[-1] == stages - 1


@pytest.mark.parametrize("name", names())
def test_schedules_divide_backwards_on_the_first_stage_or_on_none(name: str) -> None:
    stages, microbatches, chunks = SIZES.get(name, (4, 8, 2 if "interleaved" in name or "looped" in name else None))
    schedule = make(name, stages, microbatches, chunks)
    divided = [(rows.kind == ActionKind.BACKWARD_INPUT).any() for rows in schedule.stage_actions]
    assert divided[0] or not any(divided)


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "microbatches"),
    [
        (None, 1, 1, 3),
        (None, 4, 1, 8),
        (None, 4, 1, 2),
        (None, 4, 3, 8),
        ("gpipe", 4, 1, 5),
        ("zb-h1", 4, 1, 8),
        ("zb-v", 4, 2, 8),
        ("interleaved-zb", 4, 2, 8),
        ("looped-bfs", 4, 2, 6),
        ("dualpipe-v", 4, 2, 8),
    ],
)
def test_no_chain_is_longer_than_the_schedule(schedule: str | None, pp: int, vpp: int, microbatches: int) -> None:
    shape = shape_of(schedule, pp, vpp, microbatches)
    chains = chains_of(shape)
    random = Random(pp * vpp * microbatches)
    for _ in range(5):
        seconds = np.array([[random.uniform(0.1, 3.0) for _ in range(KINDS)] for _ in shape.pieces])
        step_s = ends_s(shape.schedule, seconds)
        longest = (chains.counts @ seconds.ravel()).max()
        assert longest <= step_s * (1 + 1e-12)
        assert longest >= 0.7 * step_s


def test_equal_pieces_of_1f1b_and_its_interleaving_have_their_known_steps() -> None:
    forward, backward, pp, count = 1.0, 2.0, 4, 8
    for vpp in (1, 3):
        shape = shape_of(None, pp, vpp, count)
        seconds = np.array([[forward, backward, 0.0, 0.0]] * len(shape.pieces)) / vpp
        chains = chains_of(shape)
        # Narayanan et al. 2021, section 2.2: the bubble is (p - 1)(f + b) / v.
        expected = (count + (pp - 1) / vpp) * (forward + backward)
        assert (chains.counts @ seconds.ravel()).max() == pytest.approx(expected)


def test_all_actions_of_a_stage_are_a_chain() -> None:
    shape = shape_of(None, 4, 2, 8)
    chains = chains_of(shape)
    whole = chains.counts[chains.whole_stage > 0]
    assert {tuple(row) for row in whole.tolist()} == {tuple(row) for row in chains.totals.tolist()}


def test_stages_that_wait_for_transfers_count_them() -> None:
    shape = shape_of(None, 4, 1, 8)
    plain, batched = chains_of(shape), chains_of(shape, batched=True)
    assert not plain.exchanges.any()
    assert batched.exchanges.max() > 0
    # Every stage but the last sends the forwards of its warm-up, and receives a gradient for each.
    assert batched.transfers.max() > plain.transfers.max()
