"""Sweeps: how an axis is read, what an outcome holds, and what happens when a value fails or a person interrupts."""

from __future__ import annotations

import pytest

from foretrace import Answer, Mesh, Program, ProgramBuilder, simulate
from foretrace.basics.errors import InputError, UsageError
from foretrace.search.sweep import Sweep, SweepAxis, Value, parse_axis, run_axis


class TestAxis:
    @pytest.mark.parametrize(
        ("text", "kind", "values"),
        [
            ("microbatches=8,16,32", "count", (8, 16, 32)),
            ("microbatches=4:64:x2", "count", (4, 8, 16, 32, 64)),
            ("gpus=16:1024:x4", "count", (16, 64, 256, 1024)),
            ("gpus=16:100", "count", (16, 32, 64)),
            ("dp=1:6:x1.5", "count", (1, 2, 3, 5)),
            ("pp=2, 4", "count", (2, 4)),
            ("tp=2,4", "count", (2, 4)),
            ("ep=1e2", "count", (100,)),
            ("dp=1x,2x", "what-if", (1.0, 2.0)),
            ("compute=1x,1.5x,2x", "what-if", (1.0, 1.5, 2.0)),
            ("tp=0.5x:4x:x2", "what-if", (0.5, 1.0, 2.0, 4.0)),
            ("name:attention*=2x", "what-if", (2.0,)),
            ("compute=150%", "what-if", (1.5,)),
            ("cluster=a100-dgx,mine.yaml", "cluster", ("a100-dgx", "mine.yaml")),
            ("jitter=0,1%,0.03", "jitter", (0.0, 0.01, 0.03)),
            ("jitter=1%:8%", "jitter", (0.01, 0.02, 0.04, 0.08)),
            ("routing=1,1.5", "routing", (1.0, 1.5)),
            ("straggler:5=1x,1.2x", "straggler", (1.0, 1.2)),
            ("batch=1,2,4", "batch", (1.0, 2.0, 4.0)),
            ("batch=1x:4x", "batch", (1.0, 2.0, 4.0)),
            ("gpu=h100-sxm,b200", "gpu", ("h100-sxm", "b200")),
        ],
    )
    def test_what_it_means(self, text: str, kind: str, values: tuple[Value, ...]) -> None:
        axis = parse_axis(text)
        assert (axis.kind, axis.values) == (kind, values)
        assert all(isinstance(value, int) for value in axis.values) == (kind == "count")

    def test_the_network_is_all_communication(self) -> None:
        assert parse_axis("network=2x") == SweepAxis("communication", "what-if", (2.0,), what="communication")

    def test_the_rank_of_a_straggler(self) -> None:
        assert parse_axis("straggler:17=1.5x").rank == 17

    def test_values_as_people_write_them(self) -> None:
        assert [parse_axis(text).label(value) for text, value in (("gpus=1", 16384), ("jitter=0", 0.03))] == [
            "16,384",
            "3 %",
        ]
        assert parse_axis("compute=2x").label(1.5) == "1.5×"
        assert parse_axis("cluster=a").label("a") == "a"

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("microbatches", "a name and values"),
            ("=4", "a name and values"),
            ("microbatches=", "a name and values"),
            ("microbatches=4,4", "4 is given twice"),
            ("microbatches=0", "microbatches of 0"),
            ("microbatches=4.5", "is not whole"),
            ("microbatches=-4", "is negative"),
            ("microbatches=four", "does not start with a number"),
            ("microbatches=4,,8", "is empty"),
            ("gpus=64:16", "goes nowhere"),
            ("gpus=16:64:x1", "goes nowhere"),
            ("gpus=16:64:2", "is not a range"),
            ("gpus=16:64:x2:x3", "is not a range"),
            ("gpus=1:1e9:x1.001", "more than 1,000 values"),
            ("jitter=0:8%", "goes nowhere"),
            ("jitter=200%", "jitter is 2.0"),
            ("jitter=-1%", "is negative"),
            ("compute=0x", "is zero"),
            ("compute=20%,50%", "20% of what?"),
            ("gpu=h100-sxm,", "a name is missing"),
            ("microbatchs=4,8", "did you mean microbatches?"),
            ("compute=2,4", '"compute" takes factors'),
            ("straggler=1.2x", "which rank is slow?"),
            ("straggler:x=1.2x", "which rank is slow?"),
            ("straggler:1=0.5x", "would be faster"),
            ("cluster=a,,b", "a name is missing"),
        ],
    )
    def test_what_cannot_be_meant(self, text: str, says: str) -> None:
        with pytest.raises(UsageError) as refused:
            parse_axis(text)
        assert says in str(refused.value) and f"--over {text}" in str(refused.value)


