"""Runs a server until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import uvicorn

from foretrace.basics.errors import UsageError
from foretrace.server.app import ServerSettings, WebServer
from foretrace.server.connections import LimitedProtocol, allowed_connections
from foretrace.server.guard import Address
from foretrace.server.pool import WorkerPool
from foretrace.server.processes import WorkerLimits
from foretrace.server.store import Store

MAX_WORKERS: Final = 64
MAX_DEFAULT_WORKERS: Final = 8
"""The most workers that are started unless more are asked for: each may take some gigabytes."""
MIN_MEMORY_BYTES: Final = 1 << 30
"""Memory that a worker must be allowed: loading modules, tables and compiled code takes up to 700 MiB."""
SHUT_DOWN_S: Final = 1


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a server is started.

    Attributes:
        host: The interface that it listens on.
        port: The port; 0: any that is free.
        settings: How it is run.
        max_memory_bytes: Memory that each worker may take.
        opens_page: Whether the page is opened in a browser.
    """

    host: str
    port: int
    settings: ServerSettings
    max_memory_bytes: int
    opens_page: bool = False


def default_workers() -> int:
    """Returns how many workers are started unless told otherwise: one for each CPU, and two at least."""
    return min(max(os.cpu_count() or 1, 2), MAX_DEFAULT_WORKERS)


def state_folder() -> Path:
    """Returns the folder in which a server keeps its answers, unless told otherwise."""
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state") / "foretrace"
    except RuntimeError:
        problem = "there is no home folder in which answers could be kept"
        raise UsageError("missing-argument", problem, hint="name a folder: --state FOLDER") from None


def run_server(options: RunOptions, announce: Callable[[str], None]) -> None:
    """Runs a server until a signal ends it.

    Args:
        options: How it is started.
        announce: Called with the address of its page once requests are answered.

    Raises:
        UsageError: The interface or the port cannot be used (`port-in-use`, `bad-value`).
        InputError: The state folder cannot be used.
    """
    listener = _listener(options.host, options.port)
    # Workers have other current folders.
    settings = replace(options.settings, state=options.settings.state.absolute())
    with (
        _sigpipe_ignored(),
        listener,
        closing(Store(settings.state, settings.max_answers)) as store,
        tempfile.TemporaryDirectory(prefix="foretrace-serve-") as folder,
    ):
        limits = WorkerLimits(Path(folder), options.max_memory_bytes, options.max_memory_bytes // 2, settings.defects)
        server = WebServer(settings, store, WorkerPool(settings.workers, limits))
        address = Address.of(options.host, listener.getsockname()[1])

        def begin() -> None:
            announce(address.url)
            if options.opens_page:  # in a thread: a browser of the terminal runs until its user ends it
                threading.Thread(target=webbrowser.open, args=(address.url,), daemon=True).start()

        with suppress(KeyboardInterrupt):  # which uvicorn raises again after it has ended
            asyncio.run(_serve(server, address, listener, begin))


@contextmanager
def _sigpipe_ignored() -> Iterator[None]:
    """Ignores SIGPIPE while the block lasts: a client that disconnects must not end the server.

    The command line leaves the signal to the system, so that a reader that has gone ends a command.
    """
    if not hasattr(signal, "SIGPIPE") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


async def _serve(server: WebServer, address: Address, listener: socket.socket, begin: Callable[[], None]) -> None:
    """Answers requests until a signal comes; calls `begin` once they are answered."""
    config: dict[str, Any] = {
        "http": LimitedProtocol,
        "log_level": "critical",
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": SHUT_DOWN_S,
        "limit_concurrency": allowed_connections(),
        "lifespan": "off",
        "ws": "none",
    }
    async with server.running():
        await _Web(uvicorn.Config(server.app(address), **config), begin).serve(sockets=[listener])


class _Web(uvicorn.Server):
    """A server that says when it has started."""

    def __init__(self, config: uvicorn.Config, begin: Callable[[], None]) -> None:
        super().__init__(config)
        self._begin = begin

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to answer requests."""
        await super().startup(sockets)
        self._begin()


def _listener(host: str, port: int) -> socket.socket:
    """Returns a socket that listens. Raises UsageError where the port is taken or the interface is not there."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        problem = f"--host {host!r} is not an interface of this machine"
        raise UsageError("bad-value", problem, hint="127.0.0.1 is this machine alone, 0.0.0.0 everybody") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            problem = f"port {port} is taken by another program"
            raise UsageError("port-in-use", problem, hint="--port 0 takes one that is free") from None
        reason = error.strerror or str(error)
        raise UsageError(
            "bad-value", f"{host}:{port} cannot be listened on: {reason}", hint="see --host and --port"
        ) from None
    listener.setblocking(False)
    return listener
