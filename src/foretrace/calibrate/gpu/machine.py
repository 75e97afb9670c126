"""Describes the machine that is measured: whether it can be, and what its GPU is."""

from __future__ import annotations

import platform
from importlib import import_module
from typing import Any, Final

from foretrace.basics.errors import InputError
from foretrace.calibrate.gpu.case import Bench
from foretrace.calibrate.gpu.monitor import query
from foretrace.hardware.device_names import preset_of

METHOD: Final = (
    "normal random operands, cold L2; burst: median of 5 windows after idle; sustained: median of 24 windows amid "
    "bf16 products (70 % of the time) and passes over memory"
)


def bench_here() -> Bench:
    """PyTorch on the GPU of this machine."""
    try:
        torch: Any = import_module("torch")
    except ImportError:
        raise InputError(
            "missing-package", "measuring needs PyTorch, which is not installed here", hint="pip install torch"
        ) from None
    if not torch.cuda.is_available():
        raise InputError(
            "no-device",
            "PyTorch finds no CUDA GPU on this machine",
            hint="run this where one is; CUDA_VISIBLE_DEVICES and `nvidia-smi` say what can be seen",
        )
    torch.backends.cuda.matmul.allow_tf32 = False
    return Bench(torch)


def facts_of(bench: Bench) -> dict[str, str]:
    """Returns what the header of a profile says about the machine."""
    torch = bench.torch
    properties = torch.cuda.get_device_properties(0)
    asked = ("driver_version", "clocks.max.sm", "power.limit")
    driver, clock, power = query(asked) or ("unknown",) * 3
    return {
        "gpu": str(properties.name),
        "preset": preset_of(str(properties.name)),
        "compute_units": str(properties.multi_processor_count),
        "memory_bytes": str(properties.total_memory),
        "max_clock_mhz": clock,
        "power_limit_w": power,
        "driver": driver,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "method": METHOD,
    }
