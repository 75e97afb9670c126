"""Names of collectives, as PyTorch and NCCL write them."""

from __future__ import annotations

import pytest

from foretrace.inputs.torch_ops.collectives import collective_of
from foretrace.program.columns import Collective


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("nccl:all_reduce", Collective.ALL_REDUCE),
        ("c10d::allreduce_", Collective.ALL_REDUCE),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Collective.ALL_REDUCE),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel<8>(x)", Collective.ALL_REDUCE),
        ("nccl:_all_gather_base", Collective.ALL_GATHER),
        ("_c10d_functional::all_gather_into_tensor", Collective.ALL_GATHER),
        ("ncclSymkDevKernel_AllGather_LL", Collective.ALL_GATHER),
        ("c10d::_reduce_scatter_base_", Collective.REDUCE_SCATTER),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE", Collective.REDUCE_SCATTER),
        ("all_to_allv", Collective.ALL_TO_ALL),
        ("c10d::alltoall_base_", Collective.ALL_TO_ALL),
        ("ncclKernel_SendRecv(ncclDevComm*)", Collective.TRANSFER),
        ("c10d::recv_any_source_", Collective.TRANSFER),
        ("c10d::reduce_", Collective.REDUCE),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", Collective.REDUCE),
        ("c10d::gather_", Collective.GATHER),
        ("c10d::scatter_", Collective.SCATTER),
        ("c10d::barrier", Collective.BARRIER),
        ("nccl:broadcast", Collective.BROADCAST),
        ("record_param_comms", Collective.NONE),
        ("nccl:coalesced", Collective.NONE),
        ("aten::mm", Collective.NONE),
    ],
)
def test_names(name: str, collective: Collective) -> None:
    assert collective_of(name) is collective
