"""Workload files of every version are read as they are, and what is odd about them is said once, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.aicb.format import (
    Pass,
    Workload,
    WorkloadRow,
    base_name,
    parse_workload,
    read_workload,
    split_collective,
)
from shared_files import shared

HEADER = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 2 pp: 4 vpp: 1 ga: 16 all_gpus: 64 "
    "checkpoints: 0 checkpoint_initiates: 0 pp_comm: 1024"
)
ROW = "mlp_layer\t-1\t10\tALLREDUCE\t4096\t20\tNONE\t0\t30\tREDUCESCATTER\t512\t100"


def parse(*rows: str, header: str = HEADER, count: int | str | None = None, end: str = "\n") -> Workload:
    lines = [header, str(len(rows) if count is None else count), *rows]
    return parse_workload(("\n".join(lines) + end).encode(), "job.txt")


def row(forward: str = "10 NONE 0", *, name: str = "layer", dependency: str = "-1", update: str = "100") -> str:
    return f"{name} {dependency} {forward} 20 NONE 0 30 NONE 0 {update}"


def messages(workload: Workload) -> list[str]:
    return [f"{one.where}: {one.level}: {one.message}" for one in workload.diagnostics]


def only(workload: Workload) -> Diagnostic:
    (one,) = workload.diagnostics
    return one


class TestRecords:
    def test_a_plain_file_has_no_diagnostics(self) -> None:
        workload = parse(ROW)
        assert workload.diagnostics == ()
        assert workload.path == "job.txt"
        assert workload.declared_rows == 1
        expected = WorkloadRow(
            "mlp_layer", -1, Pass(10, "ALLREDUCE", 4096), Pass(20, "NONE", 0), Pass(30, "REDUCESCATTER", 512), 100
        )
        assert workload.rows == (expected,)
        assert workload.rows[0].line == 3

    def test_every_header_key(self) -> None:
        header = parse(
            *[ROW] * 8,
            header="HYBRID_TRANSFORMER\tpp_comm: 16777216.0 checkpoints: 2 0 7 ga: 16 mode: 1 ep: 2 vpp: 3 pp: 4 "
            "checkpoint_initiates: 1 3 all_gpus: 64 model_parallel_NPU_group: 8",
        ).header
        assert header.policy == "HYBRID_TRANSFORMER"
        assert (header.tp, header.ep, header.pp, header.vpp, header.ga) == (8, 2, 4, 3, 16)
        assert (header.all_gpus, header.mode, header.pp_comm_bytes) == (64, 1, 16777216)
        assert (header.checkpoints, header.checkpoint_initiates, header.extra) == ((0, 7), (3,), ())

    def test_a_key_that_is_absent_is_none(self) -> None:
        header = parse(ROW, header="MICRO").header
        assert (header.tp, header.vpp, header.pp_comm_bytes, header.checkpoints) == (None, None, None, None)

    def test_customized_rows_have_a_policy(self) -> None:
        workload = parse(f"{ROW}\tDATA", header=HEADER.replace("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_CUSTOMIZED"))
        assert workload.rows[0].policy == "DATA"
        assert workload.diagnostics == ()

    @pytest.mark.parametrize(
        ("text", "value"), [("1e6", 1000000), ("100.0", 100), ("0.5", 0.5), (".5", 0.5), ("+7", 7), ("007", 7)]
    )
    def test_numbers_people_write(self, text: str, value: float) -> None:
        one = parse(row(f"{text} ALLREDUCE {text}")).rows[0].forward
        assert (one.compute_ns, one.size_bytes) == (value, value)
        assert type(one.size_bytes) is type(value)

    def test_line_numbers_count_blank_lines(self) -> None:
        workload = parse("", ROW, "  ", ROW, count=2)
        assert [row.line for row in workload.rows] == [4, 6]

    def test_names_may_be_of_any_script(self) -> None:
        assert parse(row(name="注意层\u00a0\u2028x")).rows[0].name == "注意层\u00a0\u2028x"

    def test_base_name(self) -> None:
        names = [
            "attention_column_1",
            "mlp_moelayer_63",
            "cross_entropy1",
            "optimizer3",
            "moe_grad_norm1",
            "_1",
            "x__2",
            "",
        ]
        assert [base_name(name) for name in names] == [
            *("attention_column", "mlp_moelayer", "cross_entropy1", "optimizer3", "moe_grad_norm1", "_1", "x_", "")
        ]

    def test_split_collective(self) -> None:
        assert split_collective("ALLGATHER_DP_EP") == ("ALLGATHER", "_DP_EP")
        assert split_collective("ALLTOALL_EP") == ("ALLTOALL", "_EP")
        assert split_collective("NONE") == ("NONE", "")


class TestHeaderDiagnostics:
    def test_missing_keys(self) -> None:
        workload = parse(ROW, header="DATA model_parallel_NPU_group: 8 checkpoints: 0 checkpoint_initiates: 0")
        assert messages(workload) == [
            "job.txt:1: note: the header has no ep; SimAI leaves it 0 or unset",
            "job.txt:1: note: the header has no pp; SimAI leaves it 0 or unset",
            "job.txt:1: note: the header has no vpp; SimAI divides by zero and prints NaN",
            "job.txt:1: note: the header has no ga; SimAI leaves it 0 or unset",
            "job.txt:1: note: the header has no all_gpus; SimAI leaves it 0 or unset",
            "job.txt:1: note: the header has no pp_comm; SimAI leaves it 0 or unset",
        ]

    def test_only_a_policy(self) -> None:
        assert only(parse(ROW, header="MICRO")).message == "the header has no key that is known, only the policy"

    @pytest.mark.parametrize(
        ("old", "new", "level", "message"),
        [
            ("pp_comm:", "pp_comm", "note", "pp_comm has no colon; it is read as pp_comm:, as SimAI does"),
            ("ep: 2", "ep: 2 ep: 4", "warning", "ep: is given twice; the last value counts"),
            ("pp: 4", "pp: 0", "warning", "pp: 0 cannot be meant; simulated as 1"),
            ("ga: 16", "ga: 0", "warning", "ga: 0 cannot be meant; simulated as 1"),
            (
                "pp_comm: 1024",
                "pp_comm: 2147483648",
                "warning",
                "pp_comm: 2147483648 is 2^31 or more; SimAI reads 32 bits, and stops",
            ),
            (
                "checkpoints: 0",
                "checkpoints: 1 0",
                "warning",
                "checkpoints: is not empty; SimAI's parser reads the first row number again for each",
            ),
            (
                "ep: 2",
                "expert_parallel_npu_group: 2",
                "note",
                "expert_parallel_npu_group: 2 is taken as ep: 2; SimAI does not know the key",
            ),
            (
                "ep: 2",
                "expert_parallel_npu_group: 4 ep: 2",
                "warning",
                "the header has ep: and expert_parallel_npu_group:; ep: 2 counts",
            ),
            (
                "ep: 2",
                "ep: 2 chekpoints: 3",
                "warning",
                'header key "chekpoints" is not known; did you mean checkpoints? It is kept and not used',
            ),
            (
                "ep: 2",
                "ep: 2 tp: 3",
                "warning",
                'header key "tp" is not known; did you mean model_parallel_NPU_group? It is kept and not used',
            ),
            (
                "ep: 2",
                "ep: 2 dp: 2",
                "warning",
                'header key "dp" is not known: dp follows from all_gpus, tp and pp. It is kept and not used',
            ),
            ("ep: 2", "ep: 2 zzz: 9", "warning", 'header key "zzz" is not known. It is kept and not used'),
            ("ep: 2", "ep: 2 what now", "warning", '"what now" in the header belongs to no key'),
            ("ep: 2", "ep: 2 ga 4", "warning", '"ga 4" in the header belongs to no key; a key ends in a colon: ga:'),
            ("ep: 2", "ep: 2 xx:4", "warning", '"xx:4" in the header belongs to no key; a blank follows the colon'),
        ],
    )
    def test_one_oddity(self, old: str, new: str, level: str, message: str) -> None:
        assert old in HEADER
        one = only(parse(ROW, header=HEADER.replace(old, new, 1)))
        assert (one.level, one.message, one.where) == (level, message, "job.txt:1")

    def test_unknown_keys_are_kept(self) -> None:
        header = parse(ROW, header=f"{HEADER} seq: 4096 list: 2 1 2 pp: 2 stray bare:").header
        assert header.extra == (("", "stray"), ("seq", "4096"), ("list", "2 1 2"), ("bare", ""))
        assert header.pp == 2

    def test_many_unknown_keys_are_not_named_one_by_one(self) -> None:
        workload = parse(ROW, header=f"{HEADER} {' '.join(f'key{n}: 1' for n in range(1000))}")
        assert len(workload.diagnostics) == 9
        assert workload.diagnostics[-1].message == "992 more header keys are not known, and not used"

    def test_a_checkpoint_that_is_no_row(self) -> None:
        workload = parse(ROW, header=HEADER.replace("checkpoints: 0", "checkpoints: 1 9"))
        assert workload.diagnostics[-1].message == "checkpoints: 9 is no row; rows are numbered from 0 to 0"


class TestRowDiagnostics:
    @pytest.mark.parametrize(
        ("line", "level", "message"),
        [
            (
                row("10 ALLGETHER 4096"),
                "warning",
                'collective "ALLGETHER" is not known; did you mean ALLGATHER? SimAI gives it no time; '
                "known: NONE ALLREDUCE ALLGATHER REDUCESCATTER ALLTOALL, with suffix _EP or _DP_EP",
            ),
            (
                row("10 ♫ 4096"),
                "warning",
                'collective "♫" is not known; SimAI gives it no time; '
                "known: NONE ALLREDUCE ALLGATHER REDUCESCATTER ALLTOALL, with suffix _EP or _DP_EP",
            ),
            (row("10 ALLREDUCEALLTOALL 9"), "warning", "ALLREDUCEALLTOALL has no group and no time in SimAI"),
            (
                row("10 allreduce 9"),
                "note",
                'collective "allreduce" is not in upper case; it is kept as written, and SimAI gives it no time',
            ),
            (row("10 NONE 4096"), "note", "NONE has a size; nothing is sent"),
            (row("10 ALLGATHER_EP 0"), "note", "a collective has 0 bytes; nothing is sent"),
            (
                row(name="embedding_layer_2"),
                "note",
                "embedding_layer_2 is a numbered name; SimAI knows only the exact name embedding_layer",
            ),
            (row(update="7"), "note", "the update time is not 100 ns, which AICB always writes"),
            (row(dependency="3"), "note", "the dependency is not -1, which AICB always writes; SimAI does not use it"),
            (row("16777217 NONE 0"), "note", "a time or size above 2^24 is no float32 number; SimAI rounds it"),
            (row("1 ALLREDUCE 33554434.5"), "note", "a time or size above 2^24 is no float32 number; SimAI rounds it"),
        ],
    )
    def test_one_oddity(self, line: str, level: str, message: str) -> None:
        one = only(parse(ROW, line))
        assert (one.level, one.message, one.where) == (level, message, "job.txt:4")

    def test_the_row_is_kept_as_written(self) -> None:
        assert parse(row("10 allgether_ep 4096")).rows[0].forward == Pass(10, "allgether_ep", 4096)

    def test_numbers_that_float32_holds_are_not_odd(self) -> None:
        assert parse(row("16777216 ALLREDUCE 6401032192")).diagnostics == ()

    def test_rows_that_share_an_oddity_are_counted(self) -> None:
        lines = [ROW, row("1 NONE 5"), ROW, row("2 NONE 7", name="other")]
        assert messages(parse(*lines)) == [
            "job.txt:4: note: NONE has a size; nothing is sent (2 rows, the first in line 4)"
        ]

    def test_a_row_counts_once(self) -> None:
        assert only(parse("x -1 1 NONE 5 1 NONE 5 1 NONE 5 100")).message == "NONE has a size; nothing is sent"

    def test_many_unknown_collectives_are_not_named_one_by_one(self) -> None:
        workload = parse(*(row(f"1 ALLGETHER{n} 8") for n in range(1000)))
        assert len(workload.diagnostics) == 9
        assert workload.diagnostics[-1].message == "992 more collectives are not known"

    def test_an_unknown_policy_of_a_row(self) -> None:
        header = HEADER.replace("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_CUSTOMIZED")
        assert only(parse(f"{ROW} DATUM", header=header)).message == (
            'policy "DATUM" of a row is not known; did you mean DATA?'
        )


class TestTextDiagnostics:
    def test_fewer_rows_are_declared(self) -> None:
        one = only(parse(ROW, row(name="optimizer3"), row(name="optimizer4"), count=1))
        assert (one.level, one.where) == ("warning", "job.txt:2")
        assert one.message == (
            "1 row declared, 3 in the file; SimAI would drop the last 2 (optimizer3 in line 4, optimizer4 in line 5)"
        )

    @pytest.mark.parametrize("count", ["9", "1000000000"])
    def test_more_rows_are_declared(self, count: str) -> None:
        workload = parse(ROW, count=count)
        assert workload.declared_rows == int(count)
        assert only(workload).message == f"{int(count):,} rows declared, 1 in the file; the file looks cut short"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (f"{HEADER}\n1\n{ROW}", "the last line does not end in a newline"),
            (
                f"{HEADER}\n1\n{ROW} ",
                "1 line ends in blanks, the first is line 3; the last line does not end in a newline",
            ),
            (f"{HEADER} \n1\t\n{ROW} \n", "3 lines end in blanks, the first is line 1"),
            (f"{HEADER}\n1\n{ROW}\n\n", "blank lines are at the end"),
            (f"{HEADER}\r\n1\r\n{ROW}\r\n", "lines end in CR LF, as on Windows"),
            (
                f"{HEADER}\r1\r{ROW}\r",
                "lines end in CR, as on old Macs; SimAI takes the whole file as its first line",
            ),
            (
                f"\ufeff{HEADER}\n1\n{ROW}\n",
                "the file begins with a byte order mark, which SimAI takes as part of the policy",
            ),
            (f"{HEADER}\n\n1\n\n{ROW}\n", "2 blank lines are skipped, the first is line 2"),
        ],
    )
    def test_the_text(self, text: str, message: str) -> None:
        workload = parse_workload(text.encode())
        assert workload == parse(ROW)
        assert only(workload).message == message


class TestSamples:
    def test_a_hand_edited_seed(self) -> None:
        workload = read_workload(shared("seeds", "002*"))
        assert (len(workload.rows), workload.declared_rows, workload.header.pp_comm_bytes) == (98, 96, 50331648)
        assert [one.level for one in workload.diagnostics] == ["note", "warning", "note", "note"]
        assert "optimizer3 in line 99, optimizer4 in line 100" in workload.diagnostics[1].message

    def test_a_seed_of_autumn_2024(self) -> None:
        workload = read_workload(shared("seeds", "004*"))
        assert (len(workload.rows), workload.declared_rows) == (557, 557)
        header = workload.header
        assert (header.tp, header.pp, header.ga, header.all_gpus, header.vpp) == (8, 16, 16, 1024, None)
        assert "SimAI divides by zero" in workload.diagnostics[0].message

    def test_the_path_is_kept_as_given(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "job.txt").write_text(f"{HEADER}\n1\n{row('1 NONE 5')}\n")
        monkeypatch.chdir(tmp_path)
        workload = read_workload("./job.txt")
        assert workload.path == "./job.txt"
        assert only(workload).where == "./job.txt:3"
