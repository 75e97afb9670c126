"""A real run as a timeline: the times that were recorded."""

from __future__ import annotations

import numpy as np

from foretrace.basics.collector import collector_paused
from foretrace.inputs.megatron_trace.program import run_notes
from foretrace.inputs.megatron_trace.recording import Recording
from foretrace.inputs.megatron_trace.replay import recorded_times, replay
from foretrace.program.expand import expand
from foretrace.program.fold import fold
from foretrace.program.timeline import Timeline


def recorded_timeline(recording: Recording) -> Timeline:
    """Returns the recorded times of every op; the step is the makespan of the aligned ranks."""
    with collector_paused():
        notes = [*run_notes(recording.job), *recording.notes]
        program = replay(recording, notes)
        graph = fold(expand(program))
        ready, start, end = recorded_times(recording, graph.classes.representative.tolist())
        return Timeline(graph, ready, start, end, np.zeros(len(end)), float(end.max()), steps_run=0)
