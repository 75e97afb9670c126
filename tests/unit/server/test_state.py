"""The state folder, the queue and the command: what they do when something is in their way."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from foretrace.basics.errors import ForetraceError
from foretrace.basics.files import GivenPath, InputFile, may_open, read_whole, restrict_inputs, unrestrict_inputs
from foretrace.hardware.presets import cluster
from foretrace.server.guard import Address, is_loopback
from foretrace.server.pool import MAX_QUEUED, PoolTask, WorkerPool
from foretrace.server.processes import WorkerLimits
from foretrace.server.store import Store, StoredAnswer, new_id
from foretrace.server.uploads import disk_names, shown_name
from server_client import server
from unit.cli.command_line import call


def stored(owner: str, created_s: float) -> StoredAnswer:
    """An answer of an owner."""
    summary = {"title": "a step", "step_text": "1 s", "kind": "model"}
    question = {"ask": "step", "input": {"model": "llama3-8b"}}
    return StoredAnswer(new_id(), owner, created_s, question, summary, "", ("json",), "<article></article>", "{}")


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    store, answer = Store(tmp_path, 10), stored("me", 1.0)
    store.add_answer(answer)
    store.close()
    store = Store(tmp_path, 10)
    assert store.answer(answer.id) == answer
    store.close()


def test_the_oldest_answers_go(tmp_path: Path) -> None:
    store, answers = Store(tmp_path, 3), [stored("me", float(moment)) for moment in range(5)]
    for answer in answers:
        store.add_answer(answer)
    assert [row["answer"] for row in store.history("me")] == [answer.id for answer in answers[:1:-1]]
    assert store.history("you") == []
    store.close()


def test_a_state_folder_is_for_one_server(tmp_path: Path) -> None:
    store = Store(tmp_path, 3)
    with pytest.raises(ForetraceError) as caught:
        Store(tmp_path, 3)
    assert caught.value.code == "state-in-use"
    store.close()
    Store(tmp_path, 3).close()


def test_a_state_folder_that_is_a_file_or_damaged_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "foretrace.db").write_bytes(b"nothing that SQLite knows" * 100)
    for name in ("file", "damaged"):
        with pytest.raises(ForetraceError) as caught:
            Store(tmp_path / name, 3)
        assert caught.value.code == "unwritable-file"


def test_a_full_disk_fails_one_answer(tmp_path: Path) -> None:
    store = Store(tmp_path, 3)
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    answer = StoredAnswer(**{**_fields(stored("me", 1.0)), "html": os.urandom(1 << 20).hex()})
    with pytest.raises(ForetraceError) as caught:
        store.add_answer(answer)
    assert caught.value.code == "unwritable-file"
    store._database.execute("PRAGMA max_page_count = 100000")
    store.add_answer(answer)
    store.close()


def _fields(answer: StoredAnswer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in StoredAnswer.__slots__}


def test_a_newer_state_folder_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, 3).close()
    with sqlite3.connect(tmp_path / "foretrace.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ForetraceError) as caught:
        Store(tmp_path, 3)
    assert caught.value.code == "unknown-version"


def test_uploads_that_no_answer_is_about_go() -> None:
    names = disk_names(("a.txt", "A.txt", "ä b.json.gz", "a.txt"))
    assert names == ("a.txt", "A-2.txt", "_ b.json.gz", "a-3.txt")
    assert shown_name("C:\\traces\\rank0.json") == "rank0.json"
    assert len(set(map(str.lower, names))) == 4


def test_a_full_queue_is_busy_for_everybody(tmp_path: Path) -> None:
    async def fill() -> str:
        pool = WorkerPool(1, WorkerLimits(tmp_path, 1 << 30, 1 << 30))  # not started: everything waits
        for number in range(MAX_QUEUED):
            pool.submit(PoolTask("full", {}, f"owner {number}", 1.0, lambda *_: None))
        try:
            pool.submit(PoolTask("full", {}, "another", 1.0, lambda *_: None))
        except ForetraceError as error:
            return error.code
        finally:
            pool.close()
        return ""

    assert asyncio.run(fill()) == "busy"


def test_owners_take_turns_and_quick_tasks_come_first(tmp_path: Path) -> None:
    async def order() -> list[tuple[str, str]]:
        pool = WorkerPool(1, WorkerLimits(tmp_path, 1 << 30, 1 << 30))
        for kind, owner in (("full", "a"), ("full", "a"), ("plan", "c"), ("full", "b"), ("quick", "a")):
            pool.submit(PoolTask(kind, {}, owner, 1.0, lambda *_: None))  # type: ignore[arg-type]
        waiting = [(task.kind, task.owner) for task in pool._waiting()]
        pool.close()
        return waiting

    expected = [("quick", "a"), ("full", "a"), ("full", "b"), ("full", "a"), ("plan", "c")]
    assert asyncio.run(order()) == expected


def test_a_job_that_takes_too_long_ends_and_the_next_is_done(tmp_path: Path) -> None:
    question = {
        "ask": "plan",
        "input": {"model": "llama3-70b"},
        "options": {"gpus": "512", "gbs": "1024"},
        "machine": {"cluster": "h100-dgx"},
    }
    message = {"questions": [question], "places": [{}]}
    quick = {"questions": [{**question, "ask": "step", "options": {"gpus": "64", "tp": "8"}}], "places": [{}]}

    async def run() -> tuple[str, float]:
        pool = WorkerPool(1, WorkerLimits(tmp_path, 4 << 30, 4 << 30))
        pool.start()
        late = PoolTask("plan", message, "a", 0.3, lambda *_: None)
        pool.submit(late)
        try:
            await late.result
        except ForetraceError as error:
            code = error.code
        after = PoolTask("quick", quick, "a", 60.0, lambda *_: None)
        pool.submit(after)
        result = await after.result
        pool.close()
        return code, result["summary"]["step_time_s"]

    code, step_s = asyncio.run(run())
    assert code == "gave-up"
    assert step_s > 0


def test_a_worker_without_memory_is_replaced(tmp_path: Path) -> None:
    question = {
        "ask": "step",
        "input": {"model": "llama3-70b"},
        "options": {"gpus": "16384", "pp": "16", "tp": "8", "gbs": "65536"},
        "machine": {"cluster": "h100-dgx"},
    }
    small = {**question, "input": {"model": "gpt2"}, "options": {"gpus": "1", "gbs": "1"}}

    async def run() -> tuple[str, float]:
        pool = WorkerPool(1, WorkerLimits(tmp_path, 800 << 20, 4 << 30))
        pool.start()
        large = PoolTask("full", {"questions": [question], "places": [{}]}, "a", 60.0, lambda *_: None)
        pool.submit(large)
        try:
            await large.result
        except ForetraceError as error:
            code = error.code
        after = PoolTask("quick", {"questions": [small], "places": [{}]}, "a", 60.0, lambda *_: None)
        pool.submit(after)
        result = await after.result
        pool.close()
        return code, result["summary"]["step_time_s"]

    code, step_s = asyncio.run(run())
    assert code in ("memory-exhausted", "worker-died")
    assert step_s > 0


def test_only_named_folders_can_be_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "file.txt").write_text("text")
    (inside / "link.txt").symlink_to(outside / "file.txt")
    hidden = [outside / "file.txt", inside / "link.txt", inside / ".." / "outside" / "file.txt", Path("/etc/passwd")]
    try:
        restrict_inputs([inside])
        assert may_open(inside / "file.txt")
        assert read_whole(inside / "file.txt", "file", "") == b"text"
        for path in hidden:
            given = GivenPath(str(path))
            assert not (given.is_file or given.is_folder or given.is_pattern or may_open(path))
            assert InputFile(path).head() == b""
            with pytest.raises(ForetraceError) as caught:
                read_whole(path, "file", "")
            assert caught.value.code == "file-not-found"
        assert not GivenPath(f"{outside}/*").is_pattern
        assert cluster("h100-dgx").name == "h100-dgx"
        with pytest.raises(ForetraceError):
            cluster(str(outside / "file.txt"))
    finally:
        unrestrict_inputs()
    assert GivenPath(str(outside / "file.txt")).is_file


@pytest.mark.parametrize(
    ("host", "inside"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_only_this_machine_needs_no_token(host: str, inside: bool) -> None:
    assert is_loopback(host) == inside
    assert (Address.of(host, 8023).token is None) == inside


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--port", "99999"), 2),
        (("--port", "x"), 2),
        (("--workers", "0"), 2),
        (("--max-upload", "much"), 2),
        (("--time-limit", "0s"), 2),
        (("--host", "no.such.host.invalid"), 2),
        (("--keep", "0"), 2),
    ],
)
def test_wrong_options_end_with_a_code(options: tuple[str, ...], code: int, tmp_path: Path) -> None:
    assert call("serve", "--state", tmp_path, *options) == code


@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
def test_a_missing_package_is_named(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith((package, "foretrace.server"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert call("serve", "--state", tmp_path) == 2
    errors = capsys.readouterr().err
    assert "[missing-package]" in errors
    assert package in errors


def test_a_port_that_is_taken_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken_port:
        taken_port.bind(("127.0.0.1", 0))
        taken_port.listen()
        assert call("serve", "--state", tmp_path, "--port", str(taken_port.getsockname()[1])) == 2
    assert "[port-in-use]" in capsys.readouterr().err


def test_a_server_ends_quietly_when_it_is_told_to(tmp_path: Path) -> None:
    with server(tmp_path, "--workers", "1") as process:
        process.process.send_signal(2)
        assert process.process.wait(10) == 0
