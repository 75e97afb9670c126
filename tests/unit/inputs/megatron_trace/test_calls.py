"""What a trace's words for communication mean: axes, sizes, and what cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace import Mesh
from foretrace.basics.errors import InputError
from foretrace.inputs.megatron_trace.calls import AXES, axis_of, gradient_call, group_size, sub_call, tensor_bytes
from foretrace.inputs.megatron_trace.format import Facts
from foretrace.inputs.megatron_trace.format.values import DTYPE_BYTES
from foretrace.program.columns import Collective
from unit.inputs.megatron_trace.rank_files import Rank, program, sub, write

MESH = Mesh(tp=2, pp=4, dp=4, ep=2)


@pytest.mark.parametrize(
    ("group", "axis", "size"),
    [("tp", "tp", 2), ("dp", "dp", 4), ("pp", "pp", 4), ("exp", "ep", 2), ("exp_dp", "edp", 2), ("ep_dp", "edp", 2)],
)
def test_axes_of_groups(group: str, axis: str, size: int) -> None:
    assert axis_of(group, "x") == axis
    assert group_size(MESH, axis) == size


def test_ep_is_the_embedding_group_and_exp_the_experts() -> None:
    assert (AXES["ep"], AXES["exp"]) == ("embd", "ep")
    assert (group_size(MESH, "embd"), group_size(Mesh(dp=4), "embd")) == (2, 1)
    ep = gradient_call(Rank(0).reduction("ep_allreduce").ops[0], "x")
    exp_dp = gradient_call(Rank(0).reduction("exp_dp_allreduce").ops[0], "x")
    assert (ep.axis, exp_dp.axis) == ("embd", "edp")


def test_a_gather_counts_what_all_have_together() -> None:
    """8 experts' int64 on each of two ranks are 64 bytes here, 128 in all; an all-reduce counts its own buffer."""
    gather = sub(0, 0, comm="allgather", group="exp", shape=[8], dtype="torch.int64").at(1)
    call = sub_call(gather, MESH, "x")
    assert call is not None
    assert (call.collective, call.axis, call.bytes) == (Collective.ALL_GATHER, "ep", 128)
    reduce = sub_call(sub(0, 0, shape=[8], dtype="torch.float32").at(1), MESH, "x")
    assert reduce is not None
    assert (reduce.collective, reduce.bytes) == (Collective.ALL_REDUCE, 32)


def test_a_group_of_one_makes_no_call() -> None:
    assert sub_call(sub(0, 0, group="cp").at(1), MESH, "x") is None
    assert sub_call(sub(0, 0, group="ep").at(1), Mesh(dp=4), "x") is None
    # Where the mesh is not known, neither is that.
    assert sub_call(sub(0, 0, group="cp").at(1), None, "x") is not None


def test_what_runs_beside_computation() -> None:
    """What says so; and ex situ the tp reductions of a backward, which Megatron hides under the weight gradient."""

    def beside(source: str, comm: str, group: str, *, hidden: bool) -> bool:
        call = sub_call(sub(0, 0, source=source, comm=comm, group=group).at(1), MESH, "x", hidden=hidden)
        assert call is not None
        return call.concurrent == "next"

    assert beside("normlinear_bwd_async", "allreduce", "tp", hidden=False)
    assert not beside("allreduce", "allreduce", "tp", hidden=False)
    assert beside("allreduce", "allreduce", "tp", hidden=True)
    assert beside("x", "reduce_scatter", "tp", hidden=True)
    assert not beside("x", "allgather", "tp", hidden=True)
    assert not beside("x", "all_to_all", "exp", hidden=True)


def test_sizes_of_tensors() -> None:
    assert tensor_bytes((4, 1024), "torch.bfloat16", "x") == 8192
    assert tensor_bytes((), "torch.float32", "x") == 4
    assert tensor_bytes((3,), "torch.float8_e4m3fn", "x") == 3
    for shape, dtype in ((None, "torch.float16"), ((1,), None)):
        with pytest.raises(InputError) as caught:
            tensor_bytes(shape, dtype, "f:3")
        assert caught.value.code == "missing-field"


def test_every_dtype_that_is_read_has_a_size() -> None:
    for name, size in DTYPE_BYTES.items():
        assert tensor_bytes((10,), f"torch.{name}", "x") == 10 * size


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group": "xyz"}, 'group "xyz" is not known'),
        ({"shape": None, "dtype": None}, "without the shape and dtype of its tensor"),
    ],
)
def test_errors_say_file_and_line(tmp_path: Path, wrong: dict[str, None], message: str) -> None:
    rank = Rank(0, ex_situ=True).op("get_batch", 1).op("forward_step", 10, subs=[sub(5, 0, **wrong)])
    folder = write(tmp_path, [rank.op("backward_step", 20)], Facts(world=2, tp=2, pp=1))
    with pytest.raises(InputError, match=message) as caught:
        program(folder)
    assert caught.value.where == f"{next(tmp_path.iterdir())}:2"
