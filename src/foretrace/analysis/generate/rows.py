"""From what a module does to rows of an AICB file: computation, then one collective, in each of three passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from foretrace.analysis.generate.modules import Module
from foretrace.formats.aicb import Pass, Row
from foretrace.program.columns import Collective, Phase
from foretrace.step.spec import Call, Compute, Item

NOTHING = Pass(0, "NONE", 0)
UPDATE_NS = 100
"""The last column, which AICB always writes so and SimAI does not read."""

WORDS = {
    Collective.ALL_REDUCE: "ALLREDUCE",
    Collective.ALL_GATHER: "ALLGATHER",
    Collective.REDUCE_SCATTER: "REDUCESCATTER",
    Collective.ALL_TO_ALL: "ALLTOALL",
}
SUFFIXES = {"tp": "", "etp": "", "ep": "_EP"}

Seconds = Callable[[Compute], float]
"""What a computation takes."""


@dataclass(slots=True)
class _Stretch:
    """Computation up to a collective, or to the end: nanoseconds that give inputs' gradients (or the forward), and
    those that give weights'."""

    inputs_ns: float = 0.0
    weights_ns: float = 0.0
    call: Call | None = None

    def add(self, other: _Stretch) -> None:
        """Takes another's computation along."""
        self.inputs_ns += other.inputs_ns
        self.weights_ns += other.weights_ns


Listed = Callable[[Call], bool]
"""Whether a collective is listed."""


def rows_of(module: Module, listed: Listed, seconds: Seconds) -> list[Row]:
    """As many rows as there are collectives in the forward or the backward, whichever has more; at least one.

    A backward runs rows from the last to the first, so its collectives fill them from the last.
    """
    forward, backward = _stretches(module.forward, listed, seconds), _stretches(module.backward, listed, seconds)
    count = max(len(forward), len(backward), 1)
    rows = []
    for at in range(count):
        ahead = forward[at] if at < len(forward) else _Stretch()
        back = backward[count - 1 - at] if count - 1 - at < len(backward) else _Stretch()
        rows.append(
            Row(
                module.name if at == 0 else module.more,
                -1,
                _pass(ahead.inputs_ns + ahead.weights_ns, ahead.call),
                _pass(back.inputs_ns, back.call),
                _pass(back.weights_ns, None),
                UPDATE_NS,
            )
        )
    return rows


def _stretches(items: Iterable[Item], listed: Listed, seconds: Seconds) -> list[_Stretch]:
    """The items up to each collective; what follows the last one counts to it, since rows end with a collective."""
    found = [_Stretch()]
    for item in items:
        if isinstance(item, Call):
            if listed(item):
                found[-1].call = item
                found.append(_Stretch())
        elif item.phase == Phase.BACKWARD_WEIGHT:
            found[-1].weights_ns += 1e9 * seconds(item)
        else:
            found[-1].inputs_ns += 1e9 * seconds(item)
    last = found.pop()
    if found:
        found[-1].add(last)
        return found
    return [last]


def _pass(nanoseconds: float, call: Call | None) -> Pass:
    if call is None:
        return Pass(round(nanoseconds), "NONE", 0)
    return Pass(round(nanoseconds), WORDS[call.collective] + SUFFIXES[call.axis], call.bytes)


def step_row(name: str, *, forward: Pass = NOTHING, input_grad: Pass = NOTHING, weight_grad: Pass = NOTHING) -> Row:
    """A row of what happens once per step."""
    return Row(name, -1, forward, input_grad, weight_grad, UPDATE_NS)
