"""Folds a program: one rank stands for each class of ranks that behave identically."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrace.basics.arrays import Ints
from foretrace.basics.errors import InputError
from foretrace.program.classes import RankClasses, coarsest, each_rank
from foretrace.program.expand import Ops
from foretrace.program.graph import Graph, Members, instantiate, members_met
from foretrace.program.program import Resource

MAX_NODES = 1 << 25
"""A node takes about 300 bytes while it is run: this many take 10 GB."""


def fold(ops: Ops, profile_of: Ints | None = None, *, resources: Sequence[Resource] = ()) -> Graph:
    """The smallest graph that behaves as the whole job does.

    `profile_of` numbers ranks by the prices they pay and what they draw; ranks of different profiles are never put
    together. `resources` are those that ops divide: ranks that draw on one together are company too, and ranks on
    instances of different capacity are never put together.
    """
    members = members_met(ops)
    classes = _classes(ops, members, profile_of, resources)
    _check_size(ops, classes, "ranks that pay different prices run apart: use fewer ranks, layers or microbatches")
    return instantiate(ops, classes, members)


def folded_size(ops: Ops, profile_of: Ints) -> int:
    """Returns how many ops the smallest graph has in which ranks of different profiles are never put together."""
    return _size(ops, _classes(ops, members_met(ops), profile_of, ()))


def unfold(ops: Ops) -> Graph:
    """Returns the graph with every rank on its own."""
    classes = each_rank(ops.program.world)
    _check_size(ops, classes, "run ranks that behave identically once: leave out --unfolded")
    return instantiate(ops, classes, members_met(ops))


def _classes(ops: Ops, members: Members, profile_of: Ints | None, resources: Sequence[Resource]) -> RankClasses:
    program = ops.program
    colour = program.role_of.astype(np.int64)
    if profile_of is not None:
        colour = colour * (int(profile_of.max()) + 1) + profile_of
    # Communicators over the same groups share their rows, which keep the same company.
    groups = list({id(rows): rows for of_one in members.values() for rows in of_one}.values())
    for resource in resources:
        groups += resource.members()
        if resource.capacities is not None:
            capacities, number = np.unique(resource.capacity_of(program.world), return_inverse=True)
            colour = np.unique(colour, return_inverse=True)[1] * len(capacities) + number
    return coarsest(colour, groups)


def _size(ops: Ops, classes: RankClasses) -> int:
    return int(np.diff(ops.start)[ops.program.role_of[classes.representative]].sum())


def _check_size(ops: Ops, classes: RankClasses, hint: str) -> None:
    """Raises an error where a graph would not fit into memory."""
    size = _size(ops, classes)
    if size > MAX_NODES:
        problem = f"{len(classes):,} ranks on their own have {size:,} ops; at most {MAX_NODES:,} can be run"
        raise InputError("too-large", problem, hint=hint)
