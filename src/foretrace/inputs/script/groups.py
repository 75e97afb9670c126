"""Turns the process groups of recordings into communicators and a mesh.

Recordings of several ranks share a communicator if they have the same group: the same axis, the same groups of all
ranks, and the same position among identical groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.profiler_trace.job.axes import axes_of
from foretrace.inputs.profiler_trace.job.communication import ProcessGroup
from foretrace.inputs.script.recording import Group, IssuedCall, RankRecording
from foretrace.inputs.script.window import window_of
from foretrace.program.columns import ONE_TO_ONE, Collective
from foretrace.program.program import Communicator

MAX_OPS: Final = 4_000_000
"""Events of all roles into which the transfers of one recording divide its ranks."""

WORLD: Final = "world"
"""The axis that the default group has in a recording."""


def axis_word(group: Group, collective: Collective, world: int) -> str:
    """Returns the name that reports give to the time spent in a group: its axis, if the name of the group tells it.

    The default group carries gradients, unless two of its ranks transfer something, as stages of a pipeline do.
    """
    transfer = collective in ONE_TO_ONE
    axes = _axes(group, world)
    if group.axis == WORLD and transfer:
        return "pp"
    return axes[0] if axes else group.axis


def _axes(group: Group, world: int) -> tuple[str, ...]:
    """Returns the axes along which the ranks of a group differ, () where its name tells none."""
    known = ProcessGroup("", group.ranks, group.axis, len(group.ranks))
    return axes_of(known, Collective.NONE, world if group.axis == WORLD else -1) or ()


class JobGroups:
    """The groups of all recordings as communicators, and the roles into which transfers divide ranks.

    Args:
        recordings: Recordings of one or more ranks.
        stands_for: The ranks that behave as each recorded rank.
    """

    def __init__(self, recordings: Sequence[RankRecording], stands_for: Sequence[Sequence[int]]) -> None:
        self.recordings = recordings
        self.stands_for = stands_for
        self.world = recordings[0].world
        self._of_rank = {rank: number for number, ranks in enumerate(stands_for) for rank in ranks}
        self._labels = [_labels(recording) for recording in recordings]
        self._known: dict[tuple[int, int, str], Communicator] = {}
        self._pairs: dict[tuple[int, int, int, int, bool], Communicator] = {}
        self._peers = [_peers(recording) for recording in recordings]

    def communicator(self, recording: int, group: int, collective: Collective) -> Communicator:
        """Returns the communicator of a group that a recording refers to by number."""
        own = self.recordings[recording].groups[group]
        word = axis_word(own, collective, self.world)
        key = (recording, group, word)
        if key not in self._known:
            groups = tuple(sorted(own.all_groups, key=min))
            self._known[key] = Communicator(self._labels[recording][group], word, groups=groups)
        return self._known[key]

    def lane(self, recording: int, group: int) -> str:
        """Returns the name of the lane of a group, which no other group of the same recording has."""
        groups = self.recordings[recording].groups
        word = axis_word(groups[group], Collective.NONE, self.world)
        before = sum(axis_word(other, Collective.NONE, self.world) == word for other in groups[:group])
        return f"{word} #{before + 1}" if before else word

    def parts(self, recording: int) -> list[tuple[int, ...]]:
        """Returns the ranks that a recording stands for, divided into those that transfer to and from the same
        positions of their groups: only these can share the ops of a role."""
        own = self.recordings[recording]
        divided: dict[tuple[int, ...], list[int]] = {}
        places = [_positions(own.groups[group]) for group in self._divided_by(recording)]
        for rank in self.stands_for[recording]:
            divided.setdefault(tuple(place.get(rank, -1) for place in places), []).append(rank)
        events = window_of(own).end - window_of(own).first
        if len(divided) > 1 and len(divided) * events > MAX_OPS:
            problem = f"{len(divided):,} ranks transfer to different positions of a group, in {events:,} events each"
            hint = "transfer within smaller groups, such as those of a DeviceMesh"
            raise InputError("too-large", problem, where=f"rank {own.rank}", hint=hint)
        return [tuple(ranks) for ranks in divided.values()]

    def pair(self, recording: int, rank: int, group: int, peer: int, *, sends: bool) -> Communicator:
        """Returns the pairs in which the ranks of a part transfer, each with the sender at position 0.

        Args:
            recording: The number of the recording.
            rank: A rank of the part of its ranks.
            group: The number of the group.
            peer: The rank at the other end for the recorded rank.
            sends: Whether these ranks send.
        """
        key = (recording, rank, group, peer, sends)
        if key not in self._pairs:
            self._pairs[key] = self._new_pair(*key)
        return self._pairs[key]

    def _new_pair(self, recording: int, rank: int, group: int, peer: int, sends: bool) -> Communicator:
        own, me = self.recordings[recording].groups[group], self.recordings[recording].rank
        if peer not in own.ranks or me not in own.ranks:
            problem = f"a transfer with rank {peer} runs in a group of ranks {', '.join(map(str, own.ranks[:8]))}"
            raise InputError("rendezvous-mismatch", problem, where=f"rank {me}")
        word = axis_word(own, Collective.TRANSFER, self.world)
        label = self._labels[recording][group]
        if self._is_translated(recording, group):
            other = self._of_rank[peer]
            mine, theirs = self.stands_for[recording], self.stands_for[other]
            shift = list(theirs).index(peer) - list(mine).index(me)
            pairs = [(first, theirs[(at + shift) % len(theirs)]) for at, first in enumerate(mine)]
            ends = (recording, other) if sends else (other, recording)
            name = f"{label} {'→'.join(str(self.recordings[end].rank) for end in ends)}"
        else:
            place = _positions(own)
            size = len(own.ranks)
            at = place[rank]
            to = (at + place[peer] - place[me]) % size
            pairs = [(ranks[at], ranks[to]) for ranks in own.all_groups if len(ranks) > max(at, to)]
            name = f"{label} {at}→{to}" if sends else f"{label} {to}→{at}"
        directed = sorted(pairs if sends else [(to, at) for at, to in pairs])
        return Communicator(name, word, groups=tuple(directed))

    def _divided_by(self, recording: int) -> list[int]:
        """Returns the groups whose transfers divide the ranks of a recording by their positions."""
        return [group for group in sorted(self._peers[recording]) if not self._is_translated(recording, group)]

    def _is_translated(self, recording: int, group: int) -> bool:
        """Whether the partners of ranks are at the same positions among the ranks of another recording.

        It is so in a group that holds several ranks of this recording, such as that of all ranks, where every partner
        is another recording's rank.
        """
        own, ranks = self.recordings[recording].groups[group], self.stands_for[recording]
        members = set(own.ranks)
        if sum(rank in members for rank in ranks) < 2:
            return False
        others = {self._of_rank.get(peer, recording) for peer in self._peers[recording][group]}
        return all(other != recording and len(self.stands_for[other]) == len(ranks) for other in others)


def _peers(recording: RankRecording) -> dict[int, set[int]]:
    """Returns the other ends of the transfers of a recording, by the number of their group."""
    window = window_of(recording)
    peers: dict[int, set[int]] = {}
    for event in recording.events[window.first : window.end]:
        if isinstance(event, IssuedCall) and event.collective in ONE_TO_ONE:
            peers.setdefault(event.group, set()).update(call_peers(event, recording.groups[event.group]))
    return peers


def call_peers(call: IssuedCall, group: Group) -> list[int]:
    """Returns the ranks that a transfer or an exchange sends to or receives from."""
    if call.collective is Collective.TRANSFER:
        return [call.peer]
    return [*(group.ranks[position] for position, _ in call.sends), *call.receives_from]


def _labels(recording: RankRecording) -> list[str]:
    """Returns the names of a recording's groups: equal ones are numbered in the order in which they were made."""
    labels: list[str] = []
    seen: dict[tuple[str, tuple[tuple[int, ...], ...]], int] = {}
    for group in recording.groups:
        key = (group.axis, tuple(sorted(group.all_groups, key=min)))
        seen[key] = seen.get(key, 0) + 1
        labels.append(f"{group.axis} #{seen[key]}" if seen[key] > 1 else group.axis)
    return labels


