"""Describes how tokens reach their experts and come back, and how many places a token goes to on the way.

An all-to-all of tokens carries its way in its `kernel` text (`dispatch style=deepep experts=256 topk=8`). One without
such a text goes as NCCL's all-to-all, every copy of a token by itself. Its bytes are what a rank gives: copies of its
tokens, one for each of their experts, or one for each rank that has any of them where the way saves the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from math import comb
from typing import Final

from foretrace.basics.errors import InputError, did_you_mean, shortened

STYLES: Final = ("hierarchical", "deepep", "hybridep", "low_latency")
"""Ways other than NCCL's all-to-all. hierarchical: first within a node to the GPU of the right number, then between
GPUs of that number. deepep, hybridep: a token crosses NICs once for each node that has any of its experts, and goes on
over links from there, to each rank once. low_latency: every copy straight over the NICs."""

COPIES: Final = "copies"
"""The `kernel` text of a collective whose bytes copy engines move, without SMs."""

ONCE_PER_RANK: Final = ("deepep", "hybridep")
"""Ways that send a token once to each rank, however many of its experts are there."""


_HINT: Final = (
    f"dispatch style={'|'.join(STYLES)} experts=256 topk=8, groups=8 chosen=4 where routing is limited, sms=32 of its"
    " kernels"
)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A way, and what decides how far tokens spread: each goes to `topk` of `experts`; where routing is limited, to
    those of `chosen` of the `groups` into which experts are divided in order (DeepSeek-V3: 4 of 8, a group a node)."""

    style: str
    experts: int
    topk: int
    groups: int = 1
    chosen: int = 1
    sms: int = 0
    """SMs that its kernels hold; 0: the usual number."""

    def destinations(self, places: int) -> float:
        """Returns how many of `places`, among which experts are divided evenly, have an expert of a token.

        The number is a mean over tokens. All experts are taken to be equally likely.
        """
        return _destinations(self, places)

    def given(self, ranks: int) -> float:
        """Copies of a token that its rank gives to the all-to-all."""
        return self.destinations(ranks) if self.style in ONCE_PER_RANK else float(self.topk)


@lru_cache(maxsize=4096)
def _destinations(dispatch: Dispatch, places: int) -> float:
    """Routing takes the groups with the best experts, so a token whose best `topk` lie in more groups than it may go to
    has experts in every chosen one, and any other token has those it would have had without a limit."""
    here, group = max(round(dispatch.experts / places), 1), dispatch.experts // dispatch.groups
    every = comb(dispatch.experts, dispatch.topk)
    if dispatch.groups == dispatch.chosen:
        return places * (1 - comb(max(dispatch.experts - here, 0), dispatch.topk) / every)
    share = 0.0
    for hit in range(1, min(dispatch.groups, dispatch.topk) + 1):
        chance = comb(dispatch.groups, hit) * _ways(hit, group, dispatch.topk, group) / every
        if chance > 0:
            share += chance * _chance(min(hit, dispatch.chosen), dispatch, here, group)
    return places * share


def _chance(hit: int, dispatch: Dispatch, here: int, group: int) -> float:
    """Returns the chance that a place with `here` consecutive experts has an expert of a token with `hit` groups."""
    if here >= group:
        held = round(here / group)
        return 1 - comb(max(dispatch.groups - held, 0), hit) / comb(dispatch.groups, hit)
    missed = _ways(hit, group, dispatch.topk, group - here) / _ways(hit, group, dispatch.topk, group)
    return hit / dispatch.groups * (1 - missed)


def _ways(groups: int, group: int, topk: int, first: int) -> int:
    """Counts the ways in which `topk` experts lie in `groups`, some in each, `first` of them in the first group."""
    others = groups - 1
    return sum(
        (-1) ** left * comb(others, left) * (comb(rest + first, topk) - comb(rest, topk))
        for left in range(others + 1)
        for rest in ((others - left) * group,)
    )


MAX_EXPERTS: Final = 100_000
MAX_TOPK: Final = 1_000
MAX_GROUPS: Final = 1_000
MAX_SMS: Final = 4_096
"""Limits on a way: chances of tokens are sums over groups of binomial coefficients."""

NAMES: Final = tuple(field.name for field in fields(Dispatch))
"""What a way says of itself."""


def dispatch_text(dispatch: Dispatch) -> str:
    """A way as text: what differs from the defaults, `name=value`."""
    values = ((field, getattr(dispatch, field.name)) for field in fields(dispatch))
    return " ".join(["dispatch", *(f"{field.name}={value}" for field, value in values if value != field.default)])


@lru_cache(maxsize=4096)
def parse_dispatch(text: str) -> Dispatch:
    """Reads what `dispatch_text` wrote."""
    word, *pairs = text.split(" ")
    values: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in NAMES or not value or name in values:
            raise _unclear("bad-value", text, _why_not(pair, values))
        values[name] = value
    missing = [name for name in ("style", "experts", "topk") if name not in values]
    if word != "dispatch" or missing:
        raise _unclear("missing-field", text, f"{missing[0]}=… is missing" if word == "dispatch" else "")
    style = values.pop("style")
    if style not in STYLES:
        known = f"known: {', '.join(STYLES)}; NCCL's own all-to-all goes without a style"
        raise _unclear(
            "unknown-name", text, f'style "{shortened(style)}" is not known{did_you_mean(style, STYLES)}', known
        )
    wrong = [f"{name}={value}" for name, value in values.items() if not re.fullmatch("[0-9]{1,9}", value)]
    if wrong:
        raise _unclear("bad-value", text, f"{shortened(wrong[0])} is no whole number")
    dispatch = Dispatch(style, **{name: int(value) for name, value in values.items()})
    limits = (("experts", MAX_EXPERTS), ("topk", MAX_TOPK), ("groups", MAX_GROUPS), ("sms", MAX_SMS))
    if any(getattr(dispatch, name) > most for name, most in limits):
        problem = f"at most {', '.join(f'{name}={most:,}' for name, most in limits)} can be meant"
        raise InputError("out-of-range", f'"{shortened(text)}": {problem}', hint=_HINT)
    open_experts = dispatch.experts * dispatch.chosen // max(dispatch.groups, 1)
    if not 0 < dispatch.chosen <= dispatch.groups <= dispatch.experts:
        raise _unclear(
            "out-of-range",
            text,
            f"{dispatch.chosen} of {dispatch.groups} groups of {dispatch.experts} experts cannot be chosen",
        )
    if not 0 < dispatch.topk <= open_experts:
        raise InputError(
            "out-of-range",
            f'"{shortened(text)}": a token cannot go to {dispatch.topk} of {open_experts} experts',
            hint=_HINT,
        )
    if dispatch.experts % dispatch.groups:
        problem = f"{dispatch.experts} experts are not {dispatch.groups} equal groups"
        raise InputError("not-divisible", f'"{shortened(text)}": {problem}', hint="groups divide the experts")
    return dispatch


def _why_not(pair: str, values: dict[str, str]) -> str:
    """Returns what is wrong with one word of a way, after those that were right."""
    name, equals, _ = pair.partition("=")
    if name in values:
        return f"{name} is said twice"
    if name in NAMES:
        return f"{name}=… is missing its value"
    if pair in STYLES:
        return f'"{shortened(pair)}" alone; did you mean style={pair}?'
    return f'"{shortened(name if equals else pair)}" is not known (known: {", ".join(NAMES)})'


def _unclear(code: str, text: str, why: str, hint: str = _HINT) -> InputError:
    return InputError(
        code, f'"{shortened(text)}" does not say how tokens go to experts{": " if why else ""}{why}', hint=hint
    )
