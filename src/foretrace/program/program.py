"""A training step as a program: ops on lanes, their dependencies and rendezvous, repetition kept.

Three layers, each a handful of arrays:

* **blocks** hold the ops themselves, each written once (`Templates`);
* **instances** say in which order a role runs which block, for which microbatch, with which overrides;
* **roles** say which ranks run the same instances.

The order in which a role lists its ops is the order of issue: ops of one lane start in that order, and ops of one
communicator match those of the other ranks in that order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Ints, Longs
from foretrace.basics.errors import Diagnostic
from foretrace.basics.mesh import Mesh
from foretrace.program.columns import LaneKind


@dataclass(frozen=True, slots=True)
class Lane:
    """An in-order queue on every rank: the compute stream, one per communicator, the host threads."""

    name: str
    kind: LaneKind


@dataclass(frozen=True, slots=True)
class Source:
    """Where a price came from, and how far it may be off: a central 90 % interval as factors of the price."""

    name: str
    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True, slots=True)
class Communicator:
    """Groups of ranks that meet; a rank is in at most one of them.

    The groups are those in which `axes` of the mesh vary, the pairs of ranks with coordinates `pair` on the one
    axis named, or written out. `axis` is the word reports use for the time spent on it.
    """

    name: str
    axis: str
    axes: tuple[str, ...] = ()
    pair: tuple[int, int] | None = None
    groups: tuple[tuple[int, ...], ...] | None = None

    def members(self, mesh: Mesh) -> list[Longs]:
        """The ranks of every group, one array of equally long rows per group size."""
        if self.groups is not None:
            return _by_size(self.groups)
        if self.pair is None:
            return [_mesh_groups(mesh, self.axes)]
        groups = _mesh_groups(mesh, self.axes[:1])
        if not all(0 <= position < groups.shape[1] for position in self.pair):
            mesh.pairs(self.axes[0], *self.pair)  # says what is wrong
        return [groups[:, self.pair]]

    def group_of(self, mesh: Mesh, world: int) -> Ints:
        """The number of the group each rank is in, -1 for ranks in none."""
        group = np.full(world, -1, dtype=np.int32)
        first = 0
        for rows in self.members(mesh):
            numbers = np.arange(first, first + len(rows), dtype=np.int32)
            group[rows.ravel()] = np.repeat(numbers, rows.shape[1])
            first += len(rows)
        return group


@lru_cache(maxsize=8)
def _mesh_groups(mesh: Mesh, axes: tuple[str, ...]) -> Longs:
    """The groups of a mesh, which all pairs along an axis are columns of."""
    groups = mesh.groups(*axes).astype(np.int64)
    groups.setflags(write=False)
    return groups


def _by_size(groups: tuple[tuple[int, ...], ...]) -> list[Longs]:
    by_size: dict[int, list[tuple[int, ...]]] = {}
    for group in groups:
        by_size.setdefault(len(group), []).append(group)
    return [np.array(rows, dtype=np.int64) for rows in by_size.values()]


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that running ops divide: a link (bytes/s), a GPU's memory bandwidth (bytes/s), its SMs (share).

    Every rank has its own instance unless `instances` says which ranks share one (a host's NIC, a switch port). All
    have the same capacity unless `capacities` gives each instance its own (a slow NIC, a leaf that lost an uplink).
    """

    name: str
    capacity_per_s: float
    instances: tuple[tuple[int, ...], ...] | None = None
    capacities: tuple[float, ...] | None = None

    def members(self) -> list[Longs]:
        """The ranks that share each instance, one array of equally long rows per number of them."""
        return [] if self.instances is None else _by_size(self.instances)

    def instance_of(self, world: int) -> Ints:
        """The number of the instance each rank draws on."""
        if self.instances is None:
            return np.arange(world, dtype=np.int32)
        instance = np.full(world, -1, dtype=np.int32)
        for number, ranks in enumerate(self.instances):
            instance[list(ranks)] = number
        return instance

    def capacity_of(self, world: int) -> Floats:
        """Returns the capacity per second of the instance that each rank draws on; the default for ranks on none."""
        if self.capacities is None:
            return np.full(world, self.capacity_per_s)
        instance = self.instance_of(world)
        return np.where(instance >= 0, np.array(self.capacities)[instance], self.capacity_per_s)

    def widened(self, factor: float) -> Resource:
        """The same with `factor` times as much of it everywhere."""
        own = None if self.capacities is None else tuple(capacity * factor for capacity in self.capacities)
        return replace(self, capacity_per_s=self.capacity_per_s * factor, capacities=own)


