"""`foretrace serve`: serves a page that answers questions about models, plans and files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from foretrace.basics.errors import UsageError, usage_errors
from foretrace.basics.units import format_bytes, parse_bytes, parse_time

EXAMPLES = """Examples:

foretrace serve

foretrace serve --port 0 --workers 2 --state studies --no-open

Ctrl-C stops the server with exit code 0. Finished answers are kept."""

_HINT = 'pip install "foretrace[server]"'
_MAX_PORT = 65535


def command(
    host: Annotated[
        str, typer.Option("--host", metavar="NAME", help="Interface; any but loopback needs the printed token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port; 0 takes a free one.")] = 8023,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            help="Worker processes; by default the number of CPUs, from 2 to 8.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Folder of answers and uploads; by default ~/.local/state/foretrace.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", help="Answers kept for each user; the oldest go first.")
    ] = 2000,
    max_upload: Annotated[
        str, typer.Option("--max-upload", metavar="SIZE", help="Largest size of an uploaded file.")
    ] = "256MiB",
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory of each worker (Linux).")] = "4GiB",
    time_limit: Annotated[
        str, typer.Option("--time-limit", metavar="TIME", help="Time for one question; a search has its own.")
    ] = "60s",
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.", show_default=False)
    ] = False,
) -> None:
    """Serve a page that answers questions about models, plans and files, and print its address."""
    try:
        from foretrace.server.app import ServerSettings
        from foretrace.server.run import (
            MAX_WORKERS,
            MIN_MEMORY_BYTES,
            RunOptions,
            default_workers,
            run_server,
            state_folder,
        )
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "foretrace":
            raise
        problem = f"the server needs {error.name}, which is not installed here"
        raise UsageError("missing-package", problem, hint=_HINT) from None
    count = default_workers() if workers is None else _within("--workers", workers, 1, MAX_WORKERS)
    settings = ServerSettings(
        state_folder() if state is None else state,
        count,
        int(_positive(parse_bytes, max_upload, "--max-upload")),
        float(_positive(parse_time, time_limit, "--time-limit")),
        _within("--keep", keep, 1, 1_000_000),
    )
    memory_bytes = int(_positive(parse_bytes, memory, "--memory"))
    if memory_bytes < MIN_MEMORY_BYTES:
        problem = f"--memory {memory}: a process needs {format_bytes(MIN_MEMORY_BYTES)} to start"
        raise UsageError("out-of-range", problem, hint="leave it out: the default is 4GiB")
    run_server(
        RunOptions(host, _within("--port", port, 0, _MAX_PORT), settings, memory_bytes, open_page),
        lambda url: print(url, flush=True),
    )


def _within(flag: str, number: int, min_number: int, max_number: int) -> int:
    if not min_number <= number <= max_number:
        raise UsageError("out-of-range", f"{flag} {number}: expected a number from {min_number} to {max_number:,}")
    return number


def _positive(parse: Any, text: str, flag: str) -> float:
    with usage_errors():
        amount: float = parse(text, where=flag)
    if amount <= 0:
        raise UsageError("out-of-range", f"{flag} {text}: expected a value above 0")
    return amount