def job(microbatches: int, *, dp: int = 2, tokens: bool = True) -> Program:
    """Each microbatch takes 1 s on every rank; one all-reduce of 2 s ends the step."""
    each = 100.0 * microbatches * dp if tokens else None
    build = ProgramBuilder(Mesh(dp=dp), title=f"job · {microbatches} microbatches", tokens_per_step=each)
    role, group = build.role("all", range(dp)), build.communicator("dp")
    for _ in range(microbatches):
        done = role.compute("microbatch", 1.0)
    role.compute("update", 1e-9, after=role.collective("all_reduce", group, 2.0, after=done))
    return build.program()


def run(value: Value) -> Answer:
    return simulate(job(int(value)), explain=False)


class TestSweep:
    def test_outcomes(self) -> None:
        found = run_axis(parse_axis("microbatches=2,6"), run)
        first, second = found.outcomes
        assert (first.step_time_s, second.step_time_s) == (pytest.approx(4.0), pytest.approx(8.0))
        assert first.tokens_per_s_per_gpu == pytest.approx(50.0)
        assert first.efficiency == 1.0
        assert second.efficiency == pytest.approx(75.0 / 50.0)
        assert second.breakdown_s == {"compute": pytest.approx(6.0), "dp exposed": pytest.approx(2.0)}
        assert second.step_time_band_s == (second.step_time_s, second.step_time_s)
        assert found.best is second and found.title == "job" and not found.interrupted

    def test_without_tokens_work_is_counted_in_microbatches(self) -> None:
        found = run_axis(parse_axis("microbatches=2,6"), lambda value: simulate(job(int(value), tokens=False)))
        assert found.outcomes[1].tokens_per_s_per_gpu is None
        assert found.outcomes[1].efficiency == pytest.approx(3 * 4.0 / 8.0)

    def test_without_tokens_replicas_do_as_much_each(self) -> None:
        found = run_axis(parse_axis("dp=2,4"), lambda value: simulate(job(2, dp=int(value), tokens=False)))
        assert [one.efficiency for one in found.outcomes] == [1.0, pytest.approx(1.0)]
        assert [one.world_size for one in found.outcomes] == [2, 4]

    def test_what_fails_is_kept_and_the_rest_goes_on(self) -> None:
        def partly(value: Value) -> Answer:
            if value == 2:
                raise InputError("bad-value", "too few", where="job.txt:3", hint="take more")
            return run(value)

        found = run_axis(parse_axis("microbatches=2,4,8"), partly)
        assert [one.error for one in found.outcomes] == ["job.txt:3: too few", None, None]
        assert found.outcomes[0].step_time_s is None and found.outcomes[0].efficiency is None
        assert found.outcomes[1].efficiency == 1.0  # the first that ran
        assert found.title == "job"

    def test_an_interrupt_keeps_what_is_finished(self) -> None:
        def interrupted(value: Value) -> Answer:
            if value == 8:
                raise KeyboardInterrupt
            return run(value)

        found = run_axis(parse_axis("microbatches=2,4,8,16"), interrupted)
        assert found.interrupted and [one.value for one in found.outcomes] == [2, 4]

    def test_mistakes_of_our_own_are_not_hidden(self) -> None:
        def broken(_value: Value) -> Answer:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run_axis(parse_axis("microbatches=2,4"), broken)

    def test_it_says_where_it_is(self) -> None:
        seen: list[tuple[int, int]] = []

        def starts(number: int, found: Sweep) -> None:
            seen.append((number, len(found.outcomes)))

        run_axis(parse_axis("microbatches=2,4"), run, starts)
        assert seen == [(0, 0), (1, 1)]

    def test_of_one_value_none_is_best(self) -> None:
        assert run_axis(parse_axis("microbatches=2"), run).best is None
