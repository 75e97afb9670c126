"""Tensor-parallel collectives of a workload: exposed one by one, or beside the computation of their row."""

from __future__ import annotations

from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.option_values import Overlap
from golden.reading import parts_us, step_us
from unit.inputs.aicb.workloads import GATHER_20_US, US, row, run

REDUCE_31_US = 2_400_000
LOSS_16_US = 120_000
HEADER = {"tp": 2, "all_gpus": 2}

ROWS = [
    row("embedding_layer", (10 * US, "ALLREDUCE", REDUCE_31_US), 0, 20 * US),
    row("attention_column", (50 * US, "ALLGATHER", GATHER_20_US), (40 * US, "REDUCESCATTER", 0), 40 * US),
    row("attention_row", (50 * US, "REDUCESCATTER", GATHER_20_US), (40 * US, "ALLGATHER", GATHER_20_US), 40 * US),
    row("mlp_column", (60 * US, "ALLGATHER", GATHER_20_US), (15 * US, "REDUCESCATTER", GATHER_20_US), 60 * US),
    row("mlp_row", (60 * US, "REDUCESCATTER", GATHER_20_US), (60 * US, "ALLGATHER", GATHER_20_US), 60 * US),
    row("final_column", (30 * US, "ALLGATHER", GATHER_20_US), 30 * US, 30 * US),
    row("cross_entropy1", (0, "ALLREDUCE", LOSS_16_US), 0, 0),
]


def test_all_of_it_is_exposed() -> None:
    """Over two GPUs in µs: gather or reduce-scatter 11.8 + 8.2 = 20; all-reduce of 2,400,000 bytes 15.2 + 16 = 31.2,
    of 120,000 bytes 15.2 + 0.8 = 16.

    compute          10 + 50 + 50 + 60 + 60 + 30 = 260 forward
                     40 + 40 + 15 + 60 + 30 = 185 input gradient
                     20 + 40 + 40 + 60 + 60 + 30 = 250 weight gradient            695
    forward tp       31.2 + 5 · 20 + 16 = 147.2
    backward tp      3 · 20 = 60; attention_column scatters 0 bytes                207.2
    step                                                                           902.2
    """
    answer = run(ROWS, **HEADER)
    assert step_us(answer) == 902.2
    assert parts_us(answer, 0) == parts_us(answer, 1) == {"compute": 695, "tp exposed": 207.2}


def test_beside_the_computation_of_its_row() -> None:
    """A row in the middle of an action takes as long as the longer of its computation and its collective; at either end
    they follow each other, and a collective without computation has nothing to run beside.

    forward    embedding (first) 10 + 31.2; 50, 50, 60, 60, 30 hide 20 each; loss (last) 16           307.2
    backward   loss 0; 30 + 30; mlp_row 60 beside 20, 60; mlp_column max(15, 20) + 60;
               attention_row 40 beside 20, 40; attention_column 40 + 40; embedding 20                   440

    mlp_column's input gradient: the weight gradient that follows waits for the collective, 5 µs longer than 15.
    """
    answer = run(ROWS, WorkloadOptions(overlap=frozenset({Overlap.TP})), **HEADER)
    assert step_us(answer) == 747.2
    assert parts_us(answer, 0) == {"compute": 695, "tp exposed": 52.2}
