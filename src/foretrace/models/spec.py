"""Models as people write them in YAML: read with lines in errors (`write_spec` writes them back).

One form for the presets that come with the package, for users' files and for what `foretrace init` writes: `attention`,
`mlp` and `experts` say what layers are made of, `layers` how many there are, and ranges which of them differ.
`based_on: llama3-70b` takes a preset and says only what changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, cast, get_args

from foretrace.basics.documents import Document, Fields
from foretrace.basics.errors import InputError, did_you_mean
from foretrace.basics.units import format_count, parse_count, parse_tokens
from foretrace.models.compose import MAX_LAYERS, compose_layers
from foretrace.models.model import (
    Activation,
    Experts,
    LatentAttention,
    Layer,
    Mlp,
    Model,
    Norm,
    PositionKind,
    SelfAttention,
)
from foretrace.models.ranges import parse_ranges

if TYPE_CHECKING:
    import yaml

GROUPED_KEYS: Final = (
    *("kv_heads", "head_dim", "qkv_bias", "out_bias", "qk_norm", "window", "sinks", "output_gate", "rope"),
)
LATENT_KEYS: Final = ("q_lora_rank", "kv_lora_rank", "nope_dim", "rope_dim", "v_dim")
ATTENTION_KEYS: Final = ("heads", *GROUPED_KEYS, *LATENT_KEYS)
MLP_KEYS: Final = ("ffn", "gated", "activation", "bias", "clamp")
EXPERTS_KEYS: Final = ("count", "topk", *MLP_KEYS, "shared_ffn", "shared_gate", "router_bias", "groups", "topk_groups")
_RANGES: Final = ("dense_layers", "unlimited_layers", "no_rope_layers")
_MADE_OF: Final = ("hidden", "attention", "mlp", "experts", "norm", "norm_bias", *_RANGES)
_ABOUT: Final = ("name", "title", "aliases", "published_parameters", "sources", "notes")
_SIZES: Final = ("layers", "vocab", "tied", "positions", "position_kind", "head_bias", "mtp", "dropout", "seq_len")
MODEL_KEYS: Final = (*_ABOUT, *_SIZES, *_MADE_OF)
BASED_KEYS: Final = ("based_on", "name", "title", "notes", *_SIZES)

_TOKENS: Final = ("positions", "seq_len", "window")
"""Fields that are tokens of a sequence, whose k is 1,024."""
MAX_WIDTH: Final = 10_000_000
EXAMPLE: Final = "model: {based_on: llama3-70b, layers: 40}"


class FindModel(Protocol):
    """Finds a preset by the name people type."""

    def __call__(self, name: str, /, *, where: str | None = None) -> Model:
        """The preset; `where` is what an error names."""
        ...


def read_model_spec(document: Document, node: yaml.Node, find: FindModel, *, name: str = "custom") -> Model:
    """A model: a preset's name, a mapping based on one, or a mapping that says all."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return find(document.text(node, "a model"), where=document.where(node))
    if "based_on" in document.entries(node, "a model's name or a mapping"):
        return _based(document.fields(node, BASED_KEYS, ("based_on",)), find)
    fields = document.fields(node, MODEL_KEYS, ("hidden", "layers", "vocab", "attention"))
    hidden = number(fields, "hidden")
    norm = cast("Norm", word(fields, "norm", "rmsnorm", get_args(Norm)))
    called = fields.text("name", name)
    published = number(fields, "published_parameters", most=10**15) if "published_parameters" in fields else None
    whole = Model(
        name=called,
        hidden=hidden,
        layers=_layers(fields, hidden),
        vocab=0,
        norm=norm,
        tied=False,
        norm_bias=fields.flag("norm_bias", True),
        position_kind="learned" if "positions" in fields else "rope",
        title=called,
        published_parameters=published,
        sources=fields.texts("sources"),
    )
    return _surrounded(whole, fields)


def _based(fields: Fields, find: FindModel) -> Model:
    """A preset with what the mapping changes; fewer layers are its first ones, more repeat its last."""
    base = find(fields.text("based_on", ""), where=fields.where("based_on"))
    count = number(fields, "layers", len(base.layers), most=MAX_LAYERS)
    layers = (base.layers + base.layers[-1:] * count)[:count]
    name = fields.text("name", base.name if count == len(base.layers) else f"{base.name}-{count}-layers")
    changed = set(fields.values) - {"based_on", "name", "title", "notes", "seq_len", "dropout"}
    published = None if changed else base.published_parameters
    title = base.title if name == base.name else name
    return _surrounded(replace(base, name=name, title=title, layers=layers, published_parameters=published), fields)


def _surrounded(model: Model, fields: Fields) -> Model:
    """The model with the fields about what surrounds its layers; those that are not given stay as they are."""
    kind = word(fields, "position_kind", model.position_kind, get_args(PositionKind))
    return replace(
        model,
        vocab=number(fields, "vocab", model.vocab, least=0),
        tied=fields.flag("tied", model.tied),
        positions=number(fields, "positions", model.positions, least=0),
        position_kind=cast("PositionKind", kind),
        head_bias=fields.flag("head_bias", model.head_bias),
        mtp=number(fields, "mtp", model.mtp, least=0, most=100),
        dropout=fields.flag("dropout", model.dropout),
        seq_len=number(fields, "seq_len", model.seq_len, most=10**9),
        title=fields.text("title", model.title),
        notes=(*model.notes, *fields.texts("notes")),
    )


