"""From placements to ops: every op of every role, in the order of issue, with what it waits for on its rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Ints, Longs, distinct, ranges, stable_order
from foretrace.program.program import Program
from foretrace.program.queues import QueueRows, Queues


@dataclass(frozen=True, slots=True)
class Ops:
    """The ops of all roles, one row each; `start[r] : start[r + 1]` are those of role r.

    Op i waits for the ops `dep_src[dep_start[i] : dep_start[i + 1]]` of its step, lane order included; `next_dst` are
    ops that wait for `next_src` of the step before. `order` counts the ops a role issues on one communicator.
    """

    program: Program
    start: Ints
    template: Longs
    placement: Ints
    dep_start: Longs
    dep_src: Ints
    next_src: Ints
    next_dst: Ints
    order: Ints

    def __len__(self) -> int:
        return len(self.template)

    def column(self, name: str) -> NDArray[np.generic]:
        """A column of the templates, one value per op, overrides applied."""
        values = self.program.templates.columns[name][self.template]
        placements = self.program.placements
        mine = [i for i, column in enumerate(placements.override_column) if column == name]
        if mine:
            values = values.copy()
            values[_override_targets(self.program)[mine]] = placements.override_value[mine]
        return values

    def ints(self, name: str) -> Longs:
        """A column of whole numbers."""
        return self.column(name).astype(np.int64)

    def floats(self, name: str) -> Floats:
        """A column of real numbers."""
        return self.column(name).astype(np.float64)

    @property
    def role(self) -> Ints:
        """The role of each op."""
        return np.repeat(np.arange(len(self.start) - 1, dtype=np.int32), np.diff(self.start))

    @property
    def microbatch(self) -> Ints:
        """The microbatch of each op, -1 where it belongs to none."""
        return self.program.placements.microbatch[self.placement]

    @property
    def names(self) -> list[str]:
        """The name of each op."""
        strings = self.program.strings
        return [strings[i] for i in self.ints("name").tolist()]

    def overridden(self) -> Longs:
        """The ops that have a value of their own in some column."""
        return distinct(_override_targets(self.program))

    def side_table(self, rows_op: Ints) -> tuple[Longs, Longs]:
        """For a side table of the templates sorted or not by op: (ops, rows) of all its occurrences."""
        by_op = np.argsort(rows_op, kind="stable")
        sizes = np.bincount(rows_op, minlength=len(self.program.templates.columns["kind"]))
        first = np.concatenate([[0], np.cumsum(sizes)])
        counts = sizes[self.template]
        rows = by_op[ranges(first[self.template], counts)]
        return np.repeat(np.arange(len(self)), counts), rows


def expand(program: Program) -> Ops:
    """Unrolls the placements of all roles."""
    rows = QueueRows(program)
    first = rows.first
    lanes = Queues(rows, rows.lane, len(program.lanes))
    dep_start, dep_src = _by_target(lanes.previous(), *_waits(program, first))

    later = (program.links.steps > 0) & program.repeats
    link_src = first[program.links.src_placement] + program.links.src_op
    link_dst = first[program.links.dst_placement] + program.links.dst_op
    bare = np.empty(0, dtype=np.int64)
    lane_first, lane_last = lanes.first_and_last() if program.repeats else (bare, bare)
    return Ops(
        program,
        first[program.placements.start].astype(np.int32),
        rows.template[rows.of_op],
        np.repeat(np.arange(len(rows.size), dtype=np.int32), rows.size),
        dep_start,
        dep_src,
        np.concatenate([lane_last, link_src[later]]).astype(np.int32),
        np.concatenate([lane_first, link_dst[later]]).astype(np.int32),
        Queues(rows, rows.communicator, len(program.communicators)).order().astype(np.int32),
    )


def _override_targets(program: Program) -> Longs:
    """The op, counted over all roles, that each override changes."""
    placements = program.placements
    sizes = np.diff(program.templates.start)[placements.block]
    first = np.cumsum(sizes, dtype=np.int64) - sizes
    return first[placements.override_placement] + placements.override_op


def _waits(program: Program, first: Longs) -> tuple[Longs, Longs]:
    """(source, target) of all waits of a step that are not lane order, as ops."""
    templates, blocks = program.templates, program.placements.block
    block_of = np.searchsorted(templates.start, templates.dep_dst, side="right") - 1
    by_block = np.argsort(block_of, kind="stable")
    per_block = np.bincount(block_of, minlength=len(program.blocks))
    row_of_block = np.concatenate([[0], np.cumsum(per_block)])
    counts = per_block[blocks]
    rows = by_block[ranges(row_of_block[blocks], counts)]
    moved = np.repeat(first[:-1] - templates.start[blocks], counts)
    links = program.links
    now = links.steps == 0
    src = first[links.src_placement[now]] + links.src_op[now]
    dst = first[links.dst_placement[now]] + links.dst_op[now]
    return (
        np.concatenate([templates.dep_src[rows] + moved, src]),
        np.concatenate([templates.dep_dst[rows] + moved, dst]),
    )


def _by_target(previous: Longs, sources: Longs, targets: Longs) -> tuple[Longs, Ints]:
    """All waits as (start of each op's, ops waited for): the one before it on its lane, then others as they come."""
    others = np.flatnonzero(previous[targets] != sources)
    others = others[stable_order(targets[others])]
    sources, targets = sources[others], targets[others]
    follows = previous >= 0
    more = np.bincount(targets, minlength=len(previous))
    start = np.append(0, np.cumsum(more + follows))
    src = np.empty(int(start[-1]), dtype=np.int32)
    following = np.flatnonzero(follows)
    src[start[following]] = previous[following]
    several = more[more > 0]
    numbers = ranges(np.zeros(len(several), dtype=np.int64), several)
    src[start[targets] + follows[targets] + numbers] = sources
    return start, src
