"""A real run's profiler traces, and the questions that may be asked of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from foretrace.basics.arguments import checked, checked_calls
from foretrace.basics.errors import Diagnostic, ForetraceError, InputError
from foretrace.basics.viewable import Viewable
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.profiler_trace.input import ProfilerTraceInput
from foretrace.readings.answer.recorded import recorded_answer
from foretrace.readings.explain import Explanation, explain
from foretrace.readings.explain.path import PathReading
from foretrace.readings.explain.stragglers import RankLateness
from foretrace.readings.profiler_views import annotations as _annotations
from foretrace.readings.profiler_views import bandwidth as _bandwidth
from foretrace.readings.profiler_views import breakdown as _breakdown
from foretrace.readings.profiler_views import diff as _diff
from foretrace.readings.profiler_views import idle as _idle
from foretrace.readings.profiler_views import kernels as _kernels
from foretrace.readings.profiler_views import launches as _launches
from foretrace.readings.profiler_views import queues as _queues
from foretrace.readings.profiler_views import sequences as _sequences
from foretrace.readings.profiler_views import steps as _steps
from foretrace.readings.profiler_views import summary as _summary
from foretrace.readings.profiler_views.rank import Rank, in_whole_us
from foretrace.readings.profiler_views.statistics import Spread

_HTA_STEPS: Final = "as HTA counts: from the first work to the last, that of the last of several ProfilerSteps left out"


@checked_calls
class ProfilerTrace(Viewable):
    """The traces of a job's ranks, one file each; one method for each question.

        trace = foretrace.ProfilerTrace.load("traces/")
        print(trace.temporal_breakdown().mean.idle_s)

    What counts are the recorded steps of which `foretrace simulate` makes its replay, so both have the same step.
    Holistic Trace Analysis counts all work but that of the last of several ProfilerSteps: `hta_steps` does the same.
    `whole_us` cuts every event to whole microseconds, as HTA reads traces that have nanoseconds.
    """

    @checked
    def __init__(self, traces: Sequence[RankProfile], *, hta_steps: bool = False, whole_us: bool = False) -> None:
        if not traces:
            raise InputError(
                "missing-argument", "no trace is given", hint="name a trace of PyTorch's profiler or of Nsight Systems"
            )
        numbers: set[int] = set()
        ranks = []
        for number, trace in enumerate(traces):
            rank = trace.rank if trace.rank is not None and trace.rank not in numbers else None
            rank = (
                next(free for free in range(number + len(traces) + 1) if free not in numbers) if rank is None else rank
            )
            numbers.add(rank)
            ranks.append(Rank(in_whole_us(trace) if whole_us else trace, rank, hta_steps=hta_steps))
        ranks.sort(key=lambda rank: rank.number)
        self.ranks: tuple[Rank, ...] = tuple(ranks if hta_steps else _together(ranks))
        # The timeline has the ranks in this order, numbered from 0.
        self._input = ProfilerTraceInput([rank.trace for rank in self.ranks])

    @classmethod
    def load(
        cls, paths: str | Path | Sequence[str | Path], *, hta_steps: bool = False, whole_us: bool = False
    ) -> ProfilerTrace:
        """Reads traces: files (plain or gz), folders, patterns; an Nsight Systems export enters the same way, and an
        execution trace gives the shapes of the ops of its process."""
        from foretrace.inputs.profiler_trace.execution_join import read_with_shapes

        given = [paths] if isinstance(paths, str | Path) else list(paths)
        return cls(read_with_shapes([Path(path) for path in given]), hta_steps=hta_steps, whole_us=whole_us)

    def rank(self, number: int) -> Rank:
        """Returns one of the ranks."""
        for rank in self.ranks:
            if rank.number == number:
                return rank
        known = ", ".join(str(rank.number) for rank in self.ranks)
        raise InputError("no-such-rank", f"rank {number} is not among the traces", hint=f"known: {known}")

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Diagnostics of reading the traces, and of what the analyses leave out."""
        notes = [note for rank in self.ranks for note in rank.trace.diagnostics]
        if self.ranks[0].hta_steps:
            notes.append(Diagnostic("note", "rows-skipped", _HTA_STEPS))
        else:
            notes += [note for rank in self.ranks for note in self._left_out(rank)]
        return tuple(notes)

    def _left_out(self, rank: Rank) -> list[Diagnostic]:
        """Returns why steps of a rank do not count; with several ranks, each note names its rank."""
        where = Path(rank.trace.path).name if len(self.ranks) > 1 else None
        return [replace(note, where=where) for note in rank.counted_steps.notes]

    @cached_property
    def occupancies(self) -> tuple[_breakdown.Occupancy, ...]:
        """How long the device of each rank did what, alone and together."""
        return tuple(_breakdown.occupancy(rank) for rank in self.ranks)

    def temporal_breakdown(self) -> _breakdown.TemporalBreakdown:
        """Returns the time idle, computing and neither: HTA's get_temporal_breakdown."""
        return _breakdown.temporal(self.occupancies)

    def overlap(self) -> _breakdown.JobOverlap:
        """Returns how much communication overlaps computation, and how much is exposed: HTA's get_comm_comp_overlap."""
        return _breakdown.overlap(self.occupancies)

    def idle(self, consecutive_delay_s: float = _idle.CONSECUTIVE_DELAY_S) -> _idle.IdleBreakdown:
        """Returns why streams and devices idle: HTA's get_idle_time_breakdown."""
        if not consecutive_delay_s >= 0:
            raise InputError(
                "out-of-range",
                f"consecutive_delay_s is {consecutive_delay_s!r}",
                hint="expected seconds, such as 30e-6",
            )
        return _idle.IdleBreakdown(
            consecutive_delay_s, tuple(_idle.idle(rank, consecutive_delay_s) for rank in self.ranks)
        )

    @cached_property
    def _kernel_breakdown(self) -> _kernels.KernelBreakdown:
        kinds = tuple(row for rank in self.ranks for row in _kernels.kind_times(rank))
        named = tuple(row for rank in self.ranks for row in _kernels.kernel_times(rank))
        return _kernels.KernelBreakdown(tuple(occupancy.states_s for occupancy in self.occupancies), kinds, named)

    def kernels(self) -> _kernels.KernelBreakdown:
        """Returns which kernels ran, by kind and by name: HTA's get_gpu_kernel_breakdown."""
        return self._kernel_breakdown

    def launches(
        self,
        long_call_s: float = _launches.LONG_CALL_S,
        long_delay_s: float = _launches.LONG_DELAY_S,
        calls: Collection[str] | None = None,
    ) -> _launches.LaunchStatistics:
        """Returns what launches take and how long what they launch waits: HTA's get_cuda_kernel_launch_stats.

        `calls` counts only these runtime calls.
        """
        per_rank = tuple(_launches.launches(rank, long_call_s, long_delay_s, calls) for rank in self.ranks)
        return _launches.LaunchStatistics(long_call_s, long_delay_s, per_rank)

    def queues(self, calls: Collection[str] | None = None) -> _queues.QueueLengths:
        """Returns how much launched work waits over time.

        These are HTA's get_queue_length_summary and _time_series, and get_time_spent_blocked_on_full_queue.
        """
        return _queues.QueueLengths(tuple(row for rank in self.ranks for row in _queues.queues(rank, calls)))

    def memory_bandwidth(self) -> _bandwidth.MemoryBandwidth:
        """Returns how fast copies and memsets are: HTA's get_memory_bw_summary and _time_series."""
        return _bandwidth.MemoryBandwidth(tuple(row for rank in self.ranks for row in _bandwidth.copies(rank)))

    def annotations(self) -> _annotations.AnnotationBreakdown:
        """Returns what ranges that users marked take: HTA's get_gpu_user_annotation_breakdown, both sides."""
        return _annotations.AnnotationBreakdown(tuple(row for rank in self.ranks for row in _annotations.ranges(rank)))

    def launched(self) -> tuple[_annotations.LaunchedTimes, ...]:
        """Returns the device time of work launched within users' ranges.

        HTA's get_gpu_kernels_with_user_annotations leads to the same.
        """
        return tuple(row for rank in self.ranks for row in _annotations.launched(rank))

    def sequences(self, op: str = "", least_length: int = 3) -> _sequences.KernelSequences:
        """Returns sequences of kernels that repeat under ops whose name contains a word.

        This is HTA's get_frequent_cuda_kernel_sequences.
        """
        rows = [row for rank in self.ranks for row in _sequences.sequences(rank, op, least_length)]
        return _sequences.KernelSequences(op, tuple(sorted(rows, key=lambda row: -row.count)))

    @cached_property
    def explanation(self) -> Explanation:
        """Why the median step took as long as it did: breakdown, critical path, and whom ranks wait for.

        It reads the recorded timeline, as `foretrace simulate` and `compare` do; the other questions here have Holistic
        Trace Analysis' definitions.

        Raises:
            InputError: The traces hold no step that can be told apart, or do not belong together.
        """
        answer = recorded_answer(self._input)
        assert answer is not None  # a profiler trace is a measurement
        return explain(answer)

    @property
    def median_step(self) -> str:
        """The name of the step that the explanation is of."""
        return self._input.median_step

    def critical_path(self) -> PathReading:
        """Returns the chain of waits that made the median step as long as it was."""
        path = self.explanation.critical_path
        by_rank_s = {self.ranks[position].number: seconds for position, seconds in path.by_rank_s.items()}
        longest = tuple(
            replace(op, place=replace(op.place, rank=self.ranks[op.place.rank].number)) for op in path.longest
        )
        return replace(path, by_rank_s=by_rank_s, longest=longest)

    def stragglers(self) -> tuple[RankLateness, ...]:
        """Returns the ranks that others wait for, the one that held others up longest first."""
        ranks = [replace(rank, rank=self.ranks[rank.rank].number) for rank in self.explanation.ranks]
        return tuple(sorted(ranks, key=lambda rank: -rank.held_others_s))

    def steps(self) -> _steps.StepStatistics:
        """Returns the steps one by one."""
        rows = tuple(row for rank in self.ranks for row in _steps.steps(rank))
        how = " · ".join(dict.fromkeys(rank.steps.how for rank in self.ranks))
        step_s = sum(rank.counted_steps.step_s for rank in self.ranks) / len(self.ranks)
        return _steps.StepStatistics(how, step_s, rows, Spread.of(np.array([row.host_s for row in rows if row.whole])))

    def diff(self, after: ProfilerTrace, step: str | None = None) -> _diff.TraceDiff:
        """Returns what changed in a step from this trace to another: HTA's TraceDiff.compare_traces.

        `step` compares only steps of that name.
        """
        notes = tuple(
            replace(note, where=note.where or trace.ranks[0].trace.path)
            for trace in (self, after)
            for note in trace.diagnostics
        )
        return replace(_diff.diff(self.ranks, after.ranks, step), diagnostics=notes)

    def summary(self) -> _summary.TraceSummary:
        """Returns an overview of all analyses, and what to change."""
        return _summary.summary(
            self.ranks,
            self.occupancies,
            self.idle().ranks,
            self.launches().ranks,
            self.kernels().kinds,
            self.steps(),
            None if self._timeline_error is not None else self.explanation,
            () if self._timeline_error is not None else self.stragglers(),
        )

    @property
    def timeline_diagnostics(self) -> tuple[Diagnostic, ...]:
        """Warnings on kernels and ranks that are too fast, or why the traces cannot be read as a timeline."""
        error = self._timeline_error
        if error is not None:
            return (Diagnostic("warning", error.code, error.message, error.where),)
        codes = ("implausible-rate", "implausible-time")
        known = self.diagnostics
        notes = self.explanation.answer.diagnostics
        return tuple(note for note in notes if note.code in codes and note not in known)

    @cached_property
    def _timeline_error(self) -> ForetraceError | None:
        """The reason why the traces cannot be read as a timeline, if there is one."""
        try:
            _ = self.explanation
        except ForetraceError as error:
            return error
        return None


def _together(ranks: list[Rank]) -> list[Rank]:
    """Returns the ranks with the steps that count for all of them, if there are such steps."""
    if len(ranks) == 1:
        return ranks
    names = [{rank.steps.names[at] for at in rank.counted} for rank in ranks]
    common = set.intersection(*names)
    if not common:
        return ranks
    return [
        rank if mine == common else Rank(rank.trace, rank.number, among=common)
        for rank, mine in zip(ranks, names, strict=True)
    ]
