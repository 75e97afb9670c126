"""Finds the collective that a name means: an op or range of PyTorch, or a kernel of NCCL."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from foretrace.program.columns import Collective

_WORDS: Final = tuple(
    (re.compile(pattern), collective)
    for pattern, collective in (
        (r"all_?reduce|cross_device_reduce", Collective.ALL_REDUCE),
        (r"all_?gather", Collective.ALL_GATHER),
        (r"reduce_?scatter", Collective.REDUCE_SCATTER),
        (r"all_?to_?all", Collective.ALL_TO_ALL),
        (r"broadcast", Collective.BROADCAST),
        (r"barrier", Collective.BARRIER),
        (r"(^|_)reduce(_|$)", Collective.REDUCE),
        (r"gather", Collective.GATHER),
        (r"scatter", Collective.SCATTER),
        (r"send|recv", Collective.TRANSFER),
    )
)
"""By a word of PyTorch's name (all_to_allv, _reduce_scatter_base, …) or of NCCL's kernel; the first that is in it."""

_BEFORE: Final = re.compile(r"^nccl(Dev)?(Kernel|Symk\w*?)?_?")


@lru_cache(maxsize=1024)
def collective_of(name: str) -> Collective:
    """The collective that PyTorch (`nccl:all_reduce`, `c10d::allreduce_`) or NCCL calls so; NONE for another name.

    NCCL's kernel for sends and receives runs all-to-alls too: by its name alone it is a transfer.
    """
    # ncclDevKernel_AllReduce_Sum_bf16_RING_LL(…) -> all_reduce
    plain = name.replace("(anonymous namespace)", "").split("(")[0]
    word = _BEFORE.sub("", plain.rpartition(":")[2])
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower()
    return next((collective for pattern, collective in _WORDS if pattern.search(word)), Collective.NONE)
