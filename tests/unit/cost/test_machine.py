"""A machine owns what it has read and priced."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrace
from foretrace import ForetraceError, Machine, Mesh, NcclSettings, Plan, PriceSources, Program, ProgramBuilder
from foretrace.basics.placement import Placement
from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.kernels.interface import KernelPricer, KernelPrices
from foretrace.hardware.presets import gpu
from foretrace.program.kernels import Kernel

PLAN = Plan(gpus=32, tp=2, pp=4, gbs=32)


class Counting:
    """Prices kernels and counts how often it is asked."""

    def __init__(self) -> None:
        self.inner: KernelPricer = kernel_pricer(gpu("h100-sxm"), prices="model")
        self.sources, self.notes = self.inner.sources, self.inner.notes
        self.asked = 0

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        self.asked += 1
        return self.inner.price(kernels)


def test_a_second_question_about_the_same_job_prices_nothing() -> None:
    pricer = Counting()
    machine = Machine("h100-dgx", prices=PriceSources(kernels=pricer))
    job = foretrace.model("llama3-8b", PLAN)
    first = foretrace.simulate(job, machine, explain=False)
    asked = pricer.asked
    second = foretrace.simulate(job, machine, foretrace.Scenario(what_if={"compute": 2.0}), explain=False)
    assert pricer.asked == asked
    assert second.unchanged_step_time_s == first.step_time_s


def test_networks_are_built_once() -> None:
    machine = Machine("h100-dgx")
    assert machine.network_of(64) is machine.network_of(64)
    assert machine.network_of(64) is not machine.network_of(128)


def test_the_same_answer_with_and_without_its_caches() -> None:
    machine = Machine("h100-dgx", prices="model")
    jobs = [foretrace.model("llama3-8b", Plan(gpus=32, tp=tp, pp=4, gbs=32)) for tp in (1, 2, 4)]
    kept = [foretrace.simulate(job, machine, explain=False, even_if_oom=True).step_time_s for job in (*jobs, *jobs)]
    fresh = [
        foretrace.simulate(job, Machine("h100-dgx", prices="model"), explain=False, even_if_oom=True).step_time_s
        for job in jobs
    ]
    assert kept == fresh + fresh


CHANGES: tuple[dict[str, Any], ...] = (
    {"cluster": "a100-dgx"},
    {"nccl": NcclSettings("ring", "simple")},
    {"prices": "model"},
    {"placement": Placement(np.arange(32, dtype=np.int32), np.zeros(32, dtype=np.int32))},
    {"network": "flow"},
    {"overlap_cost": False},
)


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: next(iter(changes)))
def test_another_machine_has_no_prices_of_this_one(changes: dict[str, Any]) -> None:
    programs = [foretrace.model("llama3-8b", Plan(gpus=32, tp=tp, pp=4, gbs=32)).program() for tp in (2, 4)]
    machine = Machine("h100-dgx")
    before = [machine.price(program).prices for program in programs]
    other, fresh = machine.with_(**changes), Machine(**{"cluster": "h100-dgx", **changes})
    for program, usual in zip(programs, before, strict=True):
        kept, new = other.price(program).prices, fresh.price(program).prices
        for name in ("duration_s", "latency_s", "source", "low", "high"):
            np.testing.assert_array_equal(getattr(kept, name), getattr(new, name))
        kept_slowdown, new_slowdown = (
            [] if prices.overlaps is None else prices.overlaps.slowdown.tolist() for prices in (kept, new)
        )
        assert kept_slowdown == new_slowdown
        changed = not np.array_equal(kept.duration_s, usual.duration_s)
        assert changed == (not changes.keys() <= {"network", "overlap_cost"})


def test_machines_with_the_same_network_share_the_prices_of_calls() -> None:
    machine = Machine("h100-dgx")
    book = machine.calls(64)
    assert machine.network_of(64, in_training=True) is book.network
    assert all(machine.with_(**changes).calls(64) is book for changes in ({"network": "flow"}, {"overlap_cost": False}))
    assert machine.changed({"attention": 2.0}).calls(64) is book
    assert machine.changed({"nic": 2.0}).calls(64) is not book


def test_a_job_has_no_notes_of_the_job_before(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("collective,gpus,nodes,bytes,time_us\nall_reduce,8,1,1048576,50\nall_reduce,8,1,2097152,80\n")

    def job(what: str) -> Program:
        build = ProgramBuilder(Mesh(dp=8))
        build.role("rank", range(8)).collective(what, build.communicator("dp"), bytes=1 << 20)
        return build.program()

    machine, fresh = (Machine("h100-dgx", collectives=file) for _ in range(2))
    machine.price(job("all_to_all"))
    assert machine.price(job("all_gather")).notes == fresh.price(job("all_gather")).notes


def test_it_travels_to_another_process_without_its_caches() -> None:
    machine = Machine("h100-dgx", overlap_cost=False)
    machine.network_of(64)
    other = pickle.loads(pickle.dumps(machine))
    assert (other.cluster, other.overlap_cost) == (machine.cluster, False)
    assert not other._cache.networks


def test_another_machine_with_one_thing_changed() -> None:
    machine = Machine("h100-dgx", prices="model")
    other = machine.with_(network="flow")
    assert (other.cluster, other.prices, other.network) == (machine.cluster, machine.prices, "flow")
    assert machine.network == "analytic"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"cluster": "no-such"}, "unknown-name"),
        ({"prices": "cheap"}, "unknown-name"),
        ({"network": "wireless"}, "unknown-name"),
        ({"cluster": 7}, "bad-value"),
    ],
)
def test_what_is_not_known_is_refused(arguments: dict[str, object], code: str) -> None:
    with pytest.raises(ForetraceError) as caught:
        Machine(**arguments)  # type: ignore[arg-type]
    assert caught.value.code == code


@pytest.mark.parametrize("arguments", [{"network": "flow"}, {"collectives": "x"}, {"calibration": "x"}])
def test_what_only_a_cluster_has_needs_one(arguments: dict[str, object]) -> None:
    program = foretrace.open("examples/moe_128gpu.txt").program()  # type: ignore[union-attr]
    with pytest.raises(ForetraceError) as caught:
        foretrace.simulate(program, Machine(**arguments))  # type: ignore[arg-type]
    assert caught.value.code == "needs-cluster"
