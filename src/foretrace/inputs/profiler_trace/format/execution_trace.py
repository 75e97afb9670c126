"""PyTorch's execution traces (`ExecutionTraceObserver`): the ops of one process, their inputs and outputs, no times.

Versions 1.0.x write a node's facts as fields, 1.1.x (MLCommons Chakra's form) as a list of attributes; either may be
packed with gzip. A tensor is [id, storage, offset, elements, bytes per element, device].
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from foretrace.basics.errors import InputError
from foretrace.basics.files import AnyFile, read_whole
from foretrace.inputs.profiler_trace.format.arguments import listed, strided
from foretrace.inputs.profiler_trace.format.records import CollectiveArguments, Dims, Inputs
from foretrace.inputs.profiler_trace.format.text import head_of

_HEAD_BYTES: Final = 4096
_SCHEMA: Final = re.compile(rb'"schema"\s*:\s*"\d+\.\d+')
_BESIDE: Final = (b'"pid"', b'"nodes"')
_HINT: Final = "expected what torch.profiler.ExecutionTraceObserver writes: {schema, pid, nodes: [...]}"
_COMMUNICATION: Final = "record_param_comms"
_SCALARS: Final = frozenset({"Int", "Double", "Bool", "ComplexDouble", "SymInt"})


class ExecutionTensor(NamedTuple):
    """A tensor as a node names it."""

    number: int
    storage: int
    elements: int
    element_bytes: int
    device: str


@dataclass(frozen=True, slots=True)
class ExecutionNode:
    """An op or a range: `function` is PyTorch's number of it (rf_id), which a Kineto trace of the same run has too."""

    number: int
    name: str
    parent: int
    function: int
    sequence: int
    thread: int
    schema: str
    inputs: Inputs
    reads: tuple[ExecutionTensor, ...]
    writes: tuple[ExecutionTensor, ...]
    call: CollectiveArguments | None = None

    @property
    def in_place(self) -> bool:
        """Whether it changes one of its inputs."""
        return "!)" in self.schema


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """One file: nodes in the order in which they began."""

    path: str
    schema: str
    process: int
    nodes: tuple[ExecutionNode, ...]
    groups: Mapping[str, tuple[int, ...]]
    """Ranks of process groups by name; () where only their number is written."""

    def leaves(self) -> list[ExecutionNode]:
        """Returns the ops that call no other: those that really run."""
        parents = {node.parent for node in self.nodes}
        return [node for node in self.nodes if node.number not in parents and (node.reads or node.writes)]


def looks_like_execution_trace(path: AnyFile) -> bool:
    """Returns whether a file begins as an execution trace does, packed or not; an `InputFile` stays open."""
    return begins_as_execution_trace(head_of(path, _HEAD_BYTES))


def begins_as_execution_trace(head: bytes) -> bool:
    """Returns whether these bytes, unpacked, begin an execution trace."""
    return _SCHEMA.search(head[:_HEAD_BYTES]) is not None and any(word in head for word in _BESIDE)


def read_execution_trace(path: AnyFile) -> ExecutionTrace:
    """Reads an execution trace of any version."""
    where = str(path)
    data = _document(path)
    nodes, schema = data.get("nodes"), data.get("schema")
    if not isinstance(nodes, list) or not isinstance(schema, str):
        raise InputError("wrong-format", "this is no execution trace", where=where, hint=_HINT)
    parsed: list[ExecutionNode] = []
    groups: dict[str, tuple[int, ...]] = {}
    for at, raw in enumerate(nodes):
        try:
            node = _node(raw)
            if "process_group:init" in node.name:
                groups |= _groups(raw)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InputError("bad-value", f"nodes[{at}] cannot be read: {error!r}", where=where, hint=_HINT) from None
        parsed.append(node)
    parsed.sort(key=lambda node: node.number)
    process = data.get("pid")
    return ExecutionTrace(where, schema, process if isinstance(process, int) else -1, tuple(parsed), groups)


def _document(path: AnyFile) -> dict[str, Any]:
    data = read_whole(path, "execution trace", _HINT)
    try:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            "bad-compression", f"the packed file is cut short or damaged: {error}", where=str(path)
        ) from None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "bad-syntax", f"the JSON ends early or is damaged: {error}", where=str(path), hint=_HINT
        ) from None
    if not isinstance(document, dict):
        raise InputError("wrong-format", "this is no execution trace", where=str(path), hint=_HINT)
    return document


