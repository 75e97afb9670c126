"""Runs inputs for minutes or hours on several processes, and keeps what was done and found in a folder.

A worker tries seeds one after the other within one process, which is warm. The parent watches the CPU time that a seed
has used: compiled code that hangs is ended with its process, and the seed is recorded. What is done is kept slice by
slice; Ctrl-C, SIGTERM and SIGHUP lose at most the slices that are running, whose seeds are tried again.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import multiprocessing
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from fuzz.coverage import Guide
from fuzz.oracle import MAX_S, SLOW_S, Case, Fault, judge, limit_memory
from fuzz.samples import ROOT
from fuzz.targets import Target, all_targets

STATE: Final = ROOT / "build" / "fuzz"
SLICE_S: Final = 2.0
"""CPU time that a worker spends on one target at a time."""
KILL_S: Final = 3 * MAX_S
"""CPU time after which a seed is ended from outside; it may be tried twice, with and without tracing."""
RENEWAL_BYTES: Final = 3 << 29
"""Peak memory at which a worker is replaced by a fresh one."""
_INNERMOST: Final = re.compile(r'/foretrace/(\S+)", line [0-9]+ in (\S+)')
"""The first line of a dump of frames that is in the package."""


@dataclass
class Tally:
    """Counts the inputs of one target that were tried. Seeds below `next` are done."""

    next: int = 0
    answered: int = 0
    refused: int = 0
    broken: int = 0
    slow: int = 0
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    slowest_seed: int = -1
    peak_bytes: int = 0

    @property
    def inputs(self) -> int:
        """How many inputs were tried."""
        return self.answered + self.refused + self.broken

    def add(self, other: Tally) -> None:
        """Adds the figures of later seeds."""
        self.next = max(self.next, other.next)
        for name in ("answered", "refused", "broken", "slow", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest_seed = other.slowest_s, other.slowest_seed
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)


class Store:
    """The folder of a campaign: tallies by target, and a folder for every signature that was found."""

    def __init__(self, folder: Path = STATE) -> None:
        self.folder = folder
        self.tallies: dict[str, Tally] = {}
        state = folder / "state.json"
        if state.is_file():
            self.tallies = {name: Tally(**values) for name, values in json.loads(state.read_text()).items()}

    def save(self) -> None:
        """Writes the tallies; whoever reads them sees the old ones or the new ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / "state.json.partial"
        partial.write_text(json.dumps({name: asdict(tally) for name, tally in sorted(self.tallies.items())}, indent=1))
        partial.replace(self.folder / "state.json")

    def tally(self, name: str) -> Tally:
        """Returns the tally of a target."""
        return self.tallies.setdefault(name, Tally())

    def add_finding(self, case: Case, fault: Fault) -> bool:
        """Keeps the first, and later the smallest, input of a signature; returns whether the signature is new."""
        name = hashlib.sha256(f"{case.target.partition(':')[0]} {fault.signature}".encode()).hexdigest()[:12]
        folder = self.folder / "findings" / name
        size = sum(map(len, case.files.values())) + sum(map(len, case.words))
        record = {"count": 0, "size": size + 1}
        is_new = not (folder / "finding.json").is_file()
        if not is_new:
            record = json.loads((folder / "finding.json").read_text())
        count, known = record["count"] + 1, record["size"]
        if size < known:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "files").mkdir(parents=True)
            for file, data in case.files.items():
                (folder / "files" / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / "files" / file).write_bytes(data)
            record = {"target": case.target, "seed": case.seed, "words": case.words, "size": size, **asdict(fault)}
        record["count"] = count
        partial = folder / "finding.json.partial"
        partial.write_text(json.dumps(record, indent=1))
        partial.replace(folder / "finding.json")
        return is_new

    def findings(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns every finding with its name, the most frequent first."""
        paths = sorted((self.folder / "findings").glob("*/finding.json"))
        records = [(path.parent.name, json.loads(path.read_text())) for path in paths]
        return sorted(records, key=lambda item: -item[1]["count"])

    def load(self, name: str) -> tuple[Case, dict[str, Any]]:
        """Returns the input of a finding, and what is known of it."""
        folder = self.folder / "findings" / name
        record = json.loads((folder / "finding.json").read_text())
        files = sorted(path for path in (folder / "files").rglob("*") if path.is_file())
        content = {path.relative_to(folder / "files").as_posix(): path.read_bytes() for path in files}
        return Case(record["target"], content, tuple(record["words"]), record["seed"]), record


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Makes an empty folder for inputs, in memory where that is possible; temporary files go next to it.

    Both are removed in the end: a defect leaves a file with its details each time.
    """
    memory, before = Path("/dev/shm"), tempfile.tempdir
    with tempfile.TemporaryDirectory(
        prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None, ignore_cleanup_errors=True
    ) as base:
        tempfile.tempdir = base
        folder = Path(base) / "case"
        folder.mkdir()
        try:
            yield folder
        finally:
            tempfile.tempdir = before
            os.chdir(ROOT)


def try_seeds(
    target: Target,
    first: int,
    seconds: float,
    folder: Path,
    on_case: Callable[[Case], None],
    guide: Guide | None = None,
) -> tuple[Tally, list[tuple[Case, Fault]]]:
    """Tries the seeds of a target from `first` on, for some CPU time; at least one."""
    tally, faults = Tally(next=first), []
    started = time.process_time()
    seed = first
    while seed == first or time.process_time() - started < seconds:
        case = target.case(seed, guide.parents(target, seed) if guide else None)
        on_case(case)
        verdict = guide.judge(target, case, folder) if guide else judge(case, folder)
        setattr(tally, verdict.outcome, getattr(tally, verdict.outcome) + 1)
        tally.slow += verdict.cpu_s > SLOW_S
        if verdict.cpu_s > tally.slowest_s:
            tally.slowest_s, tally.slowest_seed = verdict.cpu_s, seed
        tally.peak_bytes = max(tally.peak_bytes, verdict.peak_bytes)
        faults += [(case, fault) for fault in verdict.faults]
        seed += 1
    tally.next, tally.cpu_s = seed, time.process_time() - started
    return tally, faults


def _work(pipe: Connection, shared: Any, base: Path, dumps: Path, guided: bool) -> None:
    """Tries what the parent asks for until it says nothing more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    tempfile.tempdir, folder = str(base), base / "case"
    folder.mkdir(exist_ok=True)
    with dumps.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file)  # the place of compiled code that hangs
        limit_memory()
        guide = Guide(dumps.parent / "pool") if guided else None

        def on_case(case: Case) -> None:
            (base / "words").write_text(json.dumps(case.words), "utf-8")
            shared[0], shared[1] = case.seed, time.process_time()

        try:
            while True:
                name, first = pipe.recv()
                tally, faults = try_seeds(all_targets()[name], first, SLICE_S, folder, on_case, guide)
                used_up = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 > RENEWAL_BYTES
                pipe.send((name, tally, faults, used_up))
                if used_up:
                    return
        except EOFError:
            pass  # the parent has gone


@dataclass
class _Worker:
    """A process that tries seeds, and the target that it is at."""

    guided: bool
    dumps: Path
    target: str | None = None
    shared: Any = None
    process: Any = None
    pipe: Any = None
    base: Path = Path()
    context: Any = field(default_factory=lambda: multiprocessing.get_context("fork"))

    def start(self) -> None:
        """Starts a fresh process."""
        self.shared = self.context.RawArray("d", 2)
        self.pipe, other = self.context.Pipe()
        arguments = (other, self.shared, self.base, self.dumps, self.guided)
        self.process = self.context.Process(target=_work, args=arguments)
        self.process.start()
        other.close()
        self.target = None

    def ask(self, name: str, first: int) -> None:
        """Lets it try a target from a seed on."""
        self.shared[0], self.shared[1] = first, 1e18
        self.target = name
        self.pipe.send((name, first))

    def case_cpu_s(self) -> float:
        """Returns the CPU time that the current seed has used."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") - self.shared[1]

    def lost_case(self, seed: int) -> Case:
        """Returns the input at which the process was lost, from what lies in its folder."""
        folder = self.base / "case"
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("out")]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        words = json.loads((self.base / "words").read_text("utf-8"))
        return Case(self.target or "", files, tuple(words), seed)

    def kill(self) -> str:
        """Ends the process; returns where it was."""
        os.kill(self.process.pid, signal.SIGUSR1)
        time.sleep(0.3)
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.dumps.read_text() if self.dumps.is_file() else ""


