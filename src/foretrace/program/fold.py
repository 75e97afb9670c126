"""Folding: one rank for each class of ranks that behave alike."""

from __future__ import annotations

import numpy as np

from foretrace.program.classes import coarsest, each_rank
from foretrace.program.expand import Ops
from foretrace.program.graph import Graph, instantiate, members_met
from foretrace.program.program import Ints


def fold(ops: Ops, profile_of: Ints | None = None, *, sharing: bool = False) -> Graph:
    """The smallest graph that behaves as the whole job does.

    `profile_of` numbers ranks by the prices they pay; ranks of different profiles are never put together. With
    `sharing`, ranks that draw on a resource together are company too.
    """
    program = ops.program
    colour = program.role_of.astype(np.int64)
    if profile_of is not None:
        colour = colour * (int(profile_of.max()) + 1) + profile_of
    members = members_met(ops)
    groups = [rows for of_one in members.values() for rows in of_one]
    if sharing:
        groups += [rows for resource in program.resources for rows in resource.members()]
    return instantiate(ops, coarsest(colour, groups), members)


def unfold(ops: Ops) -> Graph:
    """The graph with every rank on its own."""
    return instantiate(ops, each_rank(ops.program.world), members_met(ops))
