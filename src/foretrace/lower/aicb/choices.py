"""What a workload file leaves open, and who decides it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from foretrace.errors import InputError, did_you_mean


class Overlap(StrEnum):
    """Communication that runs beside computation."""

    GRAD = "grad"
    """Gradients are reduced layer by layer under the last backward."""
    PARAM = "param"
    """Parameters are gathered layer by layer under the first forward of the next step."""
    PP = "pp"
    """Transfers between stages hold up only what needs them; without, a stage waits for its transfers."""
    TP = "tp"
    """Tensor-parallel collectives run beside the computation of their row (an ideal, as fused kernels aim at)."""


_GROUPS = {"none": (), "dp": (Overlap.GRAD, Overlap.PARAM), "all": tuple(Overlap)}


def parse_overlap(text: str, where: str | None = None) -> frozenset[Overlap]:
    """`grad,param`, `dp` for these two, `all` or `none`."""
    chosen: set[Overlap] = set()
    for word in text.replace(",", " ").lower().split():
        if word in _GROUPS:
            chosen.update(_GROUPS[word])
        elif word in set(Overlap):
            chosen.add(Overlap(word))
        else:
            known = [*Overlap, *_GROUPS]
            raise InputError(
                f'overlap "{word}" is not known{did_you_mean(word, known)}',
                where=where,
                hint=f"known: {', '.join(known)}",
            )
    return frozenset(chosen)


MOST, MOST_BYTES = 10**12, 10**15


@dataclass(frozen=True, slots=True)
class Choices:
    """How to read a workload; what is None is read off the file, and said.

    `vpp` reads the header's vpp as layers per stage (which AICB writes) or as chunks per stage (which SimAI reads), or
    is the number of chunks itself. `ends` puts the embedding on the first stage and head and loss on the last, or, as
    SimAI has it, all of them on every stage.
    """

    gpus: int | None = None
    schedule: str | None = None
    vpp: Literal["auto", "layers", "chunks"] | int = "auto"
    overlap: frozenset[Overlap] = frozenset()
    microbatches: int | None = None
    pp_comm_bytes: int | None = None
    ends: Literal["first-last", "every-stage"] = "first-last"

    def __post_init__(self) -> None:
        overlap = self.overlap if isinstance(self.overlap, str) else ",".join(map(str, self.overlap))
        object.__setattr__(self, "overlap", parse_overlap(overlap, where="overlap"))
        for name, least, most in (("gpus", 1, MOST), ("microbatches", 1, MOST), ("pp_comm_bytes", 0, MOST_BYTES)):
            _check_whole(name, getattr(self, name), least, most)
        if self.vpp not in ("auto", "layers", "chunks"):
            _check_whole("vpp", self.vpp, 1, MOST)
        if self.ends not in ("first-last", "every-stage"):
            raise InputError(f'ends "{self.ends}" are not known', hint="known: first-last, every-stage")
        if not isinstance(self.schedule, str | None):
            raise InputError(f"schedule is {self.schedule!r}", hint='expected a name such as "zb-h1"')


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}", hint=f"expected a whole number from {least} to {most:,}")
