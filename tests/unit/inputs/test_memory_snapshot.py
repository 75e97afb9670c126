"""Memory snapshots of PyTorch: what is read from them, and files that are none."""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs import memory_snapshot
from foretrace.inputs.memory_snapshot import MemorySnapshot, read_memory_snapshot
from shared_files import ROOT

MIB = 1 << 20
FRAMES = [{"filename": "model.py", "name": "forward", "line": 7}]


def segment(total: int, allocated: int, device: int = 0) -> dict[str, Any]:
    """A segment as `torch/csrc/cuda/Module.cpp` writes it."""
    sizes = {"total_size": total, "allocated_size": allocated, "active_size": allocated, "requested_size": allocated}
    block = {"address": 1 << 46, "size": total, "requested_size": allocated, "state": "inactive", "frames": FRAMES}
    kind = {"segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False}
    return {"device": device, "address": 1 << 46, "stream": 0, **sizes, **kind, "frames": [], "blocks": [block]}


def event(action: str, size: int, time_us: int) -> dict[str, Any]:
    place = {"device_free": 0} if action == "oom" else {"addr": (1 << 46) + time_us}
    return {"action": action, **place, "size": size, "stream": 0, "time_us": time_us, "frames": FRAMES}


def snapshot(events: list[dict[str, Any]], *segments: dict[str, Any]) -> dict[str, Any]:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "garbage_collection_threshold": 0.0, "expandable_segments": False}
    return {"segments": list(segments), "device_traces": [events, []], "allocator_settings": settings}


STEP = snapshot(
    [
        event("segment_alloc", 20 * MIB, 1_000_000),
        event("alloc", 8 * MIB, 1_000_001),
        event("segment_map", 4 * MIB, 1_000_002),
        event("alloc", 10 * MIB - 100, 1_500_000),
        event("free_requested", 10 * MIB - 100, 1_700_000),
        event("free_completed", 10 * MIB - 100, 1_700_001),
        event("segment_unmap", 4 * MIB, 1_800_000),
        event("snapshot", 0, 2_000_000),
    ],
    segment(20 * MIB, 8 * MIB),
)
"""A step that allocates 18 MiB at its peak and ends with 8."""


def read(path: Path, content: Any, protocol: int = 4) -> MemorySnapshot:
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return read_memory_snapshot(path)


def code_of(path: Path, content: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(path, content)
    return caught.value.code


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, "json"])
def test_peaks_are_those_of_the_history(protocol: int | str, tmp_path: Path) -> None:
    content = json.dumps(STEP).encode() if isinstance(protocol, str) else pickle.dumps(STEP, protocol)
    memory = read(tmp_path / "snapshot", content)
    assert (memory.allocated_bytes, memory.reserved_bytes) == (8 * MIB, 20 * MIB)
    assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes) == (18 * MIB, 24 * MIB)
    assert (memory.events, memory.span_s, memory.peak_s) == (8, 1.0, 0.5)
    assert memory.is_whole
    assert not memory.diagnostics


def test_a_history_without_its_beginning_starts_from_the_end(tmp_path: Path) -> None:
    late = {**STEP, "device_traces": [STEP["device_traces"][0][3:]]}
    memory = read(tmp_path / "late.pickle", late)
    assert (memory.first_allocated_bytes, memory.first_reserved_bytes) == (8 * MIB, 24 * MIB)
    assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes) == (18 * MIB, 24 * MIB)
    assert not memory.is_whole


def test_a_state_without_history_is_its_own_peak(tmp_path: Path) -> None:
    for content in (snapshot([], segment(20 * MIB, 8 * MIB)), [segment(20 * MIB, 8 * MIB)]):
        memory = read(tmp_path / "state.pickle", content)
        assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes) == (8 * MIB, 20 * MIB)
        assert (memory.events, memory.span_s, memory.is_whole) == (0, None, False)


def test_the_fullest_device_is_taken(tmp_path: Path) -> None:
    memory = read(tmp_path / "two.pickle", {**STEP, "segments": [*STEP["segments"], segment(40 * MIB, MIB, 3)]})
    assert (memory.device, memory.devices, memory.peak_reserved_bytes) == (3, 2, 40 * MIB)


def test_a_history_that_frees_more_than_there_was_is_reported(tmp_path: Path) -> None:
    memory = read(tmp_path / "odd.pickle", snapshot([event("alloc", 4 * MIB, 1)], segment(MIB, MIB)))
    assert [note.code for note in memory.diagnostics] == ["odd-input"]


def test_failed_allocations_are_counted(tmp_path: Path) -> None:
    memory = read(tmp_path / "oom.pickle", snapshot([event("oom", 90 * MIB, 5)], segment(MIB, MIB)))
    assert memory.out_of_memory_events == 1
    assert memory.peak_allocated_bytes == MIB


class Hostile:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_a_pickle_that_calls_something_is_refused_and_calls_nothing(tmp_path: Path) -> None:
    for protocol in (2, 4):
        content = pickle.dumps({**STEP, "extra": Hostile(tmp_path / "called")}, protocol)
        assert code_of(tmp_path / "hostile.pickle", content) == "wrong-format"
    assert not (tmp_path / "called").exists()


