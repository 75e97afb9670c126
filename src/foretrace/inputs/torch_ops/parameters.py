"""Finds the parameters of a traced model from its gradients.

A profiler does not record the lists that optimizers are given.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from math import gcd

import numpy as np

from foretrace.inputs.profiler_trace.format.records import EventCategory, Inputs, RankProfile
from foretrace.inputs.torch_ops.tensors import Tensor, tensors

ACCUMULATE = "torch::autograd::AccumulateGrad"
"""The node that ends every parameter's backward; its input is the gradient."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Sizes of parameters, and how many elements they have in all (0: not recorded), of how many bytes each."""

    shapes: frozenset[tuple[int, ...]] = frozenset()
    elements: int = 0
    size: int = 2

    def holds_all(self, given: list[Tensor]) -> bool:
        """Whether these are all matrices of parameters, or their transposes: then no sample is among them."""
        large = [tensor.dims for tensor in given if tensor.count > 1]
        return bool(large) and all(
            len(dims) == 2 and (dims in self.shapes or dims[::-1] in self.shapes) for dims in large
        )


def gradients(trace: RankProfile) -> dict[int, Tensor]:
    """The events that accumulate a gradient, in order, with the gradient; only those whose size was recorded."""
    events = trace.events
    sized = (events.category == EventCategory.CPU_OP) & (events.inputs >= 0)
    ops = np.flatnonzero(trace.named(ACCUMULATE.__eq__) & sized)
    numbers = events.inputs[ops].tolist()
    given = {number: _first(trace.inputs[number]) for number in set(numbers)}
    return {
        op: tensor for op, number in zip(ops.tolist(), numbers, strict=True) if (tensor := given[number]) is not None
    }


def _first(inputs: Inputs) -> Tensor | None:
    """The gradient that an AccumulateGrad was given."""
    gradient = next((tensor for tensor in tensors(inputs) if tensor is not None), None)
    return Tensor(gradient.dims, gradient.type) if gradient is not None and gradient.dims else None


def parameters(trace: RankProfile) -> Parameters:
    """Returns the parameters that the accumulated gradients show.

    The gradient of each parameter comes once a microbatch. The number of microbatches in the trace is the greatest
    number that divides how often each shape comes (one parameter of a shape of its own settles it).
    """
    counts = Counter(gradients(trace).values())
    if not counts:
        return Parameters()
    rounds = reduce(gcd, counts.values())
    elements = sum(tensor.count * count // rounds for tensor, count in counts.items())
    size = max(counts, key=lambda tensor: tensor.count * counts[tensor]).size
    return Parameters(frozenset(tensor.dims for tensor in counts), elements, size)
