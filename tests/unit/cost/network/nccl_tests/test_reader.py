"""Reading measured collectives: logs and tables, what they say and what is odd about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.network.nccl_tests.reader import read_measurements
from foretrace.cost.network.nccl_tests.records import Measurements, MeasurementTable
from foretrace.program.columns import Collective
from shared_files import shared

US = 1e-6
HEAD = "#   size  count  type  redop  root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"


def table(of: Measurements, collective: Collective, gpus: int, nodes: int) -> MeasurementTable:
    """The one table of a kind of call."""
    (found,) = [one for one in of.tables if (one.collective, one.gpus, one.nodes) == (collective, gpus, nodes)]
    return found


def ranks(gpus: int, per_node: int) -> str:
    return "\n".join(
        f"#  Rank {rank:2} Group  0 Pid  {100 + rank} on host-{rank // per_node} device {rank % per_node:2} [0x00] H100"
        for rank in range(gpus)
    )


def log(rows: list[tuple[int, float, float, float]], gpus: int = 4, redop: str = "sum", root: str = "-1") -> str:
    """Rows of size, time, algorithm and bus bandwidth; the in-place time is another."""
    lines = [
        f"{size:12} {size // 4:12} float {redop:>6} {root:>7} {time:7} {alg:7} {bus:7}    0   1.23   4.56   7.89    0"
        for size, time, alg, bus in rows
    ]
    return "\n".join(
        ["# nThread 1 nGpus 1", "#", "# Using devices", ranks(gpus, 2), HEAD, *lines, "# Avg bus bandwidth : 1"]
    )


def read(folder: Path, name: str, text: str) -> Measurements:
    (folder / name).write_text(text, encoding="utf-8")
    return read_measurements(folder / name)


def refused(folder: Path, name: str, text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        read(folder, name, text)
    return caught.value


class TestLogs:
    def test_ranks_hosts_and_the_out_of_place_time(self, tmp_path: Path) -> None:
        found = read(tmp_path, "run.log", log([(1024, 20.5, 0.05, 0.075), (1 << 20, 60.0, 17.48, 26.21)]))
        (table,) = found.tables
        assert (table.collective, table.gpus, table.nodes) == (Collective.ALL_REDUCE, 4, 2)
        assert table.size_bytes.tolist() == [1024, 1 << 20]
        assert table.time_s.tolist() == pytest.approx([20.5 * US, 60 * US], rel=1e-12)
        assert found.rows[0].where == f"{tmp_path / 'run.log'}:9"
        assert found.diagnostics == ()

    @pytest.mark.parametrize(
        ("redop", "root", "ratio", "what"),
        [
            ("sum", "-1", 1.5, Collective.ALL_REDUCE),
            ("sum", "-1", 0.75, Collective.REDUCE_SCATTER),
            ("sum", "0", 1.0, Collective.REDUCE),
            ("none", "0", 1.0, Collective.BROADCAST),
            ("none", "-1", 1.0, Collective.TRANSFER),
        ],
    )
    def test_columns_and_bus_bandwidth_tell_the_collective(
        self, tmp_path: Path, redop: str, root: str, ratio: float, what: Collective
    ) -> None:
        text = log([(1 << 20, 60.0, 20.0, 20.0 * ratio)], redop=redop, root=root)
        assert read(tmp_path, "run.log", text).tables[0].collective is what

    def test_what_columns_cannot_tell_is_asked_for(self, tmp_path: Path) -> None:
        text = log([(1 << 20, 60.0, 20.0, 15.0)], redop="none")
        error = refused(tmp_path, "run.log", text)
        assert error.code == "missing-field" and error.where == f"{tmp_path / 'run.log'}:9"
        assert read(tmp_path, "alltoall.log", text).tables[0].collective is Collective.ALL_TO_ALL
        named = "# Collective test starting: all_gather_perf\n" + text
        assert read(tmp_path, "named.log", named).tables[0].collective is Collective.ALL_GATHER

    def test_several_tests_in_one_log(self, tmp_path: Path) -> None:
        text = "\n".join(
            [
                "mpirun ./all_gather_perf -b 1M",
                log([(1 << 20, 60.0, 20.0, 15.0)], redop="none"),
                "mpirun ./alltoall_perf -b 1M",
                log([(1 << 20, 70.0, 20.0, 17.5)], gpus=8, redop="none"),
            ]
        )
        found = {(one.collective, one.gpus, one.nodes) for one in read(tmp_path, "both.log", text).tables}
        assert found == {(Collective.ALL_GATHER, 4, 2), (Collective.ALL_TO_ALL, 8, 4)}

    def test_tags_of_mpirun_before_and_within_lines(self, tmp_path: Path) -> None:
        plain = log([(1024, 20.5, 0.05, 0.075)])
        tagged = "\n".join(f"[1,0]<stdout>:{line}" for line in plain.splitlines())
        broken = tagged.replace("on host-1", "on ho[1,0]<stdout>:st-1", 1)
        (table,) = read(tmp_path, "run.log", broken).tables
        assert (table.gpus, table.nodes, table.time_s.tolist()) == (4, 2, [pytest.approx(20.5 * US)])

    def test_a_row_cut_short_is_refused_with_its_line(self, tmp_path: Path) -> None:
        text = log([(1024, 20.5, 0.05, 0.075)]).replace("# Avg", "  2048  512  float\n# Avg")
        error = refused(tmp_path, "run.log", text)
        assert error.where == f"{tmp_path / 'run.log'}:10"

    @pytest.mark.parametrize("time", ["nan", "-3", "0", "fast"])
    def test_a_time_that_is_none_is_refused(self, tmp_path: Path, time: str) -> None:
        error = refused(tmp_path, "run.log", log([(1024, 20.5, 0.05, 0.075)]).replace("20.5", time))
        assert error.where == f"{tmp_path / 'run.log'}:9" and "time" in error.message

    def test_without_ranks_the_name_says_them(self, tmp_path: Path) -> None:
        text = "\n".join(line for line in log([(1024, 20.5, 0.05, 0.09)]).splitlines() if "Rank" not in line)
        assert "how many GPUs" in refused(tmp_path, "run.log", text).message
        (table,) = read(tmp_path, "all_reduce_16gpu_2node.log", text).tables
        assert (table.gpus, table.nodes) == (16, 2)

    @pytest.mark.parametrize("kept", [lambda rank: rank != 3, lambda rank: rank != 1])
    def test_a_missing_line_of_a_rank_is_refused(self, tmp_path: Path, kept: Callable[[int], bool]) -> None:
        lines = log([(1 << 20, 60.0, 17.48, 26.21)]).splitlines()
        ranks = [line for line in lines if "Rank" not in line or kept(int(line.split()[2]))]
        assert refused(tmp_path, "all_reduce.log", "\n".join(ranks)).code == "conflicting-values"

    def test_gpus_of_a_process_divide_the_ranks(self, tmp_path: Path) -> None:
        text = log([(1 << 20, 60.0, 0.0, 0.0)], gpus=6).replace("nGpus 1", "nGpus 4")
        assert refused(tmp_path, "all_reduce.log", text).code == "conflicting-values"

    def test_wrong_results_are_left_out_and_said(self, tmp_path: Path) -> None:
        text = log([(1024, 20.5, 0.05, 0.075), (1 << 20, 60.0, 17.48, 26.21)]).replace("26.21    0", "26.21  512")
        found = read(tmp_path, "run.log", text)
        assert [row.size_bytes for row in found.rows] == [1024]
        assert [(note.level, note.code) for note in found.diagnostics] == [("warning", "rows-skipped")]

    def test_a_time_in_another_unit_is_said(self, tmp_path: Path) -> None:
        found = read(tmp_path, "run.log", log([(1 << 20, 60000.0, 17.48, 26.21)]))
        assert [(note.level, note.code) for note in found.diagnostics] == [("warning", "conflicting-values")]

    def test_thousands_are_read_as_such(self, tmp_path: Path) -> None:
        found = read(tmp_path, "run.log", log([(1 << 20, 60.0, 17.48, 26.21)]).replace("1048576", "1,048,576"))
        assert [row.size_bytes for row in found.rows] == [1 << 20]

    def test_ranks_name_their_gpu(self, tmp_path: Path) -> None:
        text = log([(1 << 20, 60.0, 17.48, 26.21)])
        assert read(tmp_path, "run.log", text).rows[0].gpu == "H100"
        assert refused(tmp_path, "run.log", text.replace("H100", "A100", 1)).code == "other-gpu"

    @pytest.mark.parametrize("number", ["9" * 5000, "9" * 12, "-1"])
    def test_a_rank_that_cannot_be_meant(self, tmp_path: Path, number: str) -> None:
        text = log([(1 << 20, 60.0, 17.48, 26.21)]).replace("Rank  3", f"Rank {number}")
        assert refused(tmp_path, "all_reduce.log", text).code in ("out-of-range", "conflicting-values")


class TestTables:
    def test_rows_that_name_their_collective(self, tmp_path: Path) -> None:
        text = (
            "collective,gpus,nodes,bytes,time_us,busbw_GBps,colour\n"
            "all_reduce,8,1,1000,10,,red\nAllGather,16,2,8000000,,100,red\nmoe_dispatch,8,1,1000,10,,red\n"
            "all_reduce,8,1,,10,,red\n"
        )
        found = read(tmp_path, "published.csv", text)
        assert [(one.collective, one.gpus, one.nodes) for one in found.tables] == [
            (Collective.ALL_REDUCE, 8, 1),
            (Collective.ALL_GATHER, 16, 2),
        ]
        assert found.tables[0].time_s[0] == pytest.approx(10 * US)
        assert found.tables[1].time_s[0] == pytest.approx(8e6 * 15 / 16 / 100e9)
        said = " ".join(note.message for note in found.diagnostics)
        assert "colour" in said and "moe_dispatch" in said and "1 rows without a size" in said

    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("allreduce_8gpu_20250820_200910.csv", (Collective.ALL_REDUCE, 8, 1)),
            ("allreduce_10gpu_2node_20250820_195537.csv", (Collective.ALL_REDUCE, 10, 2)),
            ("reduce_scatter_4gpus_1node.csv", (Collective.REDUCE_SCATTER, 4, 1)),
            ("single_node_sendrecv_20250818_151722.csv", (Collective.TRANSFER, 2, 1)),
            ("multi_node_sendrecv_20250818_150945.csv", (Collective.TRANSFER, 2, 2)),
        ],
    )
    def test_files_whose_name_says_what_they_are(
        self, tmp_path: Path, name: str, key: tuple[Collective, int, int]
    ) -> None:
        text = "size_bytes,size_str,count_elements,type,redop,root,time_us,algbw_gbps,busbw_gbps,errors\n"
        (table,) = read(tmp_path, name, f"{text}2048,2K,512,float,sum,N/A,40.0,0.4,0.4,0\n").tables
        assert (table.collective, table.gpus, table.nodes) == key
        ways = 2 if key[0] is Collective.TRANSFER else 1
        assert table.time_s[0] == pytest.approx(40 * US / ways)

    @pytest.mark.parametrize(("time_us", "told"), [(40.0, False), (80.0, True)])
    def test_only_a_transfer_may_count_both_ways(self, tmp_path: Path, time_us: float, told: bool) -> None:
        text = f"size_bytes,time_us,algbw_gbps,errors\n2048000,{time_us},409.6,0\n"  # Gb/s
        found = read(tmp_path, "allreduce_8gpu_20250820_200910.csv", text)
        assert ("conflicting-values" in {note.code for note in found.diagnostics}) is told

    @pytest.mark.parametrize(
        ("row", "says"),
        [
            ("all_reduce,8,1,1000", "fields"),
            ("all_reduce,8,9,1000,10", "cannot be on 9 nodes"),
            ("all_reduce,8,1,12.5,10", "whole number"),
            ("all_reduce,eight,1,1000,10", '"eight" is not a number'),
            ("all_reduce,8,1,1000,inf", "finite"),
            ("all_reduce,8,1,1000,1e300", "too large"),
        ],
    )
    def test_bad_rows_are_refused_with_their_line(self, tmp_path: Path, row: str, says: str) -> None:
        error = refused(tmp_path, "t.csv", f"collective,gpus,nodes,bytes,time_us\nall_reduce,8,1,500,9\n{row}\n")
        assert says in error.message and error.where == f"{tmp_path / 't.csv'}:3"

    @pytest.mark.parametrize(
        ("row", "code"),
        [
            ("all_reduce,0,1,1000,10", "out-of-range"),
            ("all_reduce,8,0,1000,10", "out-of-range"),
            ("all_reduce,8,1,1,048,576,35.0", "bad-syntax"),
            ("all_reduce,8,1,1000,1e-320", "out-of-range"),
            (f"all_reduce,8,1,{'9' * 400},10", "out-of-range"),
            ("all_reduce,8,1,1000,１０", "bad-value"),
            ("all_reduce,8,1,-1000,10", "out-of-range"),
        ],
    )
    def test_numbers_that_cannot_be_meant(self, tmp_path: Path, row: str, code: str) -> None:
        error = refused(tmp_path, "t.csv", f"collective,gpus,nodes,bytes,time_us\n{row}\n")
        assert (error.code, error.where) == (code, f"{tmp_path / 't.csv'}:2")

    def test_bandwidths_that_cannot_be_meant(self, tmp_path: Path) -> None:
        for gpus, bandwidth in ((0, "10"), (8, "0"), (8, "1e-300"), (8, "nan")):
            text = f"collective,gpus,nodes,bytes,busbw_GBps\nall_reduce,{gpus},1,1000,{bandwidth}\n"
            assert refused(tmp_path, "t.csv", text).code == "out-of-range"

    def test_quoted_thousands_are_read_as_such(self, tmp_path: Path) -> None:
        text = 'collective,gpus,nodes,bytes,time_us\nall_reduce,8,1,"1,048,576",35.0\n'
        assert read(tmp_path, "t.csv", text).rows[0].size_bytes == 1 << 20

    def test_columns_without_names_and_columns_named_twice(self, tmp_path: Path) -> None:
        text = "collective,gpus,,bytes,,time_us\nall_reduce,8,,1000,,10\n"
        assert read(tmp_path, "t.csv", text).rows[0].time_s == pytest.approx(1e-5)
        assert refused(tmp_path, "t.csv", text.replace(",,10", ",10")).code == "bad-syntax"
        assert refused(tmp_path, "t.csv", text.replace("gpus", "bytes")).code == "duplicate-name"

    def test_a_ratio_of_bandwidths_of_other_gpus(self, tmp_path: Path) -> None:
        head = "collective,gpus,nodes,bytes,time_us,algbw_GBps,busbw_GBps\n"
        error = refused(tmp_path, "t.csv", f"{head}all_reduce,7,1,1048576,60,17.48,30.59\n")
        assert error.code == "conflicting-values"

    def test_a_table_that_names_nothing_is_refused(self, tmp_path: Path) -> None:
        assert "which collective" in refused(tmp_path, "t.csv", "bytes,time_us\n1,2\n").message
        assert refused(tmp_path, "t.csv", "a,b\n1,2\n").code == "wrong-format"


def times(folder: Path, name: str, rows: list[tuple[int, float]]) -> None:
    text = "".join(f"{size},{time}\n" for size, time in rows)
    (folder / name).write_text(f"size_bytes,time_us\n{text}", encoding="utf-8")


class TestCombining:
    def test_times_longer_than_those_of_larger_messages_are_taken_down_and_said_once(self, tmp_path: Path) -> None:
        times(tmp_path, "allreduce_8gpu.csv", [(1, 10), (2, 250), (4, 12), (8, 11), (16, 40)])
        found = read_measurements(tmp_path)
        assert found.tables[0].time_s.tolist() == pytest.approx([10 * US, 11 * US, 11 * US, 11 * US, 40 * US])
        (note,) = found.diagnostics
        assert note.level == "warning" and note.where == f"{tmp_path / 'allreduce_8gpu.csv'}:3"
        assert note.message.startswith("2 of 5 times") and "22.7 times" in note.message

    def test_files_that_repeat_each_other_give_median_and_spread(self, tmp_path: Path) -> None:
        for name, factor in (("a", 0.8), ("b", 1.0), ("c", 1.3)):
            times(tmp_path, f"allreduce_8gpu_{name}.csv", [(1000, 10 * factor), (2000, 20 * factor)])
        found = read_measurements(tmp_path)
        (table,) = found.tables
        assert table.time_s.tolist() == pytest.approx([10 * US, 20 * US]) and len(table.files) == 3
        assert found.spread == pytest.approx((0.8, 1.3))

    def test_folders_are_read_one_level_deep(self, tmp_path: Path) -> None:
        for depth, gpus in (("", 2), ("a", 4), ("a/b", 8)):
            (tmp_path / depth).mkdir(exist_ok=True)
            times(tmp_path / depth, f"allreduce_{gpus}gpu.csv", [(1000, 10)])
        (tmp_path / "README.txt").write_text("about these", encoding="utf-8")
        found = read_measurements(tmp_path)
        assert [one.gpus for one in found.tables] == [2, 4]
        assert "README.txt" in found.diagnostics[0].message

    def test_one_gpu_and_no_bytes_are_not_used(self, tmp_path: Path) -> None:
        times(tmp_path, "allreduce_1gpu.csv", [(1000, 10)])
        times(tmp_path, "allreduce_2gpu.csv", [(0, 10), (1000, 10)])
        found = read_measurements(tmp_path)
        assert [(one.gpus, one.size_bytes.tolist()) for one in found.tables] == [(2, [1000])]
        (note,) = found.diagnostics  # the same of two files is said once
        assert note.code == "rows-skipped"

    def test_nothing_to_read_is_an_error(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "absent"):
            with pytest.raises(InputError) as caught:
                read_measurements(path)
            assert caught.value.where == str(path)


@pytest.mark.parametrize("text", ["\n" * 300_000, "x" * (17 << 20)])
def test_files_larger_than_any_real_one_are_refused(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, "run.log", log([(1024, 20.5, 0.05, 0.075)]) + text).code == "input-too-large"


def test_measured_folders() -> None:
    a100 = read_measurements(shared("data", "collectives", "a100_2x8"))
    assert len(a100.rows) == 309 and len(a100.tables) == 13
    eight = table(a100, Collective.ALL_REDUCE, 8, 1)
    assert eight.time_s[-1] == pytest.approx(69845.95784451813 * US)
    one_way = table(a100, Collective.TRANSFER, 2, 2)
    assert one_way.size_bytes[-1] / one_way.time_s[-1] == pytest.approx(24.2e9, rel=0.01)
    logs = read_measurements(shared("data", "collectives", "a100_40g_ib_1to256"))
    assert [(one.gpus, one.nodes) for one in logs.tables] == [
        (2, 1), (4, 1), (8, 1), (16, 2), (32, 4), (64, 8), (128, 16), (256, 32)
    ]  # fmt: skip
    a800 = read_measurements(shared("data", "collectives", "a800_1x8"))
    eight = table(a800, Collective.ALL_REDUCE, 8, 1)
    assert eight.time_s[2] < 100 * US
    assert any("27.5 times" in note.message for note in a800.diagnostics)


@pytest.mark.parametrize("column", ["hardware", "gpu", "gpu_name", "device"])
def test_a_table_may_name_its_gpu_in_a_column(tmp_path: Path, column: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(f"collective,gpus,nodes,bytes,time_us,{column}\nall_reduce,8,1,1048576,35,NVIDIA A100-SXM4-80GB\n")
    assert [row.gpu for row in read_measurements(path).rows] == ["NVIDIA A100-SXM4-80GB"]


def test_a_log_that_says_results_were_wrong(tmp_path: Path) -> None:
    row = "1048576 262144 float sum -1 60.00 17.48 17.48 0 59.10 17.74 17.74 0"
    path = tmp_path / "m.log"
    for outcome, warned in (("0 OK", False), ("3 FAILED", True)):
        path.write_text(f"{ranks(2, 2)}\n{HEAD}\n{row}\n# Out of bounds values : {outcome}\n")
        notes = read_measurements(path).diagnostics
        assert any(note.level == "warning" and note.where == f"{path}:5" for note in notes) is warned
