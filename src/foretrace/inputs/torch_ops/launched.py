"""Tells what every device event of a profiler trace computed or moved, where names and shapes say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.inputs.profiler_trace.format.records import EventCategory, RankProfile
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.torch_ops.kinds import plain_name
from foretrace.inputs.torch_ops.lists import list_kernels
from foretrace.inputs.torch_ops.multi_tensor import list_stream
from foretrace.inputs.torch_ops.parameters import ACCUMULATE, Parameters, parameters
from foretrace.inputs.torch_ops.shapes import kernel_of
from foretrace.inputs.torch_ops.tensors import tensors
from foretrace.program.kernels import DTYPE_BYTES, Attention, Copy, Gemm, GroupedGemm, Kernel, Stream

WIDE: Final = 4
"""Bytes of an fp32 element, in which partial sums are kept."""

MIN_PARTS: Final = 2
"""Parts into which a split-K product is taken to cut K: the name of its kernel does not tell the number."""


def device_kernels(trace: RankProfile, links: EventLinks) -> dict[int, Kernel]:
    """For everything in a trace that ran on a device, by the number of its event, what it computed or moved; what names
    and shapes do not tell is not there."""
    finder = _Finder(trace, links)
    events = trace.events
    for event in events.of(EventCategory.MEMCPY).tolist():
        finder.memcpy(event)
    kernels = events.of(EventCategory.KERNEL)
    # The kernels that are left of an op do not tell which of them does its work.
    incomplete = np.isin(links.op[kernels], links.op[links.lost_launches])
    kernels = kernels[(links.op[kernels] >= 0) & ~incomplete]
    order = kernels[np.argsort(links.op[kernels], kind="stable")]
    ends = np.flatnonzero(np.diff(links.op[order])) + 1
    for group in np.split(order, ends) if len(order) else ():
        finder.op(int(links.op[group[0]]), group)
    finder.lists()
    for event in events.of(EventCategory.MEMSET).tolist():
        finder.memset(event)
    return finder.of_event


class _Finder:
    """Finds kernels op by op; ops over lists of unknown size wait until all are seen."""

    def __init__(self, trace: RankProfile, links: EventLinks) -> None:
        self.of_event: dict[int, Kernel] = {}
        self._trace, self._links = trace, links
        self._parameters: Parameters = parameters(trace)
        self._known: dict[tuple[int, int, int], Kernel | None] = {}
        self._of_op: dict[int, Kernel] = {}
        self._lists: dict[str, list[Longs]] = {}
        self._accumulating = _under(links, trace, ACCUMULATE)

    def op(self, op: int, launches: Longs) -> None:
        """The kernels that one op launched."""
        events = self._trace.events
        seconds: Floats = events.duration_s[launches]
        kernel = self._kernel(op, int(launches[seconds.argmax()]))
        if kernel is None:
            word = plain_name(self._trace.strings[events.name[op]])
            if list_stream(word, 1, 2) is not None:
                self._lists.setdefault(word, []).append(launches)
            return
        if isinstance(kernel, Stream) and self._accumulating[op]:
            kernel = replace(kernel, fixed=kernel.read + kernel.write)
        self._add(op, kernel, launches)

    def lists(self) -> None:
        """Ops over lists, whose sizes a trace does not hold."""
        for launches, kernel in list_kernels(self._trace, self._parameters, self._lists):
            self._add(int(self._links.op[launches[0]]), kernel, launches)

    def memcpy(self, event: int) -> None:
        """A copy, by its direction and bytes."""
        events = self._trace.events
        name, size = self._trace.strings[events.name[event]], int(events.bytes[event])
        if size < 0:
            return
        if "HtoD" in name or "HostToDevice" in name:
            self.of_event[event] = Copy(size, "gpu")
        elif "DtoH" in name or "DeviceToHost" in name:
            self.of_event[event] = Copy(size, "host")
        elif "DtoD" in name or "DeviceToDevice" in name:
            self.of_event[event] = Stream("copy", size, size)

    def memset(self, event: int) -> None:
        """A memset; what a product's library clears is a workspace, whatever the samples."""
        size = int(self._trace.events.bytes[event])
        if size >= 0:
            workspace = isinstance(self._of_op.get(int(self._links.op[event])), Gemm | GroupedGemm)
            self.of_event[event] = Stream("zero", 0, size, fixed=size if workspace else 0)

    def _add(self, op: int, kernel: Kernel, launches: Longs) -> None:
        events = self._trace.events
        seconds = events.duration_s[launches].tolist()
        self._of_op[op] = kernel
        for event, part in zip(launches.tolist(), parts(kernel, self._trace.names(launches), seconds), strict=True):
            if part is not None:
                self.of_event[event] = part

    def _kernel(self, op: int, main: int) -> Kernel | None:
        events = self._trace.events
        key = (int(events.name[op]), int(events.inputs[op]), int(events.name[main]))
        if key not in self._known:
            self._known[key] = None if key[1] < 0 else self._read_kernel(*key)
        return self._known[key]

    def _read_kernel(self, op: int, number: int, main: int) -> Kernel | None:
        trace = self._trace
        inputs = trace.inputs[number]
        kernel = kernel_of(trace.strings[op], inputs, trace.strings[main])
        if isinstance(kernel, Stream) and not kernel.fixed:
            given = [tensor for tensor in tensors(inputs) if tensor is not None]
            if self._parameters.holds_all(given):
                return replace(kernel, fixed=kernel.read + kernel.write)
        return kernel


