"""Steps worked out by hand: one written as a `StepSpec`, and one of a model with hand-written work.

Steps of the other producers are worked out in `test_workload_*` (workload files), `test_trace_ex_situ` and
`test_trace_buckets` (traces), and `test_table_step` (profiler tables).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace import Mesh, simulate
from foretrace.program.check import check
from foretrace.program.columns import Collective, Phase
from foretrace.schedules import make
from foretrace.schedules.pipeline import Transfer
from foretrace.step import build_step
from foretrace.step.spec import Call, ChunkSpec, Compute, Cut, EndItem, HostWork, Item, RoleSpec, StepSpec, Unit, Work
from foretrace.workload.plan import Plan
from golden.reading import US, step_us, times_of
from hand_written_work import assembled, timed

F, B = Phase.FORWARD, Phase.BACKWARD


def compute(name: str, phase: Phase, microseconds: float) -> Compute:
    return Compute(name, phase, seconds=microseconds * US)


def call(name: str, microseconds: float, axis: str = "dp") -> Call:
    return Call(name, B, Collective.ALL_REDUCE, axis, 4096, seconds=microseconds * US)


def stage(number: int, mesh: Mesh, *, cuts: tuple[Cut, ...] = (), end: tuple[EndItem, ...] = ()) -> RoleSpec:
    """A layer of 10 forward and 20 backward, for which the host takes 1 before the forward."""
    forward: tuple[Item, ...] = (HostWork("gap", 1 * US), compute("forward", F, 10))
    work = Work("layer", forward, (), (compute("backward", B, 20),), weight_share=0.5)
    ranks = mesh.where(pp=number)
    return RoleSpec(number, f"stage {number}", ranks, ((ChunkSpec((Unit(work, 0),)),),), end, cuts)


MESH = Mesh(pp=2, dp=2)
END = (EndItem(compute("optimizer", Phase.OPTIMIZER, 4), after_reductions=True),)
BUCKETS = (Cut(0, 0.25, (call("bucket 0", 8),)), Cut(0, 1.0, (call("bucket 1", 8),)))


def spec(schedule: str, **facts: object) -> StepSpec:
    roles = tuple(stage(number, MESH, cuts=BUCKETS, end=END) for number in range(2))
    made = make(schedule, 2, 2)
    step = StepSpec("by hand", MESH, made, roles, transfer=Transfer(64, 2 * US))
    return replace(step, **facts)  # type: ignore[arg-type]


def test_two_stages_with_buckets_in_the_last_backward() -> None:
    """Forward g10, backward 20, transfers 2 for which computation waits, buckets after 5 and 20 of the last backward.

    0   |g F0 11|2|g F1 24 |..............|x| B0 | |....................|2| B1 5| 15  | opt
    1   |.......|2|g F0 24 | B0 44 |x| g F1 57 | B1 5 | 15  | 2 |

    Stage 1: F0 13-24, B0 24-44, exchange 44-46, F1 46-57, B1 57-77, send 77-79; buckets 62-70 and 77-85, optimizer
    from 85. Stage 0: F1 13-24, exchange 44-46, B0 46-66, receive 77-79, B1 79-99; buckets 84-92 and 99-107, optimizer
    107-111. Both end with the step from a standstill.
    """
    program = build_step(spec("1f1b", repeats=False))
    check(program)
    answer = simulate(program, explain=False)
    drawn = {
        (0, "forward"): [(1, 11), (14, 24)],
        (0, "backward"): [(46, 66), (79, 84), (84, 99)],  # the last one is cut after a quarter of it
        (0, "bucket 0"): [(84, 92)],
        (0, "bucket 1"): [(99, 107)],
        (0, "optimizer"): [(107, 111)],
        (2, "forward"): [(14, 24), (47, 57)],
        (2, "backward"): [(24, 44), (57, 62), (62, 77)],
        (2, "bucket 0"): [(62, 70)],
        (2, "bucket 1"): [(77, 85)],
        (2, "optimizer"): [(85, 89)],
    }
    assert {key: times_of(answer, *key) for key in drawn} == drawn
    assert step_us(answer) == 111


def test_a_schedule_that_splits_the_backward_cuts_the_weight_gradients() -> None:
    """ZB-H1 on stage 1: F0 I0 W0 F1 I1 W1, half of a backward each: a bucket comes after a quarter of the last W."""
    answer = simulate(build_step(spec("zb-h1", repeats=False)), explain=False)
    last = times_of(answer, 2, "backward")[-2:]
    assert [end - start for start, end in last] == [2.5, 7.5]
    bucket = times_of(answer, 2, "bucket 0")
    assert bucket == [(last[0][1], last[0][1] + 8)]


def test_repeated_steps_overlap_the_ends_of_one_with_the_begin_of_the_next() -> None:
    """Stage 1 has ended 22 before stage 0 does; the period is that of stage 0, which is always busy or waiting."""
    period = simulate(build_step(spec("1f1b")), explain=False).step_time_s
    assert period == pytest.approx(111 * US, rel=1e-9)


def test_a_gather_holds_up_the_layer_that_needs_it() -> None:
    """Two layers of 10 forward and 20 backward; their parameters arrive 8 and 16 after the optimizer of 4.

    compute  | opt 4 |.AG0 8.| F0 10 | F1 10 | B 40 | opt 4 |      8 + 20 + 40 + 4 = 72
    dp               |  AG0  |  AG1  |
    """
    layers = [Work("layer", (compute("forward", F, 10),), (), (compute("backward", B, 20),)) for _ in range(2)]
    gathers = [EndItem(call(f"gather {unit}", 8), None, after=(0,), before=(0, unit)) for unit in range(2)]
    end = (EndItem(compute("optimizer", Phase.OPTIMIZER, 4)), *gathers)
    chunk = ChunkSpec(tuple(Unit(work, at) for at, work in enumerate(layers)))
    role = RoleSpec(0, "all", range(2), ((chunk,),), end)
    step = StepSpec("gathers", Mesh(dp=2), make("1f1b", 1, 1), (role,))
    assert step_us(simulate(build_step(step), explain=False)) == 72


def test_a_model_reduces_a_bucket_for_each_layer_under_the_last_backward() -> None:
    """Two data-parallel ranks, two layers of 1,000 forward and 1,100 backward, two microbatches, calls of 500 ns.

    50 M parameters of a layer fill a bucket of Megatron's. Both are reduced under the last backward, the second from
    its end on; the norm waits for it, and parameters are gathered before the layers that need them.

    compute | F F | B1 B0 | F F | B1 | B0 |..500..| norm, all ranks 500 | optimizer |..AG0 500..|
    dp                               | RS1 |  RS0 |                                 | AG0 | AG1 |

    8,400 of computation, 500 of the last reduction, 500 of the norm, 500 of the first gather.
    """
    program = assembled(2, Plan(2, gbs=4))
    check(program)
    answer = simulate(timed(program, call_s=500e-9), explain=False)
    reduced = times_of(answer, 0, "reduce gradients")
    assert [round(end - start, 3) for start, end in reduced] == [0.5, 0.5]
    assert reduced[1][0] - reduced[0][0] == pytest.approx(1.1)
    assert step_us(answer) == 8.4 + 0.5 + 0.5 + 0.5
