"""Makes an answer of a measured timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrace.basics.errors import ForetraceError
from foretrace.basics.progress import doing
from foretrace.engine.fixed_run import FixedRun
from foretrace.readings.answer.answer import Answer, Provenance
from foretrace.readings.scenario import Scenario

if TYPE_CHECKING:
    from foretrace.inputs.base import Input


def recorded_answer(job: Input) -> Answer | None:
    """Returns what was measured as an answer; None where nothing was. It has no gains and no band."""
    try:
        with doing(f"reading {job.title}"):
            timeline = job.recorded()
        if timeline is None:
            return None
        FixedRun(timeline.graph)  # recordings that do not fit together deadlock here
    except ForetraceError as error:
        raise job.located(error) from None
    program, step_s = timeline.graph.program, timeline.step_time_s
    return Answer(
        title=program.title,
        world_size=program.world,
        mesh=str(program.mesh),
        cluster=None,
        executor="recorded",
        scenario=Scenario(),
        unchanged_step_time_s=None,
        step_time_s=step_s,
        step_time_band_s=(step_s, step_s),
        repeats=program.repeats,
        steps_run=timeline.steps_run,
        tokens_per_s_per_gpu=None,
        gains=None,
        memory_tracks=(),
        peak_memory=None,
        provenance=(Provenance("recorded", 1.0, 1.0, 1.0),),
        diagnostics=program.diagnostics,
        timeline=timeline,
    )
