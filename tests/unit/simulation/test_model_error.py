"""The band of a model's step: what it is made of, and what widens it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretrace import Answer, Machine, Plan, load_model, model, simulate
from foretrace.basics.errors import Diagnostic, ForetraceError
from foretrace.basics.placement import Placement
from foretrace.hardware.presets import cluster
from foretrace.readings.answer.answer import BandPart
from foretrace.readings.answer.answer_file import open_answer
from foretrace.readings.lanes import LaneUse
from foretrace.simulation.model_error import (
    MIN_WARNED,
    OVERLAP,
    PRICES,
    REASONS,
    ROUTING,
    WIDTHS,
    reasons,
    tried_parts,
    with_model_error,
)
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle
from shared_files import ROOT

DENSE = Plan(gpus=8, tp=2, gbs=32)
STEP = "model of the step"
ACROSS = "experts across nodes"
NARROW = "products in 8 bits or fewer"
NODES = Machine("h100-dgx", prices="model")
"""Nodes of 8 GPUs, which ranks fill in order."""


def setting(name: str = "llama3-8b", **plan: Any) -> Setting:
    return settle(load_model(name), replace(DENSE, **plan))


def answered(name: str, plan: Plan, machine: str = "h100-dgx") -> Answer:
    return simulate(model(name, plan), Machine(machine, prices="model"), even_if_oom=True)


@pytest.fixture(scope="module")
def answer() -> Answer:
    return answered("llama3-8b", DENSE)


@pytest.fixture(scope="module")
def experts() -> Answer:
    return answered("mixtral-8x7b", Plan(gpus=16, tp=2, ep=8, gbs=16))


def widths(answer: Answer) -> tuple[float, float]:
    """Returns how far the ends of the band are from the step, as logarithms."""
    assert answer.step_time_band_s is not None
    low, high = answer.step_time_band_s
    return math.log(answer.step_time_s / low), math.log(high / answer.step_time_s)


def summed(parts: tuple[BandPart, ...]) -> tuple[float, float]:
    """Returns the root of the sum of squares of both ends."""
    return (
        math.sqrt(sum(math.log(part.low) ** 2 for part in parts)),
        math.sqrt(sum(math.log(part.high) ** 2 for part in parts)),
    )


def bare(answer: Answer, low: float, high: float, *notes: Diagnostic) -> Answer:
    """Returns an answer with a band of its prices alone, and notes."""
    band = answer.step_time_s * low, answer.step_time_s * high
    return replace(answer, step_time_band_s=band, band_parts=(), diagnostics=notes)


def test_squares_of_the_parts_add_up_to_the_band(answer: Answer, experts: Answer) -> None:
    for given in (answer, experts):
        assert {PRICES, STEP} <= {part.name for part in given.band_parts}
        assert widths(given) == pytest.approx(summed(given.band_parts))
    more = {part.name for part in experts.band_parts} - {part.name for part in answer.band_parts}
    assert more == {"experts", ROUTING}


def test_the_largest_part_comes_first(answer: Answer) -> None:
    parts = with_model_error(bare(answer, 0.6, 1.01), setting(precision="fp8"), NODES).band_parts
    assert [part.name for part in parts] == [PRICES, NARROW, STEP]
    parts = with_model_error(bare(answer, 0.99, 1.01), setting(precision="fp8"), NODES).band_parts
    assert [part.name for part in parts] == [NARROW, STEP, PRICES]


def test_prices_and_the_model_of_the_step_by_hand(answer: Answer) -> None:
    found = with_model_error(bare(answer, 0.9, 1.2), setting(), NODES)
    below, above = math.hypot(math.log(1 / 0.9), WIDTHS[STEP]), math.hypot(math.log(1.2), WIDTHS[STEP])
    assert widths(found) == pytest.approx((below, above))
    parts = {part.name: (part.low, part.high) for part in found.band_parts}
    assert parts[PRICES] == pytest.approx((0.9, 1.2))
    assert parts[STEP] == pytest.approx((math.exp(-WIDTHS[STEP]), math.exp(WIDTHS[STEP])))


@pytest.mark.parametrize(("level", "least"), [("warning", MIN_WARNED), ("note", WIDTHS[STEP])])
def test_a_warning_widens_the_band(level: Any, least: float, answer: Answer) -> None:
    found = with_model_error(bare(answer, 1.0, 1.0, Diagnostic(level, "assumed", "something")), setting(), NODES)
    assert widths(found) == pytest.approx((least, least))
    assert summed(found.band_parts) == pytest.approx((least, least))


def test_a_warning_leaves_a_wide_band_as_it_is(answer: Answer) -> None:
    note = Diagnostic("warning", "assumed", "something")
    warned, plain = (with_model_error(bare(answer, 0.7, 1.3, *notes), setting(), NODES) for notes in ((note,), ()))
    assert warned.step_time_band_s == plain.step_time_band_s


def test_without_a_band_nothing_is_said() -> None:
    given = simulate(model("llama3-8b", DENSE), Machine("h100-dgx", prices="model"), explain=False)
    assert given.step_time_band_s is None and given.band_parts == ()
    assert with_model_error(given, setting(), NODES) is given


def test_other_jobs_have_the_band_of_their_prices() -> None:
    from foretrace import Mesh, ProgramBuilder

    build = ProgramBuilder(Mesh())
    build.role("only", [0]).compute("work", 1.0)
    found = simulate(build.program())
    assert found.step_time_band_s == (1.0, 1.0) and found.band_parts == ()


@pytest.mark.parametrize(
    ("name", "plan", "more"),
    [
        ("llama3-8b", {}, set()),
        ("llama3-8b", {"precision": "fp8"}, {NARROW}),
        ("llama3-8b", {"precision": "nvfp4"}, {NARROW}),
        ("llama3-8b", {"cp": 2}, {"context parallelism"}),
        ("llama3-8b", {"stack": "megatron-core@0.15"}, set()),
        ("llama3-8b", {"stack": "megatron-core@0.15.2"}, set()),
        ("llama3-8b", {"cp": 2, "stack": "fsdp", "seq_len": 32768}, {"context parallelism"}),
        ("llama3-8b", {"stack": "megatron-core@0.12"}, {"version of the software"}),
        ("mixtral-8x7b", {}, {"experts"}),
        ("mixtral-8x7b", {"gpus": 16, "ep": 8}, {"experts"}),
        ("mixtral-8x7b", {"gpus": 32, "ep": 8, "etp": 2}, {"experts", "experts across nodes"}),
        ("mixtral-8x7b", {"gpus": 16, "ep": 4, "rank_order": "tp-cp-pp-dp-ep"}, {"experts", "experts across nodes"}),
        ("qwen3-30b-a3b", {"gpus": 16, "ep": 16, "tp": 1}, {"experts", "experts across nodes"}),
    ],
)
def test_reasons_follow_from_the_plan(name: str, plan: dict[str, Any], more: set[str], answer: Answer) -> None:
    """Nodes of the cluster have 8 GPUs, and without tensor parallelism of experts tp does not spread their group."""
    assert set(reasons(answer, setting(name, **plan), NODES)) == {STEP, *more}


def test_links_that_a_job_does_not_use_join_no_experts(answer: Answer) -> None:
    asked = setting("qwen3-30b-a3b", gpus=16, tp=1, ep=16)
    racks = cluster("gb200-nvl72")
    whole, parts = (reasons(answer, asked, Machine(replace(racks, domain_gpus=size))) for size in (None, 8))
    assert set(parts) - set(whole) == {ACROSS}


@pytest.mark.parametrize(
    ("name", "hosts", "ep", "crosses"),
    [
        ("h100-dgx", [0] * 8 + [1] * 8, 8, False),
        ("h100-dgx", [0, 1] * 8, 8, True),
        ("h100-dgx", [0, 1] * 8, 1, False),
        # Racks have 18 nodes of 4 GPUs: 4 ranks are in the first one, 12 in the second.
        ("gb200-nvl72", [0] * 4 + [18] * 4 + [19] * 4 + [20] * 4, 8, True),
        ("gb200-nvl72", [0] * 4 + [18] * 4 + [19] * 4 + [20] * 4, 4, False),
        ("gb200-nvl72", [0] * 4 + [1] * 4 + [2] * 4 + [17] * 4, 16, False),
    ],
)
def test_ranks_are_in_the_domain_that_the_placement_gives_them(
    name: str, hosts: list[int], ep: int, crosses: bool, answer: Answer
) -> None:
    slots = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    machine = Machine(name, placement=Placement(hosts, slots), prices="model")  # type: ignore[arg-type]  # lists are taken
    assert (ACROSS in reasons(answer, setting("qwen3-30b-a3b", gpus=16, tp=1, ep=ep), machine)) is crosses


def test_a_placement_that_parts_expert_groups_widens_the_band(experts: Answer) -> None:
    spread = Placement([0, 1] * 8, [rank // 2 for rank in range(16)])  # type: ignore[arg-type]  # lists are taken
    machine = Machine("h100-dgx", placement=spread, prices="model")
    parted = simulate(model("mixtral-8x7b", Plan(gpus=16, tp=2, ep=8, gbs=16)), machine, even_if_oom=True)
    assert {part.name for part in parted.band_parts} - {part.name for part in experts.band_parts} == {ACROSS}


@pytest.mark.parametrize(("busy", "share"), [(0.49, 0.0), (0.6, 0.25), (0.7, 0.5), (0.9, 1.0), (0.95, 1.0)])
def test_a_busy_host_is_a_reason(busy: float, share: float, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = (LaneUse("compute", 8, 100.0, 0.9, 0.0), LaneUse("host", 8, 100.0, busy, 0.0))
    monkeypatch.setattr(Answer, "lanes", property(lambda _: lanes))
    assert reasons(answer, setting(), NODES).get("host", 0.0) == pytest.approx(share)


@pytest.mark.parametrize(("zero", "counts"), [(1, False), (3, True)])
def test_lists_of_tensors_are_a_reason_where_parameters_are_split(zero: Any, counts: bool, answer: Answer) -> None:
    split = setting(stack="deepspeed-2021", zero=zero, sequence_parallel=False)
    assert ("lists of tensors" in reasons(answer, split, NODES)) == counts


def test_a_step_that_launches_decide_has_a_busy_host() -> None:
    slow = answered("llama3.2-1b", Plan(gpus=1, gbs=1, seq_len=512, stack="torch-eager"))
    assert "host" in {part.name for part in slow.band_parts}
    replayed = answered("llama3.2-1b", Plan(gpus=1, gbs=1, seq_len=512, stack="torch-eager", cuda_graphs="full"))
    assert "host" not in {part.name for part in replayed.band_parts}


def step_with(**options: Any) -> float:
    """Returns the seconds of a step in place of a simulation: 10 s, 1 s more without overlap, 8 s by the routing."""
    routing = options.get("routing", 1.25)
    return 10 + ("moe_overlap" in options) + 8 * ((routing if isinstance(routing, float) else max(routing)) - 1.25)


def test_an_assumed_routing_reaches_from_balance_to_the_least_even_router() -> None:
    given = setting("mixtral-8x7b", gpus=8, tp=1, ep=8)
    (part,) = tried_parts(given, 10.0, step_with)
    assert part.name == ROUTING and max(given.least_even_routing) > given.routing_of() > 1
    assert (part.low, part.high) == pytest.approx((0.8, 1 + 0.8 * (max(given.least_even_routing) - 1.25)))


def test_kinds_of_experts_are_uneven_each_in_its_own_way() -> None:
    """8 experts of which a token chooses 1 or 4: at most 8 or 2 times the mean."""
    layer = load_model("mixtral-8x7b").layers[0]
    kinds = [replace(layer, feed_forward=replace(layer.feed_forward, topk=topk)) for topk in (1, 4)]  # type: ignore[type-var]
    mixed = replace(load_model("mixtral-8x7b"), layers=tuple(kinds * 2))
    given = settle(mixed, Plan(gpus=8, ep=8))
    assert given.least_even_routing[::2] > given.least_even_routing[1::2] == (2.0, 2.0)
    answer = simulate(model(mixed, Plan(gpus=8, ep=8)), Machine("h200-dgx", prices="model"), even_if_oom=True)
    assert ROUTING in {part.name for part in answer.band_parts}


@pytest.mark.parametrize("explain", [False, "band"])
def test_without_a_band_nothing_is_tried(explain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrace.simulation.model_error.tried_parts", lambda *_: pytest.fail("tried"))
    monkeypatch.setattr("foretrace.simulation.simulate.MAX_EXPLAINED", {"fixed": 0, "shared": 0})
    job = model("mixtral-8x7b", Plan(gpus=8, ep=8))
    assert simulate(job, Machine("h200-dgx", prices="model"), explain=explain, even_if_oom=True).band_parts == ()


@pytest.mark.parametrize(
    ("plan", "parts"),
    [
        ({"ep": 1}, set()),
        ({"ep": 8, "routing": 1.3}, set()),
        ({"ep": 8, "routing": 1.3, "moe_overlap": True}, {OVERLAP}),
        ({"ep": 8, "moe_overlap": True}, {OVERLAP, ROUTING}),
        ({"ep": 1, "moe_overlap": True}, set()),
    ],
)
def test_what_is_stated_is_not_tried(plan: dict[str, Any], parts: set[str]) -> None:
    given = setting("mixtral-8x7b", gpus=8, tp=1, **plan)
    found = tried_parts(given, 10.0, step_with)
    assert {part.name for part in found} == parts
    assert all(part.low <= 1 <= part.high for part in found)


def test_an_overlap_is_as_sure_as_the_step_without_it() -> None:
    given = setting("mixtral-8x7b", gpus=8, tp=1, ep=8, routing=1.0, moe_overlap=True)
    (part,) = tried_parts(given, 10.0, step_with)
    assert (part.low, part.high) == pytest.approx((1.0, 1.1))
    (part,) = tried_parts(given, 12.0, step_with)
    assert (part.low, part.high) == (1.0, 1.0), "a step that the overlap does not shorten is no bound"


def test_the_page_has_every_width() -> None:
    page = (ROOT / "docs" / "predict.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| ")]
    stated = {name.strip(): width.strip() for name, width in cells}
    assert {name: stated[name] for name in WIDTHS} == {name: f"{width:.2f}" for name, width in WIDTHS.items()}
    assert {ROUTING, OVERLAP, PRICES} <= stated.keys()


def test_every_reason_has_a_name_of_its_own() -> None:
    assert list(WIDTHS) == [reason.name for reason in REASONS]
    assert len(WIDTHS) == len(REASONS) and PRICES not in WIDTHS


def test_every_reason_is_known(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answer, "lanes", property(lambda _: (LaneUse("host", 8, 100.0, 1.0, 0.0),)))
    plan = {"gpus": 64, "ep": 8, "etp": 2, "cp": 2, "precision": "fp8", "stack": "megatron-core@0.12"}
    found = {
        *reasons(answer, setting("mixtral-8x7b", **plan), NODES),
        *reasons(answer, setting("llama3-8b", gpus=16, cp=4, seq_len=32768, stack="fsdp"), NODES),
        *reasons(answer, setting("gpt3-13b", gpus=16, stack="deepspeed-2021"), NODES),
    }
    assert found == set(WIDTHS)


@pytest.mark.parametrize(("low", "code"), [(-0.5, "damaged-file"), (math.nan, "out-of-range")])
def test_a_saved_part_that_cannot_be_is_refused(low: float, code: str, answer: Answer, tmp_path: Path) -> None:
    damaged = replace(answer, band_parts=(BandPart(PRICES, low, 1.1),))
    damaged.save(tmp_path / "a.answer")
    with pytest.raises(ForetraceError) as refused:
        open_answer(tmp_path / "a.answer")
    assert refused.value.code == code


def test_parts_are_saved_and_in_the_json(experts: Answer, tmp_path: Path) -> None:
    experts.save(tmp_path / "a.answer")
    opened = open_answer(tmp_path / "a.answer")
    assert opened.band_parts == experts.band_parts != ()
    assert opened.step_time_band_s == experts.step_time_band_s
    plain = opened.to_dict()["band_parts"]
    assert [(part["name"], *part["band"]) for part in plain] == [
        (part.name, part.low, part.high) for part in experts.band_parts
    ]
