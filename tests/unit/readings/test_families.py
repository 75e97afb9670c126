"""Sets of ops by the words people use: kinds of kernels."""

from __future__ import annotations

import pytest

from foretrace import Mesh, ProgramBuilder, Scenario, simulate
from foretrace.basics.errors import InputError
from foretrace.inputs.torch_ops.recorded_gpu import recorded_source
from foretrace.program.expand import expand
from foretrace.program.program import Program
from foretrace.readings.families import families, select

GEMM, NORM = "gemm m=8 n=8 k=8", "stream name=rmsnorm read=8 write=8"


def program(*ops: tuple[str, str | None], recorded: bool = False) -> Program:
    build = ProgramBuilder(Mesh(dp=1))
    role = build.role("rank 0", range(1))
    for name, kernel in ops:
        role.compute(name, 1e-3, kernel=kernel, source=recorded_source("NVIDIA H200") if recorded else None)
    return build.program()


def test_a_kind_is_known_by_the_kernel_or_by_the_name() -> None:
    ops = expand(program(("a", GEMM), ("nvjet_sm90_tst_TNT", None), ("b", NORM), ("attention norm", f"2*{NORM}")))
    assert select(ops, "gemm").tolist() == [True, True, False, False]
    assert select(ops, "norm").tolist() == [False, False, True, True]


def test_a_faster_kind_makes_the_step_shorter() -> None:
    job = program(("a", GEMM), ("b", NORM))
    assert simulate(job, None, Scenario(what_if={"gemm": 2.0})).step_time_s == pytest.approx(1.5e-3)


def test_kinds_that_share_an_op_cannot_be_told_apart() -> None:
    ops = expand(program(("run", f"{GEMM}; {NORM}"), ("b", "copy bytes=8")))
    assert select(ops, "copy").tolist() == [False, True]
    with pytest.raises(InputError) as caught:
        select(ops, "gemm")
    assert caught.value.code == "unknown-name"


def test_an_unknown_word_is_corrected() -> None:
    with pytest.raises(InputError, match="did you mean gemm"):
        select(expand(program(("a", GEMM))), "gem")


def test_kinds_are_families_of_their_own_in_a_recorded_step() -> None:
    ops = (("a", GEMM), ("b", NORM))
    assert [one.name for one in families(expand(program(*ops)))] == ["compute"]
    assert [one.name for one in families(expand(program(*ops, recorded=True)))] == ["compute", "gemm", "norm"]
