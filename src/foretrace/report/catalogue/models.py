"""Models as aligned columns, as a screen, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from foretrace.basics.units import format_count, format_percent
from foretrace.models.describe import describe_layers, describe_vocabulary, describe_work, format_parameters
from foretrace.models.flops import model_flops
from foretrace.models.model import Model
from foretrace.models.parameters import active_parameters, parameter_parts, parameters
from foretrace.models.write_spec import model_spec
from foretrace.report.catalogue.hardware import LIST_SCHEMA, SHOW_SCHEMA
from foretrace.report.json import to_json
from foretrace.report.terminal import Screen, Span, show


def list_json(models: Sequence[Model]) -> dict[str, Any]:
    """Returns all presets, in the keys of `show_json`."""
    return to_json(LIST_SCHEMA, {"kind": "models", "models": [_plain(model) for model in models]})


def show_json(model: Model) -> dict[str, Any]:
    """Returns one model: parameters in elements, FLOP of a training step for one token at its own sequence length."""
    return to_json(SHOW_SCHEMA, {"kind": "model"}, _plain(model))


def _plain(model: Model) -> dict[str, Any]:
    return {
        **model_spec(model),
        "title": model.title,
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "published_parameters": model.published_parameters,
        "parameters_by_part": parameter_parts(model),
        "training_flops_per_token": model_flops(model, model.seq_len) / model.seq_len,
        "sources": model.sources,
        "notes": model.notes,
    }


def print_list(models: Sequence[Model]) -> None:
    """Prints a line for each model."""
    rows: list[tuple[str, ...]] = [("model", "parameters", "active", "layers", "hidden", "vocab", "title")]
    for model in models:
        total, active = parameters(model), active_parameters(model)
        some = format_parameters(active) if active != total else "all"
        sizes = (len(model.layers), model.hidden, model.vocab)
        rows.append((model.name, format_parameters(total), some, *map(format_count, sizes), model.title))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines: list[list[Span]] = []
    for number, row in enumerate(rows):
        first, *numbers, title = row
        right = [f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:-1], strict=True)]
        cells = [f"{first:<{widths[0]}}", *right]
        lines.append([("  " + "  ".join([*cells, title]), "" if number else "bold")])
    show(Screen.of(sys.stdout), lines)


def print_model(model: Model) -> None:
    """Prints layers, parameters by part, work, what is assumed, and where the figures come from."""
    total, active = parameters(model), active_parameters(model)
    used = "" if active == total else f", {format_parameters(active)} of them for a token"
    facts = [("parameters", f"{format_count(total)}{used}")]
    for name, count in parameter_parts(model).items():
        share = f"{format_percent(count / total):>7}" if name != "mtp" else "beside them"
        facts.append((f"  {name}", f"{format_count(count):>19}  {share}"))
    if model.published_parameters is not None:
        facts.append(("published", format_count(model.published_parameters)))
    facts += _layer_facts(model)
    facts += [("hidden", format_count(model.hidden)), ("vocabulary", describe_vocabulary(model)), ("norm", model.norm)]
    facts += [("positions", f"{model.position_kind}{f', {model.positions:,}' if model.positions else ''}")]
    facts += [("sequence", f"{model.seq_len:,} tokens"), ("training", describe_work(model, model.seq_len))]
    facts += [("note", note) for note in model.notes] + [("source", source) for source in model.sources]
    title = f": {model.title}" if model.title != model.name else ""
    lines: list[list[Span]] = [[(f"  {model.name}", "bold"), (title, "")]]
    width, previous = max(len(name) for name, _ in facts), ""
    for name, text in facts:
        lines.append([(f"  {name if name != previous else '':<{width}}  {text}", "")])
        previous = name
    show(Screen.of(sys.stdout), lines)


def _layer_facts(model: Model) -> list[tuple[str, str]]:
    kinds = describe_layers(model)
    label = "  each" if len(kinds) == 1 else "  kinds"
    return [("layers", format_count(len(model.layers))), *((label, text) for text in kinds)]
