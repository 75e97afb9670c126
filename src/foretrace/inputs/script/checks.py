"""Checks recordings for mistakes of the tracer or the script that would make the predicted time wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod
from typing import Final, NamedTuple

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.script.kernels import kernels_of_signature
from foretrace.inputs.script.memory import is_held, peak_bytes, rounded_bytes
from foretrace.inputs.script.recording import (
    CallWait,
    Group,
    HostWait,
    IssuedCall,
    KernelLaunch,
    Place,
    RankRecording,
)
from foretrace.inputs.script.window import StepWindow, window_of
from foretrace.inputs.torch_ops.kinds import plain_name
from foretrace.program.columns import ONE_TO_ONE, Category, Collective, Phase, label
from foretrace.program.kernels import Gemm, GroupedGemm

_BACKWARD: Final = (Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)

MAX_GROWTH: Final = 0.01
"""The share of the peak by which memory may grow over a step, as for losses that a script keeps."""

_KEPT: Final = (Category.GRADIENTS, Category.OPTIMIZER, Category.WEIGHTS)
"""Categories that the first step allocates and later steps keep."""

MIN_FORWARD_SHARE: Final = 0.5
"""The least share of 2·N·D, the operations of N parameters for D tokens, that a forward computes. N is without the
tables of embeddings. Less than all is computed, since biases, norms and position embeddings multiply nothing."""

BACKWARD_RATIO: Final = (1.8, 3.2)
"""Operations of the backward over those of the forward: two products for each of the forward's. The first layer has no
input gradient, so that its share of the forward is taken off the lower bound. Frozen parameters have no weight
gradient: the lower bound is for models that train at least `MIN_TRAINED` of what they compute."""
MIN_TRAINED: Final = 0.5

_ROUTED: Final = ("topk", "grouped_mm", "scaled_grouped_mm", "bincount", "histc")
"""Ops of a mixture of experts, where a token uses only a part of the parameters."""


CHECKS: Final = {
    "missing-backward": "a backward for every forward that is trained",
    "call-not-awaited": "a wait for every asynchronous collective",
    "rendezvous-mismatch": "the same calls and bytes on all traced ranks of a group",
    "implausible-flops": "operations as parameters and tokens need, twice as many backward",
    "memory-imbalance": "memory at the end of a step as at its start",
}
"""What `check_recordings` looks at, by the code of the error or warning where it fails."""


def check_recordings(recordings: Sequence[RankRecording]) -> list[Diagnostic]:
    """Checks recordings of ranks of one job, and returns warnings.

    Raises:
        InputError: A step has no backward, a call is never waited for, or ranks of a group do not make the same calls.
    """
    warnings: list[Diagnostic] = []
    for recording in recordings:
        window = window_of(recording)
        _check_phases(recording, window)
        _check_waits(recording, window)
        warnings += [*_flops_warnings(recording, window), *_memory_warnings(recording, window)]
    for first, second in combinations(recordings, 2):
        _check_meetings(first, second)
    return warnings


def place_text(recording: RankRecording, place: Place | None) -> str:
    """Returns the place of an event for messages: its rank, and its module where it has one."""
    if place is None or place.module < 0:
        return f"rank {recording.rank}"
    return f"rank {recording.rank}, module {recording.modules[place.module]}"


def _check_phases(recording: RankRecording, window: StepWindow) -> None:
    """Raises an error for a step that computes a forward and updates parameters without a backward."""
    events = recording.events[window.first : window.end]
    phases = {event.place.phase for event in events if isinstance(event, KernelLaunch)}
    if Phase.FORWARD in phases and Phase.OPTIMIZER in phases and not phases.intersection(_BACKWARD):
        problem = "the step computes a forward and updates parameters, but has no backward"
        hint = "the backward must run in the same process, under torch.autograd"
        raise InputError("missing-backward", problem, where=place_text(recording, None), hint=hint)


def _check_waits(recording: RankRecording, window: StepWindow) -> None:
    """Raises an error for an asynchronous call that nothing waits for, in its step or in the next."""
    events = recording.events
    awaited = {event.call for event in events if isinstance(event, CallWait)}
    last_for_all = max(
        (event.until for event in events if isinstance(event, HostWait) and not event.streams), default=-1
    )
    for number in range(window.first, window.end):
        call = events[number]
        if not isinstance(call, IssuedCall) or not call.own_stream or len(recording.groups[call.group].ranks) == 1:
            continue
        if number in awaited or number - window.period in awaited or number < last_for_all:
            continue
        problem = f"nothing waits for the asynchronous {call.name} of {call.bytes:,} bytes"
        hint = "call wait() on the work that it returns"
        raise InputError("call-not-awaited", problem, where=place_text(recording, call.place), hint=hint)


class _StepFlops(NamedTuple):
    """The operations of linear layers in a step, and the largest product of the forward."""

    forward: float
    backward: float
    largest: float
    recomputes: bool


def _flops_warnings(recording: RankRecording, window: StepWindow) -> Iterator[Diagnostic]:
    """Yields warnings about products that do not fit the parameters and tokens of a step, or each other."""
    flops = _step_flops(recording, window)
    used = _used_signatures(recording, window)
    routed = any(plain_name(recording.signatures[number].op) in _ROUTED for number in used)
    where = place_text(recording, None)
    computing = recording.parameters - _table_elements(recording, used)
    expected = 2.0 * computing * recording.tokens * window.steps
    if 0 < flops.forward < MIN_FORWARD_SHARE * expected and not routed:
        text = (
            f"the forward multiplies {flops.forward:.3g} FLOP, far below 2·N·D = {expected:.3g} of {computing:,} "
            f"parameters and {recording.tokens:,} tokens: layers may be missing"
        )
        yield Diagnostic("warning", "implausible-flops", text, where)
    if not flops.forward or not flops.backward or flops.recomputes:
        return
    ratio = flops.backward / flops.forward
    low, high = BACKWARD_RATIO
    trained = 2.0 * max(recording.whole_parameters, recording.parameters) * recording.tokens * window.steps
    trains_all = trained >= MIN_TRAINED * flops.forward
    if ratio > high or (trains_all and ratio < low - flops.largest / flops.forward):
        text = f"the backward multiplies {ratio:.2f} times as much as the forward; {low:g} to {high:g} is usual"
        yield Diagnostic("warning", "implausible-flops", text, where)


def _step_flops(recording: RankRecording, window: StepWindow) -> _StepFlops:
    """Returns the operations of linear layers by phase; batched products are those of attention and left out."""
    own = [
        sum(
            count * kernel.flops
            for count, kernel in kernels_of_signature(signature)
            if isinstance(kernel, GroupedGemm) or (isinstance(kernel, Gemm) and kernel.batch == 1)
        )
        for signature in recording.signatures
    ]
    forward = backward = largest = 0.0
    recomputes = False
    for event in recording.events[window.first : window.end]:
        if not isinstance(event, KernelLaunch):
            continue
        if event.place.phase is Phase.FORWARD:
            forward += own[event.signature]
            largest = max(largest, own[event.signature])
        elif event.place.phase in _BACKWARD:
            backward += own[event.signature]
        recomputes |= event.place.phase is Phase.RECOMPUTE
    return _StepFlops(forward, backward, largest, recomputes)


def _used_signatures(recording: RankRecording, window: StepWindow) -> set[int]:
    events = recording.events[window.first : window.end]
    return {event.signature for event in events if isinstance(event, KernelLaunch)}


def _table_elements(recording: RankRecording, used: set[int]) -> int:
    """Returns the elements of the tables of embeddings, which a forward looks up and does not multiply."""
    tables = set()
    for number in used:
        signature = recording.signatures[number]
        if plain_name(signature.op) == "embedding" and signature.inputs.dims:
            tables.add(tuple(size for size in signature.inputs.dims[0] if isinstance(size, int)))
    return sum(map(prod, tables))


def _memory_warnings(recording: RankRecording, window: StepWindow) -> Iterator[Diagnostic]:
    """Yields a warning where memory grows over a step by more than what a first step keeps."""
    grown: dict[Category, int] = {}
    for storage in recording.storages:
        if storage.category in _KEPT:
            continue
        change = is_held(storage, window.end) - is_held(storage, window.first)
        grown[storage.category] = grown.get(storage.category, 0) + change * rounded_bytes(storage)
    total, peak = sum(grown.values()), peak_bytes(recording)
    if total > MAX_GROWTH * peak:
        most = max(grown, key=lambda category: grown[category])
        text = (
            f"a step keeps {total:,} bytes that it did not hold before, most of them {label(most)}; its peak is "
            f"{peak:,} bytes"
        )
        yield Diagnostic("warning", "memory-imbalance", text, place_text(recording, None))


def _check_meetings(first: RankRecording, second: RankRecording) -> None:
    """Raises an error if two ranks make different calls in a group that both are in."""
    for own_number, other_number in _shared_groups(first, second):
        ours, theirs = _calls(first, own_number), _calls(second, other_number)
        group = first.groups[own_number]
        if len(ours) != len(theirs):
            longer, calls = (first, ours) if len(ours) > len(theirs) else (second, theirs)
            problem = (
                f"rank {first.rank} calls {len(ours)} collectives in {_group_text(group)}, rank {second.rank} "
                f"{len(theirs)}"
            )
            place = calls[min(len(ours), len(theirs))].place
            raise InputError("rendezvous-mismatch", problem, where=place_text(longer, place))
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            _check_pair(number, (first, mine), (second, other), group)


def _check_pair(
    number: int, first: tuple[RankRecording, IssuedCall], second: tuple[RankRecording, IssuedCall], group: Group
) -> None:
    """Raises an error where the n-th calls of two ranks in a group differ in what they do or in their bytes."""
    (recording, mine), (other_recording, other) = first, second
    if mine.collective is not other.collective:
        matches = False
    elif mine.collective is Collective.ALL_TO_ALL:
        ends = group.ranks.index(recording.rank), group.ranks.index(other_recording.rank)
        matches = _arrives(mine, other, *ends) and _arrives(other, mine, *reversed(ends))
    else:
        matches = mine.bytes == other.bytes
    if matches:
        return
    problem = (
        f"call {number} in {_group_text(group)} is {mine.name} of {mine.bytes:,} bytes on rank {recording.rank}, "
        f"{other.name} of {other.bytes:,} bytes on rank {other_recording.rank}"
    )
    raise InputError("rendezvous-mismatch", problem, where=place_text(other_recording, other.place))


def _arrives(sent: IssuedCall, received: IssuedCall, sender: int, receiver: int) -> bool:
    """Whether a member of an all-to-all receives the bytes that another sends to it, or one of these is not known."""
    given, arriving = dict(sent.sends).get(receiver), dict(received.receives).get(sender)
    return given is None or arriving is None or given == arriving


def _shared_groups(first: RankRecording, second: RankRecording) -> list[tuple[int, int]]:
    """Returns the numbers of the groups that both ranks are in. Groups of the same ranks pair in their order."""
    numbers: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for number, group in enumerate(second.groups):
        numbers.setdefault((group.axis, group.ranks), []).append(number)
    shared = []
    for number, group in enumerate(first.groups):
        same = numbers.get((group.axis, group.ranks))
        if same:
            shared.append((number, same.pop(0)))
    return shared


def _calls(recording: RankRecording, group: int) -> list[IssuedCall]:
    """Returns the collectives of the step in a group; transfers meet by sender and receiver instead."""
    window = window_of(recording)
    events = recording.events[window.first : window.end]
    calls = [event for event in events if isinstance(event, IssuedCall)]
    return [call for call in calls if call.group == group and call.collective not in ONE_TO_ONE]


def _group_text(group: Group) -> str:
    ranks = ", ".join(map(str, group.ranks[:8]))
    return f'group "{group.axis}" (ranks {ranks}{", …" if len(group.ranks) > 8 else ""})'
