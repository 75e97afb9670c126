from __future__ import annotations

import pytest

from foretrace import Mesh
from foretrace.program.build import ProgramBuilder
from foretrace.step.groups import Groups, group_size

MESHES = [Mesh(), Mesh(tp=2, cp=2, dp=4, pp=3), Mesh(dp=8, ep=4, shard=2), Mesh(cp=2, dp=2, shard=1)]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", ["tp", "cp", "dp", "ep", "etp", "edp", "pp", "shard", "replicate", "embd", "world"])
def test_groups_have_as_many_ranks_as_their_size_says(mesh: Mesh, name: str) -> None:
    (ranks,) = Groups(ProgramBuilder(mesh))[name].members(mesh)
    assert ranks.shape[1] == group_size(mesh, name)


def test_dense_gradients_are_reduced_over_dp_and_cp() -> None:
    mesh = Mesh(tp=2, cp=2, dp=2)
    (ranks,) = Groups(ProgramBuilder(mesh))["dp"].members(mesh)
    assert sorted(map(sorted, ranks.tolist())) == [[0, 2, 4, 6], [1, 3, 5, 7]]
