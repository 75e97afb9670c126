"""The pieces into which a pipeline cuts the model, as the work each of their units does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from foretrace.workload import layers
from foretrace.workload.setting import Setting
from foretrace.workload.work import Work

End = Literal["first", "layer", "last"]


@dataclass(frozen=True, slots=True)
class Works:
    """What the parts of a model do on one rank: every layer by number, and its ends. Equal layers are one object."""

    layers: tuple[Work, ...]
    embedding: Work | None = None
    head: Work | None = None
    mtp: Work | None = None
    """All multi-token-prediction modules, as one."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What is gathered, reduced and freed as one: a layer, the embedding or the head; `layer` counts within its piece,
    -1 for ends."""

    work: Work
    end: End
    layer: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The units of one piece in the order of the forward; `key` is equal for pieces that do the same."""

    units: tuple[Unit, ...]
    key: tuple[object, ...]

    @property
    def parameters(self) -> int:
        """Dense parameters of one rank."""
        return sum(unit.work.parameters for unit in self.units)

    @property
    def expert_parameters(self) -> int:
        """Expert parameters of one rank."""
        return sum(unit.work.expert_parameters for unit in self.units)


def works_of(setting: Setting) -> Works:
    """What the layers of a setting's model do."""
    model = setting.model
    return Works(
        layers=tuple(layers.layer_work(setting, layer, number) for number, layer in enumerate(model.layers)),
        embedding=layers.embedding_work(setting) if model.vocab else None,
        head=layers.head_work(setting),
        mtp=layers.mtp_work(setting) if model.mtp else None,
    )


def pieces_of(setting: Setting, works: Works) -> list[Piece]:
    """The pieces of the model, the first with the embedding, the last with what follows the layers."""
    pieces = []
    last = len(setting.chunks) - 1
    for number, chunk in enumerate(setting.chunks):
        units = [Unit(works.embedding, "first")] if number == 0 and works.embedding else []
        body = [works.layers[layer] for layer in chunk]
        if number == last and works.mtp:
            body.append(works.mtp)
        units += [Unit(work, "layer", at) for at, work in enumerate(body)]
        units += [Unit(works.head, "last")] if number == last and works.head else []
        pieces.append(Piece(tuple(units), tuple(id(unit.work) for unit in units)))
    return pieces
