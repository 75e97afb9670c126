"""The graph the engine runs: the ops of each rank class, what they wait for, and where classes meet.

A node is an op of a rank class. A unit is what starts at once: a lone op, or all members of a rendezvous. Because the
partition into classes is equitable, the classes that meet in one group of a communicator meet in all its groups, so a
rendezvous of the folded graph is a set of nodes just as in the unfolded one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs, ranges
from foretrace.program.classes import RankClasses
from foretrace.program.expand import Ops
from foretrace.program.program import Program


@dataclass(frozen=True, slots=True)
class Graph:
    """`start[c] : start[c + 1]` are the nodes of class c; `op` says which op a node is.

    `pred[pred_start[i] : pred_start[i + 1]]` are the nodes that node i waits for within the step; `next_src` and
    `next_dst` are waits for the step before. Units number the rendezvous first, then the lone ops.
    """

    ops: Ops
    classes: RankClasses
    start: Ints
    op: Ints
    pred_start: Ints
    pred: Ints
    next_src: Ints
    next_dst: Ints
    unit: Ints
    units: int
    rendezvous: int

    def __len__(self) -> int:
        return len(self.op)

    @property
    def program(self) -> Program:
        """The program this is the graph of."""
        return self.ops.program

    @property
    def rank_class(self) -> Ints:
        """The rank class of each node."""
        return np.repeat(np.arange(len(self.classes), dtype=np.int32), np.diff(self.start))

    @property
    def weight(self) -> Floats:
        """How many ranks each node stands for."""
        return np.repeat(self.classes.count.astype(np.float64), np.diff(self.start))

    def place(self, node: int) -> str:
        """Where a node is, for messages: `rank 3 "recv" on pp 0-1 (stage 1, microbatch 2)`."""
        owner = int(np.searchsorted(self.start, node, side="right") - 1)
        rank, count = int(self.classes.representative[owner]), int(self.classes.count[owner])
        op = int(self.op[node])
        name = self.program.strings[int(self.ops.column("name")[op])]
        microbatch = int(self.ops.microbatch[op])
        detail = self.program.roles[int(self.program.role_of[rank])]
        if microbatch >= 0:
            detail += f", microbatch {microbatch}"
        many = f" and {count - 1} alike" if count > 1 else ""
        communicator = int(self.ops.ints("communicator")[op])
        meets = f" on {self.program.communicators[communicator].name}" if communicator >= 0 else ""
        return f'rank {rank}{many} "{name}"{meets} ({detail})'


Members = Mapping[int, Sequence[Longs]]
"""For each communicator on which ops meet, by number, the ranks of its groups."""


def members_met(ops: Ops) -> Members:
    """The communicators on which ops meet, and the ranks of their groups."""
    program = ops.program
    communicators = np.where(ops.order >= 0, ops.column("communicator"), len(program.communicators))
    counts = np.bincount(communicators, minlength=len(program.communicators) + 1)[:-1]
    # Channels between the same stages share their rows, so that whoever looks at rows can do so once.
    known: dict[tuple[object, ...], Sequence[Longs]] = {}
    members: dict[int, Sequence[Longs]] = {}
    for number in np.flatnonzero(counts).tolist():
        communicator = program.communicators[number]
        key = (number,) if communicator.groups is not None else (communicator.axes, communicator.pair)
        if key not in known:
            known[key] = communicator.members(program.mesh)
        members[number] = known[key]
    return members


def instantiate(ops: Ops, classes: RankClasses, members: Members) -> Graph:
    """The graph of a program for a partition of its ranks into classes (equitable, or each rank its own)."""
    program = ops.program
    role = program.role_of[classes.representative]
    sizes = np.diff(ops.start)[role]
    start = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    op = ranges(ops.start[role], sizes)
    pred_start, pred = _waits(ops, role, start)
    next_src, next_dst = _next_waits(ops, role, start)
    unit, units, rendezvous = _units(ops, classes, members, op, np.repeat(np.arange(len(role)), sizes))
    return Graph(
        ops,
        classes,
        start.astype(np.int32),
        op.astype(np.int32),
        pred_start.astype(np.int32),
        pred,
        next_src.astype(np.int32),
        next_dst.astype(np.int32),
        unit,
        units,
        rendezvous,
    )


def _waits(ops: Ops, role: Ints, start: Longs) -> tuple[Longs, Ints]:
    """The waits of each role, repeated for each of its classes; they stay sorted by the op that waits."""
    if len(role) == len(ops.start) - 1 and (np.diff(role) == 1).all():  # one class for each role
        return ops.dep_start, ops.dep_src
    edges = ops.dep_start[ops.start]
    counts = np.diff(edges)[role]
    rows = ranges(edges[role], counts)
    moved = (start[:-1] - ops.start[role]).astype(np.int32)
    per_node = np.diff(ops.dep_start)[ranges(ops.start[role], np.diff(start))]
    return np.append(0, np.cumsum(per_node)), ops.dep_src[rows] + np.repeat(moved, counts)


def _next_waits(ops: Ops, role: Ints, start: Longs) -> tuple[Longs, Longs]:
    of_role = np.searchsorted(ops.start, ops.next_dst, side="right") - 1
    by_role = np.argsort(of_role, kind="stable")
    edges = np.searchsorted(of_role[by_role], np.arange(len(ops.start)))
    counts = np.diff(edges)[role]
    rows = by_role[ranges(edges[role], counts)]
    moved = np.repeat(start[:-1] - ops.start[role], counts)
    return (ops.next_src[rows] + moved).astype(np.int64), (ops.next_dst[rows] + moved).astype(np.int64)


def _units(ops: Ops, classes: RankClasses, members: Members, op: Longs, node_class: Longs) -> tuple[Ints, int, int]:
    """(unit of each node, number of units, number of them that are rendezvous)."""
    communicator = ops.column("communicator")
    first_unit, rendezvous = _rendezvous_numbers(ops, classes, members)
    order = ops.order[op]
    is_met = order >= 0
    meets = np.flatnonzero(is_met)
    # The units of lone ops are numbered in the order of the nodes.
    unit = np.cumsum(~is_met, dtype=np.int32)
    unit += np.int32(rendezvous - 1)
    unit[meets] = first_unit[communicator[op[meets]], node_class[meets]] + order[meets]
    alone = len(op) - len(meets)
    return unit, rendezvous + alone, rendezvous


def _rendezvous_numbers(ops: Ops, classes: RankClasses, members: Members) -> tuple[Longs, int]:
    """The number of the first rendezvous of each (communicator, class), and how many there are in all."""
    program = ops.program
    communicators, roles = len(program.communicators), len(program.roles)
    meets = np.flatnonzero(ops.order >= 0)
    key = ops.column("communicator")[meets].astype(np.int64) * roles + ops.role[meets]
    issues = np.bincount(key, minlength=communicators * roles).reshape(communicators, roles)
    issued = issues[:, program.role_of[classes.representative]]
    # Classes that meet in one group meet in all of theirs; their meetings go by the smallest of them.
    smallest = np.full((communicators, len(classes)), -1, dtype=np.int64)
    known: dict[int, Longs] = {}
    for number, groups in members.items():
        if id(groups) not in known:
            known[id(groups)] = np.full(len(classes), -1, dtype=np.int64)
            for rows in groups:
                row_classes = classes.of_rank[rows]
                known[id(groups)][row_classes] = np.minimum.reduce(row_classes, axis=1, keepdims=True)
        smallest[number] = known[id(groups)]
    meeting = np.flatnonzero((issued > 0) & (smallest >= 0))
    first_class = meeting - meeting % max(len(classes), 1)
    _, head, inverse = np.unique(first_class + smallest.ravel()[meeting], return_index=True, return_inverse=True)
    lengths = issued.ravel()[meeting][head]
    first = np.full(communicators * len(classes), -1, dtype=np.int64)
    first[meeting] = (np.cumsum(lengths) - lengths)[inverse]
    return first.reshape(communicators, len(classes)), int(lengths.sum())
