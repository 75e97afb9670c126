"""The stretches of a critical path, worked by hand."""

from __future__ import annotations

import pytest

from foretrace import Mesh, ProgramBuilder, simulate
from foretrace.program.program import Program
from foretrace.readings.critical_path import PathStretch, path_stretches


def two_stages() -> Program:
    """Stage 0 runs forward and sends to stage 1, which runs forward, both parts of backward, and its optimizer."""
    build = ProgramBuilder(Mesh(pp=2), repeats=False)
    first, second = build.role("stage 0", [0]), build.role("stage 1", [1])
    stages = build.communicator("pp")
    forward = first.compute("up", 1.0, phase="forward", microbatch=0)
    sent = [
        role.collective("broadcast", stages, 0.5, microbatch=0, after=after)
        for role, after in ((first, [forward]), (second, []))
    ]
    last = second.compute("up", 2.0, phase="forward", microbatch=0, after=sent[1])
    last = second.compute("down", 3.0, phase="backward_input", microbatch=0, after=last)
    last = second.compute("weights", 1.0, phase="backward_weight", microbatch=0, after=last)
    second.compute("update", 0.25, phase="optimizer", after=last)
    return build.program()


def stretches(program: Program) -> list[PathStretch]:
    answer = simulate(program)
    made = path_stretches(answer.critical_path, answer.timeline.graph)
    assert sum(stretch.seconds for stretch in made) == pytest.approx(answer.critical_path.length_s)
    assert sum(stretch.ops for stretch in made) == len(answer.critical_path.node)
    return made


def test_a_stretch_is_a_pass_of_a_microbatch_with_its_transfers() -> None:
    made = stretches(two_stages())
    assert [(each.rank, each.microbatch, each.phase, each.ops) for each in made] == [
        (0, 0, "forward", 1),
        (1, 0, "forward", 2),
        (1, 0, "backward", 2),
        (1, -1, "optimizer", 1),
    ]
    assert made[1].parts_s == pytest.approx({"forward": 2.0, "pp": 0.5})
    backward = made[2]
    assert backward.parts_s == pytest.approx({"backward_input": 3.0, "backward_weight": 1.0})
    assert (backward.start_s, backward.seconds, backward.longest) == (pytest.approx(3.5), pytest.approx(4.0), "down")


def test_ops_without_a_phase_are_a_stretch_of_their_own() -> None:
    build = ProgramBuilder(Mesh(dp=1), repeats=False)
    role = build.role("rank 0", [0])
    role.compute("a", 1.0)
    role.compute("b", 2.0)
    (only,) = stretches(build.program())
    assert (only.phase, only.microbatch, only.ops, only.longest) == ("none", -1, 2, "b")


def test_a_path_that_spans_several_steps_is_counted_once() -> None:
    build = ProgramBuilder(Mesh(dp=1))
    role = build.role("rank 0", [0])
    for microbatch in range(3):
        role.compute("op", 1.0, phase="forward", microbatch=microbatch)
    assert [each.microbatch for each in stretches(build.program())] == [0, 1, 2]
