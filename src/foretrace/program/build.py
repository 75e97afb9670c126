"""Builds a program by hand or from code.

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
written; every other order is given with `after`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from foretrace.basics.arguments import checked, checked_methods
from foretrace.basics.arrays import Ints
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import Mesh
from foretrace.program.block import BlockBuilder, Tables
from foretrace.program.check import check
from foretrace.program.columns import COLUMNS
from foretrace.program.program import BlockInfo, Communicator, Instances, Links, Program, Resident, Resource, Templates
from foretrace.program.role import RoleBuilder, rank_numbers


@checked_methods
class ProgramBuilder:
    """Collects blocks, roles, communicators and resources, and makes the program of them."""

    @checked
    def __init__(
        self,
        mesh: Mesh | None = None,
        *,
        title: str = "",
        repeats: bool = True,
        tokens_per_step: float | None = None,
        diagnostics: Iterable[Diagnostic] = (),
    ) -> None:
        self.mesh = mesh or Mesh()
        self.title = title
        self.repeats = repeats
        self.tokens_per_step = tokens_per_step
        self.diagnostics = tuple(diagnostics)
        self._tables = Tables()
        self._blocks: list[BlockBuilder] = []
        self._roles: list[RoleBuilder] = []

    def block(self, name: str) -> BlockBuilder:
        """Adds a new, empty block."""
        self._blocks.append(BlockBuilder(self._tables, len(self._blocks), name))
        return self._blocks[-1]

    def role(self, name: str, ranks: Iterable[int]) -> RoleBuilder:
        """Adds a role, which these ranks run; every rank of the mesh belongs to one role."""
        self._roles.append(RoleBuilder(self.block, self._tables, len(self._roles), name, ranks))
        return self._roles[-1]

    @checked
    def communicator(self, *axes: str, name: str | None = None, axis: str | None = None) -> Communicator:
        """Returns the groups in which these axes of the mesh vary."""
        if not axes:
            raise InputError(
                "invalid-program", "a communicator needs an axis", hint='for example build.communicator("tp")'
            )
        return Communicator(name or "-".join(axes), axis or axes[0], axes=axes)

    @checked
    def pair(self, along: str, a: int, b: int, *, name: str | None = None, axis: str | None = None) -> Communicator:
        """Returns the pairs of ranks at coordinates a (position 0) and b (position 1) of an axis, all else equal."""
        return Communicator(name or f"{along} {a}-{b}", axis or along, axes=(along,), pair=(a, b))

    @checked
    def groups(self, name: str, groups: Iterable[Iterable[int]], *, axis: str | None = None) -> Communicator:
        """Returns groups that are written out, each in the order of its members' positions."""
        return Communicator(name, axis or name, groups=_sets_of_ranks(groups, f'communicator "{name}"'))

    @checked
    def resource(
        self,
        name: str,
        capacity_per_s: float,
        *,
        shared_by: Iterable[Iterable[int]] | None = None,
        capacities: Iterable[float] | None = None,
    ) -> str:
        """A resource that ops may draw on; one instance per rank, or one for each set of ranks that share it.
        `capacities` gives each instance its own."""
        instances = None if shared_by is None else _sets_of_ranks(shared_by, f'resource "{name}"')
        own = None if capacities is None else _capacities(capacities, name)
        resource = Resource(name, capacity_per_s, instances, own)
        if self._tables.resources.setdefault(name, resource) != resource:
            raise InputError("duplicate-name", f'resource "{name}" is declared twice, differently')
        return name

    def program(self, *, checked: bool = True) -> Program:
        """Returns the finished program, checked; `checked=False` is for code that writes only what fits together."""
        tables = self._tables
        program = Program(
            title=self.title,
            mesh=self.mesh,
            lanes=tuple(tables.lanes.values()),
            communicators=tuple(tables.communicators),
            resources=tuple(tables.resources.values()),
            sources=tuple(tables.sources),
            strings=tuple(tables.strings),
            blocks=tuple(BlockInfo(block.name, dict(block.ports)) for block in self._blocks),
            roles=tuple(role.name for role in self._roles),
            role_of=_role_of(self.mesh, self._roles),
            templates=_templates(self._blocks),
            instances=_instances(self._roles),
            links=_links(self._roles),
            resident=_resident(self._roles),
            repeats=self.repeats,
            tokens_per_step=self.tokens_per_step,
            diagnostics=self.diagnostics,
        )
        if checked:
            check(program)
        return program


