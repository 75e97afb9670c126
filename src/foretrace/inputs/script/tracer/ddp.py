"""DistributedDataParallel without its reducer in C++, which reads data: the same buckets, copies and all-reduces."""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.script.tracer.dispatch import Recorder
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.unknown import CannotTrace

FIRST_BUCKET_BYTES: Final = 1 << 20
BUCKET_MB: Final = 25
BROADCAST_BYTES: Final = 250 << 20
"""Sizes of buckets of gradients and of buffers (torch/nn/parallel/distributed.py, reducer.hpp)."""

_HOOK_TYPES: Final = {"fp16_compress_hook": torch.float16, "bf16_compress_hook": torch.bfloat16}
"""The type in which known hooks send gradients."""


def install_ddp(patches: Patches, recorder: Recorder, notes: list[Diagnostic]) -> None:
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
        del init_sync, check_reduction

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            self._gradients.begin()
        if self.broadcast_buffers and self.require_forward_param_sync and self.training:
            _broadcast_buffers(self)
        self.require_forward_param_sync = self.require_backward_grad_sync
        return self.module(*inputs, **kwargs)

    def register_comm_hook(self: Any, state: Any, hook: Any) -> None:
        del state
        name = getattr(hook, "__name__", "")
        if name not in (*_HOOK_TYPES, "allreduce_hook"):
            text = f"DDP's communication hook {name} is taken for a plain all-reduce"
            notes.append(Diagnostic("warning", "assumed", text))
        self._gradients.sent_as = _HOOK_TYPES.get(name)

    patches.set(DistributedDataParallel, "__init__", init)
    patches.set(DistributedDataParallel, "forward", forward)
    patches.set(DistributedDataParallel, "register_comm_hook", register_comm_hook)
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


class _Bucket:
    """Gradients that are reduced together: the parameters, their memory, and what is missing."""

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
        self.work: Any = None


class GradientBuckets:
    """Reduces gradients in buckets as they become ready (torch/csrc/distributed/c10d/reducer.cpp).

    The first pass has one bucket, or buckets in the reverse order of parameters where some may be unused. From the
    second on, buckets follow the order in which gradients became ready.
    """

    def __init__(self, ddp: Any, recorder: Recorder, cap_bytes: int) -> None:
        self._ddp, self._recorder, self._cap_bytes = ddp, recorder, cap_bytes
        self.sent_as: torch.dtype | None = None
        self._parameters = [p for p in ddp.module.parameters() if p.requires_grad]
        self._ready: list[nn.Parameter] = []
        self._buckets: list[_Bucket] = []
        self._of: dict[int, _Bucket] = {}
        self._next = 0
        self._active = self._rebuilt = self._queued = False
        unused = ddp.find_unused_parameters and not ddp.static_graph
        limits = [FIRST_BUCKET_BYTES, cap_bytes] if unused else [sys.maxsize]
        self._build(self._parameters, limits, reverse=True)
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._became_ready)

    def begin(self) -> None:
        """Prepares for a backward pass that reduces gradients."""
        unused = self._ddp.find_unused_parameters and not self._ddp.static_graph
        if not self._rebuilt and not unused and len(self._ready) == len(self._parameters):
            self._build(self._ready, [FIRST_BUCKET_BYTES, self._cap_bytes], reverse=False)
            self._rebuilt = True
        self._ready = []
        self._active, self._next, self._queued = True, 0, False
        for bucket in self._buckets:
            bucket.missing, bucket.work = len(bucket.parameters), None

    def _build(self, parameters: list[nn.Parameter], limits: list[int], *, reverse: bool) -> None:
        self._buckets.clear()
        self._of.clear()
        with torch.no_grad():
            indices, _ = dist._compute_bucket_assignment_by_size(parameters, limits, [False] * len(parameters))
            for some in reversed(indices) if reverse else indices:
                bucket = _Bucket([parameters[at] for at in some])
                self._buckets.append(bucket)
                self._of |= dict.fromkeys(map(id, bucket.parameters), bucket)

    def _became_ready(self, parameter: nn.Parameter) -> None:
        if not self._active or not self._ddp.require_backward_grad_sync:
            return
        self._ready.append(parameter)
        bucket = self._of[id(parameter)]
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
                view.div_(size)
            elif self.sent_as is not None:
                view.copy_(gradient)
            else:
                torch.mul(gradient, 1.0 / size, out=view)
            if self._ddp.gradient_as_bucket_view:
                parameter.grad = view

    def _reduce(self, bucket: _Bucket) -> None:
        sent = bucket.flat
        with torch.no_grad():
            if self.sent_as is not None and sent.dtype != self.sent_as:
                sent = sent.to(self.sent_as).div_(self._ddp.process_group.size())
            bucket.work = dist.all_reduce(sent, group=self._ddp.process_group, async_op=True)
            if sent is not bucket.flat:
                bucket.work.wait()
                bucket.flat.copy_(sent)

    def _finish(self) -> None:
        """Waits for all buckets, and copies gradients back out of them."""
        self._active = False
        with torch.no_grad():
            if self._ddp.find_unused_parameters and not self._ddp.static_graph:
                used = torch.ones(len(self._parameters), dtype=torch.int32).to(self._ddp.device, non_blocking=True)
                dist.all_reduce(used, group=self._ddp.process_group)
            for bucket in self._buckets:
                if bucket.work is None:
                    continue
                bucket.work.wait()
                if not self._ddp.gradient_as_bucket_view:
                    for parameter in bucket.parameters:
                        if parameter.grad is not None:
                            parameter.grad.copy_(bucket.views[id(parameter)])
