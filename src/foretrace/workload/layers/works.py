"""Finds the work of every layer and of both ends of a model, once for equal layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from foretrace.models.model import Experts, LatentAttention, Layer
from foretrace.step.spec import Work
from foretrace.workload.layers.attention import attention
from foretrace.workload.layers.ends import embedding, head
from foretrace.workload.layers.experts import mixture
from foretrace.workload.layers.latent import latent_attention
from foretrace.workload.layers.linear import Linear, linear
from foretrace.workload.layers.mlp import feed_forward
from foretrace.workload.layers.piece import FORWARD, INPUT, Piece, in_graph, run, stream
from foretrace.workload.layers.pointwise import norm
from foretrace.workload.layers.saved import EVERYTHING, Keeping, work_of
from foretrace.workload.layers.shape import Shape, shape_of
from foretrace.workload.plan import OffloadModule, RecomputeModule
from foretrace.workload.setting import Setting


def layer_work(setting: Setting, layer: Layer, number: int) -> Work:
    """Returns the work of layer `number` of the model."""
    return _layer_work(shape_of(setting, number), layer, _keeping(setting, number))


def embedding_work(setting: Setting) -> Work:
    """Returns the work of the first stage before its layers."""
    return _embedding_work(shape_of(setting))


def head_work(setting: Setting) -> Work:
    """Returns the work of the last stage after its layers: final norm, logits, loss.

    A tied head has parameters of its own only where the embedding is on another stage.
    """
    return _head_work(shape_of(setting), own_table=setting.has_head_table)


def mtp_work(setting: Setting, tables: int = 0) -> Work:
    """Returns the work of one multi-token-prediction module.

    It joins the embedding of the next token to the last hidden state, runs a layer like the last one, and shares
    embedding and head (DeepSeek V3, arXiv:2412.19437, section 2.2). `tables` of the two are copies of its own.
    """
    return _mtp_work(shape_of(setting), setting.model.layers[-1], _keeping(setting), tables)


def dropped_share(setting: Setting, module: RecomputeModule) -> float:
    """Returns the share of its kept activations that a layer drops by recomputing `module` next to the plan's others.

    It is that of the layer that gains most.
    """
    works = _each_layer(setting, lambda keeping: replace(keeping, modules=_without(module, keeping.modules)))
    return max(1 - less.saved_bytes / more.saved_bytes for less, more in works)


def offloaded_share(setting: Setting, module: OffloadModule) -> float:
    """Returns the share of a layer's kept activations that `module` sends to the host next to the plan's others.

    It is that of the layer that gains most.
    """
    works = _each_layer(setting, lambda keeping: replace(keeping, offloads=_without(module, keeping.offloads)))
    return max((more.offloaded_bytes - less.offloaded_bytes) / more.saved_bytes for more, less in works)


def _without(module: str, modules: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(other for other in modules if other != module)


def _each_layer(setting: Setting, change: Callable[[Keeping], Keeping]) -> list[tuple[Work, Work]]:
    """Returns the work of each kind of layer as the plan keeps its activations, and with a change of that."""
    shape = shape_of(setting)
    kinds = dict.fromkeys((layer, _keeping(setting, number)) for number, layer in enumerate(setting.model.layers))
    return [(_layer_work(shape, layer, way), _layer_work(shape, layer, change(way))) for layer, way in kinds]


def recomputed_modules(setting: Setting) -> tuple[RecomputeModule, ...]:
    """Returns the parts of a layer that are recomputed by name: the plan's, or core attention."""
    if setting.plan.recompute != "selective" or setting.stack.selective == "products":
        return ()
    return setting.plan.recompute_modules or ("core_attn",)


def _keeping(setting: Setting, number: int | None = None) -> Keeping:
    """Returns how layer `number` keeps its activations; without a number, how a layer behind the others does.

    Where only some layers of a stage are recomputed, they are its first ones (Megatron's block method).
    """
    plan = setting.plan
    keeping = Keeping(plan.recompute, recomputed_modules(setting), plan.offload_modules)
    if number is None and setting.stack.selective == "products":  # torchtitan's policy is for layers of the model
        return replace(keeping, recompute="full" if plan.recompute == "full" else "none")
    if number is None or plan.recompute != "full" or plan.recompute_layers is None:
        return keeping
    for chunk, layers in enumerate(setting.chunks):
        if number in layers:
            earlier = sum(len(part) for part in setting.chunks[chunk % plan.pp : chunk : plan.pp])
            recomputed = earlier + layers.index(number) < plan.recompute_layers
            return replace(keeping, recompute="full" if recomputed else "none")
    return replace(keeping, recompute="none")


@lru_cache(maxsize=2048)
def _layer_work(shape: Shape, layer: Layer, keeping: Keeping) -> Work:
    size = shape.rows * shape.hidden * shape.size
    return work_of("layer", layer_pieces(shape, layer), shape.stack, keeping, input_bytes=size, output_bytes=size)


def layer_pieces(shape: Shape, layer: Layer) -> list[Piece]:
    """The modules of a layer in the order of its forward."""
    mixer = layer.attention
    first = latent_attention(shape, mixer) if isinstance(mixer, LatentAttention) else attention(shape, mixer)
    second = layer.feed_forward
    rest = mixture(shape, second) if isinstance(second, Experts) else feed_forward(shape, second)
    return [*in_graph(first, "attention"), *rest]


@lru_cache(maxsize=512)
def _embedding_work(shape: Shape) -> Work:
    size = shape.rows * shape.hidden * shape.size
    return work_of("embedding", embedding(shape), shape.stack, EVERYTHING, input_bytes=0, output_bytes=size)


@lru_cache(maxsize=512)
def _head_work(shape: Shape, *, own_table: bool) -> Work:
    pieces = head(shape, own_table=own_table)
    return work_of("head", pieces, shape.stack, EVERYTHING, input_bytes=0, output_bytes=0)


@lru_cache(maxsize=512)
def _mtp_work(shape: Shape, layer: Layer, keeping: Keeping, tables: int) -> Work:
    size = shape.rows * shape.hidden * shape.size
    pieces = [*_joint(shape, tables), *layer_pieces(shape, layer), *head(shape, own_table=False)]
    return work_of("mtp", pieces, shape.stack, keeping, input_bytes=2 * size, output_bytes=size)


def _joint(shape: Shape, tables: int) -> list[Piece]:
    """Norms of the next token's embedding and of the hidden state, side by side, projected to the hidden size."""
    size = shape.rows * shape.hidden * shape.size
    joined = Piece(
        "mtp join",
        (run("mtp join", FORWARD, stream("cat", 2 * size, 2 * size)),),
        (run("mtp join backward", INPUT, stream("copy", 2 * size, 2 * size)),),
    )
    down = linear(
        shape,
        Linear(
            "mtp projection", n=-(-shape.hidden // shape.tp), k=2 * shape.hidden, source="mtp joined", split="column"
        ),
    )
    look_up = [replace(piece, parameters=tables * piece.parameters) for piece in embedding(shape)[:1]]
    return [
        *look_up,
        norm(shape, "mtp embedding norm", "mtp embedding", residual=False),
        norm(shape, "mtp hidden norm", "mtp hidden", residual=False),
        joined,
        down,
    ]
