"""Stands in for the reducer of DistributedDataParallel in C++, which reads data, with the same buckets and calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from foretrace.inputs.script.tracer.dispatch import Recorder
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.unknown import CannotTrace

FIRST_BUCKET_BYTES: Final = 1 << 20
BUCKET_MB: Final = 25
BROADCAST_BYTES: Final = 250 << 20
"""Sizes of buckets of gradients and of buffers (torch/nn/parallel/distributed.py, reducer.hpp)."""


def install(patches: Patches, recorder: Recorder) -> None:
    """Makes `DistributedDataParallel` reduce gradients through `GradientBuckets`."""

    def init(self: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0,
             broadcast_buffers: bool = True, init_sync: bool = True, process_group: Any = None,
             bucket_cap_mb: float | None = None, find_unused_parameters: bool = False, check_reduction: bool = False,
             gradient_as_bucket_view: bool = False, static_graph: bool = False, **given: Any) -> None:  # fmt: skip
        if given.get("mixed_precision") is not None:
            raise CannotTrace(
                "unsupported-op", "DistributedDataParallel(mixed_precision=…) cannot be traced", "autocast"
            )
        nn.Module.__init__(self)
        mesh = given.get("device_mesh")
        self.process_group = mesh.get_group() if mesh is not None else process_group or dist.group.WORLD
        self.module, self.dim, self.device_ids, self.output_device = module, dim, device_ids, output_device
        self.broadcast_buffers, self.find_unused_parameters = broadcast_buffers, find_unused_parameters
        self.gradient_as_bucket_view, self.static_graph = gradient_as_bucket_view, static_graph
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.device = next(module.parameters()).device
        self.device_type = self.device.type
        cap = int((BUCKET_MB if bucket_cap_mb is None else bucket_cap_mb) * (1 << 20))
        object.__setattr__(self, "_gradients", GradientBuckets(self, recorder, cap))
        # The schedules of pipelines prepare the last backward themselves.
        self.reducer = SimpleNamespace(prepare_for_backward=self._gradients.begin)
        del init_sync, check_reduction

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        synchronizes = torch.is_grad_enabled() and self.require_backward_grad_sync
        if self.broadcast_buffers and self.require_forward_param_sync and self.training:
            _broadcast_buffers(self)
        self.require_forward_param_sync = self.require_backward_grad_sync
        if synchronizes:
            self._gradients.rebuild()
        output = self.module(*inputs, **kwargs)
        if synchronizes:
            self._gradients.begin(_tensors(output))
        return output

    def register_comm_hook(self: Any, state: Any, hook: Any) -> None:
        self._gradients.hook = partial(hook, state)

    def refuse(*_: Any, **__: Any) -> None:
        raise CannotTrace(
            "unsupported-op",
            "the hooks that DDP has in C++ cannot be traced",
            "register_comm_hook(None, allreduce_hook)",
        )

    patches.set(DistributedDataParallel, "__init__", init)
    patches.set(DistributedDataParallel, "forward", forward)
    patches.set(DistributedDataParallel, "register_comm_hook", register_comm_hook)
    patches.set(DistributedDataParallel, "_register_builtin_comm_hook", refuse)
    patches.set(DistributedDataParallel, "_set_static_graph", lambda *_: None)


def _broadcast_buffers(ddp: Any) -> None:
    """Broadcasts buffers, flattened by type (torch/csrc/distributed/c10d/comm.cpp, broadcast_coalesced)."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for buffer in ddp.module.buffers():
        by_type.setdefault(buffer.dtype, []).append(buffer)
    with torch.no_grad():
        for buffers in by_type.values():
            flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
            dist.broadcast(flat, dist.get_global_rank(ddp.process_group, 0), group=ddp.process_group)
            at = 0
            for buffer in buffers:
                buffer.copy_(flat[at : at + buffer.numel()].view(buffer.size()))
                at += buffer.numel()


def _tensors(output: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(output) if isinstance(value, torch.Tensor)]


def _used_parameters(outputs: Sequence[torch.Tensor]) -> set[int]:
    """Returns the parameters from which outputs were computed, by their identity."""
    nodes = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen, used = set(nodes), set()
    while nodes:
        node: Any = nodes.pop()
        if hasattr(node, "variable"):
            used.add(id(node.variable))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return used