def _positions(group: Group) -> dict[int, int]:
    return {rank: position for ranks in group.all_groups for position, rank in enumerate(ranks)}


def tokens_per_step(recordings: Sequence[RankRecording], mesh: Mesh) -> float | None:
    """Returns the tokens of a step over all ranks; None if the groups do not tell which ranks have own data."""
    tokens = max(recording.tokens for recording in recordings)
    sizes = {
        axes[0]: len(group.ranks)
        for recording in recordings
        for group in recording.groups
        if group.axis != WORLD and len(axes := _axes(group, recording.world)) == 1
    }
    replicas = sizes.get("dp", sizes.get("shard", 1) * sizes.get("replicate", 1))
    known = tokens > 0 and mesh.cp == 1 and replicas == mesh.dp
    return float(tokens * replicas) if known else None


_DENSE: Final = ("tp", "cp", "dp", "pp")


def mesh_of(recordings: Sequence[RankRecording]) -> Mesh:
    """Returns the mesh that has the groups of the recordings; a mesh of dp alone if no mesh has them."""
    world = recordings[0].world
    sizes: dict[str, int] = {}
    strides: dict[str, int] = {}
    stated: list[tuple[tuple[str, ...], Group]] = []
    for group in (group for recording in recordings for group in recording.groups if group.axis != WORLD):
        axes = _axes(group, world)
        stated.append((axes, group))
        if len(axes) == 1 and len(group.ranks) > 1:
            sizes[axes[0]], strides[axes[0]] = len(group.ranks), _stride(group.ranks)
    try:
        mesh = _mesh(world, sizes, strides)
        return (
            mesh if mesh.world == world and all(_has(mesh, *group) for group in stated if group[0]) else Mesh(dp=world)
        )
    except InputError:
        return Mesh(dp=world)


def _mesh(world: int, sizes: dict[str, int], strides: dict[str, int]) -> Mesh:
    tp, cp, pp = (sizes.get(axis, 1) for axis in ("tp", "cp", "pp"))
    dp = world // (tp * cp * pp)
    shard = sizes.get("shard", dp)
    if "dp" not in strides and ("shard" in strides or "replicate" in strides):
        strides = strides | {"dp": min(strides.get("shard", world), strides.get("replicate", world))}
    usual = {axis: at for at, axis in enumerate(_DENSE)}
    order = sorted(_DENSE, key=lambda axis: (strides.get(axis, world if axis == "pp" else 1), usual[axis]))
    order.insert(order.index("dp"), "ep")
    return Mesh(
        tp=tp, cp=cp, dp=dp, pp=pp, ep=sizes.get("ep", 1), etp=1 if "ep" in sizes else None,
        shard=shard if shard != dp else None, order="-".join(order),
    )  # fmt: skip


def _has(mesh: Mesh, axes: tuple[str, ...], group: Group) -> bool:
    """Whether a group is one of those in which these axes of the mesh vary; groups of one rank say nothing."""
    if len(group.ranks) < 2 or "embd" in axes:
        return True
    return set(group.ranks) in map(set, mesh.groups(*axes).tolist())


def _stride(ranks: Iterable[int]) -> int:
    return min((abs(after - before) for before, after in pairwise(ranks)), default=1)
