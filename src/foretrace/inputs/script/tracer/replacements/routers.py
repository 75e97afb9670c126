"""Lets routers of a script choose experts by a policy.

An op that picks the largest of at most `MAX_EXPERTS` numbers within a module (top-k, argmax, sort) is a router.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.script.routing import Routing, chosen_experts
from foretrace.inputs.script.tracer.dispatch import Recorder
from foretrace.inputs.script.tracer.op_plans import plan_of, tensors_in
from foretrace.inputs.script.tracer.storages import is_simulated
from foretrace.program.columns import Phase

MAX_EXPERTS: Final = 1024
"""The most numbers among which a router picks; among more, a script picks words of a vocabulary."""


def install(recorder: Recorder, routing: Routing, notes: list[Diagnostic]) -> None:
    """Makes the positions that routers pick follow the policy."""
    state = {"routers": 0}

    def pick(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tensors_in(args, kwargs)
        device = recorder.device_for(given, kwargs)
        result = recorder.simulate(func, plan_of(func), args, kwargs, given, device)
        scores, positions = given[0], result if isinstance(result, torch.Tensor) else result[1]
        place = recorder.log.place()
        routes = place.module >= 0 and place.phase in (Phase.FORWARD, Phase.RECOMPUTE)
        if not routes or device.type != "cuda" or recorder.known(scores) is not None:
            return result
        if _is_router(scores, positions, args, kwargs):
            route(positions, scores)
        return result

    def route(positions: torch.Tensor, scores: torch.Tensor) -> None:
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
        recorder.handlers[f"aten::{word}"] = pick


def _is_router(scores: torch.Tensor, positions: torch.Tensor, args: Sequence[Any], kwargs: Any) -> bool:
    """Returns whether an op picks among the last dimension of a matrix of scores."""
    if positions.dtype != torch.int64 or not 2 <= scores.dim() <= 3 or not 1 < scores.size(-1) <= MAX_EXPERTS:
        return False
    dims = [value for value in (*args[1:], kwargs.get("dim")) if type(value) is int]
    last = {-1, scores.dim() - 1}
    picks_all = positions.size() == scores.size()
    return picks_all or positions.dim() == scores.dim() or bool(last & set(dims))
