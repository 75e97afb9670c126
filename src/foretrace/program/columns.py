"""Defines the words that describe an op, and the columns that hold them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal, TypeVar

import numpy as np

from foretrace.basics.errors import InputError


class Kind(IntEnum):
    """The kind of an op."""

    COMPUTE = 0
    COLLECTIVE = 1
    TRANSFER = 2
    HOST = 3


class Phase(IntEnum):
    """The part of the step that an op belongs to."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    BACKWARD_INPUT = 3
    BACKWARD_WEIGHT = 4
    RECOMPUTE = 5
    OPTIMIZER = 6


class Collective(IntEnum):
    """The operation of a rendezvous. A transfer goes one way; an exchange groups several transfers in one call."""

    NONE = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    BARRIER = 9
    TRANSFER = 10
    EXCHANGE = 11


ONE_TO_ONE: Final = (Collective.TRANSFER, Collective.EXCHANGE)
"""What two ranks do."""

PAIRWISE: Final = (Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER)
"""A rank's partners are all others, or the root; in the rest they are its neighbours in a ring or tree."""

SHARDED: Final = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
"""Each rank has a part of the buffer before or after."""

WHOLE: Final = (Collective.BROADCAST, Collective.REDUCE)
"""All of the buffer goes from, or to, one rank."""


class Category(IntEnum):
    """The purpose for which memory is held."""

    WEIGHTS = 0
    GRADIENTS = 1
    OPTIMIZER = 2
    ACTIVATIONS = 3
    TEMPORARIES = 4
    BUFFERS = 5


LaneKind = Literal["compute", "communication", "host"]

UNPRICED: Final = float("nan")
"""The duration of an op whose price is not written in the program."""

COLUMNS: Final[dict[str, tuple[type, float]]] = {
    "kind": (np.uint8, Kind.COMPUTE),
    "lane": (np.int16, 0),
    "name": (np.int32, 0),
    "phase": (np.uint8, Phase.NONE),
    "chunk": (np.int16, 0),
    "layer": (np.int32, -1),
    "duration_s": (np.float64, UNPRICED),
    "latency_s": (np.float64, 0.0),
    "flops": (np.float64, 0.0),
    "moved_bytes": (np.float64, 0.0),
    "kernel": (np.int32, -1),
    "collective": (np.uint8, Collective.NONE),
    "communicator": (np.int16, -1),
    "bytes": (np.int64, 0),
    "dtype": (np.int16, -1),
    "source": (np.int16, 0),
    "enabled": (np.uint8, 1),
}
"""Type and default of every column. `name`, `kernel` and `dtype` index the program's strings; `lane`,
`communicator` and `source` its tables. `enabled` = 0 makes an instance's op vanish: it takes no time, no lane,
no memory and joins no rendezvous, but what waits for it waits for what it would have waited for."""

Word = TypeVar("Word", bound=IntEnum)


def word(kind: type[Word], value: Word | str) -> Word:
    """A member of one of the enums above, from itself or from its name in any case."""
    if isinstance(value, kind):
        return value
    try:
        return kind[str(value).replace("-", "_").upper()]
    except KeyError:
        known = ", ".join(label(member) for member in kind)
        raise InputError(
            "unknown-name", f'{kind.__name__.lower()} "{value}" is not known', hint=f"known: {known}"
        ) from None


def label(member: IntEnum) -> str:
    """How a member of one of the enums above is written in reports and JSON."""
    return member.name.lower()
