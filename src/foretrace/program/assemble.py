"""From builders to the arrays of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from foretrace.basics.arrays import Ints
from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.program.block import BlockBuilder
from foretrace.program.columns import COLUMNS
from foretrace.program.program import Links, Placements, Resident, Templates
from foretrace.program.role import RoleBuilder


def role_of(mesh: Mesh, roles: Sequence[RoleBuilder]) -> Ints:
    """The role of each rank, -1 where none was given."""
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


def templates(blocks: Sequence[BlockBuilder]) -> Templates:
    """The ops of all blocks as columns and side tables."""
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


def placements(roles: Sequence[RoleBuilder]) -> Placements:
    """The placements of all roles."""
    start = _first_placements(roles)
    overrides = [
        (placement + int(at), op, column, value)
        for role, at in zip(roles, start, strict=False)
        for placement, op, column, value in role.overrides
    ]
    return Placements(
        start=start,
        block=_ints([number for role in roles for number in role.blocks]),
        microbatch=_ints([number for role in roles for number in role.microbatches]),
        override_placement=_ints([row[0] for row in overrides]),
        override_op=_ints([row[1] for row in overrides]),
        override_column=tuple(row[2] for row in overrides),
        override_value=np.array([row[3] for row in overrides], dtype=np.float64),
    )


def links(roles: Sequence[RoleBuilder]) -> Links:
    """The dependencies between placements."""
    rows = chain.from_iterable(role.links for role in roles)
    table = np.fromiter(chain.from_iterable(rows), dtype=np.int32).reshape(-1, 5)
    first = np.repeat(_first_placements(roles)[:-1], [len(role.links) for role in roles])
    table[:, 0] += first
    table[:, 2] += first
    return Links(*(np.ascontiguousarray(column) for column in table.T))


def resident(roles: Sequence[RoleBuilder]) -> Resident:
    """What the roles hold from step to step."""
    rows = [(role.number, category, size) for role in roles for category, size in role.held.items()]
    return Resident(
        role=_ints([row[0] for row in rows]),
        category=np.array([row[1] for row in rows], dtype=np.uint8),
        bytes=np.array([row[2] for row in rows], dtype=np.int64),
    )


def _first_placements(roles: Sequence[RoleBuilder]) -> Ints:
    return _ints([0, *np.cumsum([len(role.blocks) for role in roles], dtype=np.int64)])


def _ints(values: Any) -> Ints:
    return np.array(values, dtype=np.int32)
