"""SimAI's defects one by one: the trap, that it is found, and what mending it does."""

from __future__ import annotations

import pytest

from foretrace.compat.simai import Defect, RatioTables, SimaiFlags, explain, figures, load_tables, remainder
from foretrace.compat.simai.totals import report
from foretrace.inputs.aicb.format import Pass, Workload, WorkloadRow, read_workload
from shared_files import shared
from unit.compat.simai.cases import NOTHING, row, simai, workload

MIB, GIB = 1 << 20, 1 << 30
H100 = simai("-g_type H100")


@pytest.fixture(scope="module")
def tables() -> RatioTables:
    return load_tables(shared("data", "simai"))


def forward(collective: str, size_bytes: int) -> WorkloadRow:
    return row(Pass(0, collective, size_bytes))


def found(name: str, case: Workload, flags: SimaiFlags, tables: RatioTables) -> Defect | None:
    return {one.id: one for one in explain(case, flags, tables)}.get(name)


def forward_us(case: Workload, flags: SimaiFlags, tables: RatioTables, *mended: str) -> float:
    """Time of the first row's forward collective."""
    return report(case, flags, tables, frozenset(mended)).rows[0].work.forward.time_ns / 1000


def effect(name: str, case: Workload, flags: SimaiFlags, tables: RatioTables) -> float:
    defect = found(name, case, flags, tables)
    assert defect is not None
    assert defect.effect_us is not None
    return defect.effect_us


def test_b1_transfers_get_a_bandwidth(tables: RatioTables) -> None:
    case = workload(row(Pass(1000, "NONE", 0)), tp=8, pp=4, ga=16, pp_comm_bytes=50_331_648)
    half = simai("-g_type H100 -pp_o .5")
    assert figures(case, H100, tables).pp_us == 0.0
    assert figures(case, simai("-g_type H100 -pp_o 0"), tables).pp_us == 0.0
    assert figures(case, half, tables).pp_us == 1_500_000.0
    all_us = 2 * 16 * 50_331_648 / GIB / 48.5 * 1e6
    assert effect("B1", case, H100, tables) == pytest.approx(all_us, abs=1)
    assert effect("B1", case, half, tables) == pytest.approx(all_us / 2 - 1_500_000, abs=1)
    assert found("B1", workload(row(), pp=4), H100, tables) is None


def test_b2_a_missing_vpp_is_one(tables: RatioTables) -> None:
    case = workload(row(Pass(1000, "NONE", 0)), pp=2, vpp=None)
    assert figures(case, H100, tables).total_us is None
    defect = found("B2", case, H100, tables)
    assert defect == Defect("B2", defect.title, "small.txt:1: no vpp", None, 2.0) if defect else False


def test_b3_layers_are_not_chunks(tables: RatioTables) -> None:
    rows = [row(name="embedding_layer"), *(row(Pass(1000, "NONE", 0), name="attention_column") for _ in range(8))]
    assert effect("B3", workload(*rows, *rows, pp=2, vpp=8, ga=2), H100, tables) == 8.0 - 1.0
    assert found("B3", workload(*rows, *rows, pp=2, vpp=4, ga=2), H100, tables) is None


def test_b4_more_bytes_take_more_time(tables: RatioTables) -> None:
    below, at = workload(forward("ALLGATHER", MIB - 1), tp=8), workload(forward("ALLGATHER", MIB), tp=8)
    assert forward_us(below, H100, tables) == 15.0
    assert forward_us(at, H100, tables) == pytest.approx(4, abs=0.5)
    assert forward_us(below, H100, tables, "B4") == forward_us(at, H100, tables, "B4") == 15.0
    assert effect("B4", at, H100, tables) == pytest.approx(11, abs=0.5)


def test_b5_every_group_has_a_latency(tables: RatioTables) -> None:
    case = workload(forward("ALLTOALL_EP", 512 * 1024), ep=256)
    flags = simai("-g_type H100", gpus=256)
    assert forward_us(case, flags, tables) == 0.0
    assert effect("B5", case, flags, tables) == 440.0
    assert forward_us(workload(forward("ALLREDUCE", 8192), tp=3), flags, tables, "B5") == pytest.approx(11.17)
    assert forward_us(workload(forward("ALLREDUCE", 8192), tp=8), flags, tables, "B5") == 15.0


def test_b6_bigger_is_not_faster(tables: RatioTables) -> None:
    flags = simai("-g_type H100", gpus=256)
    of_128, of_256 = (workload(forward("ALLTOALL_EP", 64 * MIB), ep=ep) for ep in (128, 256))
    assert forward_us(of_128, flags, tables) == pytest.approx(1647, abs=0.5)
    assert forward_us(of_256, flags, tables) == pytest.approx(1248, abs=0.5)
    assert effect("B6", of_256, flags, tables) == pytest.approx(1248 / (0.66 / 0.9) - 1248, abs=1)
    assert found("B6", of_128, flags, tables) is None


def test_b7_a_server_has_nvlink(tables: RatioTables) -> None:
    case = workload(row(weight_grad=Pass(0, "ALLGATHER", GIB)), tp=2)
    flags = simai("-g_type H100", gpus=8)
    time_us = 0.75e6 / 194
    assert figures(case, flags, tables).dp_us == pytest.approx(time_us, abs=1)
    assert effect("B7", case, flags, tables) == pytest.approx(0.75e6 / 370.8 - time_us, abs=1)
    assert found("B7", case, H100, tables) is None


