"""Says what a plan needs of a GPU's memory without running it: its peak, and what a process holds besides.

Outside the framework's allocator are the GPU's context, the buffers of every communicator that the stack's calls use on
a rank, and those of dispatchers and user buffers (`dispatch_memory`). A communicator exists from its first call on;
groups of one rank make none. Where ranks differ, the busiest counts, and a job's sum takes the busiest of each part.

Which communicators there are: Megatron-core 0.16 (`parallel_state.py`, `p2p_communication.py`, `token_dispatcher.py`,
`optimizer/`), torchtitan (`distributed/parallel_dims.py`) and PyTorch (`ProcessGroupNCCL.cpp`: a send or receive that
is not batched makes a communicator of the two ranks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.mesh import Mesh
from foretrace.basics.placement import Placement
from foretrace.cost.machine import Machine
from foretrace.cost.network.nccl.buffers import Peers, SizedCall, communicator_bytes
from foretrace.cost.network.nccl.layout import GroupLayout, Seats
from foretrace.cost.network.peers import Places
from foretrace.models.parameters import parameters
from foretrace.program.columns import Collective
from foretrace.readings.answer.memory_fit import MemoryFit, MemoryPart, ProcessMemory
from foretrace.simulation.dispatch_memory import dispatcher_parts, rank_tokens, user_buffer_parts
from foretrace.step.buckets import megatron_limit
from foretrace.step.memory import stage_peaks
from foretrace.workload.setting import Setting
from foretrace.workload.step_spec import largest_tensors, step_spec

CONTEXT_BYTES: Final = 767 << 20
"""The driver's context of a training process with the kernels that it has loaded. Measured on an H200 with PyTorch
2.11: 617 MiB after the first kernel, 767 MiB after steps of sixteen of nineteen models, at most 795 MiB
(`benchmarks/truth/h200_memory.jsonl`). Other GPUs are taken to need as much."""

NCCL_KERNELS_BYTES: Final = 170 << 20
"""NCCL's own kernels: by so much the first communicator of a process is larger than the next (H200, NCCL 2.28.9,
`benchmarks/truth/h200_process_memory.json`)."""

REPORTED_BYTES: Final = 3_280_000_000
"""The largest communicator whose memory is reported: an all-to-all of 8 H100s (NCCL issue 1685). What a larger one
takes beyond that follows from NCCL's source alone."""

SCALAR_BYTES: Final = 8.0
"""A loss, a norm or a barrier."""

IN_TURN: Final = ("1f1b", "gpipe")
"""Schedules whose stages send and receive in batches (Megatron's `batch_p2p_comm`), unless they overlap."""


@dataclass(frozen=True, slots=True)
class CommUse:
    """A communicator of a plan and what it is used for.

    `groups` names the axes whose ranks it joins; empty for all ranks. `neighbours` says how many ranks of the group,
    next to it in the group's order, a rank exchanges messages with; -1 for all others.
    """

    name: str
    groups: tuple[str, ...]
    calls: tuple[SizedCall, ...] = ()
    neighbours: int = 0
    in_pairs: bool = False
    """Whether each pair of neighbours has a communicator of its own."""
    around: bool = False
    """Whether the last rank of a group and its first are neighbours too."""


def process_memory(setting: Setting, machine: Machine) -> ProcessMemory:
    """Returns what a process of a job holds apart from the tensors of a step, and the memory of a GPU."""
    capacity_bytes = int(machine.needed_cluster().gpu.memory_bytes)
    outside, expandable = outside_memory(setting, machine), setting.stack.expandable_segments
    return ProcessMemory(capacity_bytes, outside, largest_tensors(setting), expandable)


def static_memory(setting: Setting, machine: Machine) -> MemoryFit:
    """Returns the memory of a job by its schedule alone.

    Peaks equal those of a run, but for split parameters (ZeRO-3), where they are upper bounds.
    """
    process = process_memory(setting, machine)
    ranks = setting.mesh.world // setting.plan.pp
    stages = tuple(
        process.stage(peak.role, ranks, peak.peak_bytes, peak.by_category) for peak in stage_peaks(step_spec(setting))
    )
    return MemoryFit(stages, process)


