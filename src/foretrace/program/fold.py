"""Folds a program: one rank stands for each class of ranks that behave identically."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrace.basics.arrays import Ints
from foretrace.program.classes import coarsest, each_rank
from foretrace.program.expand import Ops
from foretrace.program.graph import Graph, instantiate, members_met
from foretrace.program.program import Resource


def fold(ops: Ops, profile_of: Ints | None = None, *, resources: Sequence[Resource] = ()) -> Graph:
    """The smallest graph that behaves as the whole job does.

    `profile_of` numbers ranks by the prices they pay and what they draw; ranks of different profiles are never put
    together. `resources` are those that ops divide: ranks that draw on one together are company too, and ranks on
    instances of different capacity are never put together.
    """
    program = ops.program
    colour = program.role_of.astype(np.int64)
    if profile_of is not None:
        colour = colour * (int(profile_of.max()) + 1) + profile_of
    members = members_met(ops)
    groups = [rows for of_one in members.values() for rows in of_one]
    for resource in resources:
        groups += resource.members()
        if resource.capacities is not None:
            capacities, number = np.unique(resource.capacity_of(program.world), return_inverse=True)
            colour = np.unique(colour, return_inverse=True)[1] * len(capacities) + number
    return instantiate(ops, coarsest(colour, groups), members)


def unfold(ops: Ops) -> Graph:
    """The graph with every rank on its own."""
    return instantiate(ops, each_rank(ops.program.world), members_met(ops))
