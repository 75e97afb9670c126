"""Connections of clients that send nothing, too slowly, or do not read: none of them keeps others out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from foretrace.server import connections as connections_module
from foretrace.server.connections import LimitedProtocol, allowed_connections

BODY = bytes(64 << 20)


async def app(scope: Scope, _: Receive, send: Send) -> None:
    """Answers with a few bytes, or with many."""
    body = BODY if scope["path"] == "/large" else b"short"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    step = len(body) if scope["query_string"] else 1 << 20
    for first in range(0, len(body), step):
        await send({"type": "http.response.body", "body": body[first : first + step], "more_body": True})
    await send({"type": "http.response.body", "body": b""})


Client = Callable[[str, int], Awaitable[None]]


def serve(client: Client, limit: int = 100) -> None:
    """Runs a server and a client of it until the client ends."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(
                app,
                http=LimitedProtocol,
                limit_concurrency=limit,
                timeout_keep_alive=1,
                timeout_graceful_shutdown=1,
                lifespan="off",
                log_level=50,
            )
            web = uvicorn.Server(config)
            serving = asyncio.create_task(web.serve(sockets=[listener]))
            while not web.started:
                await asyncio.sleep(0.01)
            async with asyncio.timeout(20):
                await client("127.0.0.1", listener.getsockname()[1])
            web.should_exit = True
            await serving

    asyncio.run(run())


@asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the server while the block lasts."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def rest(reader: asyncio.StreamReader) -> int:
    """Reads until the server has closed the connection; returns the number of bytes."""
    size = 0
    with suppress(ConnectionError):
        while content := await reader.read(1 << 20):
            size += len(content)
    return size


GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def status(host: str, port: int) -> int:
    """Returns the status of a request on a connection of its own."""
    async with connected(host, port) as (reader, writer):
        writer.write(GET % b"/")
        return int((await reader.readline()).split()[1])


def test_a_connection_that_sends_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "HEADERS_S", 0.2)

    async def client(host: str, port: int) -> None:
        async with connected(host, port) as (reader, _):
            assert await rest(reader) == 0

    serve(client)


@pytest.mark.parametrize("before", [b"", GET % b"/"], ids=["first request", "second request"])
def test_headers_that_trickle_are_given_up(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    monkeypatch.setattr(connections_module, "HEADERS_S", 0.3)

    async def client(host: str, port: int) -> None:
        async with connected(host, port) as (reader, writer):
            writer.write(before)
            if before:
                await reader.readuntil(b"short")
            sent = 0
            while not reader.at_eof() and not writer.is_closing() and reader.exception() is None:
                writer.write(b"GET /"[sent : sent + 1] or b"x")
                sent += 1
                await asyncio.sleep(0.02)
            assert 5 < sent < 100

    serve(client)


def test_a_request_that_comes_in_time_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "HEADERS_S", 0.3)

    async def client(host: str, port: int) -> None:
        async with connected(host, port) as (reader, writer):
            for _ in range(5):
                writer.write(GET % b"/")
                await reader.readuntil(b"short")
                await asyncio.sleep(0.2)

    serve(client)


def test_idle_connections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "HEADERS_S", 60)

    async def client(host: str, port: int) -> None:
        async with AsyncExitStack() as opened:
            idle = [await opened.enter_async_context(connected(host, port)) for _ in range(50)]
            assert await status(host, port) == 200
            await asyncio.sleep(0.1)
            closed = [reader.at_eof() for reader, _ in idle]
            assert 40 <= sum(closed) < 50
            assert closed == sorted(closed, reverse=True)  # those that came first

    serve(client, limit=10)


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "SEND_STALL_S", 0.3)

    async def client(host: str, port: int) -> None:
        async with connected(host, port) as (reader, writer):
            writer.write(GET % b"/large")
            await asyncio.sleep(1.5)
            assert await rest(reader) < len(BODY)

    serve(client)


@pytest.mark.parametrize("path", [b"/large", b"/large?whole"])
def test_a_client_that_reads_slowly_gets_everything(monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    monkeypatch.setattr(connections_module, "SEND_STALL_S", 0.5)

    async def client(host: str, port: int) -> None:
        async with connected(host, port) as (reader, writer):
            writer.write(GET % path)
            await reader.readuntil(b"\r\n\r\n")
            size = 0
            while size < len(BODY):
                content = await reader.read(1 << 20)
                assert content, "the connection ended"
                size += len(content)
                await asyncio.sleep(0.03)
            assert size == len(BODY)

    serve(client)


def test_the_system_is_asked_for_files_for_all_connections() -> None:
    resource = pytest.importorskip("resource")
    limit = allowed_connections()
    assert 0 < limit <= resource.getrlimit(resource.RLIMIT_NOFILE)[0]
