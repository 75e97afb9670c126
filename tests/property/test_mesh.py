"""What holds for every mesh: groups partition the world, and every map has its inverse."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Axis, Mesh

DENSE = (Axis.TP, Axis.CP, Axis.SHARD, Axis.REPLICATE, Axis.PP)
EXPERT = (Axis.ETP, Axis.EP, Axis.EDP, Axis.PP)
AXES = tuple(axis for axis in Axis if axis is not Axis.EMBD)
ORDERS = ["-".join(order) for order in permutations(("tp", "cp", "ep", "dp", "pp"))]
SIZES = st.sampled_from((1, 2, 3, 4))


def divisors(whole: int) -> list[int]:
    return [n for n in range(1, whole + 1) if whole % n == 0]


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    tp, cp, dp, pp = draw(SIZES), draw(SIZES), draw(SIZES), draw(SIZES)
    etp = draw(st.sampled_from([None, *divisors(tp * cp * dp)]))
    ep = draw(st.sampled_from(divisors(tp * cp * dp // (tp if etp is None else etp))))
    shard = draw(st.sampled_from([None, *divisors(dp)]))
    try:
        return Mesh(tp, cp, dp, pp, ep, etp, shard, draw(st.sampled_from(ORDERS)))
    except InputError as error:
        assert "different stages" in error.message
        return Mesh(tp, cp, dp, pp, ep, etp, shard)


def axes_of(mesh: Mesh) -> tuple[Axis, ...]:
    """The axes the mesh can answer for: a dense mesh may have an order that experts cannot follow."""
    try:
        mesh.coordinate(Axis.EP)
    except InputError:
        return tuple(axis for axis in AXES if axis not in EXPERT[:3])
    return AXES


@given(meshes())
def test_both_decompositions_have_the_same_world(mesh: Mesh) -> None:
    assert mesh.world == mesh.tp * mesh.cp * mesh.dp * mesh.pp
    assert mesh.world == mesh.size("etp") * mesh.ep * mesh.edp * mesh.pp
    assert mesh.dp == mesh.replicate * mesh.size("shard")


@given(meshes())
def test_the_groups_of_every_axis_partition_the_world(mesh: Mesh) -> None:
    for axis in axes_of(mesh):
        groups = mesh.groups(axis)
        assert groups.shape == (mesh.world // mesh.size(axis), mesh.size(axis))
        assert np.array_equal(np.sort(groups, axis=None), np.arange(mesh.world))
        assert np.array_equal(groups[:, 0], np.sort(groups[:, 0]))


@given(meshes(), st.data())
def test_group_numbers_and_groups_agree(mesh: Mesh, data: st.DataObject) -> None:
    family = EXPERT if Axis.EP in axes_of(mesh) and data.draw(st.booleans()) else DENSE
    axes = data.draw(st.lists(st.sampled_from(family), unique=True))
    groups, group_of = mesh.groups(*axes), mesh.group_of(*axes)
    assert np.array_equal(group_of[groups], np.arange(len(groups))[:, None].repeat(groups.shape[1], axis=1))


@given(meshes(), st.data())
def test_members_are_ordered_by_coordinate_with_the_first_axis_fastest(mesh: Mesh, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(DENSE), unique=True, min_size=1))
    groups = mesh.groups(*axes)
    position, stride = np.zeros_like(groups), 1
    for axis in axes:
        position += stride * mesh.coordinate(axis)[groups]
        stride *= mesh.size(axis)
    assert np.array_equal(position, np.arange(groups.shape[1])[None, :].repeat(len(groups), axis=0))
    for axis in set(DENSE) - set(axes):
        fixed = mesh.coordinate(axis)[groups]
        assert np.array_equal(fixed, fixed[:, :1].repeat(groups.shape[1], axis=1))


@given(meshes(), st.data())
def test_rank_undoes_coordinate(mesh: Mesh, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, mesh.world - 1))
    families = [DENSE, (Axis.TP, Axis.CP, Axis.DP, Axis.PP)]
    families += [EXPERT] if Axis.EP in axes_of(mesh) else []
    for family in families:
        coordinates = {str(axis): int(mesh.coordinate(axis)[rank]) for axis in family}
        assert mesh.rank(**coordinates) == rank
        assert mesh.where(**coordinates).tolist() == [rank]


@given(meshes(), st.data())
def test_pairs_differ_in_one_axis_only(mesh: Mesh, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from(DENSE))
    a, b = (data.draw(st.integers(0, mesh.size(axis) - 1)) for _ in range(2))
    pairs = mesh.pairs(axis, a, b)
    assert pairs.shape == (mesh.world // mesh.size(axis), 2)
    assert np.array_equal(pairs[:, 0], mesh.where(**{axis: a}))
    assert np.all(mesh.coordinate(axis)[pairs] == [a, b])
    assert np.array_equal(mesh.group_of(axis)[pairs[:, 0]], mesh.group_of(axis)[pairs[:, 1]])


@given(meshes())
def test_a_rank_has_one_stage_for_dense_and_for_expert_layers(mesh: Mesh) -> None:
    if Axis.EP in axes_of(mesh):
        stage_groups = mesh.groups(Axis.ETP, Axis.EP, Axis.EDP)
        assert len(stage_groups) == mesh.pp
        assert np.array_equal(mesh.coordinate(Axis.PP)[stage_groups[:, 0]], np.arange(mesh.pp))
        assert all(len(set(mesh.coordinate(Axis.PP)[group].tolist())) == 1 for group in stage_groups)


@given(meshes())
def test_embedding_groups_hold_the_first_and_last_stage(mesh: Mesh) -> None:
    stages = mesh.coordinate(Axis.PP)[mesh.embedding_groups()]
    assert np.all(stages == ([0] if mesh.pp == 1 else [0, mesh.pp - 1]))


@given(meshes())
def test_text_reads_back_as_the_same_mesh(mesh: Mesh) -> None:
    assert Mesh.parse(str(mesh)) == mesh


@given(meshes())
def test_stages_are_the_ranks_at_each_coordinate_of_pp(mesh: Mesh) -> None:
    stages = mesh.stage_ranks()
    assert [ranks.tolist() for ranks in stages] == [mesh.where(pp=stage).tolist() for stage in range(mesh.pp)]