def run(
    store: Store, targets: Sequence[str], seconds: float, workers: int = 2, *, guided: bool = True, quiet: bool = False
) -> None:
    """Tries all targets in turn, for some time or until Ctrl-C; the one that has had the least CPU time comes next."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # folders are removed as after Ctrl-C
    for name in targets:
        all_targets()[name].samples()  # made once, before processes are forked
    store.folder.mkdir(parents=True, exist_ok=True)
    crew = [_Worker(guided, store.folder / f"worker{number}.txt") for number in range(workers)]
    with scratch_folder() as folder:
        for number, worker in enumerate(crew):
            worker.base = folder / str(number)
            worker.base.mkdir()
        _run_crew(store, crew, targets, seconds, quiet)


def _run_crew(store: Store, crew: Sequence[_Worker], targets: Sequence[str], seconds: float, quiet: bool) -> None:
    """Keeps the workers busy until the time is over."""
    deadline = time.monotonic() + seconds
    printed = time.monotonic()
    try:
        for worker in crew:
            worker.start()
        while time.monotonic() < deadline:
            for worker in crew:
                if worker.target is None:
                    busy = {other.target for other in crew}
                    free = [name for name in targets if name not in busy] or list(targets)
                    name = min(free, key=lambda name: store.tally(name).cpu_s)
                    worker.ask(name, store.tally(name).next)
            _collect(store, crew, quiet)
            if time.monotonic() - printed > 30 and not quiet:
                printed = time.monotonic()
                done = sum(tally.inputs for tally in store.tallies.values())
                print(f"{done:,} inputs, {len(store.findings())} signatures", flush=True)
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
    finally:
        store.save()
        for worker in crew:
            if worker.process is not None and worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.dumps.unlink(missing_ok=True)


def _collect(store: Store, crew: Sequence[_Worker], quiet: bool) -> None:
    """Waits for what workers have done, and replaces those that hang or have ended."""
    for pipe in wait([worker.pipe for worker in crew], timeout=0.5):
        worker = next(worker for worker in crew if worker.pipe is pipe)
        try:
            name, tally, faults, used_up = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            _lost(store, worker, Fault("memory", "the process was ended", "killed, most likely for its memory"), quiet)
            continue
        worker.target = None
        store.tally(name).add(tally)
        for case, fault in faults:
            _report(store, case, fault, quiet)
        if used_up:
            worker.process.join()
            worker.start()
        store.save()
    for worker in crew:
        if worker.target is not None and worker.case_cpu_s() > KILL_S:
            place = worker.kill()
            frame = _INNERMOST.search(place)
            where = f"{frame[1]}:{frame[2]}" if frame else worker.target
            fault = Fault("hang", f"hang in compiled code {where}", place[:3000])
            _lost(store, worker, fault, quiet)


def _lost(store: Store, worker: _Worker, fault: Fault, quiet: bool) -> None:
    """Records the seed at which a worker was lost, if it was at one, and starts another."""
    if worker.target is not None:
        seed = int(worker.shared[0])
        tally = store.tally(worker.target)
        refused = max(seed - tally.next, 0)  # how those before it ended is lost with the worker
        tally.add(Tally(seed + 1, 0, refused, 1, 1, KILL_S, KILL_S, seed))
        _report(store, worker.lost_case(seed), fault, quiet)
    worker.process.join()
    worker.start()


def _report(store: Store, case: Case, fault: Fault, quiet: bool) -> None:
    if store.add_finding(case, fault) and not quiet:
        words = shlex.join(word if len(word) < 80 else f"{word[:60]}…" for word in case.words)
        print(f"found  {fault.kind}: {fault.signature}   ({case.target} {case.seed}: {words})", flush=True)
