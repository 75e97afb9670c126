"""Adds up what one run spent its time on, in words that hold for any program of the same job.

A prediction and a recording of one job split their work into other ops under other names. They share what the ops do:
compute forward or backward, reduce over an axis, for a microbatch, on a rank, in a group. An account adds up a timeline
in those words, so that two runs can be laid side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.program.columns import Collective, Kind, Phase, label
from foretrace.program.graph import Graph
from foretrace.program.timeline import Timeline
from foretrace.readings.answer.answer import Answer
from foretrace.readings.breakdown import (
    COMPUTE_PARTS,
    LATE_PARTS,
    Labels,
    count_seconds,
    mean_over_ranks,
    part_labels,
    parts_of,
)
from foretrace.readings.chain import Chain

Group = tuple[str, tuple[int, ...]]
"""An axis and the ranks that meet on it, ascending: what a group is called in every program."""

FORWARD, BACKWARD, OPTIMIZER, OTHER, HOST = "forward compute", "backward compute", "optimizer", "other compute", "host"
_KINDS = (FORWARD, BACKWARD, OPTIMIZER, OTHER, HOST)
# A framework recomputes inside its backward pass, and recordings of it tell the two not apart.
_KIND_OF_PHASE = {
    Phase.FORWARD: FORWARD,
    Phase.BACKWARD: BACKWARD,
    Phase.BACKWARD_INPUT: BACKWARD,
    Phase.BACKWARD_WEIGHT: BACKWARD,
    Phase.RECOMPUTE: BACKWARD,
    Phase.OPTIMIZER: OPTIMIZER,
}


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds that ops ran, and that they waited for late partners before."""

    running_s: float = 0.0
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PerMicrobatch:
    """Seconds one pass of one microbatch computes on a rank: the mean over ranks and microbatches, and its limits."""

    mean_s: float
    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Times of every rank: its compute lanes busy, held up by late partners, and the end of its last op, in seconds.

    A wait while the rank computes, such as of a receive posted early, does not hold it up. Where steps repeat, a host
    may run ahead: the end then counts from when the devices begin.
    """

    compute_s: Floats
    held_up_s: Floats
    end_s: Floats


@dataclass(frozen=True, slots=True)
class Account:
    """The time that one run spent, by kind of op, group, stage and rank.

    `kinds` are means over all ranks, `groups` means over the group's members. `stages` gives the compute of the passes
    (`forward`, `backward`) by pipeline stage. `until_optimizer_s` is when the last rank starts to update its
    parameters, None where no rank does.
    """

    kinds: dict[str, Spent]
    groups: dict[Group, Spent]
    ranks: RankTimes
    stages: dict[tuple[int, str], PerMicrobatch]
    microbatches: int
    until_optimizer_s: float | None


def account(simulation: Answer) -> Account:
    """Adds up one run; it looks at nothing else."""
    nodes = _Nodes.of(simulation.timeline)
    return Account(
        kinds=_kinds(nodes),
        groups=_groups(nodes),
        ranks=_ranks(simulation, nodes),
        stages=_stages(nodes),
        microbatches=len(np.unique(nodes.microbatch[nodes.microbatch >= 0], return_counts=True)[0]),
        until_optimizer_s=simulation.until_optimizer_s,
    )


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes that happen, one value each: what they are and how long they ran and waited."""

    graph: Graph
    node: Longs
    rank_class: Longs
    kind: Longs
    communicator: Longs
    microbatch: Longs
    start_s: Floats
    end_s: Floats
    running_s: Floats
    wait_s: Floats

    @classmethod
    def of(cls, timeline: Timeline) -> _Nodes:
        graph, ops = timeline.graph, timeline.graph.ops
        happens = np.flatnonzero(ops.column("enabled")[graph.op])
        op = graph.op[happens]
        kind, communicator = ops.ints("kind")[op], ops.ints("communicator")[op]
        start, end = timeline.start_s[happens], timeline.end_s[happens]
        # A partner waited for since the step before counts for this step only once.
        wait = np.clip(timeline.wait_s[happens], 0.0, timeline.step_time_s)
        return cls(
            graph,
            happens,
            graph.rank_class[happens].astype(np.int64),
            kind,
            communicator,
            ops.microbatch[op].astype(np.int64),
            start,
            end,
            end - start,
            np.where(communicator >= 0, wait, 0.0),
        )


