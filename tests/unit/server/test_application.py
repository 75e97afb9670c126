"""The application without a process of its own: defects, slow requests, the database that fails, jobs that are kept."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foretrace.basics.errors import DefectError, ForetraceError, InputError
from foretrace.basics.last_resort import as_defect
from foretrace.server import app as app_module
from foretrace.server import errors as errors_module
from foretrace.server import jobs as jobs_module
from foretrace.server import run as run_module
from foretrace.server.app import ServerSettings, WebServer
from foretrace.server.errors import status_of
from foretrace.server.guard import Address
from foretrace.server.jobs import JobBoard, WebJob
from foretrace.server.pool import WorkerPool
from foretrace.server.processes import WorkerLimits
from foretrace.server.questions import WebQuestion, is_id
from foretrace.server.store import StateThread, Store, new_id, now_s
from foretrace.server.uploads import Uploads

ORIGIN = "http://localhost:8023"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    """A server whose workers were not started."""
    store = Store(tmp_path, 10)
    pool = WorkerPool(1, WorkerLimits(tmp_path, 1 << 30, 1 << 30, tmp_path))
    yield WebServer(ServerSettings(tmp_path, 1, 1000, 60.0), store, pool)
    store.close()


def response_to(web: WebServer, method: str, path: str, **others: Any) -> httpx.Response:
    """What the application answers to a request of its own page."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(web.app(Address.of("127.0.0.1", 8023)), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers={"X-Foretrace": "1"}) as client:
            await client.get("/")
            return await client.request(method, path, **others)

    return asyncio.run(send())


def test_a_defect_has_the_headers_of_all_responses_and_is_reported(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app_module, "read_json", lambda _: 1 / 0)
    response = response_to(web, "POST", "/api/jobs", json={})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal-error")
    assert response.json()["error"]["hint"] is None
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    (details,) = (tmp_path / "defects").iterdir()
    assert str(details) in capsys.readouterr().err
    assert "ZeroDivisionError" in details.read_text()


