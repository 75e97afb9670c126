"""Messages on links take about what formulas say, also where the network is narrow."""

from __future__ import annotations

import pytest

import foretrace
from foretrace import Machine, PriceSources
from shared_files import ROOT

EXAMPLES = ROOT / "examples" / "clusters"


def flow_over_formulas(collective: str, cluster: str, ranks: int, algorithm: str = "") -> float:
    nccl = foretrace.NcclSettings(algorithms=algorithm, protocols="simple") if algorithm else None
    machine = Machine(cluster, nccl=nccl, network="flow", prices=PriceSources(silicon=False))
    answer = foretrace.network(collective, "4GiB", machine, ranks=ranks)
    assert answer.links is not None
    return answer.links.time_s / answer.links.analytic_time_s


@pytest.mark.parametrize("cluster", ["h100-dgx", "h100_fat_tree_4to1.yaml", "h100_torus.yaml", "h100_dragonfly.yaml"])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvlstree"])
def test_all_reduces_agree(cluster: str, algorithm: str) -> None:
    where = str(EXAMPLES / cluster) if cluster.endswith(".yaml") else cluster
    assert flow_over_formulas("all-reduce", where, 128, algorithm) == pytest.approx(1.0, abs=0.15)


def test_a_rack_joined_by_links_is_one_node() -> None:
    """Trees and rings pass from rack to rack, over the NICs of all of its GPUs, not from tray to tray."""
    for algorithm in ("ring", "tree", "nvlstree"):
        assert flow_over_formulas("all-reduce", "gb200-nvl72", 144, algorithm) == pytest.approx(1.0, abs=0.15)


def test_links_carry_what_the_switch_reduces_as_fast_as_it_does() -> None:
    assert flow_over_formulas("all-reduce", "h100-dgx", 8, "nvls") == pytest.approx(1.0, abs=0.02)
    assert flow_over_formulas("all-gather", "h100-dgx", 8, "nvls") == pytest.approx(1.0, abs=0.05)
