"""Unrolls a program into the ops of every role, in the order of issue, with what each waits for on its rank.

A queue is what a role issues on one lane, or on one communicator, in order. It runs through many instances, most of
the same few blocks. So the ops of a block are put in order once, as segments (those of one queue), and a queue is a
sequence of segments, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Ints, Longs, Mask, distinct, ranges, stable_order
from foretrace.program.program import Program


@dataclass(frozen=True, slots=True)
class Ops:
    """The ops of all roles, one row each; `start[r] : start[r + 1]` are those of role r.

    Op i waits for the ops `dep_src[dep_start[i] : dep_start[i + 1]]` of its step, lane order included; `next_dst` are
    ops that wait for `next_src` of the step before. `order` counts the ops a role issues on one communicator.
    """

    program: Program
    start: Ints
    template: Longs
    instance: Ints
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
        instances = self.program.instances
        if name in instances.override_column:
            mine = [i for i, column in enumerate(instances.override_column) if column == name]
            values = values.copy()
            values[_override_targets(self.program)[mine]] = instances.override_value[mine]
        return values

    def which(self, test: Callable[..., Mask], *names: str) -> Mask:
        """Returns which ops pass a test of these columns, which is made once for all ops of a template."""
        instances, columns = self.program.instances, self.program.templates.columns
        if any(name in names for name in instances.override_column):
            return test(*(self.column(name) for name in names))
        return test(*(columns[name] for name in names))[self.template]

    def ints(self, name: str) -> Longs:
        """A column of whole numbers."""
        return self.column(name).astype(np.int64)

    def floats(self, name: str) -> Floats:
        """A column of real numbers."""
        return self.column(name).astype(np.float64)

    @property
    def all_enabled(self) -> bool:
        """Whether no op is switched off."""
        columns = self.program.instances.override_column
        return "enabled" not in columns and bool(self.program.templates.columns["enabled"].all())

    @property
    def role(self) -> Ints:
        """The role of each op."""
        return np.repeat(np.arange(len(self.start) - 1, dtype=np.int32), np.diff(self.start))

    @property
    def microbatch(self) -> Ints:
        """The microbatch of each op, -1 where it belongs to none."""
        return self.program.instances.microbatch[self.instance]

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
        ops = np.flatnonzero(counts)
        counts = counts[ops]
        return np.repeat(ops, counts), by_op[ranges(first[self.template[ops]], counts)]


def expand(program: Program) -> Ops:
    """Unrolls the instances of all roles."""
    rows = _QueueRows(program)
    first = rows.first
    lanes = _Queues(rows, rows.lane, len(program.lanes))
    dep_start, dep_src = _by_target(lanes.previous(), *_waits(program, first))

    later = (program.links.steps > 0) & program.repeats
    link_src = first[program.links.src_instance] + program.links.src_op
    link_dst = first[program.links.dst_instance] + program.links.dst_op
    bare = np.empty(0, dtype=np.int64)
    lane_first, lane_last = lanes.first_and_last() if program.repeats else (bare, bare)
    return Ops(
        program,
        first[program.instances.start].astype(np.int32),
        rows.template.take(rows.of_op),
        np.repeat(np.arange(len(rows.size), dtype=np.int32), rows.size),
        dep_start,
        dep_src,
        np.concatenate([lane_last, link_src[later]]).astype(np.int32),
        np.concatenate([lane_first, link_dst[later]]).astype(np.int32),
        _Queues(rows, rows.communicator, len(program.communicators)).order(),
    )


def _override_targets(program: Program) -> Longs:
    """The op, counted over all roles, that each override changes."""
    instances = program.instances
    sizes = np.diff(program.templates.start)[instances.block]
    first = np.cumsum(sizes, dtype=np.int64) - sizes
    return first[instances.override_instance] + instances.override_op


def _waits(program: Program, first: Longs) -> tuple[Longs, Longs]:
    """(source, target) of all waits of a step that are not lane order, as ops."""
    templates, blocks = program.templates, program.instances.block
    block_of = np.searchsorted(templates.start, templates.dep_dst, side="right") - 1
    by_block = np.argsort(templates.dep_dst, kind="stable")
    per_block = np.bincount(block_of, minlength=len(program.blocks))
    row_of_block = np.concatenate([[0], np.cumsum(per_block)])
    counts = per_block[blocks]
    rows = by_block[ranges(row_of_block[blocks], counts)]
    moved = np.repeat(first[:-1] - templates.start[blocks], counts)
    links = program.links
    now = links.steps == 0
    src = first[links.src_instance[now]] + links.src_op[now]
    dst = first[links.dst_instance[now]] + links.dst_op[now]
    return (
        np.concatenate([templates.dep_src[rows] + moved, src]),
        np.concatenate([templates.dep_dst[rows] + moved, dst]),
    )


def _by_target(previous: Longs, sources: Longs, targets: Longs) -> tuple[Longs, Ints]:
    """All waits as (start of each op's, ops waited for): the one before it on its lane, then others as they come."""
    others = np.flatnonzero(previous[targets] != sources)
    # Waits come in ascending runs, which a merge sort finds and numpy's radix sort does not.
    others = others[np.argsort(targets[others], kind="stable")]
    sources, targets = sources[others], targets[others]
    follows = previous >= 0
    following = np.cumsum(follows)
    start = np.zeros(len(previous) + 1, dtype=np.int64)
    np.cumsum(np.bincount(targets, minlength=len(previous)), out=start[1:])
    start[1:] += following
    src = np.empty(int(start[-1]), dtype=np.int32)
    place = following[targets] + np.arange(len(targets))
    src[place] = sources
    in_lane = np.ones(len(src), dtype=bool)
    in_lane[place] = False
    src[in_lane] = previous[follows]
    return start, src


class _QueueRows:
    """The ops of all blocks as rows: those of the templates, and again those of every instance that overrides what
    queues an op is in. `of_op` is the row of each op; instance p runs the rows of block `block[p]`."""

    def __init__(self, program: Program) -> None:
        templates, instances = program.templates, program.instances
        columns, count = templates.columns, len(templates.columns["kind"])
        changes = [i for i, column in enumerate(instances.override_column) if column in ("enabled", "lane")]
        changed = distinct(instances.override_instance[changes])
        start, block = templates.start.astype(np.int64), instances.block.astype(np.int64)
        sizes = np.diff(start)
        extra = sizes[block[changed]]
        self.template = np.concatenate([np.arange(count), ranges(start[block[changed]], extra)])
        block[changed] = len(sizes) + np.arange(len(changed))
        self.start = np.concatenate([start, count + np.cumsum(extra)])
        self.block = block
        enabled, self.lane = columns["enabled"][self.template] != 0, columns["lane"][self.template].astype(np.int64)
        for i in changes:
            row = self.start[block[instances.override_instance[i]]] + instances.override_op[i]
            if instances.override_column[i] == "lane":
                self.lane[row] = instances.override_value[i]
            else:
                enabled[row] = instances.override_value[i] != 0
        self.lane[~enabled] = -1
        self.communicator = np.where(enabled, columns["communicator"][self.template].astype(np.int64), -1)
        self.role = np.repeat(np.arange(len(program.roles)), np.diff(instances.start))
        self.size = np.diff(self.start)[block]
        self.first = np.append(0, np.cumsum(self.size))
        self.of_op = ranges(self.start[block], self.size)


class _Queues:
    """The queues that a column of the rows (-1: none) puts ops into, by role and value."""

    def __init__(self, rows: _QueueRows, column: Longs, values: int) -> None:
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
        first_segment = np.cumsum(per_block) - per_block
        # Every instance runs the segments of its block: by queue, in the order of the instances.
        counts = per_block[rows.block]
        segment = ranges(first_segment[rows.block], counts)
        instance = np.repeat(np.arange(len(counts)), counts)
        queue = rows.role[instance] * (values + 1) + segment_value[segment]
        self._runs = stable_order(queue)
        self._segment = segment[self._runs]
        self._op_of_row_0 = (rows.first[:-1] - rows.start[rows.block])[instance[self._runs]]
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
        previous = distance.take(self._rows.of_op)
        np.subtract(np.arange(len(previous)), previous, out=previous)
        np.maximum(previous, -1, out=previous)
        first, last = self._ends()
        previous[first[1:]] = np.where(self._begins[1:], -1, last[:-1])
        return previous

    def order(self) -> Ints:
        """The number of each op in its queue, from 0; -1 for ops in none."""
        lengths = self._length[self._segment]
        ops = self._row.take(ranges(self._head[self._segment], lengths))
        ops += np.repeat(self._op_of_row_0, lengths)
        first = (np.cumsum(lengths) - lengths)[self._begins]
        numbers = np.arange(len(ops))
        numbers -= np.repeat(first, np.diff(np.append(first, len(ops))))
        order = np.full(len(self._rows.of_op), -1, dtype=np.int32)
        order[ops] = numbers
        return order
