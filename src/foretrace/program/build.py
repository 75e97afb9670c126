"""Writing a program by hand or from code.

    build = ProgramBuilder(Mesh(pp=2), title="two stages")
    forward = build.block("forward")
    out = forward.compute("layer", 3e-3, phase="forward")
    forward.port("out", out)

    first = build.role("stage 0", ranks=[0])
    sent = first.place(forward, microbatch=0)["out"]
    first.transfer("send", build.pair("pp", 0, 1), 1e-3, bytes=1 << 20, to=1, after=sent)
    ...
    program = build.program()

An op of a role may be written directly (`first.compute(...)`) where it happens once. Ops of one lane run in the order
written; every other order is said with `after`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrace.errors import InputError
from foretrace.mesh import Mesh
from foretrace.program.check import check
from foretrace.program.columns import (
    COLUMNS,
    UNPRICED,
    Category,
    Collective,
    Kind,
    LaneKind,
    Phase,
    label,
    word,
)
from foretrace.program.program import (
    BlockInfo,
    Communicator,
    Lane,
    Links,
    Placements,
    Program,
    Resident,
    Resource,
    Source,
    Templates,
)

Bytes = Mapping[str, int]
AS_WRITTEN = "as written in the program"


@dataclass(frozen=True, slots=True)
class OpRef:
    """One op of one block."""

    block: int
    op: int


@dataclass(frozen=True, slots=True)
class PlacedOp:
    """One op of one placement of one role: what another op of that role can wait for."""

    role: int
    placement: int
    op: int


After = OpRef | PlacedOp | Sequence[OpRef | PlacedOp]


class Table:
    """Names to numbers, numbered as they come."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.numbers: dict[str, int] = {}
        for name in names:
            self.number(name)

    def number(self, name: str) -> int:
        """The number of a name, a new one for a new name."""
        return self.numbers.setdefault(name, len(self.numbers))

    def names(self) -> tuple[str, ...]:
        """The names in the order of their numbers."""
        return tuple(self.numbers)


