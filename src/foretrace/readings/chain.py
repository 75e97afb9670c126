"""Why an op started when it did.

An op starts when the last member of its unit is ready, and that one was ready when the last op it waited for had ended.
Going back from op to op in this way leads, without a gap in time, along what held a given op up.
"""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs, Mask
from foretrace.engine.order import sort_by
from foretrace.program.columns import Kind
from foretrace.program.timeline import Timeline

_PREFERENCE = {Kind.TRANSFER: 2, Kind.COLLECTIVE: 2, Kind.HOST: 1, Kind.COMPUTE: 0}
"""The order in which ops that ended at the same instant are named: communication, host work, computation."""


class Chain:
    """For every node: the member of its unit that came last (`latest`, itself where it did), and the op of its own
    rank that it waited for last (`last`, -1 for none), which ran `back` steps earlier (0 or 1)."""

    def __init__(self, timeline: Timeline) -> None:
        graph = timeline.graph
        self.timeline = timeline
        self.kind = graph.ops.ints("kind")[graph.op]
        self.latest = self._latest()
        preference = np.array([_PREFERENCE[kind] for kind in Kind])[self.kind]
        owner = np.repeat(np.arange(len(graph)), np.diff(graph.pred_start))
        self.last, ended = _best(owner, graph.pred, timeline.end_s, preference, len(graph))
        by_later, _ = sort_by(graph.next_dst, len(graph), False)
        end_before = timeline.end_before_s
        before, ended_before = _best(
            graph.next_dst[by_later].astype(np.int64),
            graph.next_src[by_later],
            end_before,
            preference,
            len(graph),
        )
        earlier = (before >= 0) & (ended_before > ended)
        self.last[earlier] = before[earlier]
        self.back = earlier.astype(np.int64)

    def follows(self, within_s: float) -> Mask:
        """Returns whether each node was ready at most `within_s` seconds after what it waited for last had ended."""
        timeline = self.timeline
        ended = np.where(self.back > 0, timeline.end_before_s[self.last], timeline.end_s[self.last])
        return np.asarray((self.last >= 0) & (timeline.ready_s - ended <= within_s))

    def _latest(self) -> Longs:
        graph, ready = self.timeline.graph, self.timeline.ready_s
        latest = np.arange(len(graph))
        meets = np.flatnonzero(graph.unit < graph.rendezvous)
        if not len(meets):
            return latest
        order, start = sort_by(graph.unit[meets], graph.rendezvous, False)
        members = meets[order]
        used = np.flatnonzero(np.diff(start))
        last_ready = np.maximum.reduceat(ready[members], start[used])
        of_unit = np.zeros(graph.rendezvous)
        of_unit[used] = last_ready
        arrived_last = ready[members] == of_unit[graph.unit[members]]
        first = np.full(graph.rendezvous, len(graph))
        np.minimum.at(first, graph.unit[members[arrived_last]], members[arrived_last])
        # A member that came as late as any waited for nobody.
        itself = ready[meets] == of_unit[graph.unit[meets]]
        latest[meets] = np.where(itself, meets, first[graph.unit[meets]])
        return latest


def _best(owner: Longs, waited: Ints, end: Floats, preference: Longs, nodes: int) -> tuple[Longs, Floats]:
    """Returns, for each node that owns rows, the predecessor that ended last, and when; owners must be sorted."""
    best, ended = np.full(nodes, -1, dtype=np.int64), np.full(nodes, -np.inf)
    if not len(owner):
        return best, ended
    first = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    ended[owner[first]] = np.maximum.reduceat(end[waited], first)
    score = np.where(end[waited] == ended[owner], preference[waited] * nodes + (nodes - 1 - waited), -1)
    best[owner[first]] = nodes - 1 - np.maximum.reduceat(score, first) % nodes
    return best, ended
