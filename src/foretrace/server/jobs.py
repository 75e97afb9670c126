"""Runs jobs: each answers a question in stages, emits the events that a page follows, and stores the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from foretrace.basics.errors import ForetraceError, InputError, UsageError
from foretrace.server.errors import unknown_id
from foretrace.server.examples import FOLDER, example_of, examples_folder
from foretrace.server.pool import PoolTask, TaskKind, WorkerPool
from foretrace.server.questions import FilePlace, WebQuestion
from foretrace.server.store import StateThread, StoredAnswer, new_id, now_s
from foretrace.server.uploads import Uploads

MAX_FINISHED_BYTES: Final = 128 << 20
"""The limit of the events of finished jobs; the oldest are dropped first."""
FINISHED_S: Final = 120.0
"""Seconds that the events of a finished job can be read."""
ABANDONED_S: Final = 5.0
"""Seconds without a listener after which a job is cancelled. A page reconnects within this time."""
ABANDONED_SEARCH_S: Final = 300.0
"""The same for a search, which goes on while its page shows other answers. What it has found is stored."""
MAX_FOLLOWED: Final = 50
"""Streams of events of one owner that are open at a time."""
KEEP_ALIVE_S: Final = 15.0
"""Seconds without an event after which a comment is sent, so that nobody takes the connection for dead."""

_LAST: Final = ("answer", "failed", "cancelled")
_REPLACED: Final = ("queued", "progress", "front")
"""Events of which only the latest is worth reading."""
_PASSING: Final = ("busy", "interrupted", "memory-exhausted", "too-many", "unwritable-file", "worker-died")
"""Errors after which the same upload may be opened again."""


@dataclass(eq=False, slots=True)
class WebJob:
    """A question that is being answered, or was, and its events."""

    id: str
    owner: str
    question: WebQuestion
    task: PoolTask | None = None
    is_cancelled: bool = False
    listeners: int = 0
    abandoned: asyncio.TimerHandle | None = None
    """The timer that cancels the job when nobody has followed it for too long."""
    ended_s: float | None = None
    events: list[tuple[int, str, str]] = field(default_factory=list)
    """The number, name and JSON of each event."""
    _count: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size_bytes(self) -> int:
        """The size of its events."""
        return sum(len(values) for _, _, values in self.events)

    def add(self, name: str, values: dict[str, Any]) -> None:
        """Adds an event; who follows the job gets it."""
        if self.ended_s is not None:
            return
        if name in _REPLACED:
            self.events = [event for event in self.events if event[1] != name]
        self._count += 1
        self.events.append((self._count, name, json.dumps(values)))
        if name in _LAST:
            self.ended_s = now_s()
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[str]:
        """Yields the events as a stream has them, from the first; the last one ends it."""
        seen = 0
        while True:
            changed = self._changed
            for number, name, values in [event for event in self.events if event[0] > seen]:
                seen = number
                yield f"event: {name}\ndata: {values}\n\n"
                if name in _LAST:
                    return
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await changed.wait()
            except TimeoutError:
                yield ": still here\n\n"


class JobBoard:
    """All jobs of a server.

    Args:
        pool: The workers.
        state: The database that keeps answers.
        uploads: The files that questions may be about.
        limit_s: Seconds that a task may take.
    """

    def __init__(self, pool: WorkerPool, state: StateThread, uploads: Uploads, limit_s: float) -> None:
        self._pool, self._state, self._uploads, self._limit_s = pool, state, uploads, limit_s
        self._jobs: dict[str, WebJob] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def begin(self, owner: str, question: WebQuestion, replaces: str | None = None) -> WebJob:
        """Begins to answer a question.

        Args:
            owner: Who asks.
            question: The question.
            replaces: A job of the same owner whose answer nobody waits for any more. It is cancelled once the new one
                was accepted. A search is replaced by another search only, since it goes on next to other questions.

        Raises:
            InputError: Something that the question names is not there, or too many jobs wait.
        """
        self.forget()
        message = await self._task_message(question, owner)
        job = WebJob(new_id(), owner, question)
        self._jobs[job.id] = job
        try:
            job.task = self._submitted(job, question.kind.first_task, message)
        except InputError:
            del self._jobs[job.id]
            raise
        reading = ExitStack()
        reading.enter_context(self._uploads.reading(_uploads_of(message)))
        running = asyncio.create_task(self._run(job, message, reading))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        if question.kind.runs_unwatched:  # others end soon anyway
            self._expect_listener(job)
        before = None if replaces is None else self._jobs.get(replaces)
        if (
            before is not None
            and before.owner == owner
            and (question.kind.runs_unwatched or not before.question.kind.runs_unwatched)
        ):
            self.cancel(before)
        return job

    def job(self, name: str, owner: str) -> WebJob:
        """Returns a job of an owner. Raises InputError where there is none of this id."""
        job = self._jobs.get(name)
        if job is None or job.owner != owner:
            raise unknown_id("job", name)
        return job

    def cancel(self, job: WebJob) -> None:
        """Ends a job; a search returns what it has."""
        if job.ended_s is None and not job.is_cancelled:
            job.is_cancelled = True
            if job.task is not None:
                self._pool.cancel(job.task)

    def begin_following(self, job: WebJob) -> None:
        """Counts a page that follows a job. Raises InputError where its owner follows too many."""
        if sum(other.listeners for other in self._jobs.values() if other.owner == job.owner) >= MAX_FOLLOWED:
            raise InputError("too-many", f"you already follow {MAX_FOLLOWED} jobs", hint="close other pages")
        job.listeners += 1

    def end_following(self, job: WebJob) -> None:
        """Notes that a page has gone. A job that nobody follows for long is cancelled."""
        job.listeners -= 1
        self._expect_listener(job)

    def _expect_listener(self, job: WebJob) -> None:
        """Cancels a job that nobody follows, unless somebody does in time."""
        if job.abandoned is not None:
            job.abandoned.cancel()
            job.abandoned = None
        if not job.listeners and job.ended_s is None:
            delay_s = ABANDONED_SEARCH_S if job.question.kind.runs_unwatched else ABANDONED_S
            job.abandoned = asyncio.get_running_loop().call_later(delay_s, self._leave, job)

    def _leave(self, job: WebJob) -> None:
        if not job.listeners:
            self.cancel(job)

    async def inspect(self, owner: str, upload: str) -> dict[str, Any]:
        """Opens an upload and returns what it is.

        A draft that cannot be read is removed. Raises ForetraceError where it cannot be read, or is a draft of another
        owner.
        """
        question = WebQuestion("step", "upload", (upload,))
        message = await self._task_message(question, owner)
        task = PoolTask("open", message, owner, self._limit_s, lambda *_: None)
        self._pool.submit(task)
        try:
            with self._uploads.reading([upload]):
                description = await task.result
                await self._uploads.keep(upload, owner)
        except ForetraceError as error:
            if error.code not in _PASSING:
                await self._uploads.drop(upload)
            raise
        return description

    async def export(self, owner: str, question: WebQuestion, kind: str, path: str) -> None:
        """Writes a download that is not stored to a file. Raises ForetraceError where there is none."""
        message = await self._task_message(question, owner)
        task = PoolTask("export", {**message, "format": kind, "output": path}, owner, self._limit_s, lambda *_: None)
        self._pool.submit(task)
        try:
            with self._uploads.reading(_uploads_of(message)):
                await task.result
        except ForetraceError as error:
            if error.code != "unwritable-file":
                raise
            # Its place is a file of the server, which is for who runs it.
            problem, hint = "the state folder cannot take the download", "see whether its disk is full"
            raise InputError(error.code, problem, hint=hint) from None

    def _submitted(
        self, job: WebJob, kind: TaskKind, message: dict[str, Any], before: PoolTask | None = None
    ) -> PoolTask:
        """Submits a stage of a job; the time of the stage before is part of its time."""
        limit_s = self._limit_s + (job.question.search_s if kind == "plan" else 0.0)

        def watch(event: str, values: dict[str, Any]) -> None:
            job.add(event, {key: value for key, value in values.items() if key not in ("number", "event")})

        task = PoolTask(kind, message, job.owner, limit_s, watch, used_s=before.used_s if before else 0.0)
        self._pool.submit(task, is_follow_up=before is not None)
        return task

    async def _run(self, job: WebJob, message: dict[str, Any], reading: ExitStack) -> None:
        """Waits for the stages of a job while its uploads are kept, stores its answer, and reports each."""
        with reading:
            await self._run_stages(job, message)

    async def _run_stages(self, job: WebJob, message: dict[str, Any]) -> None:
        assert job.task is not None
        try:
            result = await job.task.result
            if job.question.kind.then is not None:
                job.add("quick", result)
                if job.is_cancelled:
                    raise InputError("interrupted", "cancelled")
                job.task = self._submitted(job, job.question.kind.then, message, job.task)
                result = await job.task.result
            name = await self._store(job, result) if job.question.kind.is_stored else ""
            values = {key: result[key] for key in ("html", "summary", "command", "downloads")}
            job.add("answer", {"answer": name, **values})
        except ForetraceError as error:
            if error.code == "interrupted" and job.is_cancelled:
                job.add("cancelled", _cancelled(job.question).to_dict())
            else:
                job.add("failed", error.to_dict())
        except Exception as error:
            failure = InputError("internal-error", f"a defect of the server: {type(error).__name__}")
            job.add("failed", failure.to_dict())
            raise
        finally:
            job.task = None  # which holds the result a second time
            if job.abandoned is not None:
                job.abandoned.cancel()

    async def _store(self, job: WebJob, result: dict[str, Any]) -> str:
        """Writes the answer to a job, and the downloads that come with it, into the database; returns its id."""
        answer = StoredAnswer(
            new_id(),
            job.owner,
            now_s(),
            job.question.to_dict(),
            result["summary"],
            result["command"],
            tuple(result["downloads"]),
            result["html"],
        )
        return await self._state.call(self._state.store.add_answer, answer, result["files"])

    async def _task_message(self, question: WebQuestion, owner: str) -> dict[str, Any]:
        """Returns the part of a message to a worker that says what is asked, and where the files are."""
        questions = [question]
        if question.ask == "compare":
            answers = [await self._state.call(self._state.store.answer, name) for name in question.names]
            questions = [WebQuestion.read(answer.question) for answer in answers]
            if not all(other.kind.is_of_step for other in questions):
                problem = "only answers about one step can be compared"
                raise UsageError("nothing-to-do", problem, where="answers", hint="open a plan of the search first")
        return {
            "questions": [other.to_dict() for other in questions],
            "places": [self._place(other, owner).to_dict() for other in questions],
        }

    def _place(self, question: WebQuestion, owner: str) -> FilePlace:
        if question.source == "example":
            return FilePlace(str(examples_folder()), (example_of(question.names[0]).path,), readable=FOLDER)
        return self._uploads.place(question.names[0], owner) if question.source == "upload" else FilePlace()

    def forget(self) -> None:
        """Forgets jobs that ended long ago, and those that ended first where their events are too large."""
        now, ended = now_s(), [(job.ended_s, job) for job in self._jobs.values() if job.ended_s is not None]
        size_bytes = 0
        for ended_s, job in sorted(ended, key=lambda pair: pair[0], reverse=True):
            size_bytes += job.size_bytes
            if size_bytes > MAX_FINISHED_BYTES or ended_s < now - FINISHED_S:
                del self._jobs[job.id]


def _uploads_of(message: dict[str, Any]) -> list[str]:
    """Returns the uploads whose files a task reads."""
    sources = [question["input"] for question in message["questions"]]
    return [source["upload"] for source in sources if "upload" in source]


def _cancelled(question: WebQuestion) -> InputError:
    """Returns the error of a job that was cancelled before it had anything to store."""
    if question.ask == "plan":
        hint = "let it run longer"
        return InputError("interrupted", "the search was cancelled before it had found a plan", hint=hint)
    return InputError("interrupted", "the job was cancelled")
