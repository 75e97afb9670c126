"""Pipeline schedules as data: which forward and backward each stage runs, in which order.

Read `schedule.py` first: what a schedule is. `registry.py` makes one by name, `check.py` refuses what cannot run,
`slots.py` is the graph that it runs to find deadlocks. `pipeline.py` writes the actions of all stages into a program,
`script.py` works out their order and waits as columns, and `routes.py` finds the transfers between them.

Each of `in_turn.py`, `interleaved.py`, `zero_bubble.py` and `dualpipe.py` is a family of schedules that the registry
lists. A new family is a new module and a line in the registry.
"""

from foretrace.schedules.check import check
from foretrace.schedules.registry import make, names
from foretrace.schedules.schedule import Action, ActionKind, Schedule, StageActions

__all__ = [
    "Action",
    "ActionKind",
    "Schedule",
    "StageActions",
    "check",
    "make",
    "names",
]
