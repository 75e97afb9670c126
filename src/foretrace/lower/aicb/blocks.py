"""The ops of one action: a stage's rows, forwards or backwards, as a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretrace.formats.aicb import Pass, Row
from foretrace.lower.aicb.choices import Overlap
from foretrace.lower.aicb.groups import Call, Calls, PassName
from foretrace.lower.aicb.microbatches import Microbatch
from foretrace.program.block import BlockBuilder, OpRef
from foretrace.program.build import ProgramBuilder
from foretrace.program.columns import label
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
    """The rows that a chunk of a stage runs for a microbatch: its layers by number, with the ends it has."""

    embedding: tuple[Row, ...]
    layers: tuple[tuple[int, tuple[Row, ...]], ...]
    head: tuple[Row, ...]

    def rows(self) -> list[tuple[int, int, Row]]:
        """(layer, layer it counts to, row) in the order of the forward; ends have no layer of their own (-1), but count
        to the one next to them."""
        first, last = (self.layers[0][0], self.layers[-1][0]) if self.layers else (0, 0)
        body = [(number, number, row) for number, rows in self.layers for row in rows]
        before, after = [(-1, first, row) for row in self.embedding], [(-1, last, row) for row in self.head]
        return [*before, *body, *after]


class Stretches:
    """The stretches of a list of microbatches; most microbatches do the same as the first."""

    def __init__(self, microbatches: Sequence[Microbatch]) -> None:
        self._microbatches = microbatches
        self._embedding = _alike([one.embedding for one in microbatches])
        self._layers = _alike([[row for layer in one.layers for row in layer] for one in microbatches])
        self._head = _alike([one.head for one in microbatches])

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
    """Ops of a block that others wait for: the first and last of each layer, and gradient collectives within it."""

    first: dict[int, OpRef] = field(default_factory=dict)
    last: dict[int, OpRef] = field(default_factory=dict)
    gradients: list[OpRef] = field(default_factory=list)


class BlockWriter:
    """Writes actions as blocks, and remembers which of their ops others wait for."""

    def __init__(self, build: ProgramBuilder, calls: Calls, overlap: frozenset[Overlap]) -> None:
        self.marks: dict[int, Marks] = {}
        self.communicators: dict[str, Communicator] = {a: build.communicator(a) for a in ("tp", "dp", "ep", "edp")}
        self.size = {axis: build.mesh.size(axis) for axis in self.communicators}
        self.overlap = overlap
        self.calls = calls
        self._build = build

    def write(self, kind: ActionKind, chunk: int, rows: Stretch) -> BlockBuilder:
        """A new block: an action over these rows."""
        block = self._build.block(label(kind))
        marks = self.marks[block.number] = Marks()
        passes, listed = _PASSES_OF[kind], rows.rows()
        if kind != ActionKind.FORWARD:
            listed.reverse()
        writer = _RowWriter(self, block, label(kind), chunk, marks)
        for number, (layer, counts_to, row) in enumerate(listed):
            inner = 0 < number < len(listed) - 1
            for which in passes:
                writer.write(row, which, layer, counts_to, beside=inner and Overlap.TP in self.overlap)
        # What comes next needs what was computed, not the gradients that are still being reduced.
        block.port("out", writer.previous[0])
        return block


class _RowWriter:
    """Appends rows to one block."""

    def __init__(self, owner: BlockWriter, block: BlockBuilder, phase: str, chunk: int, marks: Marks) -> None:
        self.owner, self.block, self.marks = owner, block, marks
        self.facts: dict[str, Any] = {"phase": phase, "chunk": chunk}
        self.previous: list[OpRef] = []
        """The last op of the compute lane."""
        self.beside: list[OpRef] = []
        """Collectives that run beside it, for which the next row waits."""

    def write(self, row: Row, which: PassName, layer: int, counts_to: int, beside: bool) -> None:
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
                self.marks.gradients.append(op)
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