def test_b8_nics_are_shared(tables: RatioTables) -> None:
    case = workload(forward("ALLTOALL_EP", 64 * MIB), tp=8, ep=4, pp=2)
    few = simai("-g_type H100 -n_p_s 4")
    assert (figures(case, few, tables).total_us or 0) > 1e16
    assert forward_us(case, few, tables, "B8") == pytest.approx(2 * forward_us(case, H100, tables), rel=1e-5)
    assert effect("B8", case, few, tables) < -1e16
    assert found("B8", case, H100, tables) is None


def test_b8_a_group_of_one_is_free(tables: RatioTables) -> None:
    case = workload(forward("ALLREDUCE", MIB), tp=1)
    assert effect("B8", case, H100, tables) == pytest.approx(-(2**63) / 1000)


def test_b9_large_sizes_are_full_bandwidth(tables: RatioTables) -> None:
    case = workload(row(Pass(1000, "NONE", 0)), forward("ALLGATHER", 32 * GIB), tp=8)
    answer = figures(case, H100, tables)
    assert answer.total_us is None
    assert (answer.failure or "").startswith("small.txt:4: ")
    defect = found("B9", case, H100, tables)
    assert defect is not None
    assert defect.effect_us is None
    assert defect.mended_total_us == pytest.approx(1 + 32e6 / 370.8 * 7 / 8, abs=1)


def test_b9_does_not_touch_data_parallelism(tables: RatioTables) -> None:
    case = workload(row(weight_grad=Pass(0, "ALLGATHER", 32 * GIB)), tp=8)
    assert figures(case, H100, tables).total_us is not None
    assert found("B9", case, H100, tables) is None


def test_b10_all_rows_count(tables: RatioTables) -> None:
    rows = [row(Pass(1000 * i, "NONE", 0), name=f"row{i}") for i in (1, 2, 3)]
    assert figures(workload(*rows, declared=1), H100, tables).compute_us == 1.0
    defect = found("B10", workload(*rows, declared=1), H100, tables)
    assert defect is not None
    assert defect.effect_us == 5.0
    assert "row2 at small.txt:4" in defect.touches
    assert effect("B10", workload(*rows, declared=4), H100, tables) == -3.0
    assert found("B10", workload(*rows), H100, tables) is None


def test_b10_a_fraction_loses_rows(tables: RatioTables) -> None:
    case = workload(row(Pass(1000, "NONE", 0)), row(Pass(1000, "NONE", 0.5)), row(Pass(7000, "NONE", 0)))
    defect = found("B10", case, H100, tables)
    assert defect is not None
    assert defect.touches == "small.txt:4: a number with a fraction ends SimAI's reading"
    assert defect.effect_us == 6.0


def test_b11_a_typo_is_the_collective_it_must_be(tables: RatioTables) -> None:
    typo, right = workload(forward("ALLGETHER", GIB), tp=8), workload(forward("ALLGATHER", GIB), tp=8)
    assert figures(typo, H100, tables).total_us == 0.0
    assert effect("B11", typo, H100, tables) == figures(right, H100, tables).total_us
    assert effect("B11", workload(forward("ALLREDUCE_TP", GIB), tp=8), H100, tables) > 0
    unknown = found("B11", workload(forward("BROADCAST", GIB), tp=8), H100, tables)
    assert unknown is not None
    assert (unknown.effect_us, unknown.touches) == (None, '"BROADCAST" at small.txt:3 (not known)')


def test_b12_bytes_are_divided_by_bytes(tables: RatioTables) -> None:
    case = workload(forward("ALLREDUCE", GIB), tp=8)
    time_us = forward_us(case, H100, tables)
    assert effect("B12", case, H100, tables) == pytest.approx(time_us * (GIB / 1e9 - 1), abs=0.01)


def test_b13_a_collective_is_of_its_own_group(tables: RatioTables) -> None:
    case = workload(row(NOTHING, Pass(0, "ALLTOALL_EP", 64 * MIB)), tp=2, ep=4)
    answer = figures(case, H100, tables)
    assert (answer.ep_us, (answer.tp_us or 0) > 100) == (0.0, True)
    assert effect("B13", case, H100, tables) == 0.0
    hidden = simai("-g_type H100 -ep_o .5")
    assert effect("B13", case, hidden, tables) == pytest.approx(-(answer.tp_us or 0) / 2)
    assert found("B13", workload(forward("ALLTOALL_EP", 64 * MIB), tp=2, ep=4), hidden, tables) is None


def test_b14_is_what_is_left() -> None:
    others = [Defect("B1", "", "", 30.0), Defect("B3", "", "", None), Defect("B12", "", "", -5.0)]
    assert remainder(others, 100.0, 150.0).effect_us == 25.0
    assert remainder(others, None, 150.0).effect_us is None


def test_what_touches_a_real_file(tables: RatioTables) -> None:
    moe = read_workload(shared("seeds", "002*.txt"))
    assert [one.id for one in explain(moe, H100, tables)] == ["B1", "B3", "B4", "B10", "B12"]
    llama = read_workload(shared("seeds", "004*.txt"))
    without_vpp = explain(llama, simai("-g_type H100", gpus=1024), tables)
    assert [one.id for one in without_vpp] == ["B2", "B12"]
    assert [one.effect_us for one in without_vpp] == [None, None]
    assert round(without_vpp[0].mended_total_us or 0) == 14_756_159


def test_nothing_is_explained_where_simai_crashes(tables: RatioTables) -> None:
    assert explain(workload(row(), pp=None), H100, tables) == []
