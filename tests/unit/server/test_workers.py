"""Workers and their queue: starts that fail, tasks that are cancelled or give way, messages that are not cut."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import ForetraceError
from foretrace.server import pool as pool_module
from foretrace.server import processes as processes_module
from foretrace.server import worker as worker_module
from foretrace.server.pool import PoolTask, TaskKind, WorkerPool
from foretrace.server.processes import WorkerLimits, WorkerProcess
from foretrace.server.worker import Worker

STEP = {
    "ask": "step",
    "input": {"model": "llama3-8b"},
    "options": {"gpus": "16", "tp": "2", "gbs": "16"},
    "machine": {"cluster": "h100-dgx"},
}
QUICK = {"questions": [STEP], "places": [{}]}


class FakeProcess:
    """A worker process that does nothing, and remembers what it is told."""

    started: list[FakeProcess]

    def __init__(
        self,
        _limits: WorkerLimits,
        _niceness: int,
        on_message: Callable[[Any, dict[str, Any]], None],
        on_end: Callable[[Any], None],
    ) -> None:
        self.started_s = asyncio.get_running_loop().time() - 10
        self.sent: list[dict[str, Any]] = []
        self.signals: list[str] = []
        self._on_message, self._on_end = on_message, on_end
        self.started.append(self)

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def interrupt(self) -> None:
        self.signals.append("interrupt")

    def kill(self) -> None:
        self.signals.append("kill")

    def say(self, event: str, **values: Any) -> None:
        """Sends an event of the task that was sent last."""
        number = self.sent[-1]["number"] if self.sent else 0
        self._on_message(self, {"event": event, "number": number, **values})

    def warm_up(self) -> None:
        """Does what a worker does before its first task."""
        self.say("ready")
        self.say("begun")
        self.say("done", result={})

    def end(self) -> None:
        """Ends as a process does that was killed."""
        self._on_end(self)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    """The processes that pools start, which are fakes."""
    FakeProcess.started = []
    monkeypatch.setattr(pool_module, "WorkerProcess", FakeProcess)
    return FakeProcess.started


def limits(folder: Path) -> WorkerLimits:
    """Limits of a worker that is a fake."""
    return WorkerLimits(folder, 1 << 30, 1 << 30, folder)


def task(kind: TaskKind, owner: str = "me") -> PoolTask:
    """A task of an owner."""
    return PoolTask(kind, {}, owner, 60.0, lambda *_: None)


def test_a_cancelled_task_whose_worker_is_killed_ends_as_cancelled(tmp_path: Path, started: list[FakeProcess]) -> None:
    async def run() -> str:
        pool = WorkerPool(1, limits(tmp_path))
        pool.start()
        started[0].warm_up()
        full = task("full")
        pool.submit(full)
        started[0].say("begun")
        pool.cancel(full)
        assert started[0].signals == ["interrupt"]
        started[0].end()
        error = full.result.exception()
        pool.close()
        assert isinstance(error, ForetraceError)
        return error.code

    assert asyncio.run(run()) == "interrupted"


def test_a_task_that_the_worker_has_not_taken_is_interrupted_once_it_has(
    tmp_path: Path, started: list[FakeProcess]
) -> None:
    async def run() -> None:
        pool = WorkerPool(1, limits(tmp_path))
        pool.start()
        started[0].warm_up()
        full = task("full")
        pool.submit(full)
        pool.cancel(full)
        assert started[0].signals == []
        started[0].say("begun")
        assert started[0].signals == ["interrupt"]
        pool.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["full", "compare", "export"])
def test_long_tasks_give_way_to_quick_ones_and_begin_again(
    tmp_path: Path, started: list[FakeProcess], kind: TaskKind
) -> None:
    async def run() -> None:
        pool = WorkerPool(1, limits(tmp_path))
        pool.start()
        worker = started[0]
        worker.warm_up()
        long, quick = task(kind, "a"), task("quick", "b")
        pool.submit(long)
        worker.say("begun")
        pool.submit(quick)
        assert worker.signals == ["interrupt"]
        worker.say("failed", error={"code": "interrupted", "message": "interrupted"})
        assert worker.sent[-1]["kind"] == "quick"
        worker.say("done", result={"step": 1})
        assert worker.sent[-1]["kind"] == kind
        worker.say("done", result={"step": 2})
        assert (quick.result.result(), long.result.result()) == ({"step": 1}, {"step": 2})
        pool.close()

    asyncio.run(run())


def test_the_time_limit_counts_all_attempts(tmp_path: Path, started: list[FakeProcess]) -> None:
    async def run() -> None:
        pool = WorkerPool(1, limits(tmp_path))
        pool.start()
        worker = started[0]
        worker.warm_up()
        full = PoolTask("full", {}, "me", 0.3, lambda *_: None)
        pool.submit(full)
        worker.say("begun")
        await asyncio.sleep(0.2)
        pool.submit(task("quick"))
        worker.say("failed", error={"code": "interrupted", "message": "interrupted"})
        worker.say("done", result={})
        worker.signals.clear()
        worker.say("begun")
        assert worker.sent[-1]["kind"] == "full"
        await asyncio.sleep(0.2)
        assert worker.signals == ["interrupt"]
        worker.say("failed", error={"code": "interrupted", "message": "interrupted"})
        error = full.result.exception()
        assert isinstance(error, ForetraceError)
        assert error.code == "gave-up"
        pool.close()

    asyncio.run(run())


def test_searches_of_one_owner_leave_workers_to_others(tmp_path: Path, started: list[FakeProcess]) -> None:
    async def run() -> None:
        pool = WorkerPool(5, limits(tmp_path))
        pool.start()
        for worker in started:
            worker.warm_up()
        for _ in range(5):
            pool.submit(task("plan", "greedy"))
        pool.submit(task("plan", "modest"))
        running = [slot.task.owner for slot in pool._slots if slot.task is not None]
        assert sorted(running) == ["greedy", "greedy", "modest"]
        assert pool._slots[0].task is None
        pool.close()

    asyncio.run(run())


def test_queues_forget_owners_who_wait_for_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        pool = WorkerPool(1, limits(tmp_path))
        for number in range(10):
            waiting = task("full", f"owner {number}")
            pool.submit(waiting)
            pool.cancel(waiting)
        assert not any(pool._queues)
        pool.close()

    asyncio.run(run())


def test_a_process_that_cannot_be_started_is_tried_again(
    tmp_path: Path, started: list[FakeProcess], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pool_module, "MIN_LIFE_S", 0.01)
    failures = 2

    def start(*arguments: Any) -> FakeProcess:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(11, "Resource temporarily unavailable")
        return FakeProcess(*arguments)

    monkeypatch.setattr(pool_module, "WorkerProcess", start)

    async def run() -> None:
        pool = WorkerPool(1, limits(tmp_path))
        pool.start()
        await asyncio.sleep(0.5)
        started[0].warm_up()
        quick = task("quick")
        pool.submit(quick)
        started[0].say("done", result={"step": 1})
        assert quick.result.result() == {"step": 1}
        pool.close()

    asyncio.run(run())
    assert "temporarily unavailable" in capsys.readouterr().err


def test_workers_that_cannot_warm_up_are_started_ever_more_rarely(
    tmp_path: Path, started: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []

    async def run() -> None:
        pool = WorkerPool(1, limits(tmp_path))
        pool.start()

        def call_later(delay_s: float, function: Callable[..., None], *arguments: Any) -> Any:
            if function == pool._start:
                delays.append(delay_s)
                asyncio.get_running_loop().call_soon(function, *arguments)
            return asyncio.get_running_loop().call_at(1e9, print)

        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
        for number in range(8):
            await asyncio.sleep(0)
            started[number].say("ready")
            started[number].say("begun")
            started[number].say("failed", error={"code": "memory-exhausted", "message": "no memory"})
            await asyncio.sleep(0)
        pool.close()

    asyncio.run(run())
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


class FakeConnection:
    """A connection that is interrupted while it sends."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_interrupted = False
        self.worker: Worker | None = None

    def send_bytes(self, message: bytes) -> None:
        if self.is_interrupted and self.worker is not None:
            self.worker._interrupt(signal.SIGINT, None)
        self.sent.append(json.loads(message))


