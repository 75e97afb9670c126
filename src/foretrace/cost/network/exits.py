"""Finds where traffic that leaves a part of the network is narrow for the ranks of a job: NICs, leaves, pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.cost.network.peers import Places, company, summed
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.fabric import Tier

NIC: Final = "nic"

AMPLE: Final = 1 - 1e-9
"""A tier that carries this share of what comes up into it is never narrower than what is below it."""


@dataclass(frozen=True, slots=True, eq=False)
class Exit:
    """A tier of the network as ranks see it.

    `part` is the part of the tier that each rank is in, numbered without gaps; `bytes_per_s` is what the exit of each
    part carries (0: out of service). Ranks of one `side` reach each other without passing an exit.
    """

    name: str
    part: Longs
    bytes_per_s: Floats
    side: Longs

    @property
    def lost(self) -> Mask:
        """Ranks whose own exit is out of service: what they send takes another way."""
        return np.asarray(self.bytes_per_s[self.part] <= 0)

    def passed(self, places: Places, groups: Longs, spread: bool) -> Floats:
        """Returns the share of the NIC traffic of members of groups, [groups, size], that passes this exit.

        Traffic goes by rings, or is spread over all partners. Members of a group in one part have the same share, their
        mean.
        """
        peers = places.ring_peers(groups)
        beyond = peers >= 0
        if self.name == NIC:
            share = beyond.astype(np.float64)
        elif spread:
            share = _others(self.side[groups], places.island[groups])
        else:
            share = _mean_within(self.part[groups], (beyond & (self.side[groups] != self.side[peers])).astype(float))
        return np.where(self.lost[groups], 0.0, share)

    def needed_s(self, share: Floats) -> Floats:
        """For each rank the seconds that its exit needs for what all ranks pass through it, where each of them puts one
        byte on its NIC of which the given share, [ranks], passes."""
        rate = np.where(self.bytes_per_s > 0, self.bytes_per_s, np.inf)
        return np.asarray((np.bincount(self.part, weights=share, minlength=len(rate)) / rate)[self.part])


def exits_of(
    cluster: Cluster, places: Places, tiers: Sequence[Tier], usable: float = 1.0, narrow: bool = True
) -> list[Exit]:
    """The exits that a job's ranks pass, from the NICs outwards; `usable` is what calls move of a line's rate. With
    `narrow`, tiers above the NICs that carry all that comes up into them are left out."""
    by_rail = cluster.topology.routing == "rail"
    kept = [tier for tier in tiers if not narrow or tier.name == NIC or _is_narrow(tier, tiers[0])]
    return [_exit(tier, places, cluster.node.gpus, by_rail, usable) for tier in kept]


def _exit(tier: Tier, places: Places, gpus_per_node: int, by_rail: bool, usable: float) -> Exit:
    """A tier seen by the ranks beneath it. Where routing keeps to rails, data for another rail crosses the links of the
    sender's node first, so that nodes of which every rail is on the same leaves are on one side."""
    used, part = np.unique(tier.part_of[places.gpu], return_inverse=True)
    part = part.ravel().astype(np.int64)
    side = part
    if by_rail and tier.name != NIC:
        nodes = tier.part_of[: len(tier.part_of) // gpus_per_node * gpus_per_node].reshape(-1, gpus_per_node)
        side = np.unique(nodes, axis=0, return_inverse=True)[1].ravel()[places.gpu // gpus_per_node]
    return Exit(tier.name, part, usable * tier.bytes_per_s[used], side)


def _is_narrow(tier: Tier, nics: Tier) -> bool:
    """Returns whether a part of this tier carries less than the NICs beneath it bring."""
    gpus = np.flatnonzero(tier.part_of >= 0)
    first = gpus[np.unique(nics.part_of[gpus], return_index=True)[1]]
    brought = np.bincount(
        tier.part_of[first], weights=nics.bytes_per_s[nics.part_of[first]], minlength=len(tier.bytes_per_s)
    )
    return bool((tier.bytes_per_s < AMPLE * brought).any())


def _others(side: Longs, island: Longs) -> Floats:
    """Returns the share of a member's partners on other islands, [groups, size], that are on another side; the mean of
    those of one side."""
    near = company(island)
    beyond = side.shape[1] - near
    other_side = side.shape[1] - company(side)
    # Partners on the member's own island may be on another side, but are reached over links.
    linked = near - company(side * (int(island.max()) + 1) + island)
    return np.asarray(np.divide(other_side - linked, beyond, out=np.zeros(side.shape), where=beyond > 0))


def _mean_within(places: Longs, values: Floats) -> Floats:
    """The mean of the values of a group's members that are in the place of each."""
    return np.asarray(summed(places, values) / company(places))
