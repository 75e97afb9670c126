"""Inputs and outputs of a command are kept apart."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from foretrace.basics.errors import ForetraceError
from foretrace.basics.file_registry import FileRegistry, active_registry, tracked_files
from foretrace.basics.files import GivenPath, InputFile, read_whole
from foretrace.basics.outputs import claim_output, write_text


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FileRegistry]:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "c.txt").write_text("c")
    (tmp_path / "link").symlink_to("a.txt")
    (tmp_path / "way").symlink_to("folder")
    os.link(tmp_path / "a.txt", tmp_path / "second_name")
    with tracked_files() as registry:
        yield registry


NAMES_OF_A = ["a.txt", "link", "second_name", "folder/../a.txt"]


@pytest.mark.parametrize("written", NAMES_OF_A)
@pytest.mark.parametrize("read", NAMES_OF_A)
@pytest.mark.usefixtures("files")
def test_an_input_is_not_written_by_any_name(tmp_path: Path, read: str, written: str) -> None:
    read_whole(tmp_path / read, "thing", "")
    for act in (lambda: write_text(tmp_path / written, "new"), lambda: claim_output(tmp_path / written)):
        with pytest.raises(ForetraceError) as caught:
            act()
        assert caught.value.code == "output-overwrites-input"
    assert (tmp_path / "a.txt").read_text() == "a.txt"


@pytest.mark.parametrize("read", NAMES_OF_A)
def test_an_output_is_not_read_by_any_name(files: FileRegistry, tmp_path: Path, read: str) -> None:
    claim_output(tmp_path / "link")
    for act in (lambda: InputFile(tmp_path / read).head(), lambda: files.check_input(tmp_path / read)):
        with pytest.raises(ForetraceError) as caught:
            act()
        assert caught.value.code == "output-overwrites-input"
    read_whole(tmp_path / "b.txt", "thing", "")


def test_two_outputs_are_two_files(files: FileRegistry, tmp_path: Path) -> None:
    for first, second in (("new", "folder/../new"), ("link", "second_name"), ("folder/new", "way/new")):
        claim_output(tmp_path / first)
        with pytest.raises(ForetraceError) as caught:
            claim_output(tmp_path / second)
        assert caught.value.code == "output-overwrites-input"
        assert files.is_claimed(tmp_path / second)
    for _ in range(2):
        claim_output(Path(os.devnull))
        write_text(tmp_path / "new", "an output may be written again")


@pytest.mark.usefixtures("files")
def test_an_output_that_another_process_replaces_is_no_longer_its_old_file(tmp_path: Path) -> None:
    claim_output(tmp_path / "b.txt")
    (tmp_path / "b.txt").rename(tmp_path / "other")  # stands for a new file that was given the number of the old one
    (tmp_path / "b.txt").write_text("new")
    claim_output(tmp_path / "other")
    with pytest.raises(ForetraceError) as caught:
        read_whole(tmp_path / "b.txt", "thing", "")
    assert caught.value.code == "output-overwrites-input"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("file", "folder"), [("new", "new"), ("new", "new/below"), ("way/new", "folder/new")])
@pytest.mark.parametrize("folder_first", [False, True])
def test_no_output_is_a_file_and_a_folder(tmp_path: Path, file: str, folder: str, folder_first: bool) -> None:
    claims = [(file, False), (folder, True)]
    (first, is_folder), (second, other) = reversed(claims) if folder_first else claims
    claim_output(tmp_path / first, folder=is_folder)
    with pytest.raises(ForetraceError) as caught:
        claim_output(tmp_path / second, folder=other)
    assert caught.value.code == "output-overwrites-input"


def test_a_folder_is_read_or_written_to(files: FileRegistry, tmp_path: Path) -> None:
    claim_output(tmp_path / "folder", folder=True)
    with pytest.raises(ForetraceError) as caught:
        _ = GivenPath(str(tmp_path / "way")).files
    assert caught.value.code == "output-overwrites-input"
    assert [file.name for file in GivenPath(str(tmp_path)).files][:2] == ["a.txt", "b.txt"]
    with pytest.raises(ForetraceError) as caught:
        claim_output(tmp_path, folder=True)
    assert caught.value.code == "output-overwrites-input"
    read_whole(tmp_path / "way" / "c.txt", "thing", "")
    assert [path.name for path in files.inputs_of(tmp_path / "folder")] == ["c.txt"]


@pytest.mark.usefixtures("files")
def test_a_pipe_is_not_waited_for_twice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(b"content"))
    writer.start()
    assert read_whole(tmp_path / "pipe", "thing", "") == b"content"
    writer.join()
    with pytest.raises(ForetraceError) as caught:
        read_whole(tmp_path / "pipe", "thing", "")
    assert caught.value.code == "unreadable-file"
    for _ in range(2):
        assert read_whole(os.devnull, "thing", "") == b""


def test_a_registry_ends_with_its_command(files: FileRegistry) -> None:
    with tracked_files() as inner:
        assert inner is files is active_registry()
    assert active_registry() is files


def test_without_a_command_nothing_is_tracked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(KeyError), tracked_files():
        raise KeyError
    assert active_registry() is None
    read_whole(tmp_path / "a.txt", "thing", "")
    write_text(tmp_path / "a.txt", "new")
