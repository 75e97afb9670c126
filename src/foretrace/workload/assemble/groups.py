"""The communicators of a job, made when first asked for."""

from __future__ import annotations

from collections.abc import Mapping

from foretrace.mesh import Mesh
from foretrace.program.build import ProgramBuilder
from foretrace.program.program import Communicator


class Groups(dict[str, Communicator]):
    """Communicators by name: an axis of the mesh; `dp` with cp, over which dense gradients are reduced; `shard` with
    cp, within which parameters are split; `embd`, first and last stage; `world`."""

    def __init__(self, build: ProgramBuilder) -> None:
        super().__init__()
        self._build = build

    def __missing__(self, name: str) -> Communicator:
        build, mesh = self._build, self._build.mesh
        if name == "embd":
            made = build.pair("pp", 0, mesh.pp - 1, name="embd", axis="embd")
        elif name == "world":
            made = build.communicator(*_longer(mesh, "tp", "cp", "dp", "pp"), name="world", axis=_widest(mesh))
        elif name in ("dp", "shard"):
            made = build.communicator(*_longer(mesh, "cp", name), name=name, axis="dp")
        else:
            made = build.communicator(name, axis="dp" if name == "replicate" else name)
        self[name] = made
        return made


def axes_in_use(mesh: Mesh) -> Mapping[str, int]:
    """Sizes of the axes over which layers communicate."""
    return {axis: mesh.size(axis) for axis in ("tp", "cp", "ep", "etp")}


def _longer(mesh: Mesh, *axes: str) -> list[str]:
    """The axes longer than one, or the last where none is."""
    return [axis for axis in axes if mesh.size(axis) > 1] or [axes[-1]]


def _widest(mesh: Mesh) -> str:
    """What waiting for all ranks counts as: for other stages where there are any."""
    return next((axis for axis in ("pp", "dp", "cp", "tp") if mesh.size(axis) > 1), "dp")
