"""What an answer was made of: hashes are of the bytes that were read, and every file is read once."""

from __future__ import annotations

import gzip
import hashlib
import tomllib
from pathlib import Path

import pytest

import foretrace
from foretrace.basics import origin
from foretrace.basics.file_registry import MAX_HASHED, tracked_files
from foretrace.basics.files import InputFile, read_whole
from foretrace.basics.origin import OriginFile, origin_of_command

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
CONTENT = bytes(range(256)) * 2000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.txt"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read a second time to hash them."""
    files: list[Path] = []
    real = origin.sha256_of
    monkeypatch.setattr(origin, "sha256_of", lambda path: (files.append(path), real(path))[1])
    return files


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_file_is_hashed_while_it_is_read(file: Path, read_again: list[Path]) -> None:
    with tracked_files(["simulate", "job.txt"], hashes_inputs=True):
        assert read_whole(file, "file", "") == CONTENT
        made = origin_of_command()
    assert made.command == "foretrace simulate job.txt"
    assert made.versions[0] == f"foretrace {foretrace.__version__}"
    assert made.files == (OriginFile(str(file), len(CONTENT), hash_of(CONTENT)),)
    assert not read_again


@pytest.mark.parametrize("steps", [(3, 5), (1000, -1), (len(CONTENT),), (7, 200_000, 300_000, 300_000)])
def test_the_hash_does_not_depend_on_how_it_is_read(steps: tuple[int, ...], file: Path, read_again: list[Path]) -> None:
    with tracked_files(hashes_inputs=True):
        given = InputFile(file)
        given.head(100)
        with given.take() as stream:
            for size in steps:
                stream.read(size)
            stream.seek(0)
            assert stream.read() == CONTENT
        (found,) = origin_of_command().files
    assert found.sha256 == hash_of(CONTENT)
    assert not read_again


def test_a_packed_file_is_hashed_as_it_is(tmp_path: Path, read_again: list[Path]) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(CONTENT))
    with tracked_files(hashes_inputs=True):
        with InputFile(path).take() as stream, gzip.GzipFile(fileobj=stream) as unpacked:
            assert unpacked.read() == CONTENT
        (found,) = origin_of_command().files
    assert found.sha256 == hash_of(path.read_bytes())
    assert not read_again


def test_an_empty_file_has_a_hash(tmp_path: Path, read_again: list[Path]) -> None:
    (tmp_path / "empty").touch()
    with tracked_files(hashes_inputs=True):
        read_whole(tmp_path / "empty", "file", "")
        (found,) = origin_of_command().files
    assert found == OriginFile(str(tmp_path / "empty"), 0, hash_of(b""))
    assert not read_again


@pytest.mark.parametrize("skipped", [0, 200_000])
def test_a_file_of_which_a_part_was_read_is_read_again(skipped: int, file: Path, read_again: list[Path]) -> None:
    with tracked_files(hashes_inputs=True):
        with InputFile(file).take() as stream:
            stream.seek(skipped)
            stream.read(10 if not skipped else -1)
        (found,) = origin_of_command().files
    assert found.sha256 == hash_of(CONTENT)
    assert read_again == [file]


def test_the_hash_is_of_what_was_read_before_a_change(file: Path, read_again: list[Path]) -> None:
    with tracked_files(hashes_inputs=True):
        read_whole(file, "file", "")
        file.write_bytes(b"another")
        (found,) = origin_of_command().files
    assert found.sha256 == hash_of(CONTENT)
    assert not read_again


def test_a_changed_file_that_was_not_hashed_has_no_hash(file: Path, read_again: list[Path]) -> None:
    with tracked_files(hashes_inputs=True):
        InputFile(file).head(10)
        file.write_bytes(b"another")
        made = origin_of_command()
    assert made.files == (OriginFile(str(file)),)
    assert not read_again


def test_files_are_hashed_only_where_that_is_asked_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("hashed")

    monkeypatch.setattr(hashlib, "sha256", refuse)
    with tracked_files():
        read_whole(file, "file", "")
    read_whole(file, "file", "")


def test_only_the_first_files_are_hashed_and_listed(tmp_path: Path, read_again: list[Path]) -> None:
    names = [tmp_path / f"{number:02}" for number in range(MAX_HASHED + 3)]
    with tracked_files(hashes_inputs=True):
        for path in names:
            path.write_text(path.name)
            read_whole(path, "file", "")
            read_whole(path, "file", "")
        read_whole(Path(foretrace.__file__), "file", "")
        made = origin_of_command()
    assert [file.name for file in made.files] == [str(path) for path in names[:MAX_HASHED]]
    assert made.more_files == 3
    assert not read_again


def test_without_a_command_only_the_versions_are_known(file: Path) -> None:
    read_whole(file, "file", "")
    made = origin_of_command()
    assert (made.command, made.files) == ("", ()) and made.versions


def test_the_version_is_that_of_the_package() -> None:
    assert foretrace.__version__ == tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["version"]
