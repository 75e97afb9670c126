"""Files of an input, opened once; paths as a user gives them."""

from __future__ import annotations

import gzip
import io
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.basics.files import (
    MAX_LISTED,
    GivenPath,
    InputFile,
    given_path,
    given_paths,
    head_bytes,
    input_file,
    open_binary,
    read_up_to,
    read_whole,
    unpack,
)

DATA = bytes(range(256)) * 1024


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is opened, by name."""
    counts: Counter[str] = Counter()
    real = Path.open

    def counted(path: Path, *arguments: Any, **options: Any) -> Any:
        counts[path.name] += 1
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", counted)
    return counts


def test_a_file_is_looked_at_and_read_through_one_handle(tmp_path: Path, opens: Counter[str]) -> None:
    (tmp_path / "a.bin").write_bytes(DATA)
    opens.clear()
    file = InputFile(tmp_path / "a.bin")
    assert (file.head(16), file.head(100_000), file.head(8)) == (DATA[:16], DATA[:100_000], DATA[:8])
    assert file.head(1 << 30) == DATA
    assert read_whole(file, "thing", "") == DATA
    assert file.head(16) == DATA[:16]
    assert opens == {"a.bin": 1}
    assert (file.name, str(file), os.fspath(file)) == ("a.bin", str(tmp_path / "a.bin"), str(tmp_path / "a.bin"))


def test_the_head_has_at_most_a_mebibyte(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(DATA * 8)
    file = InputFile(tmp_path / "a.bin")
    assert file.head(1 << 30) == DATA * 4
    file.close()


def test_a_closed_file_can_be_read(tmp_path: Path, opens: Counter[str]) -> None:
    (tmp_path / "a.bin").write_bytes(DATA)
    opens.clear()
    file = InputFile(tmp_path / "a.bin")
    assert file.head(4) == DATA[:4]
    file.close()
    file.close()
    assert file.head(4) == DATA[:4] and opens["a.bin"] == 1  # what was seen is kept
    with open_binary(file, "thing") as stream:
        assert stream.read() == DATA
    assert opens["a.bin"] == 2


def test_a_pipe_is_looked_at_without_losing_anything(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(DATA))
    writer.start()
    file = InputFile(path)
    head = file.head(1000)
    assert head and DATA.startswith(head)
    assert read_whole(file, "thing", "") == DATA
    writer.join()
    assert file.head(1000) == head  # a pipe is not opened again, which would wait for ever
    assert head_bytes(path, 1000) == b""  # and not looked at where it is given by its name


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    missing = InputFile(tmp_path / "trase.json")
    assert missing.head() == b""
    with pytest.raises(InputError) as caught:
        missing.open("trace")
    assert caught.value.code == "file-not-found" and str(tmp_path / "trace.json") in str(caught.value.hint)
    folder = InputFile(tmp_path)
    assert folder.head() == b""
    with pytest.raises(InputError) as caught:
        folder.open("trace")
    assert caught.value.code == "folder-instead-of-file"
    with pytest.raises(InputError) as caught:
        InputFile("a\0b").open("trace")
    assert caught.value.code == "unreadable-file"
    assert InputFile("a\0b").head() == b"" == head_bytes("a\0b", 4)


@pytest.mark.parametrize("value", [8, None, [8], {"a": 1}.keys, 1.5])
def test_other_things_than_paths(value: Any) -> None:
    for act in (lambda: given_paths(value), lambda: input_file(value), lambda: read_whole(value, "thing", "")):
        with pytest.raises(InputError) as caught:
            act()
        assert caught.value.code == "bad-value"


def test_few_files_stay_open(tmp_path: Path) -> None:
    files = []
    for number in range(200):
        (tmp_path / f"{number}").write_bytes(b"%d" % number)
        files.append(InputFile(tmp_path / f"{number}"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert [file.head() for file in files] == [b"%d" % number for number in range(200)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 70
    assert [read_whole(file, "thing", "") for file in files] == [b"%d" % number for number in range(200)]


def test_paths_as_they_are_given(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("b.txt", "a.txt", "c.json", "inner/d.txt"):
        (tmp_path / name).write_text(name)
    folder, pattern, file = given_paths([tmp_path, f"{tmp_path}/*.txt", tmp_path / "a.txt"])
    assert (folder.is_folder, folder.is_pattern, folder.is_file, folder.is_many) == (True, False, False, True)
    assert [one.name for one in folder.files] == ["a.txt", "b.txt", "c.json"]
    assert (pattern.is_folder, pattern.is_pattern, pattern.is_file, pattern.is_many) == (False, True, False, True)
    assert [one.name for one in pattern.files] == [path.name for path in pattern.matches] == ["a.txt", "b.txt"]
    assert (file.is_folder, file.is_pattern, file.is_file, file.is_many) == (False, False, True, False)
    assert file.files is file.files and file.matches == (tmp_path / "a.txt",)
    both = given_path(f"{tmp_path}/inn*")
    assert [str(one) for one in both.files] == [str(tmp_path / "inner" / "d.txt")]
    assert given_path("a\0/*").files == () and not given_path("a\0b").is_file
    assert len(folder.first_files) <= MAX_LISTED


def test_forms_of_a_path_are_one(tmp_path: Path) -> None:
    file = InputFile(tmp_path / "a.txt")
    given = given_path(file)
    assert given.files == (file,) and given == GivenPath(str(tmp_path / "a.txt"))
    assert given_path(given) is given and input_file(file) is file


def test_files_that_a_killed_process_left_are_not_read(tmp_path: Path) -> None:
    for name in ("a.txt", ".foretrace-0123456789abcdef.tmp"):
        (tmp_path / name).write_text(name)
    for given in (given_path(tmp_path), given_path(f"{tmp_path}/.*"), given_path(f"{tmp_path}/*")):
        assert [file.name for file in given.files if "0123" in file.name] == []


def test_a_raised_limit_does_not_ask_for_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRACE_LIMITS", "1000000x")
    (tmp_path / "small").write_bytes(DATA)
    assert read_whole(tmp_path / "small", "file", "") == DATA
    packed = gzip.compress(DATA)
    assert unpack(packed, "file", "x", 1 << 30) == DATA


def test_what_is_longer_than_a_part_is_read_to_its_limit() -> None:
    assert read_up_to(io.BytesIO(DATA), 1000) == DATA[:1000]
    assert read_up_to(io.BytesIO(DATA), len(DATA) + 5) == DATA
