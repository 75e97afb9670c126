"""Names the rows of an AICB file: which part of a layer, or of an end of the model, belongs to which row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.models.model import Experts, LatentAttention, Layer
from foretrace.step.spec import Call, Item, Work
from foretrace.workload import layers
from foretrace.workload.layers.attention import attention
from foretrace.workload.layers.ends import embedding, head
from foretrace.workload.layers.experts import mixture
from foretrace.workload.layers.latent import latent_attention
from foretrace.workload.layers.mlp import feed_forward
from foretrace.workload.layers.piece import Piece
from foretrace.workload.layers.shape import shape_of
from foretrace.workload.setting import Setting


@dataclass(frozen=True, slots=True)
class Module:
    """The work of one row, or of several if one row has too few collectives: `more` names those after the first."""

    name: str
    forward: tuple[Item, ...]
    backward: tuple[Item, ...]
    """In the order in which they run."""
    more: str = ""


def layer_modules(setting: Setting, layer: Layer, work: Work) -> list[Module]:
    """A layer: columns and rows of attention and feed-forward, and what is computed again before their backward."""
    shape, mixer, second = shape_of(setting), layer.attention, layer.feed_forward
    first = latent_attention(shape, mixer) if isinstance(mixer, LatentAttention) else attention(shape, mixer)
    modules = _column_and_row("attention", first)
    if isinstance(second, Experts):
        # AICB calls every row of a mixture so: which is which, their collectives tell.
        modules.append(_module("mlp_moelayer", mixture(shape, second), "mlp_moelayer"))
    else:
        modules += _column_and_row("mlp", feed_forward(shape, second))
    if work.recompute:
        # Listed last, and so the first that the backward meets.
        modules.append(Module("recompute", (), work.recompute, "recompute"))
    return modules


def embedding_module(setting: Setting) -> Module:
    """The embedding; a model without vocabulary has the row too, since microbatches begin with it."""
    pieces = embedding(shape_of(setting)) if setting.model.vocab else []
    return _module("embedding_layer", pieces, "embedding_layer")


def head_modules(setting: Setting) -> list[Module]:
    """Multi-token prediction where there is any, final norm, logits, and the loss's three sums over tp.

    All but the sums are called `final_column`: what follows the layers on the last stage.
    """
    if not setting.model.vocab:
        return []
    modules = []
    if setting.model.mtp:
        work = layers.mtp_work(setting)
        module = Module("final_column", work.forward, (*work.recompute, *work.backward), "final_column")
        modules += [module] * setting.model.mtp
    pieces = head(shape_of(setting), own_table=setting.has_head_table)
    sums = [item for item in pieces[-1].forward if isinstance(item, Call)]
    modules.append(_without(_module("final_column", pieces, "final_column"), sums))
    return [*modules, *(Module(f"cross_entropy{number}", (call,), ()) for number, call in enumerate(sums, start=1))]


def _without(module: Module, items: Sequence[Item]) -> Module:
    kept = tuple(item for item in module.forward if item not in items)
    return Module(module.name, kept, module.backward, module.more)


def _column_and_row(name: str, pieces: Sequence[Piece]) -> list[Module]:
    """The last product is the row-parallel one, with what lies between it and the one before."""
    products = [at for at, piece in enumerate(pieces) if piece.product]
    cut = products[-2] + 1
    return [
        _module(f"{name}_column", pieces[:cut], f"{name}_column_backward"),
        _module(f"{name}_row", pieces[cut:], f"{name}_row_backward"),
    ]


def _module(name: str, pieces: Sequence[Piece], more: str) -> Module:
    return Module(
        name,
        tuple(item for piece in pieces for item in piece.forward),
        tuple(item for piece in reversed(pieces) for item in piece.backward),
        more,
    )
