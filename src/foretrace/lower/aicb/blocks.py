"""The ops of one action: a stage's rows, forwards or backwards, as a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretrace.formats.aicb import Pass, Row
from foretrace.lower.aicb.groups import Call, Calls, PassName
from foretrace.lower.aicb.microbatches import Microbatch
from foretrace.lower.options import Overlap
from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import Kind, label
from foretrace.program.program import Communicator, Source
from foretrace.schedules import ActionKind

NS = 1e-9
COMPUTE = Source("compute as written in the file")

_PASSES_OF: dict[ActionKind, tuple[PassName, ...]] = {
    ActionKind.FORWARD: ("forward",),
    ActionKind.BACKWARD: ("input_grad", "weight_grad"),
    ActionKind.BACKWARD_INPUT: ("input_grad",),
    ActionKind.BACKWARD_WEIGHT: ("weight_grad",),
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """The rows that a chunk of a stage runs for a microbatch: its layers by number, with the ends it has. `alike` is
    equal for layers that do the same."""

    embedding: tuple[Row, ...]
    layers: tuple[tuple[int, tuple[Row, ...]], ...]
    head: tuple[Row, ...]
    alike: tuple[object, ...]

    def parts(self) -> list[tuple[int, int, tuple[Row, ...], object]]:
        """(layer, layer it counts to, rows, what it is like) in the order of the forward; ends have no layer of their
        own (-1), but count to the one next to them."""
        first, last = (self.layers[0][0], self.layers[-1][0]) if self.layers else (0, 0)
        body = [(number, number, rows, like) for (number, rows), like in zip(self.layers, self.alike, strict=True)]
        return [(-1, first, self.embedding, None), *body, (-1, last, self.head, None)]


class Stretches:
    """The stretches of a list of microbatches; most microbatches do the same as the first."""

    def __init__(self, microbatches: Sequence[Microbatch]) -> None:
        self._microbatches = microbatches
        self._embedding = _alike([one.embedding for one in microbatches])
        self._layers = _alike([[row for layer in one.layers for row in layer] for one in microbatches])
        self._head = _alike([one.head for one in microbatches])
        self._like = {body: _alike(microbatches[body].layers) for body in set(self._layers)}

    def key(self, microbatch: int, first: bool, last: bool) -> tuple[int, int, int]:
        """Equal for microbatches that do the same between the ends they have; each number is of a microbatch."""
        embedding = self._embedding[microbatch] if first else -1
        return embedding, self._layers[microbatch], self._head[microbatch] if last else -1

    def stretch(self, key: tuple[int, int, int], part: int, parts: int) -> Stretch:
        """One of equal parts of a microbatch's layers, with the ends that the key has."""
        embedding, body, head = key
        layers = self._microbatches[body].layers
        chosen = range(part * len(layers) // parts, (part + 1) * len(layers) // parts)
        return Stretch(
            self._microbatches[embedding].embedding if embedding >= 0 else (),
            tuple((number, layers[number]) for number in chosen),
            self._microbatches[head].head if head >= 0 else (),
            tuple((body, self._like[body][number]) for number in chosen),
        )


def _alike(parts: Iterable[Sequence[Row]]) -> list[int]:
    """For each list of rows the number of the first that does the same."""
    known: list[tuple[int, list[object]]] = []
    numbers = []
    for number, rows in enumerate(parts):
        facts = [(row.name, row.forward, row.input_grad, row.weight_grad) for row in rows]
        same = next((first for first, others in known if others == facts), None)
        if same is None:
            known.append((number, list(facts)))
        numbers.append(number if same is None else same)
    return numbers


@dataclass(slots=True)
class Marks:
    """Ops of a block that others wait for: the first and last of each layer, and the last gradient collective of each
    axis that runs beside them."""

    first: dict[int, OpRef] = field(default_factory=dict)
    last: dict[int, OpRef] = field(default_factory=dict)
    gradients: dict[str, OpRef] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Written:
    """Where a layer is written: its ops, the last of its compute lane, and its gradient collectives by axis."""

    block: BlockBuilder
    ops: range
    out: int
    gradients: dict[str, int]


class BlockWriter:
    """Writes actions as blocks, and remembers which of their ops others wait for. Layers that do the same are written
    once and repeated."""

    def __init__(self, build: ProgramBuilder, calls: Calls, overlap: frozenset[Overlap]) -> None:
        self.marks: dict[int, Marks] = {}
        self.communicators: dict[str, Communicator] = {a: build.communicator(a) for a in ("tp", "dp", "ep", "edp")}
        self.size = {axis: build.mesh.size(axis) for axis in self.communicators}
        self.overlap = overlap
        self.calls = calls
        self._build = build
        self._layers: dict[tuple[object, ...], _Written] = {}

    def write(self, kind: ActionKind, chunk: int, rows: Stretch) -> BlockBuilder:
        """A new block: an action over these rows."""
        block = self._build.block(label(kind))
        marks = self.marks[block.number] = Marks()
        parts = rows.parts() if kind == ActionKind.FORWARD else rows.parts()[::-1]
        writer = _RowWriter(self, block, kind, chunk, marks)
        beside = Overlap.TP in self.overlap
        left = sum(len(listed) for _, _, listed, _ in parts)
        for layer, counts_to, listed, like in parts:
            known = self._layers.get((kind, chunk, like))
            if known is None or beside or not writer.repeat(known, layer):
                first = len(block.rows)
                for row in listed if kind == ActionKind.FORWARD else listed[::-1]:
                    left -= 1
                    inner = len(block.rows) > 0 and left > 0
                    writer.write(row, layer, counts_to, beside=beside and inner)
                self._remember((kind, chunk, like), writer, range(first, len(block.rows)))
            else:
                left -= len(listed)
        # What comes next needs what was computed, not the gradients that are still being reduced.
        block.port("out", writer.previous[0])
        return block

    def _remember(self, key: tuple[object, ...], writer: _RowWriter, ops: range) -> None:
        """Keeps a layer to be repeated, unless it waits for what comes before it."""
        block = writer.block
        if key[-1] is None or not ops or any(dst in ops and src not in ops for src, dst in block.deps):
            return
        gradients = {axis: ref.op for axis, ref in writer.marks.gradients.items() if ref.op in ops}
        self._layers[key] = _Written(block, ops, writer.previous[0].op, gradients)


class _RowWriter:
    """Appends rows to one block."""

    def __init__(self, owner: BlockWriter, block: BlockBuilder, kind: ActionKind, chunk: int, marks: Marks) -> None:
        self.owner, self.block, self.marks = owner, block, marks
        self.facts: dict[str, Any] = {"phase": label(kind), "chunk": chunk}
        self.passes = _PASSES_OF[kind]
        self.previous: list[OpRef] = []
        """The last op of the compute lane."""
        self.beside: list[OpRef] = []
        """Collectives that run beside it, for which the next row waits."""

    def repeat(self, known: _Written, layer: int) -> bool:
        """Appends a layer that is written elsewhere; not where it would begin the block with a collective."""
        if not self.block.rows and known.block.rows[known.ops.start]["kind"] != Kind.COMPUTE:
            return False
        first = self.block.repeat(known.block, known.ops, layer)
        moved, number = first - known.ops.start, self.block.number
        self.previous = [OpRef(number, known.out + moved)]
        self.marks.first.setdefault(layer, OpRef(number, first))
        self.marks.last[layer] = self.previous[0]
        self.marks.gradients |= {axis: OpRef(number, op + moved) for axis, op in known.gradients.items()}
        return True

    def write(self, row: Row, layer: int, counts_to: int, beside: bool) -> None:
        """All passes of a row."""
        for which in self.passes:
            self._write(row, which, layer, counts_to, beside)

    def _write(self, row: Row, which: PassName, layer: int, counts_to: int, beside: bool) -> None:
        """Computation, then the collective over its result; or both at once (`beside`)."""
        part: Pass = getattr(row, which)
        call = self.owner.calls.read(part, which, row.line)
        before = self.previous
        computed: list[OpRef] = []
        # A block begins with a computation, if need be of no time, for which what is beside it waits.
        if part.compute_ns > 0 or call is None or not before:
            op = self.block.compute(
                row.name, part.compute_ns * NS, layer=layer, source=COMPUTE, after=self.beside, **self.facts
            )
            computed, self.previous, waited = [op], [op], self.beside
            self.beside = []
        else:
            waited = []
        if call is not None:
            gradient = which == "weight_grad" and call.axis in ("dp", "edp")
            if gradient and Overlap.GRAD in self.owner.overlap:
                op = self._collective(row, call, layer, None, self.previous)
                self.marks.gradients[call.axis] = op
            elif beside and computed and call.axis == "tp":
                op = self._collective(row, call, layer, None, [*before, *waited])
                self.beside = [op]
            else:
                op = self._collective(row, call, layer, "compute", self.beside)
                self.previous, self.beside = [op], []
        self.marks.first.setdefault(counts_to, computed[0] if computed else op)
        self.marks.last[counts_to] = self.previous[0]

    def _collective(self, row: Row, call: Call, layer: int, lane: str | None, after: list[OpRef]) -> OpRef:
        return self.block.collective(
            call.collective,
            self.owner.communicators[call.axis],
            name=f"{row.name} {label(call.collective)}",
            lane=lane,
            bytes=call.bytes,
            layer=layer,
            after=after,
            **self.facts,
        )
