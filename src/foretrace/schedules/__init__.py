"""Pipeline schedules as data: made by name, checked, and run with free transfers.

schedule = make("zb-v", stages=4, microbatches=16)
check(schedule)
print(schedule.line(0))                       # F0 F1 F2 …
print(unit_times(schedule).idle_per_step)
"""

from foretrace.schedules.check import check
from foretrace.schedules.in_flight import peak_in_flight
from foretrace.schedules.registry import make, names
from foretrace.schedules.schedule import Action, ActionKind, Schedule, StageActions
from foretrace.schedules.times import UnitTimes, unit_times

__all__ = [
    "Action",
    "ActionKind",
    "Schedule",
    "StageActions",
    "UnitTimes",
    "check",
    "make",
    "names",
    "peak_in_flight",
    "unit_times",
]
