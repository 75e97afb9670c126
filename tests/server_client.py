"""A server in a process of its own, and a browser's side of its interface."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

LAST = ("answer", "failed", "cancelled")

PREDICTION: Mapping[str, Any] = {
    "ask": "step",
    "input": {"model": "llama3-8b"},
    "options": {"gpus": "16", "tp": "2", "gbs": "16"},
    "machine": {"cluster": "h100-dgx"},
}

LONG_SEARCH: Mapping[str, Any] = {
    "ask": "plan",
    "input": {"model": "llama3-8b"},
    "options": {"gpus": "64", "gbs": "1024"},
    "machine": {"cluster": "h100-dgx", "network": "flow"},
    "search": {"time_s": 120, "objective": "pareto"},
}

SEEDS = (
    "llama405b_1024gpu.txt",
    "moe_128gpu.txt",
    "moe_fairseq_profile.txt",
    "traces/gpt13b_real_rank0.txt",
    "traces/moe_ex_situ_rank2.txt",
)
"""Examples of each kind of file, in `examples`."""


@dataclass(frozen=True)
class RunningServer:
    """A server process, and the address that it printed."""

    process: subprocess.Popen[str]
    url: str

    @property
    def workers(self) -> list[int]:
        """The numbers of its worker processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(number) for number in children.split()]

    def kill(self) -> None:
        """Ends it as a crash of the machine would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def server(state: Path, *options: str, folder: Path | None = None) -> Iterator[RunningServer]:
    """Runs a server with a state folder, in a current folder, until the block ends."""
    words = [sys.executable, "-m", "foretrace", "serve", "--port", "0", "--no-open", "--state", str(state)]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = subprocess.Popen([*words, *options], stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)
    try:
        assert process.stdout is not None
        yield RunningServer(process, process.stdout.readline().strip())
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Browser:
    """What a page of the server does: its cookies, its header, its requests."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"X-Foretrace": "1"}, timeout=60)
        self.http.get("/")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def begin(self, question: Mapping[str, Any], **others: Any) -> str:
        """Begins a job and returns its id."""
        response = self.http.post("/api/jobs", json={**question, **others})
        assert response.status_code == 200, response.text
        return str(response.json()["job"])

    def events(self, job: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the events of a job."""
        with self.http.stream("GET", f"/api/jobs/{job}/events") as response:
            assert response.status_code == 200
            name = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))

    def ask(self, question: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Asks a question and returns the last event of each name."""
        return dict(self.events(self.begin(question)))

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Asks a question and returns its answer."""
        events = self.ask(question)
        assert "answer" in events, events
        return events["answer"]

    def error(self, question: object) -> dict[str, Any]:
        """Asks a question that is a mistake and returns the error, whoever finds it."""
        response = self.http.post("/api/jobs", json=question)
        if response.status_code != 200:
            return dict(response.json()["error"])
        events = dict(self.events(response.json()["job"]))
        assert "failed" in events, events
        return events["failed"]

    def upload(self, files: Mapping[str, bytes]) -> str:
        """Uploads files and returns the id, without opening them."""
        upload = self.http.post("/api/uploads", json={"names": list(files)}).json()["upload"]
        for number, content in enumerate(files.values()):
            response = self.http.put(f"/api/uploads/{upload}/{number}", content=content)
            assert response.status_code == 200, response.text
        return str(upload)

    def open_upload(self, files: Mapping[str, bytes]) -> httpx.Response:
        """Uploads files and opens them."""
        return self.http.post(f"/api/uploads/{self.upload(files)}/open")


def put_until_answered(browser: Browser, path: str, piece: bytes, count: int, *, is_declared: bool) -> tuple[int, int]:
    """Sends a body until the server answers, as no client library does.

    Args:
        browser: The browser whose cookies are sent.
        path: The address.
        piece: A part of the body.
        count: How many of them the body has.
        is_declared: Whether the length is declared; else the body comes in chunks.

    Returns:
        The status of the answer, and the bytes that were sent.
    """
    base = browser.http.base_url
    cookies = "; ".join(f"{name}={value}" for name, value in browser.http.cookies.items())
    length = f"Content-Length: {len(piece) * count}" if is_declared else "Transfer-Encoding: chunked"
    head = f"PUT {path} HTTP/1.1\r\nHost: {base.host}:{base.port}\r\nX-Foretrace: 1\r\nCookie: {cookies}\r\n{length}"
    part = piece if is_declared else b"%x\r\n%s\r\n" % (len(piece), piece)
    sent_bytes = 0
    with socket.create_connection((base.host, base.port or 80), 60) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode())
        for _ in range(count):
            if select.select([connection], [], [], 0)[0]:
                break
            try:
                connection.sendall(part)
            except OSError:
                break
            sent_bytes += len(piece)
        return int(connection.recv(65536).split()[1]), sent_bytes
