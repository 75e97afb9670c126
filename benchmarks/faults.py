"""Ends commands with signals while they write, and counts files that are then neither the old nor the new ones.

    python benchmarks/faults.py --trials 1000 --seed 0

Every output of every command is written over an old one in a process of its own, to which SIGKILL, SIGTERM or SIGINT is
sent: half of the time at a random moment of the command, half of the time at one of its writing, which is slowed down
for it. In every fifth trial a second process writes the same files and is left alone. Counted are corrupt files,
lost ones, and temporary files that are left; only SIGKILL may leave these, under names that no reader takes for inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from foretrace.basics import outputs
from foretrace.basics.processes import Terminated, raise_on_signals
from foretrace.cli.main import run
from output_jobs import JOBS, words_of, write_inputs

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SECOND_WRITER_EVERY = 5
SLOW_S = 0.003
"""Waited before and after every piece, flush and rename of a slow write."""

OLD = b"old content\n" * 500
Contents = dict[Path, bytes]


def slowed_down(notify: Callable[[], None]) -> None:
    """Makes all writing of this process slow, and calls `notify` when it begins."""
    write, fsync, replace = outputs._OutputFile.write, os.fsync, Path.replace

    def slow_write(self: outputs._OutputFile, data: bytes) -> int:
        notify()
        time.sleep(SLOW_S)
        return write(self, bytes(data)[: max(len(data) // 2, 1)])  # the rest comes with the next call

    def slow_fsync(descriptor: int) -> None:
        time.sleep(SLOW_S)
        fsync(descriptor)

    def slow_replace(self: Path, target: Path) -> Path:
        time.sleep(SLOW_S)
        result = replace(self, target)
        time.sleep(SLOW_S)
        return result

    outputs._OutputFile.write, os.fsync, Path.replace = slow_write, slow_fsync, slow_replace  # type: ignore[method-assign, assignment]


def start(words: list[str], folder: Path, *, slow: bool) -> tuple[int, int]:
    """Runs a command in a process of its own; returns it, and a pipe that has a byte when writing begins."""
    reading, writing = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the child must not run the cleanup of this process
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writing)
        return child, reading
    code: object = 1
    try:
        raise_on_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.chdir(folder)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - to the end
        if slow:
            slowed_down(lambda: os.write(writing, b"."))
        run(words)
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        code = 130
    except Terminated as error:
        code = error.exit_code
    finally:
        os._exit(code if isinstance(code, int) else 0)
    raise AssertionError


def files_of(folder: Path) -> Contents:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Job:
    """Holds a command with its folder, what it reads, and its outputs as they are before and after it."""

    def __init__(self, name: tuple[str, str], folder: Path) -> None:
        self.name, self.folder = name, folder
        output, words = JOBS[name]
        self.words = words_of(name[0], words, output)
        write_inputs(folder)
        inputs = files_of(folder)
        began = time.perf_counter()
        child, pipe = start(self.words, folder, slow=False)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, self.words
        self.seconds = time.perf_counter() - began
        os.close(pipe)
        self.inputs = inputs
        self.new = {path: data for path, data in files_of(folder).items() if path not in inputs}
        assert self.new, self.words
        if name == ("generate", "--format launch"):
            self.words.append("--force")
        self.reset()
        child, pipe = start(self.words, folder, slow=True)
        os.read(pipe, 1)
        began = time.perf_counter()
        os.waitpid(child, 0)
        self.writing_s = time.perf_counter() - began
        os.close(pipe)

    def reset(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.inputs:
                path.unlink()
        for path in self.new:
            path.write_bytes(OLD)

    def is_whole(self, path: Path, data: bytes) -> bool:
        """Returns whether a file has its old or its new content.

        Some answers hold times, which differ from run to run, and sweeps that are interrupted show what they have. Such
        a file must be complete in itself.
        """
        if data in (OLD, self.new[path]):
            return True
        try:
            if path.suffix == ".json":
                return isinstance(json.loads(data), dict) and data.endswith(b"}\n")
            if path.suffix == ".svg":
                return ElementTree.fromstring(data).tag.endswith("svg")
        except (ValueError, ElementTree.ParseError):
            return False
        return (
            path.suffix == ".csv" and len({line.count(b",") for line in data.splitlines()}) == 1 and data[-1:] == b"\n"
        )

    def count(self) -> Counter[str]:
        """Counts what is wrong with the files."""
        counts: Counter[str] = Counter()
        after = files_of(self.folder)
        for path, data in self.inputs.items():
            counts["input changed"] += after.get(path) != data
        for path in self.new:
            counts["lost"] += path not in after
            counts["corrupt"] += path in after and not self.is_whole(path, after[path])
        for path in after.keys() - self.inputs.keys() - self.new.keys():
            counts["temporary file" if outputs.is_leftover(path.name) else "unknown file"] += 1
        states = {after.get(path) == OLD for path in self.new}
        counts["old"] += states == {True}
        counts["new"] += states == {False}
        counts["some of each"] += len(states) == 2
        return counts


def trial(job: Job, number: int, chance: random.Random, sent: signal.Signals) -> Counter[str]:
    """Ends one run of a job by a signal."""
    job.reset()
    slow = number % 2 == 0
    child, pipe = start(job.words, job.folder, slow=slow)
    second = start(job.words, job.folder, slow=slow) if number % SECOND_WRITER_EVERY == 0 else None
    if slow:
        os.read(pipe, 1)
    time.sleep(chance.uniform(0, job.writing_s if slow else job.seconds))
    os.kill(child, sent)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(pipe)
    if second is not None:
        os.waitpid(second[0], 0)
        os.close(second[1])
    counts = job.count()
    if status == 0:
        counts["ended before"] += 1
    elif status not in (-sent, 128 + sent):
        counts["other exit code"] += 1
    return counts


COLUMNS = (
    *("old", "new", "some of each", "ended before"),
    *("corrupt", "lost", "input changed", "temporary file", "unknown file", "other exit code"),
)


def main() -> int:
    """Prints a table by signal and returns 1 where a file was corrupt or lost, or a temporary one left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, totals = random.Random(options.seed), {sent: Counter[str]() for sent in SIGNALS}
    with tempfile.TemporaryDirectory() as place:
        # One process has imported what the jobs need, so that those that it starts take as long as their work.
        jobs = []
        for number, name in enumerate(JOBS):
            folder = Path(place) / str(number)
            folder.mkdir()
            warm_up(name, folder)
            jobs.append(Job(name, folder))
        for number in range(options.trials):
            sent = SIGNALS[number % len(SIGNALS)]
            job = jobs[number * 7 % len(jobs)]
            counts = trial(job, number, chance, sent)
            totals[sent] += counts
            totals[sent]["trials"] += 1
            wrong = [name for name in ("corrupt", "lost", "input changed", "unknown file") if counts[name]]
            if wrong or (counts["temporary file"] and sent != signal.SIGKILL):
                print(f"trial {number}, {sent.name}, {' '.join(job.words)}: {dict(counts)}")
    print(f"{'signal':<8} {'trials':>6}", *(f"{column:>{max(len(column), 6)}}" for column in COLUMNS))
    for sent, counts in totals.items():
        figures = (f"{counts[column]:>{max(len(column), 6)}}" for column in COLUMNS)
        print(f"{sent.name:<8} {counts['trials']:>6}", *figures)
    left = sum(totals[sent]["temporary file"] for sent in SIGNALS if sent != signal.SIGKILL)
    bad = sum(counts[name] for counts in totals.values() for name in ("corrupt", "lost", "input changed"))
    print(f"{bad} corrupt, lost or changed files; {left} temporary files left by SIGTERM and SIGINT")
    return 1 if bad or left else 0


def warm_up(name: tuple[str, str], folder: Path) -> None:
    """Imports in this process what a job needs, by running it where nothing can be written."""
    output, words = JOBS[name]
    write_inputs(folder)
    before = Path.cwd()
    os.chdir(folder)
    (folder / "aside").mkdir()
    streams = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        try:
            run(words_of(name[0], words, f"aside/{output}"))
        except SystemExit:
            pass
        finally:
            sys.stdout, sys.stderr = streams
            os.chdir(before)
    for path in sorted((folder / "aside").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (folder / "aside").rmdir()


if __name__ == "__main__":
    sys.exit(main())
