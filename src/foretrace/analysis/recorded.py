"""A real run as an answer: the same readings as of a simulation, of the times that were recorded."""

from __future__ import annotations

import numpy as np

from foretrace.analysis.answer import Provenance, Simulation
from foretrace.analysis.scenario import Scenario
from foretrace.engine.run import FixedRun
from foretrace.lower.megatron_trace import Recording, recorded_times, replay, run_notes
from foretrace.program.collector import collector_paused
from foretrace.program.expand import expand
from foretrace.program.fold import fold
from foretrace.program.timeline import Timeline


def recorded(recording: Recording) -> Simulation:
    """The answer that a recording is: nothing is run, so there are no gains and no band."""
    with collector_paused():
        job = recording.job
        notes = [*run_notes(job), *recording.notes]
        program = replay(recording, notes)
        graph = fold(expand(program))
        FixedRun(graph)  # traces that do not fit together deadlock here, where it can be said
        ready, start, end = recorded_times(recording, graph.classes.representative.tolist())
        step = float(end.max())
        timeline = Timeline(graph, ready, start, end, np.zeros(len(end)), step, steps_run=1)
        return Simulation(
            title=program.title,
            world_size=program.world,
            mesh=str(program.mesh),
            cluster=None,
            executor="recorded",
            scenario=Scenario(),
            unchanged_step_time_s=None,
            step_time_s=step,
            step_time_band_s=(step, step),
            repeats=False,
            steps_run=1,
            tokens_per_s_per_gpu=None,
            gains=None,
            memory=(),
            peak_memory=None,
            provenance=(Provenance("recorded", 1.0, 1.0, 1.0),),
            diagnostics=tuple(notes),
            timeline=timeline,
        )
