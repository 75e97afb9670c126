"""The addresses of the server: which function answers which request."""

from __future__ import annotations

import asyncio
import json
import mimetypes
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from foretrace.basics.errors import ForetraceError, InputError, shortened
from foretrace.report.page.document import style_sheet
from foretrace.server.errors import UNREAD, reported_defect, status_of, unknown_id, unwritable_state
from foretrace.server.guard import Address, Guard, Owners
from foretrace.server.jobs import JobBoard
from foretrace.server.pool import WorkerPool
from foretrace.server.processes import return_memory
from foretrace.server.questions import WebQuestion, read_id, read_json, read_object
from foretrace.server.start import fields_of_kind, start_page
from foretrace.server.store import StateThread, Store, StoredAnswer, new_id
from foretrace.server.uploads import MAX_FILES, Uploads

MAX_BODY_BYTES: Final = 64 << 10
BODY_S: Final = 20.0
"""Seconds in which the body of a question must have come."""
CLEAN_UP_S: Final = 30.0
MAX_DOWNLOADS: Final = 16
"""Downloads that are being made or sent from a file: each of them may take hundreds of megabytes."""
MAX_DOWNLOADS_OF_OWNER: Final = 4
PIECE_BYTES: Final = 256 << 10
MAX_DIGITS: Final = 20
"""Digits of a number in a request; Python refuses to read numbers of thousands of digits."""

_ENDINGS: Final = {
    "json": ("json", "application/json"),
    "report": ("html", "text/html; charset=utf-8"),
    "perfetto": ("pftrace", "application/octet-stream"),
    "saved": ("answer", "application/octet-stream"),
    "launch": ("sh", "text/plain; charset=utf-8"),
}
"""How downloads end, and what they are, by their format."""

_TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server is run.

    Attributes:
        state: The folder of its answers and uploads.
        workers: How many processes compute.
        max_upload_bytes: The size of an uploaded file at most.
        time_limit_s: Seconds of work on one question.
        max_answers: Answers that are kept for each owner.
    """

    state: Path
    workers: int
    max_upload_bytes: int
    time_limit_s: float
    max_answers: int = 2000

    @property
    def defects(self) -> Path:
        """The folder for the details of unexpected exceptions."""
        return self.state / "defects"


class WebServer:
    """Answers requests with the help of a pool of workers and a store.

    Args:
        settings: How it is run.
        store: The database of its state folder.
        pool: The workers.
    """

    def __init__(self, settings: ServerSettings, store: Store, pool: WorkerPool) -> None:
        self._settings, self._pool = settings, pool
        self._state = StateThread(store)
        self._uploads = Uploads(self._state, settings.state / "uploads", settings.max_upload_bytes)
        self._uploads.load()
        self._owners = Owners(store.key)
        self._open_downloads: Counter[str] = Counter()
        """The downloads of each owner that are being made or sent from a file."""
        self._downloads = _emptied(settings.state / "downloads")
        _made(settings.defects)
        self._board = JobBoard(pool, self._state, self._uploads, settings.time_limit_s)
        self._files = web_files()
        self._start_page = json.dumps(start_page(settings.max_upload_bytes, MAX_FILES)).encode()

    def app(self, address: Address) -> ASGIApp:
        """Returns the application that answers at an address, while the server is `running`."""
        routes = [
            Route("/", self._page),
            Route("/web/{name}", self._file),
            Route("/api/start", self._start),
            Route("/api/jobs", _checked(self._begin), methods=["POST"]),
            Route("/api/jobs/{job}/events", _checked(self._events)),
            Route("/api/jobs/{job}/cancel", _checked(self._cancel), methods=["POST"]),
            Route("/api/uploads", _checked(self._begin_upload), methods=["POST"]),
            Route("/api/uploads/{upload}/open", _checked(self._open_upload), methods=["POST"]),
            Route("/api/uploads/{upload}/{number}", _checked(self._upload), methods=["PUT"]),
            Route("/api/history", _checked(self._history)),
            Route("/api/answers/{answer}", _checked(self._answer), methods=["GET", "DELETE"]),
            Route("/api/answers/{answer}/{format}", _checked(self._download)),
        ]
        handlers: Mapping[Any, Any] = {HTTPException: _http_error, Exception: self._defect}
        # The guard is outermost, so that its headers are also those of a defect.
        return Guard(Starlette(routes=routes, exception_handlers=handlers), address)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the workers while the block lasts."""
        cleaning = asyncio.create_task(self._clean_up())
        try:
            self._pool.start()
            yield
        finally:
            cleaning.cancel()
            self._pool.close()
            self._state.close()

    async def _clean_up(self) -> None:
        """Forgets jobs, removes uploads that nobody needs any more, and returns memory, now and then."""
        while True:
            await asyncio.sleep(CLEAN_UP_S)
            try:
                self._board.forget()
                await self._uploads.remove_old()
                await self._uploads.remove_unused()
                await asyncio.to_thread(return_memory)
            except ForetraceError:
                continue  # such as a full disk, which those hear of who ask something
            except Exception as failure:
                reported_defect(failure, ["clean-up"], self._settings.defects)

    async def _defect(self, request: Request, failure: Exception) -> Response:
        words = [request.method, request.url.path]
        return _error(await asyncio.to_thread(reported_defect, failure, words, self._settings.defects), 500)

    async def _page(self, request: Request) -> Response:
        content, kind = self._files["index.html"]
        return self._owners.given(request, Response(content, media_type=kind))

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files or name == "index.html":
            raise HTTPException(404)
        content, kind = self._files[name]
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    async def _start(self, _: Request) -> Response:
        return Response(self._start_page, media_type="application/json")

    async def _begin(self, request: Request) -> Response:
        values = await _body(request)
        replaces = values.pop("replaces", None) if isinstance(values, dict) else None
        before = None if replaces is None else read_id(replaces, "replaces")
        job = await self._board.begin(self._owners.needed(request), WebQuestion.read(values), before)
        return JSONResponse({"job": job.id})

    async def _events(self, request: Request) -> Response:
        job = self._board.job(request.path_params["job"], self._owners.needed(request))
        self._board.begin_following(job)
        return _WatchedStream(job.follow(), partial(self._board.end_following, job), media_type="text/event-stream")

    async def _cancel(self, request: Request) -> Response:
        self._board.cancel(self._board.job(request.path_params["job"], self._owners.needed(request)))
        return JSONResponse({})

    async def _begin_upload(self, request: Request) -> Response:
        fields = read_object(await _body(request), "the upload", ("names",))
        names = fields.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError("bad-value", "expected a list of names", where="names")
        return JSONResponse({"upload": await self._uploads.begin(self._owners.needed(request), names)})

    async def _upload(self, request: Request) -> Response:
        name, number = request.path_params["upload"], request.path_params["number"]
        if not (number.isascii() and number.isdecimal() and len(number) <= MAX_DIGITS):
            raise unknown_id("file of an upload", f"{name}/{number}")
        length = request.headers.get("content-length", "")
        is_number = length.isascii() and length.isdecimal() and len(length) <= MAX_DIGITS
        size = int(length) if is_number else None
        await self._uploads.write(name, self._owners.needed(request), int(number), request.stream(), size)
        return JSONResponse({})

    async def _open_upload(self, request: Request) -> Response:
        name, owner = request.path_params["upload"], self._owners.needed(request)
        try:
            description = await self._board.inspect(owner, name)
        except ForetraceError as error:
            status = status_of(error)
            return _error(error, 422 if status in (400, 413) else status)
        return JSONResponse({"upload": name, **description, "fields": fields_of_kind(description["kind"])})

    async def _history(self, request: Request) -> Response:
        answers = await self._state.call(self._state.store.history, self._owners.needed(request))
        return JSONResponse({"answers": answers})

    async def _answer(self, request: Request) -> Response:
        if request.method == "DELETE":
            return await self._delete(request)
        answer = await self._stored(request)
        return JSONResponse(
            {
                "answer": answer.id,
                "html": answer.html,
                "summary": answer.summary,
                "question": answer.question,
                "command": answer.command,
                "downloads": list(answer.downloads),
                "at": answer.created_s,
            }
        )

    async def _stored(self, request: Request) -> StoredAnswer:
        self._owners.needed(request)
        return await self._state.call(self._state.store.answer, request.path_params["answer"])

    async def _delete(self, request: Request) -> Response:
        await self._state.call(
            self._state.store.delete_answer, request.path_params["answer"], self._owners.needed(request)
        )
        return JSONResponse({})

    async def _download(self, request: Request) -> Response:
        answer, kind = await self._stored(request), request.path_params["format"]
        base = request.query_params.get("with")
        if kind not in _ENDINGS or kind not in answer.downloads or (base is not None and kind != "report"):
            raise unknown_id("download", kind)
        ending, media_type = _ENDINGS[kind]
        stem = _file_stem(answer) + ("" if base is None else "-compared")
        headers = {
            "content-disposition": f'attachment; filename="{stem}.{ending}"',
            "content-security-policy": "sandbox; default-src 'none'",
        }
        if base is None:
            content = await self._state.call(self._state.store.file, answer.id, kind)
            if content is not None:
                return Response(content, media_type=media_type, headers=headers)
            question = WebQuestion.read(answer.question)
        else:
            question = WebQuestion("compare", "answers", (read_id(base, "with"), answer.id))
        owner, path = self._owners.needed(request), self._downloads / f"{new_id()}.{ending}"
        self._take_download(owner)
        try:
            await self._board.export(owner, question, kind, str(path))
            return _SentFile(path, media_type, headers, partial(self._open_downloads.subtract, [owner]))
        except BaseException as error:
            self._open_downloads[owner] -= 1
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise unwritable_state(error) from None
            raise

    def _take_download(self, owner: str) -> None:
        """Counts a download that is about to be made. Raises InputError where too many are open."""
        self._open_downloads += Counter()  # without owners that have none
        hint = "try again when one of them has ended"
        if self._open_downloads[owner] >= MAX_DOWNLOADS_OF_OWNER:
            raise InputError("too-many", f"you already have {MAX_DOWNLOADS_OF_OWNER} open downloads", hint=hint)
        if self._open_downloads.total() >= MAX_DOWNLOADS:
            raise InputError("busy", f"this server already has {MAX_DOWNLOADS} open downloads", hint=hint)
        self._open_downloads[owner] += 1


