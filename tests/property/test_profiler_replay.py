"""Random machines, recorded and replayed: the replay takes as long as the machine does, whatever waits for what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.analysis.simulate import simulate
from foretrace.lower.choices import HostMode
from foretrace.lower.profiler_trace.modes import times
from foretrace.lower.profiler_trace.rank_step import RankStep, read_step
from foretrace.lower.profiler_trace.write import GPU, StepWriter
from foretrace.program.build import ProgramBuilder
from foretrace.program.program import Program, Source
from small_machine import Do, Machine, recorded


@st.composite
def steps(draw: st.DrawFn) -> list[Do]:
    """A step: launches on up to three streams and two threads that take turns, waits between streams, and of the
    host."""
    host_s, busy_s = draw(st.sampled_from([5e-6, 20e-6, 100e-6])), draw(st.sampled_from([5e-6, 30e-6, 100e-6]))
    streams = draw(st.sampled_from([(7,), (7, 20), (7, 20, 21)]))
    made: list[Do] = []
    for _ in range(draw(st.integers(0, 16))):
        stream = draw(st.sampled_from(streams))
        others = [at for at, do in enumerate(made) if do.stream != stream and not do.sync]
        facts: dict[str, Any] = {"stream": stream, "thread": draw(st.sampled_from([0, 0, 1]))}
        if made and draw(st.integers(0, 9)) == 0:
            facts |= {"sync": True, "stream": made[-1].stream, "thread": made[-1].thread}  # as .item() does
        elif others and draw(st.booleans()):
            facts["after"] = (draw(st.sampled_from(others)),)
        scale = st.floats(0.5, 2.0)
        made.append(Do(host_s * draw(scale), busy_s * draw(scale), name=draw(st.sampled_from("abcd")), **facts))
    return [*made, Do(host_s, busy_s)]


def _program(rank: RankStep, mode: HostMode = "profiled") -> Program:
    build = ProgramBuilder()
    build.resource(GPU, 1.0)
    writer = StepWriter(rank, times(rank, mode), {}, {}, Source("recorded"))
    writer.write(build.role("rank 0", [0]), build.block("step"))
    return build.program()


def _step_s(rank: RankStep, mode: HostMode = "profiled", **what_if: float) -> float:
    return simulate(_program(rank, mode), what_if=what_if, explain=False).step_time_s


@settings(max_examples=60)
@given(steps(), st.booleans())
def test_the_replay_takes_as_long_as_the_machine(step: list[Do], cuda_sync: bool) -> None:
    machine = Machine(step, cuda_sync=cuda_sync).run(9)
    rank = read_step(recorded(machine, from_step=3))
    # Waits that were not recorded are inferred, and with kernels of a few microseconds some are taken for others.
    assert _step_s(rank) == pytest.approx(machine.period_s(), rel=0.01 if cuda_sync else 0.1)


@settings(max_examples=30)
@given(steps())
def test_less_work_never_takes_longer(step: list[Do]) -> None:
    rank = read_step(recorded(Machine(step).run(7), from_step=2))
    as_recorded = _step_s(rank)
    assert _step_s(rank, compute=2.0) <= as_recorded * (1 + 1e-9)
    assert _step_s(rank, host=2.0) <= as_recorded * (1 + 1e-9)
    # Kernels that the host kept apart and that now meet share the GPU, as they did not on this machine.
    alone = len({do.stream for do in step}) == 1
    assert _step_s(rank, "none") <= as_recorded * (1 + (1e-9 if alone else 0.1))
