"""A workload on one GPU: nothing overlaps and nothing is sent, so the step is the sum of its rows."""

from __future__ import annotations

from foretrace.inputs.aicb.options import WorkloadOptions
from golden.reading import mean_us, step_us
from unit.inputs.aicb.workloads import US, actions, row, run

MICROBATCH = [
    row("embedding_layer", 10 * US, 1, 20 * US),
    row("attention_layer", 100 * US, 80 * US, 60 * US),
    row("mlp_layer", 90 * US, 70 * US, 50 * US),
    row("final_column", 30 * US, 40 * US, 50 * US),
]
STEP = [row("grad_param_compute", 1, 7 * US, 1)]
OPTIMIZER = [row("optimizer1", 3 * US, 2 * US, 1 * US), row("optimizer2", 4 * US, 0, 0)]


def test_the_step_is_the_sum_of_the_rows() -> None:
    """In µs, a nanosecond being 0.001:

                       forward  input grad  weight grad
    embedding_layer         10       0.001           20
    attention_layer        100          80           60
    mlp_layer               90          70           50
    final_column            30          40           50
    a microbatch           230     190.001          180   = 600.001, twice 1200.002
    grad_param_compute   0.001           7        0.001   =   7.002
    optimizer1, 2        3 + 4       2 + 0        1 + 0   =  10.000
                                                  step    = 1217.004
    """
    answer = run([*STEP, *MICROBATCH, *MICROBATCH, *OPTIMIZER], ga=2)
    assert step_us(answer) == 1217.004
    assert mean_us(answer) == {"compute": 1200.002, "optimizer": 17.002}
    spans = actions(answer)
    assert spans[0, "forward", 0] == (0, 230_000)
    assert spans[0, "backward", 0] == (230_000, 600_001)
    assert spans[0, "forward", 1] == (600_001, 830_001)
    assert spans[0, "backward", 1] == (830_001, 1_200_002)


def test_five_microbatches_take_the_two_in_turn() -> None:
    """5 × 600.001 + 17.002."""
    answer = run([*STEP, *MICROBATCH, *MICROBATCH, *OPTIMIZER], WorkloadOptions(microbatches=5), ga=2)
    assert step_us(answer) == 3017.007
