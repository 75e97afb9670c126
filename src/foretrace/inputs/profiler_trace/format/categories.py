"""What Kineto calls its events, from PyTorch 1.8 to today, on every device it knows."""

from __future__ import annotations

from typing import Final

from foretrace.inputs.profiler_trace.format.records import EventCategory

_NAMES: Final = {
    EventCategory.CPU_OP: "cpu_op operator",
    EventCategory.ANNOTATION: "user_annotation",
    EventCategory.RUNTIME: "cuda_runtime cuda_driver runtime driver hip_runtime hip_driver xpu_runtime xpu_driver "
    "mtia_runtime glow_runtime privateuse1_runtime privateuse1_driver",
    EventCategory.KERNEL: "kernel",
    EventCategory.MEMCPY: "gpu_memcpy memcpy",
    EventCategory.MEMSET: "gpu_memset memset",
    EventCategory.SYNC: "cuda_sync",
    EventCategory.DEVICE_ANNOTATION: "gpu_user_annotation",
    EventCategory.OVERHEAD: "overhead",
    EventCategory.PYTHON: "python_function",
}

CATEGORIES: Final = {name: category for category, names in _NAMES.items() for name in names.split()}
"""Of names in small letters."""

FLOWS: Final = frozenset({"ac2g", "async_cpu_to_gpu", "fwdbwd", "forward_backward", "async", "cpu_to_cuda"})
"""Arrows of a viewer: what they join is in the arguments of events too."""

SPANS: Final = frozenset({"trace", "spans"})
"""The profiler's own window."""

LEGACY: Final = {"CPU functions": EventCategory.CPU_OP, "CUDA functions": EventCategory.KERNEL}
"""Of events without a category by their process: what PyTorch wrote before Kineto, and on Windows after."""
