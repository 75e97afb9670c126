"""The collectives of a recording in the form in which real processes log theirs."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.inputs.script.recording import IssuedCall, RankRecording
from foretrace.program.columns import Collective
from tests.real_collectives import Logged


def traced_calls(recording: RankRecording) -> list[Logged]:
    """Returns the collectives of the last recorded step, in the order in which they were issued."""
    begin, end = recording.steps[-1]
    return [
        logged
        for event in recording.events[begin:end]
        if isinstance(event, IssuedCall)
        for logged in _of(recording, event)
    ]


def _of(recording: RankRecording, call: IssuedCall) -> Iterator[Logged]:
    """Yields a call; gloo has no exchange, of which it sends and receives every part by itself."""
    ranks = recording.groups[call.group].ranks
    if call.collective is Collective.TRANSFER:
        yield "SEND" if call.to_peer else "RECEIVE", ranks, call.bytes, call.peer
    elif call.collective is Collective.EXCHANGE:
        yield from (("SEND", ranks, size, ranks[position]) for position, size in call.sends)
        # All transfers of a pipeline's exchange have one size.
        yield from (("RECEIVE", ranks, call.bytes, peer) for peer in call.receives_from)
    else:
        yield call.collective.name, ranks, call.bytes, -1


def without_splits(calls: list[Logged]) -> list[Logged]:
    """Returns collectives without the bytes of all-to-alls, which depend on how tokens choose experts."""
    return [(kind, ranks, 0 if kind == "ALL_TO_ALL" else size, peer) for kind, ranks, size, peer in calls]
