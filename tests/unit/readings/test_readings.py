"""Readings of small timelines: breakdown, critical path, memory, lanes, families, sensitivity, band."""

from __future__ import annotations

import pytest

from foretrace import Answer, Mesh, ProgramBuilder, Scenario, simulate
from foretrace.basics.errors import InputError
from foretrace.program.expand import expand
from foretrace.program.program import Communicator, Source
from foretrace.program.role import RoleBuilder
from foretrace.readings.families import families, select


def one_rank(*, repeats: bool = True) -> tuple[ProgramBuilder, RoleBuilder]:
    build = ProgramBuilder(Mesh(), repeats=repeats)
    return build, build.role("only", [0])


def two_ranks(*, repeats: bool = True) -> tuple[ProgramBuilder, RoleBuilder, RoleBuilder, Communicator]:
    build = ProgramBuilder(Mesh(dp=2), repeats=repeats)
    return build, build.role("fast", [0]), build.role("slow", [1]), build.communicator("dp")


def parts(answer: Answer, role: int) -> dict[str, float]:
    names, seconds = answer.breakdown.parts, answer.breakdown.per_class_s[role]
    return {name: pytest.approx(value) for name, value in zip(names, seconds.tolist(), strict=True) if value}


class TestBreakdown:
    def test_phases_of_compute_are_told_apart(self) -> None:
        build, role = one_rank()
        for phase, seconds in (("forward", 3.0), ("recompute", 1.0), ("backward", 5.0), ("optimizer", 2.0)):
            role.compute(phase, seconds, phase=phase)
        answer = simulate(build.program())
        assert answer.breakdown.mean_s == {"compute": 8.0, "recompute": 1.0, "optimizer": 2.0}

    def test_waiting_for_a_late_rank_outside_the_pipeline_is_imbalance(self) -> None:
        build, fast, slow, dp = two_ranks()
        for role, seconds in ((fast, 1.0), (slow, 4.0)):
            done = role.compute("work", seconds)
            role.compute("update", 1.0, after=role.collective("all_reduce", dp, 2.0, after=done))
        answer = simulate(build.program())
        assert answer.step_time_s == 7.0
        assert parts(answer, 0) == {"compute": 2.0, "dp exposed": 2.0, "imbalance": 3.0}
        assert parts(answer, 1) == {"compute": 5.0, "dp exposed": 2.0}

    def test_a_rank_that_a_scenario_slows_is_a_straggler(self) -> None:
        build = ProgramBuilder(Mesh(dp=2))
        role, dp = build.role("both", [0, 1]), build.communicator("dp")
        done = role.compute("work", 1.0)
        role.compute("update", 1.0, after=role.collective("all_reduce", dp, 2.0, after=done))
        slow = simulate(build.program(), None, Scenario(stragglers={1: 1.5}))
        assert slow.breakdown.mean_s["straggler"] == pytest.approx(0.5) and "imbalance" not in slow.breakdown.mean_s
        uneven = simulate(build.program(), None, Scenario(slow_links={(1, "dp"): 2.0}))
        assert "straggler" not in uneven.breakdown.mean_s

    def test_a_partner_that_waits_for_another_stage_is_in_a_bubble(self) -> None:
        """Stage 0 computes for 10 s. Rank 2 has its activation at 11 s, rank 3 a second later; both meet before they
        compute. Rank 2 waits for rank 3's transfer from 10 to 12 s, and for stage 0 before."""
        build = ProgramBuilder(Mesh(dp=2, pp=2), repeats=False)
        dp = build.communicator("dp")
        for dp_rank, transfer_s in enumerate((1.0, 2.0)):
            hop = build.groups(f"hop {dp_rank}", [[dp_rank, dp_rank + 2]], axis="pp")
            first, second = build.role(f"first {dp_rank}", [dp_rank]), build.role(f"second {dp_rank}", [dp_rank + 2])
            first.collective("broadcast", hop, transfer_s, after=first.compute("work", 10.0))
            came = second.collective("broadcast", hop, transfer_s)
            second.compute("work", 5.0, after=second.collective("all_to_all", dp, 1.0, after=came))
        answer = simulate(build.program())
        shares = {"compute": 5.0, "dp exposed": 1.0}
        assert parts(answer, 2) == shares | {"bubble": 10.0, "imbalance": 2.0}
        assert parts(answer, 3) == shares | {"bubble": 10.0, "pp exposed": 2.0}

    def test_a_transfer_hidden_under_compute_is_not_exposed(self) -> None:
        build, role = one_rank()
        alone = build.groups("alone", [[0]], axis="dp")
        first = role.compute("first", 1.0)
        sent = role.collective("all_reduce", alone, 2.0, after=first)
        role.compute("meanwhile", 3.0, after=first)
        role.compute("after", 1.0, after=sent)
        assert simulate(build.program()).breakdown.mean_s == {"compute": 5.0}

    def test_a_transfer_nobody_waits_for_is_not_exposed(self) -> None:
        """The host holds the device up from 1 to 4; an all-reduce that runs meanwhile has nothing to do with it."""
        build, role = one_rank(repeats=False)
        alone = build.groups("alone", [[0]], axis="dp")
        first = role.compute("first", 1.0)
        role.collective("all_reduce", alone, 2.0, after=first)
        role.compute("second", 1.0, after=role.host("launch", 4.0))
        assert simulate(build.program()).breakdown.mean_s == {"compute": 2.0, "host": 3.0}

    def test_after_the_last_op_of_a_recorded_step_a_rank_is_idle(self) -> None:
        build, fast, slow, _ = two_ranks(repeats=False)
        fast.compute("work", 1.0)
        slow.compute("work", 4.0)
        answer = simulate(build.program())
        assert parts(answer, 0) == {"compute": 1.0, "idle": 3.0}

    def test_lanes_that_compute_at_once_count_once(self) -> None:
        build, role = one_rank()
        role.compute("a", 2.0, lane="compute")
        role.compute("b", 3.0, lane="second compute")
        answer = simulate(build.program())
        assert answer.step_time_s == 3.0
        assert answer.breakdown.mean_s == {"compute": 3.0}


