"""Tries what could shorten a step: runs the job again with each change that an option can make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from foretrace.basics.errors import ForetraceError
from foretrace.basics.progress import doing
from foretrace.cost.machine import Machine
from foretrace.program.program import Program
from foretrace.readings.explain import Remedy
from foretrace.readings.scenario import Scenario
from foretrace.simulation.simulate import simulate_program
from foretrace.simulation.simulate_input import on_machine

if TYPE_CHECKING:
    from foretrace.inputs.base import Input

MAX_OPS: Final = 3_000_000
"""Ops of one rank of every role; a larger job takes longer to run several times than a person waits."""


def remedies(job: Input, machine: Machine) -> tuple[Remedy, ...]:
    """Returns what each change would make of the step, the shortest time of a microbatch first.

    Changes that the job does not admit are left out. A recorded run is built again, so that both sides leave out the
    same.
    """
    base = job.schedulable()
    if base is None:
        return ()
    try:
        base = on_machine(base, machine)
        program = base.program()
        if _ops(program) > MAX_OPS or program.world == 1:
            return ()
        before_s = _step_s(program, machine)
    except ForetraceError:
        return ()
    tried = []
    for name, changes, microbatches in _changes(base, program):
        try:
            with doing(f"trying {name}"):
                after_s = _step_s(base.with_options(**changes).program(), machine)
        except ForetraceError:
            continue
        tried.append(Remedy(name, before_s, after_s, microbatches))
    return tuple(sorted(tried, key=lambda remedy: remedy.change))


def _step_s(program: Program, machine: Machine) -> float:
    return simulate_program(program, machine, Scenario(), explain=False).step_time_s


def _ops(program: Program) -> int:
    """Returns the ops of one rank of every role."""
    return int(program.op_count / max(program.world / max(len(program.roles), 1), 1))


def _changes(job: Input, program: Program) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Yields changes in words, as options, and how many times the microbatches they have."""
    count = int(program.instances.microbatch.max(initial=0)) + 1
    if program.mesh.ep > 1 and job.has_option("routing") and job.options is not None and job.options.routing is None:
        yield "balanced routing (--routing balanced)", {"routing": 1.0}, 1.0
    if program.mesh.pp > 1:
        yield "zero-bubble schedule (--schedule zb-h1)", {"schedule": "zb-h1"}, 1.0
        yield "interleaved schedule (--schedule interleaved-1f1b)", {"schedule": "interleaved-1f1b"}, 1.0
        if job.has_option("microbatches"):
            yield f"twice the microbatches (--microbatches {2 * count})", {"microbatches": 2 * count}, 2.0
