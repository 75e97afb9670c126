"""From placements to ops: every op of every role, in the order of issue, with what it waits for on its rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.program.arrays import ranges, stable_order
from foretrace.program.program import Floats, Ints, Program


@dataclass(frozen=True, slots=True)
class Ops:
    """The ops of all roles, one row each; `start[r] : start[r + 1]` are those of role r.

    `dep_src` and `dep_dst` are the waits within a step, lane order included, sorted by `dep_dst`; `next_src` and
    `next_dst` those of an op for one of the step before. `order` counts the ops a role issues on one communicator.
    """

    program: Program
    start: Ints
    template: Ints
    placement: Ints
    dep_src: Ints
    dep_dst: Ints
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

    def ints(self, name: str) -> NDArray[np.int64]:
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

    def side_table(self, rows_op: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For a side table of the templates sorted or not by op: (ops, rows) of all its occurrences."""
        by_op = np.argsort(rows_op, kind="stable")
        sizes = np.bincount(rows_op, minlength=len(self.program.templates.columns["kind"]))
        first = np.concatenate([[0], np.cumsum(sizes)])
        counts = sizes[self.template]
        rows = by_op[ranges(first[self.template], counts)]
        return np.repeat(np.arange(len(self)), counts), rows


def expand(program: Program) -> Ops:
    """Unrolls the placements of all roles."""
    placements, templates = program.placements, program.templates
    sizes = np.diff(templates.start)[placements.block]
    first = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    start = first[placements.start].astype(np.int32)
    template = ranges(templates.start[placements.block], sizes).astype(np.int32)
    placement = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    bare = np.empty(0, dtype=np.int32)
    ops = Ops(program, start, template, placement, bare, bare, bare, bare, bare)

    enabled = ops.column("enabled").astype(bool)
    lane = np.where(enabled, ops.ints("lane"), -1)
    previous, queue_first, queue_last = _queues(ops.role, lane, len(program.lanes))
    sources, targets = _waits(program, first)
    within = previous[targets] != sources
    follows = np.flatnonzero(previous >= 0)
    dep_dst = np.concatenate([follows, targets[within]])
    dep_src = np.concatenate([previous[follows], sources[within]])
    by_dst = stable_order(dep_dst)

    later = (program.links.steps > 0) & program.repeats
    link_src = first[program.links.src_placement] + program.links.src_op
    link_dst = first[program.links.dst_placement] + program.links.dst_op
    wraps = program.repeats
    return Ops(
        program,
        start,
        template,
        placement,
        dep_src[by_dst].astype(np.int32),
        dep_dst[by_dst].astype(np.int32),
        np.concatenate([queue_last if wraps else bare, link_src[later]]).astype(np.int32),
        np.concatenate([queue_first if wraps else bare, link_dst[later]]).astype(np.int32),
        _issue_order(ops.role, np.where(enabled, ops.ints("communicator"), -1), len(program.communicators)),
    )


def _override_targets(program: Program) -> NDArray[np.int64]:
    """The op, counted over all roles, that each override changes."""
    placements = program.placements
    sizes = np.diff(program.templates.start)[placements.block]
    first = np.cumsum(sizes, dtype=np.int64) - sizes
    return first[placements.override_placement] + placements.override_op


def _waits(program: Program, first: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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


def _queues(
    role: Ints, lane: NDArray[np.int64], lanes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each op the one before it on its lane (-1: none), and the first and last op of every lane in use."""
    order = _by_key(role, lane, lanes)
    key = role[order].astype(np.int64) * (lanes + 1) + lane[order]
    previous = np.full(len(role), -1, dtype=np.int64)
    if not len(order):
        return previous, order, order
    same = np.concatenate([[False], key[1:] == key[:-1]])
    previous[order[1:]] = np.where(same[1:], order[:-1], -1)
    heads = np.flatnonzero(~same)
    tails = np.append(heads[1:], len(order)) - 1
    return previous, order[heads], order[tails]


def _issue_order(role: Ints, communicator: NDArray[np.int64], communicators: int) -> Ints:
    """The number of each op among those its role issues on the same communicator, from 0; -1 for other ops."""
    order = _by_key(role, communicator, communicators)
    key = role[order].astype(np.int64) * (communicators + 1) + communicator[order]
    heads = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(order) else order
    lengths = np.diff(np.append(heads, len(order)))
    count = np.full(len(role), -1, dtype=np.int32)
    count[order] = ranges(np.zeros(len(heads), dtype=np.int64), lengths)
    return count


def _by_key(role: Ints, value: NDArray[np.int64], values: int) -> NDArray[np.int64]:
    """The ops with a value of 0 or more, by role and value, otherwise in order of issue."""
    used = np.flatnonzero(value >= 0)
    return used[stable_order(role[used].astype(np.int64) * (values + 1) + value[used])]