def outside_memory(setting: Setting, machine: Machine) -> tuple[MemoryPart, ...]:
    """Returns the memory that a process of a job holds outside the allocator, by part."""
    return tuple(part for source in OUTSIDE_SOURCES for part in source.parts(setting, machine))


@dataclass(frozen=True, slots=True)
class OutsideSource:
    """Something that holds memory outside the allocator.

    Attributes:
        parts: Returns its parts in a process of a job.
        fields: The fields of the plan that they depend on, apart from those of the mesh.
    """

    parts: Callable[[Setting, Machine], Iterable[MemoryPart]]
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, uses: Callable[[Setting], Iterable[CommUse]], *fields: str) -> OutsideSource:
        """Returns the source of communicators."""
        return cls(lambda setting, machine: _communicator_parts(uses(setting), setting, machine), fields)


def _process_parts(setting: Setting, machine: Machine) -> Iterator[MemoryPart]:
    title = "CUDA context" if machine.needed_cluster().gpu.vendor.lower() == "nvidia" else "GPU context"
    yield MemoryPart(title, CONTEXT_BYTES, "measured on an H200: context and loaded kernels")
    if setting.mesh.world > 1:
        source = "measured on an H200: loaded by the first communicator"
        yield MemoryPart("NCCL kernels", NCCL_KERNELS_BYTES, source)


def _communicator_parts(uses: Iterable[CommUse], setting: Setting, machine: Machine) -> Iterator[MemoryPart]:
    if setting.mesh.world == 1:
        return
    places, counted = _Places(machine, setting.mesh), _COUNTED.setdefault(machine, _Counted())
    for use in uses:
        size = counted.bytes_of(use, machine, places, setting.mesh)
        if size:
            unsure = max(size - REPORTED_BYTES, 0)
            yield MemoryPart(f"NCCL {use.name}", size, _source(use, unsure), unsure)


def _dispatcher_parts(setting: Setting, machine: Machine) -> tuple[MemoryPart, ...]:
    if setting.mesh.world == 1:
        return ()
    counted = _COUNTED.setdefault(machine, _Counted())
    return dispatcher_parts(setting, counted.expert_layout(_Places(machine, setting.mesh), setting.mesh))


def communicators(setting: Setting) -> Iterator[CommUse]:
    """Yields the communicators that the calls of a plan use."""
    for uses in (_world, _tensor, _context, _replicas, _pipeline, _experts):
        yield from uses(setting)


def _world(setting: Setting) -> Iterator[CommUse]:
    # Barriers, seeds and timers.
    calls: tuple[SizedCall, ...] = ((Collective.ALL_REDUCE, SCALAR_BYTES), (Collective.BROADCAST, SCALAR_BYTES))
    if _joins_world(setting):
        calls += _shard_calls(setting) if setting.splits_parameters else _bucket_calls(setting)
    yield CommUse("world", (), calls)


def _replicas(setting: Setting) -> Iterator[CommUse]:
    """Yields those of data-parallel ranks."""
    yield from _sharded(setting) if setting.splits_parameters else _data(setting)


def _tensor(setting: Setting) -> Iterator[CommUse]:
    size = 2.0 * setting.tokens * setting.model.hidden
    split = (
        (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) if setting.sequence_parallel else (Collective.ALL_REDUCE,)
    )
    # The loss over a divided vocabulary adds up a number for each token.
    calls = (*((what, size) for what in split), (Collective.ALL_REDUCE, 4.0 * setting.tokens))
    yield CommUse("tp", ("tp",), calls)


def _context(setting: Setting) -> Iterator[CommUse]:
    plan = setting.plan
    if plan.cp == 1:
        return
    if plan.cp_comm == "all_gather":
        size = 2.0 * setting.tokens * setting.model.hidden
        yield CommUse("cp", ("cp",), ((Collective.ALL_GATHER, size), (Collective.REDUCE_SCATTER, size)))
    elif plan.cp_comm == "a2a":
        yield CommUse("cp", ("cp",), neighbours=-1)
    else:
        # Transformer Engine batches the messages of two ranks only (attention/context_parallel.py).
        yield CommUse("cp", ("cp",), neighbours=2, in_pairs=plan.cp > 2, around=True)


