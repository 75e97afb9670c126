"""Runs one input through Foretrace within this process, and judges whether the contract holds.

The contract: an answer or one error of the family `ForetraceError`, with a code, a place and at most 20 lines; exit
code 0, 2, 3, 4 or 5; no number in JSON or on a screen that is not finite, or negative where that makes no sense; no
control characters on the screen; written files that are well formed; at most 10 s of CPU and 2 GB more memory; no
warnings; no file that was not asked for; inputs unchanged.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import time
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from fuzz.outputs import output_problem, refuse_constant, screen_problem

SLOW_S: Final = 2.0
MAX_S: Final = 10.0
MAX_BYTES: Final = 2 << 30
QUICK_S: Final = 0.02
"""CPU time below which an input cannot have touched much memory; asking for it takes as long as some inputs."""
MAX_LINES: Final = 20
MAX_MESSAGE: Final = 2_000
EXIT_CODES: Final = frozenset((0, 2, 3, 4, 5))

SIGNED: Final = re.compile(
    r"error|bias|delta|change|difference|gain|headroom|slack|offset|earlier|later|parts_s|share_of_step|less|more|effect|saved|shift"
    r"|start|\.time_s|skew|lag|worst|layer|microbatch|chunk|rank|device|stream|process|port|thread|memory_bytes|low|correlation"
    r"|rows\.self_(?:cpu|device)_(?:s|share)$"
)
"""Keys of JSON whose numbers may be negative: differences, signed errors, places on a clock, −1 for "none", and the
rows of profiler tables, where PyTorch itself prints negative times of Python functions."""
UNSIGNED: Final = re.compile(
    r"\.(?:(?:step|step_time|span|duration|makespan|period|busy|compute)_s|mfu|hfu|gpus|count)$"
)
"""Keys of JSON whose numbers are never negative, wherever they are."""

FAULTS: Final = (
    *("traceback", "exit code", "hang", "memory", "warning", "number", "output", "screen", "message", "place", "files"),
)
"""The ways to break the contract, the worst first."""


class Hang(BaseException):
    """The input used up its CPU time."""


@dataclass(frozen=True)
class Case:
    """One input: the files of a folder, and the words that are run there."""

    target: str
    files: Mapping[str, bytes]
    words: tuple[str, ...]
    seed: int = -1


@dataclass(frozen=True)
class Fault:
    """A broken promise: its kind, a signature that equal faults share, and details for a person."""

    kind: str
    signature: str
    detail: str


@dataclass
class Verdict:
    """How an input ended, what it cost, and what was wrong."""

    code: int | None
    cpu_s: float = 0.0
    peak_bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""

    @property
    def outcome(self) -> str:
        """`answered`, `refused`, or `broken`."""
        return "broken" if self.faults else "answered" if self.code == 0 else "refused"


@dataclass
class Run:
    """A finished command: its exit code, what it printed, and the exception that reached its border."""

    code: int | None
    stdout: str
    stderr: str
    error: BaseException | None = None


class _Screen(io.StringIO):
    """A stream that keeps what is printed; what closes it or asks for its number gets an answer."""

    def fileno(self) -> int:
        """Returns a file that nothing reads."""
        return _null()

    def close(self) -> None:
        """Stays open."""


@cache
def _null() -> int:
    return os.open(os.devnull, os.O_WRONLY)


@cache
def _commands() -> Any:
    """Returns the command line with every command built once; building them takes longer than most inputs."""
    import typer

    from foretrace.cli import main

    build = main.LazyGroup.get_command
    built: dict[str, Any] = {}

    def get_command(group: Any, context: Any, name: str) -> Any:
        if name not in built:
            built[name] = build(group, context, name)
        return built[name]

    main.LazyGroup.get_command = get_command  # type: ignore[method-assign]
    return typer.main.get_command(main.app)


def command_of(name: str) -> Any:
    """Returns a command of the command line as click has it."""
    return _commands().get_command(None, name)


def run_command(words: list[str]) -> Run:
    """Runs a command line as `foretrace` does, down to its exit code, and keeps an exception that it ends with."""
    from foretrace.cli import main

    commands, errors = _commands(), []

    def app(arguments: list[str], *, standalone_mode: bool) -> Any:
        try:
            return commands(arguments, standalone_mode=standalone_mode)
        except BaseException as error:
            errors.append(error)
            raise

    before, main.app = main.app, app  # type: ignore[assignment]
    stdout, stderr = _Screen(), _Screen()
    code: int | None = None
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = main._exit_code(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        errors.append(error)
    finally:
        main.app = before
    return Run(code, stdout.getvalue(), stderr.getvalue(), errors[-1] if errors else None)


def run_python(run: Callable[[], object]) -> Run:
    """Calls a function as a user's script does; an error of the family ends it with its exit code."""
    from foretrace import ForetraceError
    from foretrace.basics.errors import printable

    stdout, stderr = _Screen(), _Screen()
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            run()
    except ForetraceError as error:
        print(f"error: {printable(str(error))}", file=stderr)
        return Run(error.exit_code, stdout.getvalue(), stderr.getvalue(), error)
    except BaseException as error:
        return Run(None, stdout.getvalue(), stderr.getvalue(), error)
    return Run(0, stdout.getvalue(), stderr.getvalue())


