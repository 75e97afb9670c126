"""Turns rows into works: what each layer of a stage, its embedding and its head do for a microbatch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from foretrace.inputs.aicb.calls import CallReader, PassName
from foretrace.inputs.aicb.format import Pass, WorkloadRow
from foretrace.inputs.aicb.microbatches import Microbatch
from foretrace.inputs.option_values import Overlap
from foretrace.program.columns import Phase, label
from foretrace.program.program import Source
from foretrace.schedules import Schedule
from foretrace.step.spec import Call, ChunkSpec, Compute, Concurrent, Item, Unit, Work

NS = 1e-9
COMPUTE = Source("compute as written in the file")


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk is: one of `parts` equal parts of a stage's layers, or `count` layers from there on.

    `first` and `last` say whether it has the embedding and the head.
    """

    part: int
    parts: int
    count: int | None
    first: bool
    last: bool

    def layers(self, own: int, listed: int) -> range:
        """Returns its layers by number, for a microbatch that has `own` of the `listed` layers of a stage.

        More layers than there are repeat the list. A microbatch that is cut short has its share of them.
        """
        begin = self.part * own // self.parts
        count = (self.part + 1) * own // self.parts - begin
        return range(begin, begin + (count if self.count is None else max(self.count * own // listed, 1)))


class Chunks:
    """Makes the chunks of stages from a list of microbatches, most of which do the same as the first.

    Layers that do the same share one work, and chunks that do the same are one object.
    """

    def __init__(
        self, microbatches: Sequence[Microbatch], calls: CallReader, schedule: Schedule, overlap: frozenset[Overlap]
    ) -> None:
        self._microbatches, self._calls, self._overlap = microbatches, calls, overlap
        self._splits = schedule.splits_backward
        embedding = _first_equal([microbatch.embedding for microbatch in microbatches])
        body = _first_equal([[row for layer in microbatch.layers for row in layer] for microbatch in microbatches])
        head = _first_equal([microbatch.head for microbatch in microbatches])
        self._layers = {number: _first_equal(microbatches[number].layers) for number in set(body)}
        listed = list(zip(embedding, body, head, strict=True))
        self._distinct = list(dict.fromkeys(listed))
        number_of = {variant: number for number, variant in enumerate(self._distinct)}
        self.variants = tuple(number_of[variant] for variant in listed)
        self._works: dict[object, Work] = {}
        self._chunks: dict[tuple[object, ...], ChunkSpec] = {}

    def chunk(self, place: ChunkPlace) -> tuple[ChunkSpec, ...]:
        """Returns the chunk at a place for each variant of a microbatch."""
        return tuple([self._chunk(variant, place) for variant in self._distinct])

    def _chunk(self, variant: tuple[int, int, int], place: ChunkPlace) -> ChunkSpec:
        embedding, body, head = variant
        first, last = place.first, place.last
        chunk_key = (embedding if first else -1, body, head if last else -1, place)
        if chunk_key not in self._chunks:
            layers = self._microbatches[body].layers
            numbers = place.layers(len(layers), max(len(microbatch.layers) for microbatch in self._microbatches))
            listed: list[tuple[int, object, tuple[WorkloadRow, ...]]] = [
                (-1, ("embedding", embedding), self._microbatches[embedding].embedding if first else ()),
                *(
                    (number, (body, self._layers[body][number % len(layers)]), layers[number % len(layers)])
                    for number in numbers
                ),
                (-1, ("head", head), self._microbatches[head].head if last else ()),
            ]
            listed = [entry for entry in listed if entry[2]]
            end = len(listed) - 1
            units = [
                Unit(self._work(key, rows, first=at == 0, last=at == end), layer)
                for at, (layer, key, rows) in enumerate(listed)
            ]
            self._chunks[chunk_key] = ChunkSpec(tuple(units))
        return self._chunks[chunk_key]

    def _work(self, key: object, rows: tuple[WorkloadRow, ...], *, first: bool, last: bool) -> Work:
        """Returns the work of rows. `first` and `last` say whether they begin or end their chunk."""
        # Collectives of the first and the last row of a chunk do not run next to computation.
        outer = {0} if first else set()
        outer |= {len(rows) - 1} if last else set()
        work_key = (key, first, last) if Overlap.TP in self._overlap else key
        if work_key not in self._works:
            forward: list[Item] = []
            backward: list[list[Item]] = []
            for at, row in enumerate(rows):
                inner = at not in outer
                forward += self._items(row, "forward", inner)
                backward.append(self._items(row, "input_grad", inner) + self._items(row, "weight_grad", inner))
            items = tuple(item for both in reversed(backward) for item in both)
            self._works[work_key] = Work(rows[0].name, tuple(forward), (), items)
        return self._works[work_key]

    def _items(self, row: WorkloadRow, which: PassName, inner: bool) -> list[Item]:
        """Returns computation, then the collective over its result."""
        part: Pass = getattr(row, which)
        call, phase = self._calls.read(part, which, row.line), self._phase(which)
        items: list[Item] = []
        if part.compute_ns > 0 or call is None:
            items.append(Compute(row.name, phase, seconds=part.compute_ns * NS, source=COMPUTE))
        if call is not None:
            concurrent = self._concurrent(call, which, inner and bool(items))
            name = f"{row.name} {label(call.collective)}"
            items.append(replace(call, name=name, phase=phase, concurrent=concurrent))
        return items

    def _phase(self, which: PassName) -> Phase:
        if which == "forward":
            return Phase.FORWARD
        if not self._splits:
            return Phase.BACKWARD
        return Phase.BACKWARD_INPUT if which == "input_grad" else Phase.BACKWARD_WEIGHT

    def _concurrent(self, call: Call, which: PassName, follows_compute: bool) -> Concurrent | None:
        if which == "weight_grad" and call.axis in ("dp", "edp") and Overlap.GRAD in self._overlap:
            return "step"
        return "previous" if follows_compute and call.axis == "tp" and Overlap.TP in self._overlap else None


def _first_equal(parts: Iterable[Sequence[WorkloadRow]]) -> list[int]:
    """Returns for each list of rows the number of the first that does the same."""
    known: dict[object, int] = {}
    numbers = []
    for number, rows in enumerate(parts):
        facts = tuple([(row.name, row.forward, row.input_grad, row.weight_grad) for row in rows])
        numbers.append(known.setdefault(facts, number))
    return numbers