class TestCriticalPath:
    def test_it_crosses_to_the_rank_that_came_last(self) -> None:
        build, fast, slow, dp = two_ranks()
        for role, seconds in ((fast, 1.0), (slow, 4.0)):
            done = role.compute("work", seconds, phase="forward")
            role.compute("update", 1.0, phase="optimizer", after=role.collective("all_reduce", dp, 2.0, after=done))
        path = simulate(build.program()).critical_path
        assert path.length_s == 7.0
        assert path.parts_s == {"forward": 4.0, "dp": 2.0, "optimizer": 1.0}

    def test_of_one_step_it_reaches_from_end_to_start(self) -> None:
        build, role = one_rank(repeats=False)
        role.compute("kernel", 2.0, after=role.host("launch", 1.0))
        path = simulate(build.program()).critical_path
        assert path.start_s.tolist() == [0.0, 1.0] and path.end_s.tolist() == [1.0, 3.0]
        assert path.parts_s == {"compute": 2.0, "host": 1.0}


class TestMemory:
    def test_track_and_peak(self) -> None:
        build, role = one_rank()
        role.resident(weights=100)
        role.compute("forward", 1.0, alloc={"activations": 10, "temporaries": 5}, free={"temporaries": 5})
        role.compute("backward", 1.0, alloc={"gradients": 7}, free={"activations": 10, "gradients": 7})
        answer = simulate(build.program())
        assert answer.peak_memory is not None
        assert answer.peak_memory.bytes == 117
        assert answer.peak_memory.by_category == {"weights": 100, "activations": 10, "gradients": 7}
        (track,) = answer.memory_tracks
        assert track.total_bytes[-1] == 100 and track.grows_bytes == 0

    def test_what_is_never_freed_is_said(self) -> None:
        build, role = one_rank()
        role.compute("leak", 1.0, alloc={"buffers": 8})
        (note,) = simulate(build.program()).diagnostics
        assert (note.level, note.code) == ("warning", "memory-imbalance")
        assert "8 bytes more than it frees" in note.message and "only" in str(note.where)

    def test_a_program_that_says_nothing_of_memory_has_no_peak(self) -> None:
        build, role = one_rank()
        role.compute("work", 1.0)
        assert simulate(build.program()).peak_memory is None


class TestFamilies:
    def program(self) -> ProgramBuilder:
        build, role = one_rank()
        alone = build.groups("alone", [[0]], axis="dp")
        done = role.compute("attention", 2.0, phase="forward")
        role.compute("mlp", 3.0, phase="backward", after=role.collective("all_reduce", alone, 1.0, after=done))
        return build

    def test_words_and_patterns(self) -> None:
        ops = expand(self.program().program())
        assert select(ops, "compute").tolist() == [True, False, True]
        assert select(ops, "dp").tolist() == select(ops, "all_reduce").tolist() == [False, True, False]
        assert select(ops, "backward").tolist() == select(ops, "name:m*").tolist() == [False, False, True]
        assert {family.name for family in families(ops)} == {"compute", "dp", "forward", "backward"}

    @pytest.mark.parametrize("text", ["gemm", "name:nothing", "colour:red"])
    def test_what_names_no_ops_is_an_error(self, text: str) -> None:
        with pytest.raises(InputError):
            select(expand(self.program().program()), text)

    def test_gains_are_what_a_changed_run_gives(self) -> None:
        gains = {one.name: one for one in simulate(self.program().program()).bottlenecks}
        assert gains["dp"].gain_if_free_s == pytest.approx(1.0)
        assert gains["compute"].gain_if_free_s == pytest.approx(5.0)
        assert gains["backward"].gain_10_percent_s == pytest.approx(3.0 - 3.0 / 1.1)