def test_only_plain_values_are_read(tmp_path: Path) -> None:
    for value in (OrderedDict(a=1), {1}, b"bytes", Path("x"), 1 + 2j):
        assert code_of(tmp_path / "other.pickle", {**STEP, "extra": value}) == "wrong-format"


def test_short_pickles_take_little_memory_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A memo number of 4 billion makes Python's own reader take 64 GiB.
    memo = b"\x80\x04]r\xff\xff\xff\xff."
    assert code_of(tmp_path / "memo.pickle", memo) == "empty-file"
    # Each tuple holds the one before twice: hashing the last takes 2 ** 60 steps.
    tuples = b"\x80\x04}(K\x00" + b"".join(b"q%ch%ch%c\x86" % (n, n, n) for n in range(60)) + b"K\x01u."
    assert code_of(tmp_path / "tuples.pickle", tuples) == "wrong-format"
    monkeypatch.setattr(memory_snapshot, "MAX_ENTRIES", 100)
    assert code_of(tmp_path / "lists.pickle", b"\x80\x04](" + b"]" * 200 + b"e.") == "input-too-large"
    shared = b"\x80\x04}(\x8c\x08segments]\x8c\rdevice_traces](" + b"]q\x00" + b"h\x00" * 200 + b"eu."
    assert code_of(tmp_path / "shared.pickle", shared) == "empty-file"


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    whole = pickle.dumps(snapshot(STEP["device_traces"][0][:2], segment(20 * MIB, 8 * MIB)))
    for size in range(0, len(whole), 5):
        assert code_of(tmp_path / "cut.pickle", whole[:size]) == ("empty-file" if size == 0 else "truncated-file")
    text = json.dumps(STEP).encode()
    for size in range(1, len(text), 197):
        assert code_of(tmp_path / "cut.json", text[:size]) == "bad-syntax"


def test_a_damaged_byte_is_never_a_traceback(tmp_path: Path) -> None:
    whole = pickle.dumps(snapshot(STEP["device_traces"][0][:2], segment(20 * MIB, 8 * MIB)))
    for at in range(0, len(whole), 7):
        for byte in (0x28, 0x65, 0xFF):
            damaged = whole[:at] + bytes([byte]) + whole[at + 1 :]
            (tmp_path / "damaged.pickle").write_bytes(damaged)
            try:
                read_memory_snapshot(tmp_path / "damaged.pickle")
            except InputError:
                continue


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty-file"),
        (b"hello", "wrong-format"),
        (b"\x1f\x8b\x08\x00", "wrong-format"),
        ({"model": 1}, "wrong-format"),
        ([], "empty-file"),
        (snapshot([]), "empty-file"),
        ({"segments": [1]}, "missing-field"),
        ({"segments": [{"device": 0, "total_size": 1}]}, "missing-field"),
        ({"segments": [segment(-1, 0)]}, "out-of-range"),
        ({"segments": [segment(1 << 70, 0)]}, "out-of-range"),
        ({"segments": [segment(MIB, MIB, 5000)]}, "out-of-range"),
        ({"segments": [{**segment(MIB, MIB), "total_size": 1.5}]}, "bad-value"),
        ({"segments": [{**segment(MIB, MIB), "total_size": [[]]}]}, "bad-value"),
        ({"segments": [], "device_traces": {}}, "empty-file"),
        ({"segments": [], "device_traces": [1]}, "bad-value"),
        ({"segments": [], "device_traces": [[1]]}, "bad-value"),
        ({"segments": [], "device_traces": [[{"action": []}]]}, "bad-value"),
        ({"segments": [], "device_traces": [[{"action": "alloc"}]]}, "missing-field"),
        ({"segments": [], "device_traces": [[event("alloc", 1 << 49, 1)] * 9000]}, "out-of-range"),
        (b'{"segments": NaN}', "out-of-range"),
        (b"[" * 100_000, "too-deep"),
    ],
)
def test_what_is_not_a_snapshot_is_refused(content: Any, code: str, tmp_path: Path) -> None:
    assert code_of(tmp_path / "wrong", content) == code


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none", "file-not-found"), (tmp_path, "folder-instead-of-file")):
        with pytest.raises(InputError) as caught:
            read_memory_snapshot(path)
        assert caught.value.code == code


def test_the_reader_agrees_with_pythons_own(tmp_path: Path) -> None:
    for protocol in (2, 3, 4, 5):
        data = pickletools.optimize(pickle.dumps(STEP, protocol))
        assert read(tmp_path / "a", data) == read(tmp_path / "b", pickle.dumps(pickle.load(io.BytesIO(data))))


def test_a_snapshot_of_pytorch_has_the_peaks_of_its_own_statistics() -> None:
    """Taken on an H200; `torch.cuda.memory_stats` said the same at its end (benchmarks/truth/README.md)."""
    snapshot = read_memory_snapshot(ROOT / "benchmarks" / "truth" / "h200_snapshot.pickle")
    assert snapshot.allocated_bytes == 1_570_620_928
    assert (snapshot.peak_allocated_bytes, snapshot.peak_reserved_bytes) == (2_077_901_312, 2_269_118_464)
