"""Decides how tokens choose experts, which depends on values that are known on a GPU only.

Ops that pick the largest of few numbers (top-k, argmax, sort) are taken for routers: their positions follow a policy.
`balanced` gives every expert the same share, `zipf:S` shares in proportion to 1 / rank**S, and a file has a line of
shares for each router in the order in which routers run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.script.tracer.dispatch import Recorder, plan_of, tensors_in
from foretrace.inputs.script.tracer.storages import is_simulated
from foretrace.program.columns import Phase

MAX_EXPERTS: Final = 1024
"""Numbers among which a router picks; among more, words of a vocabulary are meant."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The share of tokens that each expert gets: of every router, or by the exponent of Zipf's law (0: balanced)."""

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


def parse_routing(text: str) -> Routing:
    """Reads a policy: balanced, zipf:1.2, or the name of a file with a line of shares per router."""
    if text == "balanced":
        return Routing()
    word, _, number = text.partition(":")
    try:
        if word == "zipf":
            return Routing(exponent=float(number or 1.0))
        lines = [line.split("#")[0].split() for line in Path(text).read_text().splitlines()]
        return Routing(shares=tuple(tuple(float(share) for share in line) for line in lines if line))
    except (OSError, ValueError):
        raise InputError(
            "bad-value", f"routing {text} cannot be read", hint="balanced, zipf:1.2, or a file of shares"
        ) from None


def chosen_experts(shares: Floats, rows: int, picks: int) -> Longs:
    """Returns the experts that each of `rows` tokens chooses: `picks` different ones, [rows, picks].

    Shares are met as closely as whole tokens allow. Systematic sampling spreads each expert's tokens evenly: points at
    equal distances on a line of `picks` on which expert e has a length of `picks` times its share, at most 1.
    """
    lengths = _capped(shares * picks)
    edges = np.cumsum(lengths)
    offsets = (np.arange(rows) * 0.6180339887498949) % 1.0
    points = offsets[:, None] + np.arange(picks)[None, :]
    return np.minimum(np.searchsorted(edges, points * (edges[-1] / picks), side="right"), len(shares) - 1)


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


def install(recorder: Recorder, routing: Routing, notes: list[Diagnostic]) -> None:
    """Gives positions that routers pick values by the policy."""
    state = {"routers": 0}

    def picked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tensors_in(args, kwargs)
        device = recorder._device(given, kwargs)
        result = recorder.simulate(func, plan_of(func), args, kwargs, given, device)
        scores, positions = given[0], result if isinstance(result, torch.Tensor) else result[1]
        place = recorder.log.place()
        routes = place.module >= 0 and place.phase in (Phase.FORWARD, Phase.RECOMPUTE)
        if not routes or device.type != "cuda" or recorder.known(scores) is not None:
            return result
        if _is_router(scores, positions, args, kwargs):
            _give(positions, scores)
        return result

    def _give(positions: torch.Tensor, scores: torch.Tensor) -> None:
        experts = scores.size(-1)
        picks = positions.size(-1) if positions.dim() == scores.dim() else 1
        rows = positions.numel() // max(picks, 1)
        router, state["routers"] = state["routers"], state["routers"] + 1
        chosen = chosen_experts(routing.of(router, experts), rows, picks)
        if is_simulated(positions):
            recorder.storages.set_shadow(positions, torch.from_numpy(chosen).reshape(positions.size()))
        if not router:
            policy = "by Zipf's law" if routing.exponent else "as the file says" if routing.shares else "evenly"
            text = f"tokens choose among {experts} experts {policy}; values that decide it are known on a GPU only"
            notes.append(Diagnostic("note", "routing-assumed", text))

    for word in ("topk", "argmax", "max", "sort", "argsort"):
        recorder.handlers[f"aten::{word}"] = picked


def _is_router(scores: torch.Tensor, positions: torch.Tensor, args: Sequence[Any], kwargs: Any) -> bool:
    """Returns whether an op picks among the last dimension of a matrix of scores."""
    if positions.dtype != torch.int64 or not 2 <= scores.dim() <= 3 or not 1 < scores.size(-1) <= MAX_EXPERTS:
        return False
    dims = [value for value in (*args[1:], kwargs.get("dim")) if type(value) is int]
    last = {-1, scores.dim() - 1}
    picks_all = positions.size() == scores.size()
    return picks_all or positions.dim() == scores.dim() or bool(last & set(dims))
