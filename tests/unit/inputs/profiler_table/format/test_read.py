"""Profiler tables as files have them: columns, units, odd cells, several in one log, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_table.format import (
    Column,
    Field,
    ProfilerTable,
    TableRow,
    looks_like_table,
    parse_tables,
    read_tables,
)
from foretrace.inputs.registry import open_input
from shared_files import ROOT, shared
from table_files import COLUMNS, write_times
from write_table import write_table

NEW = """\
-----------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  \n\
       Name    Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg     Self CUDA   Self CUDA %    CUDA total  CUDA time avg    # of Calls  \n\
-----------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  \n\
   aten::mm         9.50%      13.980ms        47.17%        3.916s      78.320ms     133.000us           NaN      12.485ms     249.691us            50  \n\
 nccl:all_r         0.00%       0.000us             0     739.000us      92.375us       0.000us         0.00%       0.000us       0.000us             8  \n\
-----------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  \n\
Self CPU time total: 8.302s
Self CUDA time total: 133.000us
"""  # noqa: E501

OLD = """\
-----------  ---------------  ---------------  ---------------  ---------------  ---------------  ---------------  \n\
Name         Self CPU total %  Self CPU total   CPU total %      CPU total        CPU time avg     Number of Calls  \n\
-----------  ---------------  ---------------  ---------------  ---------------  ---------------  ---------------  \n\
einsum       54.60%           242.548us        100.00%          444.218us        242.548us        1                \n\
sum          40.07%           178.021us        40.07%           178.021us        178.021us        1                \n\
-----------  ---------------  ---------------  ---------------  ---------------  ---------------  ---------------  \n\
Self CPU time total: 444.218us
"""


def the_table(text: str):  # type: ignore[no-untyped-def]
    (table,) = parse_tables(text, "t.txt")
    return table


def test_every_cell_of_a_row_in_si_units() -> None:
    table = the_table(NEW)
    assert table.device == "CUDA" and table.line == 2 and len(table.columns) == 11
    product, reduce = table.rows
    assert (product.name, product.line, product.calls) == ("aten::mm", 4, 50)
    assert product.self_cpu_s == pytest.approx(13.98e-3)
    assert product.cpu_total_s == 3.916 and product.cpu_total_share == pytest.approx(0.4717)
    assert product.self_device_s == pytest.approx(133e-6) and product.self_device_share is None
    assert product.device_total_s == pytest.approx(12.485e-3)
    assert reduce.asynchronous and not product.asynchronous
    assert (table.self_cpu_total_s, table.self_device_total_s) == (8.302, pytest.approx(133e-6))


def test_names_to_the_left_as_pytorch_1_6_wrote_them() -> None:
    table = the_table(OLD)
    assert [row.name for row in table.rows] == ["einsum", "sum"]
    assert table.rows[0].self_cpu_s == pytest.approx(242.548e-6) and table.device == ""


def test_several_tables_and_a_log_around_them() -> None:
    first, second = parse_tables(f"INFO starting\n{NEW}\nstep 2 done\n{OLD}bye\n", "log.txt")
    assert (first.line, len(first.rows), second.line, len(second.rows)) == (3, 2, 13, 2)
    assert second.self_device_total_s is None


def test_a_loggers_prefix_on_every_line() -> None:
    table = the_table("".join(f"[rank0]: {line}\n" for line in NEW.splitlines()))
    assert [row.name for row in table.rows] == ["aten::mm", "nccl:all_r"]
    assert table.self_cpu_total_s == 8.302


@pytest.mark.parametrize("prefix", ["[2024-01-01 00:00:{:02d}] INFO rank0: ", "{:05d} | ", "2024-01-01T00:00:{:02d}Z "])
def test_a_prefix_that_counts_at_one_width(prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{prefix.format(number)}{line}\n" for number, line in enumerate(NEW.splitlines())))
    assert open_input([path]).kind == "profiler-table"
    assert [row.cpu_total_s for row in read_tables(path)[0].rows] == [3.916, pytest.approx(739e-6)]


@pytest.mark.parametrize("first", [6, 96])
def test_a_prefix_of_changing_width_is_refused_where_it_changes(first: int) -> None:
    text = "".join(f"{first + number} INFO: {line}\n" for number, line in enumerate(NEW.splitlines()))
    with pytest.raises(InputError) as raised:
        parse_tables(text, "log.txt")
    assert raised.value.code == "bad-syntax"
    assert raised.value.where == "log.txt:5"


def test_colours_of_a_terminal_are_left_out_with_a_note() -> None:
    table = the_table("".join(f"\x1b[32m{line}\x1b[0m\n" for line in NEW.splitlines()))
    assert table.rows == the_table(NEW).rows
    assert [note.code for note in table.diagnostics] == ["odd-layout"]
    assert the_table(NEW).diagnostics == ()


def test_a_table_without_rows_is_refused() -> None:
    head, *_, end = NEW.splitlines()[:3], NEW.splitlines()[5]
    with pytest.raises(InputError) as caught:
        parse_tables("\n".join([*head, end, ""]), "t.txt")
    assert caught.value.code == "empty-file"


def test_a_long_name_with_a_blank_just_where_its_column_ends() -> None:
    text = NEW.replace("   aten::mm  ", "void kernel add  ")
    first = the_table(text).rows[0]
    assert text.splitlines()[3][11] == " ", "the blank is where the column's dashes end"
    assert (first.name, first.cpu_total_s, first.calls) == ("void kernel add", 3.916, 50)


def test_blanks_at_the_end_of_lines_lost_and_line_ends_of_windows() -> None:
    stripped = "\r\n".join(line.rstrip() for line in NEW.splitlines())
    assert the_table(stripped).rows == the_table(NEW).rows


def test_titles_and_top_level_ops() -> None:
    line = "=" * 150
    text = f"{line}\nmy run\n{line}\nThis report only display top-level ops statistics\n{NEW}"
    table = the_table(text)
    assert (table.title, table.top_level_only) == ("my run", True)


@pytest.mark.parametrize("word", ["XPU", "HPU", "NPU", "MTIA", "PRIVATEUSEONE", "PrivateUse1"])
def test_any_device(word: str) -> None:
    table = the_table(NEW.replace("CUDA", word))
    assert table.device == word
    assert table.rows[0].device_total_s == pytest.approx(12.485e-3)
    assert table.self_device_total_s == pytest.approx(133e-6)


def test_a_cell_longer_than_its_column_moves_the_others() -> None:
    text = NEW.replace("    13.980ms", "12345678901.980us")
    row = the_table(text).rows[0]
    assert row.self_cpu_s == pytest.approx(12345.67890198) and row.calls == 50


def test_cut_names_negative_times_and_missing_units() -> None:
    text = (
        NEW.replace("   aten::mm", "aten::lo...")
        .replace("    13.980ms", "-16028.000us")
        .replace("       0.000us             0 ", "      30.000ms             0 ")
        .replace("     78.320ms", "       78.320")
    )
    table = the_table(text)
    assert table.rows[0].cut and table.rows[0].name == "aten::lo..."
    assert table.rows[0].self_cpu_s == pytest.approx(-16.028e-3)
    assert table.rows[0].cpu_average_s == pytest.approx(78.32e-6)
    assert [(note.level, note.code) for note in table.diagnostics[:2]] == [
        ("warning", "assumed"),
        ("warning", "implausible-time"),
    ]


@pytest.mark.parametrize(
    ("cell", "size"),
    [("768.00 KB", 786432), ("-12.50 Mb", -13107200), ("240 b", 240), ("0 B", 0), ("1.50 Gb", 1610612736), ("0", 0)],
)
def test_sizes_of_memory_are_of_1024(cell: str, size: int) -> None:
    text = (
        NEW.replace("CUDA time avg", "     CUDA Mem").replace("   249.691us", f"{cell:>12}").replace("      8\n", "8\n")
    )
    text = text.replace("     0.000us             8", "         0 B             8")
    assert the_table(text).rows[0].device_memory_bytes == size


def test_flops_and_what_has_none() -> None:
    text = NEW.replace("CUDA time avg", " Total GFLOPs").replace("   249.691us", "     536.871")
    text = text.replace("     0.000us             8", "          --             8")
    rows = the_table(text).rows
    assert rows[0].flops == pytest.approx(536.871e9) and rows[1].flops is None


def test_an_unknown_column_is_said_and_not_read() -> None:
    table = the_table(NEW.replace("CUDA time avg", "      Mystery"))
    assert len(table.columns) == 10 and table.diagnostics[0].code == "unknown-field"


def test_a_table_without_an_end_is_read_and_said() -> None:
    table = the_table("\n".join(NEW.splitlines()[:5]))
    assert len(table.rows) == 2 and table.diagnostics[0].code == "truncated-file"


class TestErrors:
    def refused(self, text: str) -> InputError:
        with pytest.raises(InputError) as caught:
            parse_tables(text, "t.txt")
        assert caught.value.exit_code == 3
        return caught.value

    def test_an_empty_file(self) -> None:
        assert "empty" in self.refused(" \n\n").message

    def test_no_table_at_all(self) -> None:
        error = self.refused("hello\nworld\n")
        assert "no profiler table" in error.message and error.hint and "table(" in error.hint

    def test_no_line_of_dashes(self) -> None:
        error = self.refused("\n".join(line for line in NEW.splitlines() if not line.startswith("--")))
        assert "dashes" in error.message and error.where == "t.txt:1"

    def test_no_names(self) -> None:
        error = self.refused(NEW.replace("       Name", "       Game"))
        assert "Name" in error.message and error.where == "t.txt:2"

    def test_no_calls(self) -> None:
        assert "# of Calls" in self.refused(NEW.replace("# of Calls", "  # of Cows")).message

    def test_a_lost_heading(self) -> None:
        error = self.refused(NEW.replace("   CPU total %", "              "))
        assert "10 headings above 11 columns" in error.message

    def test_no_times(self) -> None:
        text = "\n".join(line[:27] + line[139:] for line in NEW.splitlines()[:6])
        error = self.refused(text.replace("Self CPU %", "CPU total %").replace("CUDA", "    "))
        assert error.where is not None and error.where.startswith("t.txt")

    def test_a_line_cut_off(self) -> None:
        lines = NEW.splitlines()
        error = self.refused("\n".join([*lines[:4], lines[4][:70]]))
        assert "cut off" in error.message and error.where == "t.txt:5"

    def test_a_number_that_is_none(self) -> None:
        error = self.refused(NEW.replace(" 12.485ms", "     fast"))
        assert error.code == "bad-value" and error.where == "t.txt:4"
        assert "CUDA total" in error.message and "fast" in error.message

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("    13.980ms", "     1e400us"),
            ("    12.485ms", "    -1.000ms"),
            ("   50  \n", "   -7  \n"),
            ("   50  \n", f"{'9' * 400}  \n"),
            ("   50  \n", f"{'9' * 5000}  \n"),
            ("   50  \n", "    ٣  \n"),
            ("    78.320ms", "     1e400ms"),
        ],
        ids=["infinite", "negative total", "negative calls", "400 digits", "5,000 digits", "other digits", "average"],
    )
    def test_numbers_that_cannot_be_meant(self, before: str, after: str) -> None:
        assert before in NEW
        error = self.refused(NEW.replace(before, after, 1))
        assert error.code in ("out-of-range", "bad-value") and str(error.where).startswith("t.txt:")
        assert len(str(error)) < 400

    @pytest.mark.parametrize(
        ("before", "after", "codes"),
        [
            ("      13.980ms", "  -16028.000us", None),
            ("       0.000us             0     739.000us", "     900.000ms             0     739.000us", 1),
            ("            50  ", "             0  ", 2),
            ("     249.691us", "     249.691ms", 1),
            ("         9.50%", "       950.00%", 1),
            ("     133.000us", "        2.000s", 2),
        ],
        ids=["negative host time", "self above total", "no calls", "average", "share", "above the total below"],
    )
    def test_numbers_that_contradict_each_other(self, before: str, after: str, codes: int | None) -> None:
        assert before in NEW and not the_table(NEW).diagnostics
        text = NEW.replace(before, after, 1)
        if codes is None:
            assert self.refused(text).code == "implausible-time"
            return
        notes = the_table(text).diagnostics
        assert [note.code for note in notes] == ["conflicting-values"] * codes
        assert all(str(note.where).startswith("t.txt:") for note in notes)

    def test_thousands_are_set_apart(self) -> None:
        assert the_table(NEW.replace("   50  \n", "1,048  \n", 1)).rows[0].calls == 1048

    def test_something_else_among_the_rows(self) -> None:
        lines = NEW.splitlines()
        error = self.refused("\n".join([*lines[:4], "INFO: loss 2.3", *lines[4:]]))
        assert error.where == "t.txt:5"

    def test_an_empty_line_among_the_rows(self) -> None:
        lines = NEW.splitlines()
        assert "empty line" in self.refused("\n".join([*lines[:4], "", *lines[4:]])).message

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "t.txt").write_bytes(b"\0\1\2" * 100)
        with pytest.raises(InputError) as caught:
            read_tables(tmp_path / "t.txt")
        assert caught.value.code == "not-text"
        assert not looks_like_table(tmp_path / "t.txt")


class TestKnownByItsBeginning:
    @pytest.mark.parametrize("text", [NEW, OLD, "log\n" * 50 + NEW, "\n".join(NEW.splitlines()[1:2])])
    def test_a_table_whole_or_not(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "t.txt").write_text(text, encoding="utf-8")
        assert looks_like_table(tmp_path / "t.txt")

    def test_as_a_windows_shell_redirects_it(self, tmp_path: Path) -> None:
        (tmp_path / "t.txt").write_text(NEW, encoding="utf-16")
        assert looks_like_table(tmp_path / "t.txt")
        assert len(read_tables(tmp_path / "t.txt")[0].rows) == 2

    @pytest.mark.parametrize("name", ["moe_128gpu.txt", "traces/moe_ex_situ_rank2.txt"])
    def test_other_files_are_none(self, name: str) -> None:
        assert not looks_like_table(ROOT / "examples" / name)

    def test_what_is_not_there_is_none(self, tmp_path: Path) -> None:
        assert not looks_like_table(tmp_path / "nothing") and not looks_like_table(tmp_path)


def test_the_table_of_an_h200_written_again_to_the_byte() -> None:
    path = shared("data", "h200", "tinyllama_mbs4.table.txt")
    (table,) = read_tables(path)
    assert len(table.rows) == 169
    assert write_table(table) == path.read_text(encoding="utf-8")
    assert sum(row.self_cpu_s or 0.0 for row in table.rows) == pytest.approx(table.self_cpu_total_s, rel=1e-4)


def test_the_columns_of_the_example() -> None:
    (table,) = read_tables(ROOT / "examples/moe_fairseq_profile.txt")
    assert len(table.rows) == 84 and table.device == "CUDA" and not table.diagnostics
    assert {column.field for column in table.columns} >= {
        Field.NAME,
        Field.SELF_DEVICE,
        Field.DEVICE_TOTAL,
        Field.CALLS,
    }


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_LINES", "MAX_LINE_BYTES", "MAX_ROWS", "MAX_TABLES"])
def test_limits(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.txt"
    path.write_text(NEW * 2)
    monkeypatch.setattr(f"foretrace.inputs.profiler_table.format.read.{limit}", 1)
    with pytest.raises(InputError) as caught:
        read_tables(path)
    assert caught.value.code == "input-too-large" and str(caught.value.where).startswith(str(path))


@pytest.mark.parametrize(("calls", "codes"), [(1, []), (1000, []), (10**9, ["implausible-rate"])])
def test_more_calls_than_fit_into_their_time_are_told(tmp_path: Path, calls: int, codes: list[str]) -> None:
    path = write_times(tmp_path / "table.txt", [("aten::mm", 1e-3, 2e-3, 4e-3, 4e-3)], calls)
    notes = read_tables(path)[0].diagnostics
    assert [note.code for note in notes if note.level == "warning"] == codes


@pytest.mark.parametrize(("call_s", "codes"), [(1e-6, []), (1e-3, ["implausible-time"])])
def test_many_rows_of_which_none_is_short_are_told(tmp_path: Path, call_s: float, codes: list[str]) -> None:
    columns = (*COLUMNS, Column("CPU time avg", Field.CPU_AVERAGE))
    rows = tuple(
        TableRow(f"aten::op{at}", at + 1, self_cpu_s=call_s, cpu_total_s=call_s, cpu_average_s=call_s, calls=1)
        for at in range(60)
    )
    path = tmp_path / "table.txt"
    path.write_text(write_table(ProfilerTable("t", 1, columns, rows, "CUDA")), encoding="utf-8")
    assert [note.code for note in read_tables(path)[0].diagnostics if note.level == "warning"] == codes


@pytest.mark.parametrize(
    ("name", "refused"),
    [("aten::mm", True), ("train.py(12): step", False), ("unit/inputs/test_of_pytorch.py...", False)],
)
def test_only_python_functions_may_have_less_than_no_time(tmp_path: Path, name: str, refused: bool) -> None:
    path = write_times(tmp_path / "table.txt", [(name, -5e-3, 2e-3, 0.0, 0.0), ("aten::add", 1e-3, 1e-3, 0.0, 0.0)])
    if refused:
        with pytest.raises(InputError) as caught:
            read_tables(path)
        assert caught.value.code == "implausible-time"
    else:
        assert "implausible-time" in {note.code for note in read_tables(path)[0].diagnostics}
