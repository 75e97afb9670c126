"""Computes what communication costs the computation next to it: how much work of each op it covers.

A call covers the work that its rank gets done while it runs, from the place in the computation where it starts, at the
pace that it leaves. The cost has three parts, each of which only adds to those before it:

- *Calls of every microbatch* start where their block is written to start them, so what they cost follows from the block
  (`cost/local_overlap.py`). All microbatches cost the same, and no run is needed.
- *Transfers between stages* start when another stage is done, next to other kernels in each microbatch. All kernels of
  a microbatch bear their cost in proportion. This needs no run either.
- *Calls of a step*, such as reductions of gradients, and what calls leave to the block after theirs, start where a run
  with the cost so far has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Ints, Longs, Mask, distinct, ranges
from foretrace.cost.local_overlap import MAX_COST, BlockOps, LocalCost, follow, local_cost
from foretrace.cost.overlap import Overlaps
from foretrace.engine import jit
from foretrace.program.expand import Ops
from foretrace.program.graph import Graph

CLOSE_TO_STEP: Final = 1e-3
"""Share of the step by which no op differs if a run with shared links confirms a cost."""
MAX_STEPS: Final = 4
"""Steps after its own in which the computation next to a call is looked for."""
ROUNDING: Final = 1e-9
"""Shares of a computation or a call below this are differences between sums in another order."""


class RunTimes(Protocol):
    """When the nodes of a graph start and end in a run, in seconds, and how long a step takes."""

    @property
    def start_s(self) -> Floats: ...
    @property
    def end_s(self) -> Floats: ...
    @property
    def step_time_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of one use: the number of their rank class, their place among its computations, how long they last."""

    at: Longs
    share: Floats
    past_s: Floats
    last_s: Floats
    rank_class: Longs


@dataclass(frozen=True, slots=True)
class _Rests:
    """The rests of calls of one use after their blocks: the node that computes last in the block, and when a call goes
    on after it."""

    node: Longs
    past_s: Floats
    last_s: Floats
    covered: Floats
    """The share of each computation that calls of the use cover within its own block."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Ops with the same columns as rows: which row each op is, whether any is, an op of each, and some columns."""

    of_op: Longs
    used: Mask
    op: Longs
    lane: Longs
    communicator: Longs

    @classmethod
    def of(cls, ops: Ops) -> _Rows:
        """Returns the rows of ops: their templates, or each op on its own where an instance changes some."""
        columns = ops.program.templates.columns
        if len(ops.program.instances.override_instance):
            each = np.arange(len(ops))
            return cls(each, np.ones(len(ops), dtype=bool), each, ops.ints("lane"), ops.ints("communicator"))
        op, used = np.zeros(len(columns["lane"]), dtype=np.int64), np.zeros(len(columns["lane"]), dtype=bool)
        op[ops.template], used[ops.template] = np.arange(len(ops)), True
        lane, communicator = (columns[name].astype(np.int64) for name in ("lane", "communicator"))
        return cls(ops.template, used, op, lane, communicator)


