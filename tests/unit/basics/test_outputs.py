"""Files written in one go, and outputs checked before any work."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from foretrace.basics.errors import ForetraceError, InputError
from foretrace.basics.outputs import (
    claim_output,
    is_leftover,
    make_folder,
    old_content,
    replacing,
    write_text,
    write_whole,
)


class Terminated(BaseException):
    """An exception of a signal handler."""


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Lets no file grow beyond a size, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_replaced_in_one_go(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    write_text(path, "old")
    path.chmod(0o640)
    with replacing(path, "answer") as stream:
        stream.write(b"ne")
        stream.flush()
        assert path.read_text() == "old"
        (temporary,) = set(names_in(tmp_path)) - {"answer.json"}
        assert is_leftover(temporary)
        stream.write(b"w")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert names_in(tmp_path) == ["answer.json"]


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "answer.json", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "answer.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), Terminated(), ValueError("not a number"), InputError("bad-value", "of an input")]
)
def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "answer.json"
    path.write_text("old")

    def parts() -> Iterator[bytes]:
        yield b"new" * 1_000_000
        raise error

    with pytest.raises(type(error)) as caught:
        write_whole(path, parts(), "answer")
    assert caught.value is error
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["answer.json"]


def test_an_error_of_reading_is_not_one_of_writing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "answer.json", "answer") as stream:
        stream.write((tmp_path / "missing").read_bytes())
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("size_bytes", [1000, 1_000_000])
def test_a_full_disk_is_an_error_with_a_code(tmp_path: Path, size_bytes: int) -> None:
    path = tmp_path / "answer.json"
    path.write_text("old")
    for place in (path, tmp_path / "new.json"):
        with largest_file(100), pytest.raises(InputError) as caught:
            write_whole(place, [b"x" * size_bytes], "answer")
        assert caught.value.code == "unwritable-file"
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["answer.json"]


@pytest.mark.parametrize(
    "place",
    [
        "",
        "missing/a",
        "file/a",
        "x" * 300,
        f"{'x' * 300}/a",
        "a\0b",
        "a\ud800",
        "locked/a",
        "loop",
        "loop/a",
        "fifo",
        "socket",
    ],
)
def test_places_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir(mode=0o555)
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    if place.startswith("locked") and os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user may write everywhere")
    before = names_in(tmp_path)
    with pytest.raises(InputError) as early:
        claim_output(tmp_path / place)
    with pytest.raises(InputError) as late, replacing(tmp_path / place, "answer"):
        pass
    assert early.value.code == late.value.code == "unwritable-file"
    assert names_in(tmp_path) == before


@pytest.mark.parametrize("place", ["file", "file/a", "loop/a", "a\0b", "x" * 300])
def test_folders_that_cannot_be_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError) as early:
        claim_output(tmp_path / place, folder=True)
    with pytest.raises(ForetraceError) as late:
        make_folder(tmp_path / place)
    assert early.value.code == late.value.code == "unwritable-file"


def test_a_folder_may_be_new(tmp_path: Path) -> None:
    claim_output(tmp_path / "a" / "b", folder=True)
    assert names_in(tmp_path) == []
    assert make_folder(tmp_path / "a" / "b") == set()
    assert make_folder(tmp_path / "a") == {"b"}


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null = Path(os.devnull)
    before = null.lstat()
    claim_output(null)
    write_text(null, "answer")
    assert os.path.samestat(null.lstat(), before)
    with pytest.raises(InputError) as caught:
        claim_output(Path("/dev/full"))
    assert caught.value.code == "unwritable-file"
    if os.geteuid() == 0:
        try:
            os.mknod(tmp_path / "null", 0o020666, before.st_rdev)
            write_text(tmp_path / "null", "answer")
        except (OSError, InputError):
            pytest.skip("devices cannot be made or used here")
        assert (tmp_path / "null").lstat().st_rdev == before.st_rdev


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "folder").mkdir()
    link.symlink_to("folder/answer")
    for text in ("first", "second"):
        write_text(link, text)
        assert link.is_symlink() and (tmp_path / "folder" / "answer").read_text() == text
    assert names_in(tmp_path / "folder") == ["answer"]


def test_a_file_that_is_protected_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text("old")
    path.chmod(0o444)
    if os.access(path, os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(InputError, match="unwritable-file"):
        write_text(path, "new")
    assert path.read_text() == "old"


def test_open_descriptors_are_written_as_the_bytes_come(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    write_text(Path(f"/dev/fd/{writing}"), "first ")
    (tmp_path / "link").symlink_to(f"/proc/self/fd/{writing}")
    write_text(tmp_path / "link", "second")
    os.close(writing)
    with os.fdopen(reading) as stream:
        assert stream.read() == "first second"
    with (tmp_path / "out").open("wb", buffering=0) as out:
        before = os.fstat(out.fileno())
        out.write(b"before ")
        write_text(Path(f"/proc/self/fd/{out.fileno()}"), "answer")
        out.write(b" after")
        assert os.path.samestat((tmp_path / "out").stat(), before)
    assert (tmp_path / "out").read_text() == "before answer after"
    with pytest.raises(InputError) as caught:
        write_text(Path("/dev/fd/987654"), "answer")
    assert caught.value.code == "unwritable-file"


def test_a_temporary_name_is_not_foreseen(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with replacing(tmp_path / "a", "answer"):
            names |= set(names_in(tmp_path)) - {"a"}
    assert len(names) == 3


def test_several_writers_leave_the_content_of_one(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    contents = [f"{number}" * 300_000 for number in range(4)]
    write_text(path, contents[0])

    def write(content: str) -> None:
        for _ in range(10):
            write_text(path, content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in contents
    assert path.read_text() in contents and names_in(tmp_path) == ["answer.json"]


def test_the_old_content_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    os.mkfifo(tmp_path / "fifo")
    assert old_content(tmp_path / "a") == b"old"
    assert old_content(tmp_path / "fifo") is old_content(tmp_path / "missing") is old_content(Path("a\0b")) is None
