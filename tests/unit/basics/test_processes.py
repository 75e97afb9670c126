"""Processes end in order: signals are exceptions, workers never outlive what started them, children import no files of
the current folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.basics.processes import Workers, run_python

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")


def add(shared: int, item: int) -> int:
    return shared + item


def end_in_worker(shared: int, item: int) -> int:
    """Kills the process unless it is the one whose number is shared, as a system without memory does."""
    if item == 3 and os.getpid() != shared:
        os.kill(os.getpid(), signal.SIGKILL)
    return 10 * item


class UnpicklableError(Exception):
    """An exception that cannot be made again from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def fail(shared: type[Exception], item: int) -> int:
    raise InputError("bad-value", "no", where=str(item)) if shared is InputError else UnpicklableError(item, item)


@pytest.mark.parametrize("count", [1, 2, 10**9])
def test_results_come_in_order(count: int) -> None:
    with Workers(count, 100) as workers:
        assert list(workers.map(add, range(5), chunk=2)) == [100, 101, 102, 103, 104]
        assert list(workers.map(add, [7])) == [107]


def test_what_a_killed_worker_leaves_is_done_here() -> None:
    with Workers(2, os.getpid()) as workers:
        assert list(workers.map(end_in_worker, range(6))) == [0, 10, 20, 30, 40, 50]
        assert workers.count == 1


def test_an_error_of_a_task_keeps_its_code_and_place() -> None:
    with Workers(2, InputError) as workers, pytest.raises(InputError) as caught:
        list(workers.map(fail, range(3)))
    assert (caught.value.code, caught.value.where) == ("bad-value", "0")


def test_an_exception_that_cannot_be_pickled_is_raised() -> None:
    with Workers(2, UnpicklableError) as workers, pytest.raises(UnpicklableError):
        list(workers.map(fail, range(3)))


PROGRAM = """
import os, sys, time
from foretrace.basics.processes import Terminated, Workers, raise_on_signals

def sleep(shared, item):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)

raise_on_signals()
try:
    with Workers(2, None) as workers:
        list(workers.map(sleep, range(8)))
except KeyboardInterrupt:
    sys.exit(130)
except Terminated as error:
    sys.exit(error.exit_code)
"""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def becomes_true(condition: Callable[[], bool]) -> bool:
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


@linux
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129), ("SIGKILL", -9)])
def test_workers_end_with_their_parent(number: str, code: int) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as started:
        assert started.stdout is not None and started.stderr is not None
        workers = [int(started.stdout.readline()) for _ in range(2)]
        # Ctrl-C reaches the whole group, other signals the parent alone.
        (os.killpg if number == "SIGINT" else os.kill)(started.pid, getattr(signal, number))
        assert started.wait(timeout=10) == code
        assert becomes_true(lambda: not any(map(is_running, workers)))
        assert started.stderr.read() == b""


def hang_up(shared: None, item: int) -> int:  # noqa: ARG001 - a task
    os.kill(os.getpid(), signal.SIGHUP)
    return os.getpid()


@linux
def test_workers_ignore_what_their_parent_ignores() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Workers(2, None) as workers:
            assert os.getpid() not in set(workers.map(hang_up, range(4)))
    finally:
        signal.signal(signal.SIGHUP, before)


PIPE_PROGRAM = """
import os, signal
from foretrace.basics.processes import Workers

def end(shared, item):
    if os.getpid() != shared:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(item)

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as the command line does
with Workers(2, os.getpid()) as workers:
    print(sum(workers.map(end, [bytes(1 << 22)] * 8)))
"""


@linux
def test_workers_that_are_killed_while_they_are_given_work_do_not_end_their_parent() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", PIPE_PROGRAM], capture_output=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (0, b"%d\n" % (8 << 22))


def test_a_child_imports_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("import pathlib; pathlib.Path(__file__).with_name('executed').touch()")
    (tmp_path / "relative").mkdir()
    (tmp_path / "relative" / "json.py").write_text((tmp_path / "json.py").read_text())
    package = str(Path(sys.modules["foretrace"].__file__ or "").parents[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "relative", package]))
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_python("foretrace.simulation.network.packets_ns3", '{"devices": {}', 20.0)
    assert "JSONDecodeError" in caught.value.stderr  # of the standard library
    assert not list(tmp_path.rglob("executed"))


def test_a_child_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_python("foretrace.simulation.network.packets_ns3", "{}", 1e-3)
