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

from collections.abc import Iterable

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import Mesh
from foretrace.program import assemble
from foretrace.program.block import BlockBuilder
from foretrace.program.check import check
from foretrace.program.program import BlockInfo, Communicator, Program, Resource
from foretrace.program.role import RoleBuilder
from foretrace.program.tables import Tables


class ProgramBuilder:
    """Collects blocks, roles, communicators and resources, and makes the program of them."""

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
        """A new, empty block."""
        self._blocks.append(BlockBuilder(self._tables, len(self._blocks), name))
        return self._blocks[-1]

    def role(self, name: str, ranks: Iterable[int]) -> RoleBuilder:
        """What these ranks do; every rank of the mesh belongs to one role."""
        self._roles.append(RoleBuilder(self.block, len(self._roles), name, ranks))
        return self._roles[-1]

    def communicator(self, *axes: str, name: str | None = None, axis: str | None = None) -> Communicator:
        """The groups in which these axes of the mesh vary."""
        if not axes:
            raise InputError(
                "invalid-program", "a communicator needs an axis", hint='for example build.communicator("tp")'
            )
        return Communicator(name or "-".join(axes), axis or axes[0], axes=axes)

    def pair(self, along: str, a: int, b: int, *, name: str | None = None, axis: str | None = None) -> Communicator:
        """The pairs of ranks at coordinates a (position 0) and b (position 1) of an axis, all else equal."""
        return Communicator(name or f"{along} {a}-{b}", axis or along, axes=(along,), pair=(a, b))

    def groups(self, name: str, groups: Iterable[Iterable[int]], *, axis: str | None = None) -> Communicator:
        """Groups written out, each in the order of its members' positions."""
        return Communicator(name, axis or name, groups=tuple(tuple(int(r) for r in g) for g in groups))

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
        instances = None if shared_by is None else tuple(tuple(int(r) for r in ranks) for ranks in shared_by)
        own = None if capacities is None else tuple(float(capacity) for capacity in capacities)
        resource = Resource(name, capacity_per_s, instances, own)
        if self._tables.resources.setdefault(name, resource) != resource:
            raise InputError("duplicate-name", f'resource "{name}" is declared twice, differently')
        return name

    def program(self, *, checked: bool = True) -> Program:
        """The finished program, checked; `checked=False` is for code that writes only what fits together."""
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
            role_of=assemble.role_of(self.mesh, self._roles),
            templates=assemble.templates(self._blocks),
            placements=assemble.placements(self._roles),
            links=assemble.links(self._roles),
            resident=assemble.resident(self._roles),
            repeats=self.repeats,
            tokens_per_step=self.tokens_per_step,
            diagnostics=self.diagnostics,
        )
        if checked:
            check(program)
        return program
