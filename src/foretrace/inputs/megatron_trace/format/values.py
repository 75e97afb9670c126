"""Reads single words of a rank trace as values; a ValueError tells what is wrong with a word."""

from __future__ import annotations

import math
import re
from typing import Final

from foretrace.basics.errors import did_you_mean
from foretrace.basics.numbers import MAX_WHOLE, NumberError, real_number, whole_number

MAX_MS: Final = 1e15
"""The largest time: 31,000 years in milliseconds."""

MAX_DURATION_MS: Final = 1e9
"""The longest op: 12 days in milliseconds."""

DTYPE_BYTES: Final = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "short": 2,
    "uint32": 4,
    "int32": 4,
    "int": 4,
    "uint64": 8,
    "int64": 8,
    "long": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "float32": 4,
    "float": 4,
    "float64": 8,
    "double": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element, by PyTorch's names."""

COMMS: Final = {
    "allreduce": "allreduce",
    "all_reduce": "allreduce",
    "allgather": "allgather",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
}
"""The collectives by the spellings that tracers use."""

_MAX_DIMENSIONS = 64
_MAX_SHAPE = 2000
_SHAPE = re.compile(r"(?:torch\.Size\()?\[((?:(?:0|[1-9][0-9]*)(?:, ?(?:0|[1-9][0-9]*))*,?)?)\]\)?")
"""A size has no leading 0: `[1,048,576]` is a number with separators, not three sizes."""


def milliseconds(word: str) -> float:
    """Returns a time."""
    return real_number(word, most=MAX_MS)


def duration(word: str) -> float:
    """Returns a duration."""
    return real_number(word, most=MAX_DURATION_MS)


def shape(word: str) -> tuple[int, ...]:
    """Returns the sizes of a tensor: `[4096, 1, 5120]`."""
    match = _SHAPE.fullmatch(word) if len(word) <= _MAX_SHAPE else None
    if match is None or word.startswith("t") != word.endswith(")"):
        raise ValueError("is not a shape such as [4096, 1, 5120]")
    sizes = tuple(whole_number(size.strip()) for size in match[1].split(",") if size)
    if len(sizes) > _MAX_DIMENSIONS or math.prod(sizes) > MAX_WHOLE:
        raise NumberError("out-of-range", "is too large: no tensor has 2^63 elements")
    return sizes


def dtype(word: str) -> str:
    """The type of a tensor's elements, as written: `torch.bfloat16`."""
    name = word.removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ValueError(f"is not a known type{did_you_mean(name, DTYPE_BYTES)}")
    return word


def dtype_bytes(word: str) -> int:
    """Bytes of one element of a type that `dtype` knows."""
    return DTYPE_BYTES[word.removeprefix("torch.")]


def comm(word: str) -> str:
    """A collective in the one spelling that records use."""
    known = known_comm(word)
    if known is None:
        raise ValueError(f"is not a known collective{did_you_mean(word, COMMS)}")
    return known


def known_comm(word: str) -> str | None:
    """A collective in the one spelling that records use; None where it is not known."""
    return COMMS.get(word) or COMMS.get(word.lower())
