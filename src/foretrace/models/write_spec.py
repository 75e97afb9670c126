"""Writes models as `foretrace.models.spec` reads them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeAlias

from foretrace.models.compose import compose_layers
from foretrace.models.model import Experts, LatentAttention, Mlp, Model, SelfAttention
from foretrace.models.ranges import format_ranges

Value: TypeAlias = "int | str | bool"
Spec: TypeAlias = dict[str, "Value | dict[str, Value]"]


def model_spec(model: Model) -> Spec:
    """A model as nested mappings, in the order in which a person reads them; plain defaults are left out.

    Raises ValueError where its layers differ in more than a spec can say.
    """
    numbers = range(len(model.layers))
    attentions = [layer.attention for layer in model.layers]
    dense = [n for n in numbers if isinstance(model.layers[n].feed_forward, Mlp)]
    parts = [layer.feed_forward for layer in model.layers]
    mlp = next((part for part in parts if isinstance(part, Mlp)), None)
    experts = next((part for part in parts if isinstance(part, Experts)), None)
    limited = [n for n in numbers if _window(attentions[n]) is not None]
    rotated = [n for n in numbers if _rope(attentions[n])]
    attention = attentions[0]
    if isinstance(attention, SelfAttention):
        window = _window(attentions[limited[0]]) if limited else None
        attention = replace(attention, window=window, rope=bool(rotated))
    unlimited = sorted(set(numbers) - set(limited)) if limited else []
    without_rope = sorted(set(numbers) - set(rotated)) if rotated else []
    same = compose_layers(
        len(numbers), attention, mlp, experts, dense=dense, unlimited=unlimited, without_rope=without_rope
    )
    if same != model.layers:
        raise ValueError(f"the layers of {model.name} differ in more than a spec can say")
    spec: Spec = {"name": model.name, "layers": len(numbers), "hidden": model.hidden, "vocab": model.vocab}
    spec["attention"] = _attention(attention)
    if mlp is not None:
        spec["mlp"] = _mlp(mlp)
    if experts is not None:
        spec["experts"] = _experts(experts)
        spec |= {"dense_layers": format_ranges(dense)} if dense else {}
    spec |= {"unlimited_layers": format_ranges(unlimited)} if unlimited else {}
    spec |= {"no_rope_layers": format_ranges(without_rope)} if without_rope else {}
    return spec | _surroundings(model)


def _surroundings(model: Model) -> Spec:
    spec: Spec = {"norm": model.norm}
    if model.norm == "layernorm" and not model.norm_bias:
        spec["norm_bias"] = False
    spec["tied"] = model.tied
    if model.positions:
        spec["positions"] = model.positions
    if model.position_kind != ("learned" if model.positions else "rope"):
        spec["position_kind"] = model.position_kind
    for name in ("head_bias", "mtp", "dropout"):
        if getattr(model, name):
            spec[name] = getattr(model, name)
    spec["seq_len"] = model.seq_len
    return spec


def _attention(attention: SelfAttention | LatentAttention) -> dict[str, Value]:
    plain = {field.name: field.default for field in fields(attention)}
    values = {field.name: getattr(attention, field.name) for field in fields(attention)}
    return {name: value for name, value in values.items() if value is not None and value != plain[name]}


def _mlp(mlp: Mlp) -> dict[str, Value]:
    spec: dict[str, Value] = {"ffn": mlp.ffn, "gated": mlp.gated, "activation": mlp.activation}
    return spec | {name: True for name in ("bias", "clamp") if getattr(mlp, name)}


def _experts(experts: Experts) -> dict[str, Value]:
    spec: dict[str, Value] = {"count": experts.count, "topk": experts.topk, **_mlp(experts.expert)}
    if experts.shared is not None:
        if replace(experts.shared, ffn=0) != replace(experts.expert, ffn=0):
            raise ValueError("shared experts of another kind than the routed ones cannot be written")
        spec["shared_ffn"] = experts.shared.ffn
    for name in ("shared_gate", "router_bias"):
        if getattr(experts, name):
            spec[name] = True
    if experts.groups > 1:
        spec |= {"groups": experts.groups, "topk_groups": experts.topk_groups}
    return spec


def _window(attention: SelfAttention | LatentAttention) -> int | None:
    return attention.window if isinstance(attention, SelfAttention) else None


def _rope(attention: SelfAttention | LatentAttention) -> bool:
    return not isinstance(attention, SelfAttention) or attention.rope
