"""PyTorch's execution traces (`ExecutionTraceObserver`): the ops of one process, their inputs and outputs, no times.

Versions 1.0.x write a node's facts as fields, 1.1.x (MLCommons Chakra's form) as a list of attributes; either may be
packed with gzip. A tensor is [id, storage, offset, elements, bytes per element, device].
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from foretrace.basics.errors import InputError
from foretrace.basics.files import AnyFile, read_whole, unpack
from foretrace.basics.limits import MAX_GPUS
from foretrace.basics.numbers import NumberError, whole_number
from foretrace.basics.records import read_json
from foretrace.inputs.profiler_trace.format.arguments import count, listed, nested_sizes, strided
from foretrace.inputs.profiler_trace.format.records import CollectiveArguments, Inputs
from foretrace.inputs.profiler_trace.format.text import head_of

_HEAD_BYTES: Final = 4096
_SCHEMA: Final = re.compile(rb'"schema"\s*:\s*"\d+\.\d+')
_BESIDE: Final = (b'"pid"', b'"nodes"')
_HINT: Final = "expected what torch.profiler.ExecutionTraceObserver writes: {schema, pid, nodes: [...]}"
_COMMUNICATION: Final = "record_param_comms"
_MAX_TEXT_BYTES: Final = 256 << 20
"""Bytes of one execution trace, unpacked."""
_MIN_WHOLE: Final = -(1 << 63)
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
        raise InputError("wrong-format", "this is not an execution trace", where=where, hint=_HINT)
    parsed: list[ExecutionNode] = []
    groups: dict[str, tuple[int, ...]] = {}
    for at, raw in enumerate(nodes):
        try:
            node = _node(raw)
            if "process_group:init" in node.name:
                groups |= _groups(raw, where)
        except KeyError as error:
            raise InputError("missing-field", f"nodes[{at}] has no {error}", where=where, hint=_HINT) from None
        except NumberError as error:
            text = f"nodes[{at}] has a number that {error.problem}"
            raise InputError(error.code, text, where=where, hint=_HINT) from None
        except (TypeError, ValueError, IndexError, AttributeError):
            text = f"nodes[{at}] does not have the form of a node"
            raise InputError("bad-value", text, where=where, hint=_HINT) from None
        parsed.append(node)
    parsed.sort(key=lambda node: node.number)
    process = data.get("pid")
    return ExecutionTrace(where, schema, process if isinstance(process, int) else -1, tuple(parsed), groups)


def _document(path: AnyFile) -> dict[str, Any]:
    where = str(path)
    data = unpack(read_whole(path, "execution trace", _HINT), "execution trace", where, _MAX_TEXT_BYTES)
    document = read_json(data, where, _HINT)
    if not isinstance(document, dict):
        raise InputError("wrong-format", "this is not an execution trace", where=where, hint=_HINT)
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
        number=_whole(raw["id"]),
        name=name,
        parent=_whole(parent),
        function=_whole(facts.get("rf_id", -1)),
        sequence=_whole(facts.get("seq_id", -1)),
        thread=_whole(facts.get("tid", -1)),
        schema=str(facts.get("op_schema", "")),
        inputs=_inputs(inputs),
        reads=tuple(_tensors(inputs["values"], inputs["types"])),
        writes=tuple(_tensors(outputs["values"], outputs["types"])),
        call=_call(facts, inputs) if name == _COMMUNICATION else None,
    )


def _whole(value: object) -> int:
    """Returns a whole number of 64 bits; raises NumberError for anything else. Ids of threads may be above 2^63."""
    return whole_number(value, least=_MIN_WHOLE, most=-2 * _MIN_WHOLE)


def _inputs(side: Mapping[str, Any]) -> Inputs:
    """Returns inputs in the words of Kineto's "Input type", so that both are read in the same way."""
    types = [_kineto_type(str(word)) for word in side["types"]]
    tensors = ["Tensor(" in str(word) for word in side["types"]]
    strides = side.get("strides", ())
    return Inputs(
        dims=tuple(
            nested_sizes(shape) if tensor else () for shape, tensor in zip(side["shapes"], tensors, strict=True)
        ),
        types=tuple(types),
        values=tuple("" if tensor else _text(value) for value, tensor in zip(side["values"], tensors, strict=True)),
        strides=tuple(nested_sizes(stride) if tensor else () for stride, tensor in zip(strides, tensors, strict=False)),
    )


def _kineto_type(word: str) -> str:
    if word.startswith("Tensor("):
        inner = word[len("Tensor(") : -1]
        return "" if inner.startswith("nullptr") else {"long": "long int"}.get(inner, inner)
    if word.startswith("GenericList["):
        return "TensorList" if "Tensor(" in word else "ScalarList"
    return "Scalar" if word in _SCALARS else ""


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
    number, storage, elements, size = (_whole(value[at]) for at in (0, 1, 3, 4))
    return ExecutionTensor(number, storage, max(elements, 0), max(size, 0), str(value[5]))


def _call(facts: Mapping[str, Any], inputs: Mapping[str, Any]) -> CollectiveArguments | None:
    """Reads a communication from its attributes.

    Versions without attributes state it in the inputs: the first text that is not the name of a group.
    """
    if "collective_name" in facts:
        start, stride, size = (
            count(facts.get(name, -1)) for name in ("global_rank_start", "global_rank_stride", "pg_size")
        )
        return CollectiveArguments(
            name=str(facts["collective_name"]),
            in_elements=count(facts.get("in_msg_nelems", -1)),
            out_elements=count(facts.get("out_msg_nelems", -1)),
            dtype=str(facts.get("dtype", "")),
            group=str(facts.get("pg_name", "")),
            group_size=size if size <= MAX_GPUS else -1,
            ranks=strided(start, stride, size),
            in_split=listed(facts.get("in_split_size"))[0],
            out_split=listed(facts.get("out_split_size"))[0],
            description=str(facts.get("pg_desc", "")),
        )
    words = [value for value, kind in zip(inputs["values"], inputs["types"], strict=True) if kind == "String"]
    if not words:
        return None
    elements = sum(tensor.elements for tensor in _tensors(inputs["values"], inputs["types"]))
    kinds = re.findall(r"Tensor\(([^()]*)\)", " ".join(map(str, inputs["types"])))
    return CollectiveArguments(name=str(words[-1]), in_elements=elements, dtype=kinds[0] if kinds else "")


def _groups(raw: Mapping[str, Any], where: str) -> dict[str, tuple[int, ...]]:
    """Returns the process groups that the process had, from the node that lists them."""
    values = raw["inputs"]["values"] if isinstance(raw["inputs"], dict) else raw["inputs"]
    groups = read_json(values[0], f"{where}: process groups") if values and isinstance(values[0], str) else []
    return {str(group.get("pg_name", "")): listed(list(group.get("ranks") or ()))[0] for group in groups}
