"""Reads questions to the network: names of collectives, sizes and numbers of ranks, single or as ranges.

`all-reduce`, `allreduce`, `AllReduce`, `all_reduce_perf`, `AR`     one collective
`256MiB`, `1MiB,4MiB`                                               sizes written out
`8B..8GiB`, `8B..8GiB:x4`                                           from low to high, multiplied by 4 each time
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError, UsageError, did_you_mean, shortened
from foretrace.basics.units import format_bytes, format_count, parse_bytes, parse_count, parse_factor
from foretrace.cost.network.nccl_tests.names import collective_called
from foretrace.program.columns import Collective, label
from foretrace.program.dispatch import parse_dispatch

MAX_BYTES: Final = 2**50
"""More than any buffer of any GPU holds."""

MAX_RANKS: Final = 2**20
"""Ranks of all groups together: more than any machine has GPUs."""

MAX_VALUES: Final = 200
"""More rows would not be read."""

_SHORT: Final = {
    "ar": Collective.ALL_REDUCE,
    "ag": Collective.ALL_GATHER,
    "rs": Collective.REDUCE_SCATTER,
    "a2a": Collective.ALL_TO_ALL,
    "send": Collective.TRANSFER,
    "recv": Collective.TRANSFER,
    "p2p": Collective.TRANSFER,
}
"""Names that people use, other than those of nccl-tests and programs."""

KNOWN: Final = tuple(
    label(collective).replace("_", "-") for collective in Collective if collective is not Collective.NONE
)

EXPERTS: Final = ("dispatch", "combine")
"""All-to-alls of tokens: to their experts, and back."""

DEFAULT_WAY: Final = "style=deepep experts=256 topk=8 groups=8 chosen=4"
"""DeepSeek-V3's."""


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """A collective as a user called it; where it takes tokens to experts or back, `way` says how they go."""

    collective: Collective
    name: str
    way: str = ""
    notes: tuple[Diagnostic, ...] = ()


def read_collective(name: str, way: str | None = None) -> CollectiveRequest:
    """The collective that is called so, however it is spelled; `way` is how tokens go to experts, in the words of
    programs (`style=deepep experts=256 topk=8`, commas or spaces between)."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower().removesuffix("_perf"))
    own = {word.replace("-", ""): word for word in KNOWN}
    tokens = letters in EXPERTS or way is not None
    if letters in EXPERTS:
        collective: Collective | None = Collective.ALL_TO_ALL
    elif letters in own:
        collective = Collective[own[letters].replace("-", "_").upper()]
    else:
        collective = _SHORT.get(letters) or collective_called(name)
    if collective is None:
        known = (*KNOWN, *EXPERTS)
        near = did_you_mean(name, [*known, "send"])
        raise InputError(
            "unknown-collective",
            f'collective "{shortened(name)}" is not known{near}',
            hint=f"known: {', '.join(known)}",
        )
    if not tokens:
        return CollectiveRequest(collective, name_of(collective))
    if collective is not Collective.ALL_TO_ALL:
        raise UsageError(
            "option-not-for-command",
            f"a way to experts is for dispatch, combine and all-to-all, not for {name_of(collective)}",
        )
    dispatch = " ".join(["dispatch", *re.split(r"[,\s]+", (way or DEFAULT_WAY).strip(", \t\n"))])
    parse_dispatch(dispatch)
    notes = (
        ()
        if way
        else (Diagnostic("note", "assumed", f"how tokens go to experts is taken to be {DEFAULT_WAY} (--way)"),)
    )
    return CollectiveRequest(collective, letters if letters in EXPERTS else name_of(collective), dispatch, notes)


def name_of(collective: Collective) -> str:
    """How answers call a collective."""
    return label(collective).replace("_", "-")


def read_sizes(texts: Iterable[str]) -> list[int]:
    """Sizes in bytes, in the order in which they are written, each once."""
    return _values(texts, parse_bytes, format_bytes, "size", "1MiB or 8B..8GiB")


def read_ranks(text: str) -> list[int]:
    """Numbers of ranks, in the order in which they are written, each once."""
    return _values([text], parse_count, format_count, "--ranks", "64 or 2..1024")


def check_size(size_bytes: int) -> None:
    """Raises an error where no buffer is so large, or there is none."""
    if size_bytes < 1:
        raise InputError("out-of-range", "a collective of 0 bytes moves nothing", hint="the smallest size is 1B")
    if size_bytes > MAX_BYTES:
        raise InputError(
            "out-of-range", "the size is more than any GPU holds", hint=f"at most {format_bytes(MAX_BYTES)}"
        )


def check_ranks(ranks: int, groups: int) -> None:
    """Raises an error where there is no rank, or more than any machine has."""
    if ranks < 1:
        raise InputError("out-of-range", "a group of 0 ranks communicates nothing", hint="for example --ranks 64")
    if groups < 1:
        raise InputError("out-of-range", "there is at least 1 group", hint="for example --groups 8")
    if ranks * groups > MAX_RANKS:
        words = "so many ranks" if groups == 1 else "so many groups of so many ranks"
        raise InputError(
            "out-of-range", f"{words} are more than any machine has", hint=f"at most {MAX_RANKS:,} ranks in all"
        )


def _values(
    texts: Iterable[str], parse: Callable[..., int], shown: Callable[[int], str], what: str, example: str
) -> list[int]:
    values: dict[int, None] = {}
    for text in texts:
        # As in a sweep, 1,024 would be two values; where that is plainly not meant, it is an error.
        for part in text.split(","):
            if re.fullmatch(r"\s*0[0-9]+\s*", part):
                raise UsageError(
                    "bad-value", f"{what} {text}: a comma parts two values", hint=f"write {text.replace(',', '')}"
                )
            values.update(dict.fromkeys(_range(part.strip(), parse, shown, f"{what} {part.strip()}", example)))
        if len(values) > MAX_VALUES:
            raise UsageError(
                "out-of-range", f"{what} {text}: more than {MAX_VALUES} values", hint="take larger steps: :x4"
            )
    return list(values)


def _range(
    text: str, parse: Callable[..., int], shown: Callable[[int], str], where: str, example: str
) -> Iterable[int]:
    """One value, or those of `low..high` and `low..high:x2`; a sweep's `low:high:x2` is read too."""
    parts = [part.strip() for part in text.replace("..", ":").split(":")]
    if len(parts) == 1:
        return [parse(text, where=where)]
    if len(parts) > 3 or not all(parts):
        raise UsageError("bad-value", f"{where}: that is no range", hint=f"example: {example}, or 8..4096:x4")
    low, high = parse(parts[0], where=where), parse(parts[1], where=where)
    step = parse_factor(parts[2].removeprefix("x"), where=where) if len(parts) == 3 else 2.0
    if low > high:
        raise UsageError(
            "bad-value", f"{where}: {shown(low)} is more than {shown(high)}", hint="the smaller end comes first"
        )
    if low < 1 or step < 1.01:
        raise UsageError(
            "out-of-range", f"{where}: a range starts above 0 and grows", hint=f"example: {example}, or 8..4096:x4"
        )
    return _steps(low, high, step)


def _steps(low: int, high: int, step: float) -> list[int]:
    values = [low]
    while len(values) <= MAX_VALUES and values[-1] * step <= high:
        values.append(max(round(values[-1] * step), values[-1] + 1))
    return values
