"""Defines the time that the host takes to issue what a script runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretrace.inputs.script.recording import Call, Event, HostCopy, HostWait, HostWork, Launch, Signature
from foretrace.inputs.torch_ops.kinds import plain_name
from foretrace.inputs.torch_ops.multi_tensor import LISTS
from foretrace.program.columns import Phase

SHARDED: Final = "fsdp::"
"""The beginning of the names of ops with which PyTorch's fully_shard copies parameters and gradients."""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds of the host for each thing that it does.

    The values are fitted to the forward, backward and optimizer of fifteen scripts at sizes that the host limits, on
    two virtual servers with H200, by non-negative least squares on relative errors; those of views and modules are
    given, since both go with launches. A script's total, fitted without it, is off by 14 % in the median and by up to
    39 %. The two servers differ as much for single scripts: see `pace`.

    Attributes:
        forward_s: For an op that launches kernels in the forward, or outside of all parts of the step.
        backward_s: The same in the backward, its node of the autograd graph included.
        optimizer_s: The same in the optimizer, where single tensors are worked on: often shards that Python dispatches.
        compiled_s: For an op or a fused kernel of a compiled region.
        kernel_s: For each kernel of an op after its first.
        view_s: For an op that launches nothing.
        module_s: For a call of a module.
        node_s: For a node of the autograd graph that launches nothing.
        call_s: For a collective or a transfer.
        copy_s: For a copy between host and device.
        wait_s: For what follows a wait: the thread wakes up, and the script logs, loads data, sets rates.
        list_op_s: For an op over lists of tensors.
        listed_tensor_s: The same op for each tensor of its first list.
        sharded_op_s: For an op of fully sharded modules (`fsdp::`), whose hooks are Python.
    """

    forward_s: float = 16e-6
    backward_s: float = 16e-6
    optimizer_s: float = 38e-6
    compiled_s: float = 26e-6
    kernel_s: float = 16e-6
    view_s: float = 1.5e-6
    module_s: float = 3e-6
    node_s: float = 0.0
    call_s: float = 36e-6
    copy_s: float = 108e-6
    wait_s: float = 1e-3
    list_op_s: float = 170e-6
    listed_tensor_s: float = 1.3e-6
    sharded_op_s: float = 450e-6

    def work_s(self, work: HostWork) -> float:
        """Returns the seconds of what the host did between two events."""
        return work.views * self.view_s + work.modules * self.module_s + work.nodes * self.node_s

    def launch_s(self, phase: Phase) -> float:
        """Returns the seconds of an op that launches kernels."""
        if phase is Phase.OPTIMIZER:
            return self.optimizer_s
        backward = (Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
        return self.backward_s if phase in backward else self.forward_s


def host_s(event: Event, signature: Signature | None, costs: HostCosts, kernels: int = 1) -> float:
    """Returns the seconds that the host takes for an event and for what it did since the event before.

    Args:
        event: What the host issued; waits take their time after they end.
        signature: The op of a launch.
        costs: What each thing takes.
        kernels: The kernels that the host launches for an op.
    """
    if isinstance(event, HostWait):
        return costs.wait_s
    if isinstance(event, Call):
        return costs.call_s + costs.work_s(event.host)
    if isinstance(event, HostCopy):
        return costs.copy_s + costs.work_s(event.host)
    if not isinstance(event, Launch):
        return 0.0
    own_s = costs.launch_s(event.place.phase) if signature is None else _op_s(event, signature, costs, kernels)
    return own_s + costs.work_s(event.host)


def _op_s(event: Launch, signature: Signature, costs: HostCosts, kernels: int) -> float:
    """Returns the seconds of an op that launches kernels."""
    if tensors := _listed(signature):
        return costs.list_op_s + tensors * costs.listed_tensor_s
    if event.region:
        return costs.compiled_s
    own_s = costs.sharded_op_s if signature.op.startswith(SHARDED) else costs.launch_s(event.place.phase)
    return own_s + max(kernels - 1, 0) * costs.kernel_s


def _listed(signature: Signature) -> int:
    """Returns the tensors in the first list of an op over lists; 0 for other ops."""
    op = plain_name(signature.op)
    dims = signature.inputs.dims[0] if signature.inputs.dims else ()
    over_lists = op in LISTS or op.startswith("foreach")
    return len(dims) if over_lists and not all(isinstance(size, int) for size in dims) else 0
