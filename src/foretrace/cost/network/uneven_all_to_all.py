"""Prices all-to-alls whose members send different amounts: the busiest port decides.

A program states what each op sends to each member of its group (`sends`). Which ops meet, and which of their ranks
share an island, gives the bytes that each rank sends and receives over its NIC and over its links. The largest of these
take as long as an even all-to-all that keeps the ports equally busy. So an all-to-all of equal parts has the usual
price.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs, distinct
from foretrace.cost.network.experts import one_island
from foretrace.cost.network.interface import CallPrices, Network
from foretrace.cost.network.layouts import Layouts
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.program.columns import Collective
from foretrace.program.expand import Ops
from foretrace.program.program import Templates


def uneven_templates(templates: Templates) -> Longs:
    """The all-to-alls that say what they send to whom, as numbers of templates."""
    saying = distinct(templates.send_op.astype(np.int64))
    columns = templates.columns
    plain = (columns["collective"][saying] == Collective.ALL_TO_ALL) & (columns["kernel"][saying] < 0)
    return np.asarray(saying[plain])


@dataclass(frozen=True, slots=True, eq=False)
class UnevenPrice:
    """The price of an all-to-all of a template for ranks of these profiles, each array of one entry."""

    template: int
    profiles: Longs
    price: CallPrices


def uneven_prices(ops: Ops, chosen: Longs, layouts: Layouts, network: Network) -> Iterator[UnevenPrice]:
    """The prices of chosen templates. Where one meets different others in the course of a step, the busiest count."""
    program, sends = ops.program, _Sends(ops.program.templates, chosen)
    for communicator in distinct(program.templates.columns["communicator"][chosen].astype(np.int64)).tolist():
        worst: dict[tuple[int, int], CallPrices] = {}
        for groups, kinds in layouts.groups(communicator):
            for first in _first_of_each(program.role_of[groups], kinds):
                group, kind = groups[first], int(kinds[first])
                islands = _islands(network, group)
                for meeting in _meetings(ops, communicator, program.role_of[group], chosen):
                    matrix = sends.matrix(meeting)
                    price = uneven_price(network, layouts.kinds[kind], matrix, islands)
                    for template in meeting.tolist():
                        known = worst.get((template, kind))
                        if known is None or known.duration_s[0] < price.duration_s[0]:
                            worst[template, kind] = price
        of_profile = layouts.profiles[:, layouts.column(communicator)]
        for (template, kind), price in worst.items():
            yield UnevenPrice(template, np.flatnonzero(of_profile == kind), price)


def uneven_price(network: Network, layout: Hashable, sent_bytes: Floats, islands: Longs) -> CallPrices:
    """Prices an all-to-all in which each member (row) sends `sent_bytes` to each other, for members on these
    islands."""
    assert isinstance(layout, GroupLayout)
    between = np.where(np.eye(len(islands), dtype=bool), 0.0, sent_bytes)
    near = np.where(islands[:, None] == islands, between, 0.0)
    over_links, over_nics = _busiest(near), _busiest(between - near)
    n, held = layout.size, layout.most_in_island
    everything = Collective.ALL_TO_ALL
    if layout.islands == 1:
        return network.price(everything, layout, np.array([over_links * n / max(n - 1, 1)]))
    far = network.price(everything, layout, np.array([over_nics * n / (n - layout.least_in_island)]))
    if over_links * (n - layout.least_in_island) <= over_nics * (held - 1):
        return far  # links are no busier than in an even one that keeps NICs as busy
    close = network.price(everything, one_island(layout), np.array([over_links * held / (held - 1)]))
    return far if far.duration_s[0] >= close.duration_s[0] else close


def _busiest(matrix: Floats) -> float:
    """The most that any member sends or receives."""
    return float(max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max()))


class _Sends:
    """The bytes that templates send, by position in their group."""

    def __init__(self, templates: Templates, chosen: Longs) -> None:
        mine = np.flatnonzero(np.isin(templates.send_op, chosen))
        mine = mine[np.argsort(templates.send_op[mine], kind="stable")]
        self._op, self._to, self._bytes = (
            column[mine] for column in (templates.send_op, templates.send_to, templates.send_bytes)
        )

    def matrix(self, meeting: Longs) -> Floats:
        """From each member of a meeting, given as the templates of its positions, to each."""
        sent = np.zeros((len(meeting), len(meeting)))
        low, high = (np.searchsorted(self._op, meeting, side=side) for side in ("left", "right"))
        for row, (start, stop) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            np.add.at(sent[row], self._to[start:stop], self._bytes[start:stop])
        return sent


def _first_of_each(roles: Ints, kinds: Longs) -> list[int]:
    """Returns the first of the groups that have the same roles in the same positions and equal layouts."""
    keys = np.concatenate([roles.astype(np.int64), kinds[:, None]], axis=1)
    return [int(index) for index in np.unique(keys, axis=0, return_index=True)[1]]


def _meetings(ops: Ops, communicator: int, roles: Ints, chosen: Longs) -> list[Longs]:
    """The different meetings of ranks of these roles in which all ops are chosen ones: the template of each."""
    on = ops.program.templates.columns["communicator"] == communicator
    issued: dict[int, Longs] = {}
    for role in distinct(roles.astype(np.int64)).tolist():
        mine = np.arange(ops.start[role], ops.start[role + 1])
        mine = mine[on[ops.template[mine]] & (ops.order[mine] >= 0)]
        issued[role] = ops.template[mine[np.argsort(ops.order[mine], kind="stable")]]
    templates = np.stack([issued[role] for role in roles.tolist()])
    templates = templates[:, np.isin(templates, chosen).all(axis=0)]
    return list(np.unique(templates, axis=1).T)


def _islands(network: Network, group: Longs) -> Longs:
    """Returns the island of each member: a number that members without a NIC between them have in common."""
    island = np.full(len(group), -1, dtype=np.int64)
    while (island < 0).any():
        left = np.flatnonzero(island < 0)
        island[left[0]] = left[0]
        others = left[1:]
        if len(others):
            kinds, kind = network.layouts(np.stack([np.full(len(others), group[left[0]]), group[others]], axis=1))
            together = np.array([isinstance(kind, GroupLayout) and kind.islands == 1 for kind in kinds])[kind]
            island[others[together]] = left[0]
    return island
