"""The lists of `foretrace list KIND` beyond models and hardware, as tables and as JSON.

`list_rows` reads the rows off the code that accepts the names; `list_dict` and `print_rows` write them.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from foretrace.basics.codes import SECTIONS
from foretrace.basics.errors import InputError, did_you_mean
from foretrace.cost.network.experts import HELD_SMS
from foretrace.hardware import presets
from foretrace.hardware.cluster import Gpu
from foretrace.hardware.presets import Kind
from foretrace.models import presets as models
from foretrace.program.kernels import DTYPE_BYTES, PEAK_OF
from foretrace.readings.answer.model_figures import peak_flops
from foretrace.report.catalogue.hardware import LIST_SCHEMA
from foretrace.report.catalogue.hardware import list_json as hardware_json
from foretrace.report.catalogue.hardware import print_list as print_hardware
from foretrace.report.catalogue.models import list_json as models_json
from foretrace.report.catalogue.models import print_list as print_models
from foretrace.report.json import to_json
from foretrace.schedules.registry import names as schedule_names
from foretrace.schedules.registry import schedule_facts
from foretrace.workload.plan import WORD_LISTS, WORDS, Plan
from foretrace.workload.stack import Stack
from foretrace.workload.stacks import STACKS, VERSIONS

if TYPE_CHECKING:
    from foretrace.report.terminal import Span

MAX_WIDTH: Final = 100
MIN_TEXT_WIDTH: Final = 20
_BELOW: Final = 6
"""Where a description begins that has a line of its own."""

Detail = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ListRow:
    """One thing that can be named: what it is, and its details by name."""

    name: str
    description: str
    details: Mapping[str, Detail]


_MODULES: Final = {
    "core_attn": "Core attention: scores, softmax and their product with the values.",
    "moe_act": "The activation of experts.",
    "layernorm": "The norms before attention and before the feed-forward, where they are modules of their own.",
    "mla_up_proj": "Latent attention: norms of latents, projections up, rotation.",
    "mlp": "The dense feed-forward; nothing in layers with experts.",
    "moe": "All of a layer's experts: router, dispatch, products, combination, shared experts.",
    "shared_experts": "The shared experts.",
    "attn_norm": "The norm before attention.",
    "qkv_linear": "The projections to queries, keys and values.",
    "attn_proj": "The projection after attention; needs core_attn offloaded too.",
    "mlp_norm": "The norm before the feed-forward.",
    "expert_fc1": "The first product of experts.",
}

_DISPATCHERS: Final = {
    "alltoall": "NCCL's all-to-all: every copy of a token travels by itself.",
    "hierarchical": "Two all-to-alls of NCCL in turn: within nodes, then between nodes along rails.",
    "deepep": "DeepEP: a token crosses NICs once per target node, links once per target rank.",
    "hybridep": "HybridEP: as deepep, after an all-gather of which token goes to which expert.",
    "low_latency": "DeepEP's low-latency kernels: every copy over the NICs, within a node too.",
}

_COLLECTIVES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "all-reduce": ("Every rank gets the sum over all ranks.", ("ar",)),
    "all-gather": ("Every rank gets the parts of all ranks.", ("ag",)),
    "reduce-scatter": ("Every rank gets its part of the sum over all ranks.", ("rs",)),
    "all-to-all": ("Every rank sends a part to every other rank.", ("a2a",)),
    "broadcast": ("One rank sends its buffer to all others.", ("bcast",)),
    "reduce": ("One rank gets the sum over all ranks.", ()),
    "gather": ("One rank gets the parts of all ranks.", ()),
    "scatter": ("One rank sends a part to every other rank.", ()),
    "barrier": ("Ranks wait for each other; it has no size.", ()),
    "transfer": ("One rank sends to another.", ("send", "recv", "sendrecv", "p2p")),
    "exchange": ("Two ranks run their transfers in one call.", ()),
    "dispatch": ("Tokens go to their experts, as --way says.", ()),
    "combine": ("Tokens come back from their experts, as --way says.", ()),
}
"""The effect of each collective, and its other names."""

_PRECISIONS: Final = {
    "fp32": "Products and activations in single precision.",
    "tf32": "Single precision, multiplied by tensor cores as tf32.",
    "bf16": "Products and activations in bf16.",
    "fp16": "Products and activations in fp16.",
    "fp8": "Projections in 8 bits, one scale per tensor, found by a pass of its own.",
    "fp8_block": "Projections in 8 bits, scales of blocks.",
    "mxfp8": "Projections in 8 bits, scales of blocks that tensor cores apply.",
    "nvfp4": "Projections in 4 bits, scales of blocks that tensor cores apply.",
}
"""Projections are the linear layers of attention, feed-forward parts and experts; all else is in bf16 then."""


def _stacks() -> list[ListRow]:
    return [ListRow(stack.name, stack.title, _stack_details(stack)) for stack in STACKS.values()]


def _stack_details(stack: Stack) -> dict[str, Detail]:
    """Returns a stack's kernels, what it keeps in which dtype, and its habits where a plan leaves them open."""
    return {
        "version": stack.version or None,
        "versions": tuple(known.version for known in VERSIONS.get(stack.name, ())),
        "attention": stack.attention,
        "norm": stack.norm,
        "pointwise": stack.pointwise,
        "rope": stack.rope,
        "loss": stack.loss,
        "parameter_dtype": stack.parameter_dtype,
        "gradient_dtype": stack.gradient_dtype,
        "optimizer_state_dtype": stack.optimizer_state_dtype,
        "master_weights": stack.master_weights,
        "sequence_parallel": stack.sequence_parallel,
        "zero": stack.zero,
        "grad_overlap": stack.grad_overlap,
        "param_overlap": stack.param_overlap,
    }


