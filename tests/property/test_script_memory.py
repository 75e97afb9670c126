"""The peak of a recorded step is that of the program which is written of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foretrace import simulate
from foretrace.inputs.script.memory import peak_bytes
from foretrace.inputs.script.program import program_of
from foretrace.program.columns import Category
from foretrace.readings.memory import memory_tracks
from script_recordings import LAUNCHES, US, Script, timed

EVENTS = 8


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Launches and waits, and storages that live over any of them."""
    script = Script()
    script.launch("aten::mul")
    for _ in range(EVENTS - 1):
        if draw(st.booleans()):
            script.launch("aten::mul")
        else:
            script.stream_wait(1, 0)
    script.launch("aten::mul")
    for _ in range(draw(st.integers(0, 6))):
        allocated = draw(st.integers(-1, EVENTS))
        released = draw(st.sampled_from([-1, *range(max(allocated, 0), EVENTS + 2)]))
        size = draw(st.integers(0, 5000))
        script.storage(size, allocated, released, draw(st.sampled_from(list(Category))))
    return script


@given(scripts())
def test_the_peak_is_that_of_the_program(script: Script) -> None:
    recording = script.recording()
    program = program_of([recording], [[0]], title="script", costs=LAUNCHES)
    tracks = memory_tracks(simulate(timed(program, {"aten::mul": 1 * US}, repeats=False), explain=False).timeline)
    assert (tracks[0].peak_bytes if tracks else 0) == peak_bytes(recording)
