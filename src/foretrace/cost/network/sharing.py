"""Finds what the concurrent communications of a job share: GPU links, NICs, and the narrow places of the network above.

Per rank, a call draws what the network says it puts on its links and on its NIC (`Network.explain(…).draws`), and the
part of the latter that leaves a leaf or a pod, by the places of its group. Alone, a call still takes the network's
price: its draws are cut, where needed, to what the resources carry in that time when all groups of its communicator run
concurrently, as the price assumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs, Mask
from foretrace.basics.errors import InputError
from foretrace.basics.placement import Placement
from foretrace.cost.network.call_book import CallBook
from foretrace.cost.network.exits import NIC, Exit, exits_of
from foretrace.cost.network.layouts import CallKey, Layouts
from foretrace.cost.network.nccl.machine import machine_of
from foretrace.cost.network.peers import Places
from foretrace.cost.prices import Draws
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.fabric import Tier
from foretrace.program.columns import PAIRWISE
from foretrace.program.expand import Ops
from foretrace.program.program import Program, Resource

LINK: Final = "link"


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Communication that a network priced: per priced op its call, per call and profile of ranks its price."""

    keys: Sequence[CallKey]
    op: Longs
    """The ops that were priced."""
    call: Longs
    """The call of each of them."""
    part: Floats
    """The part that each op sends of what the call's price is for: less than 1 for the lighter way of an exchange, 0
    for who receives."""
    busy_s: Floats
    """Seconds of a call past its latency: [profiles, calls]."""
    layouts: Layouts


