"""The program file: what comes back is what was saved, small, and a bad file is refused by name."""

from __future__ import annotations

import gzip
import json
import os
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import Mesh
from foretrace.program.as_json import to_json
from foretrace.program.build import ProgramBuilder
from foretrace.program.file import SECTIONS, load, save
from foretrace.program.program import Program, Source
from foretrace.program.sections import FRAME_ROWS, MAGIC, read_file, write_file


def sample() -> Program:
    """Two stages with everything a program may have."""
    notes = [
        Diagnostic("note", "guessed", "bytes guessed", "job.txt:1"),
        Diagnostic("warning", "odd-input", "cut short"),
    ]
    build = ProgramBuilder(Mesh(dp=2, pp=2), title="two stages, “quoted”", tokens_per_step=8192.0, diagnostics=notes)
    build.resource("nic", 50e9, shared_by=[[0, 1], [2, 3]])
    build.resource("hbm", 3e12)
    hop, ring = build.pair("pp", 0, 1), build.groups("ring", [[0, 1], [3, 2]], axis="dp")
    for stage in range(2):
        block = build.block(f"forward {stage}")
        layer = block.compute("layer", 3e-3, phase="forward", layer=stage, alloc={"activations": 1 << 20})
        move = {"draws": {"nic": 1e6}, "holds": {"hbm": 1e9}}
        block.transfer(
            "hop", hop, bytes=1 << 20, to=None if stage else 1, after=layer, source=Source("guess", 0.5, 2.0), **move
        )
        block.collective("all_reduce", ring, 17 * 1e-9, bytes=64, dtype="bf16", kernel="ring")
        block.port("out", layer)
        role = build.role(f"stage {stage}", build.mesh.where(pp=stage))
        role.resident(weights=1 << 30)
        first = role.place(block, microbatch=0)
        last = role.place(block, microbatch=1, after=first["out"], override={"out": {"duration_s": 4e-3, "layer": 7}})
        role.link(first["out"], after=last["out"], steps=1)
    return build.program()


def pipeline(stages: int = 8, microbatches: int = 64) -> Program:
    """Every stage runs all its forwards, then all its backwards: few blocks, placed many times."""
    build = ProgramBuilder(Mesh(pp=stages), title="pipeline")
    hops = [build.pair("pp", stage, stage + 1) for stage in range(stages - 1)]
    for stage in range(stages):
        role = build.role(f"stage {stage}", [stage])
        forward, backward = build.block(f"forward {stage}"), build.block(f"backward {stage}")
        if stage > 0:
            forward.transfer("receive", hops[stage - 1], 1e-4, bytes=1 << 24)
        for layer in range(4):
            forward.compute("layer", 3e-3, phase="forward", layer=layer, flops=3e12, alloc={"activations": 1 << 24})
            backward.compute("layer", 6e-3, phase="backward", layer=layer, flops=6e12, free={"activations": 1 << 24})
        if stage < stages - 1:
            forward.transfer("send", hops[stage], 1e-4, to=1, bytes=1 << 24)
        done = [role.place(forward, microbatch=number) for number in range(microbatches)]
        for number, placement in enumerate(done):
            role.place(backward, microbatch=number, after=placement[0])
    return build.program()


