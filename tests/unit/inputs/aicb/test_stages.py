"""What each stage of a pipeline does: its layers, the ends of the model where they are, and the end of the step."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest

from foretrace import Program
from foretrace.basics.errors import InputError
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.option_values import Overlap
from foretrace.step import buckets
from unit.inputs.aicb.workloads import Op, listed, lowered, row

EMBEDDING = row("embedding_layer", (10, "ALLREDUCE", 4096), 1, 5)
LAYER = row("attention_layer", (100, "ALLREDUCE", 4096), 80, 60)
HEAD = row("final_column", 30, 40, 50)
LOSS = row("cross_entropy1", (0, "ALLREDUCE", 4096))
MICROBATCH = [EMBEDDING, LAYER, LAYER, HEAD, LOSS]
PIPELINE = {"tp": 2, "pp": 3, "ga": 2, "all_gpus": 6}
ENDS = ("embedding_layer", "final_column", "cross_entropy1")


def rows_run(program: Program, stage: int, phase: str = "forward", microbatch: int = 0) -> list[str]:
    """The names of rows in the order in which a stage runs them, the same name in a row once."""
    names = [op.name.split()[0] for op in listed(program, stage) if (op.phase, op.microbatch) == (phase, microbatch)]
    return [name for name, _ in groupby(names)]


def once_per_step(program: Program, stage: int) -> list[Op]:
    return [op for op in listed(program, stage) if op.microbatch < 0]


def test_embedding_first_head_and_loss_last() -> None:
    program = lowered(MICROBATCH * 2, **PIPELINE)
    for microbatch in (0, 1):
        assert rows_run(program, 0, microbatch=microbatch) == ["embedding_layer", "attention_layer"]
        assert rows_run(program, 1, microbatch=microbatch) == ["attention_layer"]
        assert rows_run(program, 2, microbatch=microbatch) == ["attention_layer", "final_column", "cross_entropy1"]
    assert rows_run(program, 0, "backward") == ["attention_layer", "embedding_layer"]
    assert rows_run(program, 2, "backward") == ["cross_entropy1", "final_column", "attention_layer"]


def test_ends_on_every_stage_if_asked() -> None:
    program = lowered(MICROBATCH * 2, WorkloadOptions(ends="every-stage"), **PIPELINE)
    for stage in range(3):
        assert rows_run(program, stage) == ["embedding_layer", "attention_layer", "final_column", "cross_entropy1"]


def test_one_stage_has_both_ends() -> None:
    program = lowered(MICROBATCH * 2, tp=2, ga=2, all_gpus=2)
    assert rows_run(program, 0) == ["embedding_layer", "attention_layer", "final_column", "cross_entropy1"]


def test_every_row_of_the_backward_has_both_gradients() -> None:
    program = lowered(MICROBATCH * 2, **PIPELINE)
    assert [op.seconds * 1e9 for op in listed(program, 1) if op.phase == "backward" and op.microbatch == 0] == (
        pytest.approx([80, 60, 80, 60])
    )


def test_split_backwards_have_one_gradient_each() -> None:
    program = lowered(MICROBATCH * 2, WorkloadOptions(schedule="zb-h1"), **PIPELINE)
    ops = [op for op in listed(program, 2) if op.microbatch == 1]
    by_phase = {phase: [op.name for op in ops if op.phase == phase] for phase in ("backward_input", "backward_weight")}
    assert by_phase["backward_input"] == ["cross_entropy1", "final_column", "attention_layer", "attention_layer"]
    assert by_phase["backward_weight"] == by_phase["backward_input"]
    times = {phase: [op.seconds * 1e9 for op in ops if op.phase == phase] for phase in by_phase}
    assert times["backward_input"] == pytest.approx([0, 40, 80, 80])
    assert times["backward_weight"] == pytest.approx([0, 50, 60, 60])


def test_chunks_share_out_the_layers_in_order() -> None:
    numbered = [row(f"attention_layer_{number}", 100 + number) for number in range(4)]
    rows = [EMBEDDING, *numbered, HEAD] * 2
    program = lowered(rows, WorkloadOptions(vpp=2), tp=2, pp=2, ga=2, all_gpus=4, pp_comm=4096)
    for stage in (0, 1):
        ops = [op for op in listed(program, stage) if op.phase == "forward" and op.microbatch == 0 and op.seconds]
        layers = {chunk: [op.name for op in ops if op.chunk == chunk and op.name not in ENDS] for chunk in (0, 1)}
        assert layers == {
            0: ["attention_layer_0", "attention_layer_1"],
            1: ["attention_layer_2", "attention_layer_3"],
        }
        assert [(op.name, op.chunk) for op in ops if op.name in ENDS] == (
            [("embedding_layer", 0)] if stage == 0 else [("final_column", 1)]
        )


STEP = [
    row("grad_gather", 0, 0, (0, "ALLGATHER", 2000)),
    row("grad_param_comm", 0, 0, (0, "REDUCESCATTER", 4000)),
    row("grad_param_compute", 0, 700, 0),
    row("embedding_grads", 0, (0, "ALLREDUCE", 4096), 0),
]


def test_embedding_gradients_on_the_first_stage_alone() -> None:
    program = lowered([*STEP, *MICROBATCH * 2], **PIPELINE | {"all_gpus": 12})
    names = [[op.name for op in once_per_step(program, stage)] for stage in range(3)]
    rest = ["grad_param_compute", "grad_gather all_gather"]
    assert names[0] == ["grad_param_comm reduce_scatter", "embedding_grads all_reduce", *rest]
    assert names[1] == names[2] == ["grad_param_comm reduce_scatter", *rest]


def test_embedding_gradients_on_every_stage_if_asked() -> None:
    program = lowered([*STEP, *MICROBATCH * 2], WorkloadOptions(ends="every-stage"), **PIPELINE | {"all_gpus": 12})
    for stage in range(3):
        assert "embedding_grads all_reduce" in [op.name for op in once_per_step(program, stage)]


def test_the_optimizer_lies_between_gradients_and_parameters() -> None:
    optimizer = [row("optimizer1", (5, "ALLREDUCE", 4)), row("optimizer2", (0, "ALLREDUCE", 4))]
    program = lowered([*STEP, *MICROBATCH * 2, *optimizer], **PIPELINE | {"all_gpus": 12})
    assert [(op.name, op.axis, op.bytes) for op in once_per_step(program, 1)] == [
        ("grad_param_comm reduce_scatter", "dp", 4000),
        ("optimizer1", None, 0),
        ("optimizer1 all_reduce", "tp", 4),
        ("optimizer2 all_reduce", "tp", 4),
        ("grad_param_compute", None, 0),
        ("grad_gather all_gather", "dp", 2000),
    ]


def test_experts_are_reduced_and_gathered_over_their_replicas() -> None:
    experts = [
        row("moe_grad_norm1", 0, 0, (0, "ALLGATHER_DP_EP", 600)),
        row("moe_grad_norm2", 0, 0, (0, "REDUCESCATTER_DP_EP", 1200)),
    ]
    program = lowered([*STEP, *experts, *MICROBATCH], tp=2, ep=2, all_gpus=8, ga=1)
    assert [(op.name, op.axis, op.bytes) for op in once_per_step(program, 0) if op.axis in ("dp", "edp")] == [
        ("grad_param_comm reduce_scatter", "dp", 4000),
        ("moe_grad_norm2 reduce_scatter", "edp", 1200),
        ("grad_gather all_gather", "dp", 2000),
        ("moe_grad_norm1 all_gather", "edp", 600),
    ]


@pytest.mark.parametrize("layers", [1, 2, 3, 7])
def test_overlapped_parts_sum_to_the_whole(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 and 2,000 bytes in as many parts as layers, as equal as whole bytes can be."""
    monkeypatch.setattr(buckets, "MEGATRON_BUCKET_PARAMETERS", 1)
    monkeypatch.setattr(buckets, "MEGATRON_PARAMETERS_PER_RANK", 0)
    rows = [*STEP, EMBEDDING, *[LAYER] * layers, HEAD]
    program = lowered(rows, WorkloadOptions(overlap=frozenset({Overlap.GRAD, Overlap.PARAM})), tp=2, all_gpus=4)
    for name, size in (("grad_param_comm reduce_scatter", 4000), ("grad_gather all_gather", 2000)):
        parts = [op.bytes for op in once_per_step(program, 0) if op.name == name]
        assert len(parts) == layers
        assert sum(parts) == size
        assert max(parts) - min(parts) <= 1


