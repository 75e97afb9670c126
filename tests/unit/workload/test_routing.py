"""How uneven tokens go to expert ranks: what is assumed, what there can be, and what is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import pytest

from foretrace.basics.errors import InputError
from foretrace.models.model import Experts
from foretrace.models.presets import model as preset
from foretrace.workload.job_file import read_job
from foretrace.workload.launch.read_launch import read_launch
from foretrace.workload.plan import Plan
from foretrace.workload.routing import (
    PUBLISHED_ROUTING,
    UNEVEN_ROUTING,
    assumed_routing,
    expected_maximum,
    layer_routing,
    least_even_routing,
    max_routing,
)
from foretrace.workload.setting import settled_plan
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import works_of

QWEN = preset("qwen3-30b-a3b")


def experts_of(name: str) -> Experts:
    return next(layer.feed_forward for layer in preset(name).layers if isinstance(layer.feed_forward, Experts))


def notes(name: str, plan: Plan, code: str) -> str:
    return " ".join(note.message for note in settle(preset(name), plan).diagnostics if note.code == code)


def test_the_published_run_has_the_published_figure() -> None:
    assert assumed_routing([experts_of("deepseek-v3")], 64) == PUBLISHED_ROUTING


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    # 1 + 0.257 x sqrt(ranks / experts), of 8 ranks x 1.434, by hand.
    [("deepseek-v3", 8, 1.07), ("qwen3-30b-a3b", 8, 1.09), ("mixtral-8x7b", 8, 1.37), ("mixtral-8x7b", 1, 1.0)],
)
def test_fewer_experts_of_a_rank_are_less_even(name: str, ranks: int, factor: float) -> None:
    assert assumed_routing([experts_of(name)], ranks) == factor
    assert settle(preset(name), Plan(gpus=ranks, ep=ranks)).routing == factor


@pytest.mark.parametrize("count", [1, 2, 8, 64, 256, 4096])
def test_the_largest_of_normal_numbers(count: int) -> None:
    """The mean of the largest is the integral of x, weighted by its density."""
    normal, step = NormalDist(), 1e-3
    places = [step * i for i in range(-8000, 8001)]
    mean = step * sum(count * x * normal.pdf(x) * normal.cdf(x) ** (count - 1) for x in places)
    assert expected_maximum(count) == pytest.approx(mean, abs=0.03)


def test_the_least_even_run_has_its_published_figure() -> None:
    assert least_even_routing(experts_of("qwen3-235b-a22b"), 64) == UNEVEN_ROUTING


def test_there_is_no_more_than_all_tokens_or_all_copies() -> None:
    moe = experts_of("mixtral-8x7b")
    assert [max_routing(moe, ranks) for ranks in (1, 2, 8)] == [1.0, 2.0, 4.0]
    assert max_routing(replace(moe, topk=8), 8) == 1.0
    assert assumed_routing([replace(moe, topk=8)], 8) == 1.0, "every token goes to every rank"


def test_what_is_assumed_is_reported_with_its_option() -> None:
    assert "--routing 1.09x" in notes("qwen3-30b-a3b", Plan(gpus=8, ep=8), "assumed")
    assert "--routing" not in notes("qwen3-30b-a3b", Plan(gpus=8, ep=8, routing=1.09), "assumed")
    assert "--routing" not in notes("qwen3-30b-a3b", Plan(gpus=8), "assumed")
    assert settled_plan(settle(QWEN, Plan(gpus=8, ep=8)))["routing"] == 1.09


def test_one_rank_with_all_experts_is_balanced() -> None:
    plan = Plan(gpus=8, routing=1.5)
    assert settle(QWEN, plan).routing == 1.0
    assert "routing 1.5x (ep is 1)" in notes("qwen3-30b-a3b", plan, "field-ignored")
    assert "routing 1.5x (no experts)" in notes("llama3-8b", plan, "field-ignored")
    assert "routing" not in notes("llama3-8b", Plan(gpus=8, routing=1.0), "field-ignored")


@pytest.mark.parametrize(("ep", "routing", "nearest"), [(2, 2.5, "--routing 2x"), (8, 4.5, "--routing 4x")])
def test_more_than_there_can_be_is_refused(ep: int, routing: float, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        settle(preset("mixtral-8x7b"), Plan(gpus=8, ep=ep, routing=routing))
    assert caught.value.code == "bad-plan"
    assert nearest in str(caught.value.hint)


def test_layers_without_experts_may_have_any_factor() -> None:
    model = preset("deepseek-v3")
    factors = (99.0,) * 3 + (1.5,) * 58
    assert settle(model, Plan(gpus=8, ep=8, routing=factors)).routing == (1.0,) * 3 + (1.5,) * 58
    with pytest.raises(InputError):
        settle(model, Plan(gpus=8, ep=8, routing=factors[::-1]))


def test_a_layer_has_its_own_routing_and_without_a_number_the_most_uneven_counts() -> None:
    assert [layer_routing((1.5, 1.2), layer) for layer in (None, 0, 1)] == [1.5, 1.5, 1.2]
    assert layer_routing(1.3) == layer_routing(1.3, 7) == 1.3
    assert layer_routing(None, 1) is None


def test_layers_whose_routing_has_no_effect_are_one_work() -> None:
    uneven = tuple(1 + layer / 100 for layer in range(len(QWEN.layers)))
    chosen = settle(QWEN, Plan(gpus=8, routing=uneven))
    assert chosen.routing == 1.0
    assert len({id(work) for work in works_of(chosen).layers}) == 1


def test_a_job_file_states_it(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: mixtral-8x7b\nplan: {gpus: 8, ep: 8, routing: 1.3x}\n", encoding="utf-8")
    assert read_job(path).plan_fields["routing"] == 1.3


@pytest.mark.parametrize(("flag", "routing"), [("--moe-router-force-load-balancing", 1.0), ("", None)])
def test_megatron_may_force_balance(flag: str, routing: float | None, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    text = "pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --vocab-size 50257 "
    text += "--max-position-embeddings 2048 --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 "
    path.write_text(text + flag + "\n", encoding="utf-8")
    assert read_launch(path).plan.get("routing") == routing


def test_bridge_may_force_balance(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    words = "torchrun run.py model.num_layers=4 model.hidden_size=1024 model.num_attention_heads=16 "
    words += (
        "model.vocab_size=50257 model.max_position_embeddings=2048 model.num_moe_experts=8 model.moe_router_topk=2 "
    )
    path.write_text(words + "model.moe_router_force_load_balancing=true\n", encoding="utf-8")
    assert read_launch(path).plan.get("routing") == 1.0