def _data(setting: Setting) -> Iterator[CommUse]:
    """Yields those of gradients and parameters in Megatron's buckets, and of the norm of all gradients."""
    mesh = setting.mesh
    if not _joins_world(setting):
        yield CommUse("dp", ("cp", "dp"), (*_bucket_calls(setting), (Collective.ALL_REDUCE, SCALAR_BYTES)))
    if setting.model.has_experts and mesh.ep > 1:
        yield CommUse("expert dp", ("edp",), _bucket_calls(setting, mesh.edp))
    if setting.model.tied and mesh.pp > 1:
        size = 4.0 * setting.vocab // setting.plan.tp * setting.model.hidden
        yield CommUse("embedding", ("embd",), ((Collective.ALL_REDUCE, size),))
    if setting.stack.clips_gradients:
        # The distributed optimizer has a group of all ranks for it besides the world's.
        groups = () if setting.zero else ("tp", "pp")
        yield CommUse("gradient norm", groups, ((Collective.ALL_REDUCE, SCALAR_BYTES),))


def _bucket_calls(setting: Setting, ranks: int | None = None) -> tuple[SizedCall, ...]:
    """Returns the calls of a bucket that `ranks` reduce; None: those of dp and cp."""
    chunks = setting.plan.pp * setting.chunks_per_stage
    held = parameters(setting.model) / (setting.plan.tp * chunks)
    elements = min(held, megatron_limit(ranks or setting.mesh.dp * setting.mesh.cp))
    gradients = elements * (4 if setting.stack.gradient_dtype == "fp32" else 2)
    if not setting.zero:
        return ((Collective.ALL_REDUCE, gradients),)
    return (Collective.REDUCE_SCATTER, gradients), (Collective.ALL_GATHER, 2 * elements)


def _sharded(setting: Setting) -> Iterator[CommUse]:
    """Yields those of FSDP: parameters and gradients of a layer and of its experts, and replicas of HSDP."""
    calls = _shard_calls(setting)
    if not _joins_world(setting):
        yield CommUse("shard", ("cp", "shard"), (*calls, (Collective.ALL_REDUCE, SCALAR_BYTES)))
    if setting.model.has_experts and setting.mesh.ep > 1:
        yield CommUse("expert shard", ("edp",), calls)
    if setting.mesh.replicate > 1:
        size = calls[1][1] / setting.shard
        yield CommUse("replicate", ("replicate",), ((Collective.ALL_REDUCE, size),))


def _joins_world(setting: Setting) -> bool:
    """Returns whether data parallelism over all ranks takes the communicator of the world.

    PyTorch's DDP does, and FSDP on a device mesh of one axis. Megatron makes a group of its own.
    """
    mesh = setting.mesh
    ranks = mesh.cp * (mesh.size("shard") if setting.splits_parameters else mesh.dp)
    return ranks == mesh.world and (setting.splits_parameters or not setting.stack.fused_gradient_accumulation)


def _shard_calls(setting: Setting) -> tuple[SizedCall, ...]:
    layer = parameters(setting.model) / max(len(setting.model.layers), 1) / setting.plan.tp
    return (Collective.ALL_GATHER, 2 * layer), (Collective.REDUCE_SCATTER, 4 * layer)


def _pipeline(setting: Setting) -> Iterator[CommUse]:
    plan = setting.plan
    if plan.pp == 1:
        return
    batched = setting.schedule in IN_TURN and not plan.pp_overlap
    yield CommUse("pp", ("pp",), neighbours=2, in_pairs=not batched, around=setting.chunks_per_stage > 1)