def test_grad_norm_of_the_other_path_gathers_over_dp() -> None:
    """Without AIOB, AICB writes the parameters' all-gather in the forward column, SimAI's tp group."""
    rows = [row("grad_norm", (1, "ALLGATHER", 2000), 1, (1, "REDUCESCATTER", 4000)), *MICROBATCH]
    program = lowered(rows, tp=2, all_gpus=8, ga=1)
    communicated = [(op.name, op.axis, op.bytes) for op in once_per_step(program, 0) if op.axis]
    assert communicated == [("grad_norm reduce_scatter", "dp", 4000), ("grad_norm all_gather", "dp", 2000)]
    (said,) = [one for one in program.diagnostics if "grad_norm" in one.message]
    assert (said.level, said.where) == ("warning", "job.txt:3")


def test_another_gather_named_grad_norm_is_taken_as_written() -> None:
    """Only where it gathers in two bytes what is reduced in four is it the parameters."""
    rows = [row("grad_norm", (1, "ALLGATHER", 2001), 1, (1, "REDUCESCATTER", 4000)), *MICROBATCH]
    program = lowered(rows, tp=2, all_gpus=8, ga=1)
    assert ("grad_norm all_gather", "tp") in [(op.name, op.axis) for op in once_per_step(program, 0)]


