"""Turns an exception that nothing expected into an error of one line, and keeps its details in a file.

Such an exception is a defect of Foretrace, whatever the input. `FORETRACE_DEBUG=1` prints the traceback instead. This
module needs the standard library only, so that it also works where the installation is broken.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from foretrace.basics.errors import DefectError, shortened

VARIABLE: Final = "FORETRACE_DEBUG"
"""The environment variable that asks for tracebacks."""

MAX_KEPT: Final = 20
"""Exceptions whose details stay in a folder that was named for them."""

_MAX_FRAMES: Final = 40
_SUSPENDABLE: Final = 0x20 | 0x80 | 0x200
"""Flags of the code of generators, coroutines and asynchronous generators (`inspect.CO_GENERATOR` and others)."""
_MAX_DETAILS: Final = 200_000
_PLAIN_LINE: Final = b"error: Foretrace cannot go on, nor say why  [internal-error]\n"
_reserve: list[bytes] = [bytes(1 << 20)]
"""Memory to report in that there is none."""


def as_defect(error: BaseException, arguments: Sequence[str], folder: str | None = None) -> DefectError:
    """Returns an unexpected exception as the error to show, after its details were written to a file.

    Args:
        error: The exception; what its frames hold is released.
        arguments: The command line, for the details.
        folder: A folder for the file, in which those of the last `MAX_KEPT` exceptions stay; None: that of temporary
            files.
    """
    _reserve.clear()
    _release(error)
    hint = _keep(error, arguments, folder)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return DefectError("memory-exhausted", "this machine has no memory left for the job", hint=hint)
    if isinstance(error, ImportError) and error.name and not error.name.startswith("foretrace."):
        problem = f"the package {shortened(error.name)} cannot be imported"
        return DefectError("missing-package", problem, hint=f"install Foretrace again; {hint}")
    return DefectError("internal-error", f"a defect of Foretrace: {type(error).__name__}", hint=hint)


def show_plainly(error: DefectError | None = None) -> None:
    """Writes an error to stderr with as little as possible, for where the usual way failed."""
    with suppress(OSError, MemoryError):
        os.write(2, _PLAIN_LINE if error is None else f"error: {error}\n".encode("ascii", "replace"))


def wants_traceback() -> bool:
    """Returns whether the user asked for tracebacks."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def _release(error: BaseException) -> None:
    """Releases what the frames of an exception hold, such as large arrays.

    Frames of coroutines and generators are left alone: one that caught the exception and waits would be closed.
    """
    import traceback

    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not frame.f_code.co_flags & _SUSPENDABLE:
            with suppress(RuntimeError):  # it is still executing
                frame.clear()


def _keep(error: BaseException, arguments: Sequence[str], folder: str | None) -> str:
    """Writes the details of an exception to a file that only the user can read; returns where they are."""
    try:
        import tempfile

        text = _details(error, arguments)
        handle, path = tempfile.mkstemp(prefix="foretrace-", suffix=".txt", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
        if folder is not None:
            _drop_oldest(folder)
    except Exception as failure:
        return f"the details could not be written ({type(failure).__name__}); {VARIABLE}=1 prints them"
    return f"details in {path}"


def _drop_oldest(folder: str) -> None:
    from pathlib import Path

    with suppress(FileNotFoundError):  # another process does the same
        paths = sorted(Path(folder).glob("foretrace-*.txt"), key=lambda path: path.stat().st_mtime)
        for path in paths[:-MAX_KEPT]:
            path.unlink()


def _details(error: BaseException, arguments: Sequence[str]) -> str:
    import traceback

    versions = {name: getattr(sys.modules.get(name), "__version__", "unknown") for name in ("foretrace", "numpy")}
    facts = (
        f"foretrace {versions['foretrace']}, Python {sys.version}, numpy {versions['numpy']}",
        f"command line: {list(arguments)!r}"[: _MAX_DETAILS // 2],
        "",
        "".join(traceback.format_exception(error, limit=-_MAX_FRAMES)),
    )
    return "\n".join(facts)[:_MAX_DETAILS]