class _WatchedStream(StreamingResponse):
    """A stream whose end is reported, whether all was sent or its reader has gone.

    Args:
        content: What is sent.
        on_end: Called at the end.
        headers: More headers.
        media_type: What it is.
    """

    def __init__(
        self,
        content: AsyncIterator[Any],
        on_end: Callable[[], object],
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(content, 200, headers, media_type)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


class _SentFile(_WatchedStream):
    """A file that is removed once it is open, and sent.

    Args:
        path: The file.
        media_type: What it is.
        headers: More headers.
        on_end: Called when it was sent, or its reader has gone.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, media_type: str, headers: Mapping[str, str], on_end: Callable[[], None]) -> None:
        self._path, self._stream = path, path.open("rb")
        self._on_sent = on_end
        with suppress(OSError):  # systems that keep open files do it later
            path.unlink()
        size_bytes = os.fstat(self._stream.fileno()).st_size
        super().__init__(self._pieces(), self._close, {**headers, "content-length": str(size_bytes)}, media_type)

    def _close(self) -> None:
        self._stream.close()
        self._path.unlink(missing_ok=True)
        self._on_sent()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(self._stream.read, PIECE_BYTES):
            yield piece


def web_files() -> dict[str, tuple[bytes, str]]:
    """Returns all files that pages load, with their types, by name. No request ever reaches the file system."""
    contents: dict[str, tuple[bytes, str]] = {}
    for package in ("foretrace.report", "foretrace.server"):
        for entry in files(package).joinpath("web").iterdir():
            kind = _TYPES.get(Path(entry.name).suffix) or mimetypes.guess_type(entry.name)[0]
            if entry.is_file() and kind is not None and not entry.name.endswith((".py", ".pyc", ".d.ts")):
                contents[entry.name] = entry.read_bytes(), kind
    contents["style.css"] = style_sheet().encode(), _TYPES[".css"]
    return contents


def _made(folder: Path) -> Path:
    """Returns a private folder, which is made where it does not exist. Raises InputError where it cannot be made."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unwritable_state(error, folder) from None
    return folder


def _emptied(folder: Path) -> Path:
    """Returns a folder for files that are about to be sent, without what an earlier server left there."""
    try:
        for path in _made(folder).iterdir():
            path.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable_state(error, folder) from None
    return folder


def _file_stem(answer: StoredAnswer) -> str:
    """Returns the name of a download: letters, digits and hyphens of its title."""
    title = re.sub(r"[^A-Za-z0-9]+", "-", str(answer.summary.get("title", "")))[:60].strip("-").lower()
    return title or "answer"


Endpoint = Callable[[Request], Awaitable[Response]]


def _checked(endpoint: Endpoint) -> Endpoint:
    """Returns an endpoint that answers an error of Foretrace as JSON with the status of its code."""

    async def run(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ForetraceError as error:
            return _error(error, status_of(error))
        except ClientDisconnect:
            return Response(status_code=400)

    return run


def _error(error: ForetraceError, status: int, headers: Mapping[str, str] | None = None) -> Response:
    # A body that was not read would be taken for the next request.
    closing = {"connection": "close"} if status in UNREAD else {}
    return JSONResponse({"error": error.to_dict()}, status, {**closing, **(headers or {})})


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        problem = f"this address does not take {shortened(request.method)}"
        return _error(InputError("request-refused", problem), 405, error.headers)
    code = "unknown-id" if error.status_code == 404 else "request-refused"
    return _error(InputError(code, "there is nothing at this address"), error.status_code, error.headers)


async def _body(request: Request) -> Any:
    """Returns the JSON of a request. Raises InputError where it is too long, too slow, or not JSON."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise InputError("input-too-large", f"the question is longer than {MAX_BODY_BYTES:,} bytes")
    except TimeoutError:
        raise InputError("too-slow", f"the question has not come within {BODY_S:g} s") from None
    return read_json(bytes(body))
