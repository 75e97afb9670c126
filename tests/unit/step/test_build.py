"""Which ops of a step wait for which, on steps of a few ops in seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace import Answer, Mesh, simulate
from foretrace.basics.errors import InputError
from foretrace.program.check import check
from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import Stream
from foretrace.schedules import make
from foretrace.schedules.pipeline import Transfer
from foretrace.step import build_step
from foretrace.step.spec import (
    Call,
    ChunkSpec,
    Compute,
    Concurrent,
    Cut,
    EndItem,
    HostWork,
    Item,
    RoleSpec,
    StepSpec,
    Unit,
    Work,
)

F, B = Phase.FORWARD, Phase.BACKWARD


def compute(name: str, seconds: float, phase: Phase = B) -> Compute:
    return Compute(name, phase, seconds=seconds)


def call(name: str, seconds: float, axis: str = "tp", concurrent: Concurrent | None = None) -> Call:
    return Call(name, B, Collective.ALL_REDUCE, axis, 8, concurrent, seconds=seconds)


def work(*backward: Item, forward: tuple[Item, ...] = (compute("forward", 1.0, F),), **facts: object) -> Work:
    return replace(Work("layer", forward, (), backward), **facts)  # type: ignore[arg-type]


OPTIMIZER = (EndItem(compute("optimizer", 1.0, Phase.OPTIMIZER), after_reductions=True),)


def run(*works: Work, end: tuple[EndItem, ...] = OPTIMIZER, cuts: tuple[Cut, ...] = (), **facts: object) -> Answer:
    """One stage of tp 2 and dp 2; units are the works, in order."""
    mesh = Mesh(tp=2, dp=2)
    chunk = ChunkSpec(tuple(Unit(one, at) for at, one in enumerate(works)))
    role = RoleSpec(0, "all", range(4), ((chunk,),), end, cuts)
    step = StepSpec("test", mesh, make("1f1b", 1, 1), (role,), repeats=False)
    program = build_step(replace(step, **facts))  # type: ignore[arg-type]
    check(program)
    return simulate(program, explain=False)


def spans(answer: Answer, name: str, rank: int = 0) -> list[tuple[float, float]]:
    ops = answer.timeline.rank(rank)
    times = zip(ops.name, ops.start_s.tolist(), ops.end_s.tolist(), strict=True)
    return [(start, end) for one, start, end in times if one == name]


class TestCuts:
    @pytest.mark.parametrize("concurrent", ["next", "previous"])
    @pytest.mark.parametrize("share", [0.3, 0.5, 0.75])
    def test_a_bucket_leaves_what_runs_next_to_the_divided_computation(
        self, concurrent: Concurrent, share: float
    ) -> None:
        """The all-reduce of 3 runs next to the second computation of 4, wherever a bucket divides the backward."""
        listed = [compute("first", 4.0), call("reduce", 3.0, concurrent=concurrent), compute("second", 4.0)]
        if concurrent == "previous":
            listed = [compute("first", 4.0), compute("second", 4.0), call("reduce", 3.0, concurrent=concurrent)]
        bucket = Cut(0, share, (call("bucket", 0.5, "dp"),))
        for cuts in ((), (bucket,)):
            answer = run(work(*listed), cuts=cuts)
            assert answer.step_time_s == pytest.approx(1 + 8 + 1)
            assert spans(answer, "reduce") == [(5.0, 8.0)]
        assert spans(answer, "bucket") == [(1 + 8 * share, 1.5 + 8 * share)]

    def test_a_bucket_between_units_belongs_to_the_one_that_is_done(self) -> None:
        layers = (work(compute("low", 2.0)), work(compute("high", 2.0)))
        answer = run(*layers, cuts=(Cut(0, 0.5, (compute("scale", 0.25), call("bucket", 3.0, "dp"))),))
        assert spans(answer, "high") == [(2.0, 4.0)] and spans(answer, "scale") == [(4.0, 4.25)]
        assert spans(answer, "bucket") == [(4.25, 7.25)] and spans(answer, "low") == [(4.25, 6.25)]
        assert spans(answer, "optimizer") == [(7.25, 8.25)]

    @pytest.mark.parametrize(("share", "start"), [(0.0, 1.0), (1.0, 3.0), (2.0, 3.0)])
    def test_at_the_ends(self, share: float, start: float) -> None:
        answer = run(work(compute("backward", 2.0)), cuts=(Cut(0, share, (call("bucket", 0.5, "dp"),)),))
        assert spans(answer, "bucket") == [(start, start + 0.5)]

    def test_a_backward_that_computes_nothing_still_reduces(self) -> None:
        answer = run(work(HostWork("gap", 2.0)), cuts=(Cut(0, 0.5, (call("bucket", 5.0, "dp"),)),))
        assert spans(answer, "bucket") == [(3.0, 8.0)] and spans(answer, "optimizer") == [(8.0, 9.0)]

    def test_a_scaling_at_the_beginning_leaves_the_call_before_it(self) -> None:
        """The all-reduce of 3 runs next to the scaling and the backward."""
        items = [call("reduce", 3.0, concurrent="next"), compute("backward", 3.0)]
        for share in (0.0, 1e-6):
            cut = Cut(0, share, (compute("scale", 0.5), call("bucket", 0.5, "dp")))
            assert run(work(*items), cuts=(cut,)).step_time_s == pytest.approx(1 + 3.5 + 1)

    def test_a_divided_first_computation_holds_the_call_next_to_it(self) -> None:
        items = [compute("backward", 4.0), call("reduce", 3.0, concurrent="previous")]
        answer = run(work(*items), cuts=(Cut(0, 0.5, (call("bucket", 0.5, "dp"),)),))
        assert spans(answer, "reduce") == [(1.0, 4.0)]

    def test_kernels_have_no_shares(self) -> None:
        kernel = Compute("backward", B, ((1, Stream("copy", 8, 8)),))
        with pytest.raises(InputError) as caught:
            run(work(kernel), cuts=(Cut(0, 0.5, (call("bucket", 1.0, "dp"),)),))
        assert caught.value.code == "invalid-program"


class TestPhases:
    """Backward begins at 1 after the forward of one unit; calls are on the lane of their axis, in order."""

    def test_a_phase_ends_before_what_is_computed_after_the_next_one(self) -> None:
        """The combine of 3 outlasts attention: experts wait for it, and not for the dispatch of 4."""
        layer = work(
            call("combine", 3.0, concurrent="phase"),
            compute("attention", 2.0),
            call("dispatch", 4.0, concurrent="phase"),
            compute("experts", 2.0),
            compute("more experts", 1.0),
        )
        answer = run(layer)
        assert spans(answer, "combine") == [(1.0, 4.0)] and spans(answer, "attention") == [(1.0, 3.0)]
        assert spans(answer, "dispatch") == [(4.0, 8.0)]
        assert spans(answer, "experts") == [(4.0, 6.0)] and spans(answer, "more experts") == [(6.0, 7.0)]
        assert answer.step_time_s == pytest.approx(8 + 1), "the unit ends with its last phase"

    def test_calls_without_computation_between_them_are_one_phase(self) -> None:
        tokens, probabilities = (call(name, 2.0, concurrent="phase") for name in ("tokens", "probabilities"))
        answer = run(work(tokens, probabilities, compute("experts", 3.0), call("combine", 1.0)))
        assert spans(answer, "probabilities") == [(3.0, 5.0)]
        assert spans(answer, "experts") == [(1.0, 4.0)]

    def test_the_next_unit_waits(self) -> None:
        layers = (work(compute("low", 1.0)), work(call("combine", 5.0, concurrent="phase"), compute("high", 1.0)))
        answer = run(*layers)
        assert spans(answer, "combine") == [(2.0, 7.0)] and spans(answer, "high") == [(2.0, 3.0)]
        assert spans(answer, "low") == [(7.0, 8.0)]


class TestBegin:
    @pytest.mark.parametrize("concurrent", ["next", "previous", "phase"])
    def test_a_concurrent_call_waits_for_what_its_action_needs(self, concurrent: Concurrent) -> None:
        """Two stages: the gradient arrives on stage 0 after the backward of stage 1."""
        mesh = Mesh(tp=2, pp=2)
        items: list[Item] = [call("gather", 1.0, concurrent=concurrent), compute("backward", 2.0)]
        layer = work(*(items[::-1] if concurrent == "previous" else items))
        chunk = ChunkSpec((Unit(layer, 0),))
        roles = tuple(RoleSpec(stage, f"stage {stage}", mesh.where(pp=stage), ((chunk,),)) for stage in range(2))
        step = StepSpec("test", mesh, make("1f1b", 2, 1), roles, transfer=Transfer(8, 0.5), repeats=False)
        program = build_step(step)
        check(program)
        answer = simulate(program, explain=False)
        # Forward 0-1, sent until 1.5, forward until 2.5, backward until 4.5, sent until 5.
        assert spans(answer, "gather") == [(5.0, 6.0)]
        assert spans(answer, "backward") == [(5.0, 7.0)]


class TestReductions:
    def test_the_end_waits_for_reductions_of_all_microbatches(self) -> None:
        """The second of two microbatches reduces nothing; the optimizer still waits for the first."""
        reducing = ChunkSpec((Unit(work(compute("backward", 1.0), call("grad", 9.0, "dp", "step")), 0),))
        bare = ChunkSpec((Unit(work(compute("backward", 1.0)), 0),))
        role = RoleSpec(0, "all", range(2), ((reducing, bare),), OPTIMIZER)
        step = StepSpec("test", Mesh(dp=2), make("1f1b", 1, 2), (role,), variants=(0, 1), repeats=False)
        answer = simulate(build_step(step), explain=False)
        assert spans(answer, "grad") == [(2.0, 11.0)] and spans(answer, "optimizer") == [(11.0, 12.0)]

    def test_a_reduction_does_not_wait_for_collectives_next_to_its_computation(self) -> None:
        items = [call("reduce", 5.0, concurrent="next"), compute("backward", 1.0), call("grad", 1.0, "dp", "step")]
        assert spans(run(work(*items)), "grad") == [(2.0, 3.0)]


class TestWeightShare:
    def test_recompute_comes_with_the_input_gradients(self) -> None:
        layer = work(compute("backward", 4.0), recompute=(compute("again", 1.0, Phase.RECOMPUTE),), weight_share=0.25)
        mesh = Mesh(pp=2)
        chunk = ChunkSpec((Unit(layer, 0),))
        roles = tuple(RoleSpec(stage, f"stage {stage}", [stage], ((chunk,),)) for stage in range(2))
        step = StepSpec("test", mesh, make("zb-h1", 2, 2), roles, transfer=Transfer(8, 0.0), repeats=False)
        answer = simulate(build_step(step), explain=False)
        assert sorted(end - start for start, end in spans(answer, "backward", 1)) == [1.0, 1.0, 3.0, 3.0]
        assert [end - start for start, end in spans(answer, "again", 1)] == [1.0, 1.0]

    def test_kernels_cannot_be_divided(self) -> None:
        layer = work(Compute("backward", B, ((1, Stream("copy", 8, 8)),)), weight_share=0.5)
        role = RoleSpec(0, "all", [0], ((ChunkSpec((Unit(layer, 0),)),),))
        with pytest.raises(InputError) as caught:
            build_step(StepSpec("test", Mesh(), make("zb-h1", 1, 1), (role,)))
        assert caught.value.code == "invalid-program"


def test_detail_of_measured_computations_is_the_same() -> None:
    layer = work(compute("backward", 4.0))
    role = RoleSpec(0, "all", [0], ((ChunkSpec((Unit(layer, 0),)),),), OPTIMIZER)
    step = StepSpec("test", Mesh(), make("1f1b", 1, 3), (role,))
    # Three forwards, three backwards and the optimizer.
    assert [build_step(step, detail=detail).op_count for detail in ("segment", "kernel")] == [7, 7]


def mistaken(**facts: object) -> StepSpec:
    """Two stages that fit together, with fields changed."""
    mesh = Mesh(pp=2)
    chunk = ChunkSpec((Unit(work(compute("backward", 1.0)), 0),))
    roles = tuple(RoleSpec(stage, f"stage {stage}", [stage], ((chunk,),), OPTIMIZER) for stage in range(2))
    role_facts = {name: facts.pop(name) for name in ("end", "cuts", "chunks", "stage") if name in facts}
    changed = tuple(replace(role, **role_facts) for role in roles)  # type: ignore[arg-type]
    return replace(StepSpec("test", mesh, make("1f1b", 2, 2), changed), **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "facts",
    [
        {"roles": ()},
        {"stage": 0},
        {"stage": 7},
        {"variants": (0, 1)},
        {"variants": ()},
        {"chunks": ()},
        {"schedule": make("interleaved-1f1b", 2, 2, 2)},
        {"schedule": make("zb-h1", 2, 2)},  # nothing tells input from weight gradients
        {"end": (EndItem(compute("optimizer", -1.0)),)},
        {"end": (EndItem(compute("optimizer", float("inf"))),)},
        {"end": (EndItem(compute("optimizer", 1.0), when=(0, 9)),)},
        {"end": (EndItem(compute("optimizer", 1.0), before=(5, 0)),)},
        {"end": (EndItem(compute("optimizer", 1.0), after=(0,)),)},
        {"end": (EndItem(compute("optimizer", 1.0), before_item=4),)},
        {"end": (EndItem(replace(call("reduce", 1.0), concurrent="foo")),)},  # type: ignore[arg-type]
        {"end": (EndItem(replace(call("reduce", 1.0), concurrent="action")),)},  # type: ignore[arg-type]
        {"end": (EndItem(Compute("both", B, ((1, Stream("copy", 8, 8)),), seconds=1.0)),)},
        {"cuts": (Cut(3, 0.5, ()),)},
        {"cuts": (Cut(0, float("nan"), ()),)},
    ],
)
def test_parts_that_do_not_fit_together_are_refused(facts: dict[str, object]) -> None:
    build_step(mistaken())
    with pytest.raises(InputError) as caught:
        build_step(mistaken(**facts))
    assert caught.value.code == "invalid-program"
