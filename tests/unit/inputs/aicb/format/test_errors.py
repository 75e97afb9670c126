"""A file that cannot mean anything is refused with its line, what is wrong and what would be right."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.aicb.format import parse_workload, read_workload
from foretrace.inputs.aicb.format import read as reading
from shared_files import shared

HEADER = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 pp: 4 ga: 16"
ROW = "mlp_layer\t-1\t10\tALLREDUCE\t4096\t20\tNONE\t0\t30\tREDUCESCATTER\t512\t100"


def refusal(data: str | bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_workload(data if isinstance(data, bytes) else data.encode(), "job.txt")
    assert caught.value.exit_code == 3
    assert len(str(caught.value)) < 500
    return caught.value


def refused(data: str | bytes) -> str:
    error = refusal(data)
    return f"{error.where}: {error.message}"


class TestFiles:
    def test_missing(self, tmp_path: Path) -> None:
        (tmp_path / "llama.txt").touch()
        with pytest.raises(InputError) as caught:
            read_workload(tmp_path / "lama.txt")
        assert str(caught.value) == (
            f"{tmp_path / 'lama.txt'}: there is no such file  [file-not-found]\n"
            f"       did you mean {tmp_path / 'llama.txt'}?"
        )

    def test_missing_with_nothing_beside_it(self, tmp_path: Path) -> None:
        with pytest.raises(InputError) as caught:
            read_workload(tmp_path / "none" / "job.txt")
        assert str(caught.value) == f"{tmp_path / 'none' / 'job.txt'}: there is no such file  [file-not-found]"

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="this is a folder"):
            read_workload(str(tmp_path))

    def test_unreadable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(InputError, match="the workload file cannot be read: Permission denied"):
            read_workload(tmp_path / "job.txt")

    def test_a_name_no_file_can_have(self) -> None:
        with pytest.raises(InputError, match="the workload file cannot be read"):
            read_workload("a\0b")

    def test_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "job.txt"
        with path.open("wb") as stream:
            stream.truncate(reading.MAX_BYTES + 1)
        with pytest.raises(InputError) as caught:
            read_workload(path)
        assert caught.value.code == "input-too-large"
        monkeypatch.setattr(reading, "MAX_BYTES", 100)
        path.write_text(f"{HEADER}\n1\n{ROW}\n")
        with pytest.raises(InputError) as caught:
            read_workload(path)
        assert caught.value.code == "input-too-large"

    @pytest.mark.parametrize(
        ("limit", "line"), [("MAX_LINES", None), ("MAX_LINE_BYTES", 3)], ids=["many lines", "a long line"]
    )
    def test_limits(self, limit: str, line: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
        text = f"{HEADER}\n1\n{ROW}{' ' * 300}\n\n\n\n\n"
        monkeypatch.setattr(reading, limit, 4 if line is None else 300)
        with pytest.raises(InputError) as caught:
            parse_workload(text.encode(), "job.txt")
        assert (caught.value.code, caught.value.where) == ("input-too-large", f"job.txt:{line}" if line else "job.txt")
        monkeypatch.setenv("FORETRACE_LIMITS", "4x")
        assert parse_workload(text.encode(), "job.txt").rows


class TestOtherFiles:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "job.txt:1: the file is empty"),
            (b"\xef\xbb\xbf", "job.txt:1: the file is empty"),
            (b" \n\t\r\n", "job.txt:1: the file holds nothing but blanks"),
            (gzip.compress(ROW.encode(), mtime=0), "job.txt:1: the file is gzipped: unpack it first"),
            (b"PK\x03\x04\0\0", "job.txt:1: this is a zip archive: unpack it first"),
            (b"\x93FORETRACE\r\n\0", "job.txt:1: this is a Foretrace program, not a workload file"),
            (HEADER.encode("utf-16"), "job.txt:1: the file is UTF-16 text: save it as UTF-8"),
            (b'{"schema": 1}', "job.txt:1: this looks like JSON, not a workload file"),
            (b"\n [1, 2]", "job.txt:1: this looks like JSON, not a workload file"),
            (f"{HEADER}\n1\nx\0y\n".encode(), f"job.txt:3: this is not a text file: byte {len(HEADER) + 4} is zero"),
            (
                f"{HEADER}\n".encode() + b"\xff",
                f"job.txt:2: this is not a text file: byte {len(HEADER) + 1} is not UTF-8",
            ),
            (
                b"hybrid_transformer\n1\n",
                'job.txt:1: the first word, "hybrid_transformer", is not a policy; did you mean HYBRID_TRANSFORMER?',
            ),
            (b"Hello world\n", 'job.txt:1: the first word, "Hello", is not a policy'),
            (b"x" * 100_000, f'job.txt:1: the first word, "{"x" * 56}…", is not a policy'),
        ],
    )
    def test_refused(self, data: bytes, message: str) -> None:
        error = refusal(data)
        assert f"{error.where}: {error.message}" == message
        assert error.hint is not None
        assert error.hint.startswith("a workload file begins with a line such as")

    def test_the_times_that_aicb_reads(self) -> None:
        with pytest.raises(InputError) as caught:
            read_workload(shared("data", "simai", "workloads", "aiob_Example_input.txt"))
        assert caught.value.code == "wrong-format"


class TestHeader:
    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ("ep: x", 'ep: "x" is not a number'),
            ("ep: 1_0", 'ep: "1_0" is not a number'),
            ("ep: 2.5", 'ep: "2.5" is not a whole number'),
            ("ep: -2", 'ep: "-2" is negative'),
            ("ep: nan", 'ep: "nan" is not a finite number'),
            ("ep: pp: 3", 'ep: "pp:" is not a number'),
            ("ep:", "ep: has no value"),
            ("pp_comm: -Infinity", 'pp_comm: "-Infinity" is not a finite number'),
            ("pp_comm 1e400", 'pp_comm: "1e400" is too large'),
            ("model_parallel_NPU_group: 0", "model_parallel_NPU_group: 0 ranks cannot share a layer"),
            ("model_parallel_NPU_group: -8", 'model_parallel_NPU_group: "-8" is negative'),
            ("checkpoints: 3 1 2", "checkpoints: 3 wants 3 row numbers, 2 words are left"),
            ("checkpoints: 1000000000 1", "checkpoints: 1000000000 wants 1,000,000,000 row numbers, 1 words are left"),
            ("checkpoints: 2 1 ep: 1", 'checkpoints: "ep:" is not a number'),
        ],
    )
    def test_refused(self, keys: str, message: str) -> None:
        error = refusal(f"MICRO {keys}\n1\n{ROW}\n")
        assert f"{error.where}: {error.message}" == f"job.txt:1: {message}"
        assert error.hint is not None
        assert error.hint.startswith("expected")


class TestCount:
    @pytest.mark.parametrize(
        ("rest", "message"),
        [
            ("", "1: the number of rows is missing; the file ends here"),
            ("\n\n \n", "1: the number of rows is missing; the file ends here"),
            (f"\n{ROW}\n", "2: the number of rows is missing; 12 words are in its place"),
            (f"\nten\n{ROW}\n", '2: the number of rows, "ten", is not a number'),
            (f"\n-1\n{ROW}\n", '2: the number of rows, "-1", is negative'),
            (f"\n1.5\n{ROW}\n", '2: the number of rows, "1.5", is not a whole number'),
            ("\n3\n", "2: 3 rows are declared, but none follow; the file ends here"),
            ("\n1000000000", "2: 1,000,000,000 rows are declared, but none follow; the file ends here"),
        ],
    )
    def test_refused(self, rest: str, message: str) -> None:
        assert refused(f"{HEADER}{rest}") == f"job.txt:{message}"


class TestRows:
    @pytest.mark.parametrize(
        ("column", "word", "message"),
        [
            (1, "x", 'column 2, dependency: "x" is not a number'),
            (1, "0.5", 'column 2, dependency: "0.5" is not a whole number'),
            (2, "fast", 'column 3, forward time: "fast" is not a number'),
            (4, "NaN", 'column 5, forward size: "NaN" is not a finite number'),
            (5, "inf", 'column 6, input-grad time: "inf" is not a finite number'),
            (7, "-1", 'column 8, input-grad size: "-1" is negative'),
            (8, "0x10", 'column 9, weight-grad time: "0x10" is not a number'),
            (10, "1e30", 'column 11, weight-grad size: "1e30" is too large: at most 9.22e+18'),
            (10, "9" * 5000, f'column 11, weight-grad size: "{"9" * 56}…" is too long for a number: 5,000 characters'),
            (11, "٣", 'column 12, update time: "٣" is not a number'),
            (11, "\x1b[2J", 'column 12, update time: "�[2J" is not a number'),
        ],
    )
    def test_fields(self, column: int, word: str, message: str) -> None:
        words = ROW.split()
        words[column] = word
        assert refused(f"{HEADER}\n2\n{ROW}\n{' '.join(words)}\n") == f"job.txt:4: {message}"

    def test_the_hint_says_the_unit(self) -> None:
        assert refusal(f"{HEADER}\n1\n{ROW.replace('4096', 'x')}").hint == "expected a number of bytes, 0 or more"
        assert refusal(f"{HEADER}\n1\n{ROW.replace('30', 'x')}").hint == "expected a number of nanoseconds, 0 or more"

    def test_columns(self) -> None:
        short = ROW.rsplit("\t", 1)[0]
        start = f"{HEADER}\n2\n"
        assert refused(f"{start}{short}\n{ROW}\n") == "job.txt:3: this row has 11 columns instead of 12"
        assert refused(f"{start}word\n{ROW}\n") == "job.txt:3: this row has 1 column instead of 12"
        assert refused(f"{start}{ROW}\n{ROW}\t1\n") == (
            "job.txt:4: this row has 13 columns instead of 12; only HYBRID_CUSTOMIZED files have a 13th"
        )
        assert refused(f"HYBRID_CUSTOMIZED\n2\n{ROW}\n{ROW}") == "job.txt:3: this row has 12 columns instead of 13"
        assert "input grad and weight grad" in (refusal(f"{start}{short}\n").hint or "")

    def test_a_file_that_is_cut_short(self) -> None:
        for end in ("", "\n", "\n\n  \n"):
            assert refused(f"{HEADER}\n2\n{ROW}\nmlp_layer\t-1\t10{end}") == (
                "job.txt:4: the file is cut short here: its last row has 3 columns of 12"
            )
        assert refused(f"{HEADER}\n2\n{ROW}\nmlp") == (
            "job.txt:4: the file is cut short here: its last row has 1 column of 12"
        )
