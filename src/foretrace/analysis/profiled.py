"""A job of a profiler's traces: they are read once, and run as recorded, without the profiler, and changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot
from typing import TYPE_CHECKING, Final

import numpy as np

from foretrace.analysis.rebatch import rebuilt
from foretrace.analysis.scenario import Scenario
from foretrace.errors import Diagnostic, InputError
from foretrace.lower.profiler_trace.lower import Profile, read_profile
from foretrace.lower.profiler_trace.overhead import HOST_SPREAD
from foretrace.lower.torch.recorded_on import recorded_gpu
from foretrace.program.columns import Kind

if TYPE_CHECKING:
    from foretrace.analysis.answer import Simulation
    from foretrace.analysis.job import Job
    from foretrace.lower.choices import HostMode
    from foretrace.program.program import Program

_HOST_WORDS: dict[HostMode, str] = {"none": "no host gaps", "graphs": "the step as one CUDA graph"}

DEVICE_SPREAD: Final = 0.03
"""How far a step bound by its device may be off without the profiler, as a share (docs/profiling-cost.md)."""

GRAPH_SPREAD: Final = 0.06
"""The same for a step as one CUDA graph."""

REPLAY_SPREAD: Final = 0.02
"""How far a replay may be from the recorded step, as a share, before it is said."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """A job and what was recorded of it."""

    job: Job
    profile: Profile

    @classmethod
    def of(cls, job: Job) -> Profiled:
        """Reads a job's traces; on a cluster, what they communicate is priced anew."""
        with job.watch(f"reading {job.name}"):
            return cls(job, read_profile(job.paths, replace(job.choices, priced=job.cluster is not None)))

    def program(self) -> Program:
        """The job as its choices have it."""
        return self._changed(self.job.choices.host)

    def simulate(self, explain: bool = True) -> Simulation:
        """Runs it; beside the answer, what the step takes without the profiler, and, where anything is changed, what
        both were before: `unchanged_step_time_s` as recorded if the host runs as recorded, else without the profiler.
        """
        program = self.program()
        answer = self.job.run(program, explain)
        host, without = self.job.choices.host, answer
        if host == "profiled":
            has_band = any(one.low != one.high for one in answer.provenance)
            without = self.job.run(self._changed("unprofiled"), explain and has_band)
        answer = replace(
            answer,
            step_time_unprofiled_s=without.step_time_s,
            step_time_unprofiled_band_s=self._band(without) if explain else None,
            unchanged_step_time_unprofiled_s=without.unchanged_step_time_s,
            diagnostics=(*self._warnings(program), *self._off(answer.step_time_s), *answer.diagnostics),
        )
        if host != "profiled":
            answer = replace(answer, step_time_band_s=answer.step_time_unprofiled_band_s)
        words = self._changes()
        if words:
            answer = replace(answer, scenario=replace(answer.scenario, choices=words))
            as_is = self._before("unprofiled")
            recorded = self._before("profiled") if host == "profiled" else as_is
            answer = replace(answer, unchanged_step_time_s=recorded, unchanged_step_time_unprofiled_s=as_is)
        return answer

    def _before(self, host: HostMode) -> float:
        """What the step takes unchanged, in seconds."""
        as_is = replace(self.job, scenario=Scenario())
        return as_is.run(self.profile.program(host), explain=False).step_time_s

    def _band(self, without: Simulation) -> tuple[float, float] | None:
        """Of a step without the profiler: the step with the host's time at either end of its own band, and by how much
        the device may be off and prices are."""
        step_s, host = without.step_time_s, self.job.choices.host
        if step_s <= 0:
            return None
        low, high = without.step_time_band_s or (step_s, step_s)
        ends = [step_s, step_s]
        if host in ("profiled", "unprofiled"):
            program = self._changed("unprofiled")
            paced = (_paced(program, 1 - HOST_SPREAD), _paced(program, 1 + HOST_SPREAD))
            ends = [self.job.run(one, explain=False).step_time_s for one in paced]
        device = GRAPH_SPREAD if host == "graphs" else DEVICE_SPREAD
        below = hypot(1 - ends[0] / step_s, device, 1 - low / step_s)
        above = hypot(ends[1] / step_s - 1, device, high / step_s - 1)
        return step_s * max(1 - below, 0.0), step_s * (1 + above)

    def _changed(self, host: HostMode) -> Program:
        """With another batch, or as another GPU would run it, where choices say so."""
        choices, program = self.job.choices, self.profile.program(host)
        if choices.batch == 1 and choices.gpu is None:
            return program
        return rebuilt(program, batch=choices.batch, gpu=choices.gpu)

    def _changes(self) -> tuple[str, ...]:
        """How a recorded step is run otherwise, in words."""
        choices = self.job.choices
        words = [_HOST_WORDS[choices.host]] if choices.host in _HOST_WORDS else []
        words += [f"a batch {choices.batch:g}× as large"] if choices.batch != 1 else []
        words += [f"on a {choices.gpu}"] if choices.gpu is not None else []
        return tuple(words)

    def _warnings(self, program: Program) -> tuple[Diagnostic, ...]:
        """What a reader of the job on a cluster should know: on what GPU it computes, and what no trace tells."""
        if self.job.cluster is None:
            return ()
        from foretrace.hardware.presets import cluster as load_cluster

        found = []
        cluster, recorded, wanted = load_cluster(self.job.cluster), recorded_gpu(program), self.job.choices.gpu
        runs_on = _preset_name(wanted or recorded)
        if runs_on != cluster.gpu.name and (wanted or recorded):
            how = f"as if on {wanted} (--what-if gpu={cluster.gpu.name}" if wanted else f"as recorded on {recorded}"
            if not wanted:
                how += f" (--what-if gpu={cluster.gpu.name}" if runs_on else " (a GPU that is not known here"
            text = f"{cluster.name} has {cluster.gpu.title}: computation stays {how})"
            found.append(Diagnostic("warning", text))
        traced = len(self.profile.ranks)
        if program.world > traced:
            text = (
                f"left out, since a trace does not tell it: the slowest of {program.world:,} GPUs, which the others "
                "wait for, and what kernels lose to collectives beside them; foretrace predict counts both"
            )
            found.append(Diagnostic("note", text))
        return tuple(found)

    def _off(self, step_s: float) -> tuple[Diagnostic, ...]:
        """A warning where the replay of a step, with nothing changed, does not take what was recorded."""
        job, choices, recorded_s = self.job, self.job.choices, self.profile.recorded_s
        changed = choices.host != "profiled" or self._changes() or job.scenario or job.cluster is not None
        if changed or choices.mesh is not None or choices.gpus is not None or recorded_s <= 0:
            return ()
        off = step_s / recorded_s - 1
        if abs(off) <= REPLAY_SPREAD:
            return ()
        text = (
            f"the replay takes {step_s * 1e3:.4g} ms, the recorded step {recorded_s * 1e3:.4g} ms ({off:+.1%}): what "
            "waits for what is not understood here, or steps vary; what-ifs may be off by as much"
        )
        return (Diagnostic("warning", text),)


def _preset_name(gpu: str | None) -> str | None:
    """The preset that a GPU's name means; None where there is none."""
    from foretrace.hardware.presets import gpu as preset

    try:
        return preset(gpu).name if gpu else None
    except InputError:
        return None


def _paced(program: Program, times: float) -> Program:
    """A recorded program whose host takes so many times its time."""
    templates = program.templates
    columns = dict(templates.columns)
    threads = np.array([lane.kind == "host" for lane in program.lanes])
    of_host = (columns["kind"] == Kind.HOST) & threads[columns["lane"].astype(np.int64)]
    duration_s = columns["duration_s"].astype(np.float64)
    columns["duration_s"] = np.where(of_host, duration_s * times, duration_s)
    return replace(program, templates=replace(templates, columns=columns))