def test_inference_ends_with_its_pass() -> None:
    program = lowered([*STEP, *MICROBATCH, row("optimizer1", 5)], **PIPELINE | {"ga": 1, "mode": 1})
    for stage in range(3):
        assert {op.phase for op in listed(program, stage)} <= {"forward", "none"}
        assert once_per_step(program, stage) == []
    assert not program.repeats


@pytest.mark.parametrize(
    ("parameters", "dp", "layers", "parts"),
    [(39_000_000, 2, 8, 1), (80_000_000, 2, 8, 2), (400_000_000, 2, 8, 8), (400_000_000, 100, 8, 4)],
)
def test_buckets_are_megatrons(parameters: int, dp: int, layers: int, parts: int) -> None:
    """max(40 M, 1 M · dp) parameters each, never more than one for each layer."""
    rows = [row("grad_param_comm", 0, 0, (0, "REDUCESCATTER", 4 * parameters)), *[LAYER] * layers]
    program = lowered(rows, WorkloadOptions(overlap=frozenset({Overlap.GRAD})), all_gpus=dp)
    sizes = [op.bytes for op in once_per_step(program, 0) if op.name == "grad_param_comm reduce_scatter"]
    assert len(sizes) == parts
    assert sum(sizes) == 4 * parameters


def test_every_stage_has_the_ends_once_however_many_chunks() -> None:
    rows = [EMBEDDING, LAYER, LAYER, HEAD] * 2
    program = lowered(rows, WorkloadOptions(vpp=2, ends="every-stage"), pp=2, ga=2, all_gpus=2, pp_comm=4096)
    for stage in (0, 1):
        names = [op.name for op in listed(program, stage) if op.phase == "forward"]
        assert names.count("embedding_layer") == names.count("final_column") == 2


