"""Reads the arguments of events: an op's inputs, and collectives as `record_param_comms` describes them.

Arguments come from files that nobody checked. A value that cannot be read counts as not recorded; an event whose sizes
are nested too deep, or whose groups are larger than any cluster, is counted as odd.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from marshal import dumps
from typing import Any, Final

from foretrace.basics.limits import MAX_GPUS, check_limit
from foretrace.basics.numbers import NumberError, whole_number
from foretrace.basics.records import MAX_DIM_NESTING
from foretrace.inputs.profiler_trace.format.records import CollectiveArguments, Dims, Inputs

COLLECTIVE: Final = "Collective name"
DIMS: Final = ("Input Dims", "Input dims")
_PARTS: Final = ("Input type", "Concrete Inputs", "Input Strides")
_CALL_KEYS: Final = (
    COLLECTIVE,
    "In msg nelems",
    "Out msg nelems",
    "dtype",
    "Process Group Name",
    "Process Group ID",
    "Group size",
    "Process Group Ranks",
    "In split size",
    "Out split size",
    "Process Group Description",
    "Global rank start",
    "Global rank stride",
    "Src Rank",
    "Dst Rank",
)
_ELLIPSIS = "..."
_WHOLE = re.compile(r"-?[0-9]+")
_MIN_WHOLE = -(1 << 63)
_MAX_TEXT: Final = 1 << 16
"""Characters of a recorded input; Kineto itself cuts lists off after a few dozen values."""
_MAX_LISTED: Final = 32_000_000
"""Ranks and splits of all groups of a trace together."""


def whole(value: object, *, least: int = _MIN_WHOLE) -> int:
    """Returns a whole number of 64 bits, from `least` on, from a number or its text; -1 where there is none.

    Addresses of streams are written in hexadecimal.
    """
    try:
        if isinstance(value, str) and value[:2] in ("0x", "0X") and len(value) < 19 and value.isalnum():
            value = int(value, 16)
        return whole_number(value, least=least)
    except (NumberError, ValueError):
        return -1


def count(value: object) -> int:
    """Returns a whole number from 0 on, or -1."""
    return whole(value, least=0)


class InputTable:
    """Distinct inputs, numbered as they come. `odd` counts events whose inputs cannot be read."""

    def __init__(self) -> None:
        self.distinct: list[Inputs] = []
        self.odd = 0
        self._numbers: dict[bytes, int] = {}

    def number(self, arguments: Mapping[str, Any]) -> int:
        """Returns the number of an op's inputs; -1 where they were not recorded."""
        dims = arguments.get(DIMS[0])
        if dims is None:
            dims = arguments.get(DIMS[1])
        if not isinstance(dims, list):
            return -1
        parts = (dims, *(arguments.get(key) for key in _PARTS))
        try:
            # Nested lists cannot be keys; their bytes can, and are made faster than any text.
            key = dumps(parts, 0)
            known = self._numbers.get(key)
            if known is None:
                types, values, strides = (part if isinstance(part, list) else [] for part in parts[1:])
                self.distinct.append(Inputs(_dims(dims), _texts(types), _texts(values), _dims(strides)))
                known = self._numbers[key] = len(self.distinct) - 1
        except (ValueError, RecursionError):
            self.odd += 1
            return -1
        return known


def _dims(values: Iterable[Any]) -> tuple[Dims, ...]:
    return tuple(nested_sizes(value) for value in values)


def nested_sizes(value: Any, level: int = 1) -> Dims:
    """Returns lists of sizes as tuples, -1 for what is not a number; raises ValueError where they are too deep."""
    if not isinstance(value, list):
        return ()
    if level > MAX_DIM_NESTING:
        raise ValueError("nested too deep")
    return tuple(nested_sizes(size, level + 1) if isinstance(size, list) else whole(size) for size in value)


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple((value if isinstance(value, str) else str(value))[:_MAX_TEXT] for value in values)


class CallTable:
    """Distinct collectives, numbered as they come.

    `elided` counts those whose ranks were not all written, `odd` the events whose arguments cannot be read.
    """

    def __init__(self) -> None:
        self.distinct: list[CollectiveArguments] = []
        self.elided = 0
        self.odd = 0
        self._listed = 0
        self._numbers: dict[tuple[str, ...], int] = {}

    def number(self, arguments: Mapping[str, Any]) -> int:
        """Returns the number of the collective that an event's arguments describe; -1 where they cannot be read."""
        try:
            key = tuple(str(arguments.get(name, "")) for name in _CALL_KEYS)
            known = self._numbers.get(key)
            if known is None:
                self.distinct.append(self._call(arguments))
                known = self._numbers[key] = len(self.distinct) - 1
        except (ValueError, RecursionError):
            self.odd += 1
            return -1
        return known

    def _call(self, arguments: Mapping[str, Any]) -> CollectiveArguments:
        name = str(arguments[COLLECTIVE])
        size = count(arguments.get("Group size"))
        if size > MAX_GPUS:
            raise ValueError("a group larger than any cluster")
        ranks, complete = group_ranks(arguments, size)
        splits = [listed(arguments.get(key)) for key in ("In split size", "Out split size")]
        self._listed += len(ranks) + sum(len(split) for split, _ in splits)
        check_limit(self._listed, _MAX_LISTED, "ranks and splits of collectives", None)
        self.elided += not (complete and all(whole_list for _, whole_list in splits))
        source, target = count(arguments.get("Src Rank")), count(arguments.get("Dst Rank"))
        peer = target if "send" in name.lower() or source < 0 else source
        group = arguments.get("Process Group Name", arguments.get("Process Group ID", ""))
        return CollectiveArguments(
            name=name,
            in_elements=count(arguments.get("In msg nelems")),
            out_elements=count(arguments.get("Out msg nelems")),
            dtype=str(arguments.get("dtype", "")),
            group=str(group),
            group_size=size,
            ranks=ranks,
            in_split=splits[0][0],
            out_split=splits[1][0],
            peer=peer,
            description=str(arguments.get("Process Group Description", "")),
        )


def group_ranks(arguments: Mapping[str, Any], size: int) -> tuple[tuple[int, ...], bool]:
    """Returns the ranks of a group, and whether they are known.

    Long lists are written with "..." in their middle. Their ranks follow from the first rank and the stride where these
    are given.
    """
    ranks, complete = listed(arguments.get("Process Group Ranks"))
    start, stride = whole(arguments.get("Global rank start")), whole(arguments.get("Global rank stride"))
    follow = () if ranks else strided(start, stride, size)
    return (follow, True) if follow else (ranks, complete)


@lru_cache(maxsize=16)
def strided(start: int, stride: int, size: int) -> tuple[int, ...]:
    """Returns the ranks of a group by its first rank, stride and size.

    Returns () where one of these is not given (below 0), or where no cluster has such ranks.
    """
    if start < 0 or stride <= 0 or size <= 0 or start + (size - 1) * stride >= MAX_GPUS:
        return ()
    return tuple(range(start, start + size * stride, stride))


def listed(value: object) -> tuple[tuple[int, ...], bool]:
    """Returns the whole numbers of a list or of its text, and whether they are complete.

    There are none where the text leaves some out ("..."), or where one of them is not a whole number from 0 on.
    """
    if isinstance(value, list):
        numbers = [count(number) for number in value]
    else:
        text = value if isinstance(value, str) else ""
        if _ELLIPSIS in text:
            return (), False
        numbers = [count(number) for number in _WHOLE.findall(text)]
    return ((), False) if -1 in numbers else (tuple(numbers), True)
