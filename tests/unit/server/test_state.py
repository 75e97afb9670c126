"""The state folder, the queue and the command: what they do when something is in their way."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.basics import files
from foretrace.basics.errors import ForetraceError
from foretrace.basics.files import GivenPath, InputFile, may_open, read_whole, restrict_inputs
from foretrace.hardware.presets import cluster
from foretrace.server import store as store_module
from foretrace.server import uploads as uploads_module
from foretrace.server.errors import unwritable_state
from foretrace.server.guard import Address, is_loopback
from foretrace.server.pool import MAX_QUEUED, PoolTask, WorkerPool
from foretrace.server.processes import WorkerLimits
from foretrace.server.store import StateThread, Store, StoredAnswer, new_id, now_s
from foretrace.server.uploads import (
    MAX_DRAFTS,
    MAX_DRAFTS_OF_OWNER,
    MAX_FILES,
    UNUSED_S,
    Uploads,
    disk_names,
    shown_name,
)
from server_client import server
from unit.cli.command_line import call


def stored(owner: str, created_s: float) -> StoredAnswer:
    """An answer of an owner."""
    summary = {"title": "a step", "step_text": "1 s", "kind": "model"}
    question = {"ask": "step", "input": {"model": "llama3-8b"}, "options": {"gpus": f"{created_s:g}"}}
    return StoredAnswer(new_id(), owner, created_s, question, summary, "", ("json",), "<article></article>")


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    store, answer = Store(tmp_path, 10), stored("me", 1.0)
    assert store.add_answer(answer, {"json": "{}"}) == answer.id
    store.close()
    store = Store(tmp_path, 10)
    assert store.answer(answer.id) == answer
    assert (store.file(answer.id, "json"), store.file(answer.id, "report")) == ("{}", None)
    store.delete_answer(answer.id, "me")
    assert store.file(answer.id, "json") is None
    store.close()


def test_the_oldest_answers_of_an_owner_go_and_those_of_others_stay(tmp_path: Path) -> None:
    store, answers = Store(tmp_path, 3), [stored("me", float(moment)) for moment in range(1, 6)]
    other = stored("you", 0.0)
    for answer in (other, *answers):
        store.add_answer(answer)
    assert [row["answer"] for row in store.history("me")] == [answer.id for answer in answers[:1:-1]]
    assert [row["answer"] for row in store.history("you")] == [other.id]
    store.close()


def test_a_question_that_is_asked_again_keeps_the_id_of_its_answer(tmp_path: Path) -> None:
    store, first = Store(tmp_path, 3), stored("me", 1.0)
    again = replace(first, id=new_id(), created_s=2.0, html="<p>again</p>")
    other = replace(first, id=new_id(), owner="you")
    assert store.add_answer(first, {"json": "1", "launch": "#!"}) == first.id
    assert store.add_answer(again, {"json": "2"}) == first.id
    assert store.add_answer(other) == other.id
    assert store.answer(first.id).html == again.html
    assert (store.file(first.id, "json"), store.file(first.id, "launch")) == ("2", None)
    assert [row["at"] for row in store.history("me")] == [2.0]
    store.close()


def test_too_many_bytes_are_taken_from_the_owner_who_has_most(tmp_path: Path) -> None:
    store = Store(tmp_path, 100, max_bytes=100_000)
    small = stored("you", 0.0)
    store.add_answer(small)
    large = [replace(stored("me", float(moment)), html=os.urandom(15_000).hex()) for moment in range(1, 9)]
    for answer in large:
        store.add_answer(answer)
    kept = [row["answer"] for row in store.history("me")]
    assert 0 < len(kept) < len(large)
    assert kept == [answer.id for answer in large[::-1]][: len(kept)]
    assert [row["answer"] for row in store.history("you")] == [small.id]
    store.close()


def test_the_size_limit_is_kept_when_the_last_answer_is_the_largest(tmp_path: Path) -> None:
    store = Store(tmp_path, 100, max_bytes=100_000)
    small = [replace(stored("you", float(moment)), html=os.urandom(7_000).hex()) for moment in range(1, 9)]
    for answer in small:
        store.add_answer(answer)
    large = replace(stored("me", 10.0), html=os.urandom(70_000).hex())
    store.add_answer(large)
    (size_bytes,) = store._database.execute("SELECT SUM(bytes) FROM answers").fetchone()
    assert size_bytes <= 100_000
    assert store.answer(large.id) == large
    assert store.history("you")
    store.close()


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
def test_answers_are_private_in_a_folder_that_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Store(tmp_path, 3).close()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


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


def test_a_database_with_other_tables_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "foretrace.db")
    database.execute("CREATE TABLE uploads (id TEXT)")
    database.execute(f"PRAGMA user_version = {store_module._VERSION}")
    database.close()
    assert call("serve", "--state", tmp_path, "--port", "0") == 3


@pytest.mark.parametrize(
    ("code", "other"),
    [(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL), (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FULL)],
)
def test_the_hint_depends_on_why_the_database_fails(code: int, other: int) -> None:
    errors = [sqlite3.OperationalError("a reason"), sqlite3.OperationalError("a reason")]
    errors[0].sqlite_errorcode, errors[1].sqlite_errorcode = code, other
    hints = [unwritable_state(error).hint for error in errors]
    assert hints[0] != hints[1]
    missing = OSError(errno.ENOENT, "No such file or directory", "/secret/place")
    assert "secret" not in str(unwritable_state(missing))


def test_the_key_of_a_folder_stays(tmp_path: Path) -> None:
    store = Store(tmp_path, 3)
    key = store.key
    store.close()
    store = Store(tmp_path, 3)
    assert store.key == key
    store.close()


def test_a_full_disk_fails_one_answer(tmp_path: Path) -> None:
    store = Store(tmp_path, 3)
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    answer = replace(stored("me", 1.0), html=os.urandom(1 << 20).hex())
    with pytest.raises(ForetraceError) as caught:
        store.add_answer(answer)
    assert caught.value.code == "unwritable-file"
    store._database.execute("PRAGMA max_page_count = 100000")
    store.add_answer(answer)
    store.close()


def test_a_newer_state_folder_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, 3).close()
    with sqlite3.connect(tmp_path / "foretrace.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ForetraceError) as caught:
        Store(tmp_path, 3)
    assert caught.value.code == "unknown-version"


def test_names_on_the_disk_are_harmless_and_distinct() -> None:
    names = disk_names(("a.txt", "A.txt", "ä b.json.gz", "a.txt"))
    assert names == ("a.txt", "A-2.txt", "_ b.json.gz", "a-3.txt")
    assert shown_name("C:\\traces\\rank0.json") == "rank0.json"
    assert len(set(disk_names(["a.txt"] * MAX_FILES))) == MAX_FILES


async def chunks_of(*contents: bytes) -> AsyncIterator[bytes]:
    """The chunks of a request."""
    for content in contents:
        yield content


async def uploaded(uploads: Uploads, name: str, *, is_opened: bool = True) -> str:
    """An upload of one file, which was opened unless told otherwise."""
    upload = await uploads.begin("me", [name])
    await uploads.write(upload, "me", 0, chunks_of(b"content"), None)
    if is_opened:
        await uploads.keep(upload, "me")
    return upload


def test_uploads_that_no_answer_is_about_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "uploads"

    async def run() -> str:
        store = Store(tmp_path, 3)
        uploads = Uploads(StateThread(store), folder, 1000)
        uploads.load()
        opened, used = await uploaded(uploads, "opened.txt"), await uploaded(uploads, "used.txt")
        draft = await uploaded(uploads, "draft.txt", is_opened=False)
        writing = await uploads.begin("me", ["writing.txt"])
        uploads.of(writing, "me").writing[0] = 0
        read = await uploaded(uploads, "read.txt")
        answer = stored("me", now_s())
        store.add_answer(replace(answer, question={"ask": "step", "input": {"upload": used}}))
        await uploads.remove_old()
        await uploads.remove_unused()
        assert {path.name for path in folder.iterdir()} == {opened, used, draft, writing, read}
        later_s = now_s() + 2 * UNUSED_S
        monkeypatch.setattr(uploads_module, "now_s", lambda: later_s)
        with uploads.reading([read]):
            await uploads.remove_old()
            await uploads.remove_unused()
            assert {path.name for path in folder.iterdir()} == {used, writing, read}
        await uploads.remove_unused()
        assert {path.name for path in folder.iterdir()} == {used, writing}
        store.close()
        return used

    used = asyncio.run(run())
    store = Store(tmp_path, 3)
    uploads = Uploads(StateThread(store), folder, 1000)
    uploads.load()
    assert [path.name for path in folder.iterdir()] == [used]
    store.close()


def test_an_upload_without_one_of_its_files_is_dropped_at_the_start(tmp_path: Path) -> None:
    store = Store(tmp_path, 3)
    uploads = Uploads(StateThread(store), tmp_path / "uploads", 1000)
    uploads.load()
    lost, whole = (asyncio.run(uploaded(uploads, name)) for name in ("lost.txt", "whole.txt"))
    (tmp_path / "uploads" / lost / "lost.txt").unlink()
    uploads = Uploads(StateThread(store), tmp_path / "uploads", 1000)
    uploads.load()
    assert uploads.place(whole, "me").names == ("whole.txt",)
    with pytest.raises(ForetraceError) as caught:
        uploads.place(lost, "me")
    assert caught.value.code == "unknown-id"
    assert [stored.id for stored in store.uploads()] == [whole]
    store.close()


def test_an_upload_that_cannot_be_kept_stays_a_draft(tmp_path: Path) -> None:
    store = Store(tmp_path, 3)
    uploads = Uploads(StateThread(store), tmp_path / "uploads", 1000)
    uploads.load()
    draft = asyncio.run(uploaded(uploads, "a.txt", is_opened=False))
    store.close()
    with pytest.raises(ForetraceError) as caught:
        asyncio.run(uploads.keep(draft, "me"))
    assert caught.value.code == "unwritable-file"
    assert not uploads.of(draft, "me").is_kept


def test_the_oldest_draft_of_an_owner_makes_room(tmp_path: Path) -> None:
    async def run() -> None:
        store = Store(tmp_path, 3)
        uploads = Uploads(StateThread(store), tmp_path / "uploads", 1000)
        uploads.load()
        drafts = [await uploads.begin("me", ["a.txt"]) for _ in range(MAX_DRAFTS_OF_OWNER)]
        uploads.of(drafts[0], "me").writing[0] = 0
        newest = await uploads.begin("me", ["a.txt"])
        kept = {path.name for path in (tmp_path / "uploads").iterdir()}
        assert kept == {newest, *drafts} - {drafts[1]}
        for name in kept:
            uploads.of(name, "me").writing[0] = 0
        with pytest.raises(ForetraceError) as caught:
            await uploads.begin("me", ["a.txt"])
        assert caught.value.code == "too-many"
        assert uploads.of(await uploads.begin("you", ["a.txt"]), "you").stored.owner == "you"
        store.close()

    asyncio.run(run())


def test_many_owners_of_drafts_do_not_lock_out_another(tmp_path: Path) -> None:
    async def run() -> None:
        store = Store(tmp_path, 3)
        uploads = Uploads(StateThread(store), tmp_path / "uploads", 1000)
        uploads.load()
        first = await uploads.begin("me", ["a.txt"])
        for number in range(20 * MAX_DRAFTS_OF_OWNER):
            await uploads.begin(f"made up {number // MAX_DRAFTS_OF_OWNER}", ["a.txt"])
        await uploads.begin("you", ["a.txt"])
        assert len(list((tmp_path / "uploads").iterdir())) == MAX_DRAFTS
        assert not uploads.of(first, "me").is_kept  # those with more of them lose theirs
        store.close()

    asyncio.run(run())


@pytest.mark.parametrize("limit", ["MAX_OWNER_BYTES", "MAX_TOTAL_BYTES"])
def test_uploads_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(uploads_module, limit, 10)
    store = Store(tmp_path, 3)
    uploads = Uploads(StateThread(store), tmp_path / "uploads", 1000)
    uploads.load()
    asyncio.run(uploaded(uploads, "a.txt"))
    owner = "me" if limit == "MAX_OWNER_BYTES" else "you"
    upload = asyncio.run(uploads.begin(owner, ["b.txt"]))
    with pytest.raises(ForetraceError) as caught:
        asyncio.run(uploads.write(upload, owner, 0, chunks_of(b"content"), 7))
    assert caught.value.code == "input-too-large"
    assert uploads.of(upload, owner).size_bytes == 0
    store.close()


def test_an_upload_that_drips_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads_module, "SLOW_S", 0.0)
    store = Store(tmp_path, 3)
    uploads = Uploads(StateThread(store), tmp_path / "uploads", 1000)
    uploads.load()

    async def drip() -> AsyncIterator[bytes]:
        for _ in range(100):
            await asyncio.sleep(0.01)
            yield b"x"

    upload = asyncio.run(uploads.begin("me", ["a.txt"]))
    with pytest.raises(ForetraceError) as caught:
        asyncio.run(uploads.write(upload, "me", 0, drip(), None))
    assert caught.value.code == "too-slow"
    assert not list((tmp_path / "uploads" / upload).iterdir())
    store.close()


def test_a_full_queue_is_busy_for_everybody(tmp_path: Path) -> None:
    async def fill() -> str:
        pool = WorkerPool(1, WorkerLimits(tmp_path, 1 << 30, 1 << 30, tmp_path))  # not started: everything waits
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
        pool = WorkerPool(1, WorkerLimits(tmp_path, 1 << 30, 1 << 30, tmp_path))
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
        pool = WorkerPool(1, WorkerLimits(tmp_path, 4 << 30, 4 << 30, tmp_path))
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
        pool = WorkerPool(1, WorkerLimits(tmp_path, 800 << 20, 4 << 30, tmp_path))
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


def test_only_named_folders_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "file.txt").write_text("text")
    (inside / "link.txt").symlink_to(outside / "file.txt")
    hidden = [outside / "file.txt", inside / "link.txt", inside / ".." / "outside" / "file.txt", Path("/etc/passwd")]
    with monkeypatch.context() as restricted:
        restricted.setattr(files, "_allowed", None)
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
        (("--memory", "512MiB"), 2),
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


def test_a_port_that_is_taken_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken_port:
        taken_port.bind(("127.0.0.1", 0))
        taken_port.listen()
        assert call("serve", "--state", tmp_path, "--port", str(taken_port.getsockname()[1])) == 2
    assert "[port-in-use]" in capsys.readouterr().err


def test_a_server_ends_quietly_when_it_is_told_to(tmp_path: Path) -> None:
    with server(tmp_path, "--workers", "1") as process:
        process.process.send_signal(2)
        assert process.process.wait(10) == 0
