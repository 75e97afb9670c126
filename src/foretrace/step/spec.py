"""Defines `StepSpec`: everything that `build_step` needs to write a pipelined training step as a program.

From the inside out:

* an **item** is computation (`Compute`), a collective (`Call`) or work of the host (`HostWork`);
* a `Work` lists the items of one layer, or of an end of the model, forward and backward;
* a `Unit` is a work at its place in a chunk; a `ChunkSpec` is the units that a stage runs for one microbatch;
* a `RoleSpec` is what the ranks of a stage do: their chunks, and the end of their step as `EndItem`s;
* a `StepSpec` holds the roles, the mesh, the schedule and what crosses stage boundaries.

Works and chunks that are the same object are written once. A producer therefore uses one object for equal layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from foretrace.basics.errors import Diagnostic
from foretrace.basics.mesh import Mesh
from foretrace.program.columns import UNPRICED, Collective, Phase
from foretrace.program.kernels import Kernel
from foretrace.program.program import Source
from foretrace.schedules import Schedule
from foretrace.schedules.pipeline import Transfer

Concurrent = Literal["next", "previous", "phase", "step"]
"""The computation next to which a collective runs.

* `next`: the `Compute` that follows it. The items after that one wait for both.
* `previous`: the `Compute` before it, with which it starts. The items after it wait for both.
* `phase`: the computation after it, until the next `phase` collective that follows a computation. Computation after
  that collective, and the next unit, wait for this one.
