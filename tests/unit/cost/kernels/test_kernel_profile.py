"""Kernel profiles: what is written is read back, and what is wrong is named with its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.cost.kernels.kernel_profile import KernelTimes, read_profile, write_profile
from foretrace.program.kernels import Attention, Copy, Gemm, GroupedGemm, Kernel, Stream

HEAD = "# foretrace kernel profile: 1\n# gpu: NVIDIA H200\n"
ROW = "gemm m=8192 n=4096 k=1024\t1e-4\t1.25e-4\t1650\t690\n"

KERNELS: tuple[Kernel, ...] = (
    Gemm(8192, 4096, 1024, layout="nt", out="fp32", accumulate=True),
    GroupedGemm(8, 4096, 28672, 4096, largest=512),
    Attention(1, 32, 8, 4096, 4096, 128, 128, 4096 * 4097 // 2, backward=True, backend="flash2"),
    Stream("rmsnorm_backward", 1 << 26, 1 << 25, rows=4096),
    Copy(1 << 30, "gpu"),
)


def profile(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gpu.profile"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["gpu.profile", "gpu.profile.gz"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    rows = [KernelTimes(kernel, 1e-4 * (i + 1), 1.2e-4 * (i + 1), 1500 + i, 650) for i, kernel in enumerate(KERNELS)]
    write_profile(tmp_path / name, {"gpu": "NVIDIA H200", "method": "two\nlines: here"}, rows, ["not measured: x"])
    read = read_profile(tmp_path / name)
    assert read.kernels == KERNELS
    assert read.facts == {"gpu": "NVIDIA H200", "method": "two lines: here"}
    assert read.burst_s == pytest.approx([row.burst_s for row in rows])
    assert read.sustained_s == pytest.approx([row.sustained_s for row in rows])
    assert read.clock_mhz.tolist() == [1500, 1501, 1502, 1503, 1504]
    assert read.power_w.tolist() == [650] * 5


@given(times=st.lists(st.floats(1e-7, 10), min_size=2, max_size=2), size=st.integers(1, 1 << 40))
def test_times_keep_five_digits(tmp_path_factory: pytest.TempPathFactory, times: list[float], size: int) -> None:
    path = tmp_path_factory.mktemp("profile") / "gpu.profile"
    write_profile(path, {}, [KernelTimes(Stream("add", size, 0), *times)])
    read = read_profile(path)
    assert read.kernels == (Stream("add", size, 0),)
    assert [read.burst_s[0], read.sustained_s[0]] == pytest.approx(times, rel=1e-4)


def test_the_same_content_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_profile(tmp_path / name, {}, [KernelTimes(KERNELS[0], 1e-4, 1e-4)])
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "no kernel profile"),
        ("gpu,time\n", 1, "no kernel profile"),
        ("# foretrace kernel profile: 2\n" + ROW, 1, 'version "2"'),
        (HEAD + "# nothing\n" + ROW, 3, "key: value"),
        (HEAD + "# gpu: again\n" + ROW, 3, "twice"),
        (HEAD + ROW + ROW, 4, "twice"),
        (HEAD + "gemm m=8192 n=4096 k=1024\t1e-4\n", 3, "2 fields instead of 5"),
        (HEAD + ROW.replace("gemm", "gem"), 3, "not known"),
        (HEAD + ROW.replace("m=8192", "m=many"), 3, "cannot be read"),
        (HEAD + "3*" + ROW, 3, "one kernel"),
        (HEAD + ROW.replace("1e-4", "fast"), 3, 'burst time "fast"'),
        (HEAD + ROW.replace("1.25e-4", "nan"), 3, 'sustained time "nan"'),
        (HEAD + ROW.replace("1.25e-4", "0"), 3, 'sustained time "0"'),
        (HEAD + ROW.replace("1e-4", "-1"), 3, 'burst time "-1"'),
        (HEAD + ROW.replace("690", "inf"), 3, 'power "inf"'),
    ],
)
def test_errors_name_the_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = profile(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert caught.value.where == f"{path}:{line}"
    assert says in caught.value.message


def test_a_profile_without_kernels_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_profile(profile(tmp_path, HEAD + "## not measured: all\n\n"))
    assert caught.value.code == "empty-file"


def test_a_damaged_archive_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "gpu.profile.gz"
    path.write_bytes(gzip.compress((HEAD + ROW * 1).encode())[:-12])
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert caught.value.code == "truncated-file"


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "gpu.profile"
    path.write_bytes(HEAD.encode() + b"\xff\xfe\n")
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert caught.value.code == "not-text"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("m=8192", "m=-8192", "out-of-range"),
        ("m=8192", "m=0", "out-of-range"),
        ("m=8192", f"m={'9' * 400}", "out-of-range"),
        ("m=8192", f"m={'9' * 900}", "out-of-range"),
        ("m=8192", f"m={'9' * 5000}", "bad-syntax"),
        ("k=1024", "k=1024 dtype=fp99", "unknown-name"),
        ("1.25e-4", "1e-320", "out-of-range"),
        ("1650", "1e300", "out-of-range"),
        ("gemm m", "stream name=add\x00 read=1 write=1 m", "not-text"),
    ],
)
def test_numbers_that_cannot_be_meant(tmp_path: Path, old: str, new: str, code: str) -> None:
    path = profile(tmp_path, HEAD + ROW.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert (caught.value.code, caught.value.where) == (code, f"{path}:3")
    assert len(str(caught.value)) < 500


def test_a_profile_larger_than_any_real_one(tmp_path: Path) -> None:
    for text in ("\n" * 200_001, "x" * (33 << 20)):
        with pytest.raises(InputError) as caught:
            read_profile(profile(tmp_path, HEAD + ROW + text))
        assert caught.value.code == "input-too-large"
