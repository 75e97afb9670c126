"""A job as a person names it: files, what they leave open, what it runs on and what is different."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.analysis.scenario import Scenario
from foretrace.analysis.sharing import NetworkMode
from foretrace.analysis.simulate import Executor, simulate
from foretrace.errors import UsageError
from foretrace.lower.choices import Choices
from foretrace.lower.load import file_kind, load

if TYPE_CHECKING:
    from foretrace.analysis.answer import Simulation
    from foretrace.cost.network import NcclSettings
    from foretrace.cost.sources import PriceSource
    from foretrace.mesh import Mesh
    from foretrace.program.program import Program


Watch = Callable[[str], AbstractContextManager[object]]
"""Shows, while it is entered, what is being done."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything a simulation needs; `paths` are several where they are campaigns of one job."""

    paths: tuple[Path, ...]
    choices: Choices = field(default_factory=Choices)
    cluster: str | None = None
    placement: Path | None = None
    collectives: Path | None = None
    scenario: Scenario = field(default_factory=Scenario)
    executor: Executor = "auto"
    folded: bool = True
    watch: Watch = nullcontext
    network: NetworkMode = "analytic"
    overlap_cost: bool = True
    prices: PriceSource = "best"
    silicon: bool | None = None
    nccl: NcclSettings | None = None
    calibration: Path | None = None

    @property
    def name(self) -> str:
        """What to call it."""
        return " ".join(map(str, self.paths))

    def program(self) -> Program:
        """The program of its files; a cluster prices what a real run communicates anew."""
        self._check()
        if file_kind(self.paths[0]) == "profile":
            from foretrace.analysis.profiled import Profiled  # most jobs do without, and start faster

            return Profiled.of(self).program()
        choices = self.choices
        if self.cluster is not None and file_kind(self.paths[0]) == "traces":
            choices = replace(choices, priced=True)
        with self.watch(f"reading {self.name}"):
            return load(self.paths, choices)

    def mesh(self) -> Mesh:
        """The mesh of its program."""
        return self.program().mesh

    def simulate(self, explain: bool = True) -> Simulation:
        """Runs it; where choices build traces otherwise than they were taken, the job as it was is run as well, so that
        the answer says what the change amounts to."""
        if file_kind(self.paths[0]) == "profile":
            from foretrace.analysis.profiled import Profiled  # most jobs do without, and start faster

            self._check()
            return Profiled.of(self).simulate(explain)
        program = self.program()
        answer = self.run(program, explain)
        before = self._as_traced()
        if before is None:
            return answer
        unchanged = before.program()
        words = self._changes(program.mesh, unchanged.mesh)
        if not words:
            return answer
        step = before.run(unchanged, explain=False).step_time_s
        scenario = replace(answer.scenario, choices=words)
        return replace(answer, unchanged_step_time_s=step, scenario=scenario)

    def _as_traced(self) -> Job | None:
        """The job without the choices that change it; None where there are none."""
        choices = self.choices
        if file_kind(self.paths[0]) != "traces" or not {"mesh", "gpus", "routing", "schedule"} & set(choices.made()):
            return None
        traced = choices.mesh if choices.traced is None else choices.traced
        # A real run is built anew as well, not replayed: what is left out in building is left out on both sides.
        schedule = None if self._is_ex_situ() else "1f1b"
        microbatches = choices.microbatches if schedule is None else None
        as_was = replace(
            choices, mesh=None, traced=traced, gpus=None, routing=None, schedule=schedule, microbatches=microbatches
        )
        return None if as_was == choices else replace(self, choices=as_was, scenario=Scenario())

    def _is_ex_situ(self) -> bool:
        from foretrace.formats.megatron_trace import read_runs
        from foretrace.formats.megatron_trace.ex_situ import is_ex_situ

        return is_ex_situ(read_runs(self.paths))

    def _changes(self, mesh: Mesh, before: Mesh) -> tuple[str, ...]:
        """The choices that change a job, in words."""
        choices = self.choices
        words = [f"mesh {mesh}"] if mesh != before else []
        words += [f"routing {choices.routing:g}×"] if choices.routing is not None else []
        words += [choices.schedule] if choices.schedule is not None else []
        return tuple(words)

    def run(self, program: Program, explain: bool) -> Simulation:
        """Runs its program on its cluster, under its scenarios."""
        from foretrace.hardware.presets import cluster as load_cluster
        from foretrace.placement import Placement

        is_workload = file_kind(self.paths[0]) == "aicb"
        if is_workload and self.cluster is None:
            raise UsageError(
                f"{self.name} says how many bytes are sent, not how long that takes: on what cluster?",
                hint="for example --cluster h100-dgx; see foretrace list clusters",
            )
        cluster = None if self.cluster is None else load_cluster(self.cluster)
        if cluster is not None:
            cluster.check_fits(program.world, f"{self.paths[0]}:1" if is_workload else self.name)
        placement = None if self.placement is None else Placement.load(self.placement, program.world)
        with self.watch(f"simulating {program.op_count:,} ops on {program.world:,} ranks"):
            return simulate(
                program,
                cluster=cluster,
                placement=placement,
                collectives=self.collectives,
                what_if=self.scenario.what_if,
                stragglers=self.scenario.stragglers,
                slow_links=self.scenario.slow_links,
                jitter=self.scenario.jitter,
                network=self.network,
                overlap_cost=self.overlap_cost,
                prices=self.prices,
                silicon=self.silicon,
                nccl=self.nccl,
                calibration=self.calibration,
                executor=self.executor,
                folded=self.folded,
                explain=explain,
            )

    def measured(self) -> Simulation:
        """What was recorded, where the files are traces of a real run; otherwise the same as `simulate`."""
        if file_kind(self.paths[0]) == "traces":
            from foretrace.analysis.recorded import recorded
            from foretrace.lower.megatron_trace import read_recording

            recording = read_recording(self.paths, self.choices)
            if recording is not None:
                return recorded(recording)
        return self.simulate()

    def _check(self) -> None:
        kinds = {file_kind(path) for path in self.paths}
        if len(self.paths) > 1 and kinds != {"traces"} and not kinds <= {"profile", "execution"}:
            raise UsageError(
                f"{self.name}: only traces of one job are read together", hint="give one workload or program at a time"
            )
        if "program" in kinds and self.choices.made():
            raise UsageError(
                f"{self.name} is a program, in which {', '.join(self.choices.made())} are settled",
                hint="make the program anew, or simulate what it was made of",
            )
        if self.cluster is None and self.collectives is not None:
            raise UsageError("--collectives prices the network of a cluster", hint="name it with --cluster")
        if self.cluster is None and self.calibration is not None:
            raise UsageError("--calibration prices the GPUs of a cluster", hint="name it with --cluster")
        if self.cluster is None and self.nccl:
            raise UsageError("--nccl, --nccl-algo and --nccl-proto are of a cluster", hint="name it with --cluster")
        if self.cluster is None and self.network == "flow":
            raise UsageError("--network flow divides the links of a cluster", hint="name it with --cluster")
