"""The options of a profiler table."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.errors import InputError
from foretrace.lower.options import HostMode, check_mesh, read_pairs
from foretrace.mesh import Mesh


@dataclass(frozen=True, slots=True)
class ProfilerTableOptions:
    """How to build a job from a profiler table.

    Attributes:
        mesh: The mesh of the job, of data and expert parallelism; None is the profiled GPU alone.
        host: `none` leaves the host's time out.
        sizes: Names and values of what a table does not hold: `(("moe.tokens", "8192"),)`.
    """

    mesh: Mesh | str | None = None
    host: HostMode = "profiled"
    sizes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_mesh("mesh", self.mesh)
        object.__setattr__(self, "sizes", read_pairs("sizes", self.sizes))
        if self.host not in ("profiled", "none"):
            problem = f"{self.host}: a table has no single launches"
            raise InputError("cannot-change", problem, hint="give the trace of the same run")
