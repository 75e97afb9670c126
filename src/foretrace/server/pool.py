"""Shares worker processes among users: which task is done next, by which worker, and for how long.

Quick answers come first, then the opening of uploads, then whole answers, and searches last. Among tasks of one
priority, owners take turns. The first of several workers does no searches, so that quick answers stay quick, and an
owner has only some of the others for searches. A quick answer that would have to wait interrupts a whole answer, a
comparison or a download. The interrupted task is put back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from foretrace.basics.errors import ForetraceError, InputError
from foretrace.basics.processes import say
from foretrace.server.errors import error_of
from foretrace.server.processes import WorkerLimits, WorkerProcess

TaskKind = Literal["quick", "open", "full", "compare", "export", "plan", "warm"]

MAX_QUEUED: Final = 200
MAX_QUEUED_OF_OWNER: Final = 40
MAX_PREEMPTIONS: Final = 2
"""A task is interrupted for quick ones at most this often."""
MAX_LOST_STARTS: Final = 2
"""How often a task is tried again after its worker ended before taking it."""
GRACE_S: Final = 3.0
"""Seconds from an interrupt until a worker that does not stop is killed."""
SEARCH_GRACE_S: Final = 20.0
"""The same for a search, which ranks the plans that it has simulated and explains the best before it ends."""
MIN_LIFE_S: Final = 1.0
"""Seconds that a worker must have lived for its successor to be started at once."""
MAX_BACK_OFF_S: Final = 60.0
"""Seconds until a worker is started again that has failed many times before it did any work."""

MAX_FAILED_STARTS: Final = 3
_SEE_TERMINAL: Final = "the terminal of foretrace serve says why"

_PRIORITY: Final[dict[TaskKind, int]] = {"quick": 0, "open": 1, "full": 2, "compare": 2, "export": 2, "plan": 3}
NICENESS: Final = 5
"""By how much all workers but the first give way, so that quick answers stay quick where CPUs are few."""
_BROKEN: Final = ("memory-exhausted", "internal-error")
"""Errors after which a worker is replaced: what it keeps may be damaged."""
_GIVES_WAY: Final = ("full", "compare", "export", "warm")
"""Tasks that can be begun again: an export replaces its file only once it is complete."""


@dataclass(eq=False, slots=True)
class PoolTask:
    """A piece of work for a worker.

    Attributes:
        kind: What is to be done.
        message: The rest of the message to the worker.
        owner: The user whose turn the task takes.
        limit_s: Seconds of work after which it is interrupted, in all its attempts together.
        watch: Called with the events of the worker, and with `queued` when its position changes.
        result: What the worker returned, or the error.
    """

    kind: TaskKind
    message: dict[str, Any]
    owner: str
    limit_s: float
    watch: Callable[[str, dict[str, Any]], None]
    result: asyncio.Future[dict[str, Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    used_s: float = 0.0
    """Seconds that were worked on it in earlier attempts, or on an earlier stage of the same job."""
    position: int = 0
    preemptions: int = 0
    lost_starts: int = 0
    """Times that it was given to a worker that had ended."""
    error: ForetraceError | None = None
    """The reason for an interrupt by the server, such as a cancelled job or the time limit."""

    def fail(self, error: ForetraceError) -> None:
        """Ends the task with an error."""
        if not self.result.done():
            self.result.set_exception(error)
            self.result.exception()  # Marks the exception as retrieved: a cancelled request may not wait for it.


@dataclass(eq=False, slots=True)
class _Slot:
    """A place for a worker process, with the task that it does."""

    number: int
    process: WorkerProcess | None = None
    task: PoolTask | None = None
    number_sent: int = 0
    is_ready: bool = False
    is_warm: bool = False
    is_giving_way: bool = False
    has_begun: bool = False
    """Whether the worker has taken the task: one that ended before cannot have ended because of it."""
    is_interrupt_due: bool = False
    """Whether the task is to be interrupted once the worker has taken it."""
    failures: int = 0
    """Starts and warm-ups that failed since the last task that was done."""
    began_s: float = 0.0
    """When it was given its task, in the time of the event loop."""
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        return self.is_ready and self.task is None


class WorkerPool:
    """A number of worker processes and the tasks that wait for them.

    Args:
        count: How many processes.
        limits: What each of them may use.
    """

    def __init__(self, count: int, limits: WorkerLimits) -> None:
        self._limits = limits
        self._slots = [_Slot(number) for number in range(count)]
        self._queues: list[OrderedDict[str, deque[PoolTask]]] = [OrderedDict() for _ in range(4)]
        self._number = 0
        self._is_closed = False
        self._max_searches = max((count - 1) // 2, 1)
        """Searches of one owner that run at a time."""
        self._failed_starts = 0
        """Workers that ended before they were ready, since the last that was."""

    def start(self) -> None:
        """Starts the processes."""
        for slot in self._slots:
            self._start(slot)

    def close(self) -> None:
        """Ends the processes, and fails the tasks that wait or run."""
        self._is_closed = True
        running = [slot.task for slot in self._slots if slot.task is not None]
        for task in [*self._waiting(), *running]:
            task.fail(InputError("interrupted", "the server is shutting down"))
        for queue in self._queues:
            queue.clear()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.kill()

    def submit(self, task: PoolTask, *, is_follow_up: bool = False) -> None:
        """Puts a task into its queue.

        Args:
            task: The task.
            is_follow_up: Whether it continues a task that was taken already, so that it is not refused.

        Raises:
            InputError: Too many tasks wait (`busy`), or too many of this owner (`too-many`).
        """
        hint = "try again in a moment"
        if not is_follow_up:
            waiting = list(self._waiting())
            if len(waiting) >= MAX_QUEUED:
                raise InputError("busy", f"{len(waiting)} jobs wait for this server already", hint=hint)
            if sum(other.owner == task.owner for other in waiting) >= MAX_QUEUED_OF_OWNER:
                raise InputError("too-many", f"you already have {MAX_QUEUED_OF_OWNER} pending jobs", hint=hint)
        self._queues[_PRIORITY[task.kind]].setdefault(task.owner, deque()).append(task)
        self._dispatch()
        if task.kind == "quick" and task in self._waiting():
            self._make_way()

    def cancel(self, task: PoolTask) -> None:
        """Ends a task: one that waits is dropped, one that runs is interrupted and may return what it has."""
        task.error = task.error or InputError("interrupted", "cancelled")
        if self._remove(task):
            task.fail(task.error)
            self._tell_positions()
        slot = next((slot for slot in self._slots if slot.task is task), None)
        if slot is not None:
            slot.is_giving_way = False
            self._interrupt(slot)

    def _waiting(self) -> Iterator[PoolTask]:
        """Yields the tasks that wait, about in the order in which they are done."""
        for queue in self._queues:
            turns = [list(tasks) for tasks in queue.values()]
            for turn in range(max(map(len, turns), default=0)):
                yield from (tasks[turn] for tasks in turns if turn < len(tasks))

    def _start(self, slot: _Slot) -> None:
        slot.process, slot.is_ready, slot.is_warm = None, False, False
        if self._is_closed:
            return
        try:
            slot.process = WorkerProcess(
                self._limits,
                NICENESS if slot.number else 0,
                lambda process, message: self._on_message(slot, process, message),
                lambda process: self._on_end(slot, process),
            )
        except OSError as error:
            say(f"error: a worker process cannot be started: {error}  [worker-died]")
            self._count_failed_start(slot)
            self._start_later(slot)

    def _start_later(self, slot: _Slot, min_s: float = 0.0) -> None:
        """Starts a worker at once, or after a time that grows with the failures before."""
        delay_s = min(MIN_LIFE_S * 2.0 ** min(slot.failures - 1, 30), MAX_BACK_OFF_S) if slot.failures else 0.0
        delay_s = max(delay_s, min_s)
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self._start, slot)
        else:
            self._start(slot)

    def _count_failed_start(self, slot: _Slot) -> None:
        """Notes that a worker has ended before it was ready; ends all tasks where no worker can be started."""
        slot.failures += 1
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS and not any(other.is_ready for other in self._slots):
            for task in list(self._waiting()):
                self._remove(task)
                task.fail(InputError("worker-died", "the processes that compute cannot be started", hint=_SEE_TERMINAL))

    def _dispatch(self) -> None:
        """Gives tasks to idle workers."""
        for task in list(self._waiting()):
            slot = self._slot_for(task)
            if slot is not None and self._remove(task):
                self._give(slot, task)
        for slot in self._slots:
            if slot.is_idle and not slot.is_warm:
                self._give(slot, PoolTask("warm", {}, "", 60.0, lambda *_: None))
        self._tell_positions()

    def _slot_for(self, task: PoolTask) -> _Slot | None:
        """Returns the idle worker for a task, if any: for a quick one the first, whose caches they share."""
        idle = [slot for slot in self._slots if slot.is_idle]
        if task.kind == "plan":
            owners = [slot.task.owner for slot in self._slots if slot.task is not None and slot.task.kind == "plan"]
            if owners.count(task.owner) >= self._max_searches:
                return None
            idle = [slot for slot in idle if slot.number or len(self._slots) == 1]
        if not idle:
            return None
        return idle[0 if task.kind == "quick" else -1]

    def _remove(self, task: PoolTask) -> bool:
        """Takes a task out of its queue, if it waits; its owner's next turn comes after all others'."""
        queue = self._queues[_PRIORITY[task.kind]]
        tasks = queue.get(task.owner, deque())
        if task not in tasks:
            return False
        tasks.remove(task)
        queue.move_to_end(task.owner)
        if not tasks:
            del queue[task.owner]
        return True

    def _give(self, slot: _Slot, task: PoolTask) -> None:
        assert slot.process is not None
        self._number += 1
        slot.number_sent = self._number
        slot.task, slot.is_giving_way, slot.is_warm = task, False, True
        slot.has_begun = slot.is_interrupt_due = False
        slot.process.send({**task.message, "number": self._number, "kind": task.kind})
        if task.position:
            task.position = 0
            task.watch("queued", {"position": 0})
        loop = asyncio.get_running_loop()
        slot.began_s = loop.time()
        left_s = max(task.limit_s - task.used_s, 0.0)
        slot.timers.append(loop.call_later(left_s, self._give_up, slot, task))

    def _give_up(self, slot: _Slot, task: PoolTask) -> None:
        """Interrupts a task whose time is over."""
        if slot.task is task:
            hint = "ask for less, or start the server with a longer --time-limit"
            slot.is_giving_way = False
            task.error = task.error or InputError("gave-up", f"the job took more than {task.limit_s:.3g} s", hint=hint)
            self._interrupt(slot)

    def _make_way(self) -> None:
        """Interrupts a task for a quick one that waits, where one may be."""
        for slot in self._slots:
            task = slot.task
            if slot.is_giving_way:
                return
            if task is not None and task.kind in _GIVES_WAY and task.preemptions < MAX_PREEMPTIONS and not task.error:
                slot.is_giving_way = True
                task.preemptions += 1
                self._interrupt(slot)
                return

    def _interrupt(self, slot: _Slot) -> None:
        if slot.process is None or slot.task is None:
            return
        if slot.has_begun:
            slot.process.interrupt()
        else:
            slot.is_interrupt_due = True
        grace_s = SEARCH_GRACE_S if slot.task.kind == "plan" else GRACE_S
        loop = asyncio.get_running_loop()
        slot.timers.append(loop.call_later(grace_s, self._kill, slot, slot.task))

    @staticmethod
    def _kill(slot: _Slot, task: PoolTask | None) -> None:
        """Ends a worker that still does a task after it was interrupted."""
        if slot.task is task and slot.process is not None:
            slot.process.kill()

    def _on_message(self, slot: _Slot, process: WorkerProcess, message: dict[str, Any]) -> None:
        if process is not slot.process:
            return
        event, task = message["event"], slot.task
        if event == "ready":
            slot.is_ready, self._failed_starts = True, 0
        elif task is None or message["number"] != slot.number_sent:
            return  # of a task that was given up
        elif event == "begun":
            slot.has_begun = True
            if slot.is_interrupt_due:
                process.interrupt()
            return
        elif event == "done":
            self._end(slot)
            slot.failures = 0
            if not task.result.done():
                task.result.set_result(message["result"])
        elif event == "failed":
            gives_way = slot.is_giving_way and message["error"]["code"] == "interrupted"
            self._end(slot)
            if gives_way and task.kind != "warm":
                self._put_back(task)
            elif gives_way:
                slot.is_warm = False
            else:
                slot.failures += task.kind == "warm"
                task.fail(task.error or error_of(message["error"]))
        else:
            task.watch(event, message)
            return
        is_large = message.get("resident_bytes", 0) > self._limits.max_resident_bytes
        if is_large or message.get("error", {}).get("code") in _BROKEN:
            self._replace(slot)
        self._dispatch()

    def _put_back(self, task: PoolTask) -> None:
        """Makes a task that was taken the next of its owner again."""
        self._queues[_PRIORITY[task.kind]].setdefault(task.owner, deque()).appendleft(task)

    def _end(self, slot: _Slot) -> None:
        if slot.task is not None:
            slot.task.used_s += asyncio.get_running_loop().time() - slot.began_s
        slot.task, slot.is_giving_way = None, False
        for timer in slot.timers:
            timer.cancel()
        slot.timers.clear()

    def _replace(self, slot: _Slot) -> None:
        """Ends a worker that holds too much memory, or may be damaged, and starts another."""
        process, slot.process, slot.is_ready = slot.process, None, False
        if process is not None:
            process.kill()
        self._start_later(slot)

    def _on_end(self, slot: _Slot, process: WorkerProcess) -> None:
        if slot.process is not process or self._is_closed:
            return
        task, begins_again, was_ready = slot.task, slot.is_giving_way, slot.is_ready
        if task is not None and not task.error and not slot.has_begun and task.lost_starts < MAX_LOST_STARTS:
            task.lost_starts += 1
            begins_again = True
        self._end(slot)
        slot.process, slot.is_ready = None, False
        if task is not None and begins_again and task.kind != "warm":
            self._put_back(task)
        elif task is not None:
            slot.failures += task.kind == "warm" and not begins_again
            problem = "the process that worked on the job has ended: it took too much memory, or crashed"
            task.fail(task.error or InputError("worker-died", problem, hint="other jobs are not concerned"))
        if not was_ready:
            self._count_failed_start(slot)
        lived_s = asyncio.get_running_loop().time() - process.started_s
        self._start_later(slot, MIN_LIFE_S if lived_s < MIN_LIFE_S else 0.0)

    def _tell_positions(self) -> None:
        """Tells the tasks that wait their positions; 1 is next."""
        for position, task in enumerate(self._waiting(), 1):
            if task.position != position:
                task.position = position
                task.watch("queued", {"position": position})
