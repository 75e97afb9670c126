"""The communicators of a job, made when they are first asked for."""

from __future__ import annotations

from foretrace.mesh import Mesh
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
            made = build.pair("pp", 0, mesh.pp - 1, name="embd", axis="embd")
            if mesh.pp == 1:
                made = build.groups("embd", [[rank] for rank in range(mesh.world)])
        elif name == "world":
            made = build.communicator(*_longer(mesh, "tp", "cp", "dp", "pp"), name="world", axis=_widest(mesh))
        elif name in ("dp", "shard"):
            made = build.communicator(*_longer(mesh, "cp", name), name=name, axis="dp")
        else:
            made = build.communicator(name, axis="dp" if name == "replicate" else name)
        self[name] = made
        return made


def _longer(mesh: Mesh, *axes: str) -> list[str]:
    """Returns the axes longer than one, or the last where none is."""
    return [axis for axis in axes if mesh.size(axis) > 1] or [axes[-1]]


def _widest(mesh: Mesh) -> str:
    """Returns the axis to which a wait for all ranks counts: pp where there are several stages."""
    return next((axis for axis in ("pp", "dp", "cp", "tp") if mesh.size(axis) > 1), "dp")
