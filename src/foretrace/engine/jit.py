"""Compiles the inner loops of the engine with numba where it is installed and pays.

The inner loops are plain functions over sequences. Without numba they run on lists as they are written; with numba they
are compiled and run on arrays (`Room` makes either). Results are the same to the last bit. Importing and compiling
takes about a second, so numba is used only for jobs that are large enough to win that back, or on request.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

PAYS_FROM_OPS = 500_000
"""Below this many ops the plain loops finish before numba has been imported (0.4 s) and its cache read."""

_on: bool | None = None
_compiled: dict[Any, Any] = {}


def use(on: bool | None = True) -> None:
    """Switches compiled loops on or off for this process; None leaves it to the size of the job."""
    global _on
    _on = on


@contextmanager
def using(on: bool | None = True) -> Iterator[None]:
    """Switches compiled loops on or off while many jobs are run, such as the plans of a search."""
    before = _on
    use(on)
    try:
        yield
    finally:
        use(before)


def installed() -> bool:
    """Returns whether numba can be imported."""
    return importlib.util.find_spec("numba") is not None


def pays(ops: int) -> bool:
    """Returns whether a job of this many ops is run by compiled loops."""
    return installed() and (ops >= PAYS_FROM_OPS if _on is None else _on)


def compiled(function: Function) -> Function:
    """The function as machine code, with the functions of the engine that it calls; made once per process and kept on
    disk where that can be written."""
    if function not in _compiled:
        import numba

        names = {
            name: compiled(value)
            for name, value in function.__globals__.items()
            if name in function.__code__.co_names
            and isinstance(value, FunctionType)
            and value.__module__.startswith("foretrace.")
        }
        linked = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
        linked.__module__, linked.__qualname__ = function.__module__, f"{function.__qualname__}_{_digest()}"
        _compiled[function] = numba.njit(linked)
        with suppress(RuntimeError):  # no folder to keep compiled code in
            _compiled[function]._cache = _code_cache()(linked)
    fast: Function = _compiled[function]
    return fast


@cache
def _code_cache() -> Any:
    """Returns numba's cache of compiled code, made to tolerate a full disk and damaged files.

    Numba ends with an exception in both cases, although the code could be compiled again.
    """
    from numba.core import caching

    numba_cache: Any = caching.FunctionCache

    class CodeCache(numba_cache):  # type: ignore[misc]
        """Compiled code on disk: compiled again where it cannot be read, not kept where it cannot be written."""

        def load_overload(self, *arguments: Any) -> Any:
            try:
                return super().load_overload(*arguments)
            except Exception:  # pickle raises almost anything on damaged files
                with suppress(OSError):
                    self.flush()
                return None

        def save_overload(self, *arguments: Any) -> None:
            with suppress(Exception):  # a full disk, or code that numba cannot write
                super().save_overload(*arguments)

    return CodeCache


@cache
def _digest() -> str:
    """Returns a digest of the engine's source.

    It is part of the name under which numba keeps a function. By itself numba would load what an older version of
    Foretrace left there: it looks at the function's own file only, and fails where that names a class that is gone.
    """
    digest = 0
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest = zlib.crc32(path.read_bytes(), digest)
    return f"{digest:08x}"


@dataclass(frozen=True, slots=True)
class Room:
    """Makes the columns that event loops read and write: arrays for compiled loops, lists for plain ones."""

    compiled: bool

    def hold(self, values: Any) -> Any:
        """Returns a copy of the values as a column."""
        array = np.array(values)
        array = array if array.dtype == np.float64 else array.astype(np.int64)
        return array if self.compiled else array.tolist()

    def floats(self, count: int, value: float = 0.0) -> Any:
        """Returns `count` floats of this value."""
        return self.hold(np.full(count, value))

    def counts(self, count: int, value: int = 0) -> Any:
        """Returns `count` integers of this value."""
        return self.hold(np.full(count, value, dtype=np.int64))
