"""Process groups whose other ranks do not exist: calls are recorded and return at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from foretrace.inputs.script.tracer.storages import tensor_bytes
from foretrace.program.columns import Collective

if TYPE_CHECKING:
    from foretrace.inputs.script.tracer.replacements.groups import GroupBook


class CallHandle(dist.Work):
    """The handle of an asynchronous call; waiting for it is recorded."""

    def __init__(self, book: GroupBook, call: int, results: Any) -> None:
        super().__init__()
        self.call = call
        """The number of the event of the call; -1 for a call between hosts, which is not recorded."""
        self._book, self._results = book, results

    def wait(self, timeout: Any = None) -> bool:
        """Makes the current stream wait for the call."""
        del timeout
        if self.call >= 0:
            self._book.log.wait_for_call(self.call)
        return True

    def synchronize(self) -> None:
        """Makes the current stream wait for the call."""
        self.wait()

    def block_current_stream(self) -> None:
        """Makes the current stream wait for the call."""
        self.wait()

    def is_completed(self) -> bool:
        """Returns whether the call has ended, which is assumed."""
        return True

    def is_success(self) -> bool:
        """Returns whether the call went well."""
        return True

    def exception(self) -> None:
        """Returns None: no call fails."""

    def result(self) -> Any:
        """Returns the tensors of the call."""
        return self._results

    def get_future(self) -> RecordedFuture:
        """Returns a future of the tensors of the call."""
        return RecordedFuture(self._book, self._results, self.wait)

    def _source_rank(self) -> int:
        return 0


class RecordedFuture(torch.futures.Future[Any]):
    """The future of a call. Its callbacks run on a stream of their own, as those of PyTorch's CUDA futures do."""

    def __init__(self, book: GroupBook, value: Any, wait: Callable[[], object]) -> None:
        super().__init__()
        self._book, self._value, self._wait = book, value, wait
        super().set_result(value)

    def wait(self) -> Any:
        """Makes the current stream wait for the future, and returns its tensors."""
        self._wait()
        return self._value

    def value(self) -> Any:
        """Returns the tensors."""
        return self._value

    def done(self) -> bool:
        """Returns whether the future has ended, which is assumed."""
        return True

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """Runs a callback on the stream of futures, after the call."""
        log, stream = self._book.log, self._book.future_stream()
        before, log.stream = log.stream, stream
        try:
            self._wait()
            result = callback(self)
        finally:
            log.stream = before
        until = log.next_number
        return RecordedFuture(self._book, result, lambda: log.wait_for_stream(log.stream, stream, until))

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Runs a callback on the stream of futures, after the call."""
        self.then(callback)


class RecordedGroup(dist.ProcessGroup):
    """A process group whose calls are recorded."""

    def __init__(self, rank: int, size: int, book: GroupBook, ranks: tuple[int, ...]) -> None:
        super().__init__(rank, size)
        self._own_rank, self._own_size = rank, size
        self._book, self.ranks = book, ranks
        self._name, self._description = "", ""
        self.bound_device_id = None

    def size(self) -> int:
        """Returns the number of ranks."""
        return self._own_size

    def rank(self) -> int:
        """Returns this rank's position."""
        return self._own_rank

    @property
    def group_name(self) -> str:
        """The name under which torch.distributed knows the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What the group is for, as its maker describes it."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name
        super()._set_group_name(name)

    def _set_group_desc(self, text: str) -> None:
        self._description = text

    def getBackendName(self) -> str:  # noqa: N802
        """Returns the name of the backend that a script sees."""
        return "nccl"

    name = getBackendName

    def _get_backend(self, _: Any) -> Any:
        return self

    def _get_backend_name(self) -> str:
        return "nccl"

    supports_splitting = False
    supports_coalescing = False

    def _start_coalescing(self, *_: Any) -> None: ...

    def _end_coalescing(self, *_: Any) -> CallHandle:
        return CallHandle(self._book, -1, [])

    def _record(
        self, what: Collective, name: str, size: int, like: torch.Tensor | None, options: Any, results: Any, **more: Any
    ) -> CallHandle:
        own = bool(getattr(options, "asyncOp", True))
        return self._book.record(self, what, name, size, like, own, results, **more)

    def allreduce(self, tensors: Any, opts: Any = None) -> CallHandle:
        """Sums tensors over all ranks."""
        buffers = tensors if isinstance(tensors, list) else [tensors]
        for tensor in buffers:
            self._book.reduce_values(tensor, opts, self._own_size)
        return self._record(Collective.ALL_REDUCE, "all_reduce", _total_bytes(buffers), buffers[0], opts, buffers)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None) -> CallHandle:
        """Sums tensors to one rank."""
        root = self._global(getattr(opts, "rootRank", 0))
        return self._record(Collective.REDUCE, "reduce", _total_bytes(tensors), tensors[0], opts, tensors, peer=root)

    def broadcast(self, tensors: Any, opts: Any = None) -> CallHandle:
        """Sends a tensor from one rank to all."""
        buffers = tensors if isinstance(tensors, list) else [tensors]
        root = self._global(getattr(opts, "rootRank", 0))
        return self._record(
            Collective.BROADCAST, "broadcast", _total_bytes(buffers), buffers[0], opts, buffers, peer=root
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> CallHandle:
        """Collects the tensors of all ranks in a list."""
        for target in outputs[0]:
            self._book.copy_values(inputs[0], target)
        size = self._own_size * _total_bytes(inputs)
        return self._record(Collective.ALL_GATHER, "all_gather", size, inputs[0], opts, outputs)

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> CallHandle:
        """Collects the tensors of all ranks in one."""
        self._book.tile_values(given, output, self._own_size)
        return self._record(
            Collective.ALL_GATHER, "all_gather_into_tensor", _total_bytes([output]), given, opts, [output]
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> CallHandle:
        """Collects several tensors at once."""
        name = "all_gather_into_tensor_coalesced"
        return self._record(Collective.ALL_GATHER, name, _total_bytes(outputs), inputs[0], opts, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> CallHandle:
        """Sums lists of tensors, of which each rank keeps one."""
        whole = [tensor for tensors in inputs for tensor in tensors]
        self._book.forget(outputs)
        return self._record(Collective.REDUCE_SCATTER, "reduce_scatter", _total_bytes(whole), whole[0], opts, outputs)

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any = None) -> CallHandle:
        """Sums a tensor, of which each rank keeps a part."""
        self._book.forget([output])
        return self._record(
            Collective.REDUCE_SCATTER, "reduce_scatter_tensor", _total_bytes([given]), given, opts, [output]
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> CallHandle:
        """Sums several tensors at once, of which each rank keeps a part."""
        name = "reduce_scatter_tensor_coalesced"
        return self._record(Collective.REDUCE_SCATTER, name, _total_bytes(inputs), inputs[0], opts, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> CallHandle:
        """Sends each rank the tensor of its position."""
        own = inputs[self._own_rank]
        for target in outputs:
            self._book.copy_values(own, target)
        sends = tuple((at, _total_bytes([tensor])) for at, tensor in enumerate(inputs))
        uneven = sends if len({size for _, size in sends}) > 1 else ()
        return self._record(Collective.ALL_TO_ALL, "all_to_all", _total_bytes(inputs), own, opts, outputs, sends=uneven)

    def all_to_all_single(
        self, output: Any, given: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any = None
    ) -> CallHandle:
        """Sends each rank its part of a tensor."""
        parts = list(input_split_sizes or ())
        size = _total_bytes([given])
        sends: tuple[tuple[int, int], ...] = ()
        if parts and len(set(parts)) > 1 and sum(parts):
            sends = tuple((at, size * part // sum(parts)) for at, part in enumerate(parts))
        self._book.exchange_values(given, output, self._own_rank, self._own_size, parts)
        del output_split_sizes
        name = "all_to_all_single"
        return self._record(Collective.ALL_TO_ALL, name, size, given, opts, [output], sends=sends)

    alltoall_base = all_to_all_single

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> CallHandle:
        """Collects the tensors of all ranks on one."""
        for target in outputs[0] if outputs else ():
            self._book.copy_values(inputs[0], target)
        root = self._global(getattr(opts, "rootRank", 0))
        size = self._own_size * _total_bytes(inputs)
        return self._record(Collective.GATHER, "gather", size, inputs[0], opts, outputs, peer=root)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> CallHandle:
        """Sends each rank its tensor from one."""
        if inputs:
            self._book.copy_values(inputs[0][self._own_rank], outputs[0])
        root = self._global(getattr(opts, "rootRank", 0))
        size = self._own_size * _total_bytes(outputs)
        return self._record(Collective.SCATTER, "scatter", size, outputs[0], opts, outputs, peer=root)

    def send(self, tensors: Any, dst: int, tag: int = 0) -> CallHandle:
        """Sends a tensor to one rank."""
        peer, size = self._global(dst), _total_bytes(tensors)
        return self._record(
            Collective.TRANSFER, "send", size, tensors[0], None, tensors, peer=peer, to_peer=True, tag=tag
        )

    def recv(self, tensors: Any, src: int, tag: int = 0) -> CallHandle:
        """Receives a tensor from one rank."""
        peer, size = self._global(src), _total_bytes(tensors)
        self._book.forget(tensors)
        return self._record(Collective.TRANSFER, "recv", size, tensors[0], None, tensors, peer=peer, tag=tag)

    def barrier(self, opts: Any = None) -> CallHandle:
        """Makes all ranks wait for each other."""
        return self._record(Collective.BARRIER, "barrier", 0, None, opts, [])

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """Makes all ranks wait for each other."""
        self.barrier()

    def exchange(self, sends: list[tuple[int, Any]], receives: list[tuple[int, Any]]) -> CallHandle:
        """Sends to some ranks and receives from others in one call; positions are those in the group."""
        self._book.forget([tensor for _, tensor in receives])
        for _, tensor in sends:
            if isinstance(tensor, AsyncCollectiveTensor):
                tensor.trigger_wait()
        tensors = [tensor for _, tensor in (*sends, *receives)]
        sizes: dict[int, int] = {}
        for peer, tensor in sends:
            sizes[peer] = sizes.get(peer, 0) + _total_bytes([tensor])
        total = max(sum(sizes.values()), _total_bytes([tensor for _, tensor in receives]))
        return self._record(
            Collective.EXCHANGE,
            "batch_isend_irecv",
            total,
            tensors[0],
            None,
            tensors,
            sends=tuple(sorted(sizes.items())),
            receives_from=tuple(self._global(peer) for peer, _ in receives),
        )

    def _global(self, position: int) -> int:
        return self.ranks[position]


def _awaited(value: Any) -> Any:
    """Returns an argument of a call after waiting for the results of functional collectives in it."""
    if isinstance(value, AsyncCollectiveTensor):
        return value.trigger_wait()
    if isinstance(value, list | tuple):
        return type(value)(map(_awaited, value))
    return value


def _with_awaited_arguments(call: Callable[..., CallHandle]) -> Callable[..., CallHandle]:
    def called(group: RecordedGroup, *args: Any, **kwargs: Any) -> CallHandle:
        return call(group, *map(_awaited, args), **kwargs)

    return called


# Calls go to groups in Python directly, and not through an op that would wait for its arguments.
for _name in [
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "broadcast",
    "allgather",
    "all_gather_single",
    "_allgather_base",
    "gather",
    "scatter",
    "send",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_single",
    "alltoall",
    "_reduce_scatter_base",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "all_to_all_single",
    "alltoall_base",
    "exchange",
]:
    setattr(RecordedGroup, _name, _with_awaited_arguments(getattr(RecordedGroup, _name)))


def _total_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(map(tensor_bytes, tensors))
