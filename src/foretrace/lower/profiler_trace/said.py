"""What a user may say of a trace that does not hold it: `--set params=1.1e9`, `--set group.3=tp`."""

from __future__ import annotations

from typing import Final

from foretrace.errors import InputError, did_you_mean
from foretrace.lower.choices import Choices
from foretrace.program.columns import Collective, label

_COLLECTIVES: Final = tuple(
    f"{label(one)}.bytes" for one in Collective if one not in (Collective.NONE, Collective.EXCHANGE)
)

KNOWN: Final = {
    "group.NAME": "the axis of a process group",
    "traced": "the mesh of the recording",
    "params": "parameters whose gradients are reduced",
    "model": "a model whose parameters these are",
    "dtype": "of these gradients: bf16, fp16 or fp32",
    "overlap": "gradients reduced under the backward (on) or after it (none)",
    **dict.fromkeys(_COLLECTIVES, "of a call whose size was not recorded"),
}


def check_said(choices: Choices, where: str) -> None:
    """Raises an error where something is said that is not known, or that has no use without a mesh or a cluster."""
    for name, _ in choices.sizes:
        if name not in KNOWN and not name.startswith("group."):
            raise InputError(
                f"--set {name}: no such size of a trace{did_you_mean(name, KNOWN)}",
                where=where,
                hint=f"known: {', '.join(KNOWN)}",
            )
    if choices.sizes and choices.mesh is None and choices.gpus is None and not choices.priced:
        raise InputError(
            f"--set {choices.sizes[0][0]}: communication is as recorded, and nothing else can be set",
            where=where,
            hint="add --cluster NAME, and --mesh dp=64 for another number of ranks",
        )