class OverlapCost:
    """What communications cost the computations of a graph whose nodes take `alone_s` alone."""

    def __init__(self, graph: Graph, alone_s: Floats, overlaps: Overlaps) -> None:
        self.graph, self.alone_s, self.slowdown = graph, alone_s, overlaps.slowdown
        ops, lanes = graph.ops, graph.program.lanes
        self._kernels, self._uses = overlaps.kernels, overlaps.uses
        rows = _Rows.of(ops)
        # Copies of copy engines have kernels too, but neither hold SMs nor need them.
        computes = np.array([lane.kind == "compute" for lane in lanes], dtype=bool)
        is_kernel = rows.used & (self._kernels[rows.op] >= 0) & computes[rows.lane]
        costly = np.append((overlaps.slowdown > 1).any(axis=0), False)
        is_call = rows.used & costly[self._uses[rows.op]]
        work_lanes = distinct(rows.lane[is_kernel])
        if len(work_lanes) == 1:
            # A call that takes its turn among the computations of a rank runs next to none of them.
            is_call &= rows.lane != work_lanes[0]
        pairs = np.array([communicator.pair is not None for communicator in graph.program.communicators] + [False])
        self._in_microbatch = ops.microbatch >= 0
        self._is_kernel = is_kernel[rows.of_op]
        self._is_move = self._with_channels((is_call & pairs[rows.communicator])[rows.of_op] & self._in_microbatch)
        self._is_call = is_call[rows.of_op] & ~self._is_move
        self.work = np.flatnonzero(self._is_kernel[graph.op] & (alone_s > 0))
        """The nodes that compute, class by class."""
        self.work_start = np.searchsorted(self.work, graph.start)
        """Where the computations of each class begin among them."""
        self._work_op, self._work_alone_s = graph.op[self.work], alone_s[self.work]
        self._slower_by_use: dict[int, Floats] = {}
        self._rests: dict[int, _Rests] = {}
        self._is_local = np.zeros(len(ops), dtype=bool)
        self.local_s = self._local()
        """What calls of every microbatch cost each node."""
        self._placed_calls = np.flatnonzero((self._is_call & ~self._is_local)[graph.op])

    def _with_channels(self, moves: Mask) -> Mask:
        """Returns which ops that move a microbatch between stages do so next to computation.

        Transfers that computation waits for share one lane. Others have one for every channel
        (`schedules/pipeline.py`).
        """
        program, ops = self.graph.program, self.graph.ops
        nodes = np.flatnonzero(moves)
        role = np.repeat(np.arange(len(program.roles)), np.diff(np.searchsorted(nodes, ops.start)))
        channels = np.zeros(len(program.roles) * len(program.lanes), dtype=bool)
        channels[role * len(program.lanes) + ops.ints("lane")[nodes]] = True
        several = np.count_nonzero(channels.reshape(-1, len(program.lanes)), axis=1) > 1
        return moves if several.all() else moves & several[ops.role]

    @cached_property
    def fixed_s(self) -> Floats:
        """What calls of every microbatch and transfers between stages cost each node. No run is needed for it."""
        return self._capped(self.local_s + self._spread(self.alone_s))

    @property
    def needs_run(self) -> bool:
        """Whether a run has to tell where calls start."""
        return bool(len(self.work)) and bool(self._rests or len(self._placed_calls))

    def cost_s(self, run: RunTimes, lasting_s: Floats | None = None) -> Floats:
        """Returns the whole cost of each node, given a run with the cost so far.

        Where communications share links, `lasting_s` is how long each node took in that run.
        """
        before_s = self.fixed_s if lasting_s is None else self._capped(self.local_s + self._spread(lasting_s))
        if not self.needs_run:
            return before_s
        lasting_s = self.alone_s if lasting_s is None else lasting_s
        cost_s, work_s = before_s.copy(), before_s[self.work]
        cost_s[self.work] = np.minimum(work_s + self._placed(run, lasting_s, work_s), self._work_alone_s * MAX_COST)
        return cost_s

    def confirms(self, run: RunTimes, cost_s: Floats) -> bool:
        """Returns whether a run with a cost shows it, up to a share of the step by which ops differ.

        Where communications share links, runs take so long that a small difference is not worth another one.
        """
        change = np.abs(self.cost_s(run, run.end_s - run.start_s) - cost_s)
        return bool(change.max(initial=0.0) <= CLOSE_TO_STEP * run.step_time_s)

    def _capped(self, cost_s: Floats) -> Floats:
        return np.minimum(cost_s, self.alone_s * MAX_COST)

    def _slower(self, use: int) -> Floats:
        """Returns how many times as long each computation takes under a use."""
        if use not in self._slower_by_use:
            self._slower_by_use[use] = self.slowdown[:, use][self._kernels[self._work_op]]
        return self._slower_by_use[use]

    def _spread(self, lasting_s: Floats) -> Floats:
        """Returns the cost of transfers, which cover the computation of all microbatches evenly."""
        cost_s = np.zeros(len(self.graph))
        if not self._is_move.any():
            return cost_s
        graph, classes = self.graph, len(self.graph.classes)
        nodes = np.flatnonzero(self._is_move[graph.op])
        owner, use_of = _owners(nodes, graph.start), self._uses[graph.op[nodes]]
        # Computation outside of microbatches, such as the optimizer's, bears none of it.
        alone = self._work_alone_s * self._in_microbatch[self._work_op]
        counts, total = np.diff(self.work_start), np.zeros(len(alone))
        used = np.flatnonzero(counts)
        for use in np.flatnonzero(np.bincount(use_of)).tolist():
            slower, chosen = self._slower(use), use_of == use
            seconds = np.bincount(owner[chosen], weights=lasting_s[nodes[chosen]], minlength=classes)
            under = np.zeros(classes)
            under[used] = np.add.reduceat(alone * slower, self.work_start[used])
            share = np.divide(seconds, under, out=np.zeros(classes), where=under > 0)
            total += np.repeat(np.minimum(share, 1.0), counts) * alone * (slower - 1)
        cost_s[self.work] = total
        return cost_s

    def _local(self) -> Floats:
        """Returns what the calls of every microbatch cost the computation of their own block."""
        cost_s = np.zeros(len(self.graph))
        graph, ops = self.graph, self.graph.ops
        instances = ops.program.instances
        is_chosen = np.zeros(len(instances.block), dtype=bool)
        calls = np.flatnonzero(self._is_call & self._in_microbatch)
        is_chosen[ops.instance[calls]] = True
        is_chosen[instances.override_instance] = False
        is_chosen &= ~self._out_of_order()[instances.block]
        chosen = np.flatnonzero(is_chosen)
        if not len(chosen) or not len(self.work):
            return cost_s
        places = _BlockPlaces(graph, chosen, self.alone_s)
        known: dict[tuple[int, bytes], LocalCost] = {}
        costs, slowdown = list[LocalCost](), self.slowdown.tolist()
        for block, node in places.representatives():
            size = places.size_of(block)
            alone_s = self.alone_s[node : node + size]
            key = block, alone_s.tobytes()
            if key not in known:
                known[key] = local_cost(self._block_ops(block, node, size), slowdown)
            costs.append(known[key])
        is_chosen[:] = False
        is_chosen[places.instances_of(np.array([cost.last >= 0 for cost in costs]))] = True
        self._is_local[calls] = is_chosen[ops.instance[calls]]
        self._gather_rests(places, costs)
        cost_s[places.nodes] = places.spread([cost.cost_s for cost in costs])
        return cost_s

    def _out_of_order(self) -> Mask:
        """Returns which blocks have ops that wait for ops listed after them, whose calls only a run can place."""
        templates = self.graph.program.templates
        rows = templates.dep_dst[templates.dep_src >= templates.dep_dst]
        is_out = np.zeros(len(templates.start) - 1, dtype=bool)
        is_out[np.searchsorted(templates.start, rows, side="right") - 1] = True
        return is_out

    def _gather_rests(self, places: _BlockPlaces, costs: list[LocalCost]) -> None:
        """Remembers what calls leave to the blocks after theirs."""
        by_use: dict[int, list[tuple[Longs, float, float]]] = {}
        for group, cost in enumerate(costs):
            if cost.last >= 0:
                for rest in cost.rests:
                    nodes = places.first_nodes(group) + cost.last
                    by_use.setdefault(rest.use, []).append((nodes, rest.past_s, rest.last_s))
        for use, rows in by_use.items():
            counts = [len(nodes) for nodes, _, _ in rows]
            covered = np.zeros(len(self.graph))
            covered[places.nodes] = places.spread([cost.covered.get(use, [0.0] * len(cost.cost_s)) for cost in costs])
            self._rests[use] = _Rests(
                np.concatenate([nodes for nodes, _, _ in rows]),
                np.repeat([past_s for _, past_s, _ in rows], counts),
                np.repeat([last_s for _, _, last_s in rows], counts),
                covered[self.work],
            )

    def _block_ops(self, block: int, node: int, size: int) -> BlockOps:
        """Returns the ops of a block where a class runs it from a node on."""
        graph, templates = self.graph, self.graph.program.templates
        first, op = int(templates.start[block]), int(graph.op[node])
        rows, ops = slice(first, first + size), slice(op, op + size)
        lane = templates.columns["lane"][rows].astype(np.int64)
        of_host = np.array([lane.kind == "host" for lane in graph.program.lanes], dtype=bool)
        mine = np.flatnonzero((templates.dep_dst >= first) & (templates.dep_dst < first + size))
        waits = zip((templates.dep_src[mine] - first).tolist(), (templates.dep_dst[mine] - first).tolist(), strict=True)
        return BlockOps.of(
            # The host launches ahead of what it launches.
            alone_s=np.where(of_host[lane], 0.0, self.alone_s[node : node + size]).tolist(),
            lane=np.where(templates.columns["enabled"][rows] != 0, lane, -1).tolist(),
            kernel=np.where(self._is_kernel[ops], self._kernels[ops], -1).tolist(),
            use=np.where(self._is_call[ops], self._uses[ops], -1).tolist(),
            waits=waits,
        )

    def _placed(self, run: RunTimes, lasting_s: Floats, before_s: Floats) -> Floats:
        """Returns what calls cost each computation that start where a run has them, where others cost `before_s`."""
        work = _OrderedWork(self, run)
        calls, rests = work.calls(self._placed_calls, lasting_s, self._uses), work.rests(self._rests)
        uses = sorted({*calls, *rests})
        alone, before_s = self._work_alone_s[work.order], before_s[work.order]
        slower = {use: self._slower(use)[work.order] for use in uses}
        cost = {use: np.zeros(len(alone)) for use in uses}
        # Calls of different uses that run at once leave less of the pace, so each covers less than alone.
        for _ in range(2 if len(uses) > 1 else 1):
            total = before_s + sum(cost.values())
            fresh = {}
            for use in uses:
                under = alone * slower[use] + (total - cost[use])
                seconds = work.follow(calls[use], under) if use in calls else np.zeros(len(alone))
                if use in rests:
                    # Calls of the next block go on when these have ended, so these run next to what those leave.
                    free = under * (1 - self._rests[use].covered[work.order])
                    seconds = np.minimum(seconds + work.follow(rests[use], free), under)
                fresh[use] = seconds * alone * (slower[use] - 1) / under
            cost = fresh
        placed = np.zeros(len(alone))
        placed[work.order] = sum(cost.values())
        return placed


