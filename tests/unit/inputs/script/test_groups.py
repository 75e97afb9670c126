"""Process groups as axes of a mesh, and the pairs of transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from foretrace import Machine, Mesh, simulate
from foretrace.basics.errors import InputError
from foretrace.inputs.script.groups import JobGroups, mesh_of, tokens_per_step
from foretrace.inputs.script.program import program_of
from foretrace.inputs.script.recording import Group
from foretrace.program.columns import Collective
from golden.reading import parts_us
from script_recordings import Script, group


def device_mesh(**axes: int) -> list[Group]:
    """Groups of rank 0 in a DeviceMesh of these axes, the last of which is the fastest, as PyTorch numbers them."""
    ranks = np.arange(int(np.prod(list(axes.values())))).reshape(tuple(axes.values()))
    groups = []
    for at, name in enumerate(axes):
        every = np.moveaxis(ranks, at, -1).reshape(-1, ranks.shape[at]).tolist()
        groups.append(group(name, every[0], *every[1:]))
    return groups


@pytest.mark.parametrize(
    ("axes", "mesh"),
    [
        ({"pp": 2, "dp": 4, "tp": 8}, Mesh(pp=2, dp=4, tp=8)),
        ({"pp": 2, "dp_replicate": 2, "dp_shard": 4, "cp": 2, "tp": 2}, Mesh(pp=2, dp=8, cp=2, tp=2, shard=4)),
        ({"dp": 2, "pp": 2, "tp": 2}, Mesh(dp=2, pp=2, tp=2, order="tp-cp-pp-ep-dp")),
        ({"dp_shard": 8}, Mesh(dp=8)),
        ({"stage": 2, "worker": 2}, Mesh(dp=4)),
    ],
)
def test_the_groups_of_a_device_mesh(axes: dict[str, int], mesh: Mesh) -> None:
    script = Script(0, int(np.prod(list(axes.values()))), device_mesh(**axes))
    assert mesh_of([script.recording()]) == mesh


def test_tokens_are_counted_where_data_parallel_ranks_are_known() -> None:
    def tokens(**axes: int) -> float | None:
        script = Script(0, int(np.prod(list(axes.values()))), device_mesh(**axes))
        recording = replace(script.recording(), tokens=100)
        return tokens_per_step([recording], mesh_of([recording]))

    assert tokens(dp=4, tp=2) == 400
    assert tokens(dp_replicate=2, dp_shard=4) == 800
    assert tokens(dp=2, cp=2) is None
    assert tokens(workers=8) is None
    assert tokens(tp=8) == 100


def transfers(rank: int, groups: Sequence[Group], world: int, peer: int, *, sends: bool) -> Script:
    """A rank that only sends or receives."""
    script = Script(rank, world, groups)
    script.wait(script.send(peer) if sends else script.receive(peer))
    return script


def test_pairs_hold_the_same_positions_of_all_groups() -> None:
    groups = [group("pp", (0, 2, 4), (1, 3, 5))]
    middle, last = transfers(2, groups, 6, 4, sends=True), transfers(4, groups, 6, 2, sends=False)
    first = Script(0, 6, groups)
    first.launch("aten::mul")
    job = JobGroups([first.recording(), middle.recording(), last.recording()], [[0, 1], [2, 3], [4, 5]])
    sent, received = job.pair(1, 2, 0, 4, sends=True), job.pair(2, 4, 0, 2, sends=False)
    assert sent == received
    assert sent.groups == ((2, 4), (3, 5))
    assert [job.parts(number) for number in range(3)] == [[(0, 1)], [(2, 3)], [(4, 5)]]


def test_a_transfer_out_of_its_group_is_an_error() -> None:
    script = transfers(0, [group("pp", (0, 1), (2, 3))], 4, 2, sends=True)
    with pytest.raises(InputError) as error:
        program_of([script.recording()], [range(4)], title="script")
    assert error.value.code == "rendezvous-mismatch"


def test_a_ring_of_many_ranks_is_too_large() -> None:
    script = Script(0, 4096, [group("world", range(4096))])
    for _ in range(1000):
        script.launch("aten::mul")
    script.wait(script.call(Collective.EXCHANGE, name="ring", sends=((1, 1024),), receives_from=(4095,)))
    with pytest.raises(InputError) as error:
        program_of([script.recording()], [range(4096)], title="script")
    assert error.value.code == "too-large"


def test_a_cluster_prices_rings_and_collectives() -> None:
    script = Script(
        0, 16, [group("cp", range(8), range(8, 16)), group("dp", (0, 8), *((n, n + 8) for n in range(1, 8)))]
    )
    for _, collective in product(range(2), (Collective.ALL_TO_ALL, Collective.ALL_REDUCE)):
        script.launch("aten::mul")
        ring = script.call(Collective.EXCHANGE, name="ring", size=1 << 20, sends=((1, 1 << 20),), receives_from=(7,))
        script.wait(ring)
        script.wait(script.call(collective, 1, 1 << 24))
    program = program_of([script.recording()], [range(16)], title="script")
    answer = simulate(program, Machine("h100-dgx"))
    assert answer.step_time_s > 0
    assert {"cp exposed", "dp exposed"} <= set(parts_us(answer, 0))
