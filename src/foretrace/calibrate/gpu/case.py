"""Describes a kernel to measure, and how to launch it with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from foretrace.program.kernels import Kernel

Launch = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Bench:
    """PyTorch and the device on which operands are made."""

    torch: Any
    device: str = "cuda"

    def dtype(self, name: str) -> Any:
        """PyTorch's dtype of one of our names."""
        torch = self.torch
        return {
            "bf16": torch.bfloat16,
            "fp16": torch.float16,
            "fp32": torch.float32,
            "tf32": torch.float32,
            "fp8": torch.float8_e4m3fn,
            "fp8_block": torch.float8_e4m3fn,
        }[name]

    def normal(self, *shape: int, dtype: str = "bf16") -> Any:
        """Random operands: a GPU draws less power on constants, and then runs faster than it ever does in training."""
        wide = dtype in ("fp16", "fp32", "tf32")  # bits that bf16 does not have draw power too
        made = self.torch.randn(shape, device=self.device, dtype=self.dtype(dtype) if wide else self.torch.bfloat16)
        return made if wide else made.to(self.dtype(dtype))

    def allocated_bytes(self) -> int:
        """Returns the bytes of GPU memory that tensors occupy now."""
        return int(self.torch.cuda.memory_allocated())

    def indices(self, count: int, below: int) -> Any:
        """Random indices, uniform."""
        return self.torch.randint(0, below, (count,), device=self.device)


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel and how to make one set of its operands, returning what launches it."""

    kernel: Kernel
    make: Callable[[Bench], Launch]


@dataclass(frozen=True, slots=True)
class CaseSet:
    """Cases measured together, under a name that progress shows."""

    name: str
    cases: Sequence[Case]
