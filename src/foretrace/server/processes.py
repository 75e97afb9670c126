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

MAX_MESSAGE_BYTES: Final = 512 << 20

_SINGLE: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Variables that keep libraries from starting threads of their own: each worker is one of several."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a worker process may use.

    Attributes:
        folder: An empty folder of its own, in which it begins.
        memory_bytes: Memory beyond what it has when it starts.
        resident_bytes: Memory after a task from which on it is replaced by a new one.
    """

    folder: Path
    memory_bytes: int
    resident_bytes: int


class WorkerProcess:
    """A worker process and the thread that reads its messages.

    Args:
        limits: What it may use.
        niceness: By how much it gives way to other processes.
        on_message: Is called in the event loop for every message.
        on_end: Is called in the event loop once the process has ended.
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
        ours, theirs = socket.socketpair()
        with theirs:
            words = (theirs.fileno(), os.getpid(), limits.folder, limits.memory_bytes, niceness)
            # -P: nothing is imported from the current folder.
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "foretrace.server.worker", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd=limits.folder,
                env=_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is for the server
            )
        self._connection = Connection(ours.detach())
        threading.Thread(target=self._read, name=f"worker {self._popen.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._popen.pid

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
        self._popen.kill()
        self._popen.wait()
        self._connection.close()
        self._call(self._on_end)

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


def _environment() -> dict[str, str]:
    """Returns the environment of a worker: without relative folders, in which it would import what it should not."""
    environment = {**os.environ, **dict.fromkeys(_SINGLE, "1")}
    folders = [folder for folder in environment.pop("PYTHONPATH", "").split(os.pathsep) if Path(folder).is_absolute()]
    if folders:
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    return environment
