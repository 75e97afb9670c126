"""Checks that ranks that meet agree on what they do: the same collectives of the same sizes, in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise, starmap
from operator import eq

import numpy as np

from foretrace.basics.arrays import Ints, Longs, ranges, stable_order
from foretrace.basics.errors import InputError, shortened
from foretrace.program.columns import Collective, label
from foretrace.program.program import Program

Members = Sequence[Sequence[Longs]]
"""For each communicator the ranks of every group, one array of equally long rows per group size."""


def check_rendezvous(program: Program, members: Members) -> None:
    """Raises an error where ranks of one group do not issue the same collectives in the same order."""
    doubtful = _doubtful(program, members)
    if not len(doubtful):
        return
    issued = _Issued(program, doubtful)
    population = np.bincount(program.role_of, minlength=len(program.roles)).tolist()
    for number in doubtful.tolist():
        name, of_role = program.communicators[number].name, issued.by_role(number)
        counts = [mine.stop - mine.start for mine in of_role]
        inside = [0] * len(program.roles)
        for rows in members[number]:
            for row, roles, many in _kinds(program.role_of[rows]):
                for role in roles:
                    inside[role] += many
                if any(counts[role] for role in roles):
                    _check_group(issued, name, rows[row], [of_role[role] for role in roles])
        outside = [role for role, count in enumerate(counts) if count and inside[role] < population[role]]
        if outside:
            group = program.communicators[number].group_of(program.mesh, program.world)
            rank = int(np.flatnonzero((program.role_of == outside[0]) & (group < 0))[0])
            who = issued.who(rank, of_role[outside[0]].start)
            raise InputError(
                "invalid-program", f'{who} meets others on "{shortened(name)}", but the rank is in none of its groups'
            )


def _doubtful(program: Program, members: Members) -> Longs:
    """The communicators on which ranks can disagree. Ranks of one role issue the same, so they do only where groups mix
    roles, where ranks are left out of all groups, or where one side of a transfer sends."""
    columns = program.templates.columns
    transfers = columns["collective"] == Collective.TRANSFER
    doubtful = np.zeros(len(program.communicators), dtype=bool)
    doubtful[columns["communicator"][transfers]] = True
    for number in np.flatnonzero(~doubtful).tolist():
        rows_by_size = members[number]
        everyone = sum(rows.size for rows in rows_by_size) == program.world
        doubtful[number] = not everyone or any(_mixes(program.role_of[rows]) for rows in rows_by_size)
    return np.flatnonzero(doubtful)


def _mixes(roles: Ints) -> bool:
    return bool((roles != roles[:, :1]).any())


class _Issued:
    """Ops that roles issue on some of the communicators, by communicator and role, in the order of issue."""

    def __init__(self, program: Program, communicators: Longs) -> None:
        templates, instances = program.templates, program.instances
        chosen = np.isin(templates.columns["communicator"], communicators)
        first_row = np.append(0, np.cumsum(chosen))[templates.start]
        counts = np.diff(first_row)[instances.block]
        template = np.flatnonzero(chosen)[ranges(first_row[instances.block], counts)]
        instance = np.repeat(np.arange(len(counts)), counts)
        role = np.repeat(np.arange(len(program.roles)), np.diff(instances.start))[instance]
        key = templates.columns["communicator"][template].astype(np.int64) * len(program.roles) + role
        self.program = program
        self.template, self.instance = template, instance
        order = stable_order(key)
        order = order[self._column("enabled")[order] != 0]  # what is switched off is not issued
        self.template, self.instance, self.key = template[order], instance[order], key[order]
        self.what, self.bytes, self.name = self._column("collective"), self._column("bytes"), self._column("name")
        receiver = np.full(len(chosen), -1, dtype=np.int64)
        receiver[templates.send_op] = templates.send_to
        self.to: list[int] = receiver[self.template].tolist()
        self.transfers: list[bool] = (self.what == Collective.TRANSFER).tolist()
        # Ranks agree on what they do and how large it is, but for what gives each its own size.
        uneven = np.isin(self.what, (Collective.ALL_TO_ALL, Collective.EXCHANGE, Collective.TRANSFER))
        sizes = np.where(uneven, 0, self.bytes)
        self.agreed = list(zip(self.what.tolist(), sizes.tolist(), strict=True))
        keys = np.arange(len(program.communicators) * len(program.roles) + 1)
        self._bounds = np.searchsorted(self.key, keys).tolist()

    def _column(self, name: str) -> Longs:
        """A column of whole numbers, overrides applied."""
        templates, instances = self.program.templates, self.program.instances
        values = templates.columns[name][self.template].astype(np.int64)
        mine = [i for i, column in enumerate(instances.override_column) if column == name]
        if mine:
            placed, value = instances.override_instance[mine].astype(np.int64), instances.override_value[mine]
            rows = len(templates.columns[name])
            changed = placed * rows + templates.start[instances.block[placed]] + instances.override_op[mine]
            latest = dict(zip(changed.tolist(), value.tolist(), strict=True))
            key = self.instance * rows + self.template
            hit = np.flatnonzero(np.isin(key, changed))
            values[hit] = [int(latest[row]) for row in key[hit].tolist()]
        return values

    def by_role(self, communicator: int) -> list[slice]:
        """Where in these arrays the ops are that each role issues on a communicator."""
        roles = len(self.program.roles)
        return list(starmap(slice, pairwise(self._bounds[communicator * roles : (communicator + 1) * roles + 1])))

    def who(self, rank: int, position: int) -> str:
        """An op in messages."""
        return f'rank {rank} "{shortened(self.program.strings[int(self.name[position])])}"'

    def does(self, position: int) -> str:
        """Returns what it does, for messages."""
        return f"{label(Collective(int(self.what[position])))} of {int(self.bytes[position]):,} bytes"


def _kinds(rows: Ints) -> list[tuple[int, list[int], int]]:
    """Returns, for each kind of row, the number of the first, its entries, and how many rows there are."""
    if (rows == rows[0]).all():
        return [(0, rows[0].tolist(), len(rows))]
    distinct, first, many = np.unique(rows, axis=0, return_index=True, return_counts=True)
    return list(zip(first.tolist(), distinct.tolist(), many.tolist(), strict=True))


def _check_group(issued: _Issued, name: str, ranks: Longs, ops: list[slice]) -> None:
    counts = [mine.stop - mine.start for mine in ops]
    if min(counts) != max(counts):
        less, more = int(np.argmin(counts)), int(np.argmax(counts))
        extra = issued.who(int(ranks[more]), ops[more].start + counts[less])
        raise InputError(
            "rendezvous-mismatch",
            f"{extra} has no partner: rank {ranks[less]} issues {counts[less]} ops on {_group(name, ranks)}, "
            f"rank {ranks[more]} issues {counts[more]}",
        )
    ours = ops[0]
    if any(issued.transfers[ours]):
        _check_transfers(issued, name, ranks, ops)
    for theirs, rank in zip(ops[1:], ranks[1:], strict=True):
        if issued.agreed[theirs] != issued.agreed[ours]:
            pairs = zip(issued.agreed[theirs], issued.agreed[ours], strict=True)
            at = next(i for i, (mine, other) in enumerate(pairs) if mine != other)
            our_op, two = ours.start + at, theirs.start + at
            raise InputError(
                "rendezvous-mismatch",
                f"op {at} on {_group(name, ranks)} differs: {issued.who(int(ranks[0]), our_op)} issues "
                f"{issued.does(our_op)}, {issued.who(int(rank), two)} {issued.does(two)}",
            )


def _check_transfers(issued: _Issued, name: str, ranks: Longs, ops: list[slice]) -> None:
    """A transfer has one member that sends, to another one that receives."""
    sides = [set(issued.to[mine]) for mine in ops]
    if sides in ([{-1}, {0}], [{1}, {-1}]) and all(issued.transfers[ops[0]]):
        return  # always the same one of two: the usual case
    for at, transfers in enumerate(issued.transfers[ops[0]]):
        to = [issued.to[mine.start + at] for mine in ops]
        senders = len(to) - to.count(-1)
        if transfers and (senders != 1 or any(map(eq, to, count()))):
            how = {0: "none of them sends", 1: "one sends to itself"}.get(senders, "more than one of them sends")
            who = " and ".join(issued.who(int(rank), mine.start + at) for rank, mine in zip(ranks, ops, strict=True))
            raise InputError(
                "rendezvous-mismatch",
                f"op {at} on {_group(name, ranks)} is a transfer of {who}, but {how}",
                hint="one member gives the position it sends to (to=1), the other gives none",
            )


def _group(name: str, ranks: Longs) -> str:
    return f'"{shortened(name)}" (ranks {", ".join(map(str, ranks[:8]))}{", …" if len(ranks) > 8 else ""})'
