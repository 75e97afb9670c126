"""Random machines, recorded and replayed: the replay takes as long as the machine does, whatever waits for what."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from foretrace.api import simulate
from foretrace.inputs.option_values import HostMode
from foretrace.inputs.profiler_trace.host_modes import times
from foretrace.inputs.profiler_trace.rank.rank_step import RankStep, read_step
from foretrace.inputs.profiler_trace.write_step import GPU, StepWriter
from foretrace.program.build import ProgramBuilder
from foretrace.program.program import Program, Source
from foretrace.readings.scenario import Scenario
from small_machine import Do, Machine, recorded

SEEDS = range(60)


def machine_step(seed: int) -> list[Do]:
    """A random step: launches on up to three streams and two threads that take turns, waits between streams, and of the
    host. By a seed, so that it is the same whatever else has been imported."""
    draw = Random(seed)
    host_s, busy_s = draw.choice([5e-6, 20e-6, 100e-6]), draw.choice([5e-6, 30e-6, 100e-6])
    streams = draw.choice([(7,), (7, 20), (7, 20, 21)])
    made: list[Do] = []
    for _ in range(draw.randint(0, 16)):
        stream = draw.choice(streams)
        others = [at for at, do in enumerate(made) if do.stream != stream and not do.sync]
        facts: dict[str, Any] = {"stream": stream, "thread": draw.choice([0, 0, 1])}
        if made and draw.randint(0, 9) == 0:
            facts |= {"sync": True, "stream": made[-1].stream, "thread": made[-1].thread}  # as .item() does
        elif others and draw.random() < 0.5:
            facts["after"] = (draw.choice(others),)
        scale = draw.uniform(0.5, 2.0), draw.uniform(0.5, 2.0)
        made.append(Do(host_s * scale[0], busy_s * scale[1], name=draw.choice("abcd"), **facts))
    return [*made, Do(host_s, busy_s)]


def _program(rank: RankStep, mode: HostMode = "profiled") -> Program:
    build = ProgramBuilder()
    build.resource(GPU, 1.0)
    writer = StepWriter(rank, times(rank, mode), {}, {}, Source("recorded"))
    writer.write(build.role("rank 0", [0]), build.block("step"))
    return build.program()


def _step_s(rank: RankStep, mode: HostMode = "profiled", **what_if: float) -> float:
    return simulate(_program(rank, mode), None, Scenario(what_if=what_if), explain=False).step_time_s


@pytest.mark.parametrize("seed", SEEDS)
def test_the_replay_takes_as_long_as_the_machine(seed: int) -> None:
    cuda_sync = bool(seed % 2)
    machine = Machine(machine_step(seed), cuda_sync=cuda_sync).run(9)
    rank = read_step(recorded(machine, from_step=3))
    # Waits that were not recorded are inferred, and with kernels of a few microseconds some are taken for others.
    assert _step_s(rank) == pytest.approx(machine.period_s(), rel=0.01 if cuda_sync else 0.1)


@pytest.mark.parametrize("seed", SEEDS[:30])
def test_less_work_never_takes_longer(seed: int) -> None:
    step = machine_step(seed)
    rank = read_step(recorded(Machine(step).run(7), from_step=2))
    as_recorded = _step_s(rank)
    assert _step_s(rank, compute=2.0) <= as_recorded * (1 + 1e-9)
    assert _step_s(rank, host=2.0) <= as_recorded * (1 + 1e-9)
    # Kernels that the host kept apart and that now meet share the GPU, as they did not on this machine.
    alone = len({do.stream for do in step}) == 1
    assert _step_s(rank, "none") <= as_recorded * (1 + (1e-9 if alone else 0.1))
