"""The description of a training step, and the one function that writes it as a program.

Read `spec.py` first: every input that is a pipelined step describes itself as a `StepSpec`. `build.py` has
`build_step`, `check.py` refuses a description that does not fit together, and `actions.py`, `units.py`, `segments.py`
and `groups.py` write its parts. `contract.py` writes what only waits for itself as one op, and `pattern.py` is such a
program without durations. `end.py`, `buckets.py`, `optimizer.py`, `sharding.py` and `memory_rules.py` hold the rules
that several inputs share. `memory.py` finds the peak of memory without running the step.
"""

from foretrace.step.build import build_step
from foretrace.step.spec import (
    Call,
    ChunkSpec,
    Compute,
    Cut,
    EndItem,
    HostWork,
    Item,
    Launches,
    RoleSpec,
    Sharding,
    StepSpec,
    Unit,
    Work,
)

__all__ = [
    "Call",
    "ChunkSpec",
    "Compute",
    "Cut",
    "EndItem",
    "HostWork",
    "Item",
    "Launches",
    "RoleSpec",
    "Sharding",
    "StepSpec",
    "Unit",
    "Work",
    "build_step",
]
