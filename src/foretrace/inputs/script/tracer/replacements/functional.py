"""Runs functional collectives, which return new tensors that `wait_tensor` waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from foretrace.inputs.script.tracer.replacements.groups import GroupBook
from foretrace.inputs.script.tracer.replacements.process_group import CallHandle
from foretrace.inputs.script.tracer.storages import META


def install(book: GroupBook) -> None:
    """Runs the ops of functional collectives as calls of the groups of a rank."""
    recorder = book.recorder
    pending: dict[int, int] = {}  # the call that writes to a storage, by the address of the storage

    def empty(size: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        made = torch.empty(size, dtype=like.dtype, device=META)
        recorder.storages.add(made, recorder.storages.device_of(like), book.log.place().phase)
        return made

    def group(name: Any) -> Any:
        return c10d._resolve_process_group(name) if isinstance(name, str) else name

    def started(work: CallHandle, output: torch.Tensor) -> torch.Tensor:
        pending[output.untyped_storage()._cdata] = work.call
        return output

    def all_reduce(_: Any, args: tuple[Any, ...], __: Any) -> torch.Tensor:
        output = empty(args[0].size(), args[0])
        recorder.copy_values(args[0], output)
        return started(group(args[-1]).allreduce([output]), output)

    def all_reduce_(_: Any, args: tuple[Any, ...], __: Any) -> torch.Tensor:
        return started(group(args[-1]).allreduce([args[0]]), args[0])

    def all_gather(_: Any, args: tuple[Any, ...], __: Any) -> torch.Tensor:
        given = args[0]
        output = empty((given.size(0) * args[1], *given.size()[1:]), given)
        return started(group(args[2]).all_gather_single(output, given), output)

    def all_gather_out(_: Any, args: tuple[Any, ...], kwargs: Any) -> torch.Tensor:
        output = kwargs["out"]
        return started(group(args[2]).all_gather_single(output, args[0]), output)

    def reduce_scatter(_: Any, args: tuple[Any, ...], __: Any) -> torch.Tensor:
        given = args[0]
        output = empty((given.size(0) // args[2], *given.size()[1:]), given)
        return started(group(args[3]).reduce_scatter_single(output, given), output)

    def all_to_all(_: Any, args: tuple[Any, ...], __: Any) -> torch.Tensor:
        given, outs, ins, name = args
        output = empty((sum(outs), *given.size()[1:]), given)
        return started(group(name).all_to_all_single(output, given, outs, ins), output)

    def broadcast(_: Any, args: tuple[Any, ...], __: Any) -> torch.Tensor:
        output = empty(args[0].size(), args[0])
        return started(group(args[2]).broadcast([output]), output)

    def coalesced(single: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
        return lambda func, args, kwargs: [single(func, (given, *args[1:]), kwargs) for given in args[0]]

    def wait(_: Any, args: tuple[Any, ...], __: Any) -> torch.Tensor:
        call = pending.pop(args[0].untyped_storage()._cdata, -1)
        if call >= 0:
            book.log.wait_for_call(call)
        return args[0]

    def shard_dim(_: Any, args: tuple[Any, ...], __: Any) -> torch.Tensor:
        given, gather, shard, name = args
        size = list(given.size())
        ranks = group(name).size()
        size[gather] *= ranks
        size[shard] //= ranks
        output = empty(size, given)
        group(name).all_to_all_single(output, given, None, None).wait()
        return output

    functional = {
        "all_reduce": all_reduce,
        "all_reduce_": all_reduce_,
        "all_gather_into_tensor": all_gather,
        "all_gather_into_tensor_out": all_gather_out,
        "reduce_scatter_tensor": reduce_scatter,
        "all_to_all_single": all_to_all,
        "broadcast": broadcast,
        "wait_tensor": wait,
        "all_reduce_coalesced": coalesced(all_reduce),
        "all_gather_into_tensor_coalesced": coalesced(all_gather),
        "reduce_scatter_tensor_coalesced": coalesced(reduce_scatter),
    }

    def wrapped(_: Any, args: tuple[Any, ...], __: Any) -> torch.Tensor:
        return AsyncCollectiveTensor(args[0])  # which waits where its values are used

    functional["_wrap_tensor_autograd"] = wrapped
    for name, handler in functional.items():
        recorder.handlers[f"_c10d_functional::{name}"] = handler
    recorder.handlers["_dtensor::shard_dim_alltoall"] = shard_dim