def _node(raw: Mapping[str, Any]) -> ExecutionNode:
    """Reads a node of either form."""
    if "attrs" in raw:
        facts = {attribute["name"]: attribute["value"] for attribute in raw["attrs"]}
        inputs, outputs = raw["inputs"], raw["outputs"]
        parent = raw["ctrl_deps"]
    else:
        facts, parent = dict(raw), raw["parent"]
        inputs, outputs = (
            {"values": raw[side + "s"], "shapes": raw[f"{side}_shapes"], "types": raw[f"{side}_types"]}
            for side in ("input", "output")
        )
    name = str(raw["name"])
    return ExecutionNode(
        number=int(raw["id"]),
        name=name,
        parent=int(parent),
        function=int(facts.get("rf_id", -1)),
        sequence=int(facts.get("seq_id", -1)),
        thread=int(facts.get("tid", -1)),
        schema=str(facts.get("op_schema", "")),
        inputs=_inputs(inputs),
        reads=tuple(_tensors(inputs["values"], inputs["types"])),
        writes=tuple(_tensors(outputs["values"], outputs["types"])),
        call=_call(facts, inputs) if name == _COMMUNICATION else None,
    )


def _inputs(side: Mapping[str, Any]) -> Inputs:
    """Returns inputs in the words of Kineto's "Input type", so that both are read in the same way."""
    types = [_kineto_type(str(word)) for word in side["types"]]
    tensors = ["Tensor(" in str(word) for word in side["types"]]
    strides = side.get("strides", ())
    return Inputs(
        dims=tuple(_dims(shape) if tensor else () for shape, tensor in zip(side["shapes"], tensors, strict=True)),
        types=tuple(types),
        values=tuple("" if tensor else _text(value) for value, tensor in zip(side["values"], tensors, strict=True)),
        strides=tuple(_dims(stride) if tensor else () for stride, tensor in zip(strides, tensors, strict=False)),
    )


def _kineto_type(word: str) -> str:
    if word.startswith("Tensor("):
        inner = word[len("Tensor(") : -1]
        return "" if inner.startswith("nullptr") else {"long": "long int"}.get(inner, inner)
    if word.startswith("GenericList["):
        return "TensorList" if "Tensor(" in word else "ScalarList"
    return "Scalar" if word in _SCALARS else ""


def _dims(shape: Any) -> Dims:
    return tuple(_dims(size) if isinstance(size, list) else int(size) for size in shape)


def _text(value: Any) -> str:
    if value == "<None>" or value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    return json.dumps(value) if isinstance(value, list) else str(value)


def _tensors(values: Sequence[Any], types: Sequence[Any]) -> Iterator[ExecutionTensor]:
    for value, word in zip(values, types, strict=True):
        kind = str(word)
        if kind.startswith("Tensor(") and isinstance(value, list):
            yield _tensor(value)
        elif "Tensor(" in kind and isinstance(value, list):
            inner = [element for element in value if isinstance(element, list) and len(element) == 6]
            yield from map(_tensor, inner)


def _tensor(value: Sequence[Any]) -> ExecutionTensor:
    return ExecutionTensor(int(value[0]), int(value[1]), int(value[3]), int(value[4]), str(value[5]))


def _call(facts: Mapping[str, Any], inputs: Mapping[str, Any]) -> CollectiveArguments | None:
    """Reads a communication from its attributes.

    Versions without attributes state it in the inputs: the first text that is not the name of a group.
    """
    if "collective_name" in facts:
        start, stride, size = (
            int(facts.get(name, -1)) for name in ("global_rank_start", "global_rank_stride", "pg_size")
        )
        return CollectiveArguments(
            name=str(facts["collective_name"]),
            in_elements=int(facts.get("in_msg_nelems", -1)),
            out_elements=int(facts.get("out_msg_nelems", -1)),
            dtype=str(facts.get("dtype", "")),
            group=str(facts.get("pg_name", "")),
            group_size=size,
            ranks=strided(start, stride, size),
            in_split=listed(facts.get("in_split_size"))[0],
            out_split=listed(facts.get("out_split_size"))[0],
            description=str(facts.get("pg_desc", "")),
        )
    words = [value for value, kind in zip(inputs["values"], inputs["types"], strict=True) if kind == "String"]
    if not words:
        return None
    elements = sum(tensor.elements for tensor in _tensors(inputs["values"], inputs["types"]))
    kinds = re.findall(r"Tensor\(([^)]*)\)", " ".join(map(str, inputs["types"])))
    return CollectiveArguments(name=str(words[-1]), in_elements=elements, dtype=kinds[0] if kinds else "")


def _groups(raw: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns the process groups that the process had, from the node that lists them."""
    values = raw["inputs"]["values"] if isinstance(raw["inputs"], dict) else raw["inputs"]
    listed = json.loads(values[0]) if values and isinstance(values[0], str) else []
    return {str(group.get("pg_name", "")): tuple(int(rank) for rank in group.get("ranks", ())) for group in listed}
