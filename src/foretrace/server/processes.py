"""Starts and ends worker processes, and carries messages between them and the event loop."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from foretrace.basics.processes import python_environment

MAX_MESSAGE_BYTES: Final = 512 << 20

_SINGLE: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Variables that keep libraries from starting threads of their own: each worker is one of several."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits of a worker process.

    Attributes:
        folder: An empty folder in which workers start.
        max_memory_bytes: Memory beyond what it has when it starts.
        max_resident_bytes: A worker that holds more memory than this after a task is replaced.
        defects: The folder for the details of unexpected exceptions.
    """

    folder: Path
    max_memory_bytes: int
    max_resident_bytes: int
    defects: Path


class WorkerProcess:
    """A worker process and the thread that reads its messages.

    Args:
        limits: What it may use.
        niceness: By how much it gives way to other processes.
        on_message: Called in the event loop for every message.
        on_end: Called in the event loop once the process has ended.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self,
        limits: WorkerLimits,
        niceness: int,
        on_message: Callable[[WorkerProcess, dict[str, Any]], None],
        on_end: Callable[[WorkerProcess], None],
    ) -> None:
        self.started_s = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._on_message, self._on_end = on_message, on_end
        server_end, worker_end = socket.socketpair()
        with worker_end:
            limited = (limits.folder, limits.max_memory_bytes, niceness, limits.defects)
            words = (worker_end.fileno(), os.getpid(), *limited)
            try:
                # -P: nothing is imported from the current folder.
                self._popen = subprocess.Popen(
                    [sys.executable, "-P", "-m", "foretrace.server.worker", *map(str, words)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(worker_end.fileno(),),
                    cwd=limits.folder,
                    env={**python_environment(), **dict.fromkeys(_SINGLE, "1")},
                    start_new_session=True,  # Ctrl-C in the terminal is for the server
                )
            except BaseException:
                server_end.close()
                raise
        self._connection = Connection(server_end.detach())
        try:
            threading.Thread(target=self._read, name=f"worker {self._popen.pid}", daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            self._end()
            raise OSError(str(error)) from None

    def send(self, message: dict[str, Any]) -> None:
        """Sends a task; a process that has ended is reported to `on_end`."""
        with suppress(OSError):
            self._connection.send_bytes(json.dumps(message).encode())

    def interrupt(self) -> None:
        """Interrupts its task."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Ends it at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(OSError):
            self._popen.send_signal(number)

    def _read(self) -> None:
        """Hands messages to the event loop until the process has ended."""
        while True:
            try:
                message = json.loads(self._connection.recv_bytes(MAX_MESSAGE_BYTES))
            except (EOFError, OSError, ValueError):
                break
            if not self._call(self._on_message, message):
                break
        self._end()
        self._call(self._on_end)

    def _end(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._connection.close()

    def _call(self, function: Callable[..., None], *arguments: Any) -> bool:
        """Calls a function in the event loop; returns whether there still is one."""
        try:
            self._loop.call_soon_threadsafe(function, self, *arguments)
        except RuntimeError:
            return False
        return True


def return_memory() -> None:
    """Gives memory that is free back to the system, where the C library can: long texts leave gaps between others."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