def test_an_interrupt_cuts_no_message(tmp_path: Path) -> None:
    connection = FakeConnection()
    worker = Worker(connection, tmp_path, tmp_path)  # type: ignore[arg-type]
    connection.worker = worker
    worker._send("ready")
    connection.is_interrupted = True
    worker._send("between tasks")  # nothing to interrupt
    event, values = worker._outcome({"kind": "warm", "number": 1})
    assert [message["event"] for message in connection.sent] == ["ready", "between tasks", "begun"]
    assert (event, values["error"]["code"]) == ("failed", "interrupted")


def test_a_worker_that_reports_progress_is_interrupted_and_works_on(tmp_path: Path) -> None:
    """A real worker is interrupted many times, and always understood."""

    async def run() -> None:
        pool = WorkerPool(1, WorkerLimits(tmp_path, 4 << 30, 4 << 30, tmp_path))
        pool.start()
        running: list[PoolTask] = []
        for _ in range(5):
            running.append(PoolTask("full", QUICK, "me", 60.0, lambda *_: pool.cancel(running[-1])))
            pool.submit(running[-1])
            with pytest.raises(ForetraceError) as caught:
                await running[-1].result
            assert caught.value.code == "interrupted"
        quick = PoolTask("quick", QUICK, "me", 60.0, lambda *_: None)
        pool.submit(quick)
        assert (await quick.result)["summary"]["step_time_s"] > 0
        pool.close()

    asyncio.run(run())


def test_limits_that_the_system_has_already_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    limited: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(worker_module.sys, "platform", "linux")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, values: limited.update({kind: values}))
    worker_module.limit_memory(1 << 30)
    assert limited[resource.RLIMIT_FSIZE] == (1000, 1000)
    assert limited[resource.RLIMIT_AS] == (1000, 1000)


def test_a_process_that_cannot_be_started_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(processes_module.subprocess, "Popen", fail)

    async def run() -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            with pytest.raises(OSError, match="Cannot allocate"):
                WorkerProcess(limits(tmp_path), 0, lambda *_: None, lambda *_: None)
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    asyncio.run(run())
