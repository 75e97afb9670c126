"""What SimAI's formulas do at their edges, with figures worked out by hand from its source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.compat.simai import RatioTable, RatioTables, end_to_end_csv, figures, run_name
from foretrace.compat.simai.load import load_rows
from foretrace.compat.simai.machine import f32, scaled, tick
from foretrace.compat.simai.times import CollectiveTimes, GroupSpread
from foretrace.compat.simai.totals import report
from foretrace.inputs.aicb.format import Pass, Workload
from unit.compat.simai.cases import NOTHING, row, simai, workload

MIB, GIB = 1 << 20, 1 << 30
FLAT = RatioTable((16.0 * MIB, 16.0 * GIB), ((1.0,) * 9, (1.0,) * 9))
FULL = RatioTables(FLAT, FLAT, FLAT)
"""Tables in which every size reaches all of the bandwidth."""


def times(**changed: int) -> CollectiveTimes:
    sizes = {"tp": 8, "ep": 1, "dp": 16, "gpus_per_server": 8, "nics_per_server": 8} | changed
    return CollectiveTimes(**sizes, nvlink_gb_per_s=370.8, nic_gb_per_s=48.5, tables=FULL)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "group", "ranks", "spread"),
    [
        ({"tp": 8}, "TP", 8, GroupSpread(1, 8, 8)),
        ({"tp": 16}, "TP", 16, GroupSpread(2, 8, 8)),
        ({"tp": 12}, "TP", 12, GroupSpread(1, 8, 8)),
        ({"tp": 2}, "EP", 4, GroupSpread(1, 4, 8)),
        ({"tp": 2}, "EP", 8, GroupSpread(2, 4, 4)),
        ({"tp": 8}, "EP", 4, GroupSpread(4, 1, 1)),
        ({"tp": 16}, "EP", 4, GroupSpread(8, 1, 1)),
        ({"tp": 5}, "EP", 2, GroupSpread(1, 1, 1)),
        ({"tp": 2}, "DP", 4, GroupSpread(4, 4, 4)),
        ({"tp": 16}, "DP", 4, GroupSpread(4, 1, 1)),
        ({"tp": 2, "ep": 2}, "DP_EP", 4, GroupSpread(4, 2, 2)),
        ({"tp": 8, "ep": 2}, "DP_EP", 4, GroupSpread(4, 1, 1)),
        ({}, "DP", 1, None),
        ({}, "EP", 1, None),
        ({}, "NONE", 8, None),
    ],
)
def test_where_groups_stand(changed: dict[str, int], group: str, ranks: int, spread: GroupSpread | None) -> None:
    assert times(**changed).spread(group, ranks) == spread  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "spread", "gb_per_s", "nvlink"),
    [
        ("ALLGATHER", GroupSpread(1, 8, 8), 370.8, False),
        ("ALLGATHER", GroupSpread(2, 1, 3), 145.5, False),
        ("ALLGATHER", GroupSpread(2, 8, 4), 194.0, False),
        ("ALLGATHER", GroupSpread(2, 8, 8), 388.0, False),  # 370.8 × 8/7 is more
        ("ALLGATHER", GroupSpread(2, 8, 16), 370.8 * 8 / 7, True),
        ("ALLTOALL", GroupSpread(1, 8, 8), 370.8, True),
        ("ALLTOALL", GroupSpread(16, 8, 8), 48.5 * 127 / 120, False),
        ("ALLREDUCE", GroupSpread(1, 1, 8), 0.0, False),
        ("ALLREDUCE", GroupSpread(4, 2, 0), -1.0, False),
    ],
)
def test_bus_bandwidth(kind: str, spread: GroupSpread, gb_per_s: float, nvlink: bool) -> None:
    got = times().bus_bandwidth(kind, spread)  # type: ignore[arg-type]
    assert (got.gb_per_s, got.nvlink_bound) == (pytest.approx(gb_per_s, rel=1e-6), nvlink)


def test_a_tp_group_of_one_costs_half_of_all_time() -> None:
    """No bandwidth times no share of it is NaN, which the cast makes 2^63 ns."""
    assert times(tp=1).time_ns("ALLGATHER", "TP", 1, MIB) == 1 << 63
    assert times(tp=1).time_ns("ALLGATHER", "TP", 1, 0) == 1 << 63
    assert times(tp=1).time_ns("ALLGATHER", "TP", 1, MIB - 1) == 0


def test_a_group_over_one_gpu_of_one_node_is_free() -> None:
    """Without bandwidth the time is infinite, which the cast makes 0."""
    assert times(tp=5).time_ns("ALLTOALL", "EP", 2, MIB) == 0


def test_casts_are_those_of_x86() -> None:
    assert tick(float("nan")) == 1 << 63
    assert tick(float("inf")) == 0
    assert tick(-1.5) == 2**64 - 1
    assert tick(2.0**63 + 2048) == 2**63 + 2048
    assert scaled(2**64 - 1000, 1.0) == 0
    assert scaled(16_777_217, 1.0) == 16_777_216
    assert f32(0.3) == 0.30000001192092896


def test_times_and_sizes_have_the_24_bits_of_a_float() -> None:
    (one,) = load_rows(workload(row(Pass(16_777_217, "ALLGATHER", 6_401_032_193))))
    assert (one.work.forward.compute_ns, one.work.forward.size_bytes) == (16_777_216, 6_401_032_192)


def test_small_forward_sizes_are_raised_only_by_the_policy_that_does() -> None:
    small = row(Pass(0, "ALLREDUCE", 1), Pass(0, "ALLREDUCE", 1))
    (one,) = load_rows(workload(small))
    assert (one.work.forward.size_bytes, one.work.input_grad.size_bytes) == (4096, 1)
    (other,) = load_rows(workload(small, policy="HYBRID_TRANSFORMER"))
    assert other.work.forward.size_bytes == 1


def test_a_suffix_that_does_not_fit_the_pass_is_sized_by_the_pass() -> None:
    """`_DP_EP` in the forward pass has TP ranks, `_EP` in the weight-grad pass DP ranks."""
    case = workload(row(Pass(0, "ALLREDUCE_DP_EP", 8), NOTHING, Pass(0, "ALLREDUCE_EP", 8)), tp=2, ep=4)
    (one,) = report(case, simai("-g_type H100", gpus=64), FULL).rows
    assert (one.work.forward.ranks, one.work.weight_grad.ranks) == (2, 32)


def test_embedding_is_left_out_of_the_bubble_by_its_exact_name() -> None:
    rows = [row(Pass(1000, "NONE", 0), name=name) for name in ("embedding_layer", "embedding_layer_2", "x")]
    answer = figures(workload(*rows, pp=3), simai("-g_type H100"), FULL)
    assert (answer.compute_us, answer.bubble_us) == (3.0, 4.0)


def test_a_data_parallel_size_of_zero_prints_what_division_by_it_gives() -> None:
    case = workload(row(weight_grad=Pass(0, "ALLGATHER", 4 * MIB)), tp=8, pp=4)
    text = end_to_end_csv(case, simai("-g_type H100 -r x", gpus=8), FULL)
    assert text.splitlines()[-1] == "layer,Analytical_test,0,0,0,0,0,0,0,-nan,0.00,0,inf,-inf,0,-nan,0.00"


def test_percentages_of_nothing_are_not_numbers() -> None:
    text = end_to_end_csv(workload(row()), simai("-g_type H100 -r a/run-"), FULL)
    assert text.splitlines()[1] == "run-, " + "0 (-nan%), " * 8 + "0"


def test_one_stage_without_vpp_has_no_total_at_all() -> None:
    text = end_to_end_csv(workload(row(Pass(1000, "NONE", 0)), vpp=None), simai("-g_type H100 -r x"), FULL)
    summary = text.splitlines()[1]
    assert summary.startswith("x, 0 (-nan%)")
    assert summary.endswith("NaN or Inf (-nan%), 1 (-nan%), 0 (-nan%), NaN or Inf")


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (workload(row(), tp=None), "small.txt:1: SimAI divides by model_parallel_NPU_group, which is missing"),
        (workload(row(), pp=0), "small.txt:1: SimAI divides by pp, which is 0"),
        (workload(row(weight_grad=Pass(0, "ALLREDUCE_DP_EP", 8)), ep=None), "SimAI divides by ep, which is missing"),
        (workload(row(), policy="MICRO"), "no parallel sizes from a MICRO header"),
        (workload(row(), pp_comm_bytes=1 << 31), "cannot read a pp_comm of 2 GiB"),
        (workload(row(), declared=0), "without rows"),
    ],
)
def test_where_simai_crashes_there_are_no_figures(case: Workload, reason: str) -> None:
    answer = figures(case, simai("-g_type H100"), FULL)
    assert reason in (answer.failure or "")
    assert answer.total_us is None
    assert end_to_end_csv(case, simai("-g_type H100"), FULL) == ""


def test_a_throw_keeps_the_rows_before_it() -> None:
    large = row(Pass(0, "ALLGATHER", 17 * GIB))
    flags = simai("-g_type H100 -r x")
    assert end_to_end_csv(workload(large, row(), tp=8), flags, FULL) == ""
    lines = end_to_end_csv(workload(row(), large, tp=8), flags, FULL).splitlines()
    assert [line.split(",")[0] for line in lines] == ["layer_name", "layer"]


def test_rows_declared_too_many_repeat_the_numbers_of_the_last() -> None:
    case = workload(row(Pass(3000, "ALLREDUCE", 8192), name="last"), declared=3, tp=8)
    first, *more = load_rows(case)
    assert [one.name for one in (first, *more)] == ["last", "", ""]
    assert {(one.work.forward.compute_ns, one.work.forward.kind) for one in more} == {(3000, "NONE")}
    assert figures(case, simai("-g_type H100"), FULL).compute_us == 9.0


def test_a_fraction_ends_the_reading() -> None:
    broken = row(Pass(5, "ALLREDUCE", 4096.5), Pass(6, "ALLREDUCE", 8), name="broken")
    rows = load_rows(workload(row(Pass(1, "NONE", 0), Pass(2, "NONE", 0)), broken, row(name="lost"), tp=8))
    assert [one.name for one in rows] == ["layer", "broken", ""]
    assert rows[1].work.forward.size_bytes == 4096
    assert rows[1].work.input_grad.compute_ns == 0
    assert {one.work.input_grad.kind for one in rows} == {"NONE"}


@pytest.mark.parametrize(
    ("path", "flags", "name"),
    [
        ("w.txt", "-r out/x-", "x-"),
        ("w.txt", "", "w-"),
        (
            "dir/gpt_13B-world_size128-tp8-pp2-ep1-gbs512-mbs1-seq2048.txt",
            "-nic 48.5 -dp_o .25",
            "gpt_13B-tp8-pp2-dp8-ga64-ep1-NVL8-388.0G-DP0.2-",
        ),
        ("m-world_size16-tp8-pp2.txt", "", "m-tp8-pp2-dp1-ga-2147483648-ep0-NVL8--8.0G-DP0.0-"),
    ],
)
def test_what_a_run_is_called(path: str, flags: str, name: str) -> None:
    case = Workload(workload(row()).header, 1, (row(),), path)
    assert run_name(case, simai(f"-g_type H100 {flags}")) == name


@pytest.mark.parametrize(
    ("name", "cell"),
    [("a,b", '"a,b"'), ('a"b,', '"a""b,"'), ("=cmd|x", "'=cmd|x"), ("@x,y", '"\'@x,y"'), ("mlp", "mlp")],
)
def test_names_stay_one_cell(name: str, cell: str) -> None:
    case = workload(replace(row(Pass(1000, "NONE", 0)), name=name))
    text = end_to_end_csv(case, simai("-g_type H100 -r x"), FULL)
    assert text.splitlines()[-1].startswith(f"{cell},Analytical_test,")
