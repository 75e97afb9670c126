"""What was read is written back to the byte; what was changed is written as it now is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.aicb.format import (
    Header,
    Pass,
    Workload,
    WorkloadRow,
    parse_workload,
    read_workload,
    workload_text,
    write_workload,
)
from shared_files import shared

ODD = (
    "\ufeff\n HYBRID_TRANSFORMER\t pp: 4  model_parallel_NPU_group: 8.0 foo: 1 2 pp_comm 7 bar\r\n"
    "\r\n 2.0\r\n"
    "one\t-1 1e3\vNONE  0 1 NONE 0 1 NONE 0\f100 \r\n\n"
    "two -1 1 ALLREDUCE 8.00 1 NONE 0 1 NONE 0 100\n   \n"
    "three -1 1 allreduce 8 1 NONE 0 1 NONE 0 100 "
)
SAMPLES = [
    ("seeds", "002*"),
    ("seeds", "004*"),
    *(("data", "simai", "workloads", name) for name in ("Qwen3*", "gpt13b_tp8.txt", "gpt13b_tp8_aiob.txt")),
    *(("data", "simai", "workloads", name) for name in ("llama405b*", "mixtral8x7b*")),
]


def made(rows: int = 2) -> Workload:
    idle = Pass(0, "NONE", 0)
    return Workload(
        Header("HYBRID_TRANSFORMER_FWD_IN_BCKWD", tp=8, checkpoints=(), pp_comm_bytes=0.5, extra=(("seq", "4096"),)),
        rows,
        tuple(WorkloadRow(f"layer_{n}", -1, Pass(n, "ALLREDUCE", 1024), idle, idle, 100) for n in range(rows)),
    )


@pytest.mark.parametrize("parts", SAMPLES, ids="/".join)
def test_samples_come_back_to_the_byte(parts: tuple[str, ...], tmp_path: Path) -> None:
    path = shared(*parts)
    workload = read_workload(path)
    write_workload(workload, tmp_path / "copy.txt")
    assert (tmp_path / "copy.txt").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("parts", SAMPLES, ids="/".join)
def test_samples_written_anew_are_the_same_records(parts: tuple[str, ...]) -> None:
    workload = read_workload(shared(*parts))
    anew = Workload(workload.header, workload.declared_rows, workload.rows)
    assert parse_workload(workload_text(anew).encode()) == workload


def test_odd_text_comes_back_to_the_byte() -> None:
    workload = parse_workload(ODD.encode())
    assert workload_text(workload) == ODD
    assert workload_text(replace(workload, rows=(*workload.rows,))) == ODD


def test_what_is_made_in_code_is_set_as_aicb_does() -> None:
    text = workload_text(made())
    assert text == (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 checkpoints: 0 pp_comm: 0.5 seq: 4096\n2\n"
        "layer_0\t-1\t0\tALLREDUCE\t1024\t0\tNONE\t0\t0\tNONE\t0\t100\n"
        "layer_1\t-1\t1\tALLREDUCE\t1024\t0\tNONE\t0\t0\tNONE\t0\t100\n"
    )
    assert parse_workload(text.encode()) == made()


class TestChanges:
    """Every change is in the text, and what was not changed keeps its look."""

    def test_a_changed_row(self) -> None:
        workload = parse_workload(ODD.encode())
        one, two, three = workload.rows
        changed = replace(workload, rows=(one, replace(two, update_ns=7), three))
        text = workload_text(changed)
        line = "two\t-1\t1\tALLREDUCE\t8\t1\tNONE\t0\t1\tNONE\t0\t7\r\n"
        assert text == ODD.replace("two -1 1 ALLREDUCE 8.00 1 NONE 0 1 NONE 0 100\n   \n", line)
        assert parse_workload(text.encode()) == changed

    def test_a_changed_header(self) -> None:
        workload = parse_workload(ODD.encode())
        changed = replace(workload, header=replace(workload.header, tp=4))
        head, rest = workload_text(changed).split("\r\n", 1)
        assert head == "HYBRID_TRANSFORMER bar model_parallel_NPU_group: 4 pp: 4 pp_comm: 7 foo: 1 2"
        assert rest == ODD[ODD.index(" 2.0") :]
        assert parse_workload(workload_text(changed).encode()) == changed

    def test_a_changed_count(self) -> None:
        workload = parse_workload(ODD.encode())
        changed = replace(workload, declared_rows=3)
        assert workload_text(changed) == ODD.replace(" 2.0\r\n", "3\r\n")

    def test_rows_in_another_order(self) -> None:
        workload = parse_workload(ODD.encode())
        changed = replace(workload, rows=workload.rows[::-1])
        assert workload_text(changed).split("\n")[4].startswith("three -1 1 allreduce 8 ")
        assert parse_workload(workload_text(changed).encode()) == changed

    def test_rows_taken_away_and_added(self) -> None:
        workload = parse_workload(ODD.encode())
        changed = replace(workload, rows=(*workload.rows[1:], *made().rows, workload.rows[2]))
        assert parse_workload(workload_text(changed).encode()) == changed

    def test_rows_of_another_file(self) -> None:
        other = parse_workload(workload_text(made(9)).encode())
        changed = replace(parse_workload(ODD.encode()), rows=other.rows)
        assert parse_workload(workload_text(changed).encode()) == changed

    def test_new_lines_end_as_the_others_do(self) -> None:
        for end in ("\n", "\r\n", "\r"):
            workload = parse_workload(workload_text(made()).replace("\n", end).encode())
            changed = replace(workload, declared_rows=5, rows=(*made(1).rows, *workload.rows))
            text = workload_text(replace(changed, header=Header("MICRO")))
            assert text.count(end) == 5
            assert "\r" not in text.replace(end, "") and "\n" not in text.replace(end, "")
            assert parse_workload(text.encode()).rows == changed.rows


class TestRefusals:
    @pytest.mark.parametrize(
        ("row", "message"),
        [
            (replace(made().rows[0], name="two words"), "must be single words"),
            (replace(made().rows[0], name=""), "must be single words"),
            (replace(made().rows[0], name="a\nb"), "line feed"),
            (replace(made().rows[0], name="\ud800"), "UTF-8"),
            (replace(made().rows[0], update_ns=float("nan")), '"nan" is not a finite number'),
            (replace(made().rows[0], update_ns=-1), "negative"),
            (replace(made().rows[0], forward=Pass(0, "", 0)), "must be single words"),
            (replace(made().rows[0], policy="DATA"), "workload, row 0 .layer_0.: the row has a policy"),
        ],
    )
    def test_rows_that_would_not_read_back(self, row: WorkloadRow, message: str) -> None:
        with pytest.raises(InputError, match=message):
            workload_text(replace(made(), rows=(row,)))

    @pytest.mark.parametrize(
        ("header", "message"),
        [
            (Header("NOTHING"), "not a policy"),
            (Header("MICRO", tp=0), "0 ranks"),
            (Header("MICRO", pp=-1), "negative"),
            (Header("MICRO", extra=(("pp", "3"),)), "pp .* would not read back"),
            (Header("MICRO", extra=(("a", "b"), ("", "c"))), "extra .* would not read back"),
            (Header("HYBRID_CUSTOMIZED"), "has no policy"),
        ],
    )
    def test_headers_that_would_not_read_back(self, header: Header, message: str) -> None:
        with pytest.raises(InputError, match=message):
            workload_text(replace(made(), header=header))

    def test_no_rows(self) -> None:
        with pytest.raises(InputError) as caught:
            workload_text(replace(made(), rows=()))
        assert caught.value.code == "empty-file"

    def test_a_negative_count(self) -> None:
        with pytest.raises(InputError) as caught:
            workload_text(replace(made(), declared_rows=-1))
        assert caught.value.code == "out-of-range"

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="unwritable-file"):
            write_workload(made(), tmp_path / "none" / "job.txt")
        assert list(tmp_path.iterdir()) == []