@dataclass(frozen=True, slots=True)
class Templates:
    """The ops of all blocks, one row each; `start[b] : start[b + 1]` are those of block b.

    Side tables give further facts of single ops by row number: dependencies within a block, memory taken at an op's
    start and given back at its end, bytes sent to each member of a rendezvous (by its position in the group), and
    what is drawn from shared resources over the op or held while it runs.
    """

    start: Ints
    columns: dict[str, NDArray[np.generic]]
    dep_src: Ints
    dep_dst: Ints
    memory_op: Ints
    memory_category: NDArray[np.uint8]
    memory_alloc_bytes: Longs
    memory_free_bytes: Longs
    send_op: Ints
    send_to: Ints
    send_bytes: Longs
    draw_op: Ints
    draw_resource: Ints
    draw_amount: Floats
    draw_held: Floats


@dataclass(frozen=True, slots=True)
class Instances:
    """Blocks in the order their role issues them; `start[r] : start[r + 1]` are those of role r.

    An override gives one op (`override_op`, counted within its block) of one instance another value in one column.
    """

    start: Ints
    block: Ints
    microbatch: Ints
    override_instance: Ints
    override_op: Ints
    override_column: tuple[str, ...]
    override_value: Floats


@dataclass(frozen=True, slots=True)
class Links:
    """Dependencies between instances of one role: `dst` starts after `src` has ended, `steps` steps earlier (0 or 1; a
    program that does not repeat has no earlier step)."""

    src_instance: Ints
    src_op: Ints
    dst_instance: Ints
    dst_op: Ints
    steps: Ints


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory a role holds from step to step, by category."""

    role: Ints
    category: NDArray[np.uint8]
    bytes: Longs


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """The name of a block and of those of its ops that other blocks may refer to."""

    name: str
    ports: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class Program:
    """Everything one step of a job does, on every rank.

    `repeats` says whether steps follow each other without end, so that the step time is their steady period, or
    whether this is the record of a single step, whose time is its makespan. `diagnostics` is what was seen, guessed or
    left out when it was made of something else.
    """

    title: str
    mesh: Mesh
    lanes: tuple[Lane, ...]
    communicators: tuple[Communicator, ...]
    resources: tuple[Resource, ...]
    sources: tuple[Source, ...]
    strings: tuple[str, ...]
    blocks: tuple[BlockInfo, ...]
    roles: tuple[str, ...]
    role_of: Ints
    templates: Templates
    instances: Instances
    links: Links
    resident: Resident
    repeats: bool = True
    tokens_per_step: float | None = None
    diagnostics: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        return f"<Program {self.title!r}: {self.op_count:,} ops on {self.world:,} ranks ({self.mesh})>"

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.role_of)

    @property
    def has_streams(self) -> bool:
        """Whether its lanes are streams of a GPU, as recorded: then it has every kernel of the step."""
        return any(lane.name.startswith("stream ") for lane in self.lanes)

    @property
    def op_count(self) -> int:
        """How many ops a step has over all ranks."""
        per_block = np.diff(self.templates.start)[self.instances.block].astype(np.int64)
        totals = np.concatenate([[0], np.cumsum(per_block)])
        per_role = np.diff(totals[self.instances.start])
        return int(per_role @ np.bincount(self.role_of, minlength=len(self.roles)))
