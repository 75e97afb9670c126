"""Queues of ops: what a role issues on one lane, or on one communicator, in order.

A queue runs through many placements, most of the same few blocks. So the ops of a block are put in order once, as
segments (those of one queue), and a queue is a sequence of segments, one after the other.
"""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Longs, distinct, ranges, stable_order
from foretrace.program.program import Program


class QueueRows:
    """The ops of all blocks as rows: those of the templates, and again those of every placement that overrides what
    queues an op is in. `of_op` is the row of each op; placement p runs the rows of block `block[p]`."""

    def __init__(self, program: Program) -> None:
        templates, placements = program.templates, program.placements
        columns, count = templates.columns, len(templates.columns["kind"])
        changes = [i for i, column in enumerate(placements.override_column) if column in ("enabled", "lane")]
        changed = distinct(placements.override_placement[changes])
        start, block = templates.start.astype(np.int64), placements.block.astype(np.int64)
        sizes = np.diff(start)
        extra = sizes[block[changed]]
        self.template = np.concatenate([np.arange(count), ranges(start[block[changed]], extra)])
        block[changed] = len(sizes) + np.arange(len(changed))
        self.start = np.concatenate([start, count + np.cumsum(extra)])
        self.block = block
        enabled, self.lane = columns["enabled"][self.template] != 0, columns["lane"][self.template].astype(np.int64)
        for i in changes:
            row = self.start[block[placements.override_placement[i]]] + placements.override_op[i]
            if placements.override_column[i] == "lane":
                self.lane[row] = placements.override_value[i]
            else:
                enabled[row] = placements.override_value[i] != 0
        self.lane[~enabled] = -1
        self.communicator = np.where(enabled, columns["communicator"][self.template].astype(np.int64), -1)
        self.role = np.repeat(np.arange(len(program.roles)), np.diff(placements.start))
        self.size = np.diff(self.start)[block]
        self.first = np.append(0, np.cumsum(self.size))
        self.of_op = ranges(self.start[block], self.size)


class Queues:
    """The queues that a column of the rows (-1: none) puts ops into, by role and value."""

    def __init__(self, rows: QueueRows, column: Longs, values: int) -> None:
        self._rows = rows
        blocks = len(rows.start) - 1
        block_of_row = np.repeat(np.arange(blocks), np.diff(rows.start))
        used = np.flatnonzero(column >= 0)
        key = block_of_row[used] * (values + 1) + column[used]
        order = stable_order(key)
        self._row, key = used[order], key[order]
        self._head = np.flatnonzero(np.diff(key, prepend=-1))
        self._length = np.diff(np.append(self._head, len(key)))
        segment_block, segment_value = np.divmod(key[self._head], values + 1)
        per_block = np.bincount(segment_block, minlength=blocks)
        self._first_segment = np.cumsum(per_block) - per_block
        # Every placement runs the segments of its block: by queue, in the order of the placements.
        counts = per_block[rows.block]
        segment = ranges(self._first_segment[rows.block], counts)
        placement = np.repeat(np.arange(len(counts)), counts)
        self._first_run = np.cumsum(counts) - counts
        queue = rows.role[placement] * (values + 1) + segment_value[segment]
        self._runs = stable_order(queue)
        self._segment = segment[self._runs]
        self._op_of_row_0 = (rows.first[:-1] - rows.start[rows.block])[placement[self._runs]]
        self._begins = np.diff(queue[self._runs], prepend=-1) != 0

    def _ends(self) -> tuple[Longs, Longs]:
        """The first and the last op of every run of a segment, queue by queue."""
        first_row = self._row[self._head]
        last_row = self._row[self._head + self._length - 1]
        return first_row[self._segment] + self._op_of_row_0, last_row[self._segment] + self._op_of_row_0

    def first_and_last(self) -> tuple[Longs, Longs]:
        """The first and the last op of every queue."""
        first, last = self._ends()
        return first[self._begins], last[np.append(self._begins[1:], True)[: len(last)]]

    def previous(self) -> Longs:
        """For each op the one before it in its queue; -1 for none."""
        none = len(self._rows.of_op) + 1  # further than any op, so that what it leads to is below zero
        distance = np.full(len(self._rows.lane), none, dtype=np.int64)
        distance[self._row[1:]] = np.diff(self._row)
        distance[self._row[self._head]] = none
        ops = np.arange(len(self._rows.of_op))
        previous: Longs = np.maximum(ops - distance[self._rows.of_op], -1)
        first, last = self._ends()
        previous[first[1:]] = np.where(self._begins[1:], -1, last[:-1])
        return previous

    def order(self) -> Longs:
        """The number of each op in its queue, from 0; -1 for ops in none."""
        rows, segments = self._rows, len(self._head)
        lengths = self._length[self._segment]
        before = np.cumsum(lengths) - lengths
        before -= np.repeat(before[self._begins], np.diff(np.append(np.flatnonzero(self._begins), len(before))))
        of_run = np.zeros(len(before) + 1, dtype=np.int64)
        of_run[self._runs] = before
        none = len(rows.of_op) + 1  # so many below zero that nothing before it brings it up to zero
        rank = np.full(len(rows.lane), -none, dtype=np.int64)
        rank[self._row] = ranges(np.zeros(segments, dtype=np.int64), self._length)
        block_of_segment = np.searchsorted(rows.start, self._row[self._head], side="right") - 1
        place = np.zeros(len(rows.lane), dtype=np.int64)  # which of its block's segments a row is in
        place[self._row] = np.repeat(np.arange(segments) - self._first_segment[block_of_segment], self._length)
        run = np.repeat(self._first_run, rows.size) + place[rows.of_op]
        order: Longs = np.maximum(rank[rows.of_op] + of_run[run], -1)
        return order
