"""Estimates the time that the host takes to issue the ops of a script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretrace.inputs.script.recording import Event, HostCopy, HostEffort, HostWait, IssuedCall, KernelLaunch, Signature
from foretrace.inputs.torch_ops.kinds import plain_name
from foretrace.inputs.torch_ops.multi_tensor import LISTS
from foretrace.program.program import Source

HOST_TIMES: Final = Source("host of PyTorch, from its calls", 0.7, 1.45)
"""The source of the host's times. Steps of one script, `moe_loop`, took 139 to 191 ms of the host within one run."""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds that the host takes for each kind of work.

    Launches, Python calls, collectives and reads began as non-negative least squares on relative errors over whole
    steps of scripts that the host limits (`benchmarks/truth/h200_scripts.jsonl`: all of `hosts`, `moe_loop` and
    `small_eager` of `steps`, four of `more`) and were then rounded and set between two virtual servers with an H200,
    by these same rows. They are no test of these constants. `benchmarks/traced_scripts.py --hosts` prints the errors.
    The values of views, further kernels, lists and waits come from bare launches of PyTorch's C++ code; `compiled_s`
    fits one compiled script. Reads are lower than in the fit, since a step also waits for the kernels before each
    read.

    Attributes:
        launch_s: For an op that launches kernels, its node of the autograd graph included.
        python_s: For a call of a Python function by the script or by PyTorch.
        compiled_s: For an op or a fused kernel of a compiled region.
        kernel_s: For each kernel of an op after its first.
        view_s: For an op that launches nothing.
        list_op_s: For an op over lists of tensors.
        listed_tensor_s: The same op for each tensor of its first list.
        call_s: For a collective or a transfer.
        copy_s: For a copy between host and device.
        read_s: For reading a value from the device, such as a count: the copy, and the wake-up after it.
        wait_s: For the wake-up after any other wait for the device.
    """

    launch_s: float = 13.5e-6
    python_s: float = 1.9e-6
    compiled_s: float = 26e-6
    kernel_s: float = 4e-6
    view_s: float = 1e-6
    list_op_s: float = 170e-6
    listed_tensor_s: float = 1.3e-6
    call_s: float = 62e-6
    copy_s: float = 30e-6
    read_s: float = 550e-6
    wait_s: float = 250e-6

    def effort_s(self, effort: HostEffort) -> float:
        """Returns the seconds of what the host did between two events."""
        return effort.views * self.view_s + effort.calls * self.python_s


def host_s(event: Event, signature: Signature | None, costs: HostCosts, kernels: int = 1) -> float:
    """Returns the seconds that the host takes for an event and for what it did since the event before.

    Args:
        event: What the host issued. The time of a wait is that after its end.
        signature: The op of a launch.
        costs: The seconds of each kind of work.
        kernels: The kernels that the host launches for an op.
    """
    if isinstance(event, HostWait):
        return costs.wait_s
    if isinstance(event, IssuedCall):
        return costs.call_s + costs.effort_s(event.host)
    if isinstance(event, HostCopy):
        own_s = costs.read_s if event.to_host and event.blocking else costs.copy_s
        return own_s + costs.effort_s(event.host)
    if not isinstance(event, KernelLaunch):
        return 0.0
    own_s = costs.launch_s if signature is None else _op_s(event, signature, costs, kernels)
    return own_s + costs.effort_s(event.host)


def _op_s(event: KernelLaunch, signature: Signature, costs: HostCosts, kernels: int) -> float:
    """Returns the seconds of an op that launches kernels."""
    if tensors := _listed_tensors(signature):
        return costs.list_op_s + tensors * costs.listed_tensor_s
    if event.region:
        return costs.compiled_s
    return costs.launch_s + max(kernels - 1, 0) * costs.kernel_s


def _listed_tensors(signature: Signature) -> int:
    """Returns the tensors in the first list of an op over lists; 0 for other ops."""
    op = plain_name(signature.op)
    dims = signature.inputs.dims[0] if signature.inputs.dims else ()
    over_lists = op in LISTS or op.startswith("foreach")
    return len(dims) if over_lists and not all(isinstance(size, int) for size in dims) else 0
