"""A slow simulator that is plainly right: every rank by itself, every op an entry of a dictionary, starts raised until
nothing changes. It reads the program's tables and shares no code with the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from foretrace.program.program import Program

Key = tuple[int, int]
"""A rank and the number of an op among those of its role, in order of issue."""


@dataclass
class Op:
    """One op of one role."""

    lane: int
    duration: float
    communicator: int
    enabled: bool
    row: int
    """Its number among the ops of all roles."""
    waits: list[int] = field(default_factory=list)
    waits_next: list[int] = field(default_factory=list)
    """Ops of the step before."""


def roles_of(program: Program) -> list[list[Op]]:
    """The ops of every role with all that they wait for on their own rank, lane order included."""
    templates, instances, links = program.templates, program.instances, program.links
    changed: dict[tuple[int, int, str], float] = {}
    for i, column in enumerate(instances.override_column):
        place = int(instances.override_instance[i]), int(instances.override_op[i])
        changed[*place, column] = float(instances.override_value[i])
    roles: list[list[Op]] = []
    row = 0
    for role in range(len(program.roles)):
        ops: list[Op] = []
        first: dict[int, int] = {}
        for instance in range(int(instances.start[role]), int(instances.start[role + 1])):
            first[instance] = len(ops)
            block = int(instances.block[instance])
            low, high = int(templates.start[block]), int(templates.start[block + 1])
            for template in range(low, high):

                def value(column: str, template: int = template, low: int = low, instance: int = instance) -> float:
                    default = float(templates.columns[column][template])
                    return changed.get((instance, template - low, column), default)

                on = value("enabled") != 0
                duration = value("duration_s") if on else 0.0
                ops.append(Op(int(value("lane")), duration, int(value("communicator")), on, row))
                row += 1
            for src, dst in zip(templates.dep_src.tolist(), templates.dep_dst.tolist(), strict=True):
                if low <= dst < high:
                    ops[first[instance] + dst - low].waits.append(first[instance] + src - low)
        for i, steps in enumerate(links.steps.tolist()):
            if int(links.dst_instance[i]) in first:
                src = first[int(links.src_instance[i])] + int(links.src_op[i])
                target = ops[first[int(links.dst_instance[i])] + int(links.dst_op[i])]
                (target.waits_next if steps else target.waits).append(src)
        _queue(ops, program.repeats)
        roles.append(ops)
    return roles


def _queue(ops: list[Op], repeats: bool) -> None:
    """Ops of a lane follow each other, and where steps repeat the first follows the last of the step before."""
    queues: dict[int, list[int]] = {}
    for number, op in enumerate(ops):
        if op.enabled:
            queues.setdefault(op.lane, []).append(number)
    for queue in queues.values():
        for before, after in pairwise(queue):
            ops[after].waits.append(before)
        if repeats:
            ops[queue[0]].waits_next.append(queue[-1])


def meetings_of(program: Program, roles: list[list[Op]]) -> dict[Key, list[Key]]:
    """For every op the members it meets: the n-th ops of the ranks of one group on one communicator."""
    meetings: dict[tuple[int, int, int], list[Key]] = {}
    for number, communicator in enumerate(program.communicators):
        group_of = {}
        for size, rows in enumerate(communicator.members(program.mesh)):
            for index, row in enumerate(rows.tolist()):
                for rank in row:
                    group_of[rank] = (size, index)
        for rank, role in enumerate(program.role_of.tolist()):
            issued = [i for i, op in enumerate(roles[role]) if op.enabled and op.communicator == number]
            for order, i in enumerate(issued):
                meetings.setdefault((number, group_of[rank], order), []).append((rank, i))
    return {member: members for members in meetings.values() for member in members}


@dataclass
class Steps:
    """Per step and op: when it had what it needed on its own rank (missing: it needs nothing), started and ended."""

    ready: list[dict[Key, float]]
    start: list[dict[Key, float]]
    end: list[dict[Key, float]]
    takes_part: set[Key]

    def origin(self, step: int) -> float:
        """When the step's first op started."""
        return min((self.start[step][key] for key in self.takes_part), default=0.0)


def run(program: Program, steps: int, factors: dict[Key, list[float]] | None = None) -> Steps:
    """Runs steps one after the other; `factors` are by rank and row (over all roles) of an op, applied in turn."""
    roles = roles_of(program)
    keys = [(rank, i) for rank, role in enumerate(program.role_of.tolist()) for i in range(len(roles[role]))]
    ops = {(rank, i): roles[int(program.role_of[rank])][i] for rank, i in keys}
    partners = meetings_of(program, roles)
    slower = factors or {}
    duration = {key: math.prod(slower.get((key[0], op.row), []), start=op.duration) for key, op in ops.items()}
    done = Steps([], [], [], {key for key in keys if ops[key].enabled})
    for step in range(steps):
        start = dict.fromkeys(keys, 0.0)
        end = dict(duration)
        before = done.end[-1] if step else {}
        ready: dict[Key, float] = {}
        settled = False
        while not settled:
            settled = True
            for key in keys:
                rank, op = key[0], ops[key]
                needs = [end[rank, i] for i in op.waits] + [before[rank, i] for i in op.waits_next if step]
                if needs:
                    ready[key] = max(needs)
            for key in keys:
                begins = max([start[key], *(ready.get(member, 0.0) for member in partners.get(key, [key]))])
                if begins > start[key]:
                    start[key], end[key] = begins, begins + duration[key]
                    settled = False
        done.ready.append(ready)
        done.start.append(start)
        done.end.append(end)
    return done
