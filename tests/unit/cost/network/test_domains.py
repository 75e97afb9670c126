"""Which nodes of each link domain a job uses, and which groups cross domains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foretrace
from foretrace import Machine, Mesh, Plan
from foretrace.basics.errors import InputError
from foretrace.cost.network.domains import crossing_note, place_job, spread_nodes
from foretrace.hardware.presets import cluster
from foretrace.simulation.network.placed_groups import placed_groups

NVL72 = cluster("gb200-nvl72")
H100 = cluster("h100-dgx")


def nodes_of_domains(numbers: np.ndarray) -> list[int]:
    return np.bincount(numbers // 18).tolist()


@pytest.mark.parametrize(
    ("nodes", "spread", "segment"),
    [
        (1, [1], 1),
        (16, [16], 16),
        (18, [18], 18),
        (64, [16] * 4, 16),
        (72, [18] * 4, 18),
        (20, [10, 10], 10),
        (25, [15, 10], 5),  # three segments in one rack, two in the other
        (19, [10, 9], 1),  # a prime: no segment, spread evenly
        (37, [13, 12, 12], 1),
        (307, [18] + [17] * 17, 1),
    ],
)
def test_a_job_takes_the_segment_of_launchers(nodes: int, spread: list[int], segment: int) -> None:
    numbers, use = spread_nodes(NVL72, nodes)
    assert use is not None
    assert nodes_of_domains(numbers) == spread
    assert (use.segment, use.domains) == (segment, len(spread))
    assert (use.least_gpus, use.most_gpus) == (4 * min(spread), 4 * max(spread))


@pytest.mark.parametrize(
    ("world", "mesh", "spread", "segment"),
    [
        (144, Mesh(dp=144, ep=16), [12, 12, 12], 12),
        (288, Mesh(dp=288, ep=32), [16, 16, 16, 16, 8], 8),
        (576, Mesh(dp=64, pp=9, ep=64), [16] * 9, 16),
        (288, Mesh(dp=288, ep=96), [18] * 4, 18),  # no domain holds 96: the launchers' choice
        (288, Mesh(tp=4, dp=72), [18] * 4, 18),
    ],
)
def test_a_smaller_segment_keeps_groups_whole(world: int, mesh: Mesh, spread: list[int], segment: int) -> None:
    placement, use = place_job(NVL72, world, mesh)
    assert use is not None
    assert use.segment == segment
    assert nodes_of_domains(np.unique(placement.host)) == spread
    crosses = crossing_note(NVL72.node, placement, mesh) is not None
    assert crosses == (mesh.ep == 96)


@given(nodes=st.integers(1, 600), ep=st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
def test_every_node_is_used_once_and_no_domain_is_nearly_empty(nodes: int, ep: int) -> None:
    mesh = Mesh(dp=4 * nodes, ep=ep if 4 * nodes % ep == 0 else 1)
    placement, use = place_job(NVL72, 4 * nodes, mesh)
    assert use is not None
    counts = np.bincount(np.unique(placement.host) // 18)
    assert counts.sum() == nodes
    assert counts.max() <= 18
    assert nodes % use.segment == 0
    assert 2 * counts.min() >= counts.max()
    assert crossing_note(NVL72.node, placement, mesh) is None


def test_a_domain_that_is_a_node_is_filled_in_order() -> None:
    placement, use = place_job(H100, 24, Mesh(dp=24, ep=6))
    assert use is None
    assert placement.host.tolist() == [rank // 8 for rank in range(24)]


def test_a_cluster_of_few_nodes_is_filled() -> None:
    small = replace(NVL72, nodes=64)  # three racks of 18 and one of 10: four segments of 16 do not fit
    numbers, _ = spread_nodes(small, 64)
    assert numbers.tolist() == list(range(64))


def test_a_stated_number_is_followed() -> None:
    placement, use = place_job(replace(NVL72, domain_gpus=32), 72)
    assert use is not None
    assert nodes_of_domains(np.unique(placement.host)) == [8, 8, 2]
    assert (use.least_gpus, use.most_gpus) == (8, 32)


@pytest.mark.parametrize(
    ("name", "gpus", "code"),
    [
        ("gb200-nvl72", 66, "not-divisible"),
        ("gb200-nvl72", 76, "out-of-range"),
        ("gb200-nvl72", 0, "out-of-range"),
        ("h100-dgx", 4, "not-divisible"),
        ("h100-dgx", 16, "out-of-range"),
    ],
)
def test_an_impossible_number_is_refused(name: str, gpus: int, code: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(cluster(name), domain_gpus=gpus)
    assert caught.value.code == code


def test_gpus_that_a_job_leaves_free_are_not_counted() -> None:
    use = placed_groups(cluster("gb200-nvl72"), 75).domains
    assert use is not None and use.least_gpus + use.most_gpus == 75
    assert placed_groups(cluster("gb200-nvl72"), 6).domains.most_gpus == 6  # type: ignore[union-attr]


def simulated(machine: Machine, **plan: int | str) -> foretrace.Answer:
    job = foretrace.model("qwen3-30b-a3b", Plan(gpus=128, gbs=128, **plan))  # type: ignore[arg-type]
    return foretrace.simulate(job, machine, explain=False, even_if_oom=True)


def codes(answer: foretrace.Answer) -> dict[str, str]:
    return {note.code: note.level for note in answer.diagnostics}


def test_expert_groups_stay_in_a_rack_and_the_answer_says_how() -> None:
    whole, split = (simulated(Machine(replace(cluster("gb200-nvl72"), domain_gpus=gpus)), ep=64) for gpus in (None, 72))
    assert whole.step_time_s < 0.99 * split.step_time_s
    assert whole.domains is not None
    assert (whole.domains.most_gpus, whole.domains.segment) == (64, 16)
    assert whole.to_dict()["domains"]["segment"] == 16
    assert "group-crosses-domain" not in codes(whole)
    assert codes(whole)["domain-gpus"] == "note"
    assert codes(split)["group-crosses-domain"] == "warning"


def test_crossing_groups_are_one_warning_on_nodes_of_eight_too() -> None:
    answer = simulated(Machine("h100-dgx"), tp=16, ep=64, etp=1)
    warnings = [note for note in answer.diagnostics if note.code == "group-crosses-domain"]
    assert len(warnings) == 1
    assert answer.domains is None
    assert "domain-gpus" not in codes(answer)
    assert "group-crosses-domain" not in codes(simulated(Machine("h100-dgx"), tp=4, ep=8))


def test_a_placement_file_comes_before_the_rule(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("".join(f"n{number} slots=4\n" for number in range(32)), encoding="utf-8")
    answer = simulated(Machine("gb200-nvl72", placement=file), ep=64)
    assert answer.domains is None
    assert codes(answer)["group-crosses-domain"] == "warning"


def test_dp_innermost_takes_expert_groups_apart() -> None:
    usual, apart = (simulated(Machine("h100-dgx"), ep=8, rank_order=f"tp-cp-{axes}-pp") for axes in ("ep-dp", "dp-ep"))
    assert apart.step_time_s > 1.05 * usual.step_time_s
    assert codes(apart)["group-crosses-domain"] == "warning"


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72"])
@pytest.mark.parametrize("collective", ["all-to-all", "all-reduce"])
def test_no_number_of_ranks_collapses(name: str, collective: str) -> None:
    machine = Machine(name)
    rates = {}
    for ranks in (76, 80, 128, 144, 148, 152, 288, 292, 512, 576, 1228):
        answer = foretrace.network(collective, "256MiB", machine, ranks=ranks)
        rates[ranks] = answer.busbw_bytes_per_s or 0.0
    assert rates[76] > 0.9 * rates[144]
    assert rates[80] > 0.9 * rates[144]
    assert rates[148] > 0.9 * rates[288]
    assert rates[292] > 0.75 * rates[288]
    assert rates[1228] > 0.75 * rates[576]


def test_groups_of_a_collective_stay_in_a_rack() -> None:
    groups = placed_groups(NVL72, 32, groups=9)
    domain = groups.placement.host[groups.ranks] // 18
    assert (domain == domain[:, :1]).all()
    assert groups.domains is not None
    assert groups.domains.segment == 8


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72"])
def test_messages_on_links_skip_idle_nodes(name: str) -> None:
    flow = foretrace.network("all-to-all", "64MiB", Machine(name, network="flow"), ranks=76)
    assert flow.links is not None
    assert flow.time_s == pytest.approx(flow.links.analytic_time_s, rel=0.3)
