"""What the header leaves open: ranks, chunks, what crosses a stage boundary, tokens; and what is said about it."""

from __future__ import annotations

from collections import Counter

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.aicb.format import parse_workload
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.aicb.program import lower_workload
from foretrace.inputs.option_values import Overlap, parse_overlap
from unit.inputs.aicb.workloads import listed, lowered, messages, row, run, text

MIB = 1 << 20
EMBEDDING = row("embedding_layer", 10, 1, 5)
LAYER = row("attention_layer", 100, 80, 60)
COLUMN = row("attention_column", (100, "ALLGATHER", 16 * MIB), 80, 60)
REDUCED = row("attention_layer", (100, "ALLREDUCE", 16 * MIB), 80, 60)
PIPELINE = {"tp": 2, "pp": 2, "ga": 2, "all_gpus": 4}


def transfers(rows: list[str], options: WorkloadOptions = WorkloadOptions(), **header: int | float | None) -> set[int]:  # noqa: B008
    """How many bytes the transfers between stages have."""
    program = lowered(rows, options, **(PIPELINE | header))
    return {op.bytes for stage in (0, 1) for op in listed(program, stage) if op.axis == "pp" and op.bytes}


# What crosses a stage boundary


def test_a_gather_tells_what_each_rank_holds() -> None:
    """Sequence parallelism: each of tp ranks holds a part of what the column gathers."""
    rows = [EMBEDDING, COLUMN] * 2
    assert transfers(rows) == {8 * MIB}
    assert transfers(rows, tp=8, all_gpus=16) == {2 * MIB}
    assert messages(lowered(rows, **PIPELINE), "pp_comm") == [
        "note job.txt:4: no pp_comm in the header: 8.00 MiB derived from attention_column"
    ]


def test_a_scatter_tells_the_same() -> None:
    rows = [EMBEDDING, row("attention_row", (100, "REDUCESCATTER", 16 * MIB))] * 2
    assert transfers(rows) == {8 * MIB}


def test_an_all_reduce_leaves_all_of_it_on_each_rank() -> None:
    assert transfers([EMBEDDING, REDUCED] * 2) == {16 * MIB}


def test_the_first_row_that_tells_decides() -> None:
    experts = row("mlp_moelayer", (1, "ALLTOALL_EP", 3 * MIB))
    assert transfers([EMBEDDING, LAYER, experts, COLUMN] * 2) == {8 * MIB}


def test_pp_comm_of_zero_is_derived_too() -> None:
    rows = [EMBEDDING, COLUMN] * 2
    assert transfers(rows, pp_comm=0) == {8 * MIB}
    assert messages(lowered(rows, **PIPELINE, pp_comm=0), "pp_comm") == [
        "note job.txt:4: pp_comm is 0 in the header: 8.00 MiB derived from attention_column"
    ]


def test_pp_comm_as_written() -> None:
    rows = [EMBEDDING, COLUMN] * 2
    assert transfers(rows, pp_comm=8388608.0) == {8 * MIB}
    assert messages(lowered(rows, **PIPELINE, pp_comm=8 * MIB), "pp_comm") == []


def test_pp_comm_that_no_row_implies() -> None:
    rows = [EMBEDDING, COLUMN] * 2
    assert transfers(rows, pp_comm=24 * MIB) == {24 * MIB}
    assert messages(lowered(rows, **PIPELINE, pp_comm=24 * MIB), "pp_comm") == [
        "warning job.txt:1: pp_comm is 24.0 MiB, 3 times the 8.00 MiB that attention_column (line 4) implies; "
        "taken as written"
    ]


def test_pp_comm_that_no_row_tells() -> None:
    rows = [EMBEDDING, LAYER] * 2
    assert transfers(rows, pp_comm=4096) == {4096}
    for written, missing in ((None, "no pp_comm"), (0, "pp_comm is 0")):
        with pytest.raises(InputError, match=f"^job.txt:1: {missing} in the header, and no row tells") as refused:
            lowered(rows, **PIPELINE, pp_comm=written)
        assert "--pp-comm" in str(refused.value.hint)


