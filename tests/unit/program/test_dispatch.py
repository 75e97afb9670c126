"""How many ranks and nodes a token meets, and the text that says how tokens go."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.program.dispatch import Dispatch, dispatch_text, parse_dispatch


def test_a_token_meets_as_many_ranks_as_different_experts_fall_into() -> None:
    one = Dispatch("deepep", 256, 8)
    assert one.destinations(8) == pytest.approx(8 * (1 - comb(224, 8) / comb(256, 8)))
    assert one.destinations(256) == pytest.approx(8)
    assert one.destinations(1) == 1


def test_experts_that_are_all_chosen_are_met_wherever_they_are() -> None:
    assert Dispatch("deepep", 8, 8).destinations(4) == 4


@pytest.mark.parametrize(("places", "groups", "chosen"), [(64, 8, 4), (16, 8, 4), (8, 8, 4), (4, 8, 4), (8, 8, 6)])
def test_limited_routing_meets_what_a_draw_meets(places: int, groups: int, chosen: int) -> None:
    """Groups are chosen by their best expert, as DeepEP's own tests choose them."""
    scores = np.random.default_rng(7).random((4000, 256))
    best = scores.reshape(4000, groups, -1).max(axis=2)
    taken = np.argsort(-best, axis=1)[:, :chosen]
    allowed = np.zeros((4000, groups), dtype=bool)
    np.put_along_axis(allowed, taken, True, axis=1)
    open_scores = np.where(np.repeat(allowed, 256 // groups, axis=1), scores, -1.0)
    top = np.argsort(-open_scores, axis=1)[:, :8] // (256 // places)
    drawn = np.mean([len(set(row)) for row in top.tolist()])
    assert Dispatch("deepep", 256, 8, groups, chosen).destinations(places) == pytest.approx(drawn, rel=0.015)


def test_deepseek_v3_meets_about_its_four_nodes() -> None:
    assert Dispatch("deepep", 256, 8, 8, 4).destinations(8) == pytest.approx(3.98, abs=0.01)
    assert Dispatch("deepep", 256, 8).destinations(8) == pytest.approx(5.29, abs=0.01)


def test_only_some_ways_send_a_token_once_to_a_rank() -> None:
    given = {style: Dispatch(style, 256, 8).given(8) for style in ("deepep", "hybridep", "hierarchical", "low_latency")}
    assert given["deepep"] == given["hybridep"] == pytest.approx(5.29, abs=0.01)
    assert given["hierarchical"] == given["low_latency"] == 8


@pytest.mark.parametrize(
    "one", [Dispatch("deepep", 256, 8, 8, 4), Dispatch("low_latency", 16, 1), Dispatch("hybridep", 256, 8, sms=32)]
)
def test_written_and_read(one: Dispatch) -> None:
    assert parse_dispatch(dispatch_text(one)) == one


def test_the_text_says_what_is_not_usual() -> None:
    assert dispatch_text(Dispatch("deepep", 64, 6)) == "dispatch style=deepep experts=64 topk=6"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gemm m=1 n=1 k=1", "does not say how tokens go"),
        ("dispatch style=pigeons experts=8 topk=2", "does not say how tokens go"),
        ("dispatch style=deepep experts=8", "does not say how tokens go"),
        ("dispatch style=deepep experts=8 topk=two", "does not say how tokens go"),
        ("dispatch style=deepep experts=8 topk=2 groups=2 chosen=3", "does not say how tokens go"),
        ("dispatch style=alltoall experts=8 topk=2", 'style "alltoall" is not known'),
        ("dispatch style=deepepp experts=8 topk=2", "did you mean deepep?"),
        ("dispatch deepep", r'"deepep" alone; did you mean style=deepep\?'),
        ("dispatch style=deepep experts=8 topk=2 topk_groups=4", '"topk_groups" is not known'),
        ("dispatch style=deepep experts=8 topk=2 topk=4", "topk is said twice"),
        ("dispatch style=deepep experts=8 topk=", "topk=… is missing its value"),
        ("dispatch style=deepep experts=8", "topk=… is missing"),
        ("dispatch style=deepep experts=8 topk=two", "topk=two is no whole number"),
        ("dispatch style=hybridep experts=8 topk=2 sms=all", "sms=all is no whole number"),
        ("dispatch style=deepep experts=8 topk=2 groups=2 chosen=3", "3 of 2 groups of 8 experts cannot be chosen"),
        ("dispatch", "style=… is missing"),
        ("dispatch style=deepep experts=8 topk=9", "cannot go to 9 of 8 experts"),
        ("dispatch style=deepep experts=8 topk=4 groups=4 chosen=1", "cannot go to 4 of 2 experts"),
        ("dispatch style=deepep experts=10 topk=2 groups=3 chosen=2", "10 experts are not 3 equal groups"),
    ],
)
def test_what_cannot_be_meant_is_said(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_dispatch(text)


@pytest.mark.parametrize("sms", [4097, 999999999])
def test_no_gpu_has_so_many_sms(sms: int) -> None:
    with pytest.raises(InputError) as raised:
        parse_dispatch(f"dispatch style=hybridep experts=256 topk=8 sms={sms}")
    assert raised.value.code == "out-of-range"