def _experts(setting: Setting) -> Iterator[CommUse]:
    plan, mesh = setting.plan, setting.mesh
    if not setting.model.has_experts or plan.ep * mesh.size("etp") == 1:
        return
    # Counts of tokens, or handles of the dispatcher's buffers, over all ranks that share experts.
    counts = ((Collective.ALL_GATHER, 4.0 * 1024),)
    yield CommUse("tp·ep", ("etp", "ep"), counts)
    if plan.dispatcher in ("alltoall", "hierarchical"):
        yield CommUse("ep", ("ep",), neighbours=-1)
    if mesh.size("etp") > 1:
        size = 2.0 * rank_tokens(setting) * setting.model.hidden
        yield CommUse("expert tp", ("etp",), ((Collective.ALL_GATHER, size), (Collective.REDUCE_SCATTER, size)))


def _source(use: CommUse, unsure_bytes: int) -> str:
    if unsure_bytes:
        return "NCCL's buffers for each peer; not measured for a domain of this size"
    if use.in_pairs:
        return "NCCL's buffers of a communicator for each neighbour"
    if use.neighbours:
        return "NCCL's buffers for each peer"
    return "NCCL's buffers for the algorithms that it chooses"


Option = tuple[GroupLayout, Peers | None]
"""Where the ranks of a communicator are, and the peers of a rank; communicators of a kind may have several."""


class _Places:
    """Finds where the groups of a mesh are on a machine."""

    def __init__(self, machine: Machine, mesh: Mesh) -> None:
        self._machine = machine
        self._mesh = mesh

    def options(self, use: CommUse) -> tuple[tuple[Option, ...], ...]:
        """Returns for each kind of rank the communicators that it has for a use; none for groups of one rank."""
        groups = self._groups(use.groups)
        if groups.shape[1] == 1:
            return ()
        if use.in_pairs:
            return self._pairs(use, groups)
        layouts, number = self.layouts(groups)
        kinds: list[tuple[Option, ...]] = []
        for kind, layout in enumerate(layouts):
            if use.neighbours < 0:
                kinds.append(((layout, _all_others(layout)),))
            elif use.neighbours == 0:
                kinds.append(((layout, None),))
            else:
                counts = self._neighbour_counts(use, groups[number == kind])
                kinds += (((layout, Peers(near=near, far=far)),) for near, far in counts)
        return tuple(kinds)

    def layouts(self, groups: Longs) -> tuple[list[GroupLayout], Longs]:
        """Returns the kinds of these groups, and which kind each is."""
        layouts, number = self._seats.layouts(groups)
        return [layout for layout in layouts if isinstance(layout, GroupLayout)], number

    def expert_layout(self) -> GroupLayout | None:
        """Returns the layout of the ranks among which tokens are dispatched; None where they stay where they are."""
        if self._mesh.ep == 1:
            return None
        layouts, _ = self.layouts(self._groups(("etp", "ep")))
        return max(layouts, key=lambda layout: layout.islands)

    @cached_property
    def _placement(self) -> Placement:
        return self._machine.placed(self._mesh.world, self._mesh)

    @cached_property
    def _seats(self) -> Seats:
        return Seats(self._machine.needed_cluster(), self._placement)

    @cached_property
    def _island(self) -> Longs:
        return Places.of(self._machine.needed_cluster().node, self._placement).island

    def _groups(self, axes: tuple[str, ...]) -> Longs:
        if not axes:
            return np.arange(self._mesh.world)[np.newaxis]
        groups = self._mesh.embedding_groups() if axes == ("embd",) else self._mesh.groups(*axes)
        return groups.astype(np.int64)

    def _neighbour_counts(self, use: CommUse, groups: Longs) -> list[tuple[int, int]]:
        """Returns how many neighbours a rank of these groups has on its island and beyond, each combination once."""
        island = self._island[groups]
        same = island == np.roll(island, -1, axis=1)
        exists = np.ones(same.shape, dtype=bool)
        exists[:, -1] = use.around and groups.shape[1] > 2
        near, far = exists & same, exists & ~same
        counts = [(kind + np.roll(kind, 1, axis=1).astype(np.int64)).ravel() for kind in (near, far)]
        combined = np.bincount(3 * counts[0] + counts[1]).nonzero()[0]
        return [divmod(int(count), 3) for count in combined]

    def _pairs(self, use: CommUse, groups: Longs) -> tuple[tuple[Option, ...], ...]:
        """Returns the communicators of a rank with each of its neighbours.

        In groups of two, messages to the next and to the previous rank have a communicator each.
        """
        times = 2 if groups.shape[1] == 2 else 1
        close = (GroupLayout(2, 1, 1, 2, 2, 2, 2, 1.0), Peers(near=1))
        apart = (GroupLayout(2, 2, 2, 1, 1, 1, 1, 1.0), Peers(far=1))
        return tuple(
            (close,) * (times * near) + (apart,) * (times * far) for near, far in self._neighbour_counts(use, groups)
        )


