"""Models as aligned columns, as a screen, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from foretrace.models.flops import forward_flops, model_flops
from foretrace.models.model import Experts, LatentAttention, Layer, Mlp, Model
from foretrace.models.parameters import active_parameters, parameter_parts, parameters
from foretrace.models.ranges import format_ranges
from foretrace.models.write_spec import model_spec
from foretrace.report.terminal import Screen, Span, show
from foretrace.units import format_count, format_percent

LIST_SCHEMA = "foretrace.list/1"
SHOW_SCHEMA = "foretrace.show/1"
_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


def list_json(models: Sequence[Model]) -> dict[str, Any]:
    """All presets, in the keys of `show_json`."""
    return {"schema": LIST_SCHEMA, "kind": "models", "models": [_json(model) for model in models]}


def show_json(model: Model) -> dict[str, Any]:
    """One model: parameters in elements, FLOP of a training step for one token at its own sequence length."""
    return {"schema": SHOW_SCHEMA, "kind": "model", **_json(model)}


def _json(model: Model) -> dict[str, Any]:
    return {
        **model_spec(model),
        "title": model.title,
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "published_parameters": model.published_parameters,
        "parameters_by_part": parameter_parts(model),
        "training_flops_per_token": model_flops(model, model.seq_len) / model.seq_len,
        "sources": list(model.sources),
        "notes": list(model.notes),
    }


def print_list(models: Sequence[Model]) -> None:
    """A line for each model."""
    rows: list[tuple[str, ...]] = [("model", "parameters", "active", "layers", "hidden", "vocab", "title")]
    for model in models:
        total, active = parameters(model), active_parameters(model)
        some = _size(active) if active != total else "all"
        sizes = (len(model.layers), model.hidden, model.vocab)
        rows.append((model.name, _size(total), some, *map(format_count, sizes), model.title))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines: list[list[Span]] = []
    for number, row in enumerate(rows):
        first, *numbers, title = row
        right = [f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:-1], strict=True)]
        cells = [f"{first:<{widths[0]}}", *right]
        lines.append([("  " + "  ".join([*cells, title]), "" if number else "bold")])
    show(Screen.of(sys.stdout), lines)


def print_model(model: Model) -> None:
    """One screen: layers, parameters by part, work, what is assumed, and where the figures come from."""
    total, active = parameters(model), active_parameters(model)
    used = "" if active == total else f", {_size(active)} of them for a token"
    facts = [("parameters", f"{format_count(total)}{used}")]
    for name, count in parameter_parts(model).items():
        share = f"{format_percent(count / total):>7}" if name != "mtp" else "beside them"
        facts.append((f"  {name}", f"{format_count(count):>19}  {share}"))
    if model.published_parameters is not None:
        facts.append(("published", format_count(model.published_parameters)))
    facts += _layer_facts(model)
    facts += [("hidden", format_count(model.hidden)), ("vocabulary", _vocabulary(model)), ("norm", model.norm)]
    facts += [("positions", f"{model.position_kind}{f', {model.positions:,}' if model.positions else ''}")]
    facts += [("sequence", f"{model.seq_len:,} tokens"), ("training", _work(model))]
    facts += [("note", note) for note in model.notes] + [("source", source) for source in model.sources]
    title = f": {model.title}" if model.title != model.name else ""
    lines: list[list[Span]] = [[(f"  {model.name}", "bold"), (title, "")]]
    width, previous = max(len(name) for name, _ in facts), ""
    for name, text in facts:
        lines.append([(f"  {name if name != previous else '':<{width}}  {text}", "")])
        previous = name
    show(Screen.of(sys.stdout), lines)


def _layer_facts(model: Model) -> list[tuple[str, str]]:
    kinds: dict[Layer, list[int]] = {}
    for number, layer in enumerate(model.layers):
        kinds.setdefault(layer, []).append(number)
    facts = [("layers", format_count(len(model.layers)))]
    for layer, numbers in kinds.items():
        which = "" if len(kinds) == 1 else f"{len(numbers)} ({format_ranges(numbers)}): "
        facts.append(("  each" if len(kinds) == 1 else "  kinds", f"{which}{_attention(layer)} · {_part(layer)}"))
    return facts


def _attention(layer: Layer) -> str:
    one = layer.attention
    if isinstance(one, LatentAttention):
        ranks = f"ranks {one.q_lora_rank or 'none'} and {one.kv_lora_rank}"
        return f"latent attention, {one.heads} heads of {one.nope_dim}+{one.rope_dim}, {ranks}"
    groups = "" if one.kv_heads == one.heads else f", {one.kv_heads} for keys and values"
    window = "" if one.window is None else f", window {one.window:,}"
    return f"{one.heads} heads of {one.head_dim}{groups}{window}"


def _part(layer: Layer) -> str:
    part = layer.feed_forward
    if isinstance(part, Mlp):
        return _mlp(part)
    shared = "" if part.shared is None else f" and a shared one of {part.shared.ffn:,}"
    return f"{part.topk} of {part.count} experts, {_mlp(part.expert)}{shared}" if isinstance(part, Experts) else ""


def _mlp(mlp: Mlp) -> str:
    return f"feed-forward {mlp.ffn:,} {'gated ' if mlp.gated else ''}{mlp.activation}"


def _vocabulary(model: Model) -> str:
    return f"{format_count(model.vocab)}, head {'tied to the embedding' if model.tied else 'of its own'}"


def _work(model: Model) -> str:
    flops = forward_flops(model, model.seq_len)
    each = 3 * flops.total / model.seq_len
    shares = (("linear", flops.linear), ("attention", flops.attention), ("head", flops.head))
    parts = " · ".join(f"{name} {format_percent(part / flops.total)}" for name, part in shares if part)
    return f"{each / 1e9:,.1f} GFLOP a token, causal attention counted half ({parts})"


def _size(count: int) -> str:
    """Parameters as people say them: 70.6 B."""
    for scale, unit in _SCALES:
        if count >= scale:
            return f"{count / scale:.{2 if count < 10 * scale else 1}f} {unit}"
    return format_count(count)
