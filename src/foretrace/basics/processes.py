"""Starts and ends processes: signals of this one, workers that share a task, Python programs that it runs.

Nothing outlives the process that started it, and a signal never leaves a traceback. The first Ctrl-C, SIGTERM or SIGHUP
becomes an exception, so that `finally` blocks remove temporary files and end workers; a second one ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

INTERRUPTED: Final = 130
MAX_WORKERS: Final = 256

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_ENDING: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has no SIGHUP
_HELD: Final = (*_ENDING, *(getattr(signal, name) for name in ("SIGPIPE",) if hasattr(signal, name)))


class Terminated(BaseException):
    """The system or a scheduler asked this process to end, with SIGTERM or SIGHUP."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code by which a shell reports the signal: 143 or 129."""
        return 128 + self.number


def say(text: str) -> None:
    """Writes a line to stderr; where nobody can read it, the exit code still tells."""
    if sys.stderr is not None:  # `print` would take stdout instead
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def raise_on_signals() -> None:
    """Makes the next Ctrl-C raise KeyboardInterrupt, and SIGTERM and SIGHUP raise `Terminated`, in the main thread.

    A signal that the caller ignores, as `nohup` does, stays ignored.
    """
    sys.unraisablehook = _raise_again
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)


def end_on_signals() -> None:
    """Makes signals end this process at once and quietly, as they do before Python has started."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, _: FrameType | None) -> None:
    end_on_signals()
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def _raise_again(failure: sys.UnraisableHookArgs) -> None:
    """Repeats a signal that came while an object was deleted, where Python drops exceptions."""
    error = failure.exc_value
    if not isinstance(error, (KeyboardInterrupt, Terminated)):
        sys.__unraisablehook__(failure)
        return
    import _thread

    raise_on_signals()
    number = error.number if isinstance(error, Terminated) else signal.SIGINT
    _thread.interrupt_main(signal.Signals(number))


def end_with(parent: int) -> None:
    """Makes the system kill this process when its parent ends, where the system can: on Linux.

    `parent` is the process that started this one; if it has ended already, so does this one.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Workers(Generic[Shared]):
    """Processes that do one task for many items. Use it in a `with` block, at whose end they have ended.

    Where processes cannot be started, or one is killed or runs out of memory, this process does what is left.
    """

    def __init__(self, count: int, shared: Shared) -> None:
        """Makes `count` workers; 1 is this process. Each gets `shared` once, the first argument of every task."""
        self.count = min(count, MAX_WORKERS)
        self._shared = shared
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers[Shared]:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def map(self, task: Callable[[Shared, Item], Result], items: Sequence[Item], chunk: int = 1) -> Iterator[Result]:
        """Yields the result of each item, in order. A worker is given `chunk` items at a time.

        An exception of the task is raised here. Whatever is raised, the processes have ended.
        """
        done = 0
        if self.count > 1 and len(items) > 1:
            from concurrent.futures.process import BrokenProcessPool

            try:
                for result in self._results(task, items, chunk):
                    done += 1
                    yield result
            except (BrokenProcessPool, OSError, MemoryError):
                self._end(at_once=True)
                self.count = 1
            except BaseException:
                self._end(at_once=True)
                raise
        for item in items[done:]:
            yield task(self._shared, item)

    def _results(self, task: Callable[[Shared, Item], Result], items: Sequence[Item], chunk: int) -> Iterator[Result]:
        # A process is started when its first item is. It handles no signal before it has its own handlers.
        with _signals_held():
            if self._pool is None:
                from concurrent.futures import ProcessPoolExecutor

                arguments = (os.getpid(), self._shared)
                count = min(self.count, max(len(items), os.cpu_count() or 1))  # all are started at once
                self._pool = ProcessPoolExecutor(count, initializer=_start_worker, initargs=arguments)
            parts = [items[at : at + chunk] for at in range(0, len(items), chunk)]
            futures = [self._pool.submit(_do, task, part) for part in parts]
        # `Executor.map` would cancel the others after an exception, which a pool whose processes were killed reports.
        for future in futures:
            yield from future.result()

    def _end(self, *, at_once: bool = False) -> None:
        """Ends the processes, `at_once` even those that work."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for process in list((getattr(pool, "_processes", None) or {}).values()) if at_once else ():
            process.kill()
        pool.shutdown(wait=True)


_shared: list[Any] = []
"""The first argument of all tasks of a worker process; empty in other processes."""


def _do(task: Callable[[Any, Item], Result], items: Sequence[Item]) -> list[Result]:
    return [task(_shared[0], item) for item in items]


@contextmanager
def _signals_held() -> Iterator[None]:
    """Delays signals to this thread while processes are started, which inherit that.

    The threads of the pool inherit it too. They write to pipes whose readers may have been killed: that is an error of
    theirs, and must not end the process.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(parent: int, shared: object) -> None:
    """Prepares a worker process.

    Ctrl-C reaches all processes of a terminal: the one that collects results handles it and ends the others. A signal
    that was ignored, as `nohup` does, stays ignored.
    """
    import multiprocessing
    import threading
    import warnings

    end_on_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    watched = multiprocessing.parent_process()
    if watched is not None:
        threading.Thread(target=_end_after, args=(watched.sentinel,), daemon=True).start()
        # A thread cannot run while compiled code does. The parent of forkserver's processes is the server.
        end_with(parent if multiprocessing.get_start_method() == "fork" else os.getppid())
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    _shared[:] = [shared]


def _end_after(sentinel: int) -> None:
    """Waits until the parent process has ended, then ends this one."""
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)


def run_python(module: str, text: str, seconds: float) -> str:
    """Runs a module of this package in a Python process of its own; returns what it printed.

    The process imports only what is installed or named in full: an empty or relative part of PYTHONPATH, or the current
    folder, may hold files of anybody. The number of this process is its argument, for `end_with`.

    Args:
        module: The module.
        text: Its standard input.
        seconds: The time after which it is killed.

    Raises:
        subprocess.SubprocessError: It failed, with its standard error, or took too long.
    """
    import subprocess

    done = subprocess.run(
        [sys.executable, "-P", "-m", module, str(os.getpid())],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds,
        env=python_environment(),
        cwd=Path(sys.executable).anchor or None,
    )
    return done.stdout


def python_environment() -> dict[str, str]:
    """Returns the environment of a Python process: without empty and relative parts of PYTHONPATH, in which anybody may
    have put files."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(folder).is_absolute()]
    if folders:
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    return environment
