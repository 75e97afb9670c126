"""Keeps mutated inputs that reach new lines of the readers, and mutates them further.

Lines are traced for a share of the inputs, since tracing slows a reader down several times. An input that reached a new
line is stored in the pool of its target, from which every third seed is then made. Real files, which are larger and not
everywhere at hand, are in the pool from the beginning.
"""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from fuzz.mutators import mutate
from fuzz.oracle import Case, Verdict, judge
from fuzz.samples import Sample, real_samples
from fuzz.targets import Target

if TYPE_CHECKING:
    from fuzz.run import Store

TRACED_SHARE: Final = 0.02
POOL_SHARE: Final = 0.33
MAX_POOL: Final = 200
MAX_KEPT_BYTES: Final = 50_000

_READERS: Final = (
    *(
        "/inputs/",
        "/hardware/",
        "/models/",
        "/workload/launch/",
        "/workload/job_file",
        "/program/",
        "/validate/training",
    ),
    *("/cost/network/nccl_log/", "/cost/network/nccl_tests/", "/cost/kernels/kernel_profile", "/cost/calibration"),
    *("/compat/simai/", "/basics/", "/search/axes", "/calibrate/"),
)
"""Parts of the paths of modules that read something."""


class Guide:
    """The lines that each target has reached, and the inputs that reached them first.

    Args:
        folder: Where inputs are kept from one run to the next.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: dict[str, set[tuple[str, int]]] = {}
        self.pools: dict[str, list[Sample]] = {}

    def parents(self, target: Target, seed: int) -> list[Sample] | None:
        """Returns the inputs that a seed is made from; None: the samples of the target."""
        if target.words is not None:
            return None
        pool = self.pools.get(target.name)
        if pool is None:
            pool = self.pools[target.name] = self._read(target)
        return pool if pool and Random(seed).random() < POOL_SHARE else None

    def judge(self, target: Target, case: Case, folder: Path) -> Verdict:
        """Judges an input; traces it if it is its turn."""
        if target.words is not None or Random(case.seed + 1).random() >= TRACED_SHARE:
            return judge(case, folder)
        reached: set[tuple[str, int]] = set()
        names: dict[str, bool] = {}

        def on_line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                reached.add((frame.f_code.co_filename, frame.f_lineno))
            return on_line

        def on_call(frame: FrameType, event: str, _: Any) -> Any:  # noqa: ARG001 - Python's signature
            name = frame.f_code.co_filename
            if name not in names:
                names[name] = "/foretrace/" in name and any(part in name for part in _READERS)
            return on_line if names[name] else None

        before = sys.gettrace()
        sys.settrace(on_call)
        try:
            verdict = judge(case, folder)
        finally:
            sys.settrace(before)
        verdict.cpu_s = 0.0  # most of it went into tracing
        if any(fault.kind == "hang" for fault in verdict.faults):
            verdict = judge(case, folder)
        known = self.lines.setdefault(target.name, set())
        if reached - known:
            known |= reached
            self._keep(target, case)
        return verdict

    def _keep(self, target: Target, case: Case) -> None:
        pool = self.pools.setdefault(target.name, [])
        if len(pool) < MAX_POOL and sum(map(len, case.files.values())) < MAX_KEPT_BYTES:
            mutated = next(iter(target.samples())).mutated
            sample = Sample(case.files, mutated if mutated and set(mutated) <= set(case.files) else None)
            pool.append(sample)
            record = {name: data.hex() for name, data in case.files.items()}
            text = json.dumps(record)
            path = self.folder / target.name / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def _read(self, target: Target) -> list[Sample]:
        pool = real_samples(target.name)
        for path in sorted((self.folder / target.name).glob("*.json"))[:MAX_POOL]:
            files = {name: bytes.fromhex(data) for name, data in json.loads(path.read_text()).items()}
            mutated = next(iter(target.samples())).mutated
            pool.append(Sample(files, mutated if mutated and set(mutated) <= set(files) else None))
        return pool


def run_atheris(target: Target, words: list[str], store: Store) -> None:
    """Lets libFuzzer guide one target; ends with the first input that breaks the contract.

    The bytes of libFuzzer are the file that is mutated; its mutations and those of `mutators` take turns.

    Args:
        target: A target with files.
        words: Arguments of libFuzzer, such as `-runs=10000`.
        store: Keeps what is found.

    Raises:
        SystemExit: atheris is not installed, or the target has no files.
    """
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install '.[fuzz]' (Linux, Python 3.11 to 3.13)")
    if target.words is not None:
        sys.exit(f"{target.name} reads no files")
    from fuzz.run import scratch_folder

    parts = tuple(part.strip("/").split("/")[0] for part in _READERS)
    with atheris.instrument_imports(include=[f"foretrace.{part}" for part in dict.fromkeys(parts)]):
        import foretrace.api  # noqa: F401 - imported to be instrumented
    sample = target.samples()[0]
    name = sample.targets[0]
    folder = ExitStack().enter_context(scratch_folder())  # libFuzzer ends the process
    seeds = folder.parent / "seeds"
    seeds.mkdir()
    (seeds / "sample").write_bytes(sample.files[name])

    def try_input(data: bytes) -> None:
        random = Random(hashlib.sha256(data).digest())
        case = Case(target.name, {**sample.files, name: data}, target.entry(random, sample))
        verdict = judge(case, folder)
        for fault in verdict.faults:
            store.add_finding(case, fault)
            raise RuntimeError(f"{fault.kind}: {fault.signature}\n{fault.detail}")

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        changed = atheris.Mutate(data, max_size) if random.random() < 0.3 else mutate(name, data, random)
        return bytes(changed)[:max_size]

    atheris.Setup([sys.argv[0], "-max_len=65536", *words, str(seeds)], try_input, custom_mutator=change)
    atheris.Fuzz()
