"""What a workload does once per step: gradients reduced, the optimizer, parameters gathered; then the next forward.

Two data-parallel ranks, two layers of 100 µs forward and 50 + 50 backward, an optimizer of 40; P = 3,030,000
parameters:

                                 whole                       a layer's half
    reduce-scatter of 4P bytes   11.8 + 2P/150 GB/s = 52.2   11.8 + P/150 GB/s = 32
    all-gather of 2P bytes       11.8 + P/150 GB/s = 32      11.8 + P/2/150 GB/s = 21.9
"""

from __future__ import annotations

import pytest

from foretrace import Answer
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.option_values import Overlap
from foretrace.step import buckets
from golden.reading import parts_us, step_us
from unit.inputs.aicb.workloads import US, actions, row, run

P = 3_030_000
ROWS = [
    row("grad_gather", 0, 0, (0, "ALLGATHER", 2 * P)),
    row("grad_param_comm", 0, 0, (0, "REDUCESCATTER", 4 * P)),
    row("grad_param_compute", 0, 40 * US, 0),
    row("attention_layer", 100 * US, 50 * US, 50 * US),
    row("attention_layer", 100 * US, 50 * US, 50 * US),
]


@pytest.fixture(autouse=True)
def _a_bucket_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets small enough that every layer has its own."""
    monkeypatch.setattr(buckets, "MEGATRON_BUCKET_PARAMETERS", 1)
    monkeypatch.setattr(buckets, "MEGATRON_PARAMETERS_PER_RANK", 0)


def answer_with(*overlap: Overlap, microbatches: int = 1) -> Answer:
    return run(ROWS, WorkloadOptions(overlap=frozenset(overlap), microbatches=microbatches), all_gpus=2)


def test_one_after_the_other() -> None:
    """
    |  F 0-200  |  B 200-400  | RS 400-452.2 | optimizer 452.2-492.2 | AG 492.2-524.2 |
    """
    answer = answer_with()
    spans = actions(answer)
    for rank in (0, 1):
        assert spans[rank, "forward", 0] == (0, 200_000)
        assert spans[rank, "backward", 0] == (200_000, 400_000)
        assert spans[rank, "grad_param_comm reduce_scatter", -1] == (400_000, 452_200)
        assert spans[rank, "grad_param_compute", -1] == (452_200, 492_200)
        assert spans[rank, "grad_gather all_gather", -1] == (492_200, 524_200)
    assert step_us(answer) == 524.2
    assert parts_us(answer, 0) == {"compute": 400, "optimizer": 40, "dp exposed": 84.2}


@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_once_per_step_however_many_microbatches(microbatches: int) -> None:
    answer = answer_with(microbatches=microbatches)
    assert step_us(answer) == 400 * microbatches + 124.2
    names = answer.timeline.rank(0).name
    assert [name for name in names if name.startswith("grad_")] == [
        "grad_param_comm reduce_scatter",
        "grad_param_compute",
        "grad_gather all_gather",
    ]


def test_reduced_under_the_last_backward() -> None:
    """
    compute | F 0-200 | B1 200-300 | B0 300-400 |......| optimizer 432-472 | AG 472-504 |
    dp                             | RS1 300-332 |  RS0 400-432

    Half of the reduction hides; 32 are exposed and 32 of the all-gather.
    """
    answer = answer_with(Overlap.GRAD)
    parts = spans_of(answer, "grad_param_comm reduce_scatter")
    assert parts == [(300_000, 332_000), (400_000, 432_000)]
    assert spans_of(answer, "grad_param_compute") == [(432_000, 472_000)]
    assert spans_of(answer, "grad_gather all_gather") == [(472_000, 504_000)]
    assert step_us(answer) == 504
    assert parts_us(answer, 0) == {"compute": 400, "optimizer": 40, "dp exposed": 64}


def test_only_the_last_microbatch_hides_it() -> None:
    """Three microbatches: 1200 of computation, RS1 1100-1132, RS0 1200-1232."""
    answer = answer_with(Overlap.GRAD, microbatches=3)
    assert spans_of(answer, "grad_param_comm reduce_scatter") == [(1_100_000, 1_132_000), (1_200_000, 1_232_000)]
    assert step_us(answer) == 1304


def test_gathered_under_the_next_forward() -> None:
    """The first layer's parameters must be there; the second's arrive while it computes:

    | optimizer |.AG0 21.9.| F0 100 | F1 100 | B 200 | RS 52.2 | optimizer 40 |
                            AG1 21.9

    21.9 + 400 + 52.2 + 40 = 514.1
    """
    answer = answer_with(Overlap.PARAM)
    first, second = spans_of(answer, "grad_gather all_gather")
    (update,) = spans_of(answer, "grad_param_compute")
    assert update == (452_200, 492_200)
    assert (first, second) == ((492_200, 514_100), (514_100, 536_000))
    assert step_us(answer) == 514.1
    assert parts_us(answer, 0) == {"compute": 400, "optimizer": 40, "dp exposed": 74.1}


def test_both() -> None:
    """21.9 + 400 + 32 + 40 = 493.9"""
    answer = answer_with(Overlap.GRAD, Overlap.PARAM)
    assert step_us(answer) == 493.9
    assert parts_us(answer, 0) == {"compute": 400, "optimizer": 40, "dp exposed": 53.9}


def spans_of(answer: Answer, name: str) -> list[tuple[int, int]]:
    """Start and end in ns of the ops of rank 0 with this name."""
    ops = answer.timeline.rank(0)
    return [
        (round(start * 1e9), round(end * 1e9))
        for one, start, end in zip(ops.name, ops.start_s.tolist(), ops.end_s.tolist(), strict=True)
        if one == name
    ]
