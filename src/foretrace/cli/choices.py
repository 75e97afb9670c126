"""The options that decide what a workload file leaves open, and how their text is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from foretrace.errors import InputError, UsageError
from foretrace.units import parse_bytes, parse_count

if TYPE_CHECKING:
    from foretrace.lower.aicb import Choices


def read_choices(
    *,
    gpus: str | None,
    schedule: str | None,
    vpp: str | None,
    overlap: str | None,
    microbatches: int | None,
    pp_comm: str | None,
    every_stage: bool,
) -> Choices:
    """The choices that the options make; what is not given is read off the file."""
    from foretrace.lower.aicb import Choices
    from foretrace.lower.aicb.choices import parse_overlap
    from foretrace.schedules.registry import resolve

    try:
        return Choices(
            gpus=None if gpus is None else int(parse_count(gpus, where="--gpus")),
            schedule=None if schedule is None else resolve(schedule),
            vpp=_vpp(vpp),
            overlap=parse_overlap(overlap or "", where="--overlap"),
            microbatches=microbatches,
            pp_comm_bytes=None if pp_comm is None else round(parse_bytes(pp_comm, where="--pp-comm")),
            ends="every-stage" if every_stage else "first-last",
        )
    except InputError as error:
        raise UsageError(error.message, where=error.where, hint=error.hint) from None


def _vpp(text: str | None) -> int | Literal["auto", "layers", "chunks"]:
    match text:
        case None | "auto":
            return "auto"
        case "layers":
            return "layers"
        case "chunks":
            return "chunks"
    if not text.isdecimal() or len(text) > 4 or int(text) < 1:
        raise UsageError(f'--vpp {text}: expected "layers", "chunks" or a number of chunks', hint="example: --vpp 2")
    return int(text)
