"""Traces a script in processes of its own, and returns the recordings of the ranks that stand for all."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from foretrace.basics.errors import InputError
from foretrace.basics.files import is_restricted
from foretrace.basics.processes import say
from foretrace.basics.progress import doing
from foretrace.inputs.script.recording import RankRecording
from foretrace.inputs.script.roles import TracedJob, partners, ranks_text, with_roles
from foretrace.inputs.script.routing import BALANCED, Routing

MIN_TORCH: Final = (2, 11)
"""The first version of PyTorch that scripts are traced with."""
MAX_SHOWN_LINES: Final = 20
"""Lines of what a failed script printed that are shown."""
MAX_SHOWN_CHARACTERS: Final = 2000
"""Characters of such a line that are shown."""
_MAX_TAIL_BYTES: Final = 1 << 16

MAX_AT_ONCE: Final = 4
"""Ranks that are traced at once on each core, unless they wait for each other."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """What to trace.

    Attributes:
        script: The path of the script.
        arguments: Its arguments.
        world: Ranks of the job.
        gpus: GPUs of a node.
        ranks: Ranks to trace; None: those that differ.
        steps: The numbers of the first and the last step to record, from 0.
        unknown: The number that stands for numbers that only a GPU knows; None: a script that needs one is refused.
        routing: How tokens choose experts.
    """

    script: str
    arguments: tuple[str, ...] = ()
    world: int = 1
    gpus: int = 8
    ranks: tuple[int, ...] | None = None
    steps: tuple[int, int] = (1, 1)
    unknown: float | None = None
    routing: Routing = BALANCED


def trace_script(request: TraceRequest) -> TracedJob:
    """Traces the roles of a script.

    Raises:
        InputError: The script fails (its own traceback goes to stderr) or cannot be traced, PyTorch is missing, or this
            process answers requests of others.
    """
    if is_restricted():
        raise InputError("script-not-run", "scripts of others are not run", where=request.script)
    check_torch()
    try:
        return _trace_in_folder(request)
    except OSError as error:
        problem = f"the tracer cannot use the folder for temporary files: {error.strerror or error}"
        hint = "set TMPDIR to a folder that may be written to and that has room"
        raise InputError("unwritable-file", problem, where=tempfile.gettempdir(), hint=hint) from None


def _trace_in_folder(request: TraceRequest) -> TracedJob:
    with tempfile.TemporaryDirectory(prefix="foretrace-trace-") as name:
        folder = Path(name)
        traced: dict[int, RankRecording] = {}
        chosen = request.ranks or tuple(sorted({0, request.world - 1}))
        ranks: Sequence[int] = chosen
        while missing := [rank for rank in ranks if rank not in traced]:
            traced |= _trace_ranks(request, missing, folder)
            if request.ranks is None:
                ranks = sorted(partners(traced.values()))
    recordings = tuple(traced[rank] for rank in sorted(traced))
    return with_roles(recordings, request.world)


def check_torch() -> None:
    """Raises an error where PyTorch is not installed, without importing it."""
    if find_spec("torch") is None:
        problem = "tracing a script needs PyTorch, which is not installed here"
        raise InputError("missing-package", problem, hint='pip install "foretrace[trace]"; no GPU is needed')
    installed = version("torch")
    if tuple(int(part) for part in installed.split(".")[:2] if part.isdigit()) < MIN_TORCH:
        problem = f"tracing a script needs PyTorch {'.'.join(map(str, MIN_TORCH))}, and {installed} is installed"
        raise InputError("missing-package", problem, hint='pip install -U "foretrace[trace]"')


def _trace_ranks(request: TraceRequest, ranks: Sequence[int], folder: Path) -> dict[int, RankRecording]:
    """Traces ranks in processes; returns their recordings, and those of ranks that they waited for."""
    stored = {
        "parent": os.getpid(),
        "script": request.script,
        "arguments": list(request.arguments),
        "world": request.world,
        "gpus": request.gpus,
        "ranks": list(ranks),
        "steps": list(request.steps),
        "unknown": request.unknown,
        "exponent": request.routing.exponent,
        "shares": request.routing.shares,
        "workers": max(len(os.sched_getaffinity(0)), 1) * MAX_AT_ONCE,
    }
    (folder / "request.json").write_text(json.dumps(stored))
    command = [sys.executable, "-m", "foretrace.inputs.script.tracer.run", str(folder)]
    with doing(f"tracing {request.script} as {ranks_text(ranks)} of {request.world:,}"):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        try:
            _, errors = process.communicate()
        except BaseException:
            _end(process)
            raise
    _raise_first_error(folder)
    traced = {}
    for path in folder.glob("rank-*.recording"):
        rank = int(path.stem.removeprefix("rank-"))
        recording: RankRecording = pickle.loads(path.read_bytes())
        traced[rank] = recording
    if any(rank not in traced for rank in ranks):
        text = errors.decode(errors="replace").strip().splitlines()
        raise InputError("script-failed", f"the tracer ended early: {text[-1] if text else 'no reason given'}")
    return traced


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a tracer and the ranks that it started."""
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _raise_first_error(folder: Path) -> None:
    """Raises the error of the lowest rank that failed, after its traceback."""
    paths = sorted(folder.glob("rank-*.error"), key=lambda path: int(path.stem.removeprefix("rank-")))
    errors = [{"rank": path.stem.removeprefix("rank-"), **json.loads(path.read_text())} for path in paths]
    # A rank that fails only because another did does not tell the reason.
    errors.sort(key=lambda error: error["code"] == "needs-other-rank")
    if not errors:
        return
    first: dict[str, Any] = errors[0]
    if first["code"] == "script-failed":
        _show_last_lines(folder / f"rank-{first['rank']}.out")
    if "  File " in first["traceback"]:  # otherwise the traceback has no line of the script
        for line in first["traceback"].rstrip().splitlines():
            say(line if len(line) <= MAX_SHOWN_CHARACTERS else f"{line[:MAX_SHOWN_CHARACTERS]}…")
    raise InputError(first["code"], first["message"], where=first["where"], hint=first["hint"])


def _show_last_lines(path: Path) -> None:
    """Writes the last lines that a script printed to stderr."""
    for line in last_lines(path, MAX_SHOWN_LINES):
        say(line if len(line) <= MAX_SHOWN_CHARACTERS else f"{line[:MAX_SHOWN_CHARACTERS]}…")


def last_lines(path: Path, count: int) -> list[str]:
    """Returns the last lines that a script printed to a file, of 64 KiB at most; [] without a file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _MAX_TAIL_BYTES, 0))
        return file.read().decode(errors="replace").rstrip().splitlines()[-count:]
