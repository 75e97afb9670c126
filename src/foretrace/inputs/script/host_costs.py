"""Defines the time that the host takes to issue what a script runs."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.inputs.script.recording import Call, Event, HostCopy, HostWork, Launch, Signature
from foretrace.inputs.torch_ops.kinds import plain_name
from foretrace.inputs.torch_ops.multi_tensor import LISTS
from foretrace.program.columns import Phase


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds of the host for each thing that it does.

    The values are assumptions, of the size that eager PyTorch has on a server CPU; they are not fitted to measurements.

    Attributes:
        forward_s: For an op that launches kernels in the forward, or outside of all parts of the step.
        backward_s: The same in the backward.
        optimizer_s: The same in the optimizer.
        view_s: For an op that launches nothing.
        module_s: For a call of a module.
        node_s: For a node of the autograd graph.
        call_s: For a collective or a transfer.
        list_op_s: For an op over lists of tensors.
        listed_tensor_s: The same op for each tensor of its first list.
    """

    forward_s: float = 8e-6
    backward_s: float = 8e-6
    optimizer_s: float = 8e-6
    view_s: float = 2e-6
    module_s: float = 6e-6
    node_s: float = 6e-6
    call_s: float = 30e-6
    list_op_s: float = 40e-6
    listed_tensor_s: float = 1e-6

    def work_s(self, work: HostWork) -> float:
        """Returns the seconds of what the host did between two events."""
        return work.views * self.view_s + work.modules * self.module_s + work.nodes * self.node_s

    def launch_s(self, phase: Phase) -> float:
        """Returns the seconds of an op that launches kernels."""
        if phase is Phase.OPTIMIZER:
            return self.optimizer_s
        backward = (Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
        return self.backward_s if phase in backward else self.forward_s


def host_s(event: Event, signature: Signature | None, costs: HostCosts) -> float:
    """Returns the seconds that the host takes for an event and for what it did since the event before.

    Args:
        event: What the host issued; waits take no time of their own.
        signature: The op of a launch.
        costs: What each thing takes.
    """
    if isinstance(event, Call):
        return costs.call_s + costs.work_s(event.host)
    if isinstance(event, HostCopy):
        return costs.launch_s(event.place.phase) + costs.work_s(event.host)
    if not isinstance(event, Launch):
        return 0.0
    tensors = 0 if signature is None else _listed(signature)
    own_s = costs.list_op_s + tensors * costs.listed_tensor_s if tensors else costs.launch_s(event.place.phase)
    return own_s + costs.work_s(event.host)


def _listed(signature: Signature) -> int:
    """Returns the tensors in the first list of an op over lists; 0 for other ops."""
    op = plain_name(signature.op)
    dims = signature.inputs.dims[0] if signature.inputs.dims else ()
    over_lists = op in LISTS or op.startswith("foreach")
    return len(dims) if over_lists and not all(isinstance(size, int) for size in dims) else 0
