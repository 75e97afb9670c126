"""One server for all tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server_client import Browser, RunningServer, server


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with two workers."""
    state: Path = tmp_path_factory.mktemp("state")
    with server(state, "--workers", "2", "--max-upload", "4MiB") as process:
        yield process


@pytest.fixture
def browser(running: RunningServer) -> Iterator[Browser]:
    """A browser that has opened the page."""
    with Browser(running.url) as opened:
        yield opened
