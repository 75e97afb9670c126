"""Predictions beside measurements of small jobs whose differences are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foretrace import Answer, Machine, Mesh, Plan, ProgramBuilder, Scenario, model, simulate
from foretrace.program.program import Program, Source
from foretrace.readings.account import Cause
from foretrace.readings.compare import GAPS, Comparison, Pair, compare
from foretrace.readings.differences import differences


def training(
    mesh: Mesh | None = None,
    *,
    slowness: Sequence[float] | None = None,
    reduce_s: float = 2.0,
    microbatches: int = 2,
    kernels: int = 1,
    optimizer: bool = True,
    repeats: bool = False,
) -> Program:
    """Every rank runs its microbatches (forward 1 s, backward 2 s), reduces gradients over dp and updates for 1 s.

    Without `slowness` all ranks share one role; with it each has its own, and computes so many times as slowly.
    """
    build = ProgramBuilder(mesh or Mesh(dp=2), repeats=repeats)
    ranks = range(build.mesh.world)
    roles = [("all", list(ranks), 1.0)] if slowness is None else [(f"r{i}", [i], slowness[i]) for i in ranks]
    for name, members, slow in roles:
        role = build.role(name, members)
        for microbatch in range(microbatches):
            for phase, seconds in (("forward", 1.0), ("backward", 2.0)):
                for number in range(kernels):
                    done = role.compute(
                        f"{phase} {number}", slow * seconds / kernels, phase=phase, microbatch=microbatch
                    )
        reduced = role.collective("all_reduce", build.communicator("dp"), reduce_s, after=done)
        if optimizer:
            role.compute("update", 1.0, phase="optimizer", after=reduced)
    return build.program()


def answer(program: Program, *, folded: bool = True) -> Answer:
    return simulate(program, folded=folded)


def recorded(answer: Answer) -> Answer:
    """The same step as if it had been measured."""
    return replace(answer, timeline=replace(answer.timeline, steps_run=0))


def parts(comparison: Comparison) -> dict[str, tuple[float, float]]:
    return {row.name: approx(row.seconds) for row in comparison.breakdown}


def approx(pair: Pair) -> tuple[float, float]:
    return pytest.approx(pair.subject_s), pytest.approx(pair.base_s)


class TestASlowRank:
    """Rank 1 of the measured run computes 10 % slower: 6.6 s for 6, and rank 0 waits 0.6 s for it."""

    @pytest.fixture
    def comparison(self) -> Comparison:
        return compare(answer(training()), answer(training(slowness=[1.0, 1.1])))

    def test_the_step_and_what_precedes_the_optimizer(self, comparison: Comparison) -> None:
        assert approx(comparison.step) == (9.0, 9.6)
        assert comparison.step.error == pytest.approx(-0.6 / 9.6)
        assert comparison.until_optimizer is not None
        assert approx(comparison.until_optimizer) == (8.0, 8.6)

    def test_the_parts_make_up_the_error(self, comparison: Comparison) -> None:
        assert parts(comparison) == {
            "compute": (6.0, 6.3),
            "imbalance": (0.0, 0.3),
            "dp exposed": (2.0, 2.0),
            "optimizer": (1.0, 1.0),
        }
        assert sum(row.seconds.difference_s for row in comparison.breakdown) == pytest.approx(
            comparison.step.difference_s
        )
        assert {row.name for row in comparison.breakdown[:2]} == {"compute", "imbalance"}

    def test_kinds_are_means_over_ranks_with_waits_apart(self, comparison: Comparison) -> None:
        kinds = {row.name: (*approx(row.running), *approx(row.wait)) for row in comparison.kinds}
        assert kinds == {
            "forward compute": (2.0, 2.1, 0.0, 0.0),
            "backward compute": (4.0, 4.2, 0.0, 0.0),
            "optimizer": (1.0, 1.0, 0.0, 0.0),
            "dp all_reduce": (2.0, 2.0, 0.0, 0.3),
        }

    def test_ranks(self, comparison: Comparison) -> None:
        rows = {row.ranks: (approx(row.compute), approx(row.held_up), approx(row.end)) for row in comparison.ranks}
        assert rows == {
            (0,): ((7.0, 7.0), (0.0, 0.6), (9.0, 9.6)),
            (1,): ((7.0, 7.6), (0.0, 0.0), (9.0, 9.6)),
        }

    def test_stages_have_the_mean_and_the_limits_over_ranks(self, comparison: Comparison) -> None:
        forward, backward = comparison.stages
        assert (forward.stage, forward.direction, backward.direction) == (0, "forward", "backward")
        assert forward.subject is not None and forward.base is not None and backward.mean is not None
        assert (forward.subject.mean_s, forward.subject.least_s, forward.subject.most_s) == (1.0, 1.0, 1.0)
        assert forward.base.mean_s == pytest.approx(1.05)
        assert (forward.base.least_s, forward.base.most_s) == (1.0, 1.1)
        assert approx(backward.mean) == (2.0, 2.1)

    def test_groups(self, comparison: Comparison) -> None:
        (group,) = comparison.groups
        assert (group.axis, group.groups) == ("dp", ((0, 1),))
        assert (approx(group.running), approx(group.wait)) == ((2.0, 2.0), (0.0, 0.3))

    def test_critical_paths(self, comparison: Comparison) -> None:
        rows = {row.name: approx(row.seconds) for row in comparison.critical_path}
        assert rows == {"backward": (4.0, 4.4), "forward": (2.0, 2.2), "dp": (2.0, 2.0), "optimizer": (1.0, 1.0)}

    def test_it_is_the_same_job(self, comparison: Comparison) -> None:
        assert comparison.diagnostics == ()


def test_late_ranks_have_one_name_in_both_runs() -> None:
    uneven = training(slowness=[1.0, 1.1])
    slowed = simulate(training(), None, Scenario(stragglers={1: 1.1}))
    names = {row.name for row in compare(answer(uneven), slowed).breakdown}
    assert "straggler" in names and "imbalance" not in names


def test_a_collective_that_takes_twice_as_long_is_all_of_the_error() -> None:
    comparison = compare(answer(training()), answer(training(reduce_s=4.0)))
    assert approx(comparison.step) == (9.0, 11.0)
    worst, *others = comparison.breakdown
    assert (worst.name, approx(worst.seconds)) == ("dp exposed", (2.0, 4.0))
    assert all(row.seconds.difference_s == pytest.approx(0.0) for row in others)
    assert comparison.kinds[0].name == "dp all_reduce"
    assert comparison.kinds[0].running.difference_s == pytest.approx(-2.0)


def test_a_missing_microbatch_is_said_and_leaves_times_per_microbatch_alone() -> None:
    comparison = compare(answer(training(microbatches=2)), recorded(answer(training(microbatches=1))))
    assert approx(comparison.step) == (9.0, 6.0)
    (warning,) = comparison.diagnostics
    assert warning.level == "warning" and warning.code == "different-microbatches"
    assert comparison.unlike == ("microbatches: 2 predicted, 1 measured",)
    assert [row.mean and row.mean.error for row in comparison.stages] == [0.0, 0.0]
    kinds = {row.name: row.running.difference_s for row in comparison.kinds}
    assert kinds["forward compute"] == pytest.approx(1.0) and kinds["backward compute"] == pytest.approx(2.0)


def test_how_finely_ops_are_split_and_named_does_not_matter() -> None:
    comparison = compare(answer(training()), answer(training(slowness=[1.0, 1.0], kernels=4)))
    pairs = [row.seconds for row in (*comparison.breakdown, *comparison.critical_path)]
    pairs += [row.running for row in (*comparison.kinds, *comparison.groups)]
    assert pairs and all(pair.difference_s == pytest.approx(0.0, abs=1e-12) for pair in pairs)
    assert [row.mean and row.mean.error for row in comparison.stages] == pytest.approx([0.0, 0.0])


def stages(batched: bool, receiver_s: float = 1.0, recompute: bool = False) -> Program:
    """Two pipeline stages; the first computes 3 s and hands over in 1 s, the second computes."""
    build = ProgramBuilder(Mesh(pp=2, dp=2), repeats=False)
    pair = build.pair("pp", 0, 1)
    first, second = build.role("first", [0, 1]), build.role("second", [2, 3])
    done = first.compute("layer", 3.0, phase="forward", microbatch=0)
    for role, facts in ((first, {"after": done}), (second, {})):
        if batched:
            came = role.exchange("exchange", pair, 1.0, sends={1 - role.number: 8}, **facts)
        else:
            came = role.transfer("hop", pair, 1.0, to=None if role.number else 1, bytes=8, **facts)
    second.compute("layer", receiver_s, phase="forward", microbatch=0, after=came)
    if recompute:
        second.compute("again", 1.0, phase="recompute", microbatch=0)
    return build.program()


def test_a_batched_exchange_is_a_transfer() -> None:
    comparison = compare(answer(stages(batched=False)), answer(stages(batched=True)))
    kinds = {row.name: (*approx(row.running), *approx(row.wait)) for row in comparison.kinds}
    # Both ends of a hand-over are busy for its second; the receivers, half of the ranks, wait for 3 s before.
    assert kinds == {"forward compute": (2.0, 2.0, 0.0, 0.0), "pp transfer": (1.0, 1.0, 1.5, 1.5)}


def test_stages_and_alike_groups() -> None:
    comparison = compare(answer(stages(False)), answer(stages(False, receiver_s=1.5)))
    means = {row.stage: row.mean and approx(row.mean) for row in comparison.stages}
    assert means == {0: (3.0, 3.0), 1: (1.0, 1.5)}
    (group,) = comparison.groups
    assert (group.axis, group.groups) == ("pp", ((0, 2), (1, 3)))
    assert [row.ranks for row in comparison.ranks] == [(0, 1), (2, 3)]
    assert parts(comparison) == {
        "idle": (0.5, 0.75),
        "compute": (2.0, 2.25),
        "bubble": (1.5, 1.5),
        "pp exposed": (1.0, 1.0),
    }


def test_recompute_counts_as_backward_and_a_pass_of_one_run_only_is_kept() -> None:
    comparison = compare(answer(stages(False)), answer(stages(False, recompute=True)))
    assert {row.name: approx(row.running) for row in comparison.kinds}["backward compute"] == (0.0, 0.5)
    (backward,) = [row for row in comparison.stages if row.direction == "backward"]
    assert (backward.stage, backward.subject, backward.mean) == (1, None, None)
    assert backward.base is not None and backward.base.mean_s == 1.0


def test_meshes_that_differ_are_compared_as_far_as_they_can_be() -> None:
    predicted = answer(training(Mesh(dp=2)))
    for mesh in (Mesh(dp=4), Mesh(tp=2)):
        comparison = compare(predicted, recorded(answer(training(mesh))))
        assert approx(comparison.step) == (9.0, 9.0)
        assert (comparison.ranks, comparison.stages, comparison.groups) == ((), (), ())
        assert {row.name for row in comparison.kinds} == {
            "forward compute",
            "backward compute",
            "optimizer",
            "dp all_reduce",
        }
        (warning,) = comparison.diagnostics
        assert warning.level == "warning" and warning.code == "different-mesh"
        assert len(comparison.unlike) == 1
        (note,) = compare(predicted, answer(training(mesh))).diagnostics
        assert note.level == "note" and note.code == "different-mesh", "who compares two plans knows that they differ"


def test_the_order_of_ranks_is_part_of_the_mesh() -> None:
    meshes = [Mesh(dp=2, pp=2), Mesh(dp=2, pp=2, order="tp-cp-pp-dp-ep")]
    one, other = (answer(training(mesh)) for mesh in meshes)
    assert compare(one, one).ranks and not compare(one, other).ranks
    same = answer(training(replace(meshes[0], etp=1, shard=2)))
    assert compare(one, same).diagnostics == ()


def test_without_an_optimizer_there_is_no_time_up_to_it() -> None:
    comparison = compare(answer(training(optimizer=False)), answer(training()))
    assert comparison.until_optimizer is None
    (note,) = comparison.diagnostics
    assert note.level == "note" and note.code == "too-little-data" and note.where == "B"
    neither = compare(answer(training(optimizer=False)), answer(training(optimizer=False)))
    assert neither.until_optimizer is None and neither.diagnostics == ()


def test_a_period_is_not_a_makespan() -> None:
    comparison = compare(answer(training(repeats=True)), answer(training()))
    (warning,) = comparison.diagnostics
    assert warning.level == "warning" and warning.code == "different-step-times"
    assert comparison.unlike == ()


def test_what_either_answer_says_of_itself_is_kept_with_its_side() -> None:
    def one(**facts: dict[str, int]) -> Answer:
        build = ProgramBuilder()
        build.role("only", [0]).compute("work", 1.0, **facts)
        return answer(build.program())

    noted, plain = one(alloc={"buffers": 8}), one()
    (said,) = noted.diagnostics
    pairs = {"B": (noted, plain), "A": (plain, noted), "A and B": (noted, noted), "predicted": (noted, recorded(plain))}
    for side, pair in pairs.items():
        (carried,) = compare(*pair).diagnostics
        assert (carried.level, carried.code, carried.message) == ("warning", said.code, f"{side}: {said.message}")


@pytest.mark.parametrize(("measured_s", "contains"), [(9.0, False), (9.6, True), (11.0, True), (11.2, False)])
def test_the_band_contains_the_measured_or_not(measured_s: float, contains: bool) -> None:
    def one(seconds: float, source: Source) -> Answer:
        build = ProgramBuilder(repeats=False)
        build.role("only", [0]).compute("work", seconds, source=source)
        return answer(build.program())

    predicted = one(10.0, Source("table", 0.95, 1.1))
    assert compare(predicted, one(measured_s, Source("clock"))).band_contains_base is contains
    assert compare(one(10.0, Source("clock")), predicted).band_contains_base is None


def test_gaps_of_a_recording_are_part_of_its_critical_path() -> None:
    """Two ops of a second each, recorded with half a second between them."""
    build = ProgramBuilder(repeats=False)
    role = build.role("only", [0])
    role.compute("a", 1.0, phase="forward")
    role.compute("b", 1.0, phase="forward")
    predicted = answer(build.program())
    start, end = np.array([0.0, 1.5]), np.array([1.0, 2.5])
    timeline = replace(
        predicted.timeline, ready_s=start, start_s=start, end_s=end, end_before_s=end - 2.5, step_time_s=2.5
    )
    comparison = compare(predicted, replace(predicted, timeline=timeline, step_time_s=2.5))
    assert {row.name: approx(row.seconds) for row in comparison.critical_path} == {
        GAPS: (0.0, 0.5),
        "forward": (2.0, 2.0),
    }
    assert parts(comparison) == {"idle": (0.0, 0.5), "compute": (2.0, 2.0)}


def test_folded_and_unfolded_runs_are_the_same() -> None:
    program = training(Mesh(dp=2, tp=2, pp=2), slowness=[1.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.2, 1.0])
    comparison = compare(answer(program), answer(program, folded=False))
    pairs = [pair for row in (*comparison.kinds, *comparison.groups) for pair in (row.running, row.wait)]
    assert pairs and all(pair.difference_s == pytest.approx(0.0, abs=1e-12) for pair in pairs)
    assert sorted(rank for row in comparison.ranks for rank in row.ranks) == list(range(8))
    assert sorted(group for row in comparison.groups for group in row.groups) == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_a_step_that_takes_no_time_has_no_error() -> None:
    build = ProgramBuilder(repeats=False)
    build.role("only", [0]).compute("nothing", 0.0)
    comparison = compare(answer(training(Mesh())), answer(build.program()))
    assert comparison.step.error is None and comparison.step.difference_s == pytest.approx(9.0)


def test_where_a_host_runs_ahead_ranks_end_with_their_devices() -> None:
    build = ProgramBuilder(Mesh(dp=1), repeats=True)
    role = build.role("all", [0])
    launch = role.host("launch", 1.0)
    role.compute("kernel", 4.0, after=launch)
    comparison = compare(simulate(build.program()), simulate(build.program()))
    assert approx(comparison.step) == (4.0, 4.0)
    (row,) = comparison.ranks
    assert approx(row.end) == (4.0, 4.0)


class TestCauses:
    """Two predictions are divided by ops of the same name, so that the rows sum to the difference of the step."""

    def test_a_slower_collective_is_all_of_it(self) -> None:
        comparison = compare(answer(training(reduce_s=5.0)), answer(training()))
        assert [side.label for side in comparison.sides] == ["A", "B"] and not comparison.with_measured
        assert comparison.sides[0].answer is comparison.base and comparison.sides[1].answer is comparison.subject
        worst, *others = comparison.causes
        assert worst.cause == Cause("dp exposed", "dp all_reduce", "all_reduce")
        assert worst.seconds.difference_s == pytest.approx(3.0)
        assert all(row.seconds.difference_s == pytest.approx(0.0) for row in others)

    def test_ops_that_only_one_has_are_added_up_by_what_they_do(self) -> None:
        comparison = compare(answer(training(kernels=2)), answer(training(kernels=3, slowness=[1.0, 1.2])))
        rows = {(row.cause.kind, row.cause.name): row.seconds for row in comparison.causes}
        assert ("forward compute", "forward 0") in rows and ("forward compute", "") in rows
        assert ("forward compute", "forward 2") not in rows
        total = sum(row.seconds.difference_s for row in comparison.causes)
        assert total == pytest.approx(comparison.step.difference_s)
        for part in comparison.breakdown:
            rows_of_part = [row.seconds for row in comparison.causes if row.cause.part == part.name]
            assert sum(pair.subject_s for pair in rows_of_part) == pytest.approx(part.seconds.subject_s)
            assert sum(pair.base_s for pair in rows_of_part) == pytest.approx(part.seconds.base_s)

    def test_waits_for_a_straggler_have_the_name_that_the_breakdown_gives_them(self) -> None:
        program = training(slowness=[1.0, 1.0])
        comparison = compare(simulate(program, scenario=Scenario(stragglers={1: 1.5})), answer(program))
        assert "straggler" in parts(comparison) and "imbalance" not in parts(comparison)
        for part in comparison.breakdown:
            causes = [row.seconds.difference_s for row in comparison.causes if row.cause.part == part.name]
            assert sum(causes) == pytest.approx(part.seconds.difference_s)

    def test_a_recording_names_its_ops_as_it_likes(self) -> None:
        comparison = compare(answer(training()), recorded(answer(training())))
        assert [side.label for side in comparison.sides] == ["predicted", "measured"]
        assert comparison.sides[0].answer is comparison.subject
        assert comparison.causes == () and comparison.differences == ()


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    job = model("llama3-8b", Plan(gpus=16, tp=2, gbs=32))
    machine = Machine("h100-dgx", prices="model")
    return {
        "base": simulate(job, machine),
        "plan": simulate(job.with_options(tp=4, stack="torch-eager"), machine),
        "hardware": simulate(job, Machine("h200-dgx", prices="model")),
        "scenario": simulate(job, machine, Scenario(what_if={"compute": 2.0})),
        "prices": simulate(job, Machine("h100-dgx", prices="roofline")),
    }


class TestDifferences:
    """Two plans on two machines: what was chosen comes first, then what follows."""

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            (
                "plan",
                {
                    ("plan", "tp", 2, 4),
                    ("stack", "stack", "megatron-core@0.16", "torch-eager"),
                    ("follows", "dp", 8, 4),
                },
            ),
            (
                "hardware",
                {("hardware", "cluster", "h100-dgx", "h200-dgx"), ("hardware", "gpu", "h100-sxm", "h200-sxm")},
            ),
            ("scenario", {("scenario", "compute 2× as fast", False, True)}),
        ],
    )
    def test_what_differs(
        self, answers: dict[str, Answer], name: str, expected: set[tuple[str, str, object, object]]
    ) -> None:
        comparison = differences(answers["base"], answers[name])
        rows = {(each.of, each.name, each.a, each.b) for each in comparison}
        assert expected <= rows
        assert {each.of for each in comparison} - {"prices"} == {of for of, *_ in expected}

    def test_prices(self, answers: dict[str, Answer]) -> None:
        comparison = differences(answers["base"], answers["prices"])
        assert {each.of for each in comparison} == {"prices"}
        assert all((each.a is None) != (each.b is None) for each in comparison)

    def test_nothing(self, answers: dict[str, Answer]) -> None:
        assert differences(answers["base"], answers["base"]) == ()

    def test_figures_of_clusters_with_one_name(self, answers: dict[str, Answer]) -> None:
        base = answers["base"]
        assert base.cluster is not None
        gpu = replace(base.cluster.node.gpu, memory_bytes=1e11)
        changed = replace(base, cluster=replace(base.cluster, node=replace(base.cluster.node, gpu=gpu)))
        (comparison,) = differences(base, changed)
        assert (comparison.of, comparison.name.rpartition(".")[2], comparison.b) == ("hardware", "memory_bytes", 1e11)

    def test_the_causes_of_a_plan_sum_to_the_difference(self, answers: dict[str, Answer]) -> None:
        for name in ("plan", "hardware", "scenario"):
            comparison = compare(answers[name], answers["base"])
            total = sum(row.seconds.difference_s for row in comparison.causes)
            assert total == pytest.approx(comparison.step.difference_s, rel=1e-9)
