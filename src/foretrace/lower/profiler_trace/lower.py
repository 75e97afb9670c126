"""Traces of a job's ranks as a program: replayed it takes the recorded step, changed it answers what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foretrace.errors import Diagnostic, InputError
from foretrace.lower.choices import Choices
from foretrace.lower.profiler_trace.execution import read_with_shapes
from foretrace.lower.profiler_trace.gradients import with_gradients_reduced
from foretrace.lower.profiler_trace.modes import mode_notes, times
from foretrace.lower.profiler_trace.rank_step import RankStep, read_step, step_notes
from foretrace.lower.profiler_trace.resize import communicate
from foretrace.lower.profiler_trace.write import GPU, StepWriter
from foretrace.lower.torch.launched import device_kernels
from foretrace.lower.torch.recorded_on import recorded_source
from foretrace.program.build import ProgramBuilder
from foretrace.program.kernels import kernel_text
from foretrace.program.program import Program


def lower_profile(paths: Sequence[str | Path], choices: Choices) -> Program:
    """The program of a job's traces, one of each rank: a steady step, as `choices` wants its host to run."""
    traces = with_gradients_reduced(read_with_shapes(paths), choices)
    ranks = _together([read_step(trace, choices.steps) for trace in traces])
    met = communicate(
        [rank.trace for rank in ranks],
        [rank.links for rank in ranks],
        [rank.alike.device.ravel() for rank in ranks],
        choices,
    )
    taken = [times(rank, choices.host) for rank in ranks]
    notes = [note for rank in ranks for note in _notes(rank, choices, len(ranks))]
    build = ProgramBuilder(met.mesh, title=_title(ranks), repeats=True, diagnostics=(*notes, *met.notes))
    if any(one.shares is not None and one.shares.any() for one in taken):
        build.resource(GPU, 1.0)
    for at, rank in enumerate(ranks):
        if not met.ranks[at]:
            continue  # on a smaller mesh it stands for none
        name = _name(rank, at)
        kernels = {event: kernel_text(one) for event, one in device_kernels(rank.trace, rank.links).items()}
        writer = StepWriter(rank, taken[at], met.calls[at], kernels, recorded_source(_gpu(rank)))
        writer.write(build.role(name, met.ranks[at]), build.block(f"step of {name}"))
    return build.program()


def _notes(rank: RankStep, choices: Choices, count: int) -> list[Diagnostic]:
    """What a reader should know of a trace; of several, each says of which."""
    where = Path(rank.trace.path).name if count > 1 else None
    return [*step_notes(rank, where), *mode_notes(rank, choices.host, where)]


def _name(rank: RankStep, at: int) -> str:
    return f"rank {at if rank.trace.rank is None else rank.trace.rank}"


def _together(ranks: list[RankStep]) -> list[RankStep]:
    """The ranks' steps that all of them have."""
    if len(ranks) == 1:
        return ranks
    names = [{rank.steps.names[at] for at in rank.alike.steps} for rank in ranks]
    common = set.intersection(*names)
    if not common:
        raise InputError(
            "the ranks' traces have no step in common",
            where=ranks[0].trace.path,
            hint="give traces of the same run, of the same steps",
        )
    return [rank.of_steps(common) for rank in ranks]


def _gpu(rank: RankStep) -> str:
    number = int(rank.device.stream[0] >> 32)
    names = {one.number: one.name for one in rank.trace.devices}
    return names.get(number, next(iter(names.values()), ""))


def _title(ranks: Sequence[RankStep]) -> str:
    name = Path(ranks[0].trace.path).name
    return name if len(ranks) == 1 else f"{name} and {len(ranks) - 1} more"
