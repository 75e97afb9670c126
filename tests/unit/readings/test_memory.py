"""Where in a step memory is at its peak."""

from __future__ import annotations

from foretrace import ProgramBuilder, simulate
from foretrace.readings.memory import memory_tracks, peak_place


def test_a_peak_is_at_the_op_that_takes_the_last_of_it() -> None:
    build = ProgramBuilder()
    forward, backward = build.block("forward"), build.block("backward")
    for layer in range(3):
        forward.compute("up", 1.0, phase="forward", layer=layer, chunk=1, alloc={"activations": 10})
    for layer in reversed(range(3)):
        size = {"temporaries": 50 if layer == 1 else 1}
        backward.compute(
            "down", 1.0, phase="backward", layer=layer, chunk=1, alloc=size, free=size | {"activations": 10}
        )
    role = build.role("rank", [0])
    role.resident(weights=100)
    role.place(forward, microbatch=7)
    role.place(backward, microbatch=7)
    timeline = simulate(build.program()).timeline
    (track,) = memory_tracks(timeline)
    assert track.peak_bytes == 100 + 2 * 10 + 50
    place = peak_place(timeline, track)
    assert place is not None
    assert (place.op_name, place.phase, place.microbatch, place.chunk, place.layer) == ("down", "backward", 7, 1, 1)
    assert place.time_s == 4.0


def test_memory_that_no_op_takes_has_no_place() -> None:
    build = ProgramBuilder()
    role = build.role("rank", [0])
    role.resident(weights=100)
    role.compute("step", 1.0)
    timeline = simulate(build.program()).timeline
    (track,) = memory_tracks(timeline)
    assert track.peak_bytes == 100
    assert peak_place(timeline, track) is None


def test_a_peak_of_several_steps_at_once_has_a_place() -> None:
    """The last op takes memory after the period, while the next step runs already."""
    build = ProgramBuilder()
    role = build.role("rank", [0])
    before = role.compute("first", 2.0, lane="0", alloc={"buffers": 1})
    role.compute("last", 2.0, lane="1", after=before, alloc={"temporaries": 5}, free={"buffers": 1, "temporaries": 5})
    timeline = simulate(build.program()).timeline
    (track,) = memory_tracks(timeline)
    place = peak_place(timeline, track)
    assert timeline.step_time_s == 2.0
    assert place is not None and place.op_name in ("first", "last")
    assert track.peak_bytes == 1 + 1 + 5
