"""What a job's files leave open, and who decides it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Literal, get_args

from foretrace.errors import InputError, did_you_mean
from foretrace.mesh import Mesh


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


MOST, MOST_BYTES, MOST_SKEWED, MOST_BATCH = 10**12, 10**15, 1e6, 1e4

HostMode = Literal["profiled", "unprofiled", "none", "graphs"]


@dataclass(frozen=True, slots=True)
class Choices:
    """How to read a job; what is None is read off its files, and said.

    `vpp` reads the header's vpp as layers per stage (which AICB writes) or as chunks per stage (which SimAI reads), or
    is the number of chunks itself. `ends` puts the embedding on the first stage and head and loss on the last, or, as
    SimAI has it, all of them on every stage. `mesh` is that of the job to predict, where traces leave it open or were
    taken on another; as text ("pp=8"), axes that it does not name stay as they were traced. `traced`
    is the mesh of the traces where their names do not say it and `mesh` is another. `routing` is how many times
    the mean the busiest expert rank receives, 1 being balanced; `priced` whether communication that a real run recorded
    is priced anew on a cluster.

    Of a profiler's trace, `host` says how its host runs: as it was recorded, without what the profiler cost it, with no
    time at all between launches, or only once a step, the whole step being one CUDA graph; `steps` which of the
    recorded steps are taken, by their position from 0; `batch` how many times the recorded samples a step has; `gpu`
    on what other GPU it runs. `sizes` are names and values of what a profile does not hold
    (`(("moe.tokens", "8192"),)`).
    """

    gpus: int | None = None
    mesh: Mesh | str | None = None
    traced: Mesh | str | None = None
    schedule: str | None = None
    vpp: Literal["auto", "layers", "chunks"] | int = "auto"
    overlap: frozenset[Overlap] = frozenset()
    microbatches: int | None = None
    pp_comm_bytes: int | None = None
    ends: Literal["first-last", "every-stage"] = "first-last"
    routing: float | None = None
    priced: bool = False
    host: HostMode = "profiled"
    steps: tuple[int, ...] | None = None
    batch: float = 1.0
    gpu: str | None = None
    sizes: tuple[tuple[str, str], ...] = ()

    def made(self) -> list[str]:
        """The names of what is chosen."""
        return [one.name for one in fields(self) if getattr(self, one.name) != getattr(_NONE_MADE, one.name)]

    def refuse(self, names: tuple[str, ...], why: str, where: str | None = None) -> None:
        """Raises an error where one of these is chosen for a job that cannot heed it."""
        chosen = [name.replace("_bytes", "").replace("_", "-") for name in self.made() if name in names]
        if chosen:
            raise InputError(f"{', '.join(chosen)}: {why}", where=where)

    def __post_init__(self) -> None:
        overlap = self.overlap if isinstance(self.overlap, str) else ",".join(map(str, self.overlap))
        object.__setattr__(self, "overlap", parse_overlap(overlap, where="overlap"))
        for name, least, most in (("gpus", 1, MOST), ("microbatches", 1, MOST), ("pp_comm_bytes", 0, MOST_BYTES)):
            _check_whole(name, getattr(self, name), least, most)
        if self.vpp not in ("auto", "layers", "chunks"):
            _check_whole("vpp", self.vpp, 1, MOST)
        if self.ends not in ("first-last", "every-stage"):
            raise InputError(f'ends "{self.ends}" are not known', hint="known: first-last, every-stage")
        for name in ("mesh", "traced"):
            if not isinstance(getattr(self, name), Mesh | str | None):
                raise InputError(f"{name} is {getattr(self, name)!r}", hint="expected a Mesh, or text such as pp=8")
        if self.routing is not None and not (_is_number(self.routing) and 1.0 <= self.routing <= MOST_SKEWED):
            raise InputError(
                f"routing is {self.routing!r}", hint=f"expected how uneven it is, from 1 (balanced) to {MOST_SKEWED:g}"
            )
        if self.host not in get_args(HostMode):
            raise InputError(f"host is {self.host!r}", hint=f"known: {', '.join(get_args(HostMode))}")
        if not (_is_number(self.batch) and 1 / MOST_BATCH <= self.batch <= MOST_BATCH):
            raise InputError(
                f"a batch cannot be {self.batch!r} times as large",
                hint=f"expected a number from {1 / MOST_BATCH:g} to {MOST_BATCH:g}",
            )
        for step in self.steps or ():
            _check_whole("a step", step, 0, MOST)
        if not isinstance(self.schedule, str | None):
            raise InputError(f"schedule is {self.schedule!r}", hint='expected a name such as "zb-h1"')


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}", hint=f"expected a whole number from {least} to {most:,}")


_NONE_MADE = Choices()
