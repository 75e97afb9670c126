"""Describes what one rank of a traced script issued, in the order of its host.

The tracer writes a `RankRecording` in the process that runs the script. Its readers need no PyTorch. Sizes are those
of the rank: shapes of its local tensors, bytes of its own calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.program.columns import Category, Collective, Phase

DEFAULT_STREAM = 0
"""The number of the stream on which work runs unless the script chooses another."""


class TensorShape(NamedTuple):
    """A tensor that an op returned. Its type has the name that PyTorch's profiler gives it."""

    dims: tuple[int, ...]
    type: str
    strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """An op with everything that decides what its kernels do. Many launches share a signature.

    Attributes:
        op: Its name: "aten::mm".
        inputs: Its inputs as PyTorch's profiler records them.
        outputs: The tensors that it returned.
    """

    op: str
    inputs: Inputs
    outputs: tuple[TensorShape, ...] = ()


class Place(NamedTuple):
    """The part of the step that an event belongs to.

    Attributes:
        phase: The part of the step: forward, backward, recompute, optimizer.
        module: The number of its module in `RankRecording.modules`; -1 outside modules.
        microbatch: How many backward passes of the step began before it, or began with it.
    """

    phase: Phase
    module: int
    microbatch: int


class HostEffort(NamedTuple):
    """What the host did between the event before and this one.

    Attributes:
        views: Ops that launch nothing: views, and ops that only read metadata.
        calls: Calls of Python functions by the script and by PyTorch.
    """

    views: int = 0
    calls: int = 0


class KernelLaunch(NamedTuple):
    """An op that runs kernels on a stream.

    Attributes:
        signature: The number of its signature in `RankRecording.signatures`.
        stream: The stream on which its kernels run.
        place: Where in the step it was issued.
        host: What the host did before.
        region: The number of the compiled region; 0 for eager ops.
        reads: The storages that it reads, by their number in `RankRecording.storages`. They are recorded in compiled
            regions only.
        writes: The storages that it writes, likewise.
    """

    signature: int
    stream: int
    place: Place
    host: HostEffort
    region: int = 0
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


class HostCopy(NamedTuple):
    """A copy between host and device memory. The host waits for the end of a blocking copy."""

    bytes: int
    to_host: bool
    blocking: bool
    stream: int
    place: Place
    host: HostEffort


class IssuedCall(NamedTuple):
    """A collective or a transfer.

    Attributes:
        collective: The operation.
        name: The function of torch.distributed: "all_gather_into_tensor".
        group: The number of its group in `RankRecording.groups`.
        bytes: Its bytes as `cost.network` counts them: the whole buffer, or what a rank gives to an all-to-all.
        dtype: The type of its elements, by the name that the profiler gives it.
        stream: The stream that was current when it was issued.
        own_stream: Whether it runs on the group's own stream (asynchronous calls), rather than on `stream`.
        place: Where in the step it was issued.
        host: What the host did before.
        sends: Pairs of a member's position in the group and the bytes to it: of an all-to-all where they differ, of an
            exchange for each rank that it sends to. Empty otherwise.
        peer: The global rank at the other end of a transfer, or the root of a broadcast, reduce, gather or scatter; -1
            otherwise.
        to_peer: Whether a transfer is sent, rather than received.
        receives_from: The global ranks from which an exchange receives.
        tag: The tag of a transfer.
        receives: Pairs of a member's position in the group and the bytes from it, of an all-to-all or an exchange where
            they are known. Empty otherwise.
    """

    collective: Collective
    name: str
    group: int
    bytes: int
    dtype: str
    stream: int
    own_stream: bool
    place: Place
    host: HostEffort
    sends: tuple[tuple[int, int], ...] = ()
    peer: int = -1
    to_peer: bool = False
    receives_from: tuple[int, ...] = ()
    tag: int = 0
    receives: tuple[tuple[int, int], ...] = ()


class CallWait(NamedTuple):
    """A wait of a stream, or of the host itself (`by_host`), for a call, given by the number of its event."""

    call: int
    stream: int
    by_host: bool = False


class StreamWait(NamedTuple):
    """A wait of what is issued to `stream` from now on for what was issued to `other` before the event `until`."""

    stream: int
    other: int
    until: int


class HostWait(NamedTuple):
    """A wait of the host for what was issued to `streams` (empty: to all streams) before the event `until`."""

    streams: tuple[int, ...]
    until: int
    reason: str
    """What made the host wait: "synchronize", "event"."""


Event: TypeAlias = KernelLaunch | HostCopy | IssuedCall | CallWait | StreamWait | HostWait
"""Events are numbered by their position in `RankRecording.events`."""


class StorageLife(NamedTuple):
    """Device memory from its allocation to its release.

    Both are the number of the next event. An op allocates its outputs before its own launch, so that `allocated` is the
    number of that launch. Memory that an op needs only while it runs is also released at that number. Between two
    events, releases come before allocations.

    Attributes:
        bytes: Its size as PyTorch asks for it.
        allocated: The event before which it was allocated; -1 if that was before the first event.
        released: The event before which it was released; -1 if it was not released.
        category: What it holds.
    """

    bytes: int
    allocated: int
    released: int
    category: Category


@dataclass(frozen=True, slots=True)
class Group:
    """A process group that the traced rank is in.

    Attributes:
        axis: The name of its axis, as the script's mesh or group description has it, else "world" or "group N".
        ranks: Its ranks, in order.
        all_groups: All groups that were made together with it, itself included. They share no rank.
    """

    axis: str
    ranks: tuple[int, ...]
    all_groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RankRecording:
    """What a rank of a script issued.

    Attributes:
        rank: The rank that was traced.
        world: Ranks of the job.
        events: Everything in the order in which the host issued it.
        steps: The first and the last event, exclusive, of each recorded step.
        first_step: The number of the first recorded step, from 0.
        signatures: Ops, which launches refer to by number.
        modules: Paths of modules: "layers.0.attention".
        groups: Process groups that calls refer to.
        streams: Names of streams; the first is the default one.
        storages: Device memory.
        parameters: Elements of the parameters of this rank that its optimizers update.
        whole_parameters: Elements of the same parameters before they were divided among ranks.
        tokens: Tokens of this rank in a step: the integers that are the input of its model. 0 where it has none.
        torch_version: The version of PyTorch that ran the script.
        diagnostics: What was assumed, replaced or left out.
    """

    rank: int
    world: int
    events: list[Event]
    steps: list[tuple[int, int]]
    first_step: int
    signatures: list[Signature]
    modules: list[str]
    groups: list[Group]
    streams: list[str]
    storages: list[StorageLife]
    parameters: int = 0
    whole_parameters: int = 0
    tokens: int = 0
    torch_version: str = ""
    diagnostics: list[Diagnostic] = field(default_factory=list)