def _layers(fields: Fields, hidden: int) -> tuple[Layer, ...]:
    count = number(fields, "layers", most=MAX_LAYERS)
    if "mlp" not in fields and "experts" not in fields:
        raise InputError(
            "missing-field", "a model needs mlp or experts", where=fields.where("mlp"), hint="e.g. mlp: {ffn: 28672}"
        )
    mlp = _mlp(_inner(fields, "mlp", MLP_KEYS, ("ffn",))) if "mlp" in fields else None
    experts = (
        _experts(_inner(fields, "experts", EXPERTS_KEYS, ("count", "topk", "ffn"))) if "experts" in fields else None
    )
    chosen = {
        name: parse_ranges(fields.text(name, ""), count, where=fields.where(name)) if name in fields else frozenset()
        for name in _RANGES
    }
    if chosen["dense_layers"] and mlp is None:
        raise InputError(
            "missing-field",
            "dense_layers need an mlp",
            where=fields.where("dense_layers"),
            hint="e.g. mlp: {ffn: 18432}",
        )
    return compose_layers(
        count,
        _attention(fields, hidden),
        mlp,
        experts,
        dense=chosen["dense_layers"],
        unlimited=chosen["unlimited_layers"],
        without_rope=chosen["no_rope_layers"],
    )


def _attention(outer: Fields, hidden: int) -> SelfAttention | LatentAttention:
    fields = _inner(outer, "attention", ATTENTION_KEYS, ("heads",))
    heads = number(fields, "heads")
    latent = [name for name in LATENT_KEYS if name in fields]
    if latent:
        grouped = [name for name in GROUPED_KEYS if name in fields]
        if grouped:
            hint = f"latent attention has heads {' '.join(LATENT_KEYS)}"
            raise InputError(
                "conflicting-values",
                f"{grouped[0]} does not go with {latent[0]}",
                where=fields.where(grouped[0]),
                hint=hint,
            )
        rank = number(fields, "q_lora_rank") if "q_lora_rank" in fields else None
        rest = [required(fields, name) for name in LATENT_KEYS[1:]]
        return LatentAttention(heads, rank, *rest)
    if "head_dim" not in fields and hidden % heads:
        problem = f"hidden {hidden} is no multiple of heads {heads}"
        raise InputError("not-divisible", problem, where=fields.where("heads"), hint="say head_dim")
    kv_heads = number(fields, "kv_heads", heads)
    if heads % kv_heads:
        problem = f"heads {heads} is no multiple of kv_heads {kv_heads}"
        raise InputError(
            "not-divisible",
            problem,
            where=fields.where("kv_heads"),
            hint="each key/value head serves as many query heads",
        )
    return SelfAttention(
        heads,
        kv_heads,
        number(fields, "head_dim", hidden // heads),
        qkv_bias=fields.flag("qkv_bias", False),
        out_bias=fields.flag("out_bias", False),
        qk_norm=fields.flag("qk_norm", False),
        window=number(fields, "window", most=10**9) if "window" in fields else None,
        sinks=fields.flag("sinks", False),
        output_gate=fields.flag("output_gate", False),
        rope=fields.flag("rope", True),
    )


def _mlp(fields: Fields) -> Mlp:
    gated = fields.flag("gated", "activation" not in fields or fields.text("activation", "") == "silu")
    activation = word(fields, "activation", "silu" if gated else "gelu", get_args(Activation))
    bias, clamp = (fields.flag(name, False) for name in ("bias", "clamp"))
    if clamp and not gated:
        problem = "clamp limits gate and up, and this has no gate"
        raise InputError("bad-value", problem, where=fields.where("clamp"), hint="leave it out, or say gated: yes")
    return Mlp(number(fields, "ffn"), gated, cast("Activation", activation), bias, clamp)


def _experts(fields: Fields) -> Experts:
    expert = _mlp(fields)
    count, topk = number(fields, "count", most=100_000), number(fields, "topk", most=100_000)
    if topk > count:
        problem = f"topk {topk} is more than the {count} experts there are"
        raise InputError(
            "out-of-range", problem, where=fields.where("topk"), hint="a token goes to topk of count experts"
        )
    groups = number(fields, "groups", 1, most=count)
    chosen = number(fields, "topk_groups", groups, most=groups)
    return Experts(
        count,
        topk,
        expert,
        replace(expert, ffn=number(fields, "shared_ffn")) if "shared_ffn" in fields else None,
        shared_gate=fields.flag("shared_gate", False),
        router_bias=fields.flag("router_bias", False),
        groups=groups,
        topk_groups=chosen,
    ).checked(fields.where("groups"))


def _inner(outer: Fields, name: str, known: tuple[str, ...], needed: tuple[str, ...]) -> Fields:
    return outer.document.fields(outer[name], known, needed)


def required(fields: Fields, name: str) -> int:
    """A size that must be given."""
    if name not in fields:
        where, hint = fields.document.where(fields.node), f"expected {name}: a whole number"
        raise InputError("missing-field", f"field {name} is missing", where=where, hint=hint)
    return number(fields, name)


def number(fields: Fields, name: str, default: int = 0, *, least: int = 1, most: int = MAX_WIDTH) -> int:
    """A whole number within what can be meant."""
    parse = parse_tokens if name in _TOKENS else parse_count
    return fields.number(name, parse, least, most, format_count) if name in fields else default


def word(fields: Fields, name: str, default: str, known: tuple[str, ...]) -> str:
    """One of a few words."""
    text = fields.text(name, default)
    if text not in known:
        problem = f'{name} "{text}" is not known{did_you_mean(text, known)}'
        raise InputError("unknown-name", problem, where=fields.where(name), hint=f"known: {' '.join(known)}")
    return text