def traced(ops: int = 100_000) -> Program:
    """An arbitrary step as a profiler would record it: nothing repeats, durations are whole nanoseconds."""
    random = np.random.default_rng(7)
    build = ProgramBuilder(title="trace", repeats=False)
    block = build.block("step")
    for number in range(200):
        block.compute(f"kernel {number}", 1e-6, lane=f"stream {number % 3}")
    build.role("rank 0", [0]).place(block)
    small = build.program()
    target = np.sort(random.integers(100, ops, ops // 2)).astype(np.int32)
    columns = {name: np.resize(values, ops) for name, values in small.templates.columns.items()} | {
        "name": random.integers(0, 200, ops).astype(np.int32),
        "lane": random.integers(0, 3, ops).astype(np.int16),
        "phase": random.integers(0, 7, ops).astype(np.uint8),
        "layer": random.integers(-1, 96, ops).astype(np.int32),
        "duration_s": np.round(random.lognormal(np.log(50e-6), 1.5, ops), 9),
    }
    return replace(
        small,
        templates=replace(
            small.templates,
            start=np.array([0, ops], dtype=np.int32),
            columns=columns,
            dep_src=target - random.integers(1, 100, ops // 2).astype(np.int32),
            dep_dst=target,
        ),
    )


def bits(part: Any) -> Any:
    """A program in a form that is equal only if every array has the same type and the same bits."""
    if isinstance(part, np.ndarray):
        return part.dtype.str, part.shape, part.tobytes()
    if is_dataclass(part):
        return type(part), [bits(getattr(part, field.name)) for field in fields(part)]
    if isinstance(part, dict):
        return {name: bits(value) for name, value in part.items()}
    return [bits(one) for one in part] if isinstance(part, tuple) else part


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A program file to read or to spoil."""
    save(sample(), tmp_path / "job.foretrace")
    return tmp_path / "job.foretrace"


def refusal(path: Path) -> str:
    """What `load` says of a bad file: one error, which names the file."""
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


@pytest.mark.parametrize("write", [sample, pipeline, lambda: traced(1000)], ids=["sample", "pipeline", "traced"])
def test_what_is_loaded_is_what_was_saved(write: Callable[[], Program], tmp_path: Path) -> None:
    program = write()
    save(program, tmp_path / "job.foretrace")
    assert bits(load(str(tmp_path / "job.foretrace"))) == bits(program)


def test_the_sample_leaves_no_part_of_a_program_out() -> None:
    parts = to_json(sample())
    assert [name for name, value in parts.items() if value in ([], None, "")] == []
    assert np.isnan(sample().templates.columns["duration_s"]).any()


def test_columns_longer_than_a_frame_are_split_and_joined(tmp_path: Path) -> None:
    program = traced(FRAME_ROWS + 3)
    save(program, tmp_path / "job.foretrace")
    assert bits(load(tmp_path / "job.foretrace")) == bits(program)


def test_the_same_program_gives_the_same_bytes(path: Path) -> None:
    before = path.read_bytes()
    save(load(path), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("write", [pipeline, traced])
def test_a_file_is_a_twentieth_of_its_json(write: Callable[[], Program], tmp_path: Path) -> None:
    """Against one JSON object per op of the templates, dependency, placement and link, without blanks."""
    program = write()
    save(program, tmp_path / "job.foretrace")
    as_json = json.dumps(to_json(program), separators=(",", ":"))
    assert 20 * (tmp_path / "job.foretrace").stat().st_size < len(as_json)


def test_json_is_in_words() -> None:
    shown = to_json(sample())
    op = shown["ops"][1]
    assert {name: op[name] for name in ("block", "kind", "name", "lane", "collective", "communicator", "source")} == {
        "block": 0,
        "kind": "transfer",
        "name": "hop",
        "lane": "pp 0-1",
        "collective": "transfer",
        "communicator": "pp 0-1",
        "source": "guess",
    }
    assert (op["duration_s"], op["kernel"]) == (None, None)
    assert shown["placements"][1] == {"role": 0, "block": 0, "microbatch": 1}
    assert shown["overrides"][0] == {"placement": 1, "op": 0, "column": "duration_s", "value": 4e-3}
    assert shown["memory"][0]["category"] == "activations"
    json.dumps(shown, allow_nan=False)


def test_a_failed_save_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError) as caught:
        save(pipeline(2, 2), path)
    assert caught.value.code == "unwritable-file"
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "place", ["", "missing/job.foretrace", "file/job.foretrace", "x" * 300, "locked/job.foretrace"]
)
def test_a_place_that_cannot_be_written_is_an_error(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir(mode=0o555)
    if place.startswith("locked") and os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(InputError) as caught:
        save(pipeline(1, 1), tmp_path / place)
    assert caught.value.code == "unwritable-file" and caught.value.where


def test_a_program_with_a_column_of_its_own_is_not_written(tmp_path: Path) -> None:
    program = sample()
    program.templates.columns["colour"] = program.templates.columns["kind"]
    with pytest.raises(InputError, match=r"templates\.colour is not known"):
        save(program, tmp_path / "job.foretrace")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\x00\xff" * 500, "not a Foretrace program file"),
        (b'{"title": "a"}', "not a Foretrace program file"),
        (gzip.compress(b"a", mtime=0), "gzipped: unpack it first"),
        (
            MAGIC + struct.pack("<I", 3),
            r"written by a newer Foretrace \(format 3\); this one reads up to 1  \[unknown-version\]\n +upgrade",
        ),
        (MAGIC + struct.pack("<I", 0), "there is no format 0"),
        (MAGIC + struct.pack("<IIII", 1, 2**32 - 1, 2**32 - 1, 0), "cut short: the header needs 4294967295 bytes"),
    ],
)
def test_what_is_no_program_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "job.foretrace").write_bytes(content)
    assert re.search(message, refusal(tmp_path / "job.foretrace"))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "not a file" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "job.foretrace")


def test_a_file_cut_short_anywhere_is_refused(path: Path) -> None:
    save(pipeline(1, 1), path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert re.search("cut short|empty", refusal(path))


def test_a_byte_that_changed_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        refusal(path)


def test_bytes_after_the_end_are_refused(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"more")
    assert f"byte {size}: 4 bytes follow the end" in refusal(path)


def frame(name: str, dtype: bytes, coding: bytes, rows: int, payload: bytes) -> bytes:
    """A frame with a right checksum, whatever it claims."""
    head = bytes([len(name)]) + name.encode() + struct.pack("<3scII", dtype, coding, rows, len(payload))
    return head + struct.pack("<I", zlib.crc32(head + payload)) + payload


def end(frames: int) -> bytes:
    head = b"\0" + struct.pack("<I", frames)
    return head + struct.pack("<I", zlib.crc32(head))


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (frame("role_of", b"<i4", b"c", 4, bytes(4)), 'section "role_of" comes twice'),
        (frame("resources.colour", b"<i4", b"c", 4, bytes(4)), 'no section "resources.colour"'),
        (frame("role_of", b"<i4", b"c", 2**32 - 1, bytes(4)), "a frame claims 4294967295 rows"),
        (frame("role_of", b"<i4", b"c", 4, bytes(3)), "does not hold the 4 rows"),
        (frame("role_of", b"<i4", b"z", 4, bytes(4)), "does not hold the 4 rows"),
        (frame("role_of", b"<i4", b"p", 4, b"not deflated"), "does not hold the 4 rows"),
        (frame("role_of", b"<i4", b"p", 4, zlib.compress(bytes(10**8), wbits=-15)), "does not hold the 4 rows"),
        (frame("role_of", b"<i4", b"i", 4, zlib.compress(bytes(8), wbits=-15)), "does not hold the 4 rows"),
        (frame("role_of", b"<f8", b"c", 4, bytes(8)), r"has dtype <f8  \[bad-value\]\n +expected <i4"),
        (b"\1a<i4c" + struct.pack("<III", 1, 2**32 - 1, 0), "a frame claims 4294967295 bytes"),
    ],
)
def test_a_frame_that_claims_what_it_does_not_hold_is_refused(added: bytes, message: str, path: Path) -> None:
    body = path.read_bytes()[: -len(end(0))]
    path.write_bytes(body + added + end(len(SECTIONS) + 1))
    assert re.search(rf"byte {len(body)}: .*{message}", refusal(path))


def test_a_lost_frame_is_noticed(path: Path) -> None:
    body = path.read_bytes()[: -len(end(0))]
    path.write_bytes(body + end(len(SECTIONS) + 1))
    assert f"{len(SECTIONS)} frames are in the file, {len(SECTIONS) + 1} were written" in refusal(path)


Spoil = Callable[[dict[str, Any], dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda _, arrays: arrays.pop("links.steps"), 'section "links.steps" is missing'),
        (lambda _, arrays: arrays.update(role_of=arrays["role_of"].astype(np.int64)), "has dtype <i8"),
        (lambda _, arrays: arrays.update({"templates.bytes": np.arange(2)}), "bytes has 2 rows, templates.kind has 6"),
        (lambda _, arrays: arrays.update({"role_of": np.array([0, 1, 9, 0], np.int32)}), "there is no role 9"),
        (lambda _, arrays: arrays["communicators.group_size"].fill(3), "communicators.group_rank"),
        (lambda _, arrays: arrays["placements.override_column"].fill(5), "override_column"),
        (lambda header, _: header.pop("title"), 'header: field "title" is missing'),
        (lambda header, _: header.update(colour=1), 'header: field "colour" is not known'),
        (
            lambda header, _: header.update(repeats=1),
            r'"repeats" is of the wrong type  \[bad-value\]\n +expected true or false',
        ),
        (lambda header, _: header.update(tokens_per_step=True), "expected a number with a point or null"),
        (lambda header, _: header.update(mesh="tp=x"), "header, mesh"),
        (lambda header, _: header.update(mesh="dp=1000000000"), "the mesh has 1000000000 ranks, the program 4"),
        (lambda header, _: header.update(roles=["a", 2]), "header, roles: item 1"),
        (lambda header, _: header.update(lanes=[3]), "header, lane 0: this is not an object"),
        (lambda header, _: header["lanes"][1].update(kind="disk"), 'header, lane 1: lane kind "disk"'),
        (lambda header, _: header["sources"][0].update(low="1"), 'header, source 0: field "low"'),
        (lambda header, _: header["blocks"][0]["ports"].update(out=0.5), "header, block 0, ports"),
        (lambda header, _: header["communicators"][0].update(pair=[1]), "header, communicator 0: a pair is two"),
        (lambda header, _: header["communicators"][1].update(groups=0), "at least one group"),
        (lambda header, _: header["communicators"][1].update(groups=10**30), "header, communicator 1: groups"),
        (lambda header, _: header["communicators"][1].update(groups=7), "communicators.group_size"),
        (lambda header, _: header["resources"][0].update(instances=-2), "header, resource 0: instances"),
        (lambda header, _: header["resources"][0].update(instances=9), "resources.instance_size"),
        (lambda header, _: header["resources"][0].update(capacities=[1.0]), "1 capacities for 2 instances"),
        (lambda header, _: header["resources"][0].update(capacities=[1.0, "x"]), "resource 0, capacities: item 1"),
        (lambda header, _: header["resources"][0].update(capacities=[1.0, 0.0]), "capacity 0"),
        (lambda header, _: header["resources"][0].update(capacities=3), 'field "capacities" is of the wrong type'),
    ],
)
def test_a_sealed_file_that_makes_no_sense_is_refused(spoil: Spoil, message: str, path: Path) -> None:
    text, arrays = read_file(path, SECTIONS)
    header = json.loads(text)
    spoil(header, arrays)
    write_file(path, json.dumps(header).encode(), arrays)
    assert re.search(message, refusal(path))


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b"null", b"9" * 5000])
def test_a_header_that_is_no_json_object_is_refused(text: bytes, path: Path) -> None:
    write_file(path, text, read_file(path, SECTIONS)[1])
    assert f"{path}: header" in refusal(path)


def test_files_from_before_diagnostics_had_codes_are_read(path: Path) -> None:
    text, arrays = read_file(path, SECTIONS)
    header = json.loads(text)
    assert [one.pop("code") for one in header["diagnostics"]] == ["guessed", "odd-input"]
    write_file(path, json.dumps(header).encode(), arrays)
    assert [(one.code, one.message) for one in load(path).diagnostics] == [
        ("odd-input", "bytes guessed"),
        ("odd-input", "cut short"),
    ]


def test_errors_of_a_file_keep_their_codes(path: Path) -> None:
    text, arrays = read_file(path, SECTIONS)
    header = json.loads(text)
    header["diagnostics"][0]["code"] = 3
    write_file(path, json.dumps(header).encode(), arrays)
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.code == "bad-value"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.code == "truncated-file"