class _Bucket:
    """Gradients that are reduced together: the parameters, their memory, and how many are not ready."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        first = parameters[0]
        self.parameters = parameters
        self.flat = torch.empty(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        self.views: dict[int, torch.Tensor] = {}
        at = 0
        for parameter in parameters:
            self.views[id(parameter)] = self.flat[at : at + parameter.numel()].view(parameter.size())
            at += parameter.numel()
        self.missing = len(parameters)
        self.result: Any = None
        """The future of the reduced gradients."""


class HookBucket:
    """A bucket as a communication hook sees it: `torch.distributed.GradBucket`."""

    def __init__(self, bucket: _Bucket, index: int, *, is_last: bool) -> None:
        self._bucket, self._index, self._is_last = bucket, index, is_last

    def index(self) -> int:
        """Returns the position of the bucket."""
        return self._index

    def is_last(self) -> bool:
        """Returns whether it is the last bucket of the pass."""
        return self._is_last

    def buffer(self) -> torch.Tensor:
        """Returns the gradients in one tensor."""
        return self._bucket.flat

    def set_buffer(self, tensor: torch.Tensor) -> None:
        """Replaces the gradients."""
        self._bucket.flat = tensor

    def gradients(self) -> list[torch.Tensor]:
        """Returns the gradient of each parameter, as a part of the buffer."""
        return list(self._bucket.views.values())

    def parameters(self) -> list[nn.Parameter]:
        """Returns the parameters."""
        return self._bucket.parameters


class GradientBuckets:
    """Reduces gradients in buckets as they become ready (torch/csrc/distributed/c10d/reducer.cpp).

    The first pass has one bucket, or buckets in the reverse order of parameters where some may be unused. From the
    second on, buckets follow the order in which gradients became ready.
    """

    def __init__(self, ddp: Any, recorder: Recorder, cap_bytes: int) -> None:
        self._ddp, self._recorder, self._cap_bytes = ddp, recorder, cap_bytes
        self.hook: Callable[[Any], Any] | None = None
        self._parameters = [p for p in ddp.module.parameters() if p.requires_grad]
        self._ready: list[nn.Parameter] = []
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        self._next = 0
        self._active = self._rebuilt = self._queued = False
        unused = ddp.find_unused_parameters and not ddp.static_graph
        limits = [FIRST_BUCKET_BYTES, cap_bytes] if unused else [sys.maxsize]
        self._build(self._parameters, limits, reverse=True)
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._became_ready)

    def rebuild(self) -> None:
        """Makes buckets in the order in which gradients became ready."""
        unused = self._ddp.find_unused_parameters and not self._ddp.static_graph
        if not self._rebuilt and not unused and len(self._ready) == len(self._parameters):
            self._build(self._ready, [FIRST_BUCKET_BYTES, self._cap_bytes], reverse=False)
            self._rebuilt = True

    def begin(self, outputs: Sequence[torch.Tensor]) -> None:
        """Prepares for a backward pass that reduces gradients, from these outputs."""
        self._ready = []
        self._active, self._next, self._queued = True, 0, False
        for bucket in self._buckets:
            bucket.missing, bucket.result = len(bucket.parameters), None
        if self._ddp.find_unused_parameters and not (self._ddp.static_graph and self._rebuilt):
            used = _used_parameters(outputs)
            for parameter in self._parameters:
                if id(parameter) not in used:
                    self._bucket_of[id(parameter)].missing -= 1

    def _build(self, parameters: list[nn.Parameter], limits: list[int], *, reverse: bool) -> None:
        self._buckets.clear()
        self._bucket_of.clear()
        with torch.no_grad():
            indices, _ = dist._compute_bucket_assignment_by_size(parameters, limits, [False] * len(parameters))
            for positions in reversed(indices) if reverse else indices:
                bucket = _Bucket([parameters[at] for at in positions])
                self._buckets.append(bucket)
                self._bucket_of |= dict.fromkeys(map(id, bucket.parameters), bucket)

    def _became_ready(self, parameter: nn.Parameter) -> None:
        if not self._active or not self._ddp.require_backward_grad_sync:
            return
        self._ready.append(parameter)
        bucket = self._bucket_of[id(parameter)]
        self._fill(bucket, parameter)
        bucket.missing -= 1
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._reduce(self._buckets[self._next])
            self._next += 1

    def _fill(self, bucket: _Bucket, parameter: nn.Parameter) -> None:
        """Divides a gradient by the number of ranks, into the bucket."""
        view, gradient = bucket.views[id(parameter)], parameter.grad
        assert gradient is not None
        size = self._ddp.process_group.size()
        with torch.no_grad():
            if gradient.untyped_storage()._cdata == bucket.flat.untyped_storage()._cdata:
                if self.hook is None:
                    view.div_(size)
            elif self.hook is not None:  # the hook divides
                view.copy_(gradient)
            else:
                torch.mul(gradient, 1.0 / size, out=view)
            if self._ddp.gradient_as_bucket_view:
                parameter.grad = view

    def _reduce(self, bucket: _Bucket) -> None:
        with torch.no_grad():
            if self.hook is None:
                bucket.result = dist.all_reduce(bucket.flat, group=self._ddp.process_group, async_op=True).get_future()
            else:
                index = self._next
                view = HookBucket(bucket, index, is_last=index == len(self._buckets) - 1)
                bucket.result = self.hook(view)

    def _finish(self) -> None:
        """Waits for all buckets, and copies gradients back out of them."""
        self._active = False
        with torch.no_grad():
            if self._ddp.find_unused_parameters and not self._ddp.static_graph:
                used = torch.ones(len(self._parameters), dtype=torch.int32).to(self._ddp.device, non_blocking=True)
                dist.all_reduce(used, group=self._ddp.process_group)
            for bucket in self._buckets:
                if bucket.result is not None:
                    self._copy_back(bucket, bucket.result.wait())

    def _copy_back(self, bucket: _Bucket, result: Any) -> None:
        """Copies the reduced gradients of a bucket to the gradients of its parameters."""
        flat = result[0] if isinstance(result, list) else result
        views = self._ddp.gradient_as_bucket_view
        if flat.untyped_storage()._cdata == bucket.flat.untyped_storage()._cdata and views:
            return
        at = 0
        for parameter in bucket.parameters:
            reduced = flat[at : at + parameter.numel()].view(parameter.size())
            at += parameter.numel()
            if parameter.grad is not None:
                parameter.grad.copy_(reduced)
