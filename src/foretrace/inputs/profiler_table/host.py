"""Finds what the host did during the profiled steps, and how much of it another step would do again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foretrace.inputs.profiler_table.format import TableRow
from foretrace.inputs.profiler_table.labels import Label
from foretrace.inputs.profiler_table.rows import ClassifiedRows, RowKind, host_s
from foretrace.inputs.torch_ops.ranges import OPTIMIZER_STEP, PROFILER_STEP

START_UP_CALL_S: Final = 0.05
"""A call that takes this long on average is no transfer of a step but something set up: NCCL's communicators and their
connections take tenths of seconds to seconds on the first call, later calls microseconds."""
START_UP_SHARE: Final = 0.3
SLOW_LAUNCH_S: Final = 2e-4
"""A launch takes the host 3 to 12 µs; averages of so much more are modules being loaded, or a full queue."""

_CALL: Final = re.compile(r"(cuda|hip|cu|ze)\w*")


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds of the host over the whole table, and how many steps that were."""

    steps: int
    steps_from: str
    wall_s: float
    """From the first step's begin to the last one's end, as labels say; else what its rows add up to."""
    wall_from: str
    start_up_s: float
    start_up_row: str
    """The row that shows it; "" where there is none."""
    waits_s: float
    """In calls that wait for a stream or event."""
    artefacts_s: float
    """The profiler's own work."""
    launches: int
    launch_s: float
    """Host time in launches."""
    self_sum_s: float
    """What the column Self CPU adds up to."""

    @property
    def work_s(self) -> float:
        """A step's own work: without start-up, waiting and the profiler."""
        return max(self.wall_s - self.start_up_s - self.waits_s - self.artefacts_s, 0.0) / self.steps


def host_time(rows: ClassifiedRows, labels: Sequence[Label]) -> HostTime:
    """Reads off the host's side of a table."""
    steps, steps_from = count_steps(rows, labels)
    wall, wall_from = _wall(rows, labels, steps)
    start_up, shown_by = _start_up(rows, wall)
    runtime = rows.of(RowKind.RUNTIME)
    waits = sum(_self(row) for row in runtime if row.name.endswith(("StreamSynchronize", "EventSynchronize")))
    launches = [row for row in runtime if _is_launch(row)]
    return HostTime(
        steps=steps,
        steps_from=steps_from,
        wall_s=wall,
        wall_from=wall_from,
        start_up_s=start_up,
        start_up_row=shown_by,
        waits_s=min(waits, max(wall - start_up, 0.0)),
        artefacts_s=sum(_self(row) for row in rows.of(RowKind.ARTEFACT)),
        launches=sum(row.calls for row in launches),
        launch_s=sum(_self(row) for row in launches),
        self_sum_s=sum(_self(row) for row in rows.table.rows),
    )


def count_steps(rows: ClassifiedRows, labels: Sequence[Label]) -> tuple[int, str]:
    """Returns how many training steps a table holds, and what tells their number."""
    for prefix in (PROFILER_STEP, OPTIMIZER_STEP):
        marks = [row for row in rows.of(RowKind.LABEL) if row.name.startswith(prefix) and row.calls > 0]
        if marks:
            return max(row.calls for row in marks), f"calls of {marks[0].name}"
    step = _step_label(labels)
    if step is not None:
        return max(step.calls, 1), f"calls of {step.name}"
    return 1, "nothing marks steps: taken as one"


def _step_label(labels: Sequence[Label]) -> Label | None:
    return next((label for label in labels if label.how.endswith("named as a step")), None)


def _wall(rows: ClassifiedRows, labels: Sequence[Label], steps: int) -> tuple[float, str]:
    step = _step_label(labels)
    if step is not None:
        # A row limit may have left labels of other steps out.
        return step.host_s * steps / max(step.calls, 1), f"CPU total of {step.name}"
    # Waiting in backward() for the autograd thread, and for the device, is no work.
    hosts = rows.of(RowKind.OP, RowKind.NODE, RowKind.ENGINE, RowKind.LABEL, RowKind.COLLECTIVE, RowKind.RUNTIME)
    busy = [row for row in hosts if row.name != "backward" and not row.name.endswith("DeviceSynchronize")]
    return sum(_self(row) for row in busy), "Self CPU of its rows"


def _start_up(rows: ClassifiedRows, wall_s: float) -> tuple[float, str]:
    """Host time that only the first step takes, and the row that shows it."""
    calls = [row for row in rows.of(RowKind.COLLECTIVE) if (row.cpu_average_s or 0.0) >= START_UP_CALL_S]
    calls = [row for row in calls if host_s(row) >= START_UP_SHARE * wall_s]
    if calls:
        longest = max(calls, key=host_s)
        return min(host_s(longest), wall_s), longest.name
    launches = [row for row in rows.of(RowKind.RUNTIME) if _is_launch(row)]
    slow = [row for row in launches if (row.cpu_average_s or 0.0) >= SLOW_LAUNCH_S and _self(row) >= 0.5 * wall_s]
    return (min(_self(slow[0]), wall_s), slow[0].name) if slow else (0.0, "")


def _is_launch(row: TableRow) -> bool:
    return "Launch" in row.name and _CALL.fullmatch(row.name) is not None


def _self(row: TableRow) -> float:
    return max(row.self_cpu_s or 0.0, 0.0)
