"""Simulates the plans of a search, in this process or in several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foretrace.basics.processes import Workers
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
    _pool: Workers[PlanSimulator] = field(init=False)

    def __post_init__(self) -> None:
        # Machines keep prices, so that workers share a simulator, which has no workers itself.
        self._pool = Workers(self.workers, self if self.workers == 1 else PlanSimulator(self.model, self.machine))

    def __enter__(self) -> PlanSimulator:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()

    def answer(self, plan: Plan) -> Answer:
        """Simulates a plan in this process, whether or not it fits into memory."""
        with jit.using():
            job = ModelInput(self.model, plan)
            return simulate_input(job, self.machine, Scenario(), explain=False, even_if_oom=True)

    def run(self, plans: Sequence[Plan]) -> list[SimulatedPlan]:
        """Simulates plans. The results do not depend on the number of workers."""
        return list(self._pool.map(_run, plans))


def _result(answer: Answer) -> SimulatedPlan:
    assert answer.model is not None
    memory = answer.model.memory
    return SimulatedPlan(answer.step_time_s, memory.peak_bytes, memory.needed_bytes, memory.capacity_bytes)


def _run(simulator: PlanSimulator, plan: Plan) -> SimulatedPlan:
    return _result(simulator.answer(plan))
