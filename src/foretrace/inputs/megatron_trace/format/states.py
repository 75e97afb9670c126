"""Names the parts of a pipeline schedule as traces do: warmup, help, steady, cooldown, finalize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_FORWARD, _BACKWARD = "forward_step", "backward_step"
_FOLLOWS = {
    "get_batch": _FORWARD,
    "recv_forward": _FORWARD,
    "send_forward": _FORWARD,
    "recv_backward": _BACKWARD,
    "send_backward": _BACKWARD,
}
"""Whose word an op takes over, that of the same microbatch."""


class OpKey(NamedTuple):
    """An op and its batch id."""

    op: str
    batch: int


def states(turns: Sequence[OpKey], stage: int, stages: int) -> list[str | None]:
    """The word for each op of a stage, given in the order of issue; None where there is none.

    Steady is where forwards and backwards alternate, as Megatron's 1F1B counts it: after one forward per later stage.
    """
    known = _alternation([turn for turn in turns if turn.op in (_FORWARD, _BACKWARD)], stages - stage - 1)
    first_steady = next((turn for turn in turns if turn.op == _FORWARD and known[turn] == "steady"), None)
    words: list[str | None] = []
    for turn in turns:
        followed = OpKey(_FOLLOWS.get(turn.op, turn.op), turn.batch)
        word = known.get(followed)
        if turn.op == "recv_forward" and followed == first_steady:
            word = "help"
        elif word is None and (turn.op == "optimizer_step" or turn.op.endswith("_allreduce")):
            word = "finalize"
        words.append(word)
    return words


def _alternation(turns: Sequence[OpKey], later_stages: int) -> dict[OpKey, str]:
    """Which forwards and backwards are steady: a forward that a backward follows, and that backward."""
    forwards = sum(turn.op == _FORWARD for turn in turns)
    leading = next((at for at, turn in enumerate(turns) if turn.op == _BACKWARD), len(turns))
    warmup = min(later_stages, forwards)
    # Where all forwards come first, only Megatron's count tells whether the last of them is already steady.
    all_lead = leading == forwards and warmup != forwards - 1
    words: dict[OpKey, str] = {}
    for at, turn in enumerate(turns):
        if turn.op == _FORWARD:
            followed = at + 1 < len(turns) and turns[at + 1].op == _BACKWARD
            words[turn] = "steady" if followed and not all_lead else "warmup"
        else:
            after_steady = at > 0 and turns[at - 1].op == _FORWARD and words[turns[at - 1]] == "steady"
            words[turn] = "steady" if after_steady else "cooldown"
    return words