def test_the_user_decides_before_the_file() -> None:
    asked = WorkloadOptions(pp_comm_bytes=777)
    for pp_comm in (None, 0, 4096):
        assert transfers([EMBEDDING, LAYER] * 2, asked, pp_comm=pp_comm) == {777}
    assert transfers([EMBEDDING, LAYER] * 2, WorkloadOptions(pp_comm_bytes=0)) == set()


def test_one_stage_sends_nothing() -> None:
    program = lowered([EMBEDDING, LAYER], pp=1)
    assert [op for op in listed(program) if op.axis] == []
    assert messages(program, "pp_comm") == []


# vpp


@pytest.mark.parametrize(
    ("vpp", "asked", "chunks", "says"),
    [
        (None, "auto", 1, "note job.txt:1: no vpp in the header, by which SimAI divides: 1 chunk per stage taken"),
        (1, "auto", 1, None),
        (0, "auto", 1, "warning job.txt:1: vpp: 0 cannot be meant; simulated as 1"),
        (
            4,
            "auto",
            1,
            "note job.txt:1: vpp 4 read as layers per stage, not chunks: "
            "the list has 4 layers per stage, which AICB writes there",
        ),
        (2, "auto", 2, "note job.txt:1: vpp 2 read as chunks per stage (4 layers)"),
        (
            3,
            "auto",
            1,
            "warning job.txt:1: vpp 3 is neither the 4 layers per stage nor divides them: ignored",
        ),
        (2, "layers", 1, "note job.txt:1: vpp 2 read as layers per stage, not chunks: as asked"),
        (4, "chunks", 4, None),
        (2, 4, 4, None),
        (4, 2, 2, None),
        (2, 1, 1, None),
        (None, 2, 2, None),
    ],
)
def test_readings_of_vpp(vpp: int | None, asked: str | int, chunks: int, says: str | None) -> None:
    rows = [EMBEDDING, *[LAYER] * 4] * 2
    program = lowered(rows, WorkloadOptions(vpp=asked), **PIPELINE, pp_comm=4096, vpp=vpp)  # type: ignore[arg-type]
    name = "interleaved-1f1b, 2 microbatches, " if chunks > 1 else "1f1b, 2 microbatches"
    assert program.title == f"job.txt · {name}{f'{chunks} chunks' if chunks > 1 else ''}"
    assert {op.chunk for op in listed(program) if op.phase == "forward"} == set(range(chunks))
    assert messages(program, "vpp") == ([] if says is None else [says])


def test_one_stage_has_no_use_for_vpp() -> None:
    program = lowered([EMBEDDING, *[LAYER] * 4], vpp=2)
    assert program.title == "job.txt · 1f1b, 1 microbatch"
    assert messages(program, "vpp") == []


def test_more_chunks_than_layers() -> None:
    with pytest.raises(InputError, match=r"^job\.txt:1: 4 chunks are more than the 2 layers of a stage"):
        lowered([EMBEDDING, LAYER, LAYER] * 2, WorkloadOptions(vpp=4), **PIPELINE, pp_comm=4096)


def test_chunks_of_a_truncated_microbatch() -> None:
    rows = [EMBEDDING, *[LAYER] * 4, EMBEDDING, LAYER]
    with pytest.raises(InputError, match=r"^job\.txt:8: microbatch 1 has 1 layer per stage, too few for 2 chunks"):
        lowered(rows, WorkloadOptions(vpp=2), **PIPELINE, pp_comm=4096)


def test_interleaving_needs_whole_groups_of_microbatches() -> None:
    with pytest.raises(InputError, match=r"^job\.txt:1: interleaved-1f1b needs microbatches to be a multiple of its 2"):
        lowered([EMBEDDING, LAYER, LAYER] * 3, WorkloadOptions(vpp=2), **PIPELINE | {"ga": 3}, pp_comm=4096)


@pytest.mark.parametrize(
    ("asked", "name"),
    [("zb-h1", "zb-h1"), ("ZB_H1", "zb-h1"), ("gpipe", "gpipe"), ("interleaved", "interleaved-1f1b"), ("zb-v", "zb-v")],
)
def test_a_schedule_as_asked(asked: str, name: str) -> None:
    rows = [EMBEDDING, LAYER, LAYER] * 4
    program = lowered(rows, WorkloadOptions(schedule=asked), **PIPELINE | {"ga": 4}, pp_comm=4096)
    assert program.title.split(" · ")[1].split(",")[0] == name
    assert messages(program, "no schedule") == []


