"""The options that decide what a workload file leaves open, and how their text is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from foretrace.errors import InputError, UsageError
from foretrace.units import parse_bytes, parse_count, parse_factor

if TYPE_CHECKING:
    from foretrace.lower.choices import Choices


def read_choices(
    *,
    gpus: str | None = None,
    mesh: str | None = None,
    schedule: str | None = None,
    vpp: str | None = None,
    overlap: str | None = None,
    microbatches: int | None = None,
    pp_comm: str | None = None,
    every_stage: bool = False,
    routing: str | None = None,
    what_if: list[str] | None = None,
    steps: str | None = None,
    sizes: list[str] | None = None,
) -> Choices:
    """The choices that the options make; what is not given is read off the file."""
    from foretrace.cli.options import read_rebuilds, read_sizes, read_steps
    from foretrace.lower.choices import Choices, parse_overlap
    from foretrace.mesh import parse_axes
    from foretrace.schedules.registry import resolve

    try:
        if mesh is not None:
            parse_axes(mesh, where="--mesh")
        rebuilt, _ = read_rebuilds(what_if or [])
        return Choices(
            gpus=None if gpus is None else int(parse_count(gpus, where="--gpus")),
            mesh=mesh,
            schedule=None if schedule is None else resolve(schedule),
            vpp=_vpp(vpp),
            overlap=parse_overlap(overlap or "", where="--overlap"),
            microbatches=microbatches,
            pp_comm_bytes=None if pp_comm is None else round(parse_bytes(pp_comm, where="--pp-comm")),
            ends="every-stage" if every_stage else "first-last",
            routing=None if routing is None else _routing(routing),
            host=rebuilt.host,
            batch=rebuilt.batch,
            gpu=rebuilt.gpu,
            steps=read_steps(steps),
            sizes=read_sizes(sizes or []),
        )
    except InputError as error:
        raise UsageError(error.message, where=error.where, hint=error.hint) from None


def _routing(text: str) -> float:
    """`balanced`, or how many times the mean the busiest receives."""
    return 1.0 if text.strip().lower() == "balanced" else parse_factor(text, where="--routing")


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