def test_a_defect_whose_report_takes_long_is_answered(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coroutines that caught it are suspended while a thread writes its details, and go on after that."""

    def report(*arguments: Any) -> DefectError:
        time.sleep(0.2)
        return as_defect(*arguments)

    monkeypatch.setattr(app_module, "read_json", lambda _: 1 / 0)
    monkeypatch.setattr(errors_module, "as_defect", report)
    response = response_to(web, "POST", "/api/jobs", json={})
    assert response.json()["error"]["code"] == "internal-error"
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_a_question_that_comes_too_slowly_is_given_up(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "BODY_S", 0.05)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(1)
        yield b"}"

    response = response_to(web, "POST", "/api/jobs", content=slow())
    assert (response.status_code, response.json()["error"]["code"]) == (408, "too-slow")
    assert response.headers["connection"] == "close"


def test_a_database_that_fails_is_an_error_with_a_code(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Store, "history", fail)
    response = response_to(web, "GET", "/api/history")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "unwritable-file")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("bad-value", 400),
        ("request-refused", 403),
        ("unknown-id", 404),
        ("too-slow", 408),
        ("too-many", 429),
        ("worker-died", 503),
        ("memory-exhausted", 503),
        ("busy", 503),
        ("gave-up", 504),
    ],
)
def test_errors_have_the_status_of_who_is_to_act(code: str, status: int) -> None:
    assert status_of(InputError(code, "a problem")) == status


def test_a_server_that_cannot_start_is_an_error_and_announces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[str] = []

    def fail(_: WorkerPool) -> None:
        raise InputError("worker-died", "no process can be started")

    monkeypatch.setattr(WorkerPool, "start", fail)
    settings = ServerSettings(tmp_path, 1, 1000, 60.0)
    options = run_module.RunOptions("127.0.0.1", 0, settings, 1 << 30, opens_page=True)
    monkeypatch.setattr(run_module.webbrowser, "open", announced.append)
    with pytest.raises(ForetraceError) as caught:
        run_module.run_server(options, announced.append)
    assert caught.value.code == "worker-died"
    assert announced == []


def test_the_page_is_announced_once_it_is_served_and_opened_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser of the terminal runs until its user ends it."""
    monkeypatch.setattr(WorkerPool, "start", lambda _: None)
    webs: list[Any] = []
    started: list[bool] = []
    made = run_module._Web.__init__

    def remember(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        webs.append(self)

    def browse(url: str) -> None:
        with socket.create_connection(("127.0.0.1", httpx.URL(url).port or 80), 10):
            started.append(webs[0].started)
        response = httpx.get(url)
        started.append(response.status_code == 200)
        webs[0].should_exit = True

    monkeypatch.setattr(run_module._Web, "__init__", remember)
    monkeypatch.setattr(run_module.webbrowser, "open", browse)
    settings = ServerSettings(tmp_path, 1, 1000, 60.0)
    options = run_module.RunOptions("127.0.0.1", 0, settings, 1 << 30, opens_page=True)
    run_module.run_server(options, lambda _: started.append(webs[0].started))
    assert started == [True, True, True]


def test_jobs_that_ended_first_are_forgotten_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MAX_FINISHED_BYTES", 1000)
    question = WebQuestion("step", "model", ("llama3-8b",))

    async def run() -> set[str]:
        store = Store(tmp_path, 3)
        pool = WorkerPool(1, WorkerLimits(tmp_path, 1 << 30, 1 << 30, tmp_path))
        board = JobBoard(pool, StateThread(store), None, 60.0)  # type: ignore[arg-type]
        for name in ("runs", "begun first", "begun last", "long ago", "large"):
            board._jobs[name] = WebJob(name, "me", question)
        board._jobs["begun last"].add("answer", {"html": "x" * 400})
        board._jobs["begun first"].add("answer", {"html": "x" * 400})
        board._jobs["large"].add("answer", {"html": "x" * 400})
        board._jobs["long ago"].add("answer", {})
        ages_s = {"begun last": 3.0, "begun first": 2.0, "large": 1.0, "long ago": 2 * jobs_module.FINISHED_S}
        for name, age_s in ages_s.items():
            board._jobs[name].ended_s = now_s() - age_s
        board.forget()
        store.close()
        return set(board._jobs)

    assert asyncio.run(run()) == {"runs", "begun first", "large"}


Asked = Callable[[JobBoard], Awaitable[None]]


def with_board(folder: Path, ask: Asked) -> None:
    """Runs a test with a board whose workers were not started: all jobs wait."""

    async def run() -> None:
        store = Store(folder, 3)
        state = StateThread(store)
        uploads = Uploads(state, folder / "uploads", 1000)
        uploads.load()
        pool = WorkerPool(1, WorkerLimits(folder, 1 << 30, 1 << 30, folder))
        try:
            await ask(JobBoard(pool, state, uploads, 60.0))
        finally:
            pool.close()
            await asyncio.sleep(0)
            state.close()

    asyncio.run(run())


STEP = WebQuestion("step", "model", ("llama3-8b",))
SEARCH = WebQuestion("plan", "model", ("llama3-8b",))


async def last_event(job: WebJob) -> tuple[str, dict[str, Any]]:
    """The name and the values of the event that ends a job."""
    texts = [text async for text in job.follow()]
    name, values = texts[-1].strip().split("\n")
    return name.removeprefix("event: "), json.loads(values.removeprefix("data: "))


def test_a_search_that_nobody_follows_is_cancelled_and_says_that_it_found_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "ABANDONED_SEARCH_S", 0.2)

    async def ask(board: JobBoard) -> None:
        left, followed = await board.begin("me", SEARCH), await board.begin("me", SEARCH)
        board.begin_following(followed)
        await asyncio.sleep(0.4)
        name, values = await last_event(left)
        assert (name, values["code"]) == ("cancelled", "interrupted")
        assert values["message"]
        assert followed.ended_s is None
        board.end_following(followed)
        assert (await last_event(followed))[0] == "cancelled"

    with_board(tmp_path, ask)


def test_a_job_can_be_followed_again_from_its_first_event(tmp_path: Path) -> None:
    async def ask(board: JobBoard) -> None:
        begun = await board.begin("me", SEARCH)
        first = begun.follow()
        begun.add("progress", {"text": "searching"})
        texts = [await anext(first), await anext(first)]
        await first.aclose()
        again = board.job(begun.id, "me").follow()
        assert [await anext(again), await anext(again)] == texts
        await again.aclose()
        with pytest.raises(ForetraceError):
            board.job(begun.id, "you")

    with_board(tmp_path, ask)


def test_a_job_is_replaced_once_the_next_was_accepted(tmp_path: Path) -> None:
    async def ask(board: JobBoard) -> None:
        step, search = await board.begin("me", STEP), await board.begin("me", SEARCH)
        with pytest.raises(ForetraceError):
            await board.begin("me", WebQuestion("step", "upload", ("a" * 22,)), step.id)
        assert not step.is_cancelled
        await board.begin("you", STEP, step.id)
        assert not step.is_cancelled
        await board.begin("me", STEP, search.id)
        assert not search.is_cancelled  # it goes on next to other questions
        await board.begin("me", STEP, step.id)
        await board.begin("me", SEARCH, search.id)
        assert step.is_cancelled
        assert search.is_cancelled

    with_board(tmp_path, ask)


def test_one_owner_follows_a_limited_number_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MAX_FOLLOWED", 1)

    async def ask(board: JobBoard) -> None:
        mine, yours = await board.begin("me", SEARCH), await board.begin("you", SEARCH)
        board.begin_following(mine)
        with pytest.raises(ForetraceError) as caught:
            board.begin_following(mine)
        assert caught.value.code == "too-many"
        board.begin_following(yours)
        board.end_following(mine)
        board.begin_following(mine)

    with_board(tmp_path, ask)


def test_ids_have_the_form_that_requests_are_checked_for() -> None:
    assert is_id(new_id())
    assert not is_id(new_id()[1:])
    assert not is_id("../" * 7 + ".")