def _schedules() -> list[ListRow]:
    rows = []
    for name in schedule_names():
        facts = schedule_facts(name)
        details: dict[str, Detail] = {
            "min_chunks": facts.min_chunks,
            "max_chunks": facts.max_chunks,
            "needs": facts.needs,
            "aliases": facts.aliases,
        }
        rows.append(ListRow(name, facts.description, details))
    return rows


def _dispatchers() -> list[ListRow]:
    """Returns rows of dispatchers; `held_sms` is null where NCCL's channels count instead."""
    default = _default("dispatcher")
    return [
        ListRow(name, _DISPATCHERS[name], {"held_sms": HELD_SMS.get(name), "default": name == default})
        for name in WORDS["dispatcher"]
    ]


def _modules() -> list[ListRow]:
    """Returns rows of the parts of a layer that can be recomputed or offloaded, and the stacks that do either."""
    recompute, offload = WORD_LISTS["recompute_modules"], WORD_LISTS["offload_modules"]
    rows = []
    for name in dict.fromkeys((*recompute, *offload)):
        stacks = STACKS.values()
        details: dict[str, Detail] = {
            "recompute": tuple(stack.name for stack in stacks if name in stack.recompute_modules),
            "offload": tuple(stack.name for stack in stacks if stack.offloads_modules and name in offload),
        }
        rows.append(ListRow(name, _MODULES[name], details))
    return rows


def _module_cells(details: Mapping[str, Detail]) -> tuple[str, ...]:
    return tuple("yes" if details[use] else "-" for use in ("recompute", "offload"))


def _collectives() -> list[ListRow]:
    return [ListRow(name, text, {"aliases": aliases}) for name, (text, aliases) in _COLLECTIVES.items()]


def _precisions() -> list[ListRow]:
    """Returns rows of precisions: bytes of an operand, the units that multiply it, and the GPUs that have them."""
    default = _default("precision")
    gpus = [presets.gpu(name) for name in presets.names("gpu")]
    rows = []
    for name in WORDS["precision"]:
        able = [gpu for gpu in gpus if _multiplies(gpu, name)]
        details: dict[str, Detail] = {
            "operand_bytes": DTYPE_BYTES[name],
            "units": PEAK_OF.get(name, name),
            "architectures": tuple(dict.fromkeys(gpu.architecture for gpu in able)),
            "gpus": tuple(gpu.name for gpu in able),
            "default": name == default,
        }
        rows.append(ListRow(name, _PRECISIONS[name], details))
    return rows


