"""Turns the items of a module into rows of an AICB file: computation, then one collective, in each of three passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from foretrace.export.aicb.modules import Module
from foretrace.inputs.aicb.format import Pass, WorkloadRow
from foretrace.program.columns import Collective, Phase
from foretrace.step.spec import Call, Compute, HostWork, Item, Work

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
"""Returns what a computation takes."""

Listed = Callable[[Call], bool]
"""Returns whether a collective is listed."""


@dataclass(slots=True)
class _Span:
    """Computation up to a collective, or to the end of a pass, in nanoseconds.

    In a backward, `inputs_ns` gives input gradients and `weights_ns` weight gradients.
    """

    inputs_ns: float = 0.0
    weights_ns: float = 0.0
    call: Call | None = None


@dataclass(frozen=True, slots=True)
class FileRow:
    """A row of a file: what is computed forward and backward, in whole nanoseconds, and communicated after it."""

    name: str
    forward_ns: int
    forward_call: Call | None
    inputs_ns: int
    inputs_call: Call | None
    weights_ns: int

    def row(self) -> WorkloadRow:
        """Returns the row as it is written."""
        forward, inputs = _pass(self.forward_ns, self.forward_call), _pass(self.inputs_ns, self.inputs_call)
        return WorkloadRow(self.name, -1, forward, inputs, _pass(self.weights_ns, None), UPDATE_NS)


def rows_of(module: Module, listed: Listed, seconds: Seconds) -> list[FileRow]:
    """Returns as many rows as there are collectives in the forward or the backward, whichever has more; at least one.

    A backward runs rows from the last to the first, so its collectives fill them from the last.
    """
    forward, backward = _spans(module.forward, listed, seconds), _spans(module.backward, listed, seconds)
    count = max(len(forward), len(backward), 1)
    rows = []
    for at in range(count):
        ahead = forward[at] if at < len(forward) else _Span()
        back = backward[count - 1 - at] if count - 1 - at < len(backward) else _Span()
        rows.append(
            FileRow(
                module.name if at == 0 else module.more,
                round(ahead.inputs_ns + ahead.weights_ns),
                ahead.call,
                round(back.inputs_ns),
                back.call,
                round(back.weights_ns),
            )
        )
    return rows


def work_of_rows(name: str, rows: Iterable[FileRow], output_bytes: int = 0) -> Work:
    """Returns what rows do: the work that a file can express."""
    forward: list[Item] = []
    backward: list[list[Item]] = []
    for row in rows:
        forward += _items(row.name, row.forward_ns, row.forward_call, Phase.FORWARD)
        inputs = _items(row.name, row.inputs_ns, row.inputs_call, Phase.BACKWARD_INPUT)
        backward.append(inputs + _items(row.name, row.weights_ns, None, Phase.BACKWARD_WEIGHT))
    items = tuple(item for row_items in reversed(backward) for item in row_items)
    return Work(name, tuple(forward), (), items, output_bytes=output_bytes)


def _items(name: str, nanoseconds: int, call: Call | None, phase: Phase) -> list[Item]:
    computed: list[Item] = [Compute(name, phase, seconds=1e-9 * nanoseconds)]
    if call is None:
        return computed
    return [*computed, replace(call, phase=phase, concurrent=None, way=None, sends=None)]


def _spans(items: Iterable[Item], listed: Listed, seconds: Seconds) -> list[_Span]:
    """Returns the items up to each collective; what follows the last counts to it, since rows end with a collective."""
    spans = [_Span()]
    for item in items:
        if isinstance(item, Call):
            if listed(item):
                spans[-1].call = item
                spans.append(_Span())
            continue
        taken_ns = 1e9 * (item.seconds if isinstance(item, HostWork) else seconds(item))
        if item.phase == Phase.BACKWARD_WEIGHT:
            spans[-1].weights_ns += taken_ns
        else:
            spans[-1].inputs_ns += taken_ns
    last = spans.pop()
    if not spans:
        return [last]
    spans[-1].inputs_ns += last.inputs_ns
    spans[-1].weights_ns += last.weights_ns
    return spans


def _pass(nanoseconds: int, call: Call | None) -> Pass:
    if call is None:
        return Pass(nanoseconds, "NONE", 0)
    return Pass(nanoseconds, WORDS[call.collective] + SUFFIXES[call.axis], call.bytes)


def step_row(
    name: str, *, forward: Pass = NOTHING, input_grad: Pass = NOTHING, weight_grad: Pass = NOTHING
) -> WorkloadRow:
    """Returns a row of what happens once per step."""
    return WorkloadRow(name, -1, forward, input_grad, weight_grad, UPDATE_NS)
