"""Runs a script as one or several ranks of a job, each in a process of its own, and stores what they record.

`python -m foretrace.inputs.script.tracer.run FOLDER` reads `request.json` in the folder. PyTorch is imported once;
every rank is a fork of this process. A rank leaves `rank-N.recording` or `rank-N.error`, and its output in
`rank-N.out`.
"""

from __future__ import annotations

import json
import os
import pickle
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

from foretrace.basics.processes import end_with
from foretrace.inputs.script.routing import Routing
from foretrace.inputs.script.tracer.mailbox import Mailbox, requested_ranks
from foretrace.inputs.script.tracer.places import TraceComplete
from foretrace.inputs.script.tracer.session import TraceSession
from foretrace.inputs.script.tracer.unknown import CannotTrace
from foretrace.inputs.script.tracing import last_lines

_POLL_S: Final = 0.005
_OWN: Final = str(Path(__file__).parents[3])


def main(folder: Path) -> None:
    """Traces the ranks that the request names, and those that they wait for."""
    request = json.loads((folder / "request.json").read_text())
    waiting: list[int] = list(request["ranks"])
    started: set[int] = set()
    running: dict[int, int] = {}
    end_with(request["parent"])
    while waiting or running:
        needed = [rank for rank in requested_ranks(folder) if rank not in started]
        room = request["workers"] - len(running)
        for rank in [*needed, *(rank for rank in waiting[: max(room, 0)] if rank not in needed)]:
            if rank not in started:
                started.add(rank)
                running[_fork(folder, request, rank)] = rank
        waiting = [rank for rank in waiting if rank not in started]
        _reap(folder, running)
        time.sleep(_POLL_S)


def _fork(folder: Path, request: dict[str, Any], rank: int) -> int:
    own, process = os.getpid(), os.fork()
    if process:
        return process
    code = 1
    try:
        end_with(own)
        _redirect(folder / f"rank-{rank}.out")
        code = _trace(folder, request, rank)
    except BaseException as error:
        code = _store_exception(folder, rank, error)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _reap(folder: Path, running: dict[int, int]) -> None:
    """Removes ranks whose processes have ended, and stores an error for those that left no result."""
    for process, rank in list(running.items()):
        ended, status = os.waitpid(process, os.WNOHANG)
        if not ended:
            continue
        del running[process]
        if not (folder / f"rank-{rank}.recording").exists() and not (folder / f"rank-{rank}.error").exists():
            signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            text = f"the process of rank {rank} ended without a result"
            _store_error(folder, rank, "script-failed", text + (f" (signal {signal})" if signal else ""), None, None)


def _redirect(path: Path) -> None:
    """Sends what the script prints to a file."""
    target = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(target, stream)
    os.close(target)


def _trace(folder: Path, request: dict[str, Any], rank: int) -> int:
    """Runs the script as a rank; returns 0 where a recording was written."""
    script = request["script"]
    sys.argv = [script, *request["arguments"]]
    sys.path[0] = str(Path(script).resolve().parent)
    session = TraceSession(
        rank,
        request["world"],
        gpus=request["gpus"],
        steps=tuple(request["steps"]),
        unknown=request["unknown"],
        routing=Routing(request["exponent"], tuple(map(tuple, request["shares"]))),
        mailbox=Mailbox(rank, folder),
    )

    def finish() -> None:
        _store(folder, session)
        os._exit(0)

    def refuse(error: CannotTrace) -> None:
        os._exit(_store_error(folder, rank, error.code, error.message, error.where, error.hint))

    session.places.on_caught, CannotTrace.on_caught = finish, refuse
    try:
        with session:
            try:
                _run_script(Path(script))
            except TraceComplete:
                pass
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    raise RuntimeError(_exit_text(ended.code, folder / f"rank-{rank}.out")) from None
    except CannotTrace as error:
        return _store_error(folder, rank, error.code, error.message, error.where, error.hint)
    except BaseException as error:
        return _store_exception(folder, rank, error)
    _store(folder, session)
    return 0


def _store(folder: Path, session: TraceSession) -> None:
    """Writes the recording of a rank."""
    unfinished = folder / f"rank-{session.rank}.part"
    unfinished.write_bytes(pickle.dumps(session.recording(), protocol=pickle.HIGHEST_PROTOCOL))
    unfinished.replace(folder / f"rank-{session.rank}.recording")


def _exit_text(code: Any, output: Path) -> str:
    """Returns how a script ended, with the last line that it printed, where argparse states which argument is wrong."""
    sys.stdout.flush()
    sys.stderr.flush()
    lines = last_lines(output, 1)
    if isinstance(code, str):
        return f"the script ended: {code}"
    return f"the script ended with exit code {code}" + (f": {lines[-1]}" if lines else "")


def _run_script(path: Path) -> None:
    """Runs a script; one in a package runs as its module, so that it may import relative to itself."""
    parts, folder = [path.stem], path.resolve().parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    if len(parts) == 1:
        runpy.run_path(str(path), run_name="__main__")
        return
    sys.path.insert(1, str(folder))
    runpy.run_module(".".join(parts), run_name="__main__", alter_sys=True)


def _store_exception(folder: Path, rank: int, error: BaseException) -> int:
    """Stores the error of a script with its own traceback, without the frames of the tracer."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _OWN not in frame.filename and "runpy" not in frame.filename]
    text = "".join(traceback.format_list(own)) + "".join(traceback.format_exception_only(error))
    where = f"{own[0].filename}:{own[0].lineno}" if own else None
    message = f"{type(error).__name__}: {error}"
    return _store_error(
        folder, rank, "script-failed", message, where, None, f"Traceback (most recent call last):\n{text}"
    )


def _store_error(
    folder: Path, rank: int, code: str, message: str, where: str | None, hint: str | None, trace: str = ""
) -> int:
    """Stores the error of a rank, and returns the exit code of its process."""
    stored = {"code": code, "message": message, "where": where, "hint": hint, "traceback": trace}
    unfinished = folder / f"error-{rank}.part"
    unfinished.write_text(json.dumps(stored))
    unfinished.replace(folder / f"rank-{rank}.error")
    (folder / f"failed-{rank}").touch()
    return 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
