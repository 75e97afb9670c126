"""Finds the ranks of a script to trace, and the traced rank that each rank behaves as.

The first and the last rank are traced, and the ranks that they exchange messages with: the stages of a pipeline. Where
experts get different numbers of tokens, all ranks that share them are traced too. Every other rank behaves as the
traced one at the same position of its own groups. The last rank shows whether that holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.script.fuse import fused
from foretrace.inputs.script.recording import Group, IssuedCall, KernelLaunch, RankRecording
from foretrace.program.columns import ONE_TO_ONE, Collective

MAX_UNEVEN: Final = 64
"""The most ranks of a group with uneven experts that are each traced."""

UNEVEN: Final = 1.05
"""The ratio of the largest part of an all-to-all to the mean above which ranks are taken to differ."""


@dataclass(frozen=True, slots=True)
class TracedJob:
    """The recordings of a job's roles, and the ranks that each of them stands for."""

    recordings: tuple[RankRecording, ...]
    stands_for: tuple[tuple[int, ...], ...]
    diagnostics: tuple[Diagnostic, ...] = ()


def partners(recordings: Iterable[RankRecording]) -> set[int]:
    """Returns the traced ranks and those that must be traced with them."""
    ranks: set[int] = set()
    for recording in recordings:
        ranks.add(recording.rank)
        for event in recording.events:
            if isinstance(event, IssuedCall):
                ranks |= _partners_of(event, recording.groups[event.group])
    return ranks


def _partners_of(call: IssuedCall, group: Group) -> set[int]:
    """Returns the ranks whose behaviour a call shows to differ from this one's."""
    if call.collective in ONE_TO_ONE:
        peer = {call.peer} if call.peer >= 0 else set()
        return peer | set(call.receives_from) | {group.ranks[position] for position, _ in call.sends}
    sizes = [size for _, size in call.sends]
    uneven = call.collective is Collective.ALL_TO_ALL and max(sizes, default=0) > UNEVEN * sum(sizes) / len(group.ranks)
    return set(group.ranks) if uneven and len(group.ranks) <= MAX_UNEVEN else set()


def with_roles(recordings: tuple[RankRecording, ...], world: int) -> TracedJob:
    """Finds for which ranks each recording stands, and fuses compiled regions.

    Raises:
        InputError: The groups do not tell which traced rank each rank behaves as.
    """
    recordings = tuple(fused(recording) for recording in recordings)
    if len(recordings) == world:
        return TracedJob(recordings, tuple((recording.rank,) for recording in recordings))
    by_rank = {recording.rank: recording for recording in recordings}
    main = sorted(_reached(by_rank, min(by_rank)))
    role_of = _roles([by_rank[rank] for rank in main], world)
    notes = []
    for rank in by_rank.keys() - set(main):
        if same_behaviour(by_rank[rank], by_rank[int(role_of[rank])]):
            continue
        notes.append(_differing(rank, int(role_of[rank])))
        role_of[rank] = rank
    roles = sorted(set(role_of.tolist()))
    stands_for = tuple(tuple(np.flatnonzero(role_of == role).tolist()) for role in roles)
    text = f"{ranks_text(roles)} of {world:,} traced; each stands for the ranks at its position of their groups"
    notes.append(Diagnostic("note", "ranks-filled", text))
    return TracedJob(tuple(by_rank[role] for role in roles), stands_for, tuple(notes))


def _reached(by_rank: dict[int, RankRecording], first: int) -> set[int]:
    """Returns the traced ranks that belong together with the first."""
    reached, new = set(), {first}
    while new:
        reached |= new
        new = (partners(by_rank[rank] for rank in new) & by_rank.keys()) - reached
    return reached


def _roles(traced: Sequence[RankRecording], world: int) -> Longs:
    """Returns the traced rank that each rank behaves as, by its positions in the groups that distinguish them."""
    if len(traced) == 1:
        return np.full(world, traced[0].rank, dtype=np.int64)
    keys = np.zeros(world, dtype=np.int64)
    for group in _distinguishing_groups(traced):
        position = np.full(world, -1, dtype=np.int64)
        for members in group.all_groups:
            position[list(members)] = np.arange(len(members))
        keys = keys * (len(group.ranks) + 1) + position + 1
    role_of_key = {int(keys[recording.rank]): recording.rank for recording in traced}
    role_of = np.array([role_of_key.get(int(key), -1) for key in keys], dtype=np.int64)
    if len(role_of_key) < len(traced) or (role_of < 0).any():
        raise InputError(
            "roles-unknown",
            f"{len(traced)} ranks were traced, and which of them the other {world - len(traced):,} behave as does not "
            "follow from the script's groups",
            hint="name the ranks to trace, or trace all of them",
        )
    return role_of


def _distinguishing_groups(traced: Sequence[RankRecording]) -> Iterator[Group]:
    """Yields the groups within which the traced ranks differ, each of a kind once."""
    ranks = {recording.rank for recording in traced}
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for recording in traced:
        for event in recording.events:
            if not isinstance(event, IssuedCall) or not _partners_of(event, recording.groups[event.group]):
                continue
            group = recording.groups[event.group]
            if group.all_groups not in seen and len(set(group.ranks) & ranks) > 1:
                seen.add(group.all_groups)
                yield group


def same_behaviour(first: RankRecording, second: RankRecording) -> bool:
    """Returns whether two ranks issue the same ops and calls in their recorded steps, groups aside."""
    return _behaviour(first) == _behaviour(second)


def _behaviour(recording: RankRecording) -> list[object]:
    behaviour: list[object] = []
    for begin, end in recording.steps:
        for event in recording.events[begin:end]:
            if isinstance(event, KernelLaunch):
                signature = recording.signatures[event.signature]  # numbers such as offsets differ by rank
                behaviour.append((signature.op, signature.inputs.dims, signature.outputs, event.stream))
            elif isinstance(event, IssuedCall):
                behaviour.append((event.collective, event.bytes, event.dtype, recording.groups[event.group].axis))
    return behaviour


def _differing(rank: int, role: int) -> Diagnostic:
    text = (
        f"rank {rank} issues other ops or sizes than rank {role} at the same position (uneven shards, for example); it "
        f"has a role of its own, and ranks between them are taken to behave as rank {role}"
    )
    return Diagnostic("note", "ranks-differ", text)


def ranks_text(ranks: Sequence[int]) -> str:
    """Returns "rank 0", "ranks 0, 4", "ranks 0, 1, 2, 3, …"."""
    first = ", ".join(map(str, ranks[:4]))
    return f"rank{'s' if len(ranks) > 1 else ''} {first}{', …' if len(ranks) > 4 else ''}"
