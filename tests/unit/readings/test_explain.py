"""Runs whose reasons are known: hand-built jobs with hand-worked numbers, and recorded ones with known facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foretrace import Answer, Mesh, ProgramBuilder, simulate
from foretrace.inputs.registry import open_input
from foretrace.readings.answer.recorded import recorded_answer
from foretrace.readings.explain import Explanation, explain
from foretrace.readings.explain.rows import weighted_median
from shared_files import shared


def data_parallel(compute_s: Sequence[float], microbatches: int = 1, folded: bool = True) -> Answer:
    """Each rank computes so long forward for each microbatch, then all reduce 8 bytes in 2 s."""
    build = ProgramBuilder(Mesh(dp=len(compute_s)), repeats=False)
    for rank, seconds in enumerate(compute_s):
        role = build.role(f"rank {rank}", [rank])
        for microbatch in range(microbatches):
            done = role.compute("layer", seconds, phase="forward", microbatch=microbatch, layer=3)
        role.collective("all_reduce", build.communicator("dp"), 2.0, after=done, bytes=8)
    return simulate(build.program(), folded=folded)


class TestASlowRank:
    """Three ranks compute 1 s, the last 4 s: three wait 3 s each for it."""

    @pytest.fixture
    def explanation(self) -> Explanation:
        return explain(data_parallel([1.0, 1.0, 1.0, 4.0]))

    def test_communication(self, explanation: Explanation) -> None:
        (kind,) = explanation.calls
        assert (kind.axis, kind.collective, kind.calls, kind.bytes) == ("dp", "all_reduce", 4, 32)
        assert (kind.transfer_s, kind.wait_s, kind.held_s) == pytest.approx((2.0, 9 / 4, 9 / 4))
        assert (kind.held.mean_s, kind.held.median_s, kind.held.max_s) == pytest.approx((9 / 4, 3.0, 3.0))
        assert kind.bytes_per_s == pytest.approx(4.0)

    def test_the_worst_call_says_who_waited_for_whom(self, explanation: Explanation) -> None:
        (worst,) = explanation.worst_calls
        assert (worst.place.rank, worst.held_s, worst.start_s) == (0, pytest.approx(3.0), pytest.approx(4.0))
        late = worst.waited_for
        assert late is not None
        assert (late.rank, late.op, late.microbatch, late.layer) == (3, "layer", 0, 3)

    def test_stragglers(self, explanation: Explanation) -> None:
        (slow,) = explanation.stragglers
        assert (slow.rank, slow.flags) == (3, ("computes long", "holds others up"))
        assert (slow.times_last, slow.meetings) == (1, 1)
        assert (slow.held_others_s, slow.held_up_s, slow.compute_ratio) == pytest.approx((9.0, 0.0, 4.0))
        assert all(
            one.held_others_s == 0 and one.held_up_s == pytest.approx(3.0) for one in explanation.ranks if one != slow
        )

    def test_the_critical_path(self, explanation: Explanation) -> None:
        path = explanation.critical_path
        assert path.by_part_s == pytest.approx({"forward": 4.0, "dp": 2.0})
        assert path.by_rank_s[3] == pytest.approx(4.0) and sum(path.by_stage_s.values()) == pytest.approx(6.0)
        assert (path.longest[0].place.rank, path.longest[0].seconds) == (3, pytest.approx(4.0))
        assert path.gaps_s == pytest.approx(0.0)

    def test_advice_names_it_with_its_numbers(self, explanation: Explanation) -> None:
        topics = [one.topic for one in explanation.advice]
        assert topics[:2] == ["straggler", "communication"]
        assert "rank 3 (stage 0) computes 300.0 % longer" in explanation.advice[0].text
        assert "lost 9.00 s in sum, 2.25 s of the step" in explanation.advice[0].text
        assert explanation.advice[0].seconds == pytest.approx(9 / 4)

    def test_folding_changes_nothing(self, explanation: Explanation) -> None:
        unfolded = explain(data_parallel([1.0, 1.0, 1.0, 4.0], folded=False))
        assert unfolded.calls == explanation.calls
        assert [one.text for one in unfolded.advice] == [one.text for one in explanation.advice]
        assert [one.rank for one in unfolded.stragglers] == [3]


def test_ranks_that_differ_a_little_are_no_stragglers() -> None:
    """1 % is below the least that counts; with a spread of 10 % among all, 15 % is not beyond it."""
    assert not explain(data_parallel([1.0, 1.0, 1.0, 1.01])).stragglers
    assert not [one for one in explain(data_parallel([0.9, 1.0, 1.1, 1.15])).ranks if "computes long" in one.flags]


def test_waits_that_pass_while_the_rank_computes_hold_nobody_up() -> None:
    """A receive is posted at once and comes after 3 s of compute at the sender; the receiver computes 2 s beside."""
    build = ProgramBuilder(Mesh(pp=2), repeats=False)
    pair = build.pair("pp", 0, 1)
    first, second = build.role("first", [0]), build.role("second", [1])
    done = first.compute("layer", 3.0, phase="forward", microbatch=0)
    first.transfer("send", pair, 1.0, to=1, bytes=8, after=done)
    second.compute("other", 2.0)
    second.transfer("receive", pair, 1.0)
    (kind,) = explain(simulate(build.program())).calls
    assert kind.wait_s == pytest.approx(3.0 / 2) and kind.held_s == pytest.approx(1.0 / 2)


def test_of_two_waits_at_once_time_counts_for_the_one_that_ends_first() -> None:
    """Rank 1 waits for rank 0 (2 s) and rank 2 (5 s) from the start on: 2 s and 3 s, not 7 s in sum."""
    build = ProgramBuilder(Mesh(dp=3), repeats=False)
    left, right = build.groups("left", [[0, 1]], axis="left"), build.groups("right", [[2, 1]], axis="right")
    for rank, seconds, group in ((0, 2.0, left), (2, 5.0, right)):
        role = build.role(f"rank {rank}", [rank])
        done = role.compute("work", seconds)
        role.transfer("send", group, 0.0, to=1, bytes=8, after=done)
    waits = build.role("rank 1", [1])
    waits.transfer("from left", left, 0.0, lane="a")
    waits.transfer("from right", right, 0.0, lane="b")
    explanation = explain(simulate(build.program()))
    assert {one.axis: one.held.max_s for one in explanation.calls} == pytest.approx({"left": 2.0, "right": 3.0})
    assert explanation.ranks[1].held_up_s == pytest.approx(5.0)


def pipeline(microbatches: int) -> Answer:
    """Two stages; a microbatch goes forward in 1 s on the first and 2 s on the second, transfers take no time."""
    build = ProgramBuilder(Mesh(pp=2), repeats=False)
    pair = build.pair("pp", 0, 1)
    first, second = build.role("stage 0", [0]), build.role("stage 1", [1])
    for number in range(microbatches):
        done = first.compute("f", 1.0, phase="forward", microbatch=number)
        first.transfer("send", pair, 0.0, to=1, bytes=8, after=done, microbatch=number)
        came = second.transfer("receive", pair, 0.0, microbatch=number)
        second.compute("f", 2.0, phase="forward", microbatch=number, after=came)
    return simulate(build.program())


def test_the_pipeline() -> None:
    """3 microbatches: stage 1 starts after 1 s and ends at 7 s; stage 0 is done after 3 s."""
    line = explain(pipeline(3)).pipeline
    assert (line.microbatches, line.ideal_bubble) == (3, pytest.approx(1 / 4))
    first, second = line.stages
    assert line.slowest is second and second.microbatch_s == pytest.approx(2.0)
    assert (first.bubble_s, first.idle_s, first.waits_s) == pytest.approx((0.0, 4.0, 4.0))
    assert (second.bubble_s, second.idle_s, second.embd_wait_s) == pytest.approx((1.0, 0.0, 0.0))
    assert line.bubble_share == pytest.approx(1 / 14) and line.waits_share == pytest.approx(5 / 14)
    assert first.forward is not None and first.forward.mean_s == 1.0 and first.backward is None


def test_without_a_pipeline_there_is_no_bubble_to_compare() -> None:
    line = explain(data_parallel([1.0, 1.0])).pipeline
    assert (line.ideal_bubble, line.waits_share, line.slowest) == (None, 0.0, None)


def moe(received: Sequence[int], seconds_per_byte: float = 1.0, microbatches: int = 2) -> Answer:
    """Every rank sends 10 bytes to experts, whose compute is as their bytes, and gets 10 back."""
    build = ProgramBuilder(Mesh(dp=len(received), ep=len(received)), repeats=False)
    group = build.communicator("ep")
    for rank, size in enumerate(received):
        role = build.role(f"rank {rank}", [rank])
        for microbatch in range(microbatches):
            facts = {"microbatch": microbatch, "phase": "forward"}
            role.compute("attention", 1.0, **facts)
            role.collective("all_to_all", group, 1.0, bytes=10, lane="compute", **facts)
            role.compute("experts", size * seconds_per_byte, **facts)
            role.collective("all_to_all", group, 1.0, bytes=size, lane="compute", **facts)
    return simulate(build.program())


class TestExperts:
    """Rank 1 receives 16 of 40 bytes, the mean is 10: 1.6 times the mean, 6 s more in each of 2 microbatches."""

    @pytest.fixture
    def explanation(self) -> Explanation:
        return explain(moe([8, 16, 10, 6]))

    def test_loads(self, explanation: Explanation) -> None:
        experts = explanation.experts
        assert experts is not None
        assert [(one.ep, one.ranks, one.received_bytes) for one in experts.loads] == [
            (0, (0,), 8.0),
            (1, (1,), 16.0),
            (2, (2,), 10.0),
            (3, (3,), 6.0),
        ]
        assert experts.max_load == pytest.approx(1.6) and experts.busiest.ep == 1
        assert [one.compute_s for one in experts.loads] == pytest.approx([16.0, 32.0, 20.0, 12.0])

    def test_what_balance_would_save_at_most(self, explanation: Explanation) -> None:
        experts = explanation.experts
        assert experts is not None
        assert (experts.busiest_compute_s, experts.mean_compute_s) == pytest.approx((16.0, 10.0))
        assert experts.balanced_saves_s == pytest.approx(12.0)
        balanced = moe([10, 10, 10, 10])
        assert explanation.answer.step_time_s - balanced.step_time_s == pytest.approx(experts.balanced_saves_s)

    def test_others_wait_for_it(self, explanation: Explanation) -> None:
        experts = explanation.experts
        assert experts is not None
        # (8 + 6 + 10) s a microbatch: each partner waits for the difference to 16 s.
        assert experts.busiest.held_others_s == pytest.approx(2 * (8 + 6 + 10))
        text = explanation.advice[0].text
        assert text.startswith("rank 1 (stage 0, experts 1) receives 1.6× the mean tokens")
        assert "12.00 s of the step is others waiting" in text and "save at most 12.00 s" in text

    def test_parts_of_an_all_to_all_say_what_is_received_whatever_size_it_is_priced_by(self) -> None:
        build = ProgramBuilder(Mesh(dp=2, ep=2), repeats=False)
        group = build.communicator("ep")
        for rank, parts in enumerate(([3, 3], [5, 5])):
            role = build.role(f"rank {rank}", [rank])
            role.collective("all_to_all", group, 1.0, bytes=20, sends={0: 3, 1: 5})
            role.collective("all_to_all", group, 1.0, bytes=20, sends=dict(enumerate(parts)))
        experts = explain(simulate(build.program())).experts
        assert experts is not None and [one.load for one in experts.loads] == pytest.approx([0.75, 1.25])

    def test_even_experts_are_no_advice(self) -> None:
        explanation = explain(moe([10, 10, 10, 10]))
        assert explanation.experts is not None and explanation.experts.max_load == 1.0
        assert explanation.experts.balanced_saves_s == pytest.approx(0.0)
        assert "experts" not in [one.topic for one in explanation.advice]


def test_jitter_is_the_median_deviation_between_microbatches() -> None:
    """Passes of 1.0, 1.1 and 9 s: the median is 1.1, the deviations 0.1, 0 and 7.9, their median 0.1."""
    build = ProgramBuilder(repeats=False)
    role = build.role("only", [0])
    for number, seconds in enumerate((1.0, 1.1, 9.0)):
        role.compute("f", seconds, phase="forward", microbatch=number)
    (one,) = explain(simulate(build.program())).variation
    assert (one.stage, one.phase, one.microbatches, one.ops) == (0, "forward", 3, 1)
    assert one.of_ops == pytest.approx(0.1 / 1.1) and one.of_passes == pytest.approx(0.1 / 1.1)
    assert explain(data_parallel([1.0, 1.0], microbatches=2)).variation == ()


def test_host_gaps() -> None:
    build = ProgramBuilder(repeats=False)
    role = build.role("only", [0])
    launched = role.host("launch", 1.0)
    role.compute("work", 3.0, after=launched)
    host = explain(simulate(build.program())).host
    assert (host.gaps, host.total_s, host.share) == (1, 1.0, pytest.approx(0.25))
    assert (host.longest[0].place.op, host.longest[0].seconds) == ("launch", 1.0)


def test_one_rank_and_a_step_of_no_time() -> None:
    build = ProgramBuilder(repeats=False)
    build.role("only", [0]).compute("work", 3.0)
    explanation = explain(simulate(build.program()))
    assert (explanation.calls, explanation.worst_calls, explanation.experts, explanation.stragglers) == (
        (),
        (),
        None,
        (),
    )
    assert [one.topic for one in explanation.advice] == ["critical path", "compute"]
    assert explanation.notes[0].code == "too-little-data" and "one rank" in explanation.notes[0].message
    build = ProgramBuilder(Mesh(dp=2, pp=2), repeats=False)
    build.role("all", range(4)).compute("nothing", 0.0)
    explanation = explain(simulate(build.program()))
    assert (explanation.advice, explanation.critical_path.gaps_s, explanation.host.share) == ((), 0.0, 0.0)
    assert explanation.ranks[0].compute_ratio is None
    assert "nothing communicates" in explanation.notes[0].message


def test_the_replay_is_compared_with_the_step() -> None:
    explanation = explain(data_parallel([1.0, 1.0]))
    assert explanation.replay_error is None and not explanation.recorded
    assert replace(explanation, replay_step_s=3.3).replay_error == pytest.approx(0.1)
    for replay_s, told in ((3.01, False), (3.6, True), (0.1, True)):
        codes = [note.code for note in replace(explanation, replay_step_s=replay_s).notes]
        assert ("replay-differs" in codes) is told


def test_weighted_median() -> None:
    one, two = np.array([5.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0])
    assert weighted_median(one, two) == 2.0
    assert weighted_median(one, np.array([2.0, 1.0, 1.0])) == 3.5
    assert weighted_median(one, np.array([9.0, 1.0, 1.0])) == 5.0
    assert weighted_median(np.empty(0), np.empty(0)) == 0.0


def recorded(*parts: str) -> Explanation:
    measured = recorded_answer(open_input([shared("data", "traces", *parts)]))
    assert measured is not None
    return explain(measured)


def test_a_recorded_pipeline_waits_at_the_end_in_the_embedding_group() -> None:
    explanation = recorded("dense4", "real")
    assert explanation.recorded and explanation.answer.step_time_s == pytest.approx(0.9077, abs=1e-4)
    first, last = explanation.pipeline.stages
    assert first.embd_wait_s == pytest.approx(0.0, abs=1e-4) and last.embd_wait_s == pytest.approx(0.27, abs=0.005)
    worst = {one.place.rank: one for one in explanation.worst_calls if one.axis == "embd"}
    assert worst[2].held_s == pytest.approx(0.2675, abs=1e-3)
    assert worst[2].waited_for is not None and worst[2].waited_for.rank == 0
    (kind,) = [one for one in explanation.calls if one.axis == "embd"]
    assert kind.transfer.median_s == pytest.approx(2.1e-3, abs=5e-5), "the last to come did not wait"
    assert explanation.pipeline.ideal_bubble == 0.5
    asynchronous = next(one for one in explanation.calls if (one.axis, one.collective) == ("tp", "all_reduce"))
    assert asynchronous.held_s < 0.1 * asynchronous.wait_s, "its span beside a weight gradient holds nobody up"


def test_recorded_experts() -> None:
    explanation = recorded("moe16", "pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024", "real")
    experts = explanation.experts
    assert experts is not None
    assert experts.busiest.ranks == (2,) and experts.max_load == pytest.approx(6535 / 2048)
    assert {one.rank for one in explanation.stragglers} >= {2, 10}
    assert experts.busiest_compute_s > 2 * experts.mean_compute_s
    late = [one for one in explanation.worst_calls if one.axis == "ep"]
    assert all(one.waited_for is not None and one.waited_for.rank in (2, 10) for one in late)
    assert explanation.pipeline.microbatches == 8 and explanation.pipeline.ideal_bubble == pytest.approx(1 / 9)
    assert explanation.advice[0].topic == "experts" and "rank 2 (stage 0, experts 2)" in explanation.advice[0].text
    held = sum(one.held_s for one in explanation.calls if one.axis in ("ep", "dp"))
    assert held == pytest.approx(explanation.answer.breakdown.mean_s["straggler"], rel=0.01)