def _sets_of_ranks(sets: Iterable[Iterable[int]], owner: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, rank_numbers(ranks, owner))) for ranks in sets)


def _capacities(capacities: Iterable[float], resource: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, capacities))
    except (TypeError, ValueError, OverflowError):
        hint = "capacities are numbers, one for each instance"
        raise InputError("bad-value", f'resource "{resource}": a capacity is not a number', hint=hint) from None


def _role_of(mesh: Mesh, roles: Sequence[RoleBuilder]) -> Ints:
    """Returns the role of each rank, -1 where none was given."""
    roles_of_ranks = np.full(mesh.world, -1, dtype=np.int32)
    for role in roles:
        outside = role.ranks[(role.ranks < 0) | (role.ranks >= mesh.world)]
        if len(outside):
            raise InputError(
                "invalid-program", f'role "{role.name}" names rank {outside[0]}, outside the mesh of {mesh.world} ranks'
            )
        if (roles_of_ranks[role.ranks] >= 0).any():
            rank = role.ranks[roles_of_ranks[role.ranks] >= 0][0]
            other = roles[int(roles_of_ranks[rank])].name
            raise InputError("invalid-program", f'rank {rank} has two roles, "{other}" and "{role.name}"')
        roles_of_ranks[role.ranks] = role.number
    return roles_of_ranks


def _templates(blocks: Sequence[BlockBuilder]) -> Templates:
    """Returns the ops of all blocks as columns and side tables."""
    sizes = [len(block.rows) for block in blocks]
    start = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int32)
    rows = [row for block in blocks for row in block.rows]
    values = list(zip(*map(itemgetter(*COLUMNS), rows), strict=True)) or [()] * len(COLUMNS)
    columns: dict[str, Any] = {
        name: np.array(column, dtype=dtype) for (name, (dtype, _)), column in zip(COLUMNS.items(), values, strict=True)
    }

    def shifted(facts: Callable[[BlockBuilder], list[Any]], width: int, *ops: int) -> list[Any]:
        """One array per field of a side table; fields in `ops` count within their block and are moved."""
        table = [
            [value + int(at) if i in ops else value for i, value in enumerate(fact)]
            for block, at in zip(blocks, start, strict=False)
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


def _instances(roles: Sequence[RoleBuilder]) -> Instances:
    """Returns the block instances of all roles."""
    start = _first_instances(roles)
    overrides = [
        (instance + int(at), op, column, value)
        for role, at in zip(roles, start, strict=False)
        for instance, op, column, value in role.overrides
    ]
    return Instances(
        start=start,
        block=_joined([role.blocks for role in roles]),
        microbatch=_joined([role.microbatches for role in roles]),
        override_instance=_ints([row[0] for row in overrides]),
        override_op=_ints([row[1] for row in overrides]),
        override_column=tuple(row[2] for row in overrides),
        override_value=np.array([row[3] for row in overrides], dtype=np.float64),
    )


def _links(roles: Sequence[RoleBuilder]) -> Links:
    """Returns the dependencies between block instances."""
    table = _joined([role.links for role in roles]).reshape(-1, 5)
    first = np.repeat(_first_instances(roles)[:-1], [len(role.links) // 5 for role in roles])
    table[:, 0] += first
    table[:, 2] += first
    return Links(*(np.ascontiguousarray(column) for column in table.T))


def _resident(roles: Sequence[RoleBuilder]) -> Resident:
    """Returns the memory that roles hold from step to step."""
    rows = [(role.number, category, size) for role in roles for category, size in role.held.items()]
    return Resident(
        role=_ints([row[0] for row in rows]),
        category=np.array([row[1] for row in rows], dtype=np.uint8),
        bytes=np.array([row[2] for row in rows], dtype=np.int64),
    )


def _first_instances(roles: Sequence[RoleBuilder]) -> Ints:
    return _ints([0, *np.cumsum([len(role.blocks) for role in roles], dtype=np.int64)])


def _joined(columns: Sequence[array[int]]) -> Ints:
    return np.concatenate([np.empty(0, np.int32), *(np.frombuffer(column, np.intc) for column in columns)])


def _ints(values: Any) -> Ints:
    return np.array(values, dtype=np.int32)
