"""Limits how long a client may take to send the headers of a request, and how long it may stop reading a response.

Uvicorn limits only the time between two requests of a connection. A client that sends nothing, or one byte now and
then, would stay as long as it likes; a few thousand of these leave no connection for others.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 2000
"""Beyond this, the connection that has waited longest for a request makes room for a new one."""
HEADERS_S: Final = 15.0
"""Seconds in which the headers of a request must have come."""
SEND_STALL_S: Final = 30.0
"""Seconds after which a connection is closed whose client reads nothing of a response."""
_OTHER_FILES: Final = 256
"""Open files that are not connections: the database, uploads, downloads, workers."""


class LimitedProtocol(H11Protocol):
    """A connection with a limit on the time of headers and of a stalled response."""

    _waiting_since_s = 0.0
    _headers_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection; where there are too many, one that waits for a request makes room."""
        super().connection_made(transport)
        self._waiting_since_s = self.loop.time()
        self._headers_timer = self.loop.call_later(HEADERS_S, self._give_up)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            waiting = [other for other in self.connections if isinstance(other, LimitedProtocol) and other._is_waiting]
            min(waiting, key=lambda other: other._waiting_since_s, default=self)._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the timers of a connection that has ended."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._unset("_headers_timer")
        self._unset("_send_timer")

    def data_received(self, data: bytes) -> None:
        """Handles received bytes. The headers of a request must be complete `HEADERS_S` after its first byte."""
        super().data_received(data)
        if not self._is_waiting:
            self._unset("_headers_timer")
        elif self._headers_timer is None and self.conn.their_state is h11.IDLE:  # and not the rest of a refused body
            self._headers_timer = self.loop.call_later(HEADERS_S, self._give_up)

    def on_response_complete(self) -> None:
        """Notes since when the connection waits for another request."""
        self._waiting_since_s = self.loop.time()
        super().on_response_complete()
        if self.transport.is_closing() and self._send_timer is None:
            self._watch_sending()

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection on which no other request came, once its client has read the last response."""
        super().timeout_keep_alive_handler()
        if self._send_timer is None:
            self._watch_sending()

    def pause_writing(self) -> None:
        """Pauses writing. The client must read something within `SEND_STALL_S`."""
        super().pause_writing()
        self._unset("_send_timer")
        self._watch_sending()

    def resume_writing(self) -> None:
        """Goes on writing."""
        super().resume_writing()
        self._unset("_send_timer")
        if self.transport.is_closing():
            self._watch_sending()

    @property
    def _is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _watch_sending(self) -> None:
        left_bytes = self.transport.get_write_buffer_size()
        if left_bytes:
            self._send_timer = self.loop.call_later(SEND_STALL_S, self._check_sending, left_bytes)

    def _check_sending(self, before_bytes: int) -> None:
        self._send_timer = None
        if self.transport.get_write_buffer_size() < before_bytes:
            self._watch_sending()
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Closes the connection at once and discards its unsent data."""
        self.connections.discard(self)  # it does not count any more, though its end is reported later
        self.transport.abort()

    def _unset(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)


def allowed_connections() -> int:
    """Returns how many connections a server takes, after it has asked the system for enough open files."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MAX_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, max(soft - _OTHER_FILES, soft // 2))
    )
