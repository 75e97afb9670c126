"""Sweeps: what an outcome holds, and what happens when a value fails or a person interrupts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from foretrace import Answer, Machine, Mesh, Plan, Program, ProgramBuilder, model, simulate
from foretrace.basics.errors import InputError, UsageError
from foretrace.search.axes import read_axes
from foretrace.search.scaling import find_scaling
from foretrace.search.sweep import Run, Sweep, sweep


def job(microbatches: int, *, dp: int = 2, tokens: bool = True) -> Program:
    """Each microbatch takes 1 s on every rank; one all-reduce of 2 s ends the step."""
    each = 100.0 * microbatches * dp if tokens else None
    build = ProgramBuilder(Mesh(dp=dp), title=f"job · {microbatches} microbatches", tokens_per_step=each)
    role, group = build.role("all", range(dp)), build.communicator("dp")
    for _ in range(microbatches):
        done = role.compute("microbatch", 1.0)
    role.compute("update", 1e-9, after=role.collective("all_reduce", group, 2.0, after=done))
    return build.program()


def swept(*over: str, run: Callable[[Mapping[str, str]], Answer]) -> Sweep:
    """Runs a sweep whose points are simulated from their texts alone."""

    def ask(texts: Mapping[str, str]) -> Run:
        return lambda: run(texts)

    return sweep(read_axes(over), ask)


def by_microbatches(texts: Mapping[str, str]) -> Answer:
    return simulate(job(int(texts["microbatches"]), dp=int(texts.get("dp", 2))), explain=False)


class TestSweep:
    def test_outcomes(self) -> None:
        result = swept("microbatches=2,6", run=by_microbatches)
        first, second = result.outcomes
        assert (first.step_time_s, second.step_time_s) == (pytest.approx(4.0), pytest.approx(8.0))
        assert first.tokens_per_s_per_gpu == pytest.approx(50.0)
        assert first.efficiency == 1.0
        assert second.efficiency == pytest.approx(75.0 / 50.0)
        assert second.breakdown_s == {"compute": pytest.approx(6.0), "dp exposed": pytest.approx(2.0)}
        assert second.step_time_band_s == (second.step_time_s, second.step_time_s)
        assert result.best is second and result.title == "job" and not result.interrupted

    def test_several_axes_are_all_combinations(self) -> None:
        result = swept("microbatches=2,6", "dp=2,4", run=by_microbatches)
        assert [(point.label, point.world_size) for point in result.outcomes] == [
            ("2 · 2", 2),
            ("2 · 4", 4),
            ("6 · 2", 2),
            ("6 · 4", 4),
        ]

    def test_scaling_starts_at_the_first_point_of_each_curve(self) -> None:
        """Over GPUs with another axis, each of its values begins at 100 %."""

        def run(texts: Mapping[str, str]) -> Answer:
            return simulate(job(int(texts["microbatches"]) * 2 // int(texts["gpus"]), dp=int(texts["gpus"])))

        result = swept("gpus=2,4", "microbatches=4,8", run=run)
        assert [point.efficiency for point in result.outcomes] == [
            1.0,
            1.0,
            pytest.approx((2 / 4) / (4 / 6)),
            pytest.approx((4 / 6) / (8 / 10)),
        ]

    def test_without_tokens_work_is_counted_in_microbatches(self) -> None:
        result = swept("microbatches=2,6", run=lambda texts: simulate(job(int(texts["microbatches"]), tokens=False)))
        assert result.outcomes[1].tokens_per_s_per_gpu is None
        assert result.outcomes[1].efficiency == pytest.approx(3 * 4.0 / 8.0)

    def test_without_tokens_replicas_do_as_much_each(self) -> None:
        result = swept("dp=2,4", run=lambda texts: simulate(job(2, dp=int(texts["dp"]), tokens=False)))
        assert [point.efficiency for point in result.outcomes] == [1.0, pytest.approx(1.0)]
        assert [point.world_size for point in result.outcomes] == [2, 4]

    def test_what_fails_is_kept_and_the_rest_goes_on(self) -> None:
        def partly(texts: Mapping[str, str]) -> Answer:
            if texts["microbatches"] == "2":
                raise InputError("bad-value", "too few", where="job.txt:3", hint="take more")
            return by_microbatches(texts)

        result = swept("microbatches=2,4,8", run=partly)
        errors = [point.error for point in result.outcomes]
        assert errors[0] is not None and errors[1:] == [None, None]
        assert (errors[0].code, errors[0].message, errors[0].hint) == ("bad-value", "job.txt:3: too few", "take more")
        assert result.outcomes[0].step_time_s is None and result.outcomes[0].efficiency is None
        assert result.outcomes[1].efficiency == 1.0  # the first that ran
        assert result.title == "job" and len(result.ran) == 2

    def test_a_plan_that_cannot_be_asked_for_is_kept_too(self) -> None:
        def ask(texts: Mapping[str, str]) -> Run:
            if texts["microbatches"] == "3":
                raise InputError("not-divisible", "3 cannot be divided")
            return lambda: by_microbatches(texts)

        result = sweep(read_axes(["microbatches=2,3,4"]), ask)
        assert [point.error is None for point in result.outcomes] == [True, False, True]

    @pytest.mark.parametrize("error", [UsageError("option-not-for-input", "no"), InputError("unknown-name", "no")])
    def test_what_cannot_be_meant_ends_it_before_anything_runs(self, error: Exception) -> None:
        def ask(texts: Mapping[str, str]) -> Run:
            if texts["microbatches"] == "4":
                raise error
            return lambda: pytest.fail("nothing is to be run")

        with pytest.raises(type(error)):
            sweep(read_axes(["microbatches=2,4"]), ask)

    def test_a_name_that_no_point_knows_is_an_error(self) -> None:
        def unknown(_: Mapping[str, str]) -> Answer:
            raise InputError("unknown-name", "nothing is called so")

        with pytest.raises(InputError) as refused:
            swept("microbatches=2,4", run=unknown)
        assert refused.value.code == "unknown-name"

    def test_a_reason_that_does_not_depend_on_the_values_is_an_error(self) -> None:
        def broken(_: Mapping[str, str]) -> Answer:
            raise InputError("bad-value", "the calibration is of another GPU")

        with pytest.raises(InputError) as refused:
            swept("microbatches=2,4", run=broken)
        assert refused.value.code == "bad-value"
        assert not swept("microbatches=2", run=broken).ran

    def test_an_interrupt_keeps_what_is_finished(self) -> None:
        def interrupted(texts: Mapping[str, str]) -> Answer:
            if texts["microbatches"] == "8":
                raise KeyboardInterrupt
            return by_microbatches(texts)

        result = swept("microbatches=2,4,8,16", run=interrupted)
        assert result.interrupted and [point.label for point in result.outcomes] == ["2", "4"]
        with pytest.raises(KeyboardInterrupt):
            swept("microbatches=8,16", run=interrupted)

    def test_mistakes_of_our_own_are_not_hidden(self) -> None:
        def broken(_: Mapping[str, str]) -> Answer:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            swept("microbatches=2,4", run=broken)

    def test_of_one_value_none_is_best(self) -> None:
        assert swept("microbatches=2", run=by_microbatches).best is None

    def test_a_model_that_does_not_fit_keeps_its_memory(self) -> None:
        machine = Machine("h100-dgx")

        def ask(texts: Mapping[str, str]) -> Run:
            plan = model("llama3-8b", Plan(gpus=8)).read_options(texts)
            return lambda: simulate(plan, machine, even_if_oom=True)

        too_large, fits = sweep(read_axes(["tp=1,2"]), ask).outcomes
        assert too_large.error is not None and too_large.error.code == "out-of-memory"
        assert too_large.step_time_s is None and too_large.peak_memory_bytes is not None
        assert fits.error is None and fits.peak_memory_bytes is not None and fits.mfu is not None
        assert too_large.peak_memory_bytes > fits.peak_memory_bytes
        assert fits.efficiency == 1.0


class TestScaling:
    def gbs(self, scale: str | None, gpus: int, plan: Plan | None = None) -> int | None:
        job = model("llama3-8b", plan or Plan(gpus=8, gbs=64))
        scaling = find_scaling(job, read_axes(["gpus=8:64:x2"]), scale)  # type: ignore[arg-type]
        assert scaling is not None
        return scaling.applied_to(job.with_options(gpus=gpus)).plan.gbs  # type: ignore[attr-defined]

    def test_strong_is_the_default_and_keeps_the_batch(self) -> None:
        assert self.gbs(None, 32) == self.gbs("strong", 32) == 64

    def test_weak_keeps_the_batch_of_a_gpu(self) -> None:
        assert [self.gbs("weak", gpus) for gpus in (8, 16, 64)] == [64, 128, 512]

    def test_a_batch_that_would_not_be_whole_is_refused(self) -> None:
        with pytest.raises(InputError) as refused:
            self.gbs("weak", 12, Plan(gpus=8, gbs=9))
        assert refused.value.code == "not-divisible"

    def test_it_is_reported(self) -> None:
        job = model("llama3-8b", Plan(gpus=8, gbs=64))
        scaling = find_scaling(job, read_axes(["gpus=8,16"]), None)
        assert scaling is not None and (scaling.scale, scaling.note.code) == ("strong", "scaling")

    def test_a_batch_that_is_not_given_grows(self) -> None:
        job = model("llama3-8b", Plan(gpus=8))
        scaling = find_scaling(job, read_axes(["gpus=8,16"]), None)
        assert scaling is not None and scaling.scale == "weak"
        with pytest.raises(UsageError) as refused:
            find_scaling(job, read_axes(["gpus=8,16"]), "strong")
        assert refused.value.code == "missing-argument"

    def test_only_gpus_scale(self) -> None:
        job = model("llama3-8b", Plan(gpus=8))
        assert find_scaling(job, read_axes(["tp=2,4"]), None) is None
        with pytest.raises(UsageError) as refused:
            find_scaling(job, read_axes(["tp=2,4"]), "weak")
        assert refused.value.code == "option-not-for-command"
