"""Jitter against draws for every rank, and against what is known of the largest of many normals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foretrace import Mesh, Program, ProgramBuilder, Scenario, Transfer, pipeline, schedule, simulate
from foretrace.basics.errors import InputError
from foretrace.cost.pricing import price
from foretrace.engine.fixed_run import FixedRun
from foretrace.program.block import BlockBuilder
from foretrace.program.columns import Kind
from foretrace.program.expand import expand
from foretrace.program.fold import unfold
from foretrace.readings.jitter import largest_of, later_of
from foretrace.schedules import Action

JITTER = 0.03


def drawn_extra(program: Program, *, samples: int = 128, steps: int = 40, settling: int = 8) -> tuple[float, float]:
    """The mean time that jitter adds to a step, and its standard error: every rank on its own, every computation of
    every step drawn."""
    ops = expand(program)
    graph = unfold(ops)
    durations, player = price(ops).durations(graph), FixedRun(graph).player
    computes = (ops.ints("kind")[graph.op] == Kind.COMPUTE)[:, None]
    random = np.random.default_rng(7)
    carried, ends = np.zeros((player.carries, samples)), []
    for _ in range(steps):
        factor = 1 + JITTER * computes * random.standard_normal((len(graph), samples))
        carried = player.carried(player.run(player.along(durations[:, None] * factor), carried))
        ends.append(carried.max(axis=0))
    periods = (ends[-1] - ends[settling - 1]) / (steps - settling)
    plain = simulate(program, explain=False).step_time_s
    return float(periods.mean()) - plain, float(periods.std()) / math.sqrt(samples)


def our_extra(program: Program) -> float:
    answer = simulate(program, None, Scenario(jitter=JITTER), explain=False)
    assert answer.unchanged_step_time_s is not None
    return answer.step_time_s - answer.unchanged_step_time_s


def replicas(count: int) -> Program:
    """Data parallelism alone: three computations, one all-reduce, an update."""
    build = ProgramBuilder(Mesh(dp=count))
    role, dp = build.role("all", range(count)), build.communicator("dp")
    for seconds in (1.0, 1.5, 2.0):
        done = role.compute("layer", seconds)
    role.compute("update", 0.1, after=role.collective("all_reduce", dp, 0.5, after=done))
    return build.program()


def buckets(count: int, reduce_s: float) -> Program:
    """Six layers whose gradients are reduced while the next one computes."""
    build = ProgramBuilder(Mesh(dp=count))
    role, dp = build.role("all", range(count)), build.communicator("dp")
    for _ in range(6):
        reduced = role.collective("all_reduce", dp, reduce_s, after=role.compute("layer", 1.0))
    role.compute("update", 0.1, after=reduced)
    return build.program()


def tensor_parallel(tp: int, dp: int) -> Program:
    build = ProgramBuilder(Mesh(tp=tp, dp=dp))
    role, within, across = build.role("all", range(tp * dp)), build.communicator("tp"), build.communicator("dp")
    reduced = role.collective("all_reduce", within, 0.1, after=role.compute("layer", 1.0))
    for _ in range(9):
        reduced = role.collective("all_reduce", within, 0.1, after=role.compute("layer", 1.0, after=reduced))
    role.compute("update", 0.1, after=role.collective("all_reduce", across, 0.5, after=reduced))
    return build.program()


def stages(pp: int, tp: int = 1, dp: int = 1, *, how: str = "batched", name: str = "1f1b") -> Program:
    """A pipeline of two layers a stage, each followed by an all-reduce over tp; gradients are reduced at the end."""
    build = ProgramBuilder(Mesh(pp=pp, tp=tp, dp=dp))
    within, across = build.communicator("tp"), build.communicator("dp")
    blocks: dict[str, BlockBuilder] = {}

    def block(_stage: int, action: Action) -> BlockBuilder:
        kind = action.kind.name
        if kind not in blocks:
            blocks[kind] = build.block(kind)
            for _ in range(2):
                done = blocks[kind].compute("layer", 1.0 if kind == "FORWARD" else 2.0)
                if tp > 1:
                    done = blocks[kind].collective("all_reduce", within, 0.05, after=done)
                    blocks[kind].compute("add", 0.0, after=done)
            blocks[kind].port("out", done)
        return blocks[kind]

    placed = pipeline(build, schedule(name, pp, 8), block, Transfer(duration_s=0.05), transfers=how)  # type: ignore[arg-type]
    if dp > 1:
        for stage, role in enumerate(placed.stages):
            last = max((one for key, one in placed.placed.items() if key[0] == stage), key=lambda one: one.number)
            role.compute("update", 0.1, after=role.collective("all_reduce", across, 0.5, after=last["out"]))
    return build.program()


class TestTheLargestOfMany:
    def test_known_values(self) -> None:
        """H. L. Harter, Expected values of normal order statistics, Biometrika 48, 1961."""
        known = {1: 0.0, 2: 0.56419, 3: 0.84628, 8: 1.42360, 16: 1.76599, 100: 2.50759}
        for count, mean in known.items():
            assert largest_of(count)[0] == pytest.approx(mean, abs=1e-5)
        assert largest_of(2)[1] == pytest.approx(1 - 1 / math.pi, abs=1e-6)

    def test_a_hundred_thousand(self) -> None:
        mean, variance = largest_of(100_000)
        assert 4.3 < mean < 4.5 and 0.05 < variance < 0.1

    def test_of_two_clark_is_exact(self) -> None:
        (mean, variance), first = later_of((5.0, 1.0), (5.0, 1.0))
        assert mean - 5 == pytest.approx(largest_of(2)[0], abs=1e-6)
        assert variance == pytest.approx(largest_of(2)[1], abs=1e-6)
        assert first == pytest.approx(0.5)

    def test_far_apart_the_later_decides(self) -> None:
        (mean, variance), first = later_of((9.0, 0.25), (5.0, 0.01))
        assert (mean, variance, first) == (
            pytest.approx(9.0, abs=1e-9),
            pytest.approx(0.25, abs=1e-9),
            pytest.approx(1.0),
        )
        assert later_of((9.0, 0.0), (5.0, 0.0)) == ((9.0, 0.0), 1.0)


class TestAgainstDraws:
    @pytest.mark.parametrize("ranks", [8, 16, 64])
    def test_data_parallelism_within_the_error_of_drawing(self, ranks: int) -> None:
        program = replicas(ranks)
        drawn, error = drawn_extra(program)
        work = math.sqrt(1.0**2 + 1.5**2 + 2.0**2 + 0.1**2)
        assert our_extra(program) == pytest.approx(largest_of(ranks)[0] * JITTER * work, rel=1e-6)
        assert our_extra(program) == pytest.approx(drawn, abs=4 * error)

    @pytest.mark.parametrize("reduce_s", [0.01, 0.9, 1.0, 2.0])
    def test_gradients_reduced_beside_computation(self, reduce_s: float) -> None:
        program = buckets(16, reduce_s)
        drawn, error = drawn_extra(program)
        assert our_extra(program) == pytest.approx(drawn, rel=0.08, abs=3 * error)

    @pytest.mark.parametrize(("tp", "dp"), [(8, 8), (2, 16)])
    def test_groups_that_cross(self, tp: int, dp: int) -> None:
        """What tensor-parallel groups leave uncertain, the data-parallel group still waits for."""
        program = tensor_parallel(tp, dp)
        drawn, error = drawn_extra(program)
        assert our_extra(program) == pytest.approx(drawn, rel=0.03, abs=3 * error)

    @pytest.mark.parametrize("how", ["batched", "async"])
    @pytest.mark.parametrize(("pp", "tp", "dp"), [(4, 2, 1), (4, 1, 8), (4, 2, 2)])
    def test_pipelines_of_groups(self, pp: int, tp: int, dp: int, how: str) -> None:
        program = stages(pp, tp, dp, how=how)
        drawn, error = drawn_extra(program, samples=64)
        assert our_extra(program) == pytest.approx(drawn, rel=0.12, abs=3 * error)

    def test_zero_bubble(self) -> None:
        program = stages(4, 2, how="async", name="zb-h1")
        drawn, error = drawn_extra(program, samples=64)
        assert our_extra(program) == pytest.approx(drawn, rel=0.12, abs=3 * error)

    def test_a_pipeline_alone(self) -> None:
        program = stages(4)
        drawn, error = drawn_extra(program)
        assert our_extra(program) == pytest.approx(drawn, rel=0.1, abs=3 * error)

    def test_of_a_pipeline_alone_with_transfers_beside_computation_more_than_half_is_found(self) -> None:
        program = stages(4, how="async")
        drawn, error = drawn_extra(program)
        assert 0.5 * drawn - 3 * error < our_extra(program) < drawn + 3 * error


class TestSimulate:
    def test_none_is_the_same_answer(self) -> None:
        plain, none = simulate(stages(2, 2)), simulate(stages(2, 2), None, Scenario(jitter=0.0))
        assert plain.step_time_s == none.step_time_s and none.unchanged_step_time_s is None
        assert plain.bottlenecks == none.bottlenecks
        assert none.scenario.describe() == []

    def test_it_is_said(self) -> None:
        answer = simulate(replicas(8), None, Scenario(jitter=0.03))
        assert answer.scenario.describe() == ["compute jitters by 3 %"]
        (note,) = answer.diagnostics
        assert "3 %" in note.message and "counts with the op that waits" in note.message

    def test_waiting_counts_as_exposed_and_the_breakdown_sums(self) -> None:
        plain, jittered = simulate(replicas(16)), simulate(replicas(16), None, Scenario(jitter=0.05))
        more = jittered.step_time_s - plain.step_time_s
        assert jittered.breakdown.mean_s["dp exposed"] - 0.5 == pytest.approx(more)
        assert jittered.breakdown.mean_s["compute"] == pytest.approx(4.6)
        assert sum(jittered.breakdown.mean_s.values()) == pytest.approx(jittered.step_time_s)

    def test_a_straggler_leaves_nothing_to_jitter(self) -> None:
        """All wait for the slow rank; how the others vary does not matter."""
        slow, both = (
            simulate(replicas(16), None, Scenario(stragglers={3: 1.5}, jitter=one)).step_time_s for one in (0.0, 0.02)
        )
        assert both == pytest.approx(slow, rel=1e-4)

    def test_gains_shrink_waits_with_computation_alone(self) -> None:
        gains = {one.name: one for one in simulate(replicas(16), None, Scenario(jitter=0.05)).bottlenecks}
        assert gains["compute"].gain_if_free_s == pytest.approx(
            simulate(replicas(16), None, Scenario(jitter=0.05)).step_time_s - 0.5
        )
        assert gains["dp"].gain_if_free_s == pytest.approx(0.5)

    def test_unfolded_is_the_same(self) -> None:
        folded, unfolded = (
            simulate(stages(2, 2, 4), None, Scenario(jitter=0.04), folded=one).step_time_s for one in (True, False)
        )
        assert folded == unfolded

    def test_where_links_are_shared(self) -> None:
        fixed, shared = (
            simulate(replicas(8), None, Scenario(jitter=0.03), executor=one).step_time_s
            for one in ("fixed", "shared")  # type: ignore[arg-type]
        )
        assert shared == pytest.approx(fixed)

    def test_one_step_recorded(self) -> None:
        build = ProgramBuilder(Mesh(dp=8), repeats=False)
        role, dp = build.role("all", range(8)), build.communicator("dp")
        role.collective("all_reduce", dp, 1.0, after=role.compute("work", 2.0))
        answer = simulate(build.program(), None, Scenario(jitter=0.1))
        assert answer.step_time_s == pytest.approx(3.0 + largest_of(8)[0] * 0.2)

    @pytest.mark.parametrize("jitter", [-0.1, float("nan"), 1.5, float("inf"), True, "3%"])
    def test_what_cannot_be_meant(self, jitter: float) -> None:
        with pytest.raises(InputError) as caught:
            simulate(replicas(2), None, Scenario(jitter=jitter))
        assert caught.value.code == ("bad-value" if isinstance(jitter, bool | str) else "out-of-range")
