"""A job of a profiler's traces: they are read once, and run as recorded, without the profiler, and changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from foretrace.analysis.rebatch import rebuilt
from foretrace.analysis.scenario import Scenario
from foretrace.lower.profiler_trace.lower import Profile, read_profile

if TYPE_CHECKING:
    from foretrace.analysis.answer import Simulation
    from foretrace.analysis.job import Job
    from foretrace.lower.choices import HostMode
    from foretrace.program.program import Program

_HOST_WORDS: dict[HostMode, str] = {"none": "no host gaps", "graphs": "the step as one CUDA graph"}


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
        """Runs it; beside the answer, what the step takes without the profiler, and, where choices change it, before:
        as recorded if its host runs as recorded, else without the profiler."""
        host = self.job.choices.host
        answer = self.job.run(self.program(), explain)
        unprofiled_s = answer.step_time_s
        if host == "profiled":
            unprofiled_s = self.job.run(self._changed("unprofiled"), explain=False).step_time_s
        answer = replace(answer, step_time_unprofiled_s=unprofiled_s)
        words = self._changes()
        if not words:
            return answer
        before = self.profile.program("profiled" if host == "profiled" else "unprofiled")
        step_s = replace(self.job, scenario=Scenario()).run(before, explain=False).step_time_s
        return replace(answer, unchanged_step_time_s=step_s, scenario=replace(answer.scenario, choices=words))

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
