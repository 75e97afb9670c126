"""Simulates the plans of a search, in this process or in several."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Final

from foretrace.cost.machine import Machine
from foretrace.engine import jit
from foretrace.inputs.model.input import ModelInput
from foretrace.models.model import Model
from foretrace.readings.answer.answer import Answer
from foretrace.readings.scenario import Scenario
from foretrace.simulation.simulate_input import simulate_input
from foretrace.workload.plan import Plan


@dataclass(frozen=True, slots=True)
class SimulatedPlan:
    """The result of a full simulation.

    Attributes:
        step_time_s: The step.
        peak_memory_bytes: The allocated peak of the stage that needs most.
        needed_memory_bytes: The memory that a GPU usually needs.
        capacity_bytes: The memory of a GPU.
    """

    step_time_s: float
    peak_memory_bytes: int
    needed_memory_bytes: int
    capacity_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the memory that a GPU usually needs is there."""
        return self.needed_memory_bytes <= self.capacity_bytes


@dataclass(slots=True)
class PlanSimulator:
    """Simulates plans of one model on one machine. Use it in a `with` block, which ends its processes."""

    model: Model
    machine: Machine
    workers: int = 1
    _pool: ProcessPoolExecutor | None = field(default=None, init=False)

    def __enter__(self) -> PlanSimulator:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def answer(self, plan: Plan) -> Answer:
        """Simulates a plan in this process, whether or not it fits into memory."""
        with jit.using():
            job = ModelInput(self.model, plan)
            return simulate_input(job, self.machine, Scenario(), explain=False, even_if_oom=True)

    def run(self, plans: Sequence[Plan]) -> list[SimulatedPlan]:
        """Simulates plans. The results do not depend on the number of workers.

        Where processes cannot be started, or one of them is killed, this process simulates.
        """
        if self.workers > 1 and len(plans) > 1:
            try:
                return self._run_in_processes(plans)
            except (BrokenProcessPool, OSError):  # no room for processes, or no shared memory for their queues
                self.__exit__()
                self.workers = 1
        return [_result(self.answer(plan)) for plan in plans]

    def _run_in_processes(self, plans: Sequence[Plan]) -> list[SimulatedPlan]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.workers, initializer=_start, initargs=(self.model, self.machine))
        return list(self._pool.map(_run, plans))


def _result(answer: Answer) -> SimulatedPlan:
    assert answer.model is not None
    memory = answer.model.memory
    return SimulatedPlan(answer.step_time_s, memory.peak_bytes, memory.needed_bytes, memory.capacity_bytes)


_WORKER: Final[dict[str, PlanSimulator]] = {}
"""The simulator of a worker process."""


def _start(model: Model, machine: Machine) -> None:
    # Ctrl-C reaches all processes of a terminal. The one that collects results handles it and ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _WORKER["simulator"] = PlanSimulator(model, machine)


def _run(plan: Plan) -> SimulatedPlan:
    return _result(_WORKER["simulator"].answer(plan))
