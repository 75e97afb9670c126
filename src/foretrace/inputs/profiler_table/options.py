"""The options of a profiler table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.option_values import HostMode, Overlap, check_mesh, check_word, read_overlap, read_pairs


@dataclass(frozen=True, slots=True)
class ProfilerTableOptions:
    """How to build a job from a profiler table.

    Attributes:
        mesh: The mesh of the job, of data and expert parallelism; None is the profiled GPU alone.
        overlap: `grad` or nothing: whether gradients are reduced under the backward. None: gradients whose reduction
            the table does not show are, as DDP does; those that it shows are not.
        host: `none` leaves the host's time out.
        sizes: Names and values of what a table does not hold: `(("moe.tokens", "8192"),)`.
    """

    mesh: Mesh | str | None = None
    overlap: frozenset[Overlap] | None = None
    host: HostMode = "profiled"
    sizes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_mesh("mesh", self.mesh)
        if self.overlap is not None:
            object.__setattr__(self, "overlap", read_overlap(self.overlap))
            others = sorted(self.overlap - {Overlap.GRAD})
            if others:
                problem = f"{', '.join(others)}: a table does not say what its layers communicate when"
                raise InputError("cannot-change", problem, where="--overlap", hint="only grad can be overlapped")
        object.__setattr__(self, "sizes", read_pairs("sizes", self.sizes))
        check_word("host", self.host, get_args(HostMode))
        if self.host not in ("profiled", "none"):
            problem = f"{self.host}: a table has no single launches"
            raise InputError("cannot-change", problem, hint="give the trace of the same run")
