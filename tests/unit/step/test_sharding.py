"""Units whose parameters data-parallel ranks split, gathered and reduced as one or tensor by tensor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace import Mesh, simulate
from foretrace.program.check import check
from foretrace.program.columns import Phase
from foretrace.schedules import ActionKind, make
from foretrace.step import build_step
from foretrace.step.sharding import ShardedUnits
from foretrace.step.spec import ChunkSpec, Compute, HostWork, RoleSpec, Sharding, StepSpec, Unit, Work

LISTING = HostWork("list parts", 0.25)
WORK = Work(
    "layer",
    (Compute("forward", Phase.FORWARD, seconds=1.0),),
    (Compute("again", Phase.RECOMPUTE, seconds=1.0),),
    (Compute("backward", Phase.BACKWARD, seconds=2.0),),
    parameters=1003,
    tensors=4,
)
WHOLE = Sharding(ranks=4, expert_ranks=1, replicas=1, parameter_bytes=2, gradient_bytes=2)
LISTED = replace(WHOLE, listing=LISTING, overlap=False)


def _host_s(kind: ActionKind, work: Work = WORK) -> list[float]:
    items = ShardedUnits(LISTED, {}).with_copies(work, kind, [])
    return [item.seconds for item in items if isinstance(item, HostWork)]


def test_the_host_lists_every_tensor_for_every_collective() -> None:
    assert _host_s(ActionKind.FORWARD) == [4 * 0.25]
    # Gathered for the recomputation and again for the backward, then reduced.
    assert _host_s(ActionKind.BACKWARD) == [2 * 4 * 0.25, 4 * 0.25]
    assert _host_s(ActionKind.BACKWARD, replace(WORK, recompute=())) == [4 * 0.25, 4 * 0.25]
    assert _host_s(ActionKind.FORWARD, replace(WORK, parameters=0)) == []


def test_tensors_are_messages_of_their_own_which_together_are_the_unit() -> None:
    unit = Unit(WORK, 0)
    (gather,), (reduction,) = ShardedUnits(WHOLE, {}).calls(unit)
    gathers, reductions = ShardedUnits(LISTED, {}).calls(unit)
    assert (len(gathers), len(reductions)) == (4, 4)
    assert sum(call.bytes for call in gathers) == gather.bytes == 2 * 1003
    assert sum(call.bytes for call in reductions) == reduction.bytes
    assert [call.bytes for call in gathers] == [501, 502, 501, 502], "no rounding down"


@pytest.mark.parametrize(("sharding", "gathers", "host_s"), [(WHOLE, 2, 0.0), (LISTED, 12, 4.0)])
def test_a_step_waits_for_the_host_and_gathers_all_bytes(sharding: Sharding, gathers: int, host_s: float) -> None:
    chunk = ChunkSpec((Unit(WORK, 0),))
    role = RoleSpec(0, "all", range(4), ((chunk,),))
    step = StepSpec("test", Mesh(dp=4), make("1f1b", 1, 1), (role,), sharding=sharding, repeats=False)
    program = build_step(step)
    check(program)
    ops = simulate(program, "a100-dgx", explain=False).timeline.rank(0)
    assert sum(name == "gather layer" for name in ops.name) == gathers
    ended = dict(zip(ops.name, ops.end_s.tolist(), strict=True))
    assert ended["backward"] + (1.0 if sharding.listing else 0.0) >= 4 + host_s