def kinds_of(graph: Graph) -> tuple[Longs, list[str]]:
    """Returns what each node does, as the number of a name, and the names.

    A name is the compute of a phase, the host's work, or a collective over an axis.
    """
    ops = graph.ops
    phase, communicator = ops.ints("phase")[graph.op], ops.ints("communicator")[graph.op]
    of_phase = np.array([_KINDS.index(_KIND_OF_PHASE.get(phase, OTHER)) for phase in Phase])
    number = np.where(ops.ints("kind")[graph.op] == Kind.HOST, _KINDS.index(HOST), of_phase[phase])
    axes = list(dict.fromkeys(communicator.axis for communicator in graph.program.communicators))
    axis_of = np.array([*(axes.index(communicator.axis) for communicator in graph.program.communicators), -1])
    # A batched send and receive is a way to issue transfers, which another program may issue one by one.
    collective = ops.ints("collective")[graph.op]
    collective = np.where(collective == Collective.EXCHANGE, Collective.TRANSFER, collective)
    meets = communicator >= 0
    number[meets] = len(_KINDS) + axis_of[communicator[meets]] * len(Collective) + collective[meets]
    return number, [*_KINDS, *(f"{axis} {label(what)}" for axis in axes for what in Collective)]


def _kinds(nodes: _Nodes) -> dict[str, Spent]:
    """Returns means over ranks by what ops do."""
    graph = nodes.graph
    number, names = kinds_of(graph)
    number = number[nodes.node]
    share = graph.classes.count[nodes.rank_class] / max(graph.program.world, 1)
    running = np.bincount(number, weights=nodes.running_s * share, minlength=len(names))
    wait = np.bincount(number, weights=nodes.wait_s * share, minlength=len(names))
    seen = np.bincount(number, minlength=len(names))
    return {
        name: Spent(float(ran), float(waited))
        for name, ran, waited, ops in zip(names, running, wait, seen.tolist(), strict=True)
        if ops
    }


def _groups(nodes: _Nodes) -> dict[Group, Spent]:
    """Returns means over the members of every group that meets, over all communicators of an axis."""
    graph, program = nodes.graph, nodes.graph.program
    shape = (len(program.communicators), len(graph.classes))
    meets = np.flatnonzero(nodes.communicator >= 0)
    key = nodes.communicator[meets] * shape[1] + nodes.rank_class[meets]
    size = shape[0] * shape[1]
    seen = np.bincount(key, minlength=size).reshape(shape)
    running = np.bincount(key, weights=nodes.running_s[meets], minlength=size).reshape(shape)
    wait = np.bincount(key, weights=nodes.wait_s[meets], minlength=size).reshape(shape)
    by_group: dict[Group, Spent] = {}
    for number in np.flatnonzero(seen.any(axis=1)).tolist():
        communicator = program.communicators[number]
        for rows in communicator.members(program.mesh):
            classes = graph.classes.of_rank[rows]
            rows = rows[seen[number, classes].any(axis=1)]
            classes = graph.classes.of_rank[rows]
            means = (running[number, classes].mean(axis=1), wait[number, classes].mean(axis=1))
            for ranks, ran, waited in zip(
                np.sort(rows, axis=1).tolist(), *(mean.tolist() for mean in means), strict=True
            ):
                group = (communicator.axis, tuple(ranks))
                before = by_group.get(group, Spent())
                by_group[group] = Spent(before.running_s + ran, before.wait_s + waited)
    return by_group


