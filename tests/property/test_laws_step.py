"""Laws of steps: a program takes as long as plain arithmetic says, however the spec shares its objects."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretrace import Mesh, simulate
from foretrace.program.check import check
from foretrace.program.columns import Collective, Phase
from foretrace.schedules import make
from foretrace.schedules.pipeline import Transfer
from foretrace.step import build_step
from foretrace.step.spec import Call, ChunkSpec, Compute, Cut, EndItem, HostWork, Item, RoleSpec, StepSpec, Unit, Work
from property.step_oracle import step_time

laws = settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))

SCHEDULES = ("1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe", "dualpipe-v", "looped-bfs")
times = st.integers(0, 7).map(lambda milliseconds: milliseconds * 1e-3)
computed = st.integers(1, 7).map(lambda milliseconds: milliseconds * 1e-3)
concurrency = st.sampled_from((None, None, "next", "previous", "phase", "phase", "step"))


@st.composite
def items(draw: st.DrawFn, phases: tuple[Phase, ...]) -> tuple[Item, ...]:
    """Up to four items, a computation of each phase among them."""
    listed: list[Item] = [Compute("compute", phase, seconds=draw(computed)) for phase in phases]
    for _ in range(draw(st.integers(0, 4 - len(phases)))):
        phase = draw(st.sampled_from(phases))
        kind = draw(st.sampled_from(("compute", "call", "call", "host")))
        if kind == "compute":
            item: Item = Compute("compute", phase, seconds=draw(times))
        elif kind == "host":
            item = HostWork("host", draw(times), phase=phase)
        else:
            axis = draw(st.sampled_from(("tp", "dp", "ep")))
            item = Call("call", phase, Collective.ALL_REDUCE, axis, 8, draw(concurrency), seconds=draw(times))
        listed.insert(draw(st.integers(0, len(listed))), item)
    return tuple(listed)


@st.composite
def works(draw: st.DrawFn, shared: bool) -> Work:
    phases = (Phase.BACKWARD,) if shared else (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
    recompute = draw(items((Phase.RECOMPUTE,))) if draw(st.booleans()) else ()
    share = draw(st.sampled_from((0.25, 0.5))) if shared else None
    return Work("work", draw(items((Phase.FORWARD,))), recompute, draw(items(phases)), weight_share=share)


@st.composite
def ends(draw: st.DrawFn, chunks: int, units: int) -> tuple[EndItem, ...]:
    listed: list[EndItem] = []
    for number in range(draw(st.integers(0, 4))):
        item: Item = Compute("end", Phase.OPTIMIZER, seconds=draw(times))
        lane: str | None = "compute"
        if draw(st.booleans()):
            item = Call("end call", Phase.OPTIMIZER, Collective.ALL_REDUCE, "dp", 8, seconds=draw(times))
            lane = draw(st.sampled_from(("compute", None)))
        place = (draw(st.integers(0, chunks - 1)), draw(st.integers(0, units - 1)))
        when = place if draw(st.booleans()) else None
        after = tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=2)))) if number else ()
        listed.append(EndItem(item, lane, when=when, after=after, after_reductions=draw(st.booleans())))
    return tuple(listed)


@st.composite
def cuts(draw: st.DrawFn, chunks: int) -> tuple[Cut, ...]:
    listed = []
    for _ in range(draw(st.integers(0, 3))):
        call = Call("bucket", Phase.BACKWARD, Collective.ALL_REDUCE, "dp", 8, seconds=draw(times))
        scale = (Compute("scale", Phase.BACKWARD, seconds=draw(times)),) if draw(st.booleans()) else ()
        share = draw(st.sampled_from((0.1, 0.25, 0.37, 0.5, 0.8, 1.0)))
        listed.append(Cut(draw(st.integers(0, chunks - 1)), share, (*scale, call)))
    return tuple(listed)


@st.composite
def steps(draw: st.DrawFn) -> StepSpec:
    stages = draw(st.sampled_from((1, 2, 4)))
    name = draw(st.sampled_from(SCHEDULES if stages > 1 else ("1f1b", "gpipe", "zb-h1")))
    schedule = make(name, stages, 2 * stages if stages > 1 else draw(st.integers(1, 3)))
    mesh = Mesh(tp=2, dp=2, ep=2, pp=stages)
    shared = draw(st.booleans())
    pool = [draw(works(shared)) for _ in range(2)]
    units = draw(st.integers(1, 3))
    variants = draw(st.integers(1, 2))
    chunks = [
        ChunkSpec(tuple(Unit(draw(st.sampled_from(pool)), layer) for layer in range(units)))
        for _ in range(variants + 1)
    ]
    roles = tuple(
        RoleSpec(
            stage,
            f"stage {stage}",
            mesh.where(pp=stage),
            tuple(tuple(draw(st.sampled_from(chunks)) for _ in range(variants)) for _ in range(schedule.chunks)),
            draw(ends(schedule.chunks, units)),
            draw(cuts(schedule.chunks)),
        )
        for stage in range(stages)
    )
    return StepSpec(
        "random",
        mesh,
        schedule,
        roles,
        transfer=Transfer(0, draw(times)),
        pp_overlap=True,
        variants=tuple(range(variants)),
        repeats=False,
    )


@laws
@given(steps())
def test_a_step_takes_what_its_items_say(spec: StepSpec) -> None:
    program = build_step(spec)
    check(program)
    assert simulate(program, explain=False).step_time_s == pytest.approx(step_time(spec), rel=1e-9, abs=1e-12)


@laws
@given(steps())
def test_sharing_objects_changes_nothing(spec: StepSpec) -> None:
    def own(chunk: ChunkSpec) -> ChunkSpec:
        return ChunkSpec(tuple(Unit(replace(unit.work), unit.layer) for unit in chunk.units))

    roles = tuple(
        replace(role, chunks=tuple(tuple(own(one) for one in each) for each in role.chunks)) for role in spec.roles
    )
    apart = build_step(replace(spec, roles=roles))
    assert simulate(apart, explain=False).step_time_s == pytest.approx(
        simulate(build_step(spec), explain=False).step_time_s, rel=1e-12
    )
