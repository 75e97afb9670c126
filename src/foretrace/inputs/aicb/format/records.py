"""A SimAI/AICB workload as records, as it is written: nothing is corrected, guessed or left out here."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from foretrace.basics.errors import Diagnostic

POLICIES: Final = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_TRANSFORMER",
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_CUSTOMIZED",
    "DATA",
    "MODEL",
    "MICRO",
    "DISTRIBUTED_INFERENCE",
)
"""What the first word of a file may be."""

CUSTOMIZED: Final = "HYBRID_CUSTOMIZED"
"""The policy whose rows have a 13th column."""

COLLECTIVES: Final = ("NONE", "ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "ALLREDUCEALLTOALL")
SUFFIXES: Final = ("_DP_EP", "_EP")
"""What may follow a collective to name its group; `_DP_EP` before `_EP`, which it ends in."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a row: nanoseconds of computation, then a collective over `size_bytes`.

    Sizes are those of the whole, unsharded buffer, as nccl-tests counts them. Whole numbers stay whole.
    """

    compute_ns: int | float
    collective: str
    size_bytes: int | float


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One layer. `policy` is the 13th column, which only HYBRID_CUSTOMIZED files have; `line` is where it stands."""

    name: str
    dependency: int
    forward: Pass
    input_grad: Pass
    weight_grad: Pass
    update_ns: int | float
    policy: str | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Header:
    """The first line. A key that the line does not have is None; `extra` holds keys that this project does not know.

    `vpp` is what the file says; AICB writes layers per stage there, SimAI reads chunks per stage.
    """

    policy: str
    tp: int | None = None
    ep: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ga: int | None = None
    all_gpus: int | None = None
    mode: int | None = None
    pp_comm_bytes: int | float | None = None
    checkpoints: tuple[int, ...] | None = None
    checkpoint_initiates: tuple[int, ...] | None = None
    extra: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The file as it was read and the records that were read from it, so that it can be written back to the byte.

    A line's text is used only for a record that still equals the one read from it; a workload made in code has none.
    """

    data: bytes = field(default=b"", repr=False)
    header: Header | None = None
    declared_rows: int | None = None
    count_line: int = 0
    rows: tuple[WorkloadRow, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload file: header, declared number of rows, and the rows there are."""

    header: Header
    declared_rows: int
    rows: tuple[WorkloadRow, ...]
    path: str = field(default="workload", compare=False)
    layout: FileLayout = field(default=FileLayout(), compare=False)
    diagnostics: tuple[Diagnostic, ...] = field(default=(), compare=False)
    header_line: int = field(default=1, compare=False)
    count_line: int = field(default=2, compare=False)

    @property
    def at_header(self) -> str:
        """`file:line` of the header."""
        return self.at(self.header_line)

    @property
    def at_count(self) -> str:
        """`file:line` of the number of rows."""
        return self.at(self.count_line)

    def at(self, line: int) -> str:
        """`file:line`, for messages."""
        return f"{self.path}:{line}"


def split_collective(text: str) -> tuple[str, str]:
    """(collective, suffix) of a name as written: `ALLGATHER_DP_EP` is ("ALLGATHER", "_DP_EP"). Both may be unknown."""
    for suffix in SUFFIXES:
        if text.endswith(suffix):
            return text.removesuffix(suffix), suffix
    return text, ""


@lru_cache(maxsize=4096)
def base_name(name: str) -> str:
    """A row's name without its number: `attention_column_1` is `attention_column`; `cross_entropy1` stays."""
    stem = name.rstrip("0123456789")
    return stem[:-1] if len(name) > len(stem) > 1 and stem[-1] == "_" else name
