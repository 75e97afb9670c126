"""Prices collectives as NCCL runs them: what NCCL chooses, and how long the choice takes.

Read `network` first, then `plan`, which prices the calls of one collective in one group. `tuning` is NCCL's rule for
choosing an algorithm and protocol, with the constants of `tuning_tables`; `algorithms/` times each choice. A `layout`
says where the ranks of a group are; `group` adds the rates of its `machine` and the `channels` that NCCL runs. `bound`
is the time that no call can beat, `bottleneck` names what limits a call. `settings` are what a user states about NCCL,
`environment` the texts of NCCL_ALGO and NCCL_PROTO. `buffers` counts the memory that a communicator holds.
"""

from foretrace.cost.network.nccl.environment import Forced
from foretrace.cost.network.nccl.layout import GroupLayout
from foretrace.cost.network.nccl.machine import NcclMachine, machine_of
from foretrace.cost.network.nccl.network import NcclNetwork

__all__ = ["Forced", "GroupLayout", "NcclMachine", "NcclNetwork", "machine_of"]
