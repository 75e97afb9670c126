"""States the policy by which tokens of a traced script choose experts.

`balanced` gives every expert the same share, `zipf:S` shares in proportion to 1 / rank**S, and a file has a line of
shares for each router, in the order in which routers run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import InputError, quoted
from foretrace.basics.files import given_path, read_whole
from foretrace.basics.numbers import NumberError, real_number

_HINT: Final = "balanced, zipf:1.2, or a file with a line of shares for each router"
MAX_EXPONENT: Final = 10.0
MAX_SHARE: Final = 1e12


@dataclass(frozen=True, slots=True)
class Routing:
    """The share of tokens that each expert gets: stated for each router, or by Zipf's law (exponent 0: balanced)."""

    exponent: float = 0.0
    shares: tuple[tuple[float, ...], ...] = ()

    def of(self, router: int, experts: int) -> Floats:
        """Returns the share of each expert of a router."""
        if self.shares:
            own = self.shares[router % len(self.shares)]
            if len(own) != experts:
                problem = f"the file of routing has {len(own)} shares, and a router chooses among {experts} experts"
                raise InputError("conflicting-values", problem)
            return np.array(own) / sum(own)
        weights = 1.0 / np.arange(1, experts + 1, dtype=np.float64) ** self.exponent
        return np.asarray(weights / weights.sum())


BALANCED: Final = Routing()


def parse_routing(text: str) -> Routing:
    """Reads a policy: balanced, zipf:1.2, or the name of a file with a line of shares per router.

    Raises:
        InputError: The text is none of these, or the file cannot be read.
    """
    if text == "balanced":
        return Routing()
    word, _, number = text.partition(":")
    if word == "zipf":
        try:
            return Routing(exponent=real_number(number or "1", most=MAX_EXPONENT))
        except NumberError as error:
            raise InputError(error.code, f"routing {quoted(text)}: a number {error.problem}", hint=_HINT) from None
    path = given_path(text)
    if not path.is_file:
        raise InputError("unknown-name", f"routing {quoted(text)} is neither a policy nor a file", hint=_HINT)
    lines = read_whole(path.files[0], "file of routing", _HINT).decode(errors="replace").splitlines()
    rows = [(number, line.partition("#")[0].split()) for number, line in enumerate(lines, 1)]
    shares = tuple(_shares(words, f"{text}:{number}") for number, words in rows if words)
    if not shares:
        raise InputError("empty-file", "the file of routing has no shares", where=text, hint=_HINT)
    return Routing(shares=shares)


def _shares(words: list[str], where: str) -> tuple[float, ...]:
    try:
        shares = tuple(real_number(word, most=MAX_SHARE) for word in words)
    except NumberError as error:
        raise InputError(error.code, f"a share {error.problem}", where=where, hint=_HINT) from None
    if sum(shares) <= 0:
        raise InputError("out-of-range", "all shares are 0", where=where, hint=_HINT)
    return shares


def chosen_experts(shares: Floats, rows: int, picks: int) -> Longs:
    """Returns the experts that each of `rows` tokens chooses: `picks` different ones, [rows, picks].

    Whole tokens approximate the shares. Systematic sampling spreads the tokens of each expert evenly. It takes points
    at equal distances on a line of length `picks`, of which expert e covers `picks` times its share, at most 1.
    """
    lengths = _capped(shares * picks)
    edges = np.cumsum(lengths)
    offsets = (np.arange(rows) * 0.6180339887498949) % 1.0
    points = offsets[:, None] + np.arange(picks)[None, :]
    return np.asarray(np.minimum(np.searchsorted(edges, points * (edges[-1] / picks), side="right"), len(shares) - 1))


def _capped(lengths: Floats) -> Floats:
    """Returns lengths of at most 1 with the same sum: no token chooses an expert twice."""
    total = lengths.sum()
    lengths = lengths.copy()
    for _ in range(len(lengths)):
        over = lengths > 1.0
        if not over.any():
            break
        free = ~over
        excess = float((lengths[over] - 1.0).sum())
        lengths[over] = 1.0
        rest = float(lengths[free].sum())
        if rest <= 0:
            break
        lengths[free] *= 1 + excess / rest
    return lengths * (total / lengths.sum()) if lengths.sum() < total else lengths
