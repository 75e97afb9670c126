"""Translates the names that NCCL writes for its functions, algorithms and protocols.

The order of algorithms and protocols is that of NCCL's enums (`src/include/nccl_common.h`), which older logs print as
numbers.
"""

from __future__ import annotations

from typing import Final

from foretrace.program.columns import Collective

ALGORITHMS: Final = ("tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat")
PROTOCOLS: Final = ("ll", "ll128", "simple")

FUNCTIONS: Final = {
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "allreduce": Collective.ALL_REDUCE,
}
"""The functions that have algorithms; the others are sends and receives."""

_ALGORITHM_OF: Final = {name.replace("-", ""): name for name in ALGORITHMS} | {"collnet": "collnet-direct"}
"""Until NCCL 2.13 there was one CollNet."""

_WRITTEN: Final = {"nvls": "NVLS", "nvls-tree": "NVLSTree", "pat": "PAT", "ll": "LL", "ll128": "LL128"} | {
    "collnet-direct": "CollNetDirect",
    "collnet-chain": "CollNetChain",
}


def algorithm_called(word: str) -> str | None:
    """The algorithm that a word or number of NCCL means; None for others."""
    return _of(word, ALGORITHMS, _ALGORITHM_OF)


def protocol_called(word: str) -> str | None:
    """The protocol that a word or number of NCCL means; None for others."""
    return _of(word, PROTOCOLS, {name: name for name in PROTOCOLS})


def function_called(word: str) -> Collective | None:
    """The collective that a function of NCCL is, as NCCL or anyone else spells it; None for others."""
    return FUNCTIONS.get(_letters(word).removeprefix("nccl"))


def as_nccl_writes(name: str) -> str:
    """An algorithm or protocol as NCCL_ALGO and NCCL_PROTO have it."""
    return _WRITTEN.get(name, name.capitalize())


def _of(word: str, numbered: tuple[str, ...], named: dict[str, str]) -> str | None:
    if word.isdecimal():
        return numbered[int(word)] if len(word) < 3 and int(word) < len(numbered) else None
    return named.get(_letters(word))


def _letters(word: str) -> str:
    return word.strip().lower().replace("_", "").replace("-", "")