def judge(case: Case, folder: Path, max_s: float = MAX_S) -> Verdict:
    """Runs an input in a folder, which is emptied before, and returns what was wrong."""
    put(case, folder)
    os.chdir(folder)
    started = time.process_time()
    with _limited(max_s), warnings.catch_warnings():
        warnings.simplefilter("error")
        if case.words[0].startswith("python:"):
            from fuzz.calls import call

            run = run_python(lambda: call(case.words[0].removeprefix("python:"), case.words[1:]))
        else:
            run = run_command(list(case.words))
    cpu_s = time.process_time() - started
    verdict = Verdict(run.code, cpu_s, _growth_bytes() if cpu_s > QUICK_S else 0, [], run.stdout, run.stderr)
    verdict.faults.extend(_faults(case, run, verdict, folder, max_s))
    return verdict


def put(case: Case, folder: Path) -> None:
    """Writes the files of an input into a folder that holds nothing else."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()
    for name, data in case.files.items():
        path = folder / name
        if "/" in name:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _growth_bytes() -> int:
    """Returns by how much the peak memory of the process has grown since it was last asked for."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    growth = max(peak - _peak_bytes[-1], 0)
    _peak_bytes[-1] += growth
    return growth


_peak_bytes = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10]


@contextlib.contextmanager
def _limited(max_s: float) -> Iterator[None]:
    """Raises `Hang` in the block once it has used its CPU time; compiled code is ended by who watches the process."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, max_s, 1.0)
    try:
        yield
    except Hang:
        pass  # raised between the last statement of the block and here
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _faults(case: Case, run: Run, verdict: Verdict, folder: Path, max_s: float) -> Iterator[Fault]:
    error = run.error
    expected = _is_expected(error, run)
    if error is not None and not expected:
        yield _exception_fault(error)
    elif run.code not in EXIT_CODES:
        yield Fault("exit code", f"exit code {run.code}", run.stderr[-2000:])
    elif verdict.cpu_s > max_s:
        yield Fault("hang", f"over {max_s:g} s {case.target} {case.words[0]}", f"{verdict.cpu_s:.1f} s of CPU")
    if verdict.peak_bytes > MAX_BYTES:
        yield Fault("memory", f"memory {case.target} {case.words[0]}", f"{verdict.peak_bytes >> 20:,} MiB more")
    if error is not None and expected:
        yield from _message_faults(case, run, error)
    yield from _screen_faults(run)
    if run.code == 0:
        yield from _result_faults(case, run, folder)
    yield from _file_faults(case, folder)


def _result_faults(case: Case, run: Run, folder: Path) -> Iterator[Fault]:
    """Looks at an answer: the numbers of its JSON or of its screen, and the files that it wrote."""
    if "--json" in case.words:
        yield from _json_faults(run.stdout)
    else:
        problem = screen_problem(run.stdout)
        if problem is not None and not _is_name(case, problem):
            yield Fault("number", f"number on the screen of {case.words[0]}", problem)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        problem = output_problem(case.words, path) if name not in case.files else None
        if problem is not None:
            words = problem.partition(":")[0]
            yield Fault("output", f"{path.suffix} of {case.words[0]}: {words}", f"{name}: {problem}")


def _is_name(case: Case, problem: str) -> bool:
    """Returns whether what looks like a number is a name of the input, or of a file."""
    names = re.findall(r"[-−+]?(?:nan|inf)\b%?", problem)
    return any(f'"{name}"'.encode() in data for name in names for data in case.files.values()) or any(
        name in word for name in names for word in case.words
    )


def _is_expected(error: BaseException | None, run: Run) -> bool:
    from foretrace import ForetraceError
    from foretrace.cli.main import ClickException

    if isinstance(error, OSError):
        return run.code == 3 and "cannot be written" not in run.stderr  # an input may not be told as an output
    return error is None or isinstance(error, ForetraceError | ClickException | SystemExit) or _is_exit(error)


def _is_exit(error: BaseException) -> bool:
    return type(error).__name__ in ("Exit", "Abort")  # click's, which typer carries a copy of


def _frame(error: BaseException) -> str:
    """Returns the innermost place of an exception within the package, as `cost/machine.py:placed`."""
    place = "outside"
    for frame in traceback.extract_tb(error.__traceback__):
        path = frame.filename.replace("\\", "/")
        if "/foretrace/" in path and "/fuzz/" not in path.rsplit("/foretrace/", 1)[1]:
            place = f"{path.rsplit('/foretrace/', 1)[1]}:{frame.name}"
    return place


def _exception_fault(error: BaseException) -> Fault:
    kind = "hang" if isinstance(error, Hang) else "memory" if isinstance(error, MemoryError) else "traceback"
    if isinstance(error, Warning):
        kind = "warning"
    text = "".join(traceback.format_exception(error, limit=-12))
    return Fault(kind, f"{type(error).__name__} {_frame(error)}", text[-4000:])


def _message_faults(case: Case, run: Run, error: BaseException) -> Iterator[Fault]:
    """Looks at an error as the user sees it."""
    from foretrace import ForetraceError
    from foretrace.basics.codes import CODES

    lines = run.stderr.count("\n")
    if lines > MAX_LINES or len(run.stderr) > MAX_MESSAGE:
        yield Fault("message", f"long message {_frame(error)}", f"{lines} lines, {len(run.stderr)} characters")
    if not isinstance(error, ForetraceError):
        return
    if error.code not in CODES:
        yield Fault("message", f"unknown code {error.code}", str(error))
    if (
        error.exit_code == 3
        and not error.where
        and case.files
        and not _names_place(case, f"{error.message} {error.hint}")
    ):
        yield Fault("place", f"no place {error.code} {_frame(error)}", str(error)[:500])


def _names_place(case: Case, message: str) -> bool:
    if ":" in case.target:
        return True  # words and calls have no place but the option or argument, which the message names
    return any(name in message for name in case.files) or any(
        mark in message for mark in ("--", "NCCL_")
    )  # an option or a variable is a place


def _screen_faults(run: Run) -> Iterator[Fault]:
    for name, text in (("stdout", run.stdout), ("stderr", run.stderr)):
        if text.isascii() and text.replace("\n", "").isprintable():
            continue
        for character in text:
            if character != "\n" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
                at = text.index(character)
                yield Fault(
                    "screen", f"control character {character!r} on {name}", repr(text[max(at - 100, 0) : at + 50])
                )
                break


def _json_faults(text: str) -> Iterator[Fault]:
    try:
        answer = json.loads(text, parse_constant=refuse_constant)
    except ValueError as error:
        yield Fault("number", f"not JSON: {type(error).__name__}", f"{error}: {text[:300]}")
        return
    schema = answer.get("schema", "") if isinstance(answer, dict) else ""
    open_: list[tuple[str, str, Any]] = [("", "", answer)]
    while open_:
        path, key, value = open_.pop()
        if isinstance(value, dict):
            open_ += [
                (f"{path}.{name}", name if not path.endswith("_s") else path, child) for name, child in value.items()
            ]
        elif isinstance(value, list):
            open_ += [(path, key, child) for child in value]
        elif isinstance(value, int | float) and value < 0 and (UNSIGNED.search(path) or not SIGNED.search(path)):
            yield Fault("number", f"negative {schema} {re.sub(r'[0-9]+', '#', path)[:80]}", f"{path} is {value}")
            return


def _file_faults(case: Case, folder: Path) -> Iterator[Fault]:
    """Looks for inputs that were changed, and for files that no option asked for; a call may write where it says."""
    if case.words[0] == "python:call":
        return
    for name, data in case.files.items():
        path = folder / name
        if ":" in case.target and sum(name in word for word in case.words) <= 1:
            continue  # the command line names the file as an output, if at all
        if not path.is_file() or path.stat().st_size != len(data) or path.read_bytes() != data:
            yield Fault("files", f"input changed by {case.words[0]}", f"{name}: {shlex.join(case.words)}")
    for entry in os.scandir(folder):
        known = any(name == entry.name or name.startswith(f"{entry.name}/") for name in case.files)
        if not known and not any(entry.name in word or word.startswith("out") for word in case.words):
            yield Fault("files", f"file left by {case.words[0]}", f"{entry.name}: {shlex.join(case.words)}")


def limit_memory(extra_bytes: int = MAX_BYTES + (1 << 30)) -> None:
    """Lets this process map at most `extra_bytes` more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    if pages:
        most = pages * resource.getpagesize() + extra_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
