"""NCCL_ALGO and NCCL_PROTO: what texts allow, and what they cannot mean."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.network import NcclSettings, network_of
from foretrace.cost.network.nccl.environment import Forced
from foretrace.hardware import presets
from foretrace.program.columns import Collective

AR, AG = Collective.ALL_REDUCE, Collective.ALL_GATHER
H100 = presets.cluster("h100-dgx")


def algorithms(text: str, what: Collective = AR) -> set[str]:
    forced = Forced.of(text)
    known = ("tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat")
    return {one for one in known if forced.allows(what, one, "simple")}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("Ring", {"ring"}),
        ("ring,tree", {"ring", "tree"}),
        (" RING , Tree ", {"ring", "tree"}),
        ("NVLSTree", {"nvls-tree"}),
        ("nvls_tree,nvls-tree", {"nvls-tree"}),
        ("^Tree,ring", {"collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat"}),
        ("ring;allreduce:tree", {"tree"}),
        ("AllReduce:^NVLS,NVLSTree;", {"tree", "ring", "collnet-direct", "collnet-chain", "pat"}),
    ],
)
def test_texts_as_nccl_reads_them(text: str, allowed: set[str]) -> None:
    assert algorithms(text) == allowed


def test_a_list_for_one_collective_leaves_the_others_free() -> None:
    forced = Forced.of("allreduce:tree")
    assert forced.touches(AR) and not forced.touches(AG)
    assert forced.allows(AG, "ring", "ll")
    assert not forced.allows(AR, "ring", "ll")


def test_the_first_list_is_for_all_that_have_none() -> None:
    forced = Forced.of("ring;allreduce:tree")
    assert algorithms("ring;allreduce:tree", AG) == {"ring"}
    assert not forced.touches(Collective.ALL_TO_ALL), "sends and receives have no algorithms"


def test_a_barrier_is_an_all_reduce() -> None:
    assert not Forced.of("allreduce:tree").allows(Collective.BARRIER, "ring", "ll")


def test_protocols() -> None:
    forced = Forced.of(None, "LL,Simple;allreduce:^LL")
    assert [forced.allows(AR, "ring", one) for one in ("ll", "ll128", "simple")] == [False, True, True]
    assert [forced.allows(AG, "ring", one) for one in ("ll", "ll128", "simple")] == [True, False, True]
    assert forced.insists_on(AR, "ll128") and not forced.insists_on(AG, "ll128")


def test_nothing_said_is_false() -> None:
    assert not Forced() and Forced.of("ring") and not Forced.of().touches(AR)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (" ; ", "empty"),
        ("rung", '"rung" is no algorithm of NCCL; did you mean Ring?'),
        ("ring,", '"" is no algorithm'),
        ("1", '"1" is no algorithm'),
        ("LL", '"LL" is no algorithm'),
        ("allreduse:ring", '"allreduse" is no function'),
        ("alltoall:ring", '"alltoall" is no function'),
        ("allreduce:ring;tree", "only the first entry"),
        ("^tree,ring,collnetdirect,collnetchain,nvls,nvlstree,pat", "leaves nothing"),
        ("x" * 10_000, "is no algorithm"),
    ],
)
def test_what_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Forced.of(text)
    assert message in error.value.message
    assert len(str(error.value)) < 400


def test_a_collective_that_nothing_allowed_can_run_stops_as_in_nccl() -> None:
    network = network_of(H100, 16, nccl=NcclSettings("tree"))
    (layout,), _ = network.layouts(np.arange(16)[None])
    network.price(AR, layout, np.array([1e6]))
    with pytest.raises(
        InputError, match="NCCL_ALGO=tree leaves no way to run the all-gather of 16 GPUs on 2 nodes"
    ) as it:
        network.price(AG, layout, np.array([1e6]))
    assert "Ring (LL, LL128, Simple)" in (it.value.hint or "")


@pytest.mark.parametrize(("algo", "proto"), [("ring", None), ("tree", None), (None, "ll"), ("ring", "simple")])
def test_what_is_forced_is_what_runs(algo: str | None, proto: str | None) -> None:
    network = network_of(H100, 16, nccl=NcclSettings(algo, proto))
    (layout,), _ = network.layouts(np.arange(16)[None])
    for size in (8.0, 2.0**16, 2.0**24, 2.0**32):
        explained = network.explain(AR, layout, size)
        assert algo in (None, explained.algorithm)
        assert proto in (None, explained.protocol)


def test_transfers_and_all_to_alls_go_as_ever() -> None:
    free, forced = (network_of(H100, 16, nccl=said) for said in (None, NcclSettings("tree", "ll")))
    (layout,), _ = free.layouts(np.arange(16)[None])
    sizes = 2.0 ** np.arange(3, 33)
    for what in (Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER):
        assert (free.price(what, layout, sizes).duration_s == forced.price(what, layout, sizes).duration_s).all()