* `step`: everything that follows in the step. Only an end item with `after_reductions` waits for it.
"""

CudaGraphs = Literal["none", "router", "partial", "full"]

GraphScope = Literal["attention", "router"]
"""A part of a layer that CUDA graphs can replay by itself; `router` includes what comes before the dispatch."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Computation on the compute lane, priced in one of three ways: by `kernels`, `seconds` or `moved_bytes`.

    Attributes:
        name: A word for the computation.
        phase: The part of the step. A schedule that runs weight gradients apart moves items of that phase.
        kernels: Kernels with how often each runs. Computations that have kernels and follow each other are one op.
        temporary_bytes: Memory needed while it runs, beyond what it reads and leaves.
        syncs_host: Whether the host waits for it before it launches more (token counts of a router).
        handled: Tensors of experts that the host handles one by one for it, or whose gradients' hooks it runs.
        scope: The part of a layer with which CUDA graphs replay it.
        seconds: Its duration where it was measured.
        source: Where the seconds come from, with their band.
        moved_bytes: Bytes read and written, where neither kernels nor seconds are known.
    """

    name: str
    phase: Phase
    kernels: tuple[tuple[int, Kernel], ...] = ()
    temporary_bytes: int = 0
    syncs_host: bool = False
    handled: int = 0
    scope: GraphScope | None = None
    seconds: float = UNPRICED
    source: Source | None = None
    moved_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class HostWork:
    """Work of the host for which the GPU waits: on the compute lane, in its turn."""

    name: str
    seconds: float
    source: Source | None = None
    phase: Phase = Phase.NONE


@dataclass(frozen=True, slots=True)
class Call:
    """A collective. By default everything after it waits for it.

    Attributes:
        name: A word for its purpose.
        phase: The part of the step.
        collective: The kind of collective.
        axis: The group it runs over: an axis of the mesh, or one of the names in `groups.Groups`.
        bytes: As NCCL counts them: the whole vector of an all-reduce, everything that is gathered or scattered over the
            group, what one rank sends in an all-to-all.
        concurrent: The computation it runs next to.
        sends: The bytes for each member of an all-to-all, where they differ.
        way: How an all-to-all of tokens goes where it is not NCCL's (`program.dispatch`), or that copy engines move it.
        seconds: Its duration where it was measured; otherwise the machine prices it.
        dtype: The dtype of its elements, where it is known.
        scope: The part of a layer with which CUDA graphs replay it.
        returns: Whether an all-to-all takes rows from their experts back to the ranks of their tokens.
    """

    name: str
    phase: Phase
    collective: Collective
    axis: str
    bytes: int
    concurrent: Concurrent | None = None
    sends: tuple[int, ...] | None = None
    way: str | None = None
    seconds: float = UNPRICED
    dtype: str | None = None
    scope: GraphScope | None = None
    returns: bool = False


Item = Compute | Call | HostWork


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a part of the model for one microbatch: a layer, the embedding, the head with the loss.

    Attributes:
        name: The part of the model.
        forward: Items in the order in which they run.
        recompute: Forward items that run again before the backward.
        backward: Input and weight gradients in the order in which they run, told apart by phase.
        saved_bytes: Memory that the forward leaves for the backward.
        recomputed_bytes: Memory of it that is alive only while its own backward runs.
        parameters: Dense parameters on this rank, before data-parallel ranks split them.
        expert_parameters: Parameters of experts on this rank, which are reduced over another group.
        narrow_parameters: Those of the dense parameters whose products are in 8 bits or fewer.
        narrow_expert_parameters: The same for parameters of experts.
        output_bytes: The activation that it hands on, on this rank.
        weight_share: Where `backward` does not tell input and weight gradients apart: the share of its computation that
            gives weight gradients.
        offloaded_bytes: Memory of `saved_bytes` that goes to the host and back, where not all of it does.
        largest_bytes: Its largest tensor, kept or not: the size that an allocator finds hardest to place.
        tensors: Its tensors of dense parameters, small ones left out.
    """

    name: str
    forward: tuple[Item, ...]
    recompute: tuple[Item, ...]
    backward: tuple[Item, ...]
    saved_bytes: int = 0
    recomputed_bytes: int = 0
    parameters: int = 0
    expert_parameters: int = 0
    narrow_parameters: int = 0
    narrow_expert_parameters: int = 0
    output_bytes: int = 0
    weight_share: float | None = None
    offloaded_bytes: int = 0
    largest_bytes: int = 0
    tensors: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A work at its place in a chunk: what is gathered, reduced and freed as one.

    Attributes:
        work: Its items and sizes.
        layer: The number its ops carry, or -1 for an end of the model.
        offloaded: Whether all its saved activations go to the host and back.
    """

    work: Work
    layer: int = -1
    offloaded: bool = False

    @property
    def offloaded_bytes(self) -> int:
        """Saved activations that go to the host and back."""
        return self.work.saved_bytes if self.offloaded else self.work.offloaded_bytes


@dataclass(frozen=True, slots=True, eq=False)
class ChunkSpec:
    """The units that a chunk of a stage runs for one microbatch, in the order of the forward.

    Attributes:
        units: The units.
        unpaired: The same units in actions that have none of another microbatch to run next to (`Schedule.paired`);
            None: they do the same there.
    """

    units: tuple[Unit, ...]
    unpaired: ChunkSpec | None = None

    @property
    def forms(self) -> tuple[ChunkSpec, ...]:
        """The chunk in paired actions and, where that differs, in unpaired ones."""
        return (self,) if self.unpaired is None else (self, self.unpaired)

    @property
    def parameters(self) -> int:
        """Dense parameters of one rank."""
        return sum(unit.work.parameters for unit in self.units)

    @property
    def expert_parameters(self) -> int:
        """Parameters of experts of one rank."""
        return sum(unit.work.expert_parameters for unit in self.units)

    @property
    def narrow_parameters(self) -> tuple[int, int]:
        """Dense and experts' parameters of one rank whose products are in 8 bits or fewer."""
        works = [unit.work for unit in self.units]
        return sum(work.narrow_parameters for work in works), sum(work.narrow_expert_parameters for work in works)


@dataclass(frozen=True, slots=True)
class Cut:
    """Items that run after a share of the computation of a chunk's last backward, such as a gradient bucket.

    Its calls are concurrent with the rest of the step.
    """

    chunk: int
    share: float
    items: tuple[Item, ...]


UnitPlace = tuple[int, int]
"""A chunk of a stage and the number of a unit in it."""


