"""Collectives as NCCL runs them: what it chooses, and what the choice takes."""

from foretrace.cost.network.nccl.environment import Forced
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.machine import NcclMachine, machine_of
from foretrace.cost.network.nccl.network import NcclNetwork

__all__ = ["Forced", "GroupLayout", "NcclMachine", "NcclNetwork", "machine_of"]