class TestBand:
    def test_errors_of_one_source_add_and_of_two_add_as_squares(self) -> None:
        build, role = one_rank()
        table, model = Source("table", 0.9, 1.1), Source("model", 0.8, 1.3)
        role.compute("a", 3.0, source=table)
        role.compute("b", 1.0, source=table)
        role.compute("c", 1.0, source=model)
        answer = simulate(build.program())
        low, high = answer.step_time_band_s
        assert low == pytest.approx(5.0 - (0.4**2 + 0.2**2) ** 0.5)
        assert high == pytest.approx(5.0 + (0.4**2 + 0.3**2) ** 0.5)
        assert {one.source: one.share for one in answer.provenance} == {"table": 0.8, "model": pytest.approx(0.2)}


class TestLanes:
    def test_busy_and_waiting_shares(self) -> None:
        build, fast, slow, dp = two_ranks(repeats=False)
        fast.collective("all_reduce", dp, 1.0, after=fast.compute("work", 1.0))
        slow.collective("all_reduce", dp, 1.0, after=slow.compute("work", 3.0))
        lanes = {one.lane: one for one in simulate(build.program()).lanes}
        assert lanes["compute"].busy == pytest.approx((1 + 3) / 2 / 4)
        assert lanes["dp"].busy == pytest.approx(1 / 4)
        assert lanes["dp"].waiting == pytest.approx(2 / 2 / 4)


def test_what_if_on_a_resource_speeds_up_what_it_bounds() -> None:
    build, role = one_rank()
    build.resource("link", 1.0)
    alone = build.groups("alone", [[0]], axis="dp")
    role.collective("all_reduce", alone, 5.0, latency_s=1.0, draws={"link": 4.0})
    assert simulate(build.program(), None, Scenario(what_if={"link": 2.0})).step_time_s == pytest.approx(1.0 + 4.0 / 2)


def test_an_op_that_draws_more_than_there_is_is_refused() -> None:
    build, role = one_rank()
    build.resource("link", 1.0)
    alone = build.groups("alone", [[0]], axis="dp")
    role.collective("all_reduce", alone, 3.0, draws={"link": 4.0})
    with pytest.raises(InputError, match="takes 4 s"):
        simulate(build.program())


def test_the_critical_path_is_that_of_the_slowest_part() -> None:
    """A chain of eight lanes that takes 1 s a step though 8 s in all, and beside it a rank that takes 1.2 s."""
    build = ProgramBuilder(Mesh(dp=2))
    chain, slow = build.role("chain", [0]), build.role("slow", [1])
    last = None
    for lane in range(8):
        last = chain.compute("link", 1.0, lane=f"lane {lane}", after=last)
    slow.compute("work", 1.2)
    answer = simulate(build.program())
    assert answer.step_time_s == pytest.approx(1.2)
    assert answer.critical_path.length_s == pytest.approx(1.2)


def test_what_is_freed_before_it_is_taken_was_held_before() -> None:
    build, role = one_rank()
    role.compute("update", 1.0, free={"gradients": 100})
    role.compute("work", 1.0)
    role.compute("backward", 1.0, alloc={"gradients": 100})
    answer = simulate(build.program())
    assert answer.peak_memory is not None and answer.peak_memory.bytes == 100
    assert "held when the step begins" in answer.diagnostics[0].message


@pytest.mark.parametrize("column", ["chunk", "bytes", "layer"])
@pytest.mark.parametrize("value", [1e30, float("nan"), 0.5])
def test_overrides_must_fit_their_column(column: str, value: float) -> None:
    build = ProgramBuilder(Mesh())
    block = build.block("work")
    block.compute("work", 1.0)
    build.role("only", [0]).place(block, override={0: {column: value}})
    with pytest.raises(InputError, match=column):
        build.program()


@pytest.mark.parametrize("steady", [None, True, False])
def test_a_scenario_decides_whether_steps_repeat(steady: bool | None) -> None:
    """A step of 3, whose gradients are reduced for 2 next to the 2 of the next step's first part."""
    build = ProgramBuilder(Mesh(dp=2))
    dp = build.communicator("dp")
    role = build.role("all", range(2))
    first = role.compute("first", 2.0)
    role.compute("second", 1.0, after=first)
    role.collective("all_reduce", dp, 2.0, after=role.compute("last", 0.0))
    answer = simulate(build.program(), scenario=Scenario(steady=steady), explain=False)
    assert answer.repeats == (steady is not False)
    assert answer.step_time_s == pytest.approx(5.0 if steady is False else 3.0)