def _all_others(layout: GroupLayout) -> Peers:
    """Returns the peers of a rank that exchanges messages with all others of its group."""
    most = layout.most_in_island
    return Peers(near=most - 1, far=layout.size - layout.least_in_island, relayed=most)


class _Counted:
    """Holds what was counted on a machine: where groups of a mesh are, and the memory of their communicators."""

    def __init__(self) -> None:
        self._options: dict[object, tuple[tuple[Option, ...], ...]] = {}
        self._bytes: dict[object, int] = {}
        self._layouts: dict[Mesh, GroupLayout | None] = {}

    def bytes_of(self, use: CommUse, machine: Machine, places: _Places, mesh: Mesh) -> int:
        """Returns what the communicators of a use hold on the busiest rank."""
        place = (mesh, use.groups, use.neighbours, use.in_pairs, use.around)
        if place not in self._options:
            self._options[place] = places.options(use)
        kinds = self._options[place]
        return max((sum(self._each(machine, use.calls, option) for option in kind) for kind in kinds), default=0)

    def expert_layout(self, places: _Places, mesh: Mesh) -> GroupLayout | None:
        """Returns the layout of the ranks among which tokens are dispatched."""
        if mesh not in self._layouts:
            self._layouts[mesh] = places.expert_layout()
        return self._layouts[mesh]

    def _each(self, machine: Machine, calls: tuple[SizedCall, ...], option: Option) -> int:
        key = (calls, option)
        if key not in self._bytes:
            self._bytes[key] = communicator_bytes(machine.needed_cluster(), option[0], calls, option[1])
        return self._bytes[key]


_COUNTED: Final[WeakKeyDictionary[Machine, _Counted]] = WeakKeyDictionary()
"""Counts by machine: among thousands of plans, most have the same groups in the same places."""

MESH_FIELDS: Final = ("gpus", "tp", "cp", "pp", "ep", "etp", "shard", "rank_order")
"""The fields of a plan that a mesh depends on."""

_TOKENS: Final = ("mbs", "seq_len")
_CHUNKS: Final = ("schedule", "vpp", "layout")
_SOFTWARE: Final = ("stack", "zero")
_BUCKETS: Final = (*_SOFTWARE, *_CHUNKS, "precision", "grad_dtype")

OUTSIDE_SOURCES: Final = (
    OutsideSource(_process_parts),
    OutsideSource.of(_world, *_BUCKETS),
    OutsideSource.of(_tensor, *_TOKENS, *_SOFTWARE, "sequence_parallel"),
    OutsideSource.of(_context, *_TOKENS, "cp_comm"),
    OutsideSource.of(_replicas, *_BUCKETS),
    OutsideSource.of(_pipeline, *_CHUNKS, "pp_overlap"),
    OutsideSource.of(_experts, *_TOKENS, *_SOFTWARE, "sequence_parallel", "dispatcher"),
    OutsideSource(_dispatcher_parts, (*_TOKENS, *_SOFTWARE, "sequence_parallel", "dispatcher")),
    OutsideSource(lambda setting, _: user_buffer_parts(setting), (*_TOKENS, "tp_overlap", "precision")),
)
"""Everything that holds memory outside the allocator, in the order in which it is reported."""