def _under(links: EventLinks, trace: RankProfile, name: str) -> Mask:
    """Which events ran under an op of this name, at most a few ops down."""
    named = trace.named(name.__eq__) & (trace.events.category == EventCategory.CPU_OP)
    at, under = links.op, np.zeros(len(trace.events), dtype=bool)
    for _ in range(4):
        under |= (at >= 0) & named[at]
        at = np.where(at >= 0, links.op[at], -1)
    return under


def parts(kernel: Kernel, names: Sequence[str], seconds: Sequence[float]) -> list[Kernel | None]:
    """Returns what each launch of an op does, by the name of its kernel; None where the name tells nothing.

    The bytes of a stream are divided by the time of each launch. Otherwise the longest launch is the op itself.
    """
    if len(names) == 1:
        return [kernel]
    if isinstance(kernel, Stream):
        total = sum(seconds) or 1.0
        return [_share(kernel, second / total) for second in seconds]
    main = max(range(len(names)), key=lambda i: seconds[i])
    return [kernel if i == main else _beside(kernel, name) for i, name in enumerate(names)]


def _share(kernel: Stream, share: float) -> Stream:
    read, write, fixed = (round(size * share) for size in (kernel.read, kernel.write, kernel.fixed))
    return replace(kernel, read=read, write=write, launches=1, fixed=min(fixed, read + write))


def _beside(kernel: Kernel, name: str) -> Kernel | None:
    if isinstance(kernel, Gemm) and "splitK" in name:
        result = kernel.batch * kernel.m * kernel.n
        return Stream("gemm_split_k", MIN_PARTS * WIDE * result, int(DTYPE_BYTES[kernel.out] * result))
    if not isinstance(kernel, Attention):
        return None
    size = DTYPE_BYTES[kernel.dtype]
    rows = kernel.batch * kernel.heads * kernel.q
    if "dot_do_o" in name:
        return Stream("attention_dot", int(2 * size * rows * kernel.v_dim), WIDE * rows)
    if "convert_dq" in name or "convert_dkv" in name:
        return Stream("attention_convert", WIDE * rows * kernel.head_dim, int(size * rows * kernel.head_dim))
    if "reduce_head" in name:
        keys = kernel.batch * kernel.kv * kernel.head_dim * size
        return Stream("attention_reduce", int(keys * kernel.heads), int(keys * kernel.kv_heads))
    return None
