"""Traces of a job's ranks as a program: replayed it takes the recorded step, changed it answers what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.option_checks import HostMode
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.profiler_trace.host_modes import mode_notes, times
from foretrace.inputs.profiler_trace.job.gradients import with_gradients_reduced
from foretrace.inputs.profiler_trace.job.ranks import Meetings
from foretrace.inputs.profiler_trace.job.resize import communicate
from foretrace.inputs.profiler_trace.notes import grouped
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions
from foretrace.inputs.profiler_trace.rank.rank_step import RankStep, read_step, step_notes
from foretrace.inputs.profiler_trace.write_step import StepWriter, shared_gpus
from foretrace.inputs.torch_ops.launched import device_kernels
from foretrace.inputs.torch_ops.recorded_gpu import recorded_source
from foretrace.program.build import ProgramBuilder
from foretrace.program.kernels import kernel_text
from foretrace.program.program import Program


def profile_of(traces: Sequence[RankProfile], options: ProfilerTraceOptions) -> JobProfile:
    """Understands a job's traces, for whatever host; `options` decides all else."""
    traces = with_gradients_reduced(traces, options)
    ranks = _together([read_step(trace, options.steps) for trace in traces])
    met = communicate(
        [rank.trace for rank in ranks],
        [rank.links for rank in ranks],
        [rank.alike.device.ravel() for rank in ranks],
        options,
    )
    kernels = (device_kernels(rank.trace, rank.links) for rank in ranks)
    texts = tuple({event: kernel_text(one) for event, one in found.items()} for found in kernels)
    return JobProfile(tuple(ranks), met, texts)


@dataclass(frozen=True, slots=True)
class JobProfile:
    """What was recorded of a job: the step of each rank, how ranks meet, and each rank's kernels by the number of their
    event, as text."""

    ranks: tuple[RankStep, ...]
    met: Meetings
    kernels: tuple[dict[int, str], ...]

    @property
    def recorded_s(self) -> float:
        """The recorded step of the job, in seconds: of its ranks the longest."""
        return max(rank.recorded_s for rank in self.ranks)

    def program(self, host: HostMode) -> Program:
        """A steady step with its host as it is wanted."""
        taken = [times(rank, host) for rank in self.ranks]
        notes = grouped(note for rank in self.ranks for note in self._notes(rank, host))
        build = ProgramBuilder(
            self.met.mesh, title=_title(self.ranks), repeats=True, diagnostics=(*notes, *self.met.notes)
        )
        drawn = [shared_gpus(rank, one) for rank, one in zip(self.ranks, taken, strict=True)]
        for gpu in sorted(set().union(*drawn)):
            build.resource(gpu, 1.0)
        for at, rank in enumerate(self.ranks):
            if not self.met.ranks[at]:
                continue  # on a smaller mesh it stands for none
            name = f"rank {at if rank.trace.rank is None else rank.trace.rank}"
            writer = StepWriter(rank, taken[at], self.met.calls[at], self.kernels[at], recorded_source(_gpu(rank)))
            writer.write(build.role(name, self.met.ranks[at]), build.block(f"step of {name}"))
        return build.program()

    def _notes(self, rank: RankStep, host: HostMode) -> list[Diagnostic]:
        """What a reader should know of a trace; of several, each says of which."""
        where = Path(rank.trace.path).name if len(self.ranks) > 1 else None
        return [*step_notes(rank, where), *mode_notes(rank, host, where)]


def _together(ranks: list[RankStep]) -> list[RankStep]:
    """The ranks' steps that all of them have."""
    if len(ranks) == 1:
        return ranks
    names = [{rank.steps.names[at] for at in rank.alike.steps} for rank in ranks]
    common = set.intersection(*names)
    if not common:
        raise InputError(
            "several-inputs",
            "the ranks' traces have no step in common",
            where=ranks[0].trace.path,
            hint="give traces of the same run, of the same steps",
        )
    return [rank.of_steps(common) for rank in ranks]


def _gpu(rank: RankStep) -> str:
    number = int(rank.device.stream[0] >> 32)
    names = {device.number: device.name for device in rank.trace.devices}
    return names.get(number, next(iter(names.values()), ""))


def _title(ranks: Sequence[RankStep]) -> str:
    name = Path(ranks[0].trace.path).name
    return name if len(ranks) == 1 else f"{name} and {len(ranks) - 1} more"
