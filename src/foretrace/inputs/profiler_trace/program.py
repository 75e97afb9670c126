"""Traces of a job's ranks as a program: replayed it takes the recorded step, changed it answers what-ifs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from foretrace.basics.errors import Diagnostic, InputError, printable, shortened
from foretrace.basics.units import format_time
from foretrace.inputs.option_values import HostMode
from foretrace.inputs.plausibility import MAX_LINK_BYTES_PER_S
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.profiler_trace.host_modes import mode_notes, times
from foretrace.inputs.profiler_trace.job.communication import communications
from foretrace.inputs.profiler_trace.job.gradients import with_gradients_reduced
from foretrace.inputs.profiler_trace.job.ranks import Meetings
from foretrace.inputs.profiler_trace.job.resize import communicate
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions
from foretrace.inputs.profiler_trace.rank.rank_step import RankStep, read_step, step_notes
from foretrace.inputs.profiler_trace.write_step import StepWriter, Times, shared_gpus
from foretrace.inputs.torch_ops.launched import device_kernels
from foretrace.inputs.torch_ops.recorded_gpu import recorded_source
from foretrace.program.build import ProgramBuilder
from foretrace.program.kernels import DTYPE_BYTES, Attention, Gemm, GroupedGemm, Kernel, kernel_text
from foretrace.program.program import Program

_NUMBER: Final = re.compile(r"(?<![\w#.,-])\d[\d,]*(?:\.\d+)?(?![\w.]*\w)")
"""A number that stands alone, so that names keep theirs."""


MAX_FLOPS_PER_SM: Final = 2e13
"""FLOP/s of products of 2-byte elements: 7.5e12 on an H200, 1.5e13 on a B200 (NVIDIA's datasheets, dense)."""

MAX_PACE_RATIO: Final = 1.2
"""The ratio of the longest to the shortest step among ranks of one job. Ranks wait for each other, so that only the
first and last recorded steps differ."""

MAX_SMS: Final = 304
"""SMs of the GPU with the most, an MI300X, where a trace does not state them."""


def profile_of(traces: Sequence[RankProfile], options: ProfilerTraceOptions) -> JobProfile:
    """Understands a job's traces, for whatever host; `options` decides all else."""
    traces = with_gradients_reduced(traces, options)
    ranks = _together([read_step(trace, options.steps) for trace in traces])
    meetings = communicate(
        [rank.trace for rank in ranks],
        [rank.links for rank in ranks],
        [rank.steady.device.ravel() for rank in ranks],
        options,
    )
    kernels = [device_kernels(rank.trace, rank.links) for rank in ranks]
    texts = tuple({event: kernel_text(kernel) for event, kernel in of_event.items()} for of_event in kernels)
    rates = [note for rank, own in zip(ranks, kernels, strict=True) for note in _rate_notes(rank, own)]
    return JobProfile(tuple(ranks), meetings, texts, (*rates, *_pace_notes(ranks)))


@dataclass(frozen=True, slots=True)
class JobProfile:
    """The recording of a job: the step of each rank, how ranks meet, and each rank's kernels as text by event."""

    ranks: tuple[RankStep, ...]
    meetings: Meetings
    kernels: tuple[dict[int, str], ...]
    rates: tuple[Diagnostic, ...] = ()
    """Warnings on kernels that are faster than their GPU or its links, and on ranks whose steps differ."""

    @property
    def recorded_s(self) -> float:
        """The recorded step of the job, in seconds: of its ranks the longest."""
        return max(rank.recorded_s for rank in self.ranks)

    def program(self, host: HostMode) -> Program:
        """Returns a steady step with its host in a mode."""
        steps = [(rank, times(rank, host)) for rank in self.ranks]
        return self.written(steps, self._notes(host))[0]

    def written(
        self, steps: Sequence[tuple[RankStep, Times]], notes: Iterable[Diagnostic], *, held_by_queue: bool = True
    ) -> tuple[Program, dict[int, StepWriter]]:
        """Writes a step of every rank, each with its own times, as one program.

        Returns:
            The program, and the writer of each trace by its number; without those that stand for no rank of the mesh.
        """
        build = ProgramBuilder(
            self.meetings.mesh, title=_title(self.ranks), repeats=True, diagnostics=(*notes, *self.meetings.notes)
        )
        for gpu in sorted(set().union(*(shared_gpus(rank, own_times) for rank, own_times in steps))):
            build.resource(gpu, 1.0)
        writers: dict[int, StepWriter] = {}
        for at, (rank, own_times) in enumerate(steps):
            if not self.meetings.ranks[at]:
                continue  # on a smaller mesh it stands for none
            name = f"rank {at if rank.trace.rank is None else rank.trace.rank}"
            writer = StepWriter(rank, own_times, self.meetings.calls[at], self.kernels[at], recorded_source(_gpu(rank)))
            role, block = build.role(name, self.meetings.ranks[at]), build.block(f"step of {name}")
            writer.write(role, block, held_by_queue=held_by_queue)
            writers[at] = writer
        return build.program(), writers

    def reading_notes(self) -> list[Diagnostic]:
        """Returns what a reader should know of how the traces were read."""
        own = (note for rank in self.ranks for note in step_notes(rank, self._where(rank)))
        return grouped((*own, *self.rates))

    def _notes(self, host: HostMode) -> list[Diagnostic]:
        """Returns the same, with what a mode of the host means."""
        own = (
            note
            for rank in self.ranks
            for note in (*step_notes(rank, self._where(rank)), *mode_notes(rank, host, self._where(rank)))
        )
        return grouped((*own, *self.rates))

    def _where(self, rank: RankStep) -> str | None:
        """Returns the name of a trace where there are several."""
        return Path(rank.trace.path).name if len(self.ranks) > 1 else None


def _pace_notes(ranks: Sequence[RankStep]) -> list[Diagnostic]:
    """Returns a warning on ranks whose steps take different times: ranks of one job wait for each other."""
    fast, slow = min(ranks, key=lambda rank: rank.recorded_s), max(ranks, key=lambda rank: rank.recorded_s)
    if slow.recorded_s <= MAX_PACE_RATIO * fast.recorded_s:
        return []
    text = (
        f"its steps take {format_time(slow.recorded_s)}, those of {fast.trace.path} {format_time(fast.recorded_s)}: "
        "ranks of one job take the same time; a unit may be mistaken, or the traces are of two jobs"
    )
    return [Diagnostic("warning", "implausible-time", text, slow.trace.path)]


def _rate_notes(rank: RankStep, kernels: Mapping[int, Kernel]) -> list[Diagnostic]:
    """Returns warnings on kernels that compute more than the SMs of their GPU can, or send more than any link."""
    trace = rank.trace
    sms = max((device.sms for device in trace.devices), default=0) or MAX_SMS
    duration_s = np.maximum(trace.events.duration_s, 1e-6)
    fast = [
        event
        for event, kernel in kernels.items()
        if isinstance(kernel, Gemm | GroupedGemm | Attention)
        and kernel.flops > sms * MAX_FLOPS_PER_SM * 2 / DTYPE_BYTES[kernel.dtype] * duration_s[event]
    ]
    sent = [
        event
        for event, call in communications(trace, rank.links).items()
        if call.group.size > 1 and call.bytes > MAX_LINK_BYTES_PER_S * duration_s[event]
    ]
    notes = []
    for events, verb, what in (
        (fast, "compute", f"more than {sms} SMs of any GPU can"),
        (sent, "send", "more than any link can"),
    ):
        if events:
            name = printable(shortened(trace.strings[trace.events.name[events[0]]]))
            count = f"1 kernel {verb}s {what}:" if len(events) == 1 else f"{len(events):,} kernels {verb} {what}, first"
            text = f'{count} "{name}"; times or shapes are wrong'
            notes.append(Diagnostic("warning", "implausible-rate", text, trace.path))
    return notes


def _together(ranks: list[RankStep]) -> list[RankStep]:
    """Returns the ranks, each with only the steps that all of them have."""
    if len(ranks) == 1:
        return ranks
    names = [{rank.steps.names[at] for at in rank.steady.steps} for rank in ranks]
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


def grouped(notes: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Merges the notes of a job's ranks that differ in numbers alone into one with the range of each number.

    The note names its first trace and counts the others. A note without a place is left as it is.
    """
    similar: dict[tuple[str, str, str], list[Diagnostic]] = {}
    for note in notes:
        text = _NUMBER.sub("0", note.message) if note.where is not None else note.message
        similar.setdefault((note.level, note.code, text), []).append(note)
    return [_merged(some) for some in similar.values()]


def _merged(notes: list[Diagnostic]) -> Diagnostic:
    first = notes[0]
    if len(notes) == 1 or first.where is None:
        return first
    numbers = [list(texts) for texts in zip(*(_NUMBER.findall(note.message) for note in notes), strict=True)]
    ranges = iter([_range(texts) for texts in numbers])
    message = _NUMBER.sub(lambda _: next(ranges), first.message)
    return Diagnostic(first.level, first.code, message, f"{first.where} and {len(notes) - 1:,} more")


def _range(texts: list[str]) -> str:
    low, high = (pick(texts, key=lambda text: float(text.replace(",", ""))) for pick in (min, max))
    return low if low == high else f"{low}–{high}"
