"""A worker process: takes one task at a time from the server, within limits, and reports what becomes of it.

The server starts it as `python -m foretrace.server.worker`, with one end of a pair of sockets. Messages are JSON in
both directions. A task is interrupted by SIGINT; its caches stay. A hostile upload can at worst end this process.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Final

from foretrace.basics.errors import ForetraceError, InputError
from foretrace.basics.processes import end_with
from foretrace.basics.progress import shown_by
from foretrace.engine import jit
from foretrace.server.answering import Answerer
from foretrace.server.errors import reported_defect
from foretrace.server.questions import FilePlace, WebQuestion

MIN_INTERVAL_S: Final = 0.2
"""Seconds between two messages on progress."""

MAX_FILE_BYTES: Final = 2 << 30
"""The largest file that a worker can write: downloads of large jobs take some hundred megabytes."""

MAX_JOB_FILES: Final = 16
"""Files of an upload that are looked at for the names of each other."""
MAX_JOB_FILE_BYTES: Final = 64 << 10
_JOB_FILES: Final = (".yaml", ".yml")

_WARM_UP: Final = {
    "ask": "step",
    "input": {"model": "llama3-70b"},
    "options": {"gpus": "1024", "tp": "8", "pp": "4", "gbs": "512"},
    "machine": {"cluster": "h100-dgx"},
}
"""A question whose answer nobody wants: it loads modules, tables and compiled code before the first user asks."""


class Worker:
    """Does the tasks that come over a connection, until it closes."""

    def __init__(self, connection: Connection, folder: Path, defects: Path) -> None:
        self._connection = connection
        self._folder, self._defects = folder, defects
        self._answerer = Answerer()
        self._number = 0
        self._is_working = False
        self._is_sending = False
        self._is_interrupt_due = False
        self._is_quick = False

    def run(self) -> None:
        """Does tasks until the server closes the connection."""
        signal.signal(signal.SIGINT, self._interrupt)
        self._send("ready")
        while True:
            try:
                task = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                return
            self._number = task["number"]
            event, values = self._outcome(task)
            self._send(event, **values, resident_bytes=_resident_bytes())

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Interrupts the task that runs, after the message that is being sent.

        Between tasks there is nothing to interrupt.
        """
        if self._is_working and self._is_sending:
            self._is_interrupt_due = True
        elif self._is_working:
            self._is_working = False
            raise KeyboardInterrupt

    def _outcome(self, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Does a task; returns the event to report, with its values."""
        try:
            try:
                self._is_working = True
                self._send("begun")  # from now on the server may interrupt
                with shown_by(self._shown), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return "done", {"result": self._do(task)}
            finally:
                self._is_working = False
        except KeyboardInterrupt:
            self._is_working = False
            error: ForetraceError = InputError("interrupted", "interrupted")
        except ForetraceError as failure:
            error = failure
        except BaseException as failure:
            error = reported_defect(failure, [task["kind"], json.dumps(task.get("questions"))], self._defects)
        return "failed", {"error": error.to_dict()}

    def _do(self, task: Mapping[str, Any]) -> dict[str, Any]:
        kind = task["kind"]
        self._is_quick = kind in ("quick", "warm")
        if kind == "warm":
            return self._warm_up()
        asked = [
            (WebQuestion.read(values), self._place(place))
            for values, place in zip(task["questions"], task["places"], strict=True)
        ]
        question, place = asked[0]
        with jit.using(jit.installed() or None):
            if kind == "quick":
                return self._answerer.quick(question, place)
            if kind == "open":
                return self._answerer.inspected(question, place)
            if kind == "compare":
                return self._answerer.compared(asked)
            if kind == "export" and len(asked) > 1:
                self._answerer.export_comparison(asked, Path(task["output"]))
                return {}
            if kind == "export":
                self._answerer.export(question, place, task["format"], Path(task["output"]))
                return {}
            return self._answerer.full(question, place, self._show_front)

    def _warm_up(self) -> dict[str, Any]:
        question, place = WebQuestion.read(_WARM_UP), self._place({})
        with jit.using(jit.installed() or None):
            self._answerer.quick(question, place)
            self._answerer.full(question, place, lambda _: None)
        gc.collect()
        gc.freeze()  # what was loaded stays: the collector need not look at it again and again
        return {}

    def _place(self, values: Mapping[str, Any]) -> FilePlace:
        """Reads where the files of a question are: where there are none, it is in the folder of the worker."""
        place = FilePlace.read(values)
        return _job_place(place) if place.folder else replace(place, folder=str(self._folder))

    def _send(self, event: str, **values: Any) -> None:
        message = json.dumps({"number": self._number, "event": event, **values}).encode()
        self._is_sending = True
        try:
            self._connection.send_bytes(message)
        finally:
            self._is_sending = False
        if self._is_interrupt_due:
            self._is_interrupt_due = self._is_working = False
            raise KeyboardInterrupt

    def _show_front(self, html: str) -> None:
        self._send("front", html=html)

    @contextmanager
    def _shown(self, text: str) -> Iterator[_Sent]:
        """Sends the text of work that is being done, and its changes; quick answers come sooner than both."""
        if not self._is_quick:
            self.send_progress(text)
        yield _Sent(self, text)

    def send_progress(self, text: str) -> None:
        """Reports what is being done."""
        self._send("progress", text=text)


def job_paths(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the files to open as the job. If one job file names all others, only that file is opened.

    Args:
        folder: Where they are.
        names: The files. Those that a job file names, such as a cluster, are read with it.
    """
    job_files = [name for name in names if name.lower().endswith(_JOB_FILES)]
    if not job_files or not 1 < len(names) <= MAX_JOB_FILES:
        return tuple(names)
    texts = {name: _beginning(folder / name) for name in names}
    unnamed = [name for name in names if not any(_names(texts[other], name) for other in names if other != name)]
    return tuple(unnamed) if len(unnamed) == 1 and unnamed[0] in job_files else tuple(names)


def _names(text: str, name: str) -> bool:
    """Returns whether a text has a file's name, and not only as a part of another."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None


def _job_place(place: FilePlace) -> FilePlace:
    """Returns the place with the files of the job only, without those that its file names."""
    paths = job_paths(Path(place.folder), place.names)
    shown = (text for name, text in zip(place.names, place.shown_names, strict=False) if name in paths)
    return replace(place, names=paths, shown_names=tuple(shown))


def _beginning(path: Path) -> str:
    """Returns the beginning of a file as text; nothing where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_JOB_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


class _Sent:
    """Work whose text is sent when it changes, not too often."""

    def __init__(self, worker: Worker, text: str) -> None:
        self._worker, self._text, self._sent_s = worker, text, time.monotonic()

    @property
    def text(self) -> str:
        """What is being done."""
        return self._text

    @text.setter
    def text(self, text: str) -> None:
        self._text, now_s = text, time.monotonic()
        if now_s - self._sent_s >= MIN_INTERVAL_S:
            self._sent_s = now_s
            self._worker.send_progress(text)


def _resident_bytes() -> int:
    """Returns the memory that this process holds; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def limit_memory(max_bytes: int) -> None:
    """Limits the memory that this process can take beyond what it has now, and its files, where the system can."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = (
        (resource.RLIMIT_AS, used_bytes + max_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
    )
    for kind, limit in limits:
        _, hard = resource.getrlimit(kind)
        lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lower, hard))


def main(arguments: list[str]) -> None:
    """Runs a worker.

    Args:
        arguments: The number of the socket, that of the server's process, the worker's folder, the memory that it may
            take in bytes, by how much it gives way to other processes, and the folder for the details of defects.
    """
    descriptor, parent, folder, max_bytes, niceness, defects = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(int(parent))
    os.nice(int(niceness))
    if jit.installed():
        import numba  # noqa: F401 - libraries that are loaded later may fail halfway where memory is short
    limit_memory(int(max_bytes))
    Worker(Connection(int(descriptor)), Path(folder), Path(defects)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
