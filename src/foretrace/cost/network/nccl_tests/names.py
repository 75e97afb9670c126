"""Knows the names of collectives, and what the name of a file says about its content."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from foretrace.program.columns import Collective

_NAMES: Final = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "all2all": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
    "bcast": Collective.BROADCAST,
    "sendrecv": Collective.TRANSFER,
    "transfer": Collective.TRANSFER,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
    "reduce": Collective.REDUCE,
}
"""Longer names first, so that a reduce-scatter is not taken for a reduce."""

KNOWN: Final = "all_reduce, all_gather, reduce_scatter, alltoall, broadcast, reduce, gather, scatter, sendrecv"

_GPUS = re.compile(r"(?<![0-9])([0-9]{1,7})[ _-]?gpus?(?![a-z])")
_NODES = re.compile(r"(?<![0-9])([0-9]{1,7})[ _-]?nodes?(?![a-z])")


@dataclass(frozen=True, slots=True)
class Named:
    """What the name of a file says; None where it does not say."""

    collective: Collective | None
    gpus: int | None
    nodes: int | None


def collective_called(word: str) -> Collective | None:
    """The collective of this name, however it is spelled: all_reduce, AllReduce, all_reduce_perf; None for others."""
    return _NAMES.get(_letters(word.lower().removesuffix("_perf")))


def parse_name(path: str) -> Named:
    """Parses a name such as `allreduce_16gpu_2node_20250820.csv` or `multi_node_sendrecv.csv`. GPUs without nodes are
    those of one node."""
    stem = Path(path).stem.lower()
    letters = _letters(stem)
    collective = next((candidate for name, candidate in _NAMES.items() if name in letters), None)
    gpus, nodes = (int(match[1]) if (match := form.search(stem)) else None for form in (_GPUS, _NODES))
    if collective is Collective.TRANSFER and gpus is None:
        gpus = 2
        nodes = 2 if "multinode" in letters else 1 if "singlenode" in letters else nodes
    return Named(collective, gpus, 1 if gpus is not None and nodes is None else nodes)


def _letters(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word)