def test_layers_can_be_uneven() -> None:
    """Two layers listed, three stages with 1, 2 and 3: the list is repeated, gradients follow the number of layers."""
    numbered = [row(f"attention_layer_{number}", 100 + number) for number in range(2)]
    rows = [*STEP, EMBEDDING, *numbered, HEAD]
    program = lowered(rows, WorkloadOptions(stage_layers=(1, 2, 3)), tp=2, pp=3, ga=1, all_gpus=12, pp_comm=4096)
    for stage, layers in enumerate((["0"], ["0", "1"], ["0", "1", "0"])):
        names = [op.name for op in listed(program, stage) if op.phase == "forward" and op.name.startswith("attention")]
        assert names == [f"attention_layer_{layer}" for layer in layers]
        reduced = [op.bytes for op in once_per_step(program, stage) if op.name == "grad_param_comm reduce_scatter"]
        assert reduced == [4000 * len(layers) // 2]


@pytest.mark.parametrize("layers", [(1, 2), (1, 2, 3, 4), (1, 0, 2)])
def test_layers_that_do_not_fit_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        lowered([EMBEDDING, LAYER, LAYER, HEAD], WorkloadOptions(stage_layers=layers), pp=3, all_gpus=3, pp_comm=4096)
    assert caught.value.code in ("bad-plan", "out-of-range")


def test_only_the_first_chunk_of_the_first_stage_has_several_buckets() -> None:
    """As Megatron-core: elsewhere a chunk is one bucket, reduced when its last backward ends."""
    rows = [row("grad_param_comm", 0, 0, (0, "REDUCESCATTER", 4 * 400_000_000)), *[LAYER] * 8]
    overlap = frozenset({Overlap.GRAD})
    program = lowered(rows, WorkloadOptions(overlap=overlap, vpp=2, microbatches=2), pp=2, all_gpus=4, pp_comm=4096)
    sizes = [[op.bytes // 4 for op in once_per_step(program, stage) if op.bytes] for stage in range(2)]
    # Eight layers of 50 M: the second chunk of stage 0 ends first.
    assert sizes == [[200_000_000, *[50_000_000] * 4], [200_000_000, 200_000_000]]


def test_uneven_layers_of_two_directions_count_each_stage_once() -> None:
    rows = [*STEP, EMBEDDING, LAYER, LAYER, HEAD]
    header = {"tp": 2, "pp": 4, "ga": 8, "all_gpus": 16, "pp_comm": 4096}
    options = WorkloadOptions(schedule="dualpipe", microbatches=8)
    listed_layers = lowered(rows, options, **header)
    asked = lowered(rows, replace(options, stage_layers=(2, 2, 2, 2)), **header)
    for stage in range(4):
        assert once_per_step(asked, stage) == once_per_step(listed_layers, stage)


def test_gradients_of_no_byte_are_reduced_by_nobody() -> None:
    rows = [row("grad_param_comm", 0, 0, (0, "REDUCESCATTER", 1)), EMBEDDING, LAYER, LAYER, LAYER, HEAD]
    options = WorkloadOptions(stage_layers=(1, 1), overlap=frozenset({Overlap.GRAD}))
    program = lowered(rows, options, pp=2, all_gpus=4, ga=1, pp_comm=4096)
    assert [op.name for op in once_per_step(program, 0)] == ["step end"]


def test_as_many_layers_as_listed_change_nothing_even_where_a_microbatch_is_cut_short() -> None:
    rows = [EMBEDDING, LAYER, LAYER, LAYER, LAYER, HEAD, EMBEDDING, LAYER, HEAD]
    header = {"tp": 2, "pp": 2, "ga": 2, "all_gpus": 4, "pp_comm": 4096}
    as_listed, asked = (lowered(rows, WorkloadOptions(stage_layers=layers), **header) for layers in (None, (4, 4)))
    for stage in range(2):
        assert listed(asked, stage) == listed(as_listed, stage)


def test_more_layers_than_can_be_run_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        lowered([EMBEDDING, LAYER, HEAD], WorkloadOptions(stage_layers=(10**5,), microbatches=1000), tp=2, all_gpus=2)
    assert caught.value.code == "too-large"


def test_stages_of_two_directions_reduce_and_gather_in_their_own_order() -> None:
    """DualPipe: the first half of the stages completes chunk 1 first, the second half chunk 0."""
    options = WorkloadOptions(schedule="dualpipe", overlap=frozenset({Overlap.GRAD, Overlap.PARAM}), microbatches=8)
    program = lowered([*STEP, EMBEDDING, LAYER, LAYER, HEAD], options, tp=2, pp=4, ga=8, all_gpus=16, pp_comm=4096)
    for stage in range(4):
        ops = once_per_step(program, stage)
        reduced, gathered = ([op.chunk for op in ops if op.name.endswith(word)] for word in ("scatter", "gather"))
        assert reduced == ([1, 0] if stage < 2 else [0, 1])
        assert gathered == ([0, 1] if stage < 2 else [1, 0])
