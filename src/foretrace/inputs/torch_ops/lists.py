"""Finds what ops over lists of tensors move: updates of optimizers, norms of gradients.

A profiler does not record the sizes of such lists. They are taken to hold the parameters, as the gradients show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from foretrace.basics.arrays import Longs
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.torch_ops.multi_tensor import list_stream
from foretrace.inputs.torch_ops.parameters import Parameters
from foretrace.inputs.torch_ops.ranges import OPTIMIZER_STEP
from foretrace.program.kernels import Stream

FASTEST_BYTES_PER_S: Final = 2e13
"""No GPU's memory or cache moves more: an optimizer's op that would is over something smaller than all parameters."""


def list_kernels(
    trace: RankProfile, parameters: Parameters, launched: Mapping[str, Sequence[Longs]]
) -> Iterator[tuple[Longs, Stream]]:
    """Yields what ops over lists move, by what each launched.

    `launched` has, by the plain name of ops, the kernels of every call in the trace. A call is over all parameters
    where the optimizer steps as often, else over a part, in proportion to its time.
    """
    if not parameters.elements:
        return
    events, steps = trace.events, _optimizer_steps(trace)
    for word, calls in launched.items():
        seconds = [float(events.duration_s[call].sum()) for call in calls]
        rounds = min(steps, len(calls)) or len(calls)
        for launches, call_s in zip(calls, seconds, strict=True):
            share = 1.0 if rounds == len(calls) else rounds * call_s / (sum(seconds) or 1.0)
            kernel = list_stream(word, round(parameters.elements * share), parameters.size)
            if kernel is not None and kernel.moved_bytes < FASTEST_BYTES_PER_S * call_s:
                yield launches, kernel


def _optimizer_steps(trace: RankProfile) -> int:
    """How often the optimizer stepped."""
    marked = trace.named(lambda name: name.startswith(OPTIMIZER_STEP))
    return int((marked & (trace.events.thread >= 0)).sum())
