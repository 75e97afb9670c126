"""Reads the text that PyTorch writes into an NVTX range: an op, its sequence number, and the sizes of its inputs.

`emit_nvtx` and `nsys profile --pytorch` write it. The form is that of PyTorch's `getNvtxStr`
(torch/csrc/profiler/util.cpp): "aten::mm, seq = 7, op_id = 12, sizes = [[4, 8], [8, 2]], input_op_ids = [(11, 0)]",
each part where it is known.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from foretrace.inputs.profiler_trace.format.records import Dims, Inputs

_PARTS: Final = re.compile(
    r"(?P<name>.*?)(?:, seq = (?P<seq>\d+))?(?:, op_id = (?P<op>\d+))?"
    r"(?:, sizes = (?P<sizes>\[.*?\]))?(?:, input_op_ids = .*)?",
    re.DOTALL,
)
_OP: Final = re.compile(r"[A-Za-z_]\w*::\w")


class NvtxRange(NamedTuple):
    """The parts of a range's text; -1 and None where it states none."""

    name: str
    is_op: bool
    sequence: int = -1
    inputs: Inputs | None = None


def read_nvtx_text(text: str) -> NvtxRange:
    """Returns the op a range stands for, or the user's annotation that it is."""
    if not (_OP.match(text) or ", seq = " in text or ", op_id = " in text or ", sizes = " in text):
        return NvtxRange(text, is_op=False)
    match = _PARTS.fullmatch(text)
    if match is None:
        return NvtxRange(text, is_op=True)
    sequence, sizes = match["seq"], match["sizes"]
    dims = None if sizes is None else _dims(sizes)
    return NvtxRange(
        match["name"], True, -1 if sequence is None else int(sequence), None if dims is None else Inputs(dims)
    )


def _dims(text: str) -> tuple[Dims, ...] | None:
    """Returns the sizes of all inputs; None where they cannot be read."""
    try:
        sizes = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(sizes, list):
        return None
    nested = [_nested(size) for size in sizes]
    return (
        tuple(dims for dims in nested if isinstance(dims, tuple))
        if all(isinstance(dims, tuple) for dims in nested)
        else None
    )


def _nested(value: object) -> Dims | int | None:
    """Returns lists of whole numbers, however deep, as tuples."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, list):
        return None
    inner = [_nested(element) for element in value]
    known = [element for element in inner if element is not None]
    return tuple(known) if len(known) == len(inner) else None
