"""What the rows of a workload say about how they were made."""

from __future__ import annotations

import pytest

from unit.inputs.aicb.workloads import lowered, messages, row

PLAIN = row("attention_layer", 100_000, 80_000, 60_000)


def said(rows: list[str], word: str, **header: int) -> list[str]:
    return messages(lowered(rows, **({"tp": 2, "all_gpus": 8} | header)), word)


def test_nothing_odd() -> None:
    program = lowered([PLAIN, PLAIN])
    assert [one.code for one in program.diagnostics] == ["as-recorded", "assumed", "not-modelled"]


def test_computation_that_was_not_measured() -> None:
    assert said([row("attention_layer", 1, 1, 1)], "communication alone")[0].startswith("warning job.txt:3")
    assert said([PLAIN], "communication alone") == []


@pytest.mark.parametrize(
    "times",
    [
        [(100_000, 80_000, 60_000)] * 5 + [(100, 80, 60)],
        [(100_000, 80_000, 60_000)] * 5 + [(10**8, 10**8, 10**8)],
        [(100_000_000, 80_000, 60_000)] * 6,
        [(100_000, 80_000_000, 60_000)] * 6,
    ],
)
def test_times_in_another_unit(times: list[tuple[int, int, int]]) -> None:
    program = lowered([row("attention_layer", *three) for three in times])
    assert "implausible-time" in {note.code for note in program.diagnostics}


@pytest.mark.parametrize("factor", [1, 1000])
def test_layers_faster_than_any_gpu(factor: int) -> None:
    column = (2_000_000 // factor, "ALLGATHER", 2 * 4096 * 5120)
    rows = [row("attention_column", column, 2_000_000 // factor), row("mlp_column", column, 2_000_000 // factor)]
    rows.append(row("cross_entropy1", (0, "ALLREDUCE", 4 * 4096)))
    codes = {note.code for note in lowered(rows, tp=8, all_gpus=8).diagnostics}
    assert ("implausible-rate" in codes) is (factor > 1)


def test_recomputation() -> None:
    found = said([row("attention_column", 200_000, 100_000, 100_000)] * 3, "recomputation")
    assert len(found) == 1 and found[0].startswith("note job.txt:3: attention_column takes twice as long")


def test_a_leftover_of_the_loop() -> None:
    rows = [row("grad_param_compute", 0, 0, 9_000), row("embedding_layer", 100, 0, 9_000), PLAIN]
    (found,) = said(rows, "leftover")
    assert found.startswith("warning job.txt:4: embedding_layer's weight gradient takes 9.00 µs, as")


def test_a_reduction_of_no_bytes() -> None:
    rows = [row("attention_column", (100_000, "ALLGATHER", 4096), (80_000, "REDUCESCATTER", 0), 60_000)] * 2
    (found,) = said(rows, "has 0 bytes, its")
    assert found.startswith("warning job.txt:3: attention_column's backward reduce-scatter has 0 bytes")
    assert "(2 rows a microbatch)" in found


def test_a_reduction_of_half_the_bytes() -> None:
    rows = [row("attention_column", (100_000, "ALLGATHER", 4096), (80_000, "REDUCESCATTER", 2048), 60_000)]
    assert said(rows, "scatters 2,048 backward")[0].startswith("note job.txt:3")


@pytest.mark.parametrize(
    ("collective", "ep", "group"), [("ALLTOALL_EP", 1, "ep is 1"), ("ALLGATHER_DP_EP", 4, "dp/ep is 1")]
)
def test_a_group_of_one(collective: str, ep: int, group: str) -> None:
    rows = [PLAIN, row("mlp_moelayer", (100_000, collective, 4096))]
    (found,) = said(rows, "group of one", ep=ep)
    assert found.startswith(f"note job.txt:4: mlp_moelayer's {collective}") and group in found


def test_times_where_aicb_writes_none() -> None:
    rows = [PLAIN, row("cross_entropy1", (50_000, "ALLREDUCE", 16384)), row("optimizer1", (25_000, "ALLREDUCE", 1024))]
    found = said(rows, "computes for")
    assert [text.split(" computes")[0] for text in found] == [
        "note job.txt:4: cross_entropy1",
        "note job.txt:5: optimizer1",
    ]
    assert "reduces 1,024 bytes, where AICB writes 4" in found[1]


def test_a_model_that_cannot_be() -> None:
    rows = [
        row("attention_column", (100_000, "ALLGATHER", 2 * 4096 * 384)),
        row("cross_entropy1", (0, "ALLREDUCE", 16384)),
    ]
    assert said(rows, "hidden size of 384")[0].startswith("note job.txt:3: 4,096 tokens")


def test_inference_is_not_asked_about_gradients() -> None:
    rows = [row("attention_column", (200_000, "ALLGATHER", 4096), (100_000, "REDUCESCATTER", 0), 60_000)]
    found = messages(lowered(rows, tp=2, all_gpus=2, mode=1))
    assert not [text for text in found if "backward" in text or "recomputation" in text]
