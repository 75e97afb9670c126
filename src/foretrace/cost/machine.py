"""Describes the machine that a job runs on: the cluster, the placement of ranks, and the price sources.

A `Machine` owns what it has read and priced, so that a second question about the same machine is cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from foretrace.basics.arguments import checked, checked_methods
from foretrace.basics.errors import Diagnostic, InputError, UsageError, did_you_mean
from foretrace.basics.limits import check_gpus
from foretrace.basics.mesh import Mesh
from foretrace.basics.placement import Placement
from foretrace.cost.kernels.interface import KernelPricer, PriceSource, PriceSources
from foretrace.cost.network import NcclSettings, Network, network_of
from foretrace.cost.network.call_book import CallBook
from foretrace.cost.network.domains import DomainUse, crossing_note, place_job
from foretrace.cost.network.silicon_collectives import slowdown_in_training
from foretrace.cost.prices import Prices
from foretrace.cost.pricing import price, unpriced_kernels
from foretrace.cost.sources import measured_collectives
from foretrace.hardware.changes import CHANGES, Change, changed_cluster, factor_of, with_gpu
from foretrace.hardware.cluster import Cluster, Gpu
from foretrace.hardware.presets import cluster as load_cluster
from foretrace.hardware.presets import gpu as gpu_preset
from foretrace.program.expand import Ops, expand
from foretrace.program.program import Program

if TYPE_CHECKING:
    from foretrace.cost.calibration import Calibration
    from foretrace.cost.kernels.clocks import Mix
    from foretrace.cost.network.nccl_tests.records import Measurements
    from foretrace.cost.network.sharing import Sharing

NetworkMode = Literal["analytic", "flow", "packets"]
"""analytic: every communication takes what it takes alone; flow: those that meet on links divide them; packets: single
collectives are run packet by packet (ns-3)."""

KERNEL_KINDS: Final = ("gemm", "attention", "norm", "elementwise", "moe expert")
"""The kinds of kernels whose speed can be changed."""

MIN_SLOWDOWN: Final = 1.02
"""The factor from which on an answer reports that collectives run slower in training."""

JOB_MODES: Final = ("analytic", "flow")
"""The network modes that whole jobs can be run with."""


@dataclass(frozen=True, slots=True, eq=False)
class PricedProgram:
    """A program whose ops have prices. `cluster` is None where nothing of it was needed."""

    ops: Ops
    prices: Prices
    cluster: Cluster | None
    notes: tuple[Diagnostic, ...] = ()
    domains: DomainUse | None = None
    """The link domains that the job was placed on; None where a domain is a node, or a placement was given."""
    placement: Placement | None = None
    """The placement that the machine was given; None where ranks sit as `place_job` places them."""


_Places = tuple[Placement, DomainUse | None]


@dataclass(slots=True)
class _Cache:
    """Holds what a machine has read and priced."""

    networks: dict[tuple[int, DomainUse | None], Network] = field(default_factory=dict)
    """Those of idle GPUs; networks in training are in `books`."""
    books: dict[tuple[int, DomainUse | None], CallBook] = field(default_factory=dict)
    """The prices of calls in training; machines whose networks are the same share them."""
    places: dict[tuple[int, Mesh | None], _Places] = field(default_factory=dict)
    placements: dict[tuple[int, DomainUse | None], Placement] = field(default_factory=dict)
    """Those of `places`, each once: many meshes have the same."""
    crossings: dict[Mesh, Diagnostic | None] = field(default_factory=dict)
    """The warning that groups cross link domains, for each mesh."""
    slowdown: float | None = None
    """How many times slower SMs run in training."""
    measured: dict[tuple[str, float], tuple[Measurements, ...]] = field(default_factory=dict)
    own: Measurements | None = None
    calibration: Calibration | None = None
    last: PricedProgram | None = None
    pricers: list[tuple[Gpu, KernelPricer]] = field(default_factory=list)
    """The pricer of each GPU; machines with the same sources of prices share it."""


@checked_methods
class Machine:
    """The machine that a job runs on. It is immutable; `with_` makes another.

    A machine without a cluster runs programs that carry all their prices.
    """

    @checked
    def __init__(
        self,
        cluster: Cluster | str | Path | None = None,
        *,
        placement: Placement | str | Path | None = None,
        prices: PriceSources | PriceSource = "best",
        collectives: str | Path | None = None,
        calibration: Calibration | str | Path | None = None,
        nccl: NcclSettings | None = None,
        network: NetworkMode = "analytic",
        overlap_cost: bool = True,
    ) -> None:
        """Describes a machine.

        Args:
            cluster: A `Cluster`, the name of a preset (`foretrace list clusters`) or the path of a cluster file.
            placement: Which GPU of which node each rank runs on, or a file that says so. None: ranks fill the nodes
                that `cost.network.domains` chooses, in order.
            prices: The sources of prices: `best`, `model`, `roofline`, or `PriceSources`.
            collectives: Measurements of nccl-tests (a file or folder), which price communication before all else.
            calibration: A user's calibration of this GPU, or its file; its prices come before all other sources.
            nccl: What NCCL may choose, and what it reported on the user's machine.
            network: Whether communications that meet on links divide them (`flow`) or each runs as if alone
                (`analytic`).
            overlap_cost: Whether kernels run slower while a collective holds SMs and memory bandwidth.
        """
        _check_mode(network)
        self.cluster: Final = load_cluster(str(cluster)) if isinstance(cluster, str | Path) else cluster
        self.placement: Final = placement
        self.prices: Final = prices if isinstance(prices, PriceSources) else PriceSources(prices)
        self.collectives: Final = collectives
        self.nccl: Final = nccl or NcclSettings()
        self.network: Final[NetworkMode] = network
        self.overlap_cost: Final = overlap_cost
        self._kernel_speeds: dict[str, float] = {}
        self._calibration: Final = calibration
        self._measured_on: Cluster | None = None
        self._cache: Final = _Cache()

    def __repr__(self) -> str:
        name = "no cluster" if self.cluster is None else self.cluster.name
        return f"<Machine: {name}, prices {self.prices.source}, network {self.network}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": _Cache()}

    def with_(self, **changes: Any) -> Machine:
        """Returns a machine with some arguments changed.

        It shares prices of kernels and calls and measurements with this one as far as the changes leave them as they
        are.
        """
        same = {
            "cluster": self.cluster,
            "placement": self.placement,
            "prices": self.prices,
            "collectives": self.collectives,
            "calibration": self._cache.calibration or self._calibration,
            "nccl": self.nccl,
            "network": self.network,
            "overlap_cost": self.overlap_cost,
        }
        other = Machine(**{**same, **changes})
        if not {"prices", "calibration"} & changes.keys():
            other._cache.pricers = self._cache.pricers
        if "collectives" not in changes:
            other._cache.own = self._cache.own
        if not {"cluster", "placement"} & changes.keys():
            other._cache.places, other._cache.placements = self._cache.places, self._cache.placements
        if changes.keys() <= {"network", "overlap_cost"}:
            other._cache.books, other._cache.measured = self._cache.books, self._cache.measured
        if "cluster" not in changes:
            other._measured_on = self._measured_on
        other._kernel_speeds = self._kernel_speeds
        return other

    def changed(self, changes: Mapping[str, Change]) -> Machine:
        """Returns a machine with other figures.

        Args:
            changes: Figures of the cluster (see `hardware/changes.py`), and how many times as fast kernels of a kind
                are, by its word: `{"nic": 2.0, "power": "500W", "attention": 1.5}`.
        """
        figures = {name: change for name, change in changes.items() if name in CHANGES}
        speeds = {name: factor_of(name, change) for name, change in changes.items() if name not in CHANGES}
        for name in speeds.keys() - set(KERNEL_KINDS):
            known = (*CHANGES, *KERNEL_KINDS)
            problem = f'a machine has no "{name}" to change{did_you_mean(name, known)}'
            raise InputError("unknown-name", problem, hint=f"known: {', '.join(known)}")
        machine = self.with_()
        machine._kernel_speeds = {**self._kernel_speeds, **speeds}
        if not figures:
            return machine
        machine = machine.with_(cluster=changed_cluster(self.needed_cluster(), figures))
        # Measurements of the user are of the figures that were there.
        machine._measured_on = self._measured_on or self.cluster
        return machine

    @property
    def calibration(self) -> Calibration | None:
        """The calibration, read once; an error where it is of another GPU."""
        if self._cache.calibration is None and self._calibration is not None:
            from foretrace.cost.calibration import read_calibration

            fit = self._calibration
            fit = read_calibration(fit) if isinstance(fit, str | Path) else fit
            if self.cluster is not None:
                gpu = self.cluster.gpu
                fit.check_gpu(gpu.base or gpu.name)
            self._cache.calibration = fit
        return self._cache.calibration

    def needed_cluster(self) -> Cluster:
        """Returns the cluster; raises a usage error where there is none."""
        if self.cluster is None:
            hint = "for example --cluster h100-dgx; see foretrace list clusters"
            raise UsageError("needs-cluster", "no cluster is named", hint=hint)
        return self.cluster

    def placed(self, world: int, mesh: Mesh | None = None) -> Placement:
        """Returns the placement of `world` ranks; `mesh` tells the groups that should not cross link domains."""
        return self._places(world, mesh)[0]

    def _places(self, world: int, mesh: Mesh | None) -> _Places:
        """Returns the placement of `world` ranks and the link domains they are on."""
        if isinstance(self.placement, Placement):
            return self.placement, None
        check_gpus(world, "world")
        key, cache = (world, mesh if self.placement is None else None), self._cache
        if key not in cache.places:
            placement, domains = (
                place_job(self.needed_cluster(), world, mesh)
                if self.placement is None
                else (Placement.load(str(self.placement), world), None)
            )
            cache.places[key] = cache.placements.setdefault((world, domains), placement), domains
        return cache.places[key]

    def price(self, program: Program) -> PricedProgram:
        """Prices every op of a program: as written in it, else by this machine.

        The last program is remembered, so that scenarios of one job are priced once.
        """
        last = self._cache.last
        if last is None or last.ops.program is not program:
            last = self._cache.last = self._priced(expand(program))
        return last

    def _priced(self, ops: Ops) -> PricedProgram:
        program = ops.program
        if self.cluster is None:
            self._check_needs_no_cluster()
            prices = price(ops, None, None, self.prices.kernels, None, self.overlap_cost)
            return PricedProgram(ops, prices, None, _kernel_notes(self.prices.kernels, prices))
        kernels = self._kernels(ops)
        cluster, notes = self.nccl.on(self.cluster)
        book = self.calls(program.world, program.mesh).for_job()
        sharing = self._sharing(cluster, program)
        prices = price(ops, book, cluster.gpu, kernels, sharing, self.overlap_cost)
        if prices.sources == program.sources:  # the job carries all its prices
            text = f"{cluster.name} prices nothing: the job carries all its prices"
            unused = (Diagnostic("note", "cluster-unused", text),) if program.op_count else ()
            return PricedProgram(ops, prices, None, unused)
        placement, domains = self._places(program.world, program.mesh)
        notes = (*notes, *self._domain_notes(cluster, placement, domains, program.mesh))
        frequency = _frequency_note(self._slowdown(cluster.gpu))
        notes = (*cluster.remarks, *notes, *book.notes, *prices.notes, *frequency, *_kernel_notes(kernels, prices))
        if self.collectives is not None:
            notes = (self.collectives_note(cluster), *notes)
        given = None if self.placement is None else placement
        return PricedProgram(ops, prices, cluster, notes, domains, given)

    def collectives_note(self, cluster: Cluster) -> Diagnostic:
        """Returns the note of what the measured collectives are taken for on `cluster`."""
        measured = f"measured collectives of {self.collectives}"
        if not self._holds_measurements:
            text = f"{measured} are not used: nodes of {cluster.name} are not those that were measured"
            return Diagnostic("warning", "price-source", text)
        if self._measured_on is not None:
            return Diagnostic("note", "price-source", f"{measured} are scaled to {cluster.name} by the network model")
        from foretrace.cost.network.nccl_tests.identity import states_gpu  # most jobs do without, and start faster

        own = self._own_collectives()
        if own is not None and not states_gpu(own):
            text = f"{measured} do not all state their GPU: they are taken to be of {cluster.gpu.name}"
            return Diagnostic("note", "gpu-not-stated", text)
        return Diagnostic("note", "price-source", f"{measured} are taken to be {cluster.name}'s own")

    @property
    def _holds_measurements(self) -> bool:
        """Whether what the user measured says something about the nodes of this cluster."""
        if self._measured_on is None or self.cluster is None:
            return True
        before, after = self._measured_on.node, self.cluster.node
        return (before.gpus, before.island_gpus, before.nics) == (after.gpus, after.island_gpus, after.nics)

    def network_of(self, world: int, mesh: Mesh | None = None, *, in_training: bool = False) -> Network:
        """Returns the network as a job of `world` ranks meets it; meshes with the same placement share one.

        `in_training`: SMs run at the frequency of training instead of that of a benchmark of collectives.
        """
        if in_training:
            return self.calls(world, mesh).network
        placement, domains = self._places(world, mesh)
        networks, key = self._cache.networks, (world, domains)
        if key not in networks:
            networks[key] = self._network(world, placement, in_training=False)
        return networks[key]

    def calls(self, world: int, mesh: Mesh | None = None) -> CallBook:
        """Returns the prices of calls in training, as a job of `world` ranks meets them, with those known so far."""
        placement, domains = self._places(world, mesh)
        books, key = self._cache.books, (world, domains)
        if key not in books:
            books[key] = CallBook(self._network(world, placement, in_training=True))
        return books[key]

    def network_for(self, placement: Placement, *, in_training: bool = False) -> Network:
        """Returns the network for ranks that are placed as `placement` says."""
        return self._network(placement.world, placement, in_training)

    def _network(self, world: int, placement: Placement, in_training: bool) -> Network:
        cluster, _ = self.nccl.on(self.needed_cluster())
        slowdown = self._slowdown(cluster.gpu) if in_training else 1.0
        # Measured times of a single collective say nothing of the links that its messages meet on.
        on_links = not in_training and self.network != "analytic"
        measured = () if on_links else self._measured(cluster, slowdown)
        try:
            return network_of(cluster, world, placement, measured, self.nccl, slowdown)
        except InputError as error:
            raise error.at(str(self.placement) if isinstance(self.placement, str | Path) else None) from None

    def _slowdown(self, gpu: Gpu) -> float:
        """Returns how many times slower SMs run in training than in a measurement of collectives."""
        if self._cache.slowdown is None:
            self._cache.slowdown = slowdown_in_training(gpu)
        return self._cache.slowdown

    def _domain_notes(
        self, cluster: Cluster, placement: Placement, domains: DomainUse | None, mesh: Mesh
    ) -> tuple[Diagnostic, ...]:
        """Returns how much of each link domain is used, and which groups cross domains."""
        crossings = self._cache.crossings
        if mesh.world == placement.world and mesh not in crossings:
            crossings[mesh] = crossing_note(cluster.node, placement, mesh)
        notes = (None if domains is None else domains.note(), crossings.get(mesh))
        return tuple(note for note in notes if note is not None)

    def _measured(self, cluster: Cluster, slowdown: float) -> tuple[Measurements, ...]:
        """Returns the measured collectives that price communication before the model does, best first."""
        key = (cluster.name, slowdown)
        if key not in self._cache.measured:
            source, silicon, forced = self.prices.source, self.prices.silicon, self.nccl.forced
            measured = measured_collectives(
                cluster, self._own_collectives(), source, silicon, slowdown, forced, self.calibration
            )
            self._cache.measured[key] = tuple(
                replace(self._of_this_gpu(tables), measured_on=self._figures_of(tables))
                for tables in measured
                if tables.partial or self._holds_measurements
            )
        return self._cache.measured[key]

    def _figures_of(self, tables: Measurements) -> Cluster | None:
        """Returns the cluster whose figures measured collectives are of; None where it is this one."""
        cluster = self.needed_cluster()
        if tables.partial:  # NVIDIA's, of GPUs of one node
            return with_gpu(cluster, gpu_preset(cluster.gpu.base)) if cluster.gpu.base else None
        return self._measured_on

    def _of_this_gpu(self, tables: Measurements) -> Measurements:
        """Returns what a user measured on the GPU of this machine; raises an error where that is another."""
        if tables.partial:
            return tables
        from foretrace.cost.network.nccl_tests.identity import of_gpu  # most jobs do without, and start faster

        gpu = (self._measured_on or self.needed_cluster()).gpu
        return of_gpu(tables, gpu.base or gpu.name)

    def _own_collectives(self) -> Measurements | None:
        if self._cache.own is None and self.collectives is not None:
            from foretrace.cost.network.nccl_tests.reader import read_measurements

            self._cache.own = read_measurements(self.collectives)
        return self._cache.own

    def _kernels(self, ops: Ops) -> KernelPricer | None:
        """Returns what prices the kernels of a job; None where all of them carry their times."""
        if self.prices.kernels is not None or not _says_kernels(ops.program):
            return self.prices.kernels
        fit = self.calibration
        at_step_clocks = ops.program.has_streams if fit is None else fit.at_step_clocks
        if not at_step_clocks:
            return self.kernel_pricer(ops.program.world)
        from foretrace.cost.mix import mix_of  # most jobs do without, and start faster

        return self.kernel_pricer(ops.program.world, mix_of(ops))

    def kernel_pricer(self, world: int, mix: Mix | None = None) -> KernelPricer:
        """Returns what prices the kernels of jobs of `world` ranks.

        `mix` says how busy their kernels keep the GPU, for calibrations at the frequencies of whole steps and for
        programs that have every kernel of a step.
        """
        if self.prices.kernels is not None:
            return self.prices.kernels
        from foretrace.cost.sources import gpu_pricer, job_pricer  # most jobs carry their times, and start faster

        gpu, sources = self.needed_cluster().gpu, self.prices
        pricer = next((known for of, known in self._cache.pricers if of == gpu), None)
        if pricer is None:
            pricer = gpu_pricer(gpu, sources, self.calibration)
            self._cache.pricers.append((gpu, pricer))
        pricer = job_pricer(pricer, gpu, world, sources, mix, calibrated=self.calibration is not None)
        if not self._kernel_speeds:
            return pricer
        from foretrace.cost.kernels.hypothetical import FasterKernels

        return FasterKernels(pricer, self._kernel_speeds)

    def _sharing(self, cluster: Cluster, program: Program) -> Sharing | None:
        """Returns what the communications of a job share on the links; None where each runs as if alone."""
        if self.network != "flow":
            return None
        from foretrace.cost.network.sharing import Sharing  # most jobs do without, and start faster

        return Sharing(cluster, self.placed(program.world, program.mesh))

    def _check_needs_no_cluster(self) -> None:
        """Raises an error where something was given that only a cluster has."""
        needs = (
            (self.placement is not None, "a placement says where ranks sit on a cluster"),
            (self.collectives is not None, "collectives price the network of a cluster"),
            (self.network == "flow", "network flow divides the links of a cluster"),
            (bool(self.nccl), "NCCL settings apply to a cluster"),
            (self._calibration is not None, "a calibration prices the GPUs of a cluster"),
        )
        for is_given, text in needs:
            if is_given:
                raise InputError("needs-cluster", f"{text}, but there is none", hint="name a cluster")


def _frequency_note(slowdown: float) -> tuple[Diagnostic, ...]:
    """Returns the note that collectives are slower in training than in a measurement of them alone."""
    if slowdown < MIN_SLOWDOWN:
        return ()
    text = (
        f"collectives are priced at the frequency of SMs in training: up to {slowdown:.2f}× what nccl-tests and "
        "foretrace network show on idle GPUs"
    )
    return (Diagnostic("note", "training-frequency", text),)


def _kernel_notes(kernels: KernelPricer | None, prices: Prices) -> tuple[Diagnostic, ...]:
    """Returns the notes of what priced kernels, where it priced any."""
    return kernels.notes if kernels is not None and prices.mix.size and prices.mix.max() >= 0 else ()


def _says_kernels(program: Program) -> bool:
    """Returns whether any op has kernels and no duration."""
    columns = program.templates.columns
    duration_s = np.asarray(columns["duration_s"], dtype=np.float64)
    return bool(len(unpriced_kernels(columns["kind"], columns["kernel"], duration_s)))


def _check_mode(mode: str) -> None:
    known = get_args(NetworkMode)
    if mode not in known:
        problem = f'network "{mode}" is not known{did_you_mean(str(mode), known)}'
        raise InputError("unknown-name", problem, hint=f"known: {', '.join(known)}")
