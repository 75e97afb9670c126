"""The graph the engine runs: the ops of each rank class, what they wait for, and where classes meet.

A node is an op of a rank class. A unit is what starts at once: a lone op, or all members of a rendezvous. Because the
partition into classes is equitable, the classes that meet in one group of a communicator meet in all its groups, so a
rendezvous of the folded graph is a set of nodes just as in the unfolded one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import InputError
from foretrace.program.arrays import ranges
from foretrace.program.classes import RankClasses
from foretrace.program.columns import Collective, label
from foretrace.program.expand import Ops
from foretrace.program.program import Ints, Program

MOST_NODES = 1 << 25
"""A node takes about 300 bytes while it is run: this many take 10 GB."""


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
    def weight(self) -> NDArray[np.float64]:
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


def instantiate(ops: Ops, classes: RankClasses) -> Graph:
    """The graph of a program for a partition of its ranks into classes (equitable, or each rank its own)."""
    program = ops.program
    role = program.role_of[classes.representative]
    sizes = np.diff(ops.start)[role]
    start = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    if start[-1] > MOST_NODES:
        raise InputError(
            f"{len(classes):,} ranks on their own have {start[-1]:,} ops; at most {MOST_NODES:,} can be run",
            hint="leave out --unfolded: ranks that behave alike are then run once",
        )
    op = ranges(ops.start[role], sizes)
    pred_start, pred = _waits(ops, role, start)
    next_src, next_dst = _next_waits(ops, role, start)
    unit, units, rendezvous = _units(ops, classes, op, np.repeat(np.arange(len(role)), sizes))
    return Graph(
        ops,
        classes,
        start.astype(np.int32),
        op.astype(np.int32),
        pred_start.astype(np.int32),
        pred.astype(np.int32),
        next_src.astype(np.int32),
        next_dst.astype(np.int32),
        unit,
        units,
        rendezvous,
    )


def check_rendezvous(ops: Ops) -> None:
    """Raises an error where ranks of one group do not issue the same collectives in the same order."""
    program, role = ops.program, ops.role
    communicator = np.where(ops.order >= 0, ops.ints("communicator"), -1)
    issuing = np.flatnonzero(communicator >= 0)
    issuing = issuing[np.lexsort((role[issuing], communicator[issuing]))]
    bounds = np.searchsorted(communicator[issuing], np.arange(len(program.communicators) + 1))
    population = np.bincount(program.role_of, minlength=len(program.roles))
    for number, one in enumerate(program.communicators):
        mine = issuing[bounds[number] : bounds[number + 1]]
        ends = np.searchsorted(role[mine], np.arange(len(program.roles) + 1))
        issued = [mine[low:high] for low, high in pairwise(ends)]
        inside = np.zeros(len(program.roles), dtype=np.int64)
        for rows in one.members(program.mesh):
            roles = program.role_of[rows]
            inside += np.bincount(roles.ravel(), minlength=len(program.roles))
            for row in _distinct(roles):
                if any(len(issued[r]) for r in roles[row]):
                    _check_group(ops, one.name, rows[row], [issued[r] for r in roles[row]])
        outside = np.flatnonzero((np.diff(ends) > 0) & (inside < population))
        if len(outside):
            raise _outsider(
                ops,
                one.name,
                int(outside[0]),
                int(issued[outside[0]][0]),
                one.group_of(program.mesh, program.world),
            )


def _distinct(rows: NDArray[np.int32]) -> NDArray[np.int64]:
    """The numbers of rows that differ from each other, one of each kind."""
    if (rows == rows[:1]).all():
        return np.zeros(min(len(rows), 1), dtype=np.int64)
    return np.unique(rows, axis=0, return_index=True)[1]


def _outsider(ops: Ops, name: str, role: int, op: int, group: Ints) -> InputError:
    rank = int(np.flatnonzero((ops.program.role_of == role) & (group < 0))[0])
    return InputError(f'{_who(ops, rank, op)} meets others on "{name}", but the rank is in none of its groups')


def _check_group(ops: Ops, name: str, ranks: NDArray[np.int64], issued: list[NDArray[np.int64]]) -> None:
    group = f'"{name}" (ranks {", ".join(map(str, ranks[:8]))}{", …" if len(ranks) > 8 else ""})'
    counts = [len(mine) for mine in issued]
    if min(counts) != max(counts):
        less, more = int(np.argmin(counts)), int(np.argmax(counts))
        extra = _who(ops, int(ranks[more]), int(issued[more][counts[less]]))
        raise InputError(
            f"{extra} has no partner: rank {ranks[less]} issues {counts[less]} ops on {group}, "
            f"rank {ranks[more]} issues {counts[more]}"
        )
    what, size = ops.ints("collective"), ops.ints("bytes")
    _check_transfers(ops, group, ranks, issued, what)
    uneven = np.isin(what, (Collective.ALL_TO_ALL, Collective.EXCHANGE, Collective.TRANSFER))
    for mine, rank in zip(issued[1:], ranks[1:], strict=True):
        other = (what[mine] != what[issued[0]]) | ((size[mine] != size[issued[0]]) & ~uneven[mine])
        if other.any():
            at = int(np.flatnonzero(other)[0])
            ours, theirs = int(issued[0][at]), int(mine[at])
            raise InputError(
                f"op {at} on {group} differs: {_who(ops, int(ranks[0]), ours)} issues "
                f"{_what(what[ours], size[ours])}, {_who(ops, int(rank), theirs)} {_what(what[theirs], size[theirs])}"
            )


def _check_transfers(
    ops: Ops, group: str, ranks: NDArray[np.int64], issued: list[NDArray[np.int64]], what: NDArray[np.int64]
) -> None:
    """A transfer has one member that sends, to another one that receives."""
    templates = ops.program.templates
    receiver = np.full(len(templates.columns["kind"]), -1, dtype=np.int64)
    receiver[templates.send_op] = templates.send_to
    if not (what[issued[0]] == Collective.TRANSFER).any():
        return
    to = np.stack([receiver[ops.template[mine]] for mine in issued])
    transfers = what[issued[0]] == Collective.TRANSFER
    wrong = transfers & (((to >= 0).sum(axis=0) != 1) | (to == np.arange(len(issued))[:, None]).any(axis=0))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        senders = int((to[:, at] >= 0).sum())
        how = {0: "none of them sends", 1: "one sends to itself"}.get(senders, "more than one of them sends")
        who = " and ".join(_who(ops, int(rank), int(mine[at])) for rank, mine in zip(ranks, issued, strict=True))
        raise InputError(
            f"op {at} on {group} is a transfer of {who}, but {how}",
            hint="one member gives the position it sends to (to=1), the other gives none",
        )


def _what(collective: int, size: int) -> str:
    return f"{label(Collective(int(collective)))} of {int(size):,} bytes"


def _who(ops: Ops, rank: int, op: int) -> str:
    return f'rank {rank} "{ops.program.strings[int(ops.column("name")[op])]}"'


def _waits(ops: Ops, role: Ints, start: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The waits of each role, repeated for each of its classes; they stay sorted by the op that waits."""
    if len(role) == len(ops.start) - 1 and (np.diff(role) == 1).all():  # one class for each role
        per_node = np.bincount(ops.dep_dst, minlength=len(ops))
        return np.concatenate([[0], np.cumsum(per_node)]), ops.dep_src.astype(np.int64)
    edges = np.searchsorted(ops.dep_dst, ops.start)
    counts = np.diff(edges)[role]
    rows = ranges(edges[role], counts)
    moved = np.repeat(start[:-1] - ops.start[role], counts)
    per_node = np.bincount(ops.dep_dst[rows] + moved, minlength=int(start[-1]))
    return np.concatenate([[0], np.cumsum(per_node)]), (ops.dep_src[rows] + moved).astype(np.int64)


