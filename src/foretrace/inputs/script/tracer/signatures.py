"""Describes an op and its arguments as PyTorch's profiler would."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import torch

from foretrace.inputs.profiler_trace.format.records import Dims, Inputs
from foretrace.inputs.script.recording import Signature, TensorShape
from foretrace.inputs.script.tracer.op_plans import tensors_in

TYPE_NAMES: Final = {
    torch.bfloat16: "c10::BFloat16",
    torch.float16: "c10::Half",
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int16: "short int",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
    torch.float8_e4m3fn: "c10::Float8_e4m3fn",
    torch.float8_e5m2: "c10::Float8_e5m2",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}
"""The names that the profiler gives to types of elements."""


def type_name(dtype: torch.dtype) -> str:
    """Returns the profiler's name of a type of elements."""
    return TYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def signature_of(
    name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> tuple[Hashable, Callable[[], Signature]]:
    """Returns a key that identical calls of an op share, and a function that makes their signature."""
    values = (*args, *kwargs.values())
    key = (name, tuple(map(_key, values)), _key(result))

    def make() -> Signature:
        schema = func._schema.arguments if func is not None else ()
        named = {argument.name: at for at, argument in enumerate(schema)}
        arguments: list[Any] = list(args) + [None] * (len(schema) - len(args))
        for word, value in kwargs.items():
            if word in named:
                arguments[named[word]] = value
        return Signature(name, _inputs(arguments), tuple(_shape(tensor) for tensor in tensors_in([result])))

    return key, make


def _key(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return (value.size(), value.dtype, value.stride())
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if isinstance(value, int | float | str | bool | type(None) | torch.dtype | torch.layout | torch.memory_format):
        return value
    return str(value) if isinstance(value, torch.device) else type(value).__name__


def _shape(tensor: torch.Tensor) -> TensorShape:
    return TensorShape(tuple(tensor.size()), type_name(tensor.dtype), tuple(tensor.stride()))


def _inputs(arguments: Sequence[Any]) -> Inputs:
    dims: list[Dims] = []
    types: list[str] = []
    texts: list[str] = []
    strides: list[Dims] = []
    for value in arguments:
        listed = tensors_in([value]) if isinstance(value, list | tuple) else []
        if isinstance(value, torch.Tensor):
            dims.append(tuple(value.size()))
            strides.append(tuple(value.stride()))
            types.append(type_name(value.dtype))
            texts.append("")
        elif listed:
            dims.append(tuple(tuple(tensor.size()) for tensor in listed))
            strides.append(tuple(tuple(tensor.stride()) for tensor in listed))
            types.append(f"GenericList[{type_name(listed[0].dtype)}]")
            texts.append("")
        else:
            dims.append(())
            strides.append(())
            types.append("Scalar" if isinstance(value, int | float | bool) else "")
            texts.append("" if value is None else str(list(value) if isinstance(value, tuple) else value))
    return Inputs(tuple(dims), tuple(types), tuple(texts), tuple(strides))
