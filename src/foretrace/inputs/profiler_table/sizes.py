"""Finds how many bytes a step communicates, which a user sets (`--set moe.tokens=8192`): no table has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError, listed
from foretrace.basics.mesh import Mesh
from foretrace.basics.units import format_bytes
from foretrace.inputs.profiler_table.communication import TableCollective
from foretrace.inputs.torch_ops.user_sizes import OVERLAPS, UserSizes
from foretrace.program.columns import Collective, label
from foretrace.program.kernels import DTYPE_BYTES

DEFAULT_TOPK: Final = 2
"""GShard's gate and fairscale's send every token to two experts (Lepikhin et al. 2020, section 2.2)."""
SCALAR_BYTES: Final = 8
"""A sum that ranks agree on: a loss, a norm, a count."""

KNOWN: Final = {
    "moe.tokens": "tokens of one GPU in a MoE layer",
    "moe.hidden": "hidden size of a token",
    "moe.topk": "experts each token goes to",
    "moe.params": "parameters of the experts on one GPU",
    "params": "parameters of the model without its experts",
    "model": "a model whose sizes these are (foretrace list models)",
    "dtype": "of what is communicated",
    "overlap": "gradients of a table without communication: reduced under the backward (on) or after it (none)",
    "steps": "training steps in the table",
    "all_to_all.bytes": "bytes one GPU gives to one call",
    "all_gather.bytes": "bytes of one whole gathered buffer",
    "reduce_scatter.bytes": "bytes of one whole reduced buffer",
    "all_reduce.bytes": "bytes of one call",
    "broadcast.bytes": "bytes of one call",
}
_EXAMPLES: Final = {
    "moe.tokens": "8192",
    "moe.hidden": "2048",
    "params": "2.5e8",
    "broadcast.bytes": "16MiB",
    "all_reduce.bytes": "16MiB",
}


@dataclass(slots=True)
class Sizes(UserSizes):
    """The sizes a user sets; `missing` collects what would be needed besides, `notes` what is assumed."""

    notes: list[Diagnostic] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    typed: tuple[str, ...] = ()
    """The names that the user gave, without those that a model stands for."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]], mesh: Mesh) -> Sizes:
        """Pairs of names and values, checked; a model's name is replaced by its sizes."""
        given = UserSizes.checked(pairs, tuple(KNOWN)).given
        if given.get("overlap", "on") not in OVERLAPS:
            raise InputError(
                "unknown-name", f"--set overlap={given['overlap']} is not known", hint=f"known: {', '.join(OVERLAPS)}"
            )
        of_model = _of_model(given["model"], mesh) if "model" in given else {}
        return cls({**of_model, **given}, typed=tuple(given))

    def element_bytes(self) -> int:
        """Bytes of one number that is communicated."""
        return int(DTYPE_BYTES[self.dtype()])

    def need(self, *names: str) -> None:
        """Notes that these are needed and not set."""
        self.missing += [name for name in names if name not in self.given and name not in self.missing]

    def unused(self) -> list[str]:
        """Returns the sizes that the user set and that have no use here."""
        return [name for name in self.typed if not (self.of_model() if name == "model" else name in self.used)]

    def of_model(self) -> list[str]:
        """Returns the sizes of a model that are used."""
        return [name for name in self.given if name not in self.typed and name in self.used]

    def under_backward(self) -> bool:
        """Whether gradients are reduced while the backward pass goes on."""
        self.used.add("overlap")
        return self.given.get("overlap", "on") == "on"


def _of_model(name: str, mesh: Mesh) -> dict[str, str]:
    """Returns the sizes of a model; its experts' parameters are those on one GPU of the mesh."""
    from foretrace.models.load import load_model
    from foretrace.models.model import Experts
    from foretrace.models.parameters import parameter_parts

    model = load_model(name)
    parts = parameter_parts(model)
    sizes = {
        "moe.hidden": str(model.hidden),
        "params": str(sum(count for part, count in parts.items() if part not in ("experts", "mtp"))),
    }
    experts = next((layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, Experts)), None)
    if experts is not None:
        sizes |= {"moe.topk": str(experts.topk), "moe.params": str(-(-parts["experts"] // mesh.ep))}
    return sizes


def call_bytes(called: TableCollective, sizes: Sizes, units: int, sharded: bool) -> int | None:
    """Bytes of one call; None where they are not known, which `sizes` then has noted.

    `units` is into how many parts parameters are divided that are gathered or reduced one by one; `sharded` whether
    gradients are reduced by reduce-scatters, so that all-reduces are of scalars.
    """
    name = f"{label(called.collective)}.bytes"
    own = sizes.bytes(name) if name in KNOWN else None
    if own is not None:
        return own
    if called.collective is Collective.ALL_TO_ALL:
        return _all_to_all_bytes(sizes)
    if called.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        return _parameters_bytes(sizes, units)
    if called.collective is Collective.ALL_REDUCE and not sharded:
        return _parameters_bytes(sizes, called.calls)
    if called.collective is Collective.ALL_REDUCE:
        sizes.notes.append(
            Diagnostic(
                "note",
                "assumed",
                f"{called.name} is taken as {SCALAR_BYTES} bytes (a loss, a norm): reduce-scatters reduce gradients "
                "(--set all_reduce.bytes=…)",
            )
        )
        return SCALAR_BYTES
    if name in KNOWN:
        sizes.need(name)
    return None


def _all_to_all_bytes(sizes: Sizes) -> int | None:
    tokens, hidden = sizes.count("moe.tokens"), sizes.count("moe.hidden")
    topk = sizes.count("moe.topk") or DEFAULT_TOPK
    if tokens is None or hidden is None:
        sizes.need("moe.tokens", "moe.hidden")
        return None
    size = tokens * topk * hidden * sizes.element_bytes()
    given = "moe.topk" in sizes.given
    product = f"{tokens:,} tokens × {topk} experts × {hidden:,} × {sizes.element_bytes()} bytes"
    assumed = "" if given else " (each token to 2 experts: --set moe.topk=…)"
    sizes.notes.append(Diagnostic("note", "assumed", f"an all-to-all has {format_bytes(size)}: {product}{assumed}"))
    return size


def _parameters_bytes(sizes: Sizes, calls: int) -> int | None:
    parameters = sizes.count("params")
    if parameters is None:
        sizes.need("params")
        return None
    return -(-parameters * sizes.element_bytes() // max(calls, 1))


def missing_error(sizes: Sizes, calls: Sequence[TableCollective], path: str, mesh: str) -> InputError:
    """Returns the error that names the sizes to set, and how."""
    named = listed([f"{call.name} ×{call.calls}" for call in calls])
    what = f"{named}: a table does not say how large they are"
    if not calls:
        what = (
            f"the table has no communication, and gradients are reduced on {mesh}: it does not say how large they are"
        )
    asked = "; ".join(f"{name} ({KNOWN[name]})" for name in sizes.missing)
    kept = [f"--set {name}={value}" for name, value in sizes.given.items() if name in sizes.used or name == "model"]
    added = [f"--set {name}={_EXAMPLES.get(name, '16MiB')}" for name in sizes.missing]
    command = " ".join([f"foretrace simulate {path} --cluster h100-dgx --mesh {mesh}", *kept, *added])
    return InputError(
        "not-recorded",
        f"{what}; set {asked}{'' if 'model' in sizes.given else ', or model=NAME (foretrace list models)'}",
        where=path,
        hint=f"for example: {command}",
    )