def _ranks(simulation: Answer, nodes: _Nodes) -> RankTimes:
    parts, per_class = simulation.breakdown.parts, simulation.breakdown.per_class_s
    compute, late = (
        per_class[:, [number for number, part in enumerate(parts) if part in some]].sum(axis=1)
        for some in (COMPUTE_PARTS, LATE_PARTS)
    )
    classes = nodes.graph.classes
    end = np.zeros(len(classes))
    np.maximum.at(end, nodes.rank_class, nodes.end_s - simulation.timeline.device_begins_s)
    return RankTimes(compute[classes.of_rank], late[classes.of_rank], end[classes.of_rank])


def _stages(nodes: _Nodes) -> dict[tuple[int, str], PerMicrobatch]:
    """Returns compute per microbatch of every stage and pass."""
    graph, mesh = nodes.graph, nodes.graph.program.mesh
    ranks = np.zeros((len(graph.classes), mesh.pp))
    np.add.at(ranks, (graph.classes.of_rank, mesh.coordinate("pp")), 1.0)
    by_stage = {}
    kind = np.where(nodes.kind == Kind.COMPUTE, kinds_of(graph)[0][nodes.node], -1)
    for word, phase_kind in (("forward", FORWARD), ("backward", BACKWARD)):
        in_pass = np.flatnonzero((kind == _KINDS.index(phase_kind)) & (nodes.microbatch >= 0))
        if not len(in_pass):
            continue
        passes, place = np.unique(nodes.rank_class[in_pass] << 32 | nodes.microbatch[in_pass], return_inverse=True)
        seconds = np.bincount(place.ravel(), weights=nodes.running_s[in_pass])
        weight = ranks[passes >> 32]
        for stage in np.flatnonzero(weight.any(axis=0)).tolist():
            here = weight[:, stage] > 0
            mean = float(np.average(seconds[here], weights=weight[here, stage]))
            by_stage[stage, word] = PerMicrobatch(mean, float(seconds[here].min()), float(seconds[here].max()))
    return dict(sorted(by_stage.items(), key=lambda entry: (entry[0][0], entry[0][1] == "backward")))


@dataclass(frozen=True, slots=True)
class Cause:
    """Ops of one name: the part of the breakdown that their time counts as, what they do, and their name.

    `kind` and `name` are empty for time in which no op of the rank runs: bubbles, stragglers, idle time.
    """

    part: str
    kind: str = ""
    name: str = ""

    @property
    def nameless(self) -> Cause:
        """All ops that do the same in the same part."""
        return Cause(self.part, self.kind)


def causes(timeline: Timeline, late: str) -> dict[Cause, float]:
    """Divides a step further than its breakdown does, by the ops that run or that ranks wait for.

    Every cause lies in one part of the breakdown. So the causes of two steps, each next to its counterpart, account for
    all of the difference between them.

    Args:
        timeline: The step.
        late: The name of the part in which a rank waits for a late rank of its own stage.

    Returns:
        Seconds by cause, mean over ranks; they sum to the step.
    """
    chain, parts = Chain(timeline), parts_of(timeline, late)
    coarse = part_labels(timeline, chain, parts)
    graph = timeline.graph
    kind, kinds = kinds_of(graph)
    name = graph.ops.ints("name")[graph.op]
    sizes = (len(parts), len(kinds), len(graph.program.strings))
    keys, place = np.unique(np.ravel_multi_index((coarse.runs, kind, name), sizes), return_inverse=True)
    labels = Labels(
        len(keys) + len(parts), place.ravel(), len(keys) + coarse.late, len(keys) + coarse.idle, coarse.between_stages
    )
    seconds = mean_over_ranks(timeline, count_seconds(timeline, chain, labels))
    places = zip(*(numbers.tolist() for numbers in np.unravel_index(keys, sizes)), strict=True)
    strings = graph.program.strings
    named = [Cause(parts[part], kinds[what], strings[text]) for part, what, text in places]
    by_cause: dict[Cause, float] = {}
    for cause, spent in zip([*named, *map(Cause, parts)], seconds.tolist(), strict=True):
        if spent > 1e-12 * timeline.step_time_s:
            by_cause[cause] = by_cause.get(cause, 0.0) + spent
    return by_cause