def _multiplies(gpu: Gpu, precision: str) -> bool:
    try:
        return peak_flops(gpu, precision) > 0
    except InputError:
        return False


def _diagnostics() -> list[ListRow]:
    return [
        ListRow(code, meaning, {"section": section})
        for section, codes in SECTIONS.items()
        for code, meaning in codes.items()
    ]


def _default(name: str) -> Any:
    """Returns what a field of a plan is where nobody says."""
    return next(field.default for field in fields(Plan) if field.name == name)


def _stack_cells(details: Mapping[str, Detail]) -> tuple[str, ...]:
    kept = " ".join(str(details[f"{what}_dtype"]) for what in ("parameter", "gradient", "optimizer_state"))
    hidden = [word for word, name in (("grads", "grad_overlap"), ("params", "param_overlap")) if details[name]]
    overlaps = "both" if len(hidden) == 2 else "".join(hidden) or "none"
    return (
        str(details["version"] or "-"),
        str(details["attention"]),
        str(details["pointwise"]),
        kept,
        str(details["zero"]),
        overlaps,
    )


def _schedule_cells(details: Mapping[str, Detail]) -> tuple[str, ...]:
    chunks = f"{details['min_chunks']}" + ("" if details["max_chunks"] else " or more")
    return chunks, str(details["needs"]).replace("microbatches", "m").replace("stages", "p") or "-"


def _dispatcher_cells(details: Mapping[str, Detail]) -> tuple[str, ...]:
    return ("-" if details["held_sms"] is None else str(details["held_sms"]),)


def _collective_cells(details: Mapping[str, Detail]) -> tuple[str, ...]:
    aliases = details["aliases"]
    return (", ".join(aliases) if isinstance(aliases, tuple) and aliases else "-",)


def _precision_cells(details: Mapping[str, Detail]) -> tuple[str, ...]:
    architectures, gpus = details["architectures"], details["gpus"]
    assert isinstance(architectures, tuple) and isinstance(gpus, tuple)
    # Blackwell stands for Blackwell Ultra too.
    kinds = [
        architecture
        for architecture in architectures
        if not architecture.startswith(tuple(f"{other} " for other in architectures))
    ]
    where = "all" if len(gpus) == len(presets.names("gpu")) else ", ".join(kinds)
    return f"{details['operand_bytes']:g}", str(details["units"]), where


@dataclass(frozen=True, slots=True)
class _List:
    """A list: its rows, and how its table shows them."""

    rows: Callable[[], list[ListRow]]
    heads: tuple[str, ...]
    """Headings of all columns: the name, cells of details, the description."""
    cells: Callable[[Mapping[str, Detail]], tuple[str, ...]]
    notes: tuple[str, ...] = ()


_LISTS: Final = {
    "stacks": _List(
        _stacks,
        ("stack", "version", "attention", "pointwise", "keeps", "ZeRO", "hides", "title"),
        _stack_cells,
        (
            "keeps: dtypes of weights, gradients and optimizer state; hides: what runs next to computation",
            "default: megatron-core, or fsdp under ZeRO-3; the version above, or another: --stack NAME@VERSION",
            *(f"{name}@ {' '.join(known.version for known in VERSIONS[name])}" for name in VERSIONS),
        ),
    ),
    "schedules": _List(
        _schedules,
        ("schedule", "chunks", "needs", "description"),
        _schedule_cells,
        (
            "chunks per stage; p stages, m microbatches",
            "default: 1f1b, or interleaved-1f1b for several chunks",
        ),
    ),
    "dispatchers": _List(
        _dispatchers,
        ("dispatcher", "SMs", "description"),
        _dispatcher_cells,
        (f"SMs held while tokens travel, beyond NCCL's own; default: {_default('dispatcher')}",),
    ),
    "modules": _List(
        _modules,
        ("module", "recompute", "offload", "description"),
        _module_cells,
        ("--recompute-modules and --offload-modules, as Megatron-core names them; --json: by stack",),
    ),
    "collectives": _List(_collectives, ("collective", "also", "description"), _collective_cells),
    "precisions": _List(
        _precisions,
        ("precision", "bytes", "units", "GPUs", "description"),
        _precision_cells,
        (
            "bytes of an operand; recipes of 8 and 4 bits leave head, router and attention in bf16",
            f"default: {_default('precision')}",
        ),
    ),
    "diagnostics": _List(_diagnostics, ("code", "meaning"), lambda _: ()),
}

