"""Reads the arguments of events: an op's inputs, and collectives as `record_param_comms` describes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from marshal import dumps
from typing import Any, Final

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
_WHOLE = re.compile(r"-?\d+")


def whole(value: object) -> int:
    """Returns a whole number of 64 bits from a number or its text; -1 where there is none."""
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -(1 << 63) <= number < 1 << 63 else -1


class InputTable:
    """Distinct inputs, numbered as they come."""

    def __init__(self) -> None:
        self.distinct: list[Inputs] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, arguments: Mapping[str, Any]) -> int:
        """Returns the number of an op's inputs; -1 where they were not recorded."""
        dims = arguments.get(DIMS[0])
        if dims is None:
            dims = arguments.get(DIMS[1])
        if not isinstance(dims, list):
            return -1
        parts = (dims, *(arguments.get(key) for key in _PARTS))
        # Nested lists cannot be keys; their bytes can, and are made faster than any text.
        key = dumps(parts, 0)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.distinct)
            types, values, strides = (part if isinstance(part, list) else [] for part in parts[1:])
            self.distinct.append(Inputs(_dims(dims), _texts(types), _texts(values), _dims(strides)))
        return known


def _dims(values: Iterable[Any]) -> tuple[Dims, ...]:
    return tuple(_sizes(value) for value in values)


def _sizes(value: Any) -> Dims:
    if not isinstance(value, list):
        return ()
    return tuple(_sizes(size) if isinstance(size, list) else whole(size) for size in value)


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(value if isinstance(value, str) else str(value) for value in values)


class CallTable:
    """Distinct collectives, numbered as they come. `elided` counts those whose ranks were not all written."""

    def __init__(self) -> None:
        self.distinct: list[CollectiveArguments] = []
        self.elided = 0
        self._numbers: dict[tuple[str, ...], int] = {}

    def number(self, arguments: Mapping[str, Any]) -> int:
        """Returns the number of the collective that an event's arguments describe."""
        key = tuple(str(arguments.get(name, "")) for name in _CALL_KEYS)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.distinct)
            self.distinct.append(self._call(arguments))
        return known

    def _call(self, arguments: Mapping[str, Any]) -> CollectiveArguments:
        name = str(arguments[COLLECTIVE])
        size = whole(arguments.get("Group size"))
        ranks, complete = group_ranks(arguments, size)
        splits = [listed(arguments.get(key)) for key in ("In split size", "Out split size")]
        self.elided += not (complete and all(whole_list for _, whole_list in splits))
        source, target = whole(arguments.get("Src Rank")), whole(arguments.get("Dst Rank"))
        peer = target if "send" in name.lower() or source < 0 else source
        group = arguments.get("Process Group Name", arguments.get("Process Group ID", ""))
        return CollectiveArguments(
            name=name,
            in_elements=whole(arguments.get("In msg nelems")),
            out_elements=whole(arguments.get("Out msg nelems")),
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


def strided(start: int, stride: int, size: int) -> tuple[int, ...]:
    """Returns the ranks of a group by its first rank, stride and size; () where one of these is not given (below 0)."""
    return tuple(range(start, start + size * stride, stride)) if start >= 0 and stride > 0 and size > 0 else ()


def listed(value: object) -> tuple[tuple[int, ...], bool]:
    """Returns the whole numbers of a list or of its text, and whether they are complete.

    There are none where the text leaves some out ("...").
    """
    if isinstance(value, list):
        return tuple(whole(number) for number in value), True
    text = value if isinstance(value, str) else ""
    if _ELLIPSIS in text:
        return (), False
    return tuple(map(int, _WHOLE.findall(text))), True
