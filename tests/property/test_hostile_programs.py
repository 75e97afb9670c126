"""Program files and saved answers that say anything at all, with right checksums: an answer or an error, never a crash.

Every array and every field of the header is changed at random. Whatever still opens is run, alone and on a cluster with
both kinds of networks, and must take a finite time that is not negative.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrace
from foretrace.basics.errors import DeadlockError, ForetraceError, InputError
from foretrace.basics.files import InputFile
from foretrace.basics.mesh import Mesh
from foretrace.inputs.answer_file.input import AnswerInput
from foretrace.inputs.program_file.input import ProgramInput
from foretrace.program import check, file, sections
from foretrace.program.build import ProgramBuilder
from foretrace.program.file import SECTIONS, TIMELINE_SECTIONS, load, save
from foretrace.program.program import Program, Source
from foretrace.program.sections import read_file, write_file

Arrays = dict[str, Any]

CASES = 40_000 if os.environ.get("FORETRACE_FUZZ") else 600

WHOLE = [*range(-2, 14), 100, 255, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**53, 2**60, 2**63 - 1, -(2**63)]
REAL = [0.0, -0.0, 1.0, -1.0, 1e-9, 1e9, 1e10, 1e15, 1e30, 1e308, -1e-300, 5e-324, math.nan, math.inf, -math.inf]
JSON = [
    *(None, True, False, 0, -1, 1, 2, 2**31, 2**63, 10**30, 1.5, -1.0, 0.0, 1e308, 5e-324, math.nan, math.inf),
    *("", "x", "compute", "tp", "dp=4", "tp=1000000000", "order=pp", "\x00\x1b[31m", "\ud800", "a" * 1000),
    *("all_reduce", "ring", "gemm m=-1 n=1 k=1", "gemm m=1 n=1 k=1 dtype=x", "9999999999999*gemm m=1 n=1 k=1"),
    *("gemm m=9999999999999 n=9999999999999 k=9999999999999", "grouped_gemm groups=0 m=1 n=1 k=1", "copy bytes=²"),
    *("stream name=x read=0 write=0", "attention batch=0 heads=0 kv_heads=0 q=0 kv=0 head_dim=0 v_dim=0 pairs=0"),
    *([], {}, [0], [0, 1], [1, 1], ["tp"], ["tp", "tp"], {"a": 1}, [[[]]]),
]


def two_stages() -> Program:
    """Returns a small step with something in every table, in part without prices."""
    build = ProgramBuilder(Mesh(dp=2, pp=2), title="two stages", tokens_per_step=8192.0)
    build.resource("own link", 50e9, shared_by=[[0, 1], [2, 3]], capacities=[50e9, 25e9])
    hop, ring = build.pair("pp", 0, 1), build.groups("ring", [[0, 1], [3, 2]], axis="dp")
    for stage in range(2):
        block = build.block(f"forward {stage}")
        layer = block.compute("layer", phase="forward", layer=stage, kernel="gemm m=512 n=512 k=512", flops=3e8)
        block.transfer("hop", hop, bytes=1 << 20, to=None if stage else 1, after=layer)
        work = block.compute("work", 1e-4, draws={"own link": 1e5}, alloc={"activations": 64}, latency_s=1e-6)
        block.collective("all_to_all", ring, sends={0: 64, 1: 128}, bytes=192, source=Source("guess", 0.5, 2.0))
        block.collective("all_reduce", ring, 2e-6, bytes=64, dtype="bf16")
        block.host("host", 1e-6, after=work, free={"activations": 64})
        block.port("out", layer)
        role = build.role(f"stage {stage}", build.mesh.where(pp=stage))
        role.resident(weights=1 << 20)
        first = role.place(block, microbatch=0)
        last = role.place(block, microbatch=1, after=first["out"], override={work: {"duration_s": 2e-4, "layer": 7}})
        role.link(first["out"], after=last["out"], steps=1)
    return build.program()


def changed_array(rng: random.Random, values: Any) -> Any:
    """Returns a column with other values, another order or another length."""
    values, size = values.copy(), len(values)
    if values.dtype.kind == "f":
        value: float = rng.choice(REAL)
    else:
        limits = np.iinfo(values.dtype)
        value = max(min(rng.choice(WHOLE), int(limits.max)), int(limits.min))
    how = rng.randrange(8) if size else 7
    if how <= 3:
        values[[rng.randrange(size) for _ in range(rng.choice((1, 1, 2)))]] = value
    elif how == 4:
        values[:] = value
    elif how == 5:
        values = values[rng.sample(range(size), size)]
    elif how == 6:
        values = values[: rng.randrange(size)]
    else:
        values = np.append(values, np.array([value], dtype=values.dtype))
    return values


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every container within a JSON value with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def changed_json(rng: random.Random, value: Any) -> Any:
    """Returns a JSON value of which one part is another, missing or doubled."""
    value = json.loads(json.dumps(value))
    owner, key = rng.choice(list(places(value)))
    how = rng.randrange(6)
    if how <= 3:
        owner[key] = rng.choice(JSON)
    elif how == 4:
        del owner[key]
    elif isinstance(owner, list):
        owner.append(owner[key])
    else:
        owner["more"] = owner[key]
    return value


def reads_as(monkeypatch: pytest.MonkeyPatch, header: Any, columns: Arrays) -> None:
    """Makes every file read as this one, as if it had been written with right checksums."""
    text = json.dumps(header).encode()
    monkeypatch.setattr(file, "read_file", lambda *_: (text, dict(columns)))


def check_step(step_s: float) -> None:
    assert math.isfinite(step_s)
    assert step_s >= 0


@pytest.fixture(scope="module")
def machines() -> list[foretrace.Machine]:
    return [
        foretrace.Machine(),
        foretrace.Machine("h100-dgx"),
        foretrace.Machine("h100-dgx", network="flow"),
    ]


def test_a_program_that_says_anything_is_run_or_refused(
    machines: list[foretrace.Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.foretrace"
    save(two_stages(), path)
    text, arrays = read_file(path, SECTIONS)
    header, rng, opened = json.loads(text), random.Random(21), 0
    for _ in range(CASES):
        spoiled: Any = header
        columns = dict(arrays)
        for _ in range(rng.choice((1, 1, 2))):
            if rng.random() < 0.3:
                spoiled = changed_json(rng, spoiled)
            else:
                name = rng.choice(list(columns))
                columns[name] = changed_array(rng, columns[name])
        reads_as(monkeypatch, spoiled, columns)
        try:
            program = load(path)
        except InputError as error:
            assert str(path) in str(error.where)
            assert len(str(error)) < 1500
            continue
        opened += 1
        job = ProgramInput(program, str(path))
        job.inventory()
        # Running takes longer than opening, so each program is run on one of the machines.
        try:
            answer = foretrace.simulate(job, machines[opened % len(machines)], explain=False)
        except ForetraceError as error:
            assert error.code in ("needs-cluster", "unpriced-op") or str(path) in str(error.where), error
            continue
        check_step(answer.step_time_s)
    assert opened > CASES // 20


def test_an_answer_that_says_anything_is_read_or_refused(
    machines: list[foretrace.Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.answer"
    foretrace.simulate(ProgramInput(two_stages()), machines[1]).save(path)
    text, arrays = read_file(path, SECTIONS | TIMELINE_SECTIONS)
    header, rng, opened = json.loads(text), random.Random(22), 0
    for _ in range(CASES // 6):
        spoiled, columns = dict(header), dict(arrays)
        if rng.random() < 0.5:
            spoiled["run"] = changed_json(rng, header["run"])
        else:
            name = rng.choice(list(TIMELINE_SECTIONS))
            columns[name] = changed_array(rng, columns[name])
        reads_as(monkeypatch, spoiled, columns)
        try:
            answer = foretrace.open(path)
            assert isinstance(answer, foretrace.Answer)
            opened += 1
            check_step(answer.step_time_s)
            json.dumps(answer.to_dict(), allow_nan=False)
            AnswerInput(str(path), InputFile(path)).inventory()
        except InputError as error:
            assert str(path) in str(error.where)
    assert opened


@pytest.mark.parametrize("table", ["dep", "memory", "send", "draw", ""])
def test_a_small_file_cannot_unroll_to_billions_of_rows(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MAX_ROWS", 1 << 20)
    path = tmp_path / "job.foretrace"
    save(two_stages(), path)
    text, arrays = read_file(path, SECTIONS)
    placed = 1 << (5 if table else 18)
    arrays["placements.start"] = np.array([0, placed, placed + 2], dtype=np.int32)
    for name in ("block", "microbatch"):
        arrays[f"placements.{name}"] = np.append(np.zeros(placed), [1, 1]).astype(np.int32)
    for name in [name for name in arrays if name.startswith(f"templates.{table}_")]:
        arrays[name] = np.repeat(arrays[name][:1], 1 << 16)
    write_file(path, text, arrays)
    assert path.stat().st_size < 1 << 17
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.code == "input-too-large"


def test_columns_and_headers_cannot_unpack_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.foretrace"
    save(two_stages(), path)
    for limit in ("MAX_COLUMN_BYTES", "MAX_HEADER_BYTES"):
        with monkeypatch.context() as patch, pytest.raises(InputError) as caught:
            patch.setattr(sections, limit, 100)
            load(path)
        assert caught.value.code == "input-too-large"
    with monkeypatch.context() as patch:
        patch.setattr(sections, "MAX_COLUMN_BYTES", 1 << 10)
        patch.setenv("FORETRACE_LIMITS", "4x")
        load(path)


def test_a_deadlock_and_a_circle_name_the_file(tmp_path: Path) -> None:
    for deadlocks in (False, True):
        build = ProgramBuilder(Mesh(dp=2), title="stuck")
        both, again = (build.groups(name, [[0, 1]]) for name in ("a", "b"))
        for rank in range(2):
            role = build.role(f"rank {rank}", [rank])
            calls = [both, again] if rank or not deadlocks else [again, both]
            ops = [role.collective("barrier", group, 1e-6, lane="one") for group in calls]
            if not deadlocks:
                role.link(ops[0], after=ops[1])
        path = tmp_path / "stuck.foretrace"
        save(build.program(), path)
        with pytest.raises(DeadlockError if deadlocks else InputError) as caught:
            foretrace.simulate(foretrace.open(path))
        assert caught.value.where == str(path)
