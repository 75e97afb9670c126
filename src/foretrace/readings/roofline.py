"""Places the kernels of a step on the roofline of its GPU: how much they compute for each byte that they move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.hardware.cluster import Gpu
from foretrace.program.columns import Kind
from foretrace.program.kernels import PEAK_OF, parse_kernels
from foretrace.program.timeline import Timeline


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """Ops of a step that launch the same kernels.

    Attributes:
        name: The name of the first of them.
        kernels: Kernels that they launch, as `program/kernels.py` writes it.
        seconds: Their time on one rank, mean over ranks.
        flops: FLOPs of one of them.
        moved_bytes: Bytes that one of them reads and writes in the memory of the GPU.
        duration_s: Mean duration of one of them.
        dtype: The dtype in which it multiplies; empty where it does not.
    """

    name: str
    kernels: str
    seconds: float
    flops: float
    moved_bytes: float
    duration_s: float
    dtype: str

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes

    @property
    def flops_per_s(self) -> float:
        """The rate at which it computes."""
        return self.flops / self.duration_s

    @property
    def bytes_per_s(self) -> float:
        """The rate at which it moves bytes."""
        return self.moved_bytes / self.duration_s

    def roof_share(self, gpu: Gpu) -> float:
        """Returns the share of the time that the datasheet's figures would allow."""
        peak = gpu.peak_flops.get(PEAK_OF.get(self.dtype, self.dtype), 0.0)
        needed_s = max(self.flops / peak if peak else 0.0, self.moved_bytes / gpu.memory_bytes_per_s)
        return needed_s / self.duration_s


def roofline(timeline: Timeline) -> tuple[RooflinePoint, ...]:
    """Returns the kernels of a step whose sizes are known, those that take most time first."""
    graph = timeline.graph
    kernel, kind = graph.ops.ints("kernel")[graph.op], graph.ops.ints("kind")[graph.op]
    duration_s = timeline.end_s - timeline.start_s
    sized = (kernel >= 0) & (kind == Kind.COMPUTE) & (graph.ops.floats("moved_bytes")[graph.op] > 0) & (duration_s > 0)
    nodes = np.flatnonzero(sized)
    if not len(nodes):
        return ()
    numbers, first, group = np.unique(kernel[nodes], return_index=True, return_inverse=True)
    weight = graph.weight[nodes]
    seconds = np.bincount(group, weights=weight * duration_s[nodes])
    count = np.bincount(group, weights=weight)
    strings, ops = graph.program.strings, graph.op[nodes[first]]
    flops, moved = graph.ops.floats("flops")[ops], graph.ops.floats("moved_bytes")[ops]
    names = graph.ops.ints("name")[ops]
    points = [
        RooflinePoint(
            name=strings[int(names[row])],
            kernels=strings[int(number)],
            seconds=float(seconds[row]) / graph.program.world,
            flops=float(flops[row]),
            moved_bytes=float(moved[row]),
            duration_s=float(seconds[row] / count[row]),
            dtype=_dtype(strings[int(number)]) if flops[row] > 0 else "",
        )
        for row, number in enumerate(numbers.tolist())
    ]
    return tuple(sorted(points, key=lambda point: -point.seconds))


def _dtype(kernels: str) -> str:
    """Returns the dtype of the kernel that computes most; empty where none multiplies."""
    parsed = [(times * kernel.flops, getattr(kernel, "dtype", "")) for times, kernel in parse_kernels(kernels)]
    flops, dtype = max(parsed, default=(0.0, ""))
    return dtype if flops > 0 else ""