class _BlockPlaces:
    """The chosen instances of all rank classes, in groups of the same class, block and prices."""

    def __init__(self, graph: Graph, chosen: Longs, alone_s: Floats) -> None:
        program, ops = graph.program, graph.ops
        instances, templates = program.instances, program.templates
        self._sizes = np.diff(templates.start)
        sizes = self._sizes[instances.block]
        first_op = np.cumsum(sizes) - sizes
        role_of_class = program.role_of[graph.classes.representative]
        bounds = np.searchsorted(chosen, instances.start)
        counts = np.diff(bounds)[role_of_class]
        owner = np.repeat(np.arange(len(role_of_class)), counts)
        self._instance = chosen[ranges(bounds[role_of_class], counts)]
        self._first = first_op[self._instance] + (graph.start[:-1] - ops.start[role_of_class])[owner]
        self._block, size = instances.block[self._instance].astype(np.int64), sizes[self._instance]
        self._size = size
        self.nodes = ranges(self._first, size)
        key = owner * len(self._sizes) + self._block
        _, self._head, group = np.unique(key, return_index=True, return_inverse=True)
        self._group = group.ravel()
        # Instances of a block pay the same unless a scenario tells them apart; those that do not are on their own.
        same = alone_s[self.nodes] == alone_s[ranges(self._first[self._head][self._group], size)]
        if not same.all():
            other = np.flatnonzero(np.logical_and.reduceat(same, np.cumsum(size) - size) == 0)
            self._group[other] = len(self._head) + np.arange(len(other))
            self._head = np.append(self._head, other)
        self._by_group = np.argsort(self._group, kind="stable")
        self._bounds = np.searchsorted(self._group[self._by_group], np.arange(len(self._head) + 1))

    def representatives(self) -> Iterable[tuple[int, int]]:
        """Returns the block and the first node of one instance of each group."""
        return zip(self._block[self._head].tolist(), self._first[self._head].tolist(), strict=True)

    def size_of(self, block: int) -> int:
        """Returns the number of ops of a block."""
        return int(self._sizes[block])

    def first_nodes(self, group: int) -> Longs:
        """Returns the first node of each instance of a group."""
        low, high = self._bounds[group : group + 2]
        return np.asarray(self._first[self._by_group[low:high]])

    def instances_of(self, groups: Mask) -> Longs:
        """Returns the instances of the chosen groups."""
        return np.asarray(self._instance[groups[self._group]])

    def spread(self, by_group: list[list[float]]) -> Floats:
        """Returns a value for each of `nodes`, given those of the ops of each group."""
        lengths = np.array([len(values) for values in by_group])
        flat = np.array([value for values in by_group for value in values])
        return flat[ranges((np.cumsum(lengths) - lengths)[self._group], self._size)]


