"""Builds roles: what a set of ranks does, in the order they issue it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Final

import numpy as np

from foretrace.basics.arguments import checked, checked_methods
from foretrace.basics.arrays import Ints, Longs
from foretrace.basics.errors import InputError, shown_value
from foretrace.program.block import After, BlockBuilder, OpRef, PlacedOp, Tables, refs_of
from foretrace.program.columns import COLUMNS, UNPRICED, Category, Phase, word
from foretrace.program.program import Communicator

_LIMIT: Final = 1 << 31


@dataclass(slots=True, eq=False)  # not frozen: that doubles what making one takes, and a job makes thousands
class BlockInstance:
    """A block where a role runs it; `instance["half"]` is the op its port names. The ports `in` and `out` are the
    first and the last op unless the block says otherwise."""

    role: int
    number: int
    block: BlockBuilder

    def __getitem__(self, op: str | int | OpRef) -> PlacedOp:
        return PlacedOp(self.role, self.number, block_op(self.block, op))


def block_op(block: BlockBuilder, op: str | int | OpRef) -> int:
    """Returns the number of an op that a port, a number or the op itself names."""
    number = block.port_op(op) if isinstance(op, str) else op.op if isinstance(op, OpRef) else op
    if type(number) is not int and (isinstance(number, bool) or not isinstance(number, Integral)):
        problem = f'block "{block.name}" has no op {shown_value(number)}'
        raise InputError("bad-value", problem, hint="name a port, or an op by its number")
    if abs(number) >= _LIMIT:
        raise InputError("out-of-range", f'block "{block.name}" has no op {shown_value(int(number))}')
    return int(number)


Override = Mapping[str | int | OpRef, Mapping[str, Any]]


@checked_methods
class RoleBuilder:
    """The program of a set of ranks, in the order they issue it."""

    def __init__(
        self, new_block: Callable[[str], BlockBuilder], tables: Tables, number: int, name: str, ranks: Iterable[int]
    ) -> None:
        self.name = name
        self.number = number
        self.ranks = np.array(rank_numbers(ranks, f'role "{name}"'), dtype=np.int64)
        # Flat arrays, because a role has thousands of instances: these need no Python object each.
        self.blocks = array("i")
        self.microbatches = array("i")
        self.overrides: list[tuple[int, int, str, float]] = []
        self.links = array("i")
        """Five numbers each, in the order of the fields of `Links`."""
        self.held: dict[Category, int] = {}
        self._new_block = new_block
        self._tables = tables
        self._inline: BlockBuilder | None = None

    def resident(self, **bytes_by_category: int) -> None:
        """Memory held from step to step: `resident(weights=..., optimizer=...)`."""
        for category, size in bytes_by_category.items():
            number = word(Category, category)
            if isinstance(size, bool) or not isinstance(size, Real) or not abs(size) < 1 << 63:
                problem = f'role "{self.name}": {category} is {shown_value(size)}'
                raise InputError("bad-value", problem, hint="expected a number of bytes")
            self.held[number] = self.held.get(number, 0) + size

    def place(
        self,
        block: BlockBuilder,
        *,
        microbatch: int = -1,
        after: After | Mapping[str | int, After] = (),
        override: Override | None = None,
    ) -> BlockInstance:
        """Runs a block. `after` holds back its port `in` (or its first op), or the ports and ops it names;
        `override` gives single ops other values in any column: `{"bucket": {"enabled": 0}}`."""
        # Everything is looked at before anything is kept: a role is as it was where a block is refused.
        waits: Sequence[tuple[int, Sequence[OpRef | PlacedOp]]] = ()
        if after:
            # A tuple or list is known at once; asking whether something is a Mapping takes a while.
            if not isinstance(after, tuple | list) and isinstance(after, Mapping):
                waits = [(block_op(block, target), self._own(refs_of(refs))) for target, refs in after.items() if refs]
            else:
                waits = ((block.port_op("in"), self._own(refs_of(after))),)
        overrides = self._overrides(block, override) if override else ()
        self._inline = None
        instance = self._append(block, microbatch)
        for op, refs in waits:
            self._link(instance.number, op, refs, 0)
        for op, column, number in overrides:
            self.overrides.append((instance.number, op, column, number))
        return instance

    def _overrides(self, block: BlockBuilder, override: Override) -> list[tuple[int, str, float]]:
        """Returns the op, the column and the number of every value that replaces one."""
        numbers = []
        for changed, values in override.items():
            op = block_op(block, changed)
            for column, value in values.items():
                if column not in COLUMNS:
                    raise InputError(
                        "unknown-field", f'there is no column "{column}"', hint=f"known: {', '.join(COLUMNS)}"
                    )
                number = word(Phase, value) if column == "phase" else value
                try:
                    if isinstance(number, str) or (isinstance(number, bool) and column != "enabled"):
                        raise ValueError
                    numbers.append((op, column, float(number)))
                except (TypeError, ValueError, OverflowError):
                    problem = f'role "{self.name}", block "{block.name}": {column} is {shown_value(value)}'
                    raise InputError("bad-value", problem, hint="an override is a number") from None
        return numbers

    @checked
    def place_all(self, blocks: Longs, microbatches: Ints, waits: Longs) -> int:
        """Runs blocks one after the other, and returns the number of the first instance: a fast `place` for many.

        Args:
            blocks: The numbers of the blocks.
            microbatches: The microbatch of each.
            waits: Rows of an instance among them, an op of it, another instance, and the op of it that waits.
        """
        self._inline = None
        first = len(self.blocks)
        self.blocks.frombytes(blocks.astype(np.intc).tobytes())
        self.microbatches.frombytes(microbatches.astype(np.intc).tobytes())
        links = np.zeros((len(waits), 5), dtype=np.intc)
        links[:, :4] = waits
        links[:, (0, 2)] += first
        self.links.frombytes(links.tobytes())
        return first

    def link(self, op: PlacedOp, *, after: OpRef | PlacedOp, steps: int = 0) -> None:
        """Holds `op` back until `after` has ended, in the step that lies `steps` before."""
        if op.role != self.number:
            raise self._stranger()
        self._link(op.instance, op.op, (after,), steps)

    def compute(self, name: str, duration_s: float = UNPRICED, **facts: Any) -> PlacedOp:
        """A computation that happens once; see `BlockBuilder.compute`."""
        return self._once(lambda block, **more: block.compute(name, duration_s, **more), facts)

    def host(self, name: str, duration_s: float = UNPRICED, **facts: Any) -> PlacedOp:
        """Work of the CPU that happens once."""
        return self._once(lambda block, **more: block.host(name, duration_s, **more), facts)

    def collective(self, what: str, communicator: Communicator, duration_s: float = UNPRICED, **facts: Any) -> PlacedOp:
        """A collective that happens once; see `BlockBuilder.collective`."""
        return self._once(lambda block, **more: block.collective(what, communicator, duration_s, **more), facts)

    def transfer(self, name: str, communicator: Communicator, duration_s: float = UNPRICED, **facts: Any) -> PlacedOp:
        """One end of a transfer that happens once; see `BlockBuilder.transfer`."""
        return self._once(lambda block, **more: block.transfer(name, communicator, duration_s, **more), facts)

    def exchange(self, name: str, communicator: Communicator, duration_s: float = UNPRICED, **facts: Any) -> PlacedOp:
        """A batch of transfers that happens once; see `BlockBuilder.exchange`."""
        return self._once(lambda block, **more: block.exchange(name, communicator, duration_s, **more), facts)

    def _link(self, instance: int, op: int, after: Sequence[OpRef | PlacedOp], steps: int) -> None:
        for ref in self._own(after):
            self.links.extend((ref.instance, ref.op, instance, op, steps))

    def _own(self, refs: Sequence[OpRef | PlacedOp]) -> Sequence[PlacedOp]:
        """Returns ops that this role has placed, or raises an error."""
        for ref in refs:
            if not isinstance(ref, PlacedOp) or ref.role != self.number:
                raise self._stranger()
        return refs  # type: ignore[return-value]

    def _stranger(self) -> InputError:
        return InputError(
            "invalid-program",
            f'role "{self.name}" waits for an op of another role',
            hint="ranks meet in collectives and transfers; other waits are within one role",
        )

    def _once(self, add: Callable[..., OpRef], facts: dict[str, Any]) -> PlacedOp:
        """Adds an op to the block of one-off ops that is open, or to a new one; other waits become links."""
        microbatch = facts.pop("microbatch", -1)
        refs = self._own(refs_of(facts.pop("after", ())))
        if self._inline is None or self.microbatches[-1] != microbatch:
            block = self._new_block(f"{self.name} #{len(self.blocks)}")
            self._append(block, microbatch)
            self._inline = block
        here = len(self.blocks) - 1
        within = [OpRef(self._inline.number, ref.op) for ref in refs if _is_at(ref, self.number, here)]
        op = PlacedOp(self.number, here, add(self._inline, after=within, **facts).op)
        for ref in refs:
            if not _is_at(ref, self.number, here):
                self.link(op, after=ref)
        return op

    def _append(self, block: BlockBuilder, microbatch: int) -> BlockInstance:
        if block.tables is not self._tables:
            problem = f'role "{self.name}" places block "{block.name}" of another program'
            raise InputError("invalid-program", problem, hint="make its blocks with the same ProgramBuilder")
        try:
            self.microbatches.append(microbatch)
        except (OverflowError, TypeError) as error:
            code = "out-of-range" if isinstance(error, OverflowError) else "bad-value"
            problem = f'role "{self.name}", block "{block.name}": microbatch {shown_value(microbatch)} cannot be meant'
            raise InputError(code, problem, hint="microbatches are numbered from 0") from None
        self.blocks.append(block.number)
        return BlockInstance(self.number, len(self.blocks) - 1, block)


def rank_numbers(ranks: Iterable[int], owner: str) -> Sequence[int] | Longs:
    """Returns ranks as numbers, without a look at each where they are an array or plain; errors name their `owner`."""
    if isinstance(ranks, np.ndarray):
        if ranks.dtype.kind in "iu" or not len(ranks):
            return ranks
        ranks = ranks.tolist()
    if isinstance(ranks, str) or not isinstance(ranks, Iterable):
        raise InputError("bad-value", f"{owner}: ranks are {shown_value(ranks)}", hint="ranks are whole numbers")
    numbers = list(ranks)
    for rank in numbers:
        if type(rank) is not int and (isinstance(rank, bool) or not isinstance(rank, Integral)):
            raise InputError("bad-value", f"{owner} names rank {shown_value(rank)}", hint="ranks are whole numbers")
        if abs(rank) >= _LIMIT:
            raise InputError("out-of-range", f"{owner} names rank {shown_value(int(rank))}", hint="no job has as many")
    return numbers


def _is_at(ref: OpRef | PlacedOp, role: int, instance: int) -> bool:
    return isinstance(ref, PlacedOp) and (ref.role, ref.instance) == (role, instance)
