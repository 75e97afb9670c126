"""Our own run beside SimAI's: the cluster and the options that its flags describe."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.compat.simai.flags import parse_flags
from foretrace.compat.simai.own import own_cluster, own_options
from foretrace.cost.network import network_of
from foretrace.cost.network.nccl.algorithms.ring import OWN_PART_STEPS
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.option_values import Overlap
from foretrace.program.columns import Collective

SERVERS = "-g 32 -g_p_s 8 -n_p_s 8"


def reached(flags: str, ranks: list[int], own_gb: float) -> float:
    """GB/s of the hops of a group that gathers 100 GB, without latency and what a rank copies within its memory, at a
    rate of its own."""
    cluster = own_cluster(parse_flags(f"{SERVERS} {flags}".split()))
    network = network_of(cluster, 32)
    (layout,), _ = network.layouts(np.array([ranks]))
    priced = network.price(Collective.ALL_GATHER, layout, np.array([1e11]))
    moving = float(priced.duration_s[0] - priced.latency_s[0])
    own = OWN_PART_STEPS * 1e11 / len(ranks) / (own_gb * 1e9)
    return 1e11 * (len(ranks) - 1) / len(ranks) / (moving - own) / 1e9


def test_rates_given_as_numbers_are_what_we_reach() -> None:
    near, far = list(range(8)), [0, 8, 16, 24]
    assert reached("-g_type H100 -nv 360 -nic 48.5", near, 360) == pytest.approx(360, rel=2e-3)
    assert reached("-g_type H100 -nv 360 -nic 48.5", far, 360) == pytest.approx(48.5, rel=2e-3)
    assert reached("-g_type A100 -nv 500 -nic 200", near, 500) == pytest.approx(500, rel=2e-3)
    assert reached("-g_type A100 -nv 500 -nic 200", far, 500) == pytest.approx(200, rel=2e-3)


def test_types_are_our_presets() -> None:
    cluster = own_cluster(parse_flags(f"{SERVERS} -g_type H800 -nic_t cx6".split()))
    assert (cluster.gpu.name, cluster.node.nic.name) == ("h800-sxm", "cx6")
    assert (cluster.nodes, cluster.node.gpus, cluster.node.nics) == (4, 8, 8)


@pytest.mark.parametrize("flags", ["-g_type H100 -nic 1e-320", "-nv 1e-300", "-g_type H100 -nv 1e300"])
def test_rates_that_no_hardware_has(flags: str) -> None:
    with pytest.raises(InputError) as caught:
        own_cluster(parse_flags(f"{SERVERS} {flags}".split()))
    assert caught.value.code == "out-of-range"


def test_what_simai_hides_by_a_share_we_overlap() -> None:
    options, notes = own_options(
        parse_flags(f"{SERVERS} -g_type H100 -dp_o .5 -tp_o .3 -ep_o .2".split()), WorkloadOptions()
    )
    assert options.gpus == 32
    assert options.overlap == {Overlap.GRAD, Overlap.PARAM, Overlap.TP}
    assert [one.level for one in notes] == ["note", "note", "warning"]
    plain, silent = own_options(parse_flags(f"{SERVERS} -g_type H100".split()), WorkloadOptions())
    assert (plain.overlap, silent) == (frozenset(), [])
