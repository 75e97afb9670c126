"""Reads the text that PyTorch writes into an NVTX range: an op, its sequence number, and the sizes of its inputs.

`emit_nvtx` and `nsys profile --pytorch` write it. The form is that of PyTorch's `getNvtxStr`
(torch/csrc/profiler/util.cpp): "aten::mm, seq = 7, op_id = 12, sizes = [[4, 8], [8, 2]], input_op_ids = [(11, 0)]",
each part where it is known.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from foretrace.basics.errors import InputError
from foretrace.basics.records import read_json
from foretrace.inputs.profiler_trace.format.arguments import count, nested_sizes
from foretrace.inputs.profiler_trace.format.records import Dims, Inputs

_OP: Final = re.compile(r"[A-Za-z_]\w{0,200}::\w")
_PARTS: Final = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")
"""Beginnings of the parts, in their order."""


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
    rest, parts = text, dict[str, str]()
    for begin in reversed(_PARTS):  # from the end, so that a name may hold commas
        if begin in rest:
            rest, _, parts[begin] = rest.rpartition(begin)
    sequence, sizes = parts.get(_PARTS[0]), parts.get(_PARTS[2])
    dims = None if sizes is None else _dims(sizes)
    return NvtxRange(rest, True, -1 if sequence is None else count(sequence), None if dims is None else Inputs(dims))


def _dims(text: str) -> tuple[Dims, ...] | None:
    """Returns the sizes of all inputs; None where they cannot be read."""
    try:
        sizes = read_json(text, "NVTX")
        if not isinstance(sizes, list) or not all(isinstance(size, list) for size in sizes):
            return None
        return tuple(nested_sizes(size) for size in sizes)
    except (InputError, ValueError):
        return None
