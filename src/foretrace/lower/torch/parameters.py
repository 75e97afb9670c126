"""The parameters of a traced model, as its gradients show them: a profiler does not record the lists that optimizers
are given."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from math import gcd, prod

import numpy as np

from foretrace.formats.profiler_trace.records import Category, ProfilerTrace
from foretrace.lower.torch.tensors import Tensor, tensors

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
        large = [one.dims for one in given if one.count > 1]
        return bool(large) and all(
            len(dims) == 2 and (dims in self.shapes or dims[::-1] in self.shapes) for dims in large
        )


def parameters(trace: ProfilerTrace) -> Parameters:
    """What the accumulated gradients say. Each parameter's comes once a microbatch: how many of these the trace has
    is the greatest number that divides how often each shape comes (one parameter of a shape of its own settles it)."""
    found: Counter[Tensor] = Counter()
    events = trace.events
    nodes = {number for number, name in enumerate(trace.strings) if name == ACCUMULATE}
    ops = events.of(Category.CPU_OP)
    ops = ops[np.isin(events.name[ops], list(nodes)) & (events.inputs[ops] >= 0)]
    for number, count in Counter(events.inputs[ops].tolist()).items():
        gradient = next((one for one in tensors(trace.inputs[number]) if one is not None), None)
        if gradient is not None and gradient.dims:
            found[Tensor(gradient.dims, gradient.type)] += count
    if not found:
        return Parameters()
    rounds = reduce(gcd, found.values())
    elements = sum(prod(one.dims) * count // rounds for one, count in found.items())
    size = max(found, key=lambda one: one.count * found[one]).size
    return Parameters(frozenset(one.dims for one in found), elements, size)
