"""Random jobs that are valid and free of deadlock by construction.

A job is a global sequence of segments; a segment is a sequence of meetings (a communicator and the roles that meet on
it). Every role writes the meetings it takes part in, in that order, with ops of its own in between, as one block per
segment, and places its blocks in the order of the sequence. All waits within a step lead from an op to one that its
role issues later, so the order of the sequence is an order in which everything can run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from foretrace.basics.mesh import Mesh
from foretrace.cost.prices import Prices
from foretrace.cost.pricing import price
from foretrace.program.block import BlockBuilder, OpRef, PlacedOp
from foretrace.program.build import ProgramBuilder
from foretrace.program.expand import Ops, expand
from foretrace.program.fold import fold, unfold
from foretrace.program.graph import Graph
from foretrace.program.program import Communicator, Program
from foretrace.program.role import RoleBuilder
from foretrace.program.timeline import Timeline

Sharing = Literal["none", "private", "contended"]

CAPACITY = 1024.0
SHARED_BY_ALL, SHARED_BY_SOME, OWN = "network", "host link", "memory"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
PHASES = ("none", "forward", "backward", "recompute", "optimizer")

exact_times = st.one_of(st.just(0.0), st.integers(0, 32).map(lambda n: n / 32))
"""Sums of these are exact, and equal sums are common."""
rounded_times = st.one_of(st.just(0.0), st.integers(0, 1_000_000).map(lambda n: n * 1e-6))


@dataclass(frozen=True)
class Slow:
    """Ranks that pay `factor` times as much for the ops chosen (all where None)."""

    ranks: tuple[int, ...]
    factor: float
    every: int
    """Every so many ops, counted over all roles, are slowed."""


@dataclass(frozen=True)
class Job:
    """A program and the ranks of it that pay more than written."""

    program: Program
    slow: tuple[Slow, ...] = ()

    def __repr__(self) -> str:
        return f"Job({describe(self.program)}\n  slow={self.slow})"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def ops(self) -> Ops:
        return expand(self.program)

    def prices(self, ops: Ops) -> Prices:
        prices = price(ops)
        for slow in self.slow:
            prices = prices.slowed(slow.ranks, slow.factor, np.arange(len(ops)) % slow.every == 0)
        return prices


def describe(program: Program) -> str:
    """A program as text, for the report of a failing example."""
    lines = [f"{program.mesh}, repeats={program.repeats}, role_of={program.role_of.tolist()}"]
    lines += [f"  {one.name}: {[rows.tolist() for rows in one.members(program.mesh)]}" for one in program.communicators]
    lines += [f"  {one}" for one in program.resources]
    columns, templates = program.templates.columns, program.templates
    for number, block in enumerate(program.blocks):
        lines.append(f"  block {number} {block.name}")
        for op in range(templates.start[number], templates.start[number + 1]):
            name, lane = program.strings[columns["name"][op]], program.lanes[columns["lane"][op]].name
            waits = (templates.dep_src[templates.dep_dst == op] - templates.start[number]).tolist()
            meets = columns["communicator"][op]
            where = f" on {program.communicators[meets].name}" if meets >= 0 else ""
            drawn = [
                (program.resources[templates.draw_resource[i]].name, templates.draw_amount[i], templates.draw_held[i])
                for i in np.flatnonzero(templates.draw_op == op)
            ]
            time = f"{float(columns['duration_s'][op])} (latency {float(columns['latency_s'][op])})"
            lines.append(
                f"    {op - templates.start[number]} {name} [{lane}]{where} {time} after {waits} draws {drawn}"
            )
    instances, links = program.instances, program.links
    for role in range(len(program.roles)):
        blocks = instances.block[instances.start[role] : instances.start[role + 1]].tolist()
        lines.append(f"  role {role}: blocks {blocks} as instances {instances.start[role]}…")
    overrides = zip(
        instances.override_instance.tolist(),
        instances.override_op.tolist(),
        instances.override_column,
        instances.override_value.tolist(),
        strict=True,
    )
    lines.append(f"  overrides (instance, op, column, value) {list(overrides)}")
    table = zip(*(column.tolist() for column in (links.src_instance, links.src_op)), strict=True)
    target = zip(*(column.tolist() for column in (links.dst_instance, links.dst_op, links.steps)), strict=True)
    lines.append(f"  links (instance, op), (instance, op, steps) {list(zip(table, target, strict=True))}")
    return "\n".join(lines)


def folded(job: Job, *, sharing: bool = False) -> tuple[Graph, Prices]:
    ops = job.ops
    prices = job.prices(ops)
    resources = prices.draws.resources if sharing else ()
    return fold(ops, prices.kinds_of_ranks(sharing), resources=resources), prices


def unfolded(job: Job) -> tuple[Graph, Prices]:
    ops = job.ops
    return unfold(ops), job.prices(ops)


def of_rank(timeline: Timeline, rank: int) -> tuple[np.ndarray[Any, Any], ...]:
    """(ready, start, end) of the ops of one rank."""
    graph = timeline.graph
    number = int(graph.classes.of_rank[rank])
    mine = slice(int(graph.start[number]), int(graph.start[number + 1]))
    return timeline.ready_s[mine], timeline.start_s[mine], timeline.end_s[mine]


def settled(timeline: Timeline) -> bool:
    """Whether the steps have come to one period, which is that of every part of the job."""
    return not timeline.diagnostics


@dataclass
class Meeting:
    """A communicator, the roles that meet on it and what each of them takes."""

    communicator: Communicator
    roles: tuple[int, ...]
    what: str
    duration: dict[int, float]
    latency: float
    lane: str | None
    draws: dict[int, dict[str, float]] = field(default_factory=dict)
    holds: dict[str, float] = field(default_factory=dict)


@dataclass
class Segment:
    """The blocks of a segment by role, where its meetings are in them, and which ops must not vanish."""

    blocks: dict[int, BlockBuilder]
    meetings: list[dict[int, int]]
    kept: dict[int, set[int]]


@st.composite
def meshes(draw: st.DrawFn, most_ranks: int) -> Mesh:
    sizes, room = {}, most_ranks
    for axis in draw(st.permutations(("tp", "dp", "pp"))):
        sizes[axis] = draw(st.integers(1, min(4, room)))
        room //= sizes[axis]
    return Mesh(**sizes)


def _roles(draw: st.DrawFn, mesh: Mesh) -> list[int]:
    """The role of every rank: one for all, one per stage, or anyhow."""
    how = draw(st.sampled_from(("one", "stages", "any")))
    if how == "one":
        return [0] * mesh.world
    if how == "stages":
        return mesh.coordinate("pp").tolist()
    drawn = draw(st.lists(st.integers(0, 3), min_size=mesh.world, max_size=mesh.world))
    numbers: dict[int, int] = {}
    return [numbers.setdefault(one, len(numbers)) for one in drawn]


def _communicators(draw: st.DrawFn, build: ProgramBuilder) -> list[Communicator]:
    mesh = build.mesh
    some = [build.communicator(axis) for axis in ("tp", "dp", "pp")]
    some += [build.communicator("tp", "dp"), build.groups("world", [range(mesh.world)])]
    if mesh.pp > 1:
        low = draw(st.integers(0, mesh.pp - 2))
        some += [build.pair("pp", low, low + 1), build.pair("pp", low + 1, low, name="pp back")]
    group = draw(st.lists(st.integers(-1, 3), min_size=mesh.world, max_size=mesh.world))
    rows = [[rank for rank in range(mesh.world) if group[rank] == number] for number in set(group) - {-1}]
    if rows:
        some.append(build.groups("some", [row[::-1] for row in rows], axis=draw(st.sampled_from(("ep", "pp")))))
    return some


def _companies(communicator: Communicator, mesh: Mesh, role_of: list[int]) -> list[tuple[int, ...]]:
    """The sets of roles that meet each other on a communicator and no others, all their ranks being in its groups."""
    groups = [row.tolist() for rows in communicator.members(mesh) for row in rows]
    inside = {rank for group in groups for rank in group}
    together = [{role_of[rank] for rank in group} for group in groups]
    companies: list[set[int]] = []
    for roles in together:
        touching = [company for company in companies if company & roles]
        companies = [company for company in companies if not company & roles] + [roles.union(*touching)]
    outside = {role for rank, role in enumerate(role_of) if rank not in inside}
    return [tuple(sorted(company)) for company in companies if not company & outside]


class _Writer:
    """Draws one job."""

    def __init__(self, draw: st.DrawFn, build: ProgramBuilder, sharing: Sharing, memory: bool) -> None:
        self.draw, self.build, self.sharing, self.memory = draw, build, sharing, memory
        mesh = build.mesh
        self.role_of = _roles(draw, mesh)
        self.times = draw(st.sampled_from((exact_times, rounded_times)))
        self.roles = [
            build.role(f"role {number}", [rank for rank in range(mesh.world) if self.role_of[rank] == number])
            for number in range(max(self.role_of) + 1)
        ]
        found = [(one, _companies(one, mesh, self.role_of)) for one in _communicators(draw, build)]
        self.meets = [(one, company) for one, companies in found for company in companies]
        self.placed: dict[int, list[tuple[PlacedOp, int]]] = {role.number: [] for role in self.roles}
        if sharing == "contended":
            self._share()

    def _share(self) -> None:
        world = self.build.mesh.world
        host = self.draw(st.lists(st.integers(0, 2), min_size=world, max_size=world))
        rows = [[rank for rank in range(world) if host[rank] == number] for number in (0, 1, 2)]
        self.build.resource(OWN, CAPACITY)
        self.build.resource(SHARED_BY_ALL, CAPACITY, shared_by=[range(world)])
        rows = [row for row in rows if row]
        own = self.draw(st.none() | st.lists(st.sampled_from((1, 1.5)), min_size=len(rows), max_size=len(rows)))
        own = None if own is None else [CAPACITY * one for one in own]
        self.build.resource(SHARED_BY_SOME, CAPACITY, shared_by=rows, capacities=own)

    def write(self) -> None:
        draw = self.draw
        segments = [self._segment(number) for number in range(draw(st.integers(1, 3)))]
        sequence = draw(st.lists(st.integers(0, len(segments) - 1), min_size=1, max_size=5))
        for microbatch, number in enumerate(sequence):
            if draw(st.booleans()):
                self._inline(microbatch)
            self._place(segments[number], microbatch)
        joined = self.build.repeats and draw(st.booleans())
        for role in self.roles:
            if not self.placed[role.number]:
                self.placed[role.number].append((role.compute("alone", draw(self.times)), -1))
            ops = [op for op, _ in self.placed[role.number]]
            for _ in range(draw(st.integers(0, 2)) if ops and self.build.repeats else 0):
                role.link(draw(st.sampled_from(ops)), after=draw(st.sampled_from(ops)), steps=1)
            if joined:
                self._join(role, ops)
            if self.memory:
                role.resident(weights=draw(st.integers(0, 64)))

    def _join(self, role: RoleBuilder, ops: list[PlacedOp]) -> None:
        """Keeps all ranks and lanes at one pace: all meet when all is done, and the next step begins after that."""
        world = self.build.groups("all done", [range(self.build.mesh.world)])
        met = role.collective("barrier", world, 1 / 64, after=ops)
        for op in ops:
            role.link(op, after=met, steps=1)

    def _inline(self, microbatch: int) -> None:
        role = self.draw(st.sampled_from(self.roles))
        before = [op for op, _ in self.placed[role.number]]
        after = self.draw(st.lists(st.sampled_from(before), max_size=1)) if before else []
        op = role.compute("once", self.draw(self.times), microbatch=microbatch, after=after)
        self.placed[role.number].append((op, -1))

    def _segment(self, number: int) -> Segment:
        draw = self.draw
        meetings = [self._meeting() for _ in range(draw(st.integers(0, 3)) if self.meets else 0)]
        segment = Segment({}, [{} for _ in meetings], {})
        for role in self.roles:
            block = self.build.block(f"segment {number} of {role.name}")
            mine = [index for index, meeting in enumerate(meetings) if role.number in meeting.roles]
            for index in mine:
                self._local_ops(block)
                segment.meetings[index][role.number] = self._meet(block, meetings[index], role.number)
            self._local_ops(block)
            kept = self._memory(block) if self.memory else set()
            if block.rows:
                block.port("out", _ref(block, len(block.rows) - 1))
                segment.blocks[role.number], segment.kept[role.number] = block, kept
        return segment

    def _meeting(self) -> Meeting:
        draw = self.draw
        communicator, roles = draw(st.sampled_from(self.meets))
        what = draw(st.sampled_from(COLLECTIVES if communicator.pair is None else self._ways(communicator)))
        longest = draw(self.times)
        parts = {role: draw(st.sampled_from((1.0, 1.0, 0.5))) for role in roles}
        lane = draw(st.sampled_from((None, None, "communication", "compute")))
        latency = draw(st.sampled_from((0.0, 0.25))) * longest if self.sharing != "none" else 0.0
        meeting = Meeting(communicator, roles, what, {r: part * longest for r, part in parts.items()}, latency, lane)
        if self.sharing == "contended" and draw(st.integers(0, 3)):
            # The shortest member past its latency: no member draws more than there is while the meeting runs alone.
            busy = 0.5 * longest - latency
            names = draw(
                st.lists(st.sampled_from((SHARED_BY_ALL, SHARED_BY_SOME, OWN)), unique=True, min_size=1, max_size=2)
            )
            for role in roles:
                shares = {name: draw(st.sampled_from((1.0, 0.5, 0.125))) for name in names}
                meeting.draws[role] = {name: share * CAPACITY * busy for name, share in shares.items()}
            meeting.holds = {SHARED_BY_ALL: 0.01 * CAPACITY} if draw(st.booleans()) and names else {}
        return meeting

    def _ways(self, communicator: Communicator) -> tuple[str, ...]:
        """A transfer has one end that sends, so no role may be at both."""
        first, second = self._ends(communicator)
        return ("exchange",) if first & second else ("transfer", "exchange")

    def _ends(self, communicator: Communicator) -> tuple[set[int], set[int]]:
        """The roles at either position of the pairs."""
        (rows,) = communicator.members(self.build.mesh)
        return {self.role_of[rank] for rank in rows[:, 0]}, {self.role_of[rank] for rank in rows[:, 1]}

    def _meet(self, block: BlockBuilder, meeting: Meeting, role: int) -> int:
        facts: dict[str, Any] = {"latency_s": meeting.latency, "after": self._before(block)}
        lane = meeting.lane or (meeting.communicator.axis if meeting.communicator.pair is None else "pp link")
        facts["lane"] = lane
        duration = meeting.duration[role]
        if self.sharing == "private":
            facts["draws"] = self._private(lane, 0.5 * duration)
        if meeting.draws:
            facts |= {"draws": meeting.draws[role], "holds": meeting.holds}
        if meeting.what == "transfer":
            to = 1 if role in self._ends(meeting.communicator)[0] else None
            block.transfer("transfer", meeting.communicator, duration, to=to, bytes=8, **facts)
        elif meeting.what == "exchange":
            block.exchange("exchange", meeting.communicator, duration, sends={1: 8}, **facts)
        else:
            block.collective(meeting.what, meeting.communicator, duration, bytes=8, **facts)
        return len(block.rows) - 1

    def _local_ops(self, block: BlockBuilder) -> None:
        draw = self.draw
        for _ in range(draw(st.integers(0, 2))):
            kind = draw(st.sampled_from(("compute", "compute", "compute beside", "host")))
            duration = draw(self.times)
            facts: dict[str, Any] = {"after": self._before(block)}
            if self.sharing == "private":
                facts["draws"] = self._private(kind, duration)
            if self.sharing == "contended" and draw(st.integers(0, 3)):
                facts["latency_s"] = draw(st.sampled_from((0.0, 0.25))) * duration
                busy = duration - facts["latency_s"]
                names = draw(
                    st.lists(st.sampled_from((SHARED_BY_ALL, OWN, SHARED_BY_SOME)), unique=True, min_size=1, max_size=2)
                )
                facts["draws"] = {name: draw(st.sampled_from((1.0, 0.25))) * CAPACITY * busy for name in names}
                facts["holds"] = {OWN: 0.1 * CAPACITY} if names and draw(st.booleans()) else {}
            if kind == "host":
                block.host("host work", duration, **facts)
            else:
                block.compute("work", duration, lane=kind, phase=draw(st.sampled_from(PHASES)), **facts)

    def _private(self, lane: str, most: float) -> dict[str, float]:
        """Draws that never contend: on what only this lane of this rank uses, or on what is there in abundance."""
        share = self.draw(st.sampled_from((0.0, 0.5, 1.0)))
        if self.draw(st.booleans()):
            return {self.build.resource(f"only {lane}", CAPACITY): share * CAPACITY * most}
        world = self.build.mesh.world
        return {self.build.resource("plenty", 1000 * CAPACITY, shared_by=[range(world)]): share * CAPACITY * most}

    def _before(self, block: BlockBuilder) -> list[Any]:
        if not block.rows:
            return []
        chosen = self.draw(st.lists(st.integers(0, len(block.rows) - 1), unique=True, max_size=2))
        return [_ref(block, op) for op in chosen]

    def _memory(self, block: BlockBuilder) -> set[int]:
        """Takes memory at the start of ops and gives it back at the end of the same op or of one that waits for it."""
        kept: set[int] = set()
        for _ in range(self.draw(st.integers(0, 2)) if block.rows else 0):
            first = self.draw(st.integers(0, len(block.rows) - 1))
            last = self.draw(st.integers(first, len(block.rows) - 1))
            size = self.draw(st.integers(1, 64))
            if first == last:
                block.memory.append((first, 3, size, size))
                continue
            block.memory += [(first, 3, size, 0), (last, 3, 0, size)]
            block.deps.append((first, last))
            kept |= {first, last}
        return kept

    def _place(self, segment: Segment, microbatch: int) -> None:
        draw = self.draw
        # A meeting vanishes for all its members or for none; where memory is kept by one, it stays.
        gone = [
            draw(st.integers(0, 7)) == 0 and not any(op in segment.kept[role] for role, op in ops.items())
            for ops in segment.meetings
        ]
        for number, block in segment.blocks.items():
            role = self.roles[number]
            met = {ops[number]: gone[index] for index, ops in enumerate(segment.meetings) if number in ops}
            changed: dict[Any, dict[str, float]] = {op: {"enabled": 0} for op, vanishes in met.items() if vanishes}
            for op in draw(st.lists(st.integers(0, len(block.rows) - 1), unique=True, max_size=2)):
                if op not in met and op not in segment.kept[number] and draw(st.booleans()):
                    changed[op] = {"enabled": 0}
                elif op not in changed:
                    changed[op] = {"duration_s": self._longer(block.rows[op]["duration_s"])}
            self._tie(role, block, microbatch, changed)

    def _longer(self, duration: float) -> float:
        """Another duration; never a shorter one for an op that draws, which might then draw more than there is."""
        if self.sharing == "none":
            return self.draw(self.times)
        return duration * self.draw(st.sampled_from((1.0, 2.0, 3.0)))

    def _tie(self, role: RoleBuilder, block: BlockBuilder, microbatch: int, changed: dict[Any, Any]) -> None:
        before = self.placed[role.number]
        after: dict[str | int, list[PlacedOp]] = {}
        for _ in range(self.draw(st.integers(0, 2)) if before else 0):
            target = self.draw(st.integers(0, len(block.rows) - 1))
            after.setdefault(target, []).append(self.draw(st.sampled_from(before))[0])
        instance = role.place(block, microbatch=microbatch, after=after, override=changed)
        before += [(instance[op], op) for op in range(len(block.rows))]


def _ref(block: BlockBuilder, op: int) -> OpRef:
    return OpRef(block.number, op)


@st.composite
def jobs(
    draw: st.DrawFn,
    *,
    sharing: Sharing = "none",
    repeats: bool | None = None,
    most_ranks: int = 16,
    memory: bool = False,
    slow: bool = True,
) -> Job:
    """A random job; `sharing` says whether its ops draw on resources, and whether they contend for them."""
    steps_repeat = draw(st.integers(0, 3)) > 0 if repeats is None else repeats
    build = ProgramBuilder(draw(meshes(most_ranks)), repeats=steps_repeat)
    slowed = slow and draw(st.booleans())
    _Writer(draw, build, sharing, memory).write()
    program = build.program()
    ranks = st.lists(st.integers(0, program.world - 1), min_size=1, max_size=3, unique=True).map(tuple)
    factors = st.sampled_from((1.5, 3.0, 1.1))
    slows = st.builds(Slow, ranks, factors, st.sampled_from((1, 1, 2)))
    return Job(program, tuple(draw(st.lists(slows, min_size=1, max_size=2)) if slowed else ()))
