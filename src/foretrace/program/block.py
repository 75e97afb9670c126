"""Builds blocks: ops that are written once and run as often as roles place them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from foretrace.basics.arguments import checked_methods
from foretrace.basics.errors import InputError, shown_value
from foretrace.program.columns import UNPRICED, Category, Collective, Kind, LaneKind, Phase, label, word
from foretrace.program.program import Communicator, Lane, Resource, Source

AS_WRITTEN = "as written in the program"

Bytes = Mapping[str, int]

_LIMIT = 1 << 63
_MAX_REAL = 1 << 1000
_LIMITS = {"layer": 1 << 31, "chunk": 1 << 15, "communicator": 1 << 31, "position": 1 << 31}
"""Whole numbers that a program keeps in fewer than 64 bits."""


class OpRef(NamedTuple):
    """One op of one block."""

    block: int
    op: int


class PlacedOp(NamedTuple):
    """One op of one instance of one role: what another op of that role can wait for."""

    role: int
    instance: int
    op: int


After = OpRef | PlacedOp | Sequence[OpRef | PlacedOp] | None


class Tables:
    """The names, lanes, communicators, resources and sources that ops refer to, numbered as they come."""

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self.lanes: dict[str, Lane] = {}
        self.communicators: dict[Communicator, int] = {}
        self.resources: dict[str, Resource] = {}
        self.sources: dict[Source, int] = {Source(AS_WRITTEN): 0}
        self._lane_numbers: dict[str, int] = {}
        self._communicators_seen: dict[int, tuple[Communicator, int]] = {}

    def string(self, text: str) -> int:
        """The number of a name, a kernel or a dtype."""
        return self.strings.setdefault(text, len(self.strings))

    def lane(self, name: str, kind: LaneKind) -> int:
        """The number of a lane; one that computes is a compute lane, whatever else it carries."""
        known = self.lanes.get(name)
        if known is None or (kind == "compute" != known.kind):
            self.lanes[name] = Lane(name, kind)
        return self._lane_numbers.setdefault(name, len(self._lane_numbers))

    def communicator(self, communicator: Communicator) -> int:
        """The number of a communicator."""
        # Its groups may be many, and hashing them for every op slow.
        same, number = self._communicators_seen.get(id(communicator), (None, -1))
        if same is not communicator:
            if not isinstance(communicator, Communicator):
                hint = 'for example build.communicator("tp")'
                raise InputError("bad-value", f"communicator is {shown_value(communicator)}", hint=hint)
            number = self.communicators.setdefault(communicator, len(self.communicators))
            self._communicators_seen[id(communicator)] = communicator, number
        return number

    def source(self, source: Source) -> int:
        """The number of a source of prices."""
        if not isinstance(source, Source):
            raise InputError("bad-value", f"source is {shown_value(source)}", hint="expected a Source")
        return self.sources.setdefault(source, len(self.sources))

    def resource(self, name: str) -> int:
        """The number of a resource, which must have been declared."""
        if name not in self.resources:
            raise InputError(
                "unknown-name",
                f'resource "{name}" is drawn on but not declared',
                hint="declare it: build.resource(...)",
            )
        return list(self.resources).index(name)


@checked_methods
class BlockBuilder:
    """Ops that are written once, and run wherever a role places the block."""

    def __init__(self, tables: Tables, number: int, name: str) -> None:
        self.name = name
        self.number = number
        self.ports: dict[str, int] = {}
        self.rows: list[dict[str, float]] = []
        self.deps: list[tuple[int, int]] = []
        self.memory: list[tuple[int, int, int, int]] = []
        self.sends: list[tuple[int, int, int]] = []
        self.draws: list[tuple[int, int, float, float]] = []
        self.tables = tables

    def port(self, name: str, op: OpRef) -> None:
        """Names an op, so that instances can be tied to it: `instance["out"]`."""
        if not isinstance(op, OpRef) or op.block != self.number:
            problem = f'port "{name}" of block "{self.name}" is {shown_value(op)}'
            raise InputError("invalid-program", problem, hint="expected an op of the same block")
        self.ports[name] = op.op

    def port_op(self, name: str) -> int:
        """The op that a port names; `in` and `out` are the first and the last op unless the block says otherwise."""
        if name in self.ports:
            return self.ports[name]
        if name == "in":
            return 0
        if name == "out":
            return len(self.rows) - 1
        known = ", ".join(dict.fromkeys(("in", "out", *self.ports)))
        raise InputError("unknown-name", f'block "{self.name}" has no port "{name}"', hint=f"known: {known}")

    def compute(self, name: str, duration_s: float = UNPRICED, *, lane: str = "compute", **facts: Any) -> OpRef:
        """Something the GPU computes, in seconds; see `add` for the facts it may carry."""
        return self.add(Kind.COMPUTE, name, duration_s, lane, **facts)

    def host(self, name: str, duration_s: float = UNPRICED, *, lane: str = "host", **facts: Any) -> OpRef:
        """Something the CPU does, in seconds."""
        return self.add(Kind.HOST, name, duration_s, lane, **facts)

    def collective(
        self,
        collective: str | Collective,
        communicator: Communicator,
        duration_s: float = UNPRICED,
        *,
        name: str | None = None,
        lane: str | None = None,
        **facts: Any,
    ) -> OpRef:
        """This rank's part of a collective; it starts when all members have come. `sends` gives the bytes to each
        member, by position in the group, where they differ."""
        what = word(Collective, collective)
        facts |= {"collective": what, "communicator": self.tables.communicator(communicator)}
        return self.add(
            Kind.COLLECTIVE,
            name or label(what),
            duration_s,
            lane or communicator.axis,
            "communication",
            **facts,
        )

    def transfer(
        self,
        name: str,
        communicator: Communicator,
        duration_s: float = UNPRICED,
        *,
        to: int | None = None,
        bytes: int = 0,
        lane: str | None = None,
        **facts: Any,
    ) -> OpRef:
        """One end of a transfer: the sending one if `to` names the receiver's position in the group."""
        facts |= {
            "collective": Collective.TRANSFER,
            "communicator": self.tables.communicator(communicator),
            "sends": None if to is None else {to: bytes},
        }
        lane = lane or communicator.name
        return self.add(Kind.TRANSFER, name, duration_s, lane, "communication", bytes=bytes, **facts)

    def exchange(
        self,
        name: str,
        communicator: Communicator,
        duration_s: float = UNPRICED,
        *,
        sends: Mapping[int, int],
        lane: str | None = None,
        **facts: Any,
    ) -> OpRef:
        """Several transfers issued as one call, such as a batched send and receive."""
        facts |= {
            "collective": Collective.EXCHANGE,
            "communicator": self.tables.communicator(communicator),
        }
        lane = lane or communicator.name
        total = sum(sends.values())
        return self.add(Kind.TRANSFER, name, duration_s, lane, "communication", bytes=total, sends=sends, **facts)

    def add(
        self,
        kind: Kind,
        name: str,
        duration_s: float,
        lane: str,
        lane_kind: LaneKind | None = None,
        *,
        after: After = (),
        phase: str | Phase = Phase.NONE,
        layer: int = -1,
        chunk: int = 0,
        flops: float = 0.0,
        moved_bytes: float = 0.0,
        kernel: str | None = None,
        dtype: str | None = None,
        latency_s: float = 0.0,
        bytes: int = 0,
        collective: Collective = Collective.NONE,
        communicator: int = -1,
        source: Source | None = None,
        alloc: Bytes | None = None,
        free: Bytes | None = None,
        sends: Mapping[int, int] | None = None,
        draws: Mapping[str, float] | None = None,
        holds: Mapping[str, float] | None = None,
    ) -> OpRef:
        """Appends an op. `alloc` and `free` are bytes by category at its start and end; `draws` is what it takes from
        resources in all, the first being the measure by which it shares; `holds` what it keeps while it runs."""
        # Everything is checked before anything is kept: a refused op leaves the block and its tables as they were.
        tables, op = self.tables, len(self.rows)
        times = {"duration_s": duration_s, "latency_s": latency_s, "flops": flops, "moved_bytes": moved_bytes}
        if set(map(type, times.values())) != {float}:
            self._check_numbers(name, False, times)
        if not (
            type(bytes) is type(layer) is type(chunk) is type(communicator) is int
            and 0 <= bytes < _LIMIT
            and -1 <= layer < _LIMITS["layer"]
            and 0 <= chunk < _LIMITS["chunk"]
            and communicator < _LIMITS["communicator"]
        ):
            counts = {"bytes": bytes, "layer": layer, "chunk": chunk, "communicator": communicator}
            self._check_numbers(name, True, counts)
        self._check_sends(name, sends or {})
        deps = [self._dependency(op, ref) for ref in refs_of(after)] if after else []
        memory = self._memory_rows(name, op, alloc or {}, free or {})
        drawn = self._draw_rows(name, op, draws or {}, holds or {})
        kind_number, phase_number, collective_number = (
            word(Kind, kind),
            word(Phase, phase),
            word(Collective, collective),
        )
        source_number = 0 if source is None else tables.source(source)
        self.rows.append(
            {
                "kind": kind_number,
                "lane": tables.lane(lane, lane_kind or _LANE_KINDS[kind]),
                "name": tables.string(name),
                "phase": phase_number,
                "chunk": chunk,
                "layer": layer,
                **times,
                "kernel": -1 if kernel is None else tables.string(kernel),
                "collective": collective_number,
                "communicator": communicator,
                "bytes": bytes,
                "dtype": -1 if dtype is None else tables.string(dtype),
                "source": source_number,
                "enabled": 1,
            }
        )
        self.deps += deps
        self.memory += memory
        if sends:
            self.sends.extend((op, to, size) for to, size in sends.items())
        self.draws += drawn
        return OpRef(self.number, op)

    def repeat(self, other: BlockBuilder, ops: range, layer: int) -> int:
        """Appends ops of a block once more, as those of a layer, and returns the number of the first. What they wait
        for must be among them."""
        first = len(self.rows)
        self.rows += [
            row if row["layer"] == layer else {**row, "layer": layer} for row in other.rows[ops.start : ops.stop]
        ]
        moved = first - ops.start
        self.deps += [(src + moved, dst + moved) for src, dst in other.deps if dst in ops]
        self.memory += [(op + moved, *fact) for op, *fact in other.memory if op in ops]  # type: ignore[misc]
        self.sends += [(op + moved, to, size) for op, to, size in other.sends if op in ops]
        self.draws += [(op + moved, *fact) for op, *fact in other.draws if op in ops]  # type: ignore[misc]
        return first

    def _check_sends(self, name: str, sends: Mapping[int, int]) -> None:
        if not all(type(size) is int and 0 <= size < _LIMIT for size in sends.values()):
            self._check_numbers(name, True, {f"sends[{to}]": size for to, size in sends.items()})
        if not all(type(to) is int and 0 <= to < _LIMITS["position"] for to in sends):
            for to in sends:
                self._check_numbers(name, True, {"position": to})

    def _memory_rows(self, name: str, op: int, alloc: Bytes, free: Bytes) -> list[tuple[int, int, int, int]]:
        """Returns what an op allocates and frees, a row for each category."""
        for sizes in (alloc, free):
            self._check_numbers(name, True, sizes)
        categories = dict.fromkeys([*alloc, *free])
        return [(op, word(Category, key), alloc.get(key, 0), free.get(key, 0)) for key in categories]

    def _draw_rows(
        self, name: str, op: int, draws: Mapping[str, float], holds: Mapping[str, float]
    ) -> list[tuple[int, int, float, float]]:
        """Returns what an op takes from resources, a row for each."""
        for amounts in (draws, holds):
            self._check_numbers(name, False, amounts)
        resources = dict.fromkeys([*draws, *holds])
        return [(op, self.tables.resource(key), draws.get(key, 0.0), holds.get(key, 0.0)) for key in resources]

    def _check_numbers(self, name: str, whole: bool, values: Mapping[str, Any]) -> None:
        """Names the op whose number is none, or is not whole where it must be, or too large."""
        for field, value in values.items():
            if whole:
                fits = isinstance(value, Integral) and abs(int(value)) < _LIMITS.get(field, _LIMIT)
            else:  # nan and infinities are for the check of the program
                fits = isinstance(value, Real) and not (isinstance(value, int) and abs(value) >= _MAX_REAL)
            if isinstance(value, bool) or not fits:
                expected = "a whole number of bytes or the like" if whole else "a number in SI units"
                raise InputError(
                    "bad-value",
                    f'block "{self.name}", op "{name}": {field} is {shown_value(value)}',
                    hint=f"expected {expected}",
                )
            if whole and field not in ("layer", "chunk", "communicator") and value < 0:
                raise InputError(
                    "out-of-range", f'block "{self.name}", op "{name}": {field} is {value:,}; sizes are not negative'
                )

    def _dependency(self, op: int, ref: OpRef | PlacedOp) -> tuple[int, int]:
        if not isinstance(ref, OpRef) or ref.block != self.number or not isinstance(ref.op, int):
            raise InputError(
                "invalid-program",
                f'op {op} of block "{self.name}" waits for an op of another block',
                hint="tie blocks together where they are placed: role.place(block, after={port: op})",
            )
        return ref.op, op


_LANE_KINDS: dict[Kind, LaneKind] = {
    Kind.COMPUTE: "compute",
    Kind.COLLECTIVE: "communication",
    Kind.TRANSFER: "communication",
    Kind.HOST: "host",
}


def refs_of(after: After) -> Sequence[OpRef | PlacedOp]:
    """Returns the ops that `after` names, as a sequence."""
    if after is None:
        return ()
    refs = (after,) if isinstance(after, (PlacedOp, OpRef)) else after
    if not isinstance(refs, Sequence) or isinstance(refs, str | bytes):
        raise InputError("bad-value", f"after is {shown_value(after)}", hint="expected an op, or a list of ops")
    return refs
