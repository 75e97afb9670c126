"""Reports what a model with a plan is, for `foretrace inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from foretrace.basics.units import format_count, format_percent
from foretrace.inputs.inventory import SEPARATOR, Inventory, InventoryTable, contents_of, counted_text, mesh_text
from foretrace.inputs.program_file.inventory import SCHEMA, count_program, op_facts, program_tables
from foretrace.models.describe import describe_layers, describe_vocabulary, describe_work, format_parameters
from foretrace.models.flops import model_flops
from foretrace.models.model import Experts, Model
from foretrace.models.parameters import active_parameters, parameter_parts, parameters
from foretrace.program.program import Program
from foretrace.workload.setting import Setting, settled_plan

_NOT_OF_A_MODEL: Final = ("title", "file_bytes")
"""Keys of a program's contents that a model's do not have."""


def model_inventory(setting: Setting, program: Program | None, title: str) -> Inventory:
    """Counts what a model consists of and what its plan makes of it; with a program, also what that holds.

    Args:
        setting: The model and its settled plan.
        program: The program of a step; None where it was not made.
        title: What to call the input.
    """
    tokens = setting.gbs * setting.seq_len
    contents: dict[str, Any] = {"tokens_per_step": tokens}
    counted = None if program is None else count_program(program, None)
    if counted is not None:
        contents |= {key: value for key, value in contents_of(counted).items() if key not in _NOT_OF_A_MODEL}
    contents |= {"model": _model_figures(setting), "plan": settled_plan(setting)}
    notes = setting.diagnostics if program is None else (*setting.diagnostics, *program.diagnostics)
    return Inventory(
        SCHEMA,
        kind="model",
        format="model with a plan",
        title=title,
        world_size=setting.plan.gpus,
        mesh=str(setting.mesh),
        contents=contents,
        facts=(*_model_facts(setting), *_plan_facts(setting), *(op_facts(counted) if counted else ())),
        tables=(_parameter_table(setting.model), *(program_tables(counted) if counted else ())),
        diagnostics=tuple(dict.fromkeys(notes)),
    )


def _model_figures(setting: Setting) -> Mapping[str, Any]:
    """Returns figures of the model: parameters in elements, FLOPs of training at the plan's sequence length."""
    model = setting.model
    flops = model_flops(model, setting.seq_len, documents=setting.plan.documents)
    return {
        "name": model.name,
        "title": model.title,
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "published_parameters": model.published_parameters,
        "parameters_by_part": parameter_parts(model),
        "layers": len(model.layers),
        "expert_layers": len(_expert_layers(model)),
        "experts": max((part.count for part in _expert_layers(model)), default=0),
        "experts_per_token": max((part.topk for part in _expert_layers(model)), default=0),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "mtp": model.mtp,
        "training_flops_per_token": flops / setting.seq_len,
        "training_flops_per_step": flops * setting.gbs,
        "sources": model.sources,
        "notes": model.notes,
    }


def _expert_layers(model: Model) -> list[Experts]:
    return [layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, Experts)]


def _model_facts(setting: Setting) -> Iterator[tuple[str, str]]:
    model = setting.model
    yield "model", model.name + (f": {model.title}" if model.title not in ("", model.name) else "")
    total, active = parameters(model), active_parameters(model)
    used = "" if active == total else f", {format_parameters(active)} of them for a token"
    yield "parameters", f"{format_parameters(total)}{used}"
    if model.published_parameters not in (None, total):
        yield "published", f"{model.published_parameters:,} parameters, where {total:,} are counted"
    kinds = describe_layers(model)
    yield "layers", f"{len(model.layers)}, {'all identical' if len(kinds) == 1 else f'of {len(kinds)} kinds'}"
    for text in kinds:
        yield "", text
    experts = _expert_layers(model)
    if experts:
        most = max(experts, key=lambda part: part.count)
        yield "experts", f"{most.count} in {counted_text(len(experts), 'layer')}, {most.topk} of them for a token"
    yield "hidden", format_count(model.hidden)
    padded = f", padded to {format_count(setting.vocab)}" if setting.vocab != model.vocab else ""
    yield "vocabulary", f"{describe_vocabulary(model)}{padded}"
    yield "training", describe_work(model, setting.seq_len, setting.plan.documents)


def _plan_facts(setting: Setting) -> Iterator[tuple[str, str]]:
    plan = setting.plan
    yield "job", f"{counted_text(plan.gpus, 'GPU')}{SEPARATOR}{mesh_text(str(setting.mesh))}"
    microbatches = counted_text(setting.microbatches, "microbatch", "microbatches")
    yield "schedule", f"{setting.schedule} · {microbatches} of {counted_text(plan.mbs, 'sequence')} per rank"
    yield "stages", _stages_text(setting)
    sequences = f"{counted_text(setting.gbs, 'sequence')} of {counted_text(setting.seq_len, 'token')}"
    yield "step", f"{sequences}, {format_count(setting.gbs * setting.seq_len)} tokens in all"
    modules = f" ({', '.join(plan.recompute_modules)})" if plan.recompute_modules else ""
    yield (
        "stack",
        f"{setting.stack.name} · {plan.precision} · ZeRO-{setting.zero} · recompute {plan.recompute}{modules}",
    )
    overlaps = {
        "gradients": setting.grad_overlap,
        "parameters": setting.param_overlap,
        "tp": plan.tp_overlap,
        "experts": plan.moe_overlap,
        "transfers": plan.pp_overlap,
    }
    yield "overlap", ", ".join(name for name, is_overlapped in overlaps.items() if is_overlapped) or "none"


def _stages_text(setting: Setting) -> str:
    counts = [len(layers) for layers in setting.chunks]
    unit = "stage" if setting.chunks_per_stage == 1 else "model chunk"
    least, most = min(counts), max(counts)
    layers = f"{most}" if least == most else f"{least} to {most}"
    chunks = f"{SEPARATOR}{setting.chunks_per_stage} model chunks per stage" if setting.chunks_per_stage > 1 else ""
    layout = f"{SEPARATOR}{setting.layout}" if least < most else ""
    return f"{setting.plan.pp} · {layers} layers per {unit}{chunks}{layout}"


def _parameter_table(model: Model) -> InventoryTable:
    total = parameters(model)
    parts = parameter_parts(model)
    mtp = parts.pop("mtp", 0)
    rows = [
        (name, format_count(count), format_percent(count / total)) for name, count in (*parts.items(), ("all", total))
    ]
    note = f"{format_count(mtp)} parameters for multi-token prediction are not counted, as is usual" if mtp else ""
    return InventoryTable(("parameters", "count", "share"), rows, note)
