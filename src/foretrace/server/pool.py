"""Shares worker processes among users: which task is done next, by which worker, and for how long.

Quick answers come first, then the opening of uploads, then whole answers, and searches last. Among tasks of one
priority, owners take turns. The first of several workers does no searches, so that quick answers stay quick. A whole
answer or a warm-up gives way to a quick answer that would have to wait, and begins again later.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from foretrace.basics.errors import ForetraceError, InputError
from foretrace.server.errors import error_of
from foretrace.server.processes import WorkerLimits, WorkerProcess

TaskKind = Literal["quick", "open", "full", "compare", "export", "plan", "warm"]

MAX_QUEUED: Final = 200
MAX_QUEUED_OF_OWNER: Final = 40
MAX_PREEMPTIONS: Final = 2
"""Times that a task gives way to others before it is finished, however many wait."""
MAX_LOST_STARTS: Final = 2
"""Workers that may end when they are given a task, before it fails."""
GRACE_S: Final = 3.0
"""Seconds from an interrupt until a worker that does not stop is killed."""
MIN_LIFE_S: Final = 1.0
"""Seconds that a worker must have lived for its successor to be started at once."""

MAX_FAILED_STARTS: Final = 3
_SEE_TERMINAL: Final = "the terminal of foretrace serve says why"

_PRIORITY: Final[dict[TaskKind, int]] = {"quick": 0, "open": 1, "full": 2, "compare": 2, "export": 2, "plan": 3}
NICENESS: Final = 5
"""By how much all workers but the first give way, so that quick answers stay quick where CPUs are few."""
_BROKEN: Final = ("memory-exhausted", "internal-error")
"""Errors after which a worker is replaced: what it keeps may be damaged."""
_GIVES_WAY: Final = ("full", "warm")


@dataclass(eq=False, slots=True)
class PoolTask:
    """A piece of work for a worker.

    Attributes:
        kind: What is to be done.
        message: The rest of the message to the worker.
        owner: Who takes turns.
        limit_s: Seconds after which it is interrupted.
        watch: Is called with the events of the worker, and with `queued` when its position changes.
        result: What the worker returned, or the error.
    """

    kind: TaskKind
    message: dict[str, Any]
    owner: str
    limit_s: float
    watch: Callable[[str, dict[str, Any]], None]
    result: asyncio.Future[dict[str, Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    position: int = 0
    preemptions: int = 0
    lost_starts: int = 0
    """Times that it was given to a worker that had ended."""
    error: ForetraceError | None = None
    """Why it was interrupted, where that was not its owner's wish."""

    def fail(self, error: ForetraceError) -> None:
        """Ends the task with an error."""
        if not self.result.done():
            self.result.set_exception(error)
            self.result.exception()  # whoever waits for it gets it; nobody may


