"""The program file: any program comes back bit for bit, and any damage is an error that says so."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foretrace.basics.errors import DeadlockError, InputError
from foretrace.basics.mesh import Mesh
from foretrace.program.build import ProgramBuilder
from foretrace.program.file import load, save
from foretrace.program.program import Program, Source
from foretrace.program.sections import read_file, write_file

NAMES = st.text(max_size=8)
DURATIONS = st.one_of(
    st.just(float("nan")),
    st.floats(0, 1e3),
    st.integers(0, 10**7).map(lambda count: count * 1e-9),
)
BITS = st.one_of(
    st.sampled_from(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-9, 5e-324, 1e300]).view(np.uint64).tolist()),
    st.integers(0, 2**64 - 1),
    st.integers(0, 300),
    st.integers(-5000, 5000).map(lambda count: int(np.array(count / 1e9).view(np.uint64))),
    st.integers(0, 5000).map(lambda count: int(np.array(count * 1e-9).view(np.uint64))),
)
DTYPES = st.sampled_from([np.uint8, np.int16, np.int32, np.int64, np.float64])


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """One role for all ranks, so that every rendezvous matches, with whatever else a program may have."""
    mesh = Mesh(dp=draw(st.integers(1, 3)), tp=draw(st.integers(1, 2)))
    build = ProgramBuilder(mesh, title=draw(NAMES), repeats=draw(st.booleans()))
    build.resource("link", draw(st.floats(1.0, 1e12)), shared_by=draw(st.sampled_from([None, [range(mesh.world)]])))
    groups = [build.communicator("dp"), build.groups("all", [range(mesh.world)])]
    role = build.role(draw(NAMES), range(mesh.world))
    for _ in range(draw(st.integers(1, 3))):
        block = build.block(draw(NAMES))
        op = block.compute(draw(NAMES), draw(DURATIONS), layer=draw(st.integers(-1, 2**31 - 1)))
        for duration in draw(st.lists(DURATIONS, max_size=4)):
            after, group = draw(st.sampled_from([(), op])), draw(st.sampled_from(groups))
            source = Source(draw(NAMES), draw(st.floats(0, 1)), draw(st.floats(1, 2)))
            block.collective(
                "all_reduce", group, duration, after=after, source=source, bytes=draw(st.integers(0, 2**53))
            )
            op = block.compute(
                "next", duration, flops=draw(st.floats(0, 1e20)), draws={"link": draw(st.floats(0, 1e9))}
            )
        block.port(draw(NAMES), op)
        for _ in range(draw(st.integers(1, 3))):
            changed = draw(st.dictionaries(st.sampled_from(["duration_s", "flops"]), st.floats(0, 1)))
            role.place(block, microbatch=draw(st.integers(-1, 9)), override={op: changed})
    return build.program()


def bits(part: Any) -> Any:
    """A program in a form that is equal only if every array has the same type and the same bits."""
    if isinstance(part, np.ndarray):
        return part.dtype.str, part.shape, part.tobytes()
    if is_dataclass(part):
        return type(part), [bits(getattr(part, field.name)) for field in fields(part)]
    if isinstance(part, dict):
        return {name: bits(value) for name, value in part.items()}
    return [bits(one) for one in part] if isinstance(part, tuple) else part


def saved(program: Program, path: Path) -> bytes:
    save(program, path)
    return path.read_bytes()


@settings(deadline=None, max_examples=50)
@given(programs())
def test_load_undoes_save(program: Program) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "job.foretrace"
        written = saved(program, path)
        loaded = load(path)
        assert bits(loaded) == bits(program)
        assert saved(loaded, path) == written


@settings(deadline=None)
@given(st.lists(BITS, max_size=40), DTYPES, st.integers(1, 20))
@example([0, 0, 1 << 63, 0, 0], np.float64, 1)  # a minus zero among zeros
def test_a_column_of_any_bits_comes_back(values: list[int], dtype: type, times: int) -> None:
    column = np.array(values * times, dtype=np.uint64).view(np.float64)
    if dtype is not np.float64:
        column = column.view(np.int64).astype(dtype)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "columns"
        write_file(path, b"any header", {"a": column, "b": column[::-1]})
        header, read = read_file(path, {"a": np.dtype(dtype), "b": np.dtype(dtype)})
    assert header == b"any header"
    assert bits(read) == bits({"a": column, "b": column[::-1]})


def small_file() -> bytes:
    build = ProgramBuilder(Mesh(dp=2), title="small")
    role = build.role("all", range(2))
    role.compute("work", 1e-3)
    role.collective("all_reduce", build.groups("all", [[0, 1]]), 1e-4, bytes=1 << 20)
    with TemporaryDirectory() as folder:
        return saved(build.program(), Path(folder) / "job.foretrace")


SMALL = small_file()
PLACES = st.integers(0, len(SMALL))
DAMAGE = st.lists(st.tuples(PLACES, PLACES, st.binary(max_size=8)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=200)
@given(DAMAGE)
def test_damage_is_an_error_that_names_the_file_or_no_damage(damage: list[tuple[int, int, bytes]]) -> None:
    """Bytes changed, put in, left out or moved, at several places."""
    spoiled = SMALL
    for at, other, new in damage:
        spoiled = spoiled[:at] + new + spoiled[min(at + len(new), other) :]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "job.foretrace"
        path.write_bytes(spoiled)
        try:
            load(path)
        except (InputError, DeadlockError) as error:
            assert error.where is not None
            assert error.where.startswith(str(path))
        else:
            assert spoiled == SMALL
