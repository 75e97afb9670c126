"""Reads the tensors among an op's inputs: sizes, bytes, and whether they are contiguous in memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Final

from foretrace.basics.numbers import MAX_WHOLE, NumberError, whole_number
from foretrace.inputs.profiler_trace.format.records import Dims, Inputs

ELEMENT_BYTES: Final = {
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "float": 4,
    "double": 8,
    "long int": 8,
    "long": 8,
    "int": 4,
    "short int": 2,
    "short": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1,
    "c10::Float4_e2m1fn_x2": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}
"""Bytes of an element by the name that PyTorch's profiler gives its type."""

_MAX_ELEMENTS: Final = 1 << 50
"""Elements of a tensor: no GPU's memory has a thousandth of it."""
_MAX_LISTED: Final = 64
"""Dimensions of a tensor that an op can name; PyTorch allows 64."""

_DTYPE: Final = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor; `strides` are () where they were not recorded."""

    dims: tuple[int, ...]
    type: str
    strides: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Elements."""
        return prod(self.dims)

    @property
    def last(self) -> int:
        """The size of its last dimension: the length of a row."""
        return self.dims[-1] if self.dims else 1

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES.get(self.type, 2)

    @property
    def stored(self) -> int:
        """Elements in memory: an expanded tensor (a stride of 0) repeats those that it has."""
        if len(self.strides) != len(self.dims) or 0 in self.dims:
            return self.count
        return prod(size for size, stride in zip(self.dims, self.strides, strict=True) if stride)

    @property
    def bytes(self) -> int:
        """The bytes of the elements in memory: what reading all of them moves."""
        return self.stored * self.size

    @property
    def full_bytes(self) -> int:
        """The bytes of a contiguous tensor of this shape."""
        return self.count * self.size

    @property
    def dtype(self) -> str:
        """As kernels name it; "" of what no product is made of."""
        return "fp8" if "Float8" in self.type else "nvfp4" if "Float4" in self.type else _DTYPE.get(self.type, "")

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements lie one after the other (taken to be so where no strides were recorded)."""
        expected = 1
        for size, stride in zip(reversed(self.dims), reversed(self.strides), strict=False):
            if size > 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def is_dense(self) -> bool:
        """Whether elements fill their memory in some order: a transposed matrix does, a slice does not."""
        expected = 1
        for stride, size in sorted((s, d) for d, s in zip(self.dims, self.strides, strict=False) if d > 1):
            if stride != expected:
                return False
            expected *= size
        return True

    @property
    def is_transposed(self) -> bool | None:
        """Whether the columns of a matrix (or a batch of them) are contiguous; None where strides do not tell."""
        if len(self.strides) < 2 or len(self.strides) != len(self.dims):
            return None
        rows, columns = self.strides[-2:]
        if columns == 1 and (self.dims[-1] > 1 or rows != 1):
            return False
        return rows == 1


def tensors(inputs: Inputs, assumed: str = "c10::BFloat16") -> list[Tensor | None]:
    """Each input as a tensor, None where it is none; `assumed` is the type where types were not recorded. A tensor of
    no dimensions (a number on the device) is left out where nothing tells it from a plain number."""
    operands: list[Tensor | None] = []
    for at, dims in enumerate(inputs.dims):
        own = inputs.types[at] if at < len(inputs.types) else (assumed if dims else "")
        strides = inputs.strides[at] if at < len(inputs.strides) else ()
        operands.append(Tensor(_flat(dims), own, _flat(strides)) if _is_tensor(dims, own) else None)
    return operands


def tensor_list(inputs: Inputs, at: int, assumed: str = "c10::BFloat16") -> list[Tensor]:
    """The tensors of an input that is a list of them; none where their sizes were not recorded."""
    dims = inputs.dims[at] if at < len(inputs.dims) else ()
    strides = inputs.strides[at] if at < len(inputs.strides) else ()
    if not dims or isinstance(dims[0], int):
        return []
    per = [_flat(stride) for stride in strides if not isinstance(stride, int)]
    return [
        Tensor(_flat(own_dims), assumed, per[i] if i < len(per) else ())
        for i, own_dims in enumerate(dims)
        if not isinstance(own_dims, int) and _is_possible(own_dims)
    ]


def value(inputs: Inputs, at: int) -> str:
    """An input's value as it was recorded, "" where it was not."""
    return inputs.values[at] if 0 <= at < len(inputs.values) else ""


def whole_numbers(text: str) -> list[int]:
    """Returns the whole numbers of a recorded value such as "[0, -1]"; those that cannot be read are left out."""
    numbers: list[int] = []
    for word in text.strip("[]").split(",", _MAX_LISTED)[:_MAX_LISTED]:
        with suppress(NumberError):
            numbers.append(whole_number(word, least=-MAX_WHOLE))
    return numbers


def _is_tensor(dims: Dims, type_: str) -> bool:
    return type_ in ELEMENT_BYTES and _is_possible(dims)


def _is_possible(dims: Dims) -> bool:
    """Returns whether a tensor can have these sizes."""
    return all(isinstance(dim, int) and dim >= 0 for dim in dims) and prod(_flat(dims)) <= _MAX_ELEMENTS


def _flat(dims: Dims) -> tuple[int, ...]:
    return tuple(dim for dim in dims if isinstance(dim, int))
