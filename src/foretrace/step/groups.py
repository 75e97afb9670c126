"""Makes the communicators of a job when they are first asked for."""

from __future__ import annotations

from foretrace.basics.mesh import Mesh
from foretrace.program.build import ProgramBuilder
from foretrace.program.program import Communicator


class Groups(dict[str, Communicator]):
    """Maps the axis of a `Call` to its communicator.

    Besides the axes of the mesh there are: `dp` together with cp, over which dense gradients are reduced; `shard`
    together with cp, within which parameters are split; `replicate`; `embd`, the first and the last stage; `world`.
    """

    def __init__(self, build: ProgramBuilder) -> None:
        super().__init__()
        self._build = build

    def __missing__(self, name: str) -> Communicator:
        build, mesh = self._build, self._build.mesh
        if name == "embd":
            ends = (0, mesh.pp - 1)
            alone = [[rank] for rank in range(mesh.world)]
            made = build.pair("pp", *ends, name=name, axis=name) if mesh.pp > 1 else build.groups(name, alone)
        else:
            axis = {"world": _widest(mesh), "shard": "dp", "replicate": "dp"}.get(name, name)
            made = build.communicator(*group_axes(mesh, name), name=name, axis=axis)
        self[name] = made
        return made


def group_axes(mesh: Mesh, name: str) -> tuple[str, ...]:
    """Returns the axes of the mesh over which the groups of this name run; `embd` runs over pairs of stages."""
    if name == "world":
        return _longer(mesh, "tp", "cp", "dp", "pp")
    return _longer(mesh, "cp", name) if name in ("dp", "shard") else (name,)


def group_size(mesh: Mesh, name: str) -> int:
    """Returns how many ranks a group of this name has."""
    if name == "embd":
        return min(mesh.pp, 2)
    if name == "world":
        return mesh.world
    return mesh.size(name) * (mesh.cp if name in ("dp", "shard") else 1)


def _longer(mesh: Mesh, *axes: str) -> tuple[str, ...]:
    """Returns the axes longer than one, or the last where none is."""
    return tuple(axis for axis in axes if mesh.size(axis) > 1) or axes[-1:]


def _widest(mesh: Mesh) -> str:
    """Returns the axis to which a wait for all ranks counts: pp where there are several stages."""
    return next((axis for axis in ("pp", "dp", "cp", "tp") if mesh.size(axis) > 1), "dp")