@dataclass(eq=False, slots=True)
class _Seat:
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
        self._seats = [_Seat(number) for number in range(count)]
        self._queues: list[OrderedDict[str, deque[PoolTask]]] = [OrderedDict() for _ in range(4)]
        self._number = 0
        self._is_closed = False
        self._failed_starts = 0
        """Workers that ended before they were ready, since the last that was."""

    def start(self) -> None:
        """Starts the processes."""
        for seat in self._seats:
            self._start(seat)

    def close(self) -> None:
        """Ends the processes and all tasks."""
        self._is_closed = True
        for task in list(self._waiting()):
            task.fail(InputError("interrupted", "the server is shutting down"))
        for queue in self._queues:
            queue.clear()
        for seat in self._seats:
            if seat.process is not None:
                seat.process.kill()

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes."""
        return [seat.process.pid for seat in self._seats if seat.process is not None]

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
                raise InputError("too-many", f"{MAX_QUEUED_OF_OWNER} jobs of yours wait already", hint=hint)
        self._queues[_PRIORITY[task.kind]].setdefault(task.owner, deque()).append(task)
        self._dispatch()
        if task.kind == "quick" and task in self._waiting():
            self._make_way()

    def cancel(self, task: PoolTask) -> None:
        """Ends a task: one that waits is dropped, one that runs is interrupted and may return what it has."""
        for queue in self._queues:
            if task in queue.get(task.owner, ()):
                queue[task.owner].remove(task)
                task.fail(InputError("interrupted", "cancelled"))
                self._tell_positions()
                return
        seat = next((seat for seat in self._seats if seat.task is task), None)
        if seat is not None:
            seat.is_giving_way = False
            self._interrupt(seat)

    def _waiting(self) -> Iterator[PoolTask]:
        """Yields the tasks that wait, about in the order in which they are done."""
        for queue in self._queues:
            turns = [list(tasks) for tasks in queue.values()]
            for turn in range(max(map(len, turns), default=0)):
                yield from (tasks[turn] for tasks in turns if turn < len(tasks))

    def _start(self, seat: _Seat) -> None:
        seat.is_ready = seat.is_warm = False
        if not self._is_closed:
            seat.process = WorkerProcess(
                self._limits,
                NICENESS if seat.number else 0,
                lambda process, message: self._on_message(seat, process, message),
                lambda process: self._on_end(seat, process),
            )

    def _dispatch(self) -> None:
        """Gives tasks to idle workers. Quick ones go to the first, whose caches they share; others to the last."""
        while (task := next(self._waiting(), None)) is not None:
            idle = [seat for seat in self._seats if seat.is_idle]
            if not idle:
                break
            seat = idle[0 if task.kind == "quick" else -1]
            if task.kind == "plan" and seat.number == 0 and len(self._seats) > 1:
                break  # plans are last in order, so that nothing else waits
            self._take(task)
            self._give(seat, task)
        for seat in self._seats:
            if seat.is_idle and not seat.is_warm:
                self._give(seat, PoolTask("warm", {}, "", 60.0, lambda *_: None))
        self._tell_positions()

    def _take(self, task: PoolTask) -> None:
        """Takes a task out of its queue; its owner's next turn comes after all others'."""
        queue = self._queues[_PRIORITY[task.kind]]
        queue[task.owner].remove(task)
        queue.move_to_end(task.owner)
        if not queue[task.owner]:
            del queue[task.owner]

    def _give(self, seat: _Seat, task: PoolTask) -> None:
        assert seat.process is not None
        self._number += 1
        seat.number_sent = self._number
        seat.task, seat.is_giving_way, seat.has_begun, seat.is_warm = task, False, False, True
        seat.process.send({**task.message, "number": self._number, "kind": task.kind})
        if task.position:
            task.position = 0
            task.watch("queued", {"position": 0})
        loop = asyncio.get_running_loop()
        seat.timers.append(loop.call_later(task.limit_s, self._give_up, seat, task))

    def _give_up(self, seat: _Seat, task: PoolTask) -> None:
        """Interrupts a task whose time is over."""
        if seat.task is task:
            hint = "ask for less, or start the server with a longer --time-limit"
            task.error = InputError("gave-up", f"the job took more than {task.limit_s:.3g} s", hint=hint)
            self._interrupt(seat)

    def _make_way(self) -> None:
        """Interrupts a task for a quick one that waits, where one may be."""
        for seat in self._seats:
            task = seat.task
            if seat.is_giving_way:
                return
            if task is not None and task.kind in _GIVES_WAY and task.preemptions < MAX_PREEMPTIONS and not task.error:
                seat.is_giving_way = True
                task.preemptions += 1
                self._interrupt(seat)
                return

    def _interrupt(self, seat: _Seat) -> None:
        if seat.process is not None:
            seat.process.interrupt()
            loop = asyncio.get_running_loop()
            seat.timers.append(loop.call_later(GRACE_S, self._kill, seat, seat.task))

    @staticmethod
    def _kill(seat: _Seat, task: PoolTask | None) -> None:
        """Ends a worker that still does a task after it was interrupted."""
        if seat.task is task and seat.process is not None:
            seat.process.kill()

    def _on_message(self, seat: _Seat, process: WorkerProcess, message: dict[str, Any]) -> None:
        if process is not seat.process:
            return
        event, task = message["event"], seat.task
        if event == "ready":
            seat.is_ready, self._failed_starts = True, 0
        elif task is None or message["number"] != seat.number_sent:
            return  # of a task that was given up
        elif event == "begun":
            seat.has_begun = True
            return
        elif event == "done":
            self._end(seat)
            if not task.result.done():
                task.result.set_result(message["result"])
        elif event == "failed":
            gives_way = seat.is_giving_way and message["error"]["code"] == "interrupted"
            self._end(seat)
            if gives_way and task.kind != "warm":
                self._put_back(task)
            elif gives_way:
                seat.is_warm = False
            else:
                task.fail(_failure(task, message["error"]))
        else:
            task.watch(event, message)
            return
        is_large = message.get("resident_bytes", 0) > self._limits.resident_bytes
        if is_large or message.get("error", {}).get("code") in _BROKEN:
            self._replace(seat)
        self._dispatch()

    def _put_back(self, task: PoolTask) -> None:
        """Makes a task that was taken the next of its owner again."""
        self._queues[_PRIORITY[task.kind]].setdefault(task.owner, deque()).appendleft(task)

    def _end(self, seat: _Seat) -> None:
        seat.task, seat.is_giving_way = None, False
        for timer in seat.timers:
            timer.cancel()
        seat.timers.clear()

    def _replace(self, seat: _Seat) -> None:
        """Ends a worker that holds too much memory, and starts another."""
        process, seat.process = seat.process, None
        if process is not None:
            process.kill()
        self._start(seat)

    def _on_end(self, seat: _Seat, process: WorkerProcess) -> None:
        if seat.process is not process or self._is_closed:
            return
        task, gives_way = seat.task, seat.is_giving_way
        if task is not None and not seat.has_begun and task.lost_starts < MAX_LOST_STARTS:
            task.lost_starts += 1
            gives_way = True
        if not seat.is_ready:
            self._failed_starts += 1
        self._end(seat)
        seat.process, seat.is_ready = None, False
        if task is not None and gives_way and task.kind != "warm":
            self._put_back(task)
        elif task is not None:
            problem = "the process that worked on the job has ended: it took too much memory, or crashed"
            task.fail(task.error or InputError("worker-died", problem, hint="other jobs are not concerned"))
        if self._failed_starts >= MAX_FAILED_STARTS:
            self._fail_all()
        loop = asyncio.get_running_loop()
        lived_s = loop.time() - process.started_s
        if lived_s < MIN_LIFE_S:
            loop.call_later(MIN_LIFE_S, self._start, seat)
        else:
            self._start(seat)

    def _fail_all(self) -> None:
        """Ends all tasks that wait, since no worker can be started."""
        for task in list(self._waiting()):
            self._take(task)
            task.fail(InputError("worker-died", "the processes that compute cannot be started", hint=_SEE_TERMINAL))

    def _tell_positions(self) -> None:
        """Tells the tasks that wait how many are before them, where that has changed."""
        for position, task in enumerate(self._waiting(), 1):
            if task.position != position:
                task.position = position
                task.watch("queued", {"position": position})


def _failure(task: PoolTask, parts: dict[str, Any]) -> ForetraceError:
    """Returns the error of a task: the time limit, where the server interrupted it for that."""
    if parts["code"] == "interrupted" and task.error is not None:
        return task.error
    return error_of(parts)