@dataclass(frozen=True, slots=True)
class EndItem:
    """An op at the end of a stage's step. Items of one lane run in the order listed.

    Attributes:
        item: The computation, collective or work of the host.
        lane: The lane it runs on; None is that of the call's axis.
        when: The unit whose last backward it waits for.
        after: Numbers of earlier end items that it waits for, in addition to those of its lane.
        after_reductions: Whether it waits for every call that is concurrent with the step.
        before: The unit whose forward in the next step waits for it.
        before_item: The number of an end item of the next step that waits for it.
        takes: Bytes by category of memory that it allocates.
        frees: Bytes by category of memory that it gives back.
        chunk: The chunk it belongs to.
    """

    item: Item
    lane: str | None = "compute"
    when: UnitPlace | None = None
    after: tuple[int, ...] = ()
    after_reductions: bool = False
    before: UnitPlace | None = None
    before_item: int | None = None
    takes: Mapping[str, int] = field(default_factory=dict)
    frees: Mapping[str, int] = field(default_factory=dict)
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """The work of ranks of a stage: of all of them, or of those whose experts receive the same tokens.

    Attributes:
        stage: The stage.
        name: Shown in timelines.
        ranks: Its ranks.
        chunks: The units of each chunk, one entry for each variant of a microbatch.
        end: The end of the step. Roles that share the object share its ops.
        cuts: Items that run within the last backward of chunks.
        resident: Bytes by category of memory that is held from step to step.
    """

    stage: int
    name: str
    ranks: Iterable[int]
    chunks: tuple[tuple[ChunkSpec, ...], ...]
    end: tuple[EndItem, ...] = ()
    cuts: tuple[Cut, ...] = ()
    resident: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launches:
    """The host's time for kernel launches. A step without `Launches` has no host, but for `HostWork`.

    Attributes:
        seconds: The time of one launch.
        source: Where that was learned.
        graphs: The part of a step that CUDA graphs replay: nothing, routers (`router`), attention and routers
            (`partial`), or everything.
    """

    seconds: float
    source: Source
    graphs: CudaGraphs = "none"


@dataclass(frozen=True, slots=True)
class Sharding:
    """Gradients that every microbatch scatters over data-parallel ranks, unit by unit (ZeRO-2 and -3, FSDP).

    Attributes:
        ranks: Ranks among which dense parameters are split.
        expert_ranks: Ranks among which parameters of experts are split.
        replicas: Ranks that hold the same part (HSDP).
        parameter_bytes: The size of one gathered parameter.
        gradient_bytes: The size of one gradient as it is reduced.
        reshard: Whether layers drop their parameters after the forward.
        copies: Whether parameters are copied out of the buffer they are gathered in, and gradients into the one they
            are reduced from (FSDP2).
        gathers: Whether parameters are split too, and gathered before a unit runs. Else they are whole, and the two
            buffers in which whole gradients wait for their reduction are held all the time.
        overlap: Whether gradients are reduced next to the backward, where parameters are whole; else it waits.
        holds: Whether gathered parameters that the forward does not drop have memory of their own all the time: where
            several microbatches are on their way and share them.
        narrow_parameter_bytes: The size of one gathered parameter of a layer that computes in 8 bits or fewer.
        listing: The host's work before a tensor is gathered or its gradient reduced, each by a collective of its own;
            None: a unit is gathered and reduced as one.
    """

    ranks: int
    expert_ranks: int
    replicas: int
    parameter_bytes: int
    gradient_bytes: int
    reshard: bool = True
    copies: bool = False
    gathers: bool = True
    overlap: bool = True
    holds: bool = False
    narrow_parameter_bytes: float | None = None
    listing: HostWork | None = None


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A pipelined training step of a whole job.

    Attributes:
        title: Shown with the answer.
        mesh: Sizes of the axes of parallelism.
        schedule: The order of forwards and backwards.
        roles: The work of the ranks of each stage.
        transfer: The activation that crosses a stage boundary for one microbatch.
        pp_overlap: Whether stages of 1F1B and GPipe compute while they send and receive, as all other schedules do.
        variants: The variant of microbatch `m` is `variants[m % len(variants)]`.
        repeats: Whether the step's time is the period of repeated steps; else it is the makespan of one.
        tokens_per_step: Where they are known.
        launches: The host's launches of kernels.
        sharding: How gradients, or parameters too, are split between data-parallel ranks.
        prefetch: How many units ahead parameters and offloaded activations are fetched, forward and backward.
        gradient_bytes: The size of each gradient that the first backward of a step allocates; 0 where gradient buffers
            stay allocated or memory is not known.
        end_waits_for_transfers: Whether the end of a stage's step waits for the transfer it issued last.
        diagnostics: Reports of what the producer assumed or left out.
    """

    title: str
    mesh: Mesh
    schedule: Schedule
    roles: tuple[RoleSpec, ...]
    transfer: Transfer = field(default_factory=Transfer)
    pp_overlap: bool = False
    variants: tuple[int, ...] = (0,)
    repeats: bool = True
    tokens_per_step: float | None = None
    launches: Launches | None = None
    sharding: Sharding | None = None
    prefetch: tuple[int, int] = (1, 1)
    gradient_bytes: int = 0
    end_waits_for_transfers: bool = False
    diagnostics: tuple[Diagnostic, ...] = ()