def _next_waits(ops: Ops, role: Ints, start: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    of_role = np.searchsorted(ops.start, ops.next_dst, side="right") - 1
    by_role = np.argsort(of_role, kind="stable")
    edges = np.searchsorted(of_role[by_role], np.arange(len(ops.start)))
    counts = np.diff(edges)[role]
    rows = by_role[ranges(edges[role], counts)]
    moved = np.repeat(start[:-1] - ops.start[role], counts)
    return (ops.next_src[rows] + moved).astype(np.int64), (ops.next_dst[rows] + moved).astype(np.int64)


def _units(
    ops: Ops, classes: RankClasses, op: NDArray[np.int64], node_class: NDArray[np.int64]
) -> tuple[Ints, int, int]:
    """(unit of each node, number of units, number of them that are rendezvous)."""
    communicator = np.where(ops.order >= 0, ops.ints("communicator"), -1)
    first_unit, rendezvous = _rendezvous_numbers(ops, classes, communicator)
    meets = communicator[op] >= 0
    unit = np.empty(len(op), dtype=np.int64)
    unit[meets] = first_unit[communicator[op[meets]], node_class[meets]] + ops.order[op[meets]]
    alone = int(len(op) - meets.sum())
    unit[~meets] = np.arange(rendezvous, rendezvous + alone)
    return unit.astype(np.int32), rendezvous + alone, rendezvous


def _rendezvous_numbers(
    ops: Ops, classes: RankClasses, communicator: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """The number of the first rendezvous of each (communicator, class), and how many there are in all."""
    program = ops.program
    issues = np.zeros((len(program.communicators), len(program.roles)), dtype=np.int64)
    used = communicator >= 0
    np.add.at(issues, (communicator[used], ops.role[used]), 1)
    first = np.full((len(program.communicators), len(classes)), -1, dtype=np.int64)
    total = 0
    for number, one in enumerate(program.communicators):
        of_class = issues[number][program.role_of[classes.representative]]
        if not of_class.any():
            continue
        # Classes that meet in one group meet in all of theirs; their meetings go by the smallest of them.
        smallest = np.full(len(classes), -1, dtype=np.int64)
        for rows in one.members(program.mesh):
            met = classes.of_rank[rows]
            smallest[met] = met.min(axis=1)[:, None]
        meeting = np.flatnonzero((of_class > 0) & (smallest >= 0))
        _, head, inverse = np.unique(smallest[meeting], return_index=True, return_inverse=True)
        lengths = of_class[meeting][head]
        first[number, meeting] = (total + np.cumsum(lengths) - lengths)[inverse]
        total += int(lengths.sum())
    return first, total