LISTS: Final = tuple(_LISTS)
"""The kinds of names that are listed here, in order."""

HARDWARE: Final[dict[str, Kind]] = {"clusters": "cluster", "nodes": "node", "gpus": "gpu", "nics": "nic"}

KINDS: Final = ("models", *HARDWARE, *LISTS)
"""Everything that can be listed."""


def list_rows(kind: str) -> list[ListRow]:
    """Returns the rows of a list; an error where `kind` is not in `LISTS`."""
    if kind not in _LISTS:
        raise InputError(
            "unknown-name", f'there is no list of "{kind}"{did_you_mean(kind, LISTS)}', hint=f"known: {' '.join(LISTS)}"
        )
    return _LISTS[kind].rows()


def list_dict(kind: str) -> dict[str, Any]:
    """Returns a list as plain values: name, description and details of each row."""
    if kind == "models":
        return models_json([models.model(name) for name in models.names()])
    if kind in HARDWARE:
        return hardware_json(kind, _hardware(kind))
    rows = [{"name": row.name, "description": row.description, **row.details} for row in list_rows(kind)]
    return to_json(LIST_SCHEMA, {"kind": kind, kind: rows})


def print_list(kind: str) -> None:
    """Prints a list as a table."""
    if kind == "models":
        print_models([models.model(name) for name in models.names()])
    elif kind in HARDWARE:
        print_hardware(_hardware(kind))
    else:
        print_rows(kind)


def _hardware(kind: str) -> list[Any]:
    singular = HARDWARE[kind]
    return [presets.OF_KIND[singular](name) for name in presets.names(singular)]


def print_rows(kind: str) -> None:
    """Prints a list as a table, at most 100 columns wide."""
    from foretrace.report.terminal import Screen, show  # JSON does without, and starts faster

    screen = Screen.of(sys.stdout)
    show(screen, list_lines(kind, min(screen.width, MAX_WIDTH)))


def list_lines(kind: str, width: int = MAX_WIDTH) -> list[list[Span]]:
    """Returns the lines of a table; descriptions are wrapped at `width` columns."""
    rows, shown = list_rows(kind), _LISTS[kind]
    cells = [(row.name, *shown.cells(row.details), row.description) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(shown.heads, *cells, strict=True)][:-1]
    lines: list[list[Span]] = [[(line, "bold")] for line in _wrapped(shown.heads, widths, width)]
    section = None
    for row, texts in zip(rows, cells, strict=True):
        if row.details.get("section") != section:
            section = row.details["section"]
            lines += [[], [(f"  {section}", "bold")]]
        lines += [[(line, "")] for line in _wrapped(texts, widths, width)]
    notes: list[list[Span]] = [[(f"  {note}", "bright_black")] for note in shown.notes]
    return [*lines, [], *notes] if notes else lines


def _wrapped(cells: Sequence[str], widths: Sequence[int], width: int) -> list[str]:
    """Returns the lines of a row whose last cell is wrapped under itself, or below the row where that is too narrow."""
    first = "  " + "".join(f"{cell:<{size}}  " for cell, size in zip(cells[:-1], widths, strict=True))
    if width - len(first) < MIN_TEXT_WIDTH:
        texts = textwrap.wrap(cells[-1], width - _BELOW, break_on_hyphens=False)
        return [first.rstrip(), *(" " * _BELOW + text for text in texts)]
    texts = textwrap.wrap(cells[-1], width - len(first), break_on_hyphens=False)
    return [(first if number == 0 else " " * len(first)) + text for number, text in enumerate(texts)]