def test_an_unknown_schedule() -> None:
    with pytest.raises(InputError, match=r'^job\.txt:1: schedule "1f1" is not known; did you mean 1f1b\?'):
        lowered([EMBEDDING, LAYER], WorkloadOptions(schedule="1f1"))


# Ranks


def test_other_gpus_than_the_header_change_dp() -> None:
    rows = [EMBEDDING, COLUMN] * 2
    program = lowered(rows, WorkloadOptions(gpus=32), **PIPELINE)
    assert (program.world, str(program.mesh)) == (32, "tp=2,dp=8,pp=2")
    (said,) = messages(program, "GPUs as asked")
    assert said.startswith("note job.txt:1: 32 GPUs as asked, 4 in the header: dp 8, and 8 times the tokens")
    assert messages(lowered(rows, WorkloadOptions(gpus=4), **PIPELINE), "GPUs as asked") == []
    assert lowered(rows, WorkloadOptions(gpus=8), **PIPELINE | {"all_gpus": None}).world == 8


def test_no_gpus_at_all() -> None:
    with pytest.raises(InputError, match=r"^job\.txt:1: the header has no all_gpus") as refused:
        lowered([LAYER], all_gpus=None)
    assert "--gpus" in str(refused.value.hint)


@pytest.mark.parametrize(("gpus", "fitting"), [(6, 4), (3, 4), (11, 8)])
def test_a_world_that_tp_and_pp_do_not_divide(gpus: int, fitting: int) -> None:
    for options, header in ((WorkloadOptions(gpus=gpus), 8), (WorkloadOptions(), gpus)):
        with pytest.raises(InputError, match=rf"^job\.txt:1: {gpus} GPUs cannot be divided into tp 2 × pp 2 = 4") as no:
            lowered([EMBEDDING, COLUMN] * 2, options, **PIPELINE | {"all_gpus": header})
        assert f"--gpus {fitting}" in str(no.value.hint)


def test_ep_that_does_not_divide_dp() -> None:
    with pytest.raises(InputError, match=r"^job\.txt:1: ep 3 does not divide dp 4, which is 8 GPUs / tp 2 / pp 1"):
        lowered([EMBEDDING, COLUMN], tp=2, ep=3, all_gpus=8)


def test_a_header_of_the_first_version() -> None:
    """July 2024: nothing but tp; the user says how many GPUs."""
    rows = [row("attention_layer", (100, "ALLREDUCE", MIB), 80, 60)] * 2
    program = lowered(rows, WorkloadOptions(gpus=8), tp=4, ep=None, pp=None, ga=None, all_gpus=None)
    assert (str(program.mesh), program.world) == ("tp=4,dp=2", 8)


# Microbatches and tokens


def test_microbatches_as_asked_take_the_list_in_turn() -> None:
    rows = [EMBEDDING, LAYER, EMBEDDING, row("attention_layer", 200)]
    program = lowered(rows, WorkloadOptions(microbatches=5), ga=2)
    forward = [op.seconds for op in listed(program) if op.phase == "forward" and op.name == "attention_layer"]
    assert forward == pytest.approx([1e-7, 2e-7, 1e-7, 2e-7, 1e-7])
    assert messages(program, "as asked") == ["note job.txt:1: 5 microbatches as asked; the list holds 2, taken in turn"]
    assert messages(lowered(rows, WorkloadOptions(microbatches=2), ga=2), "as asked") == []


@pytest.mark.parametrize(("dp", "microbatches", "tokens"), [(1, 2, 2 * 4096), (4, 2, 8 * 4096), (2, 6, 12 * 4096)])
def test_tokens_from_the_loss(dp: int, microbatches: int, tokens: int) -> None:
    """One fp32 number for each token of a microbatch: 16,384 bytes are 4,096 tokens."""
    loss = [row(f"cross_entropy{number}", (0, "ALLREDUCE", 16384)) for number in (1, 2, 3)]
    rows = [*[EMBEDDING, LAYER] * 2, *loss]
    program = lowered(rows, WorkloadOptions(microbatches=microbatches), tp=2, ga=2, all_gpus=2 * dp)
    assert program.tokens_per_step == tokens


