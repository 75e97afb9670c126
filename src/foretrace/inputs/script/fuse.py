"""Fuses the ops of compiled regions as PyTorch's Inductor does, before a recording is written as a program.

The model: products, attention, convolutions and ops that scatter or sort stay as they are. All others fuse. Ops of one
phase belong to one kernel where they follow the same number of kept ops, and one reads what another writes or, over as
many elements, what it reads. A kernel reads each storage that it does not make once, and writes what others read. Ops
that compute the same from the same inputs run once. The backward recomputes what the forward would keep only for it,
unless that is much smaller than what it is computed from (min-cut partitioning, functorch's partitioners.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Final

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.script.recording import (
    CallWait,
    Event,
    HostEffort,
    HostWait,
    KernelLaunch,
    RankRecording,
    Signature,
    StorageLife,
    StreamWait,
    TensorShape,
)
from foretrace.inputs.torch_ops.fused_attention import SIGNATURES
from foretrace.inputs.torch_ops.kinds import plain_name
from foretrace.inputs.torch_ops.products import CONVOLUTIONS, FACTORS
from foretrace.inputs.torch_ops.streams import is_stream
from foretrace.inputs.torch_ops.tensors import Tensor, tensors
from foretrace.program.columns import Phase

KEPT: Final = frozenset(
    [
        "embedding_dense_backward",
        "scatter",
        "scatter_add",
        "index_put",
        "index_put_impl",
        "unsafe_index_put",
        "index_add",
        "sort",
        "argsort",
        "topk",
        "grouped_mm",
        "scaled_grouped_mm",
        "nonzero",
    ]
)
"""Ops besides products, attention and convolutions that Inductor does not fuse with others."""

GATHERS: Final = frozenset(("embedding", "index", "index_select", "gather"))
"""Ops that read as much of their first input as they return."""

RANDOM: Final = frozenset(
    ("native_dropout", "dropout", "bernoulli", "rand", "rand_like", "randn", "randn_like", "uniform", "normal")
)
"""Ops whose results differ from run to run."""

LONG_ROWS: Final = frozenset(("log_softmax", "log_softmax_backward_data", "softmax", "softmax_backward_data"))

MAX_PERSISTENT: Final = 1024
"""Elements of a row that a kernel of Inductor keeps in registers. It loops over longer rows."""

FUSED: Final = "triton_fused"
FUSED_SOFTMAX: Final = "triton_softmax_fused"
"""The ops that stand for kernels that Inductor writes."""

MAX_KEPT_SHARE: Final = 0.25
"""A result that has at most this share of the bytes that it is computed from is kept for the backward."""


@dataclass(slots=True)
class _Op:
    """A launch of a compiled region: what it reads and writes, and how many kept ops come before it on its longest
    path."""

    number: int
    launch: KernelLaunch
    signature: Signature
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    level: int = 0

    @property
    def is_kept(self) -> bool:
        word = plain_name(self.signature.op)
        products = word in FACTORS or word in SIGNATURES or word in CONVOLUTIONS or word in KEPT
        return products or not is_stream(word)

    @property
    def is_repeatable(self) -> bool:
        """Whether it returns the same result for the same inputs, and changes none of them."""
        changes = set(self.reads) & set(self.writes)
        return not self.is_kept and not changes and plain_name(self.signature.op) not in RANDOM

    @property
    def key(self) -> tuple[int, bool, int]:
        """The region, the phase and the level; only ops of one key fuse."""
        return self.launch.region, self.launch.place.phase is Phase.FORWARD, self.level

    @property
    def elements(self) -> int:
        return max((prod(output.dims) for output in self.signature.outputs), default=0)


@dataclass(slots=True)
class _Kernel:
    """Ops that fuse. The launch of the last one becomes that of the kernel."""

    ops: list[_Op]
    reads: dict[int, int] = field(default_factory=dict)
    writes: dict[int, int] = field(default_factory=dict)

    @property
    def made(self) -> set[int]:
        return {storage for op in self.ops for storage in op.writes}


def fused(recording: RankRecording) -> RankRecording:
    """Returns a recording with the kernels of its compiled regions; the same one where nothing is left to fuse."""
    if any(signature.op in (FUSED, FUSED_SOFTMAX) for signature in recording.signatures):
        return recording
    if not any(isinstance(event, KernelLaunch) and event.region for event in recording.events):
        return recording
    return _Fusion(recording).result()


class _Fusion:
    """Fuses the ops of the compiled regions of a recording, one step after another."""

    def __init__(self, recording: RankRecording) -> None:
        self._recording = recording
        self._same: dict[int, int] = {}
        self._dropped: set[int] = set()
        self._removed: set[int] = set()
        self._needed_until: dict[int, int] = {}
        self._overwritten: dict[int, int] = {}
        self._events: dict[int, Event] = {}
        self._signatures = list(recording.signatures)
        self._number_of: dict[Signature, int] = {}

    def result(self) -> RankRecording:
        """Returns the fused recording."""
        bounds = sorted({0, len(self._recording.events), *(bound for step in self._recording.steps for bound in step)})
        for first, end in pairwise(bounds):
            self._fuse(self._ops(first, end))
        return self._renumbered()

    def _ops(self, first: int, end: int) -> list[_Op]:
        """Returns the ops of regions that differ from those before."""
        ops: list[_Op] = []
        known: dict[tuple[object, ...], _Op] = {}
        writes: dict[int, int] = defaultdict(int)
        for number in range(first, end):
            event = self._recording.events[number]
            if not isinstance(event, KernelLaunch) or not event.region:
                if isinstance(event, KernelLaunch):
                    known.clear()  # what it writes is not recorded
                continue
            signature = self._recording.signatures[event.signature]
            reads = tuple(dict.fromkeys(self._same.get(storage, storage) for storage in event.reads))
            op = _Op(number, event, signature, reads, event.writes)
            versions = tuple(writes[storage] for storage in reads)
            key = (event.signature, reads, versions, event.place.phase, event.region)
            twin = known.get(key)
            if twin is not None and op.is_repeatable:
                self._same.update(zip(event.writes, twin.writes, strict=False))
                for storage, own in zip(event.writes, twin.writes, strict=False):
                    self._outlive(own, self._recording.storages[storage].released)
                self._dropped.update(event.writes)
                self._removed.add(number)
                continue
            known[key] = op
            for storage in event.writes:
                writes[storage] += 1
            ops.append(op)
        return ops

    def _fuse(self, ops: list[_Op]) -> None:
        level_of: dict[int, int] = defaultdict(int)
        for op in ops:
            op.level = max((level_of[storage] for storage in op.reads), default=0)
            for storage in op.writes:
                level_of[storage] = op.level + op.is_kept
        _sink(ops)
        kernels = _connected([op for op in ops if not op.is_kept])
        self._choose(ops, kernels)
        for kernel in kernels:
            self._write(kernel)
        for op in ops:
            if op.is_kept:
                self._events[op.number] = op.launch._replace(host=HostEffort())

    def _choose(self, ops: Sequence[_Op], kernels: Sequence[_Kernel]) -> None:
        """Finds what each kernel reads and writes."""
        readers: dict[int, list[_Op]] = defaultdict(list)
        for op in ops:
            for storage in op.reads:
                readers[storage].append(op)
        kernel_of = {op.number: kernel for kernel in kernels for op in kernel.ops}
        recomputed: dict[int, _Kernel] = {}
        for kernel in kernels:
            for storage in sorted(kernel.made):
                others = [op for op in readers[storage] if kernel_of.get(op.number) is not kernel]
                if not others and readers[storage]:
                    self._dropped.add(storage)
                elif others and self._is_large(storage, kernel) and all(_recomputes(op, kernel) for op in others):
                    self._dropped.add(storage)
                    recomputed[storage] = kernel
                else:
                    kernel.writes[storage] = self._bytes(storage)
        for kernel in kernels:
            for op in kernel.ops:
                self._read(kernel, op, op.reads, recomputed)

    def _is_large(self, storage: int, kernel: _Kernel) -> bool:
        sources = sum(min(self._bytes(source), _largest(op)) for op in kernel.ops for source in op.reads)
        return self._bytes(storage) > MAX_KEPT_SHARE * sources / max(len(kernel.ops), 1)

    def _read(self, kernel: _Kernel, op: _Op, storages: Iterable[int], recomputed: Mapping[int, _Kernel]) -> None:
        made = kernel.made
        for storage in storages:
            if storage in made:
                continue
            maker = recomputed.get(storage)
            if maker is not None and maker is not kernel:
                for source in maker.ops:
                    self._read(kernel, source, (s for s in source.reads if s not in maker.made), recomputed)
                continue
            size = min(self._bytes(storage), _largest(op))
            kernel.reads[storage] = max(kernel.reads.get(storage, 0), size)
            self._outlive(storage, kernel.ops[-1].number + 1)

    def _bytes(self, storage: int) -> int:
        return self._recording.storages[storage].bytes

    def _outlive(self, storage: int, until: int) -> None:
        """Keeps a storage until an event (-1: for good)."""
        before = self._needed_until.get(storage, 0)
        self._needed_until[storage] = -1 if -1 in (until, before) else max(until, before)

    def _write(self, kernel: _Kernel) -> None:
        """Puts one launch in the place of a kernel's ops."""
        last = kernel.ops[-1]
        self._removed.update(op.number for op in kernel.ops[:-1])
        if not kernel.writes:  # the backward recomputes all of it
            self._removed.add(last.number)
            return
        name = FUSED_SOFTMAX if any(_has_long_rows(op.signature) for op in kernel.ops) else FUSED
        dims = tuple((size,) for size in kernel.reads.values())
        outputs = tuple(TensorShape((size,), "unsigned char") for size in kernel.writes.values())
        signature = Signature(name, Inputs(dims, ("unsigned char",) * len(dims)), outputs)
        number = self._number_of.setdefault(signature, len(self._signatures))
        if number == len(self._signatures):
            self._signatures.append(signature)
        self._events[last.number] = last.launch._replace(signature=number, host=HostEffort())
        # A result takes the place of an input of its size that nothing reads any more.
        free = [storage for storage in kernel.reads if storage not in kernel.writes]
        for written in kernel.writes:
            place = next((storage for storage in free if self._bytes(storage) == self._bytes(written)), None)
            if place is not None:
                free.remove(place)
                self._overwritten[place] = last.number

    def _renumbered(self) -> RankRecording:
        old = self._recording
        kept = [number for number in range(len(old.events)) if number not in self._removed]
        new_of, at = [], 0
        for number in range(len(old.events) + 1):
            new_of.append(at)
            at += number < len(old.events) and number not in self._removed
        events = [_moved(self._events.get(number, old.events[number]), new_of) for number in kept]
        storages = [
            self._life(number, life, new_of) for number, life in enumerate(old.storages) if number not in self._dropped
        ]
        steps = [(new_of[first], new_of[end]) for first, end in old.steps]
        return replace(old, events=events, storages=storages, signatures=self._signatures, steps=steps)

    def _life(self, number: int, life: StorageLife, new_of: Sequence[int]) -> StorageLife:
        until, released = self._needed_until.get(number, 0), life.released
        if released >= 0:
            released = -1 if until == -1 else max(released, until)
            kernel = self._overwritten.get(number, -1)
            released = kernel if 0 <= released - kernel <= 1 else released
        allocated = life.allocated if life.allocated < 0 else new_of[life.allocated]
        return life._replace(
            allocated=allocated, released=released if released < 0 else max(new_of[released], allocated)
        )