class Sharing:
    """The links of a cluster that ranks in their places share."""

    def __init__(self, cluster: Cluster, placement: Placement, tiers: Sequence[Tier] | None = None) -> None:
        if tiers is None:
            from foretrace.hardware.fabric.build import fabric_of  # most jobs do without, and start faster
            from foretrace.hardware.fabric.routing.tiers import tiers_of

            tiers = tiers_of(fabric_of(cluster, cluster.nodes or placement.hosts))
        # What NCCL moves of a line's rate: two calls that each fill a line alone then take their sum together.
        machine = machine_of(cluster.gpu)
        self._places = Places.of(cluster.node, placement)
        self._exits = exits_of(cluster, self._places, tiers, machine.network_share)
        self._link_bytes_per_s = machine.link_share * (cluster.gpu.link_bytes_per_s or cluster.gpu.pcie_bytes_per_s)
        self.resources = (*map(_resource, self._exits), Resource(LINK, self._link_bytes_per_s))

    def draws(self, ops: Ops, book: CallBook, calls: Calls) -> Draws:
        """Returns what every priced op draws, by rank where ranks differ."""
        program, layouts = ops.program, calls.layouts
        traffic = [(communicator, what in PAIRWISE) for communicator, what, *_ in calls.keys]
        ways = list(dict.fromkeys(traffic))
        leaving = np.stack([self._leaving(program, way) for way in ways])  # [ways, exits, 2, ranks]
        profile_of, first = _profiles(layouts.profile_of, leaving)
        sent = _sent_bytes(book, calls)[layouts.profile_of[first]]  # [profiles, calls, 2]
        busy = calls.busy_s[layouts.profile_of[first]]
        way = np.array([ways.index(call) for call in traffic])
        share, crowd = np.moveaxis(leaving[way][..., first], (0, -1), (-1, 0)).transpose(2, 1, 0, 3)
        over_nic = sent[None, :, :, 1] * share
        # Where all of a communicator draw more than an exit carries in that time, all draw in proportion less.
        needed = sent[None, :, :, 1] * crowd
        over_nic *= np.minimum(1.0, np.divide(busy, needed, out=np.ones_like(needed), where=needed > 0))
        over_link = np.minimum(sent[:, :, 0], self._link_bytes_per_s * busy)
        return self._rows(ops, calls, np.concatenate([over_nic, over_link[None]]), profile_of)

    def _leaving(self, program: Program, way: tuple[int, bool]) -> Floats:
        """For each exit, [exits, 2, ranks]: of what a rank puts on its NIC the share that passes the exit, and the
        seconds that the exit needs for all of the communicator's ranks there, for each byte that one puts on its NIC.
        """
        communicator, spread = way
        leaving = np.zeros((len(self._exits), 2, program.world))
        for groups in program.communicators[communicator].members(program.mesh):
            for mine, exit_ in zip(leaving, self._exits, strict=True):
                mine[0, groups] = exit_.passed(self._places, groups, spread)
        for mine, exit_ in zip(leaving, self._exits, strict=True):
            mine[1] = exit_.needed_s(mine[0])
        return leaving

    def _rows(self, ops: Ops, calls: Calls, amount: Floats, profile_of: Ints) -> Draws:
        """The draws of single ops, from those of calls: [resources, profiles, calls]."""
        role, present = ops.role[calls.op], _present(ops.program, profile_of)
        pairs, pair_of = np.unique(calls.call * len(present) + role, return_inverse=True)
        row_pair, row_profile = np.nonzero(present[pairs % len(present)])
        drawn = amount[:, row_profile, (pairs // len(present))[row_pair]]
        first = np.searchsorted(row_pair, np.arange(len(pairs) + 1))
        count = np.diff(first)[pair_of]
        at = np.repeat(np.arange(len(calls.op)), count)
        row = first[pair_of[at]] + np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count)
        amounts = drawn[:, row] * calls.part[at]
        resource, place = np.nonzero(amounts > 0)
        alone = bool((profile_of == profile_of[0]).all())
        return Draws(
            calls.op[at[place]],
            resource,
            amounts[resource, place],
            np.zeros(len(place)),
            self.resources,
            None if alone else row_profile[row[place]],
            None if alone else profile_of,
        )


def _resource(exit_: Exit) -> Resource:
    """An exit as something that ops divide; parts whose exit is out of service are left out."""
    open_ = np.flatnonzero(exit_.bytes_per_s > 0)
    if not len(open_):
        raise InputError(
            "no-route", f"no {exit_.name} of this network is in service", hint="see what the cluster says has failed"
        )
    own = tuple(exit_.bytes_per_s[open_].tolist())
    uniform = min(own) == max(own)
    members = np.split(np.argsort(exit_.part, kind="stable"), np.cumsum(np.bincount(exit_.part))[:-1])
    instances = tuple(tuple(members[part].tolist()) for part in open_.tolist())
    each_its_own = uniform and len(instances) == len(exit_.part)
    usual = float(np.median(own))
    return Resource(exit_.name, usual, None if each_its_own else instances, None if uniform else own)


def _profiles(price_profile: Ints, leaving: Floats) -> tuple[Ints, Longs]:
    """Returns a number for each rank, equal for ranks with equal prices and traffic, and a rank of each number."""
    number = price_profile.astype(np.int64)
    for column in leaving.reshape(-1, leaving.shape[-1]):
        if (column != column[0]).any():
            # Sums taken in another order differ in their last digits.
            values, place = np.unique(np.round(column / np.abs(column).max(), 9), return_inverse=True)
            number = np.unique(number * len(values) + place.ravel(), return_inverse=True)[1].ravel()
    _, first, number = np.unique(number, return_index=True, return_inverse=True)
    return number.ravel().astype(np.int32), first


def _sent_bytes(book: CallBook, calls: Calls) -> Floats:
    """Returns the bytes that a rank puts on its links and on its NICs with each call: [price profiles, calls, 2]."""
    sent = np.zeros((*calls.busy_s.shape, 2))
    for kind, cells, what, sizes, way in calls.layouts.requests(calls.keys):
        size_of, at = np.unique(sizes, return_inverse=True)
        drawn = [dict(explained.draws) for explained in book.explain_all(what, kind, size_of, way)]
        sent[cells] = np.array([(draws.get(LINK, 0.0), draws.get(NIC, 0.0)) for draws in drawn])[at]
    return sent


def _present(program: Program, profile_of: Ints) -> Mask:
    """Returns the profiles that the ranks of each role have: [roles, profiles]."""
    present = np.zeros((len(program.roles), int(profile_of.max()) + 1), dtype=bool)
    present[program.role_of, profile_of] = True
    return present