@pytest.mark.parametrize("loss", [[], [row("cross_entropy1", 5)], [row("cross_entropy1", (0, "ALLREDUCE", 6))]])
def test_no_tokens_without_a_loss_that_tells(loss: list[str]) -> None:
    assert lowered([EMBEDDING, LAYER, *loss], tp=2, all_gpus=2).tokens_per_step is None


def test_tokens_per_second() -> None:
    rows = [row("attention_layer", 500_000, 250_000, 250_000), row("cross_entropy1", (0, "ALLREDUCE", 4000))]
    answer = run(rows, tp=1, all_gpus=1)
    assert answer.step_time_s == pytest.approx(1e-3)
    assert answer.tokens_per_s_per_gpu == pytest.approx(1e6)


# What is said


def test_every_choice_is_said_once() -> None:
    rows = [EMBEDDING, *[COLUMN] * 4, EMBEDDING, COLUMN, row("cross_entropy1", (0, "ALLREDUCE", 16384))]
    program = lowered(rows, WorkloadOptions(gpus=8, overlap=parse_overlap("dp")), **PIPELINE | {"ga": 3}, vpp=3)
    texts = [one.message for one in program.diagnostics]
    assert [text for text, count in Counter(texts).items() if count > 1] == []
    expected = [
        "the loss is listed once for 2 microbatches",
        "the header says ga 3, the list holds 2 microbatches",
        "microbatch 1 is cut short",
        "8 GPUs as asked, 4 in the header",
        "vpp 3 is neither",
        "no schedule in the file: 1f1b taken",
        "no pp_comm in the header: 8.00 MiB derived",
        "grad, param overlapped with computation",
    ]
    for words in expected:
        assert sum(words in text for text in texts) == 1, words


def test_what_is_said_has_a_line() -> None:
    """But for what no line says: the options that are the user's alone."""
    rows = [EMBEDDING, *[COLUMN] * 4, EMBEDDING, COLUMN, row("cross_entropy1", (0, "ALLREDUCE", 16384))]
    program = lowered(rows, **PIPELINE, vpp=3)
    nowhere = [one.message for one in program.diagnostics if one.where is None]
    assert all("choose with --" in text for text in nowhere), nowhere
    assert all((one.where or "job.txt:1").startswith("job.txt:") for one in program.diagnostics)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("none", set()),
        ("", set()),
        ("grad", {Overlap.GRAD}),
        ("dp", {Overlap.GRAD, Overlap.PARAM}),
        ("pp, TP", {Overlap.PP, Overlap.TP}),
        ("dp tp", {Overlap.GRAD, Overlap.PARAM, Overlap.TP}),
        ("all", set(Overlap)),
    ],
)
def test_overlap_as_people_type_it(text: str, chosen: set[Overlap]) -> None:
    assert parse_overlap(text) == chosen


def test_an_overlap_that_is_not_known() -> None:
    with pytest.raises(InputError, match=r'^--overlap: overlap "grads" is not known; did you mean grad\?'):
        parse_overlap("pp,grads", "--overlap")


def test_a_file_cut_short() -> None:
    with pytest.raises(InputError, match=r"^job\.txt:2: 9 rows declared, 2 found: the file is cut short") as refused:
        lowered([EMBEDDING, LAYER], declared=9)
    assert "write 2 there" in str(refused.value.hint)


def test_lines_are_counted_with_blank_ones() -> None:
    blanks = "\n\n" + text([EMBEDDING, COLUMN], declared=9, tp=2, all_gpus=2).replace("\n9\n", "\n\n9\n")
    with pytest.raises(InputError, match=r"^job\.txt:5: 9 rows declared, 2 found"):
        lower_workload(parse_workload(blanks.encode(), "job.txt"))
    fewer = blanks.replace("\n9\n", "\n2\n")
    with pytest.raises(InputError, match=r"^job\.txt:3: 7 GPUs cannot be divided into tp 2"):
        lower_workload(parse_workload(fewer.encode(), "job.txt"), WorkloadOptions(gpus=7))
