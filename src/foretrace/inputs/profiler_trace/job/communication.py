"""Reads what communication kernels of a trace do: the collective, its bytes, and the group it runs in.

Recent traces state it in the kernel's arguments, or in those of the `record_param_comms` around its launch. In older
traces the kernel's name gives the collective, and the range `nccl:…` around the launch the size of its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from foretrace.inputs.profiler_trace.format.records import CollectiveArguments, EventCategory, Inputs, RankProfile
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.torch_ops.collectives import collective_of
from foretrace.inputs.torch_ops.kinds import communicates
from foretrace.inputs.torch_ops.tensors import ELEMENT_BYTES, tensors
from foretrace.program.columns import Collective

UNKNOWN_BYTES: Final = -1

_C10_NAMES: Final = {
    "BFloat16": 2, "Half": 2, "Float": 4, "Double": 8, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
"""Bytes of an element by c10's name of its type, which communications are recorded with."""

_NOT_SENT: Final = ("wait", "init", "coalesced", "start_coalescing", "end_coalescing")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group: its name, its ranks (() where not recorded), what it was made for, and its size (or -1)."""

    name: str = ""
    ranks: tuple[int, ...] = ()
    description: str = ""
    size: int = -1


@dataclass(frozen=True, slots=True)
class RecordedCommunication:
    """The communication of a kernel.

    `bytes` are counted as in `cost.network`, -1 where not recorded. `sends` are the bytes to each member of the group
    where they differ. `peer` is the other rank of a transfer (or -1), and `to_peer` tells which way it goes.
    """

    collective: Collective
    bytes: int
    group: ProcessGroup
    name: str
    dtype: str = ""
    sends: tuple[int, ...] = ()
    peer: int = -1
    to_peer: bool = False


def communications(trace: RankProfile, links: EventLinks) -> dict[int, RecordedCommunication]:
    """Returns the communication of each kernel that communicates, by the number of its event."""
    events = trace.events
    kernels = (events.category == EventCategory.KERNEL) & (trace.named(communicates) | (events.call >= 0))
    return {event: _of_kernel(trace, links, event) for event in np.flatnonzero(kernels).tolist()}


def _of_kernel(trace: RankProfile, links: EventLinks, event: int) -> RecordedCommunication:
    name = trace.strings[trace.events.name[event]]
    call = _call_of(trace, links, event)
    if call is not None:
        return from_call(call, trace, name)
    around = _range_around(trace, links, event)
    label, inputs = around or (name, None)
    what = collective_of(label) or collective_of(name)
    local = _input_bytes(inputs)
    world = trace.world or -1
    full = local
    if what is Collective.ALL_GATHER and local > 0:
        full = local * world if world > 0 else UNKNOWN_BYTES
    return RecordedCommunication(what or Collective.BARRIER, full, ProcessGroup(size=world), label)


def _call_of(trace: RankProfile, links: EventLinks, event: int) -> CollectiveArguments | None:
    """Returns the arguments of a kernel, or of the op that launched it."""
    at = event
    while at >= 0:
        number = int(trace.events.call[at])
        if number >= 0 and trace.calls[number].name not in _NOT_SENT:
            return trace.calls[number]
        at = int(links.op[at])
    return None


def _range_around(trace: RankProfile, links: EventLinks, event: int) -> tuple[str, Inputs | None] | None:
    for at in links.chain(event):
        name = trace.strings[trace.events.name[at]]
        if name.startswith("nccl:"):
            number = trace.events.inputs[at]
            return name, trace.inputs[number] if number >= 0 else None
    return None


def from_call(call: CollectiveArguments, trace: RankProfile, kernel: str = "") -> RecordedCommunication:
    """Returns the communication that a call's arguments describe, with its group as the trace has it."""
    what = collective_of(call.name) or collective_of(kernel) or Collective.BARRIER
    ranks = call.ranks or trace.groups.get(call.group, ())
    description = call.description or trace.descriptions.get(call.group, "")
    size = call.group_size if call.group_size > 0 else len(ranks) or -1
    element = element_bytes(call.dtype)
    elements = _whole_elements(what, call, size)
    total = UNKNOWN_BYTES if elements < 0 or element is None else elements * element
    return RecordedCommunication(
        collective=what,
        bytes=total,
        group=ProcessGroup(call.group, ranks, description, size),
        name=call.name,
        dtype=call.dtype,
        sends=_sends(call, total, size) if what is Collective.ALL_TO_ALL else (),
        peer=call.peer if what is Collective.TRANSFER else -1,
        to_peer="send" in call.name,
    )


def _whole_elements(what: Collective, call: CollectiveArguments, size: int) -> int:
    """Returns the elements that `cost.network` counts: the whole buffer, or what a rank gives to an all-to-all."""
    here, there = call.in_elements, call.out_elements
    if what is Collective.ALL_TO_ALL:
        return here if here >= 0 else there
    whole = max(here, there)
    part = min(here, there) if min(here, there) > 0 else whole
    gathers = what in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.GATHER, Collective.SCATTER)
    if gathers and whole > 0 and part == whole and size > 1:
        return whole * size  # only the shard was recorded
    return whole


def _sends(call: CollectiveArguments, total: int, size: int) -> tuple[int, ...]:
    """Returns the bytes to each member, where they differ."""
    rows = sum(call.in_split)
    if len(call.in_split) != size or rows <= 0 or total <= 0 or len(set(call.in_split)) == 1:
        return ()
    return tuple(total * part // rows for part in call.in_split)


def element_bytes(dtype: str) -> int | None:
    """Returns bytes of an element, by c10's or the profiler's name of its type."""
    if dtype.startswith(("Float8", "Float4")):
        return 1
    return _C10_NAMES.get(dtype, ELEMENT_BYTES.get(dtype))


def _input_bytes(inputs: Inputs | None) -> int:
    """Returns the bytes of the inputs that a range states."""
    operands = [tensor for tensor in tensors(inputs) if tensor is not None] if inputs is not None else []
    sizes = [prod(tensor.dims) * tensor.size for tensor in operands if tensor.dims]
    return sum(sizes) if sizes else UNKNOWN_BYTES