def _recomputes(op: _Op, kernel: _Kernel) -> bool:
    """Whether an op of the other phase may fuse with a kernel, and so recompute what the kernel computes."""
    return not op.is_kept and op.key[1] != kernel.ops[0].key[1]


def _largest(op: _Op) -> int:
    """Returns the most bytes that an op reads of one storage."""
    if plain_name(op.signature.op) in GATHERS:
        return sum(_output_bytes(output) for output in op.signature.outputs)
    sizes = [tensor.bytes for tensor in tensors(op.signature.inputs) if tensor is not None]
    return max([*sizes, *(_output_bytes(output) for output in op.signature.outputs)], default=0)


def _has_long_rows(signature: Signature) -> bool:
    """Whether an op is a softmax, or its gradient, of rows that do not fit into registers."""
    dims = signature.outputs[0].dims if signature.outputs else ()
    return plain_name(signature.op) in LONG_ROWS and bool(dims) and dims[-1] > MAX_PERSISTENT


def _output_bytes(output: TensorShape) -> int:
    return Tensor(output.dims, output.type, output.strides).full_bytes


def _sink(ops: Sequence[_Op]) -> None:
    """Moves each op after the kept ops that all its readers wait for, so that it can fuse with them."""
    readers: dict[int, list[_Op]] = defaultdict(list)
    for op in reversed(ops):
        following = [reader for storage in op.writes for reader in readers[storage]]
        if not op.is_kept and following and all(_fuses_with(op, reader) for reader in following):
            op.level = max(op.level, min(reader.level for reader in following))
        for storage in op.reads:
            readers[storage].append(op)


