"""What one could do about a step: the job run again with each thing changed that a person can change by an option."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from foretrace.analysis.explain import Remedy
from foretrace.analysis.job import Job
from foretrace.errors import ForetraceError
from foretrace.lower.choices import Choices
from foretrace.lower.load import file_kind
from foretrace.program.program import Program

MOST_OPS = 3_000_000
"""Of all roles: a larger job takes longer to run several times than a person waits."""


def remedies(job: Job, recorded: bool) -> tuple[Remedy, ...]:
    """What each change would make of the step, the shortest time of a microbatch first; changes that the job does not
    admit are left out. A recorded run is built anew, so that both sides leave out the same."""
    if file_kind(job.paths[0]) == "program":
        return ()
    base = replace(job, choices=replace(job.choices, schedule="1f1b")) if recorded else job
    try:
        program = base.program()
        if _ops(program) > MOST_OPS or program.world == 1:
            return ()
        before = base.run(program, explain=False).step_time_s
    except ForetraceError:
        return ()
    found = []
    for name, choices, microbatches in _changes(base.choices, program):
        try:
            with job.watch(f"trying {name}"):
                after = replace(base, choices=choices)
                step = after.run(after.program(), explain=False).step_time_s
        except ForetraceError:
            continue
        found.append(Remedy(name, before, step, microbatches))
    return tuple(sorted(found, key=lambda one: one.change))


def _ops(program: Program) -> int:
    """Ops of one rank of every role."""
    return int(program.op_count / max(program.world / max(len(program.roles), 1), 1))


def _changes(choices: Choices, program: Program) -> Iterator[tuple[str, Choices, float]]:
    """Changes, in words, as choices, and how many times the microbatches they have."""
    count = int(program.placements.microbatch.max(initial=0)) + 1
    if program.mesh.ep > 1 and choices.routing is None:
        yield "balanced routing (--routing balanced)", replace(choices, routing=1.0), 1.0
    if program.mesh.pp > 1:
        yield "zero-bubble schedule (--schedule zb-h1)", replace(choices, schedule="zb-h1"), 1.0
        yield "interleaved schedule (--schedule interleaved-1f1b)", replace(choices, schedule="interleaved-1f1b"), 1.0
        yield f"twice the microbatches (--microbatches {2 * count})", replace(choices, microbatches=2 * count), 2.0