class _OrderedWork:
    """The computations of all rank classes in the order of a run."""

    def __init__(self, cost: OverlapCost, run: RunTimes) -> None:
        graph = cost.graph
        self.graph, self._bounds, self._start_s = graph, cost.work_start, run.start_s
        self.period = run.step_time_s if graph.program.repeats else 0.0
        start = run.start_s[cost.work]
        self.order = np.arange(len(start))
        backwards = np.diff(start) < 0
        edges = cost.work_start[1:-1]
        backwards[edges[(edges > 0) & (edges < len(start))] - 1] = False  # the next computation is another class's
        if backwards.any():
            self.order = np.lexsort((start, _owners(cost.work, graph.start)))
        self.nodes = cost.work[self.order]
        self.start_s, self.end_s = start[self.order], run.end_s[self.nodes]
        # Steps follow each other, so that the end of a step runs next to the begin of the next.
        following = np.append(self.start_s[1:], 0.0)
        used = self._bounds[:-1] < self._bounds[1:]
        following[self._bounds[1:][used] - 1] = self.start_s[self._bounds[:-1][used]] + self.period
        self.gap_s = np.maximum(following - self.end_s, 0.0)

    def calls(self, nodes: Longs, lasting_s: Floats, uses: Longs) -> dict[int, _Calls]:
        """Returns those of the calls that may run next to computation, by use, at their places."""
        graph = self.graph
        owner = _owners(nodes, graph.start)
        kept = (lasting_s[nodes] > 0) & (self._bounds[owner] < self._bounds[owner + 1])
        nodes, owner = nodes[kept], owner[kept]
        at, share, past = self._places(self._start_s[nodes], owner)
        # One that starts in a gap and ends in it covers nothing, apart from rounding errors.
        covers = (share < 1 - ROUNDING) | (past + lasting_s[nodes] * (1 - ROUNDING) > self.gap_s[at])
        use_of = np.where(covers, uses[graph.op[nodes]], -1)
        by_use = {}
        for use in np.flatnonzero(np.bincount(use_of + 1)[1:]).tolist():
            rows = np.flatnonzero(use_of == use)
            by_use[use] = _Calls(at[rows], share[rows], past[rows], lasting_s[nodes[rows]], owner[rows])
        return by_use

    def _places(self, starts: Floats, owner: Longs) -> tuple[Longs, Floats, Floats]:
        """Returns where calls start: within or after which computation, the share of it that is done, seconds past it.

        A call that starts before all computations has no computation (-1), and negative seconds.
        """
        first_s = self.start_s[self._bounds[owner]]
        if self.period > 0:
            starts = starts - self.period * np.floor((starts - first_s) / self.period)
        at = np.empty(len(starts), dtype=np.int64)
        edges = np.searchsorted(owner, np.arange(len(self._bounds))).tolist()
        for number, (low, high) in enumerate(pairwise(edges)):
            if low < high:
                begin, end = self._bounds[number], self._bounds[number + 1]
                place = np.searchsorted(self.start_s[begin:end], starts[low:high], side="right") - 1
                at[low:high] = np.where(place < 0, -1, begin + place)
        share = np.clip((starts - self.start_s[at]) / (self.end_s - self.start_s)[at], 0.0, 1.0)
        past = np.where(at < 0, starts - first_s, np.maximum(starts - self.end_s[at], 0.0))
        return at, np.where(at < 0, 0.0, share), past

    def rests(self, rests: dict[int, _Rests]) -> dict[int, _Calls]:
        """Returns what calls leave to the blocks after theirs, at their places."""
        if not rests:
            return {}
        place = np.empty(len(self.graph), dtype=np.int64)
        place[self.nodes] = np.arange(len(self.nodes))
        owner = np.repeat(np.arange(len(self._bounds) - 1), np.diff(self._bounds))
        return {
            use: _Calls(place[rest.node], np.ones(len(rest.node)), rest.past_s, rest.last_s, owner[place[rest.node]])
            for use, rest in rests.items()
        }

    def follow(self, calls: _Calls, under_s: Floats) -> Floats:
        """Returns the seconds for which calls run next to each computation, which takes `under_s` next to them."""
        compiled = jit.pays(len(self.graph))
        seconds, waits, rest = np.zeros(len(under_s)), np.zeros(len(calls.at)), np.zeros(len(calls.at))
        loop = jit.compiled(follow) if compiled else follow

        def view(*columns: NDArray[Any]) -> tuple[Any, ...]:
            """Returns columns as the loop reads them fastest; plain Python is slow with numbers of numpy."""
            return columns if compiled else tuple(np.ascontiguousarray(column).data for column in columns)

        loop(
            view(calls.at, calls.share, calls.past_s, calls.last_s),
            view(self._bounds[calls.rank_class], self._bounds[calls.rank_class + 1]),
            view(under_s, self.gap_s),
            MAX_STEPS if self.period > 0 else 0,
            view(seconds, waits, rest),
        )
        return seconds


def _owners(nodes: Longs, start: Ints) -> Longs:
    """Returns the rank class of each node, which are sorted; nodes of class c are from `start[c]` on."""
    return np.repeat(np.arange(len(start) - 1), np.diff(np.searchsorted(nodes, start)))
