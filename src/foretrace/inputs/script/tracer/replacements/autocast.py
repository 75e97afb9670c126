"""Casts tensors of a simulated GPU as autocast casts those of a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.library import Library

from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.storages import is_simulated

_aten: Final = torch.ops.aten


_LOWER: Final = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "scaled_dot_product_attention",
]
_FULL: Final = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "cosine_similarity",
    "nll_loss",
    "nll_loss2d",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "cdist",
    "renorm",
    "logsumexp",
    "cosine_embedding_loss",
]
_FULL_BY_DTYPE: Final = [
    "prod",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "cumsum.dimname",
    "sum",
    "sum.dim_IntList",
]
_WIDEST: Final = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
"""Ops that autocast runs in the lower precision, in fp32, in fp32 by their `dtype`, and in the widest type of their
inputs (ATen/autocast_mode.h)."""


def install(patches: Patches) -> None:
    """Registers the casts of autocast for the GPU, which PyTorch without CUDA does not have."""
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__
    state: dict[str, Any] = {"library": None}
    guards: list[Any] = []
    key = torch._C.DispatchKey.AutocastCUDA
    cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def enter_autocast(self: Any) -> Any:
        result = enter(self)
        if torch.is_autocast_enabled("cuda"):
            if state["library"] is None:
                state["library"] = _autocast_library(key, cast_weights)
            guard = torch._C._IncludeDispatchKeyGuard(key)
            guard.__enter__()
            guards.append(guard)
        else:
            guards.append(None)
        return result

    def leave_autocast(self: Any, *args: Any) -> Any:
        guard = guards.pop()
        if guard is not None:
            guard.__exit__(None, None, None)
        if not any(guard is not None for guard in guards):
            cast_weights.clear()
        return leave(self, *args)

    def undo() -> None:
        if state["library"] is not None:
            state["library"]._destroy()

    patches.set(torch.autocast, "__enter__", enter_autocast)
    patches.set(torch.autocast, "__exit__", leave_autocast)
    patches.on_undo(undo)


def _autocast_library(key: Any, cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Library:
    """Returns a library of ops that cast their inputs; `cast_weights` keeps casts of weights until autocast ends."""
    library = Library("aten", "IMPL")

    def cast(value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(cast(item, dtype) for item in value)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == torch.float64:
            return value
        if not is_simulated(value) or value.dtype == dtype:
            return value
        if not (value.is_leaf and value.requires_grad and value.dtype == torch.float32):
            return value.to(dtype)
        known = cast_weights.get(id(value))
        if known is None or known[0] is not value:
            known = cast_weights[id(value)] = value, value.to(dtype)
        return known[1]

    def lowered() -> torch.dtype:
        return torch.get_autocast_dtype("cuda")

    def widest(args: Any) -> torch.dtype:
        tensors = [value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point()]
        wide = any(tensor.dtype == torch.float32 for tensor in tensors)
        return torch.float32 if wide else lowered()

    def with_casts(op: Any, dtype: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
                to = dtype(args)
                named = {key: cast(value, to) for key, value in kwargs.items()}
                # GCC evaluates the casts of PyTorch's arguments from the last to the first, which decides the order
                # in which gradients become ready.
                return op(*reversed([cast(value, to) for value in reversed(args)]), **named)

        return run

    def with_dtype(op: Any) -> Callable[..., Any]:
        def run(given: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
                names = [argument.name for argument in op._schema.arguments]
                at = names.index("dtype") - 1
                named = kwargs.get("dtype") is not None or (at < len(args) and args[at] is not None)
                if not named and is_simulated(given) and given.is_floating_point():
                    args, kwargs = args[: max(at, 0)], {**kwargs, "dtype": torch.float32}
                return op(given, *args, **kwargs)

        return run

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rules: tuple[tuple[Sequence[str], Callable[[Any], Any]], ...] = (
            (_LOWER, lambda op: with_casts(op, lambda _: lowered())),
            (_FULL, lambda op: with_casts(op, lambda _: torch.float32)),
            (_FULL_BY_DTYPE, with_dtype),
            (_WIDEST, lambda op: with_casts(op, widest)),
        )
        for names, make in rules:
            for name in names:
                op = _overload(name)
                if op is not None:
                    library.impl(name, make(op), "AutocastCUDA", allow_override=True)
    return library


def _overload(name: str) -> Any:
    word, _, overload = name.partition(".")
    packet = getattr(_aten, word, None)
    return getattr(packet, overload or "default", None)