def _fuses_with(op: _Op, reader: _Op) -> bool:
    return not reader.is_kept and reader.key[:2] == op.key[:2]


def _connected(ops: Sequence[_Op]) -> list[_Kernel]:
    """Returns kernels: ops of one key that pass storages to each other, or read the same over as many elements."""
    root = list(range(len(ops)))

    def find(at: int) -> int:
        while root[at] != at:
            root[at] = root[root[at]]
            at = root[at]
        return at

    maker: dict[int, int] = {}
    reader: dict[tuple[object, ...], int] = {}
    for at, op in enumerate(ops):
        for storage in op.reads:
            source = maker.get(storage)
            if source is not None and ops[source].key == op.key:
                root[find(at)] = find(source)
            same = reader.setdefault((storage, op.key, op.elements), at)
            root[find(at)] = find(same)
        for storage in op.writes:
            maker[storage] = at
    groups: dict[int, list[_Op]] = defaultdict(list)
    for at, op in enumerate(ops):
        groups[find(at)].append(op)
    return [_Kernel(group) for group in groups.values()]


def _moved(event: Event, new_of: Sequence[int]) -> Event:
    """Returns an event with the new numbers of others."""
    if isinstance(event, CallWait):
        return event._replace(call=new_of[event.call] if event.call >= 0 else event.call)
    if isinstance(event, StreamWait | HostWait):
        return event._replace(until=new_of[event.until])
    return event
