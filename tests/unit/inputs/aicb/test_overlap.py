"""What overlaps, and what it must still wait for. Sizes of 12 MB over two ranks of `CLUSTER` take 95.2 µs to reduce."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.option_values import Overlap
from golden.reading import step_us
from unit.inputs.aicb.workloads import US, actions, listed, lowered, messages, row, run

GRADIENT = (10 * US, "ALLREDUCE", 12_000_000)
GRAD = frozenset({Overlap.GRAD})


def test_the_next_step_waits_for_gradients_that_no_row_uses() -> None:
    """100 + 80 + 10 of computation, then 95.2 for the gradient, whether it is called overlapped or not."""
    rows = [row("attention_layer", 100 * US, 80 * US, GRADIENT)]
    assert step_us(run(rows, all_gpus=2)) == 285.2
    assert step_us(run(rows, WorkloadOptions(overlap=GRAD), all_gpus=2)) == 285.2


@pytest.mark.parametrize(("schedule", "phase"), [("zb-h1", "backward_weight"), ("1f1b", "backward")])
def test_a_gradient_without_computation_waits_for_its_backward(schedule: str, phase: str) -> None:
    rows = [row("attention_layer", 100 * US, 80 * US, (0, "ALLREDUCE", 12_000_000))]
    answer = run(rows, WorkloadOptions(overlap=GRAD, schedule=schedule), pp=2, ga=1, all_gpus=4, pp_comm=4096)
    spans = actions(answer)
    for rank in (0, 2):
        timeline = answer.timeline.rank(rank)
        start = timeline.start_s[timeline.name.index("attention_layer all_reduce")]
        before = "backward_input" if schedule == "zb-h1" else phase
        assert start * 1e9 >= spans[rank, before, 0][0] + 80 * US - 1


def test_sending_a_gradient_back_does_not_wait_for_its_reduction() -> None:
    rows = [row("attention_layer", 100 * US, 80 * US, GRADIENT)]
    options = WorkloadOptions(overlap=frozenset({Overlap.GRAD, Overlap.PP}))
    spans = actions(run(rows, options, pp=2, ga=1, all_gpus=4, pp_comm=4096))
    assert spans[2, "send backward", 0][0] == spans[2, "backward", 0][0] + 90 * US


def test_the_embedding_counts_to_the_first_layer() -> None:
    """Its gradient is reduced after it is computed: forward 101, backward 100 + 50, reduction 52.2, optimizer 40."""
    rows = [
        row("grad_param_comm", 0, 0, (0, "REDUCESCATTER", 12_120_000)),
        row("grad_param_compute", 0, 40 * US, 0),
        row("embedding_layer", 1 * US, 0, 50 * US),
        row("attention_layer", 100 * US, 50 * US, 50 * US),
    ]
    assert step_us(run(rows, WorkloadOptions(overlap=GRAD), all_gpus=2)) == 343.2
    assert step_us(run(rows, all_gpus=2)) == 343.2


def test_parameters_are_gathered_after_the_last_backward_even_without_an_optimizer() -> None:
    rows = [row("grad_gather", 0, 0, (0, "ALLGATHER", 12_120_000)), row("attention_layer", 100 * US, 50 * US, 50 * US)]
    answer = run(rows, WorkloadOptions(overlap=frozenset({Overlap.PARAM})), all_gpus=2)
    assert step_us(answer) == 252.2
    spans = actions(answer)
    assert spans[0, "grad_gather all_gather", -1][0] >= spans[0, "backward", 0][1]


def test_inference_has_no_use_for_schedules_and_gradients() -> None:
    options = WorkloadOptions(schedule="zb-h1", overlap=frozenset({Overlap.GRAD, Overlap.TP}))
    program = lowered([row("attention_layer", 100)], options, mode=1)
    (note,) = messages(program, "inference")
    assert note.endswith("the time of one pass; --schedule zb-h1, --overlap grad ignored")


def test_a_schedule_that_is_asked_for_wins_over_the_headers_chunks() -> None:
    rows = [row("embedding_layer"), *[row("attention_layer", 100)] * 4] * 2
    header = {"pp": 2, "ga": 2, "all_gpus": 2, "pp_comm": 4096, "vpp": 2}
    program = lowered(rows, WorkloadOptions(schedule="zb-h1"), **header)  # type: ignore[arg-type]
    assert "zb-h1" in program.title
    assert messages(program, "does not go with") == [
        "note job.txt:1: vpp 2 of the header does not go with zb-h1: ignored"
    ]
    with pytest.raises(InputError, match="2 or more chunks"):
        lowered(rows, WorkloadOptions(schedule="interleaved-1f1b", vpp=1), **header)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "options", "says"),
    [
        ({"vpp": 10**12}, WorkloadOptions(vpp="chunks"), "1,000,000,000,000 chunks are more than the 4 layers"),
        ({}, WorkloadOptions(microbatches=10**9), "1,000,000,000 microbatches on 2 stages are more than can be run"),
        ({"all_gpus": 2 * 10**9}, WorkloadOptions(), "2,000,000,000 GPUs are more than any cluster has"),
        ({"pp": 10**6, "all_gpus": 10**6}, WorkloadOptions(), "1,000,000 pipeline stages are more than any job has"),
    ],
)
def test_numbers_that_are_too_large(header: dict[str, int], options: WorkloadOptions, says: str) -> None:
    rows = [row("embedding_layer"), *[row("attention_layer", 100)] * 4] * 2
    fields = {"pp": 2, "ga": 2, "all_gpus": 2, "pp_comm": 4096, **header}
    with pytest.raises(InputError, match=f"^job.txt:1: {says}"):
        lowered(rows, options, **fields)  # type: ignore[arg-type]


def test_uneven_chunks_are_said() -> None:
    rows = [row("embedding_layer"), *[row("attention_layer", 100)] * 4] * 2
    program = lowered(rows, WorkloadOptions(vpp=3), pp=2, ga=2, all_gpus=2, pp_comm=4096)
    assert messages(program, "layers in") == ["note job.txt:1: 4 layers in 3 chunks: 1, 1, 2"]


def test_an_activation_smaller_than_tp_tells_nothing() -> None:
    rows = [row("attention_column", (100, "ALLGATHER", 1)), row("attention_row", (100, "REDUCESCATTER", 1))]
    assert lowered(rows, tp=2, pp=2, ga=1, all_gpus=4, pp_comm=100).world == 4


def test_experts_gathers_do_not_wait_for_dense_ones() -> None:
    """Both begin when the optimizer has ended, each on a lane of its own."""
    rows = [
        row("grad_gather", 0, 0, (0, "ALLGATHER", 12_000_000)),
        row("moe_grad_norm1", 0, 0, (0, "ALLGATHER_DP_EP", 12_000_000)),
        row("grad_param_compute", 0, 40 * US, 0),
        row("attention_layer", 100 * US, 50 * US, 50 * US),
    ]
    spans = actions(run(rows, WorkloadOptions(overlap="param"), ep=2, all_gpus=4))  # type: ignore[arg-type]
    updated = spans[0, "grad_param_compute", -1][1]
    assert spans[0, "grad_gather all_gather", -1][0] == updated
    assert spans[0, "moe_grad_norm1 all_gather", -1][0] == updated


def test_two_directions_hold_two_stages() -> None:
    rows = [row("grad_param_comm", 0, 0, (0, "REDUCESCATTER", 4000)), row("grad_param_compute", 0, 40 * US, 0)]
    rows += [row("embedding_layer"), row("attention_layer", 100 * US, 50 * US, 50 * US)] * 4
    header = {"pp": 2, "ga": 4, "all_gpus": 4, "pp_comm": 4096}
    once = lowered(rows, WorkloadOptions(schedule="1f1b"), **header)  # type: ignore[arg-type]
    twice = lowered(rows, WorkloadOptions(schedule="dualpipe"), **header)  # type: ignore[arg-type]
    for program, copies in ((once, 1), (twice, 2)):
        (reduced,) = [op.bytes for op in listed(program) if op.name == "grad_param_comm reduce_scatter"]
        (updated,) = [op.seconds for op in listed(program) if op.name == "grad_param_compute"]
        assert (reduced, updated) == (copies * 4000, pytest.approx(copies * 40e-6))
    assert len(messages(twice, "every rank holds 2 stages")) == 1


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"overlap": "bogus"}, 'overlap "bogus" is not known'),
        ({"vpp": "bogus"}, "bad-value"),
        ({"vpp": 0}, "out-of-range"),
        ({"ends": "bogus"}, "unknown-name"),
        ({"gpus": 0}, "out-of-range"),
        ({"microbatches": 2.5}, "bad-value"),
        ({"schedule": 3}, "schedule is 3"),
        ({"pp_comm_bytes": -1}, "out-of-range"),
    ],
)
def test_options_that_cannot_be_made(mistake: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        WorkloadOptions(**mistake)  # type: ignore[arg-type]


def test_options_of_overlap_in_words() -> None:
    assert WorkloadOptions(overlap="dp").overlap == WorkloadOptions(overlap=["grad", "param"]).overlap  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"mode": 7}, "mode 7 is not known: taken as training"),
        ({"mode": 1}, "1 rows that happen once per step are not run in inference"),
    ],
)
def test_what_is_not_done_is_said(header: dict[str, int], says: str) -> None:
    rows = [row("grad_param_compute", 0, 40, 0), row("attention_layer", 100)]
    assert len(messages(lowered(rows, **header), says)) == 1


def test_a_computation_of_years_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"^job\.txt:4: a computation of 9,000,000,000,000,000,000 ns"):
        lowered([row("attention_layer", 100), row("attention_layer", 9 * 10**18)])


def test_a_collective_of_exabytes_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"^job\.txt:3: ALLREDUCE of 9,000,000,000,000,000,000 bytes"):
        lowered([row("attention_layer", (100, "ALLREDUCE", 9 * 10**18))], tp=2, all_gpus=2)