class BlockBuilder:
    """Ops that are written once and placed as often as they happen."""

    def __init__(self, build: ProgramBuilder, number: int, name: str) -> None:
        self.name = name
        self.number = number
        self.ports: dict[str, int] = {}
        self.rows: list[dict[str, float]] = []
        self.deps: list[tuple[int, int]] = []
        self.memory: list[tuple[int, int, int, int]] = []
        self.sends: list[tuple[int, int, int]] = []
        self.draws: list[tuple[int, int, float, float]] = []
        self._build = build

    def port(self, name: str, op: OpRef) -> None:
        """Names an op, so that placements can be tied to it: `placement["out"]`."""
        self.ports[name] = op.op

    def compute(self, name: str, duration: float = UNPRICED, *, lane: str = "compute", **facts: Any) -> OpRef:
        """Something the GPU computes, in seconds; see `add` for the facts it may carry."""
        return self.add(Kind.COMPUTE, name, duration, lane, **facts)

    def host(self, name: str, duration: float = UNPRICED, *, lane: str = "host", **facts: Any) -> OpRef:
        """Something the CPU does, in seconds."""
        return self.add(Kind.HOST, name, duration, lane, **facts)

    def collective(
        self,
        collective: str | Collective,
        communicator: Communicator,
        duration: float = UNPRICED,
        *,
        name: str | None = None,
        lane: str | None = None,
        **facts: Any,
    ) -> OpRef:
        """This rank's part of a collective; it starts when all members have come. `sends` gives the bytes to each
        member, by position in the group, where they differ."""
        what = word(Collective, collective)
        facts |= {"collective": what, "communicator": self._build.communicator_number(communicator)}
        return self.add(
            Kind.COLLECTIVE,
            name or label(what),
            duration,
            lane or communicator.axis,
            "communication",
            **facts,
        )

    def transfer(
        self,
        name: str,
        communicator: Communicator,
        duration: float = UNPRICED,
        *,
        to: int | None = None,
        bytes: int = 0,
        lane: str | None = None,
        **facts: Any,
    ) -> OpRef:
        """One end of a transfer: the sending one if `to` names the receiver's position in the group."""
        facts |= {
            "collective": Collective.TRANSFER,
            "communicator": self._build.communicator_number(communicator),
            "sends": None if to is None else {to: bytes},
        }
        lane = lane or communicator.name
        return self.add(Kind.TRANSFER, name, duration, lane, "communication", bytes=bytes, **facts)

    def exchange(
        self,
        name: str,
        communicator: Communicator,
        duration: float = UNPRICED,
        *,
        sends: Mapping[int, int],
        lane: str | None = None,
        **facts: Any,
    ) -> OpRef:
        """Several transfers issued as one call, such as a batched send and receive."""
        facts |= {
            "collective": Collective.EXCHANGE,
            "communicator": self._build.communicator_number(communicator),
        }
        lane = lane or communicator.name
        total = sum(sends.values())
        return self.add(Kind.TRANSFER, name, duration, lane, "communication", bytes=total, sends=sends, **facts)

    def add(
        self,
        kind: Kind,
        name: str,
        duration: float,
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
        latency: float = 0.0,
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
        build, op = self._build, len(self.rows)
        self.rows.append(
            {
                "kind": kind,
                "lane": build.lane_number(lane, lane_kind or _LANE_KINDS[kind]),
                "name": build.strings.number(name),
                "phase": word(Phase, phase),
                "chunk": chunk,
                "layer": layer,
                "duration_s": duration,
                "latency_s": latency,
                "flops": flops,
                "moved_bytes": moved_bytes,
                "kernel": -1 if kernel is None else build.strings.number(kernel),
                "collective": collective,
                "communicator": communicator,
                "bytes": bytes,
                "dtype": -1 if dtype is None else build.strings.number(dtype),
                "source": 0 if source is None else build.source_number(source),
                "enabled": 1,
            }
        )
        for ref in _refs(after):
            self._depend(op, ref)
        taken, given = alloc or {}, free or {}
        for category in dict.fromkeys([*taken, *given]):
            number = word(Category, category)
            self.memory.append((op, number, taken.get(category, 0), given.get(category, 0)))
        self.sends.extend((op, to, size) for to, size in (sends or {}).items())
        amounts, held = draws or {}, holds or {}
        for resource in dict.fromkeys([*amounts, *held]):
            self.draws.append(
                (op, build.resource_number(resource), amounts.get(resource, 0.0), held.get(resource, 0.0))
            )
        return OpRef(self.number, op)

    def _depend(self, op: int, ref: OpRef | PlacedOp) -> None:
        if not isinstance(ref, OpRef) or ref.block != self.number:
            raise InputError(
                f'op {op} of block "{self.name}" waits for an op of another block',
                hint="tie blocks together where they are placed: role.place(block, after={port: op})",
            )
        self.deps.append((ref.op, op))


_LANE_KINDS: dict[Kind, LaneKind] = {
    Kind.COMPUTE: "compute",
    Kind.COLLECTIVE: "communication",
    Kind.TRANSFER: "communication",
    Kind.HOST: "host",
}


def _refs(after: After) -> Sequence[OpRef | PlacedOp]:
    return [after] if isinstance(after, OpRef | PlacedOp) else after


@dataclass(frozen=True, slots=True)
class Placement:
    """A block where a role runs it; `placement["half"]` is the op its port names. The ports `in` and `out` are the
    first and the last op unless the block says otherwise."""

    role: int
    number: int
    block: BlockBuilder

    def __getitem__(self, op: str | int | OpRef) -> PlacedOp:
        if isinstance(op, str):
            ports = {"in": 0, "out": len(self.block.rows) - 1, **self.block.ports}
            if op not in ports:
                raise InputError(f'block "{self.block.name}" has no port "{op}"', hint=f"known: {', '.join(ports)}")
            op = ports[op]
        return PlacedOp(self.role, self.number, op.op if isinstance(op, OpRef) else op)


Override = Mapping[str | int | OpRef, Mapping[str, float]]


class RoleBuilder:
    """What a set of ranks does, in the order they issue it."""

    def __init__(self, build: ProgramBuilder, number: int, name: str, ranks: Iterable[int]) -> None:
        self.name = name
        self.number = number
        self.ranks = np.fromiter((int(rank) for rank in ranks), dtype=np.int64)
        self.blocks: list[int] = []
        self.microbatches: list[int] = []
        self.overrides: list[tuple[int, int, str, float]] = []
        self.links: list[tuple[int, int, int, int, int]] = []
        self.held: dict[Category, int] = {}
        self._build = build
        self._inline: BlockBuilder | None = None

    def resident(self, **bytes_by_category: int) -> None:
        """Memory held from step to step: `resident(weights=..., optimizer=...)`."""
        for category, size in bytes_by_category.items():
            number = word(Category, category)
            self.held[number] = self.held.get(number, 0) + size

    def place(
        self,
        block: BlockBuilder,
        *,
        microbatch: int = -1,
        after: After | Mapping[str | int, After] = (),
        override: Override | None = None,
    ) -> Placement:
        """Runs a block. `after` holds back its port `in` (or its first op), or the ports and ops it names;
        `override` gives single ops other values in any column: `{"bucket": {"enabled": 0}}`."""
        self._inline = None
        placement = self._append(block, microbatch)
        waits = after if isinstance(after, Mapping) else {"in": after}
        for target, refs in waits.items():
            for ref in _refs(refs):
                self.link(placement[target], after=ref)
        for changed, values in (override or {}).items():
            op = placement[changed].op
            for column, value in values.items():
                if column not in COLUMNS:
                    raise InputError(f'there is no column "{column}"', hint=f"known: {', '.join(COLUMNS)}")
                self.overrides.append((placement.number, op, column, float(value)))
        return placement

    def link(self, op: PlacedOp, *, after: OpRef | PlacedOp, steps: int = 0) -> None:
        """Holds `op` back until `after` has ended, in the step that lies `steps` before."""
        if not isinstance(after, PlacedOp) or {op.role, after.role} != {self.number}:
            raise InputError(
                f'role "{self.name}" waits for an op of another role',
                hint="ranks meet in collectives and transfers; other waits are within one role",
            )
        self.links.append((after.placement, after.op, op.placement, op.op, steps))

    def compute(self, name: str, duration: float = UNPRICED, **facts: Any) -> PlacedOp:
        """A computation that happens once; see `BlockBuilder.compute`."""
        return self._once(lambda block, **more: block.compute(name, duration, **more), facts)

    def host(self, name: str, duration: float = UNPRICED, **facts: Any) -> PlacedOp:
        """Work of the CPU that happens once."""
        return self._once(lambda block, **more: block.host(name, duration, **more), facts)

    def collective(self, what: str, communicator: Communicator, duration: float = UNPRICED, **facts: Any) -> PlacedOp:
        """A collective that happens once; see `BlockBuilder.collective`."""
        return self._once(lambda block, **more: block.collective(what, communicator, duration, **more), facts)

    def transfer(self, name: str, communicator: Communicator, duration: float = UNPRICED, **facts: Any) -> PlacedOp:
        """One end of a transfer that happens once; see `BlockBuilder.transfer`."""
        return self._once(lambda block, **more: block.transfer(name, communicator, duration, **more), facts)

    def exchange(self, name: str, communicator: Communicator, duration: float = UNPRICED, **facts: Any) -> PlacedOp:
        """A batch of transfers that happens once; see `BlockBuilder.exchange`."""
        return self._once(lambda block, **more: block.exchange(name, communicator, duration, **more), facts)

    def _once(self, add: Callable[..., OpRef], facts: dict[str, Any]) -> PlacedOp:
        """Adds an op to the block of one-off ops that is open, or to a new one; other waits become links."""
        microbatch = facts.pop("microbatch", -1)
        if self._inline is None or self.microbatches[-1] != microbatch:
            self._inline = self._build.block(f"{self.name} #{len(self.blocks)}")
            self._append(self._inline, microbatch)
        here = len(self.blocks) - 1
        refs = _refs(facts.pop("after", ()))
        within = [OpRef(self._inline.number, ref.op) for ref in refs if _is_at(ref, self.number, here)]
        op = PlacedOp(self.number, here, add(self._inline, after=within, **facts).op)
        for ref in refs:
            if not _is_at(ref, self.number, here):
                self.link(op, after=ref)
        return op

    def _append(self, block: BlockBuilder, microbatch: int) -> Placement:
        self.blocks.append(block.number)
        self.microbatches.append(microbatch)
        return Placement(self.number, len(self.blocks) - 1, block)


def _is_at(ref: OpRef | PlacedOp, role: int, placement: int) -> bool:
    return isinstance(ref, PlacedOp) and (ref.role, ref.placement) == (role, placement)


class ProgramBuilder:
    """Collects blocks, roles, communicators and resources, and makes the program of them."""

    def __init__(
        self,
        mesh: Mesh | None = None,
        *,
        title: str = "",
        repeats: bool = True,
        tokens_per_step: float | None = None,
    ) -> None:
        self.mesh = mesh or Mesh()
        self.title = title
        self.repeats = repeats
        self.tokens_per_step = tokens_per_step
        self.strings = Table()
        self._lanes: dict[str, Lane] = {}
        self._lane_numbers = Table()
        self._communicators: dict[Communicator, int] = {}
        self._resources: dict[str, Resource] = {}
        self._sources: dict[Source, int] = {Source(AS_WRITTEN): 0}
        self._blocks: list[BlockBuilder] = []
        self._roles: list[RoleBuilder] = []

    def block(self, name: str) -> BlockBuilder:
        """A new, empty block."""
        self._blocks.append(BlockBuilder(self, len(self._blocks), name))
        return self._blocks[-1]

    def role(self, name: str, ranks: Iterable[int]) -> RoleBuilder:
        """What these ranks do; every rank of the mesh belongs to one role."""
        self._roles.append(RoleBuilder(self, len(self._roles), name, ranks))
        return self._roles[-1]

    def communicator(self, *axes: str, name: str | None = None, axis: str | None = None) -> Communicator:
        """The groups in which these axes of the mesh vary."""
        return Communicator(name or "-".join(axes), axis or axes[0], axes=axes)

    def pair(self, along: str, a: int, b: int, *, name: str | None = None, axis: str | None = None) -> Communicator:
        """The pairs of ranks at coordinates a (position 0) and b (position 1) of an axis, all else equal."""
        return Communicator(name or f"{along} {a}-{b}", axis or along, axes=(along,), pair=(a, b))

    def groups(self, name: str, groups: Iterable[Iterable[int]], *, axis: str | None = None) -> Communicator:
        """Groups written out, each in the order of its members' positions."""
        return Communicator(name, axis or name, groups=tuple(tuple(int(r) for r in g) for g in groups))

    def resource(self, name: str, capacity_per_s: float, *, shared_by: Iterable[Iterable[int]] | None = None) -> str:
        """A resource that ops may draw on; one instance per rank, or one for each set of ranks that share it."""
        instances = None if shared_by is None else tuple(tuple(int(r) for r in ranks) for ranks in shared_by)
        self._resources[name] = Resource(name, capacity_per_s, instances)
        return name

    def lane_number(self, name: str, kind: LaneKind) -> int:
        """The number of a lane; one that computes is a compute lane, whatever else it carries."""
        if name not in self._lanes or kind == "compute":
            self._lanes[name] = Lane(name, kind)
        return self._lane_numbers.number(name)

    def communicator_number(self, communicator: Communicator) -> int:
        """The number of a communicator in the program's table."""
        return self._communicators.setdefault(communicator, len(self._communicators))

    def source_number(self, source: Source) -> int:
        """The number of a source in the program's table."""
        return self._sources.setdefault(source, len(self._sources))

    def resource_number(self, name: str) -> int:
        """The number of a resource declared before."""
        if name not in self._resources:
            raise InputError(f'resource "{name}" is drawn on but not declared', hint="declare it: build.resource(...)")
        return list(self._resources).index(name)

    def program(self) -> Program:
        """The finished program, checked."""
        program = Program(
            title=self.title,
            mesh=self.mesh,
            lanes=tuple(self._lanes.values()),
            communicators=tuple(self._communicators),
            resources=tuple(self._resources.values()),
            sources=tuple(self._sources),
            strings=self.strings.names(),
            blocks=tuple(BlockInfo(block.name, dict(block.ports)) for block in self._blocks),
            roles=tuple(role.name for role in self._roles),
            role_of=self._role_of(),
            templates=self._templates(),
            placements=self._placements(),
            links=self._links(),
            resident=self._resident(),
            repeats=self.repeats,
            tokens_per_step=self.tokens_per_step,
        )
        check(program)
        return program

    def _role_of(self) -> Any:
        role_of = np.full(self.mesh.world, -1, dtype=np.int32)
        for role in self._roles:
            outside = role.ranks[(role.ranks < 0) | (role.ranks >= self.mesh.world)]
            if len(outside):
                raise InputError(
                    f'role "{role.name}" names rank {outside[0]}, outside the mesh of {self.mesh.world} ranks'
                )
            if (role_of[role.ranks] >= 0).any():
                rank = role.ranks[role_of[role.ranks] >= 0][0]
                other = self._roles[int(role_of[rank])].name
                raise InputError(f'rank {rank} has two roles, "{other}" and "{role.name}"')
            role_of[role.ranks] = role.number
        return role_of

    def _templates(self) -> Templates:
        sizes = [len(block.rows) for block in self._blocks]
        start = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int32)
        rows = [row for block in self._blocks for row in block.rows]
        columns: dict[str, Any] = {
            name: np.array([row[name] for row in rows], dtype=dtype) for name, (dtype, _) in COLUMNS.items()
        }

        def shifted(facts: Callable[[BlockBuilder], list[Any]], width: int, *ops: int) -> list[Any]:
            """One array per field of a side table; fields in `ops` count within their block and are moved."""
            table = [
                [value + int(at) if i in ops else value for i, value in enumerate(fact)]
                for block, at in zip(self._blocks, start, strict=False)
                for fact in facts(block)
            ]
            return [list(field) for field in zip(*table, strict=True)] if table else [[] for _ in range(width)]

        deps = shifted(lambda block: block.deps, 2, 0, 1)
        memory = shifted(lambda block: block.memory, 4, 0)
        sends = shifted(lambda block: block.sends, 3, 0)
        draws = shifted(lambda block: block.draws, 4, 0)
        return Templates(
            start=start,
            columns=columns,
            dep_src=_ints(deps[0]),
            dep_dst=_ints(deps[1]),
            memory_op=_ints(memory[0]),
            memory_category=np.array(memory[1], dtype=np.uint8),
            memory_alloc_bytes=np.array(memory[2], dtype=np.int64),
            memory_free_bytes=np.array(memory[3], dtype=np.int64),
            send_op=_ints(sends[0]),
            send_to=_ints(sends[1]),
            send_bytes=np.array(sends[2], dtype=np.int64),
            draw_op=_ints(draws[0]),
            draw_resource=_ints(draws[1]),
            draw_amount=np.array(draws[2], dtype=np.float64),
            draw_held=np.array(draws[3], dtype=np.float64),
        )

    def _first_placements(self) -> Any:
        return np.concatenate([[0], np.cumsum([len(role.blocks) for role in self._roles], dtype=np.int64)])

    def _placements(self) -> Placements:
        start = self._first_placements()
        overrides = [
            (placement + int(at), op, column, value)
            for role, at in zip(self._roles, start, strict=False)
            for placement, op, column, value in role.overrides
        ]
        return Placements(
            start=_ints(start),
            block=_ints([number for role in self._roles for number in role.blocks]),
            microbatch=_ints([number for role in self._roles for number in role.microbatches]),
            override_placement=_ints([row[0] for row in overrides]),
            override_op=_ints([row[1] for row in overrides]),
            override_column=tuple(row[2] for row in overrides),
            override_value=np.array([row[3] for row in overrides], dtype=np.float64),
        )

    def _links(self) -> Links:
        rows = [
            (src + int(at), src_op, dst + int(at), dst_op, steps)
            for role, at in zip(self._roles, self._first_placements(), strict=False)
            for src, src_op, dst, dst_op, steps in role.links
        ]
        table = np.array(rows, dtype=np.int32).reshape(-1, 5)
        return Links(*(np.ascontiguousarray(column) for column in table.T))

    def _resident(self) -> Resident:
        rows = [(role.number, category, size) for role in self._roles for category, size in role.held.items()]
        return Resident(
            role=_ints([row[0] for row in rows]),
            category=np.array([row[1] for row in rows], dtype=np.uint8),
            bytes=np.array([row[2] for row in rows], dtype=np.int64),
        )


def _ints(values: Any) -> Any:
    return np.array(values, dtype=np.int32)
