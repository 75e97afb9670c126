"""The mesh on small worlds whose groups can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Axis, Mesh


def test_groups_of_a_small_moe_job_are_megatrons() -> None:
    mesh = Mesh(pp=2, ep=2, dp=4)
    assert mesh.groups("dp").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.groups("pp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups("ep").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups("edp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("tp").tolist() == [[rank] for rank in range(8)]
    assert mesh.group_of("edp").tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


def test_default_order_numbers_tp_then_cp_then_dp_then_pp() -> None:
    mesh = Mesh(tp=2, cp=2, dp=2, pp=2)
    assert mesh.rank(tp=1, cp=0, dp=0, pp=0) == 1
    assert mesh.rank(tp=0, cp=1, dp=0, pp=0) == 2
    assert mesh.rank(tp=0, cp=0, dp=1, pp=0) == 4
    assert mesh.rank(tp=0, cp=0, dp=0, pp=1) == 8


def test_pp_may_be_numbered_before_dp() -> None:
    mesh = Mesh(tp=2, dp=2, pp=2, order="tp-cp-ep-pp-dp")
    assert mesh.groups("pp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("dp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups("edp").tolist() == mesh.groups("dp").tolist()


def test_axes_that_vary_together_form_one_group() -> None:
    mesh = Mesh(tp=2, cp=2, dp=2)
    assert mesh.groups("dp", "cp").tolist() == [[0, 4, 2, 6], [1, 5, 3, 7]]
    assert mesh.groups("cp", "dp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert mesh.group_of("dp", "cp").tolist() == [0, 1] * 4
    assert mesh.groups("tp", "cp", "dp", "pp").tolist() == [list(range(8))]
    assert mesh.groups().tolist() == [[rank] for rank in range(8)]


def test_dp_shards_over_neighbours_and_replicates_across_them() -> None:
    mesh = Mesh(dp=8, shard=4)
    assert mesh.replicate == 2
    assert mesh.groups("shard").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.groups("replicate").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups("dp").tolist() == [list(range(8))]
    assert mesh.rank(shard=1, replicate=1) == mesh.rank(dp=5) == 5


def test_experts_keep_tp_unless_told_otherwise() -> None:
    assert Mesh(tp=4, dp=4, ep=4).size("etp") == 4
    assert Mesh(tp=4, dp=4, ep=4).edp == 1
    assert Mesh(tp=4, dp=4, ep=4, etp=1).edp == 4
    assert Mesh(tp=4, dp=4, ep=8, etp=1).groups("ep").tolist() == [list(range(8)), list(range(8, 16))]


def test_defaults_that_follow_another_axis_still_follow_after_replace() -> None:
    mesh = replace(Mesh(tp=2, dp=4), tp=4, dp=8)
    assert (mesh.size("etp"), mesh.size("shard"), mesh.replicate) == (4, 8, 1)


def test_pairs_join_neighbouring_stages() -> None:
    assert Mesh(tp=2, pp=3).pairs("pp", 0, 1).tolist() == [[0, 2], [1, 3]]
    assert Mesh(tp=2, pp=3).pairs("pp", 2, 0).tolist() == [[4, 0], [5, 1]]


def test_embedding_groups_join_first_and_last_stage() -> None:
    assert Mesh(tp=2, pp=3).embedding_groups().tolist() == [[0, 4], [1, 5]]
    assert Mesh(tp=2).embedding_groups().tolist() == [[0], [1]]


def test_where_leaves_axes_that_are_not_given_free() -> None:
    mesh = Mesh(tp=2, dp=2, pp=2)
    assert mesh.where(pp=1).tolist() == [4, 5, 6, 7]
    assert mesh.where(tp=1, pp=1).tolist() == [5, 7]
    assert mesh.where(tp=0, edp=1).tolist() == [2, 6]
    assert mesh.where().tolist() == list(range(8))


def test_arrays_are_shared_and_cannot_be_written() -> None:
    mesh = Mesh(tp=2, dp=2)
    for array in (mesh.coordinate("tp"), mesh.groups("dp"), mesh.group_of("dp")):
        assert array.dtype == np.int32
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert mesh.coordinate(Axis.TP) is mesh.coordinate("tp")


def test_a_million_ranks_are_numbered() -> None:
    mesh = Mesh(tp=8, pp=25, dp=5000, ep=40, etp=1)
    assert mesh.world == 1_000_000
    assert mesh.groups("ep").shape == (25_000, 40)
    assert mesh.coordinate("pp")[-1] == 24


def test_text_gives_the_mesh_and_back() -> None:
    mesh = Mesh.parse("tp=2,pp=4,dp=8,ep=8")
    assert mesh == Mesh(tp=2, pp=4, dp=8, ep=8)
    assert str(mesh) == "tp=2,dp=8,pp=4,ep=8"
    assert Mesh.parse("dp=4 shard=2 order=tp-cp-ep-pp-dp").order == "tp-cp-ep-pp-dp"
    assert str(Mesh()) == "tp=1"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("dp=16,ep=3", "nearest that fit: 2 and 4"),
        ("tp=2,dp=8,ep=3", "ep=3 does not divide tp·cp·dp=16 over etp=2 (as tp, since not given)"),
        ("dp=4,etp=3", "etp=3 does not divide tp·cp·dp=4"),
        ("dp=4,ep=9", "nearest that fit: 1 and 4"),
        ("dp=16,shard=5", "nearest that fit: 4 and 8"),
        ("tp=0", "tp=0 is not an axis size"),
        ("tp=-2", '"tp=-2" is not an axis and its size'),
        ("tp", '"tp" is not an axis and its size'),
        ("tp=1000000,dp=1000000", "at most 2147483647"),
        ("tp=2,dq=4", '"dq" is not known; did you mean dp?'),
        ("tp=2,tp=4", "tp is given twice"),
        ("", "the mesh is empty"),
        ("dp=2,order=tp-pp", "order tp-pp leaves out dp, but dp is 2"),
        ("order=tp-tp", "names tp twice"),
        ("order=tp-qp", '"qp" is not an axis of the order'),
        ("cp=2,dp=2,pp=2,ep=4,order=tp-cp-ep-pp-dp", "different stages for dense and expert layers"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        Mesh.parse(text, where="plan.yaml:3")
    assert problem in str(refused.value)
    assert str(refused.value).startswith("plan.yaml:3: ")
    assert refused.value.hint or "at most" in refused.value.message


def test_a_dense_mesh_is_not_held_to_what_experts_need() -> None:
    mesh = Mesh(cp=2, dp=2, pp=2, order="tp-cp-ep-pp-dp")
    assert mesh.groups("pp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    with pytest.raises(InputError, match="different stages") as caught:
        mesh.groups("edp")
    assert caught.value.code == "bad-mesh"


def test_questions_that_make_no_sense_are_refused() -> None:
    mesh = Mesh(tp=2, dp=2, pp=2, ep=2)
    questions: list[tuple[Callable[[], object], str]] = [
        (lambda: mesh.groups("dp", "ep"), "number the ranks differently"),
        (lambda: mesh.groups("dp", "shard"), "name the same ranks twice"),
        (lambda: mesh.group_of("tq"), "did you mean tp"),
        (lambda: mesh.groups("embd"), "embd is not a dimension"),
        (lambda: mesh.rank(dp=1, tp=0), "more than one rank: pp not given"),
        (lambda: mesh.rank(dp=1, shard=1, tp=0, pp=0), "not both"),
        (lambda: mesh.where(dp=2), "dp=2 is not on the mesh"),
        (lambda: mesh.pairs("pp", 0, -1), "pp=-1 is not on the mesh"),
        (lambda: Mesh(tp=2.0), "tp=2.0 is not an axis size"),  # type: ignore[arg-type]
        (lambda: Mesh(dp=True), "dp=True is not an axis size"),
    ]
    for ask, problem in questions:
        with pytest.raises(InputError, match=problem):
            ask()
