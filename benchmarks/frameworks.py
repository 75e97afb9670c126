"""Traces small scripts of every framework and kind of parallelism, and prints a table of what works.

    python benchmarks/frameworks.py [--world 8 1024] [--only TEXT] [--jobs N] [--json]
    python benchmarks/frameworks.py --gloo

Every case runs in a process of its own, without a GPU. Columns: `ok` or the code of the error; the ranks that were
traced; events of the first rank's last step; seconds of the whole command, the import of PyTorch included; the peak
memory of the largest process; how many of the checks of `foretrace.inputs.script.checks` warn.

`--gloo` runs the examples with processes that really exchange data instead, and compares their collectives (kind,
ranks, bytes, peer, order) with those that were traced. An exchange counts as its sends and receives, which gloo issues
one by one; the bytes of all-to-alls of a mixture of experts are left out, since real routers choose other experts.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = HERE / "frameworks"
EXAMPLES = HERE.parent / "examples" / "scripts"
WORLDS = (8, 1024)
LARGEST = 16384
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Case:
    """A script with its arguments; `large` ones are traced at the largest world too, `alone` ones at world 1 only.

    `refused` is the code of the error with which a case that cannot work must end.
    """

    name: str
    script: Path
    arguments: str = ""
    large: bool = False
    alone: bool = False
    refused: str = ""

    @property
    def text(self) -> str:
        """The script and its arguments, as a person would type them."""
        return f"{self.script.name} {self.arguments}".strip()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trace of a case came to."""

    case: str
    command: str
    world: int
    code: str
    message: str = ""
    roles: int = 0
    events: int = 0
    calls: int = 0
    seconds: float = 0.0
    peak_mb: float = 0.0
    warnings: tuple[str, ...] = ()
    expected: bool = True


def _cases() -> Iterator[Case]:
    yield from _single_cases()
    yield from _data_cases()
    yield from _tensor_cases()
    yield from _pipeline_cases()
    yield from _other_cases()


def _single_cases() -> Iterator[Case]:
    script = SCRIPTS / "single.py"

    def single(name: str, arguments: str, refused: str = "") -> Case:
        return Case(f"1 GPU, {name}", script, arguments, alone=True, refused=refused)

    for optimizer in ("fused", "foreach", "loop", "default", "sgd", "capturable", "adafactor", "muon"):
        yield single(f"optimizer {optimizer}", f"--optimizer {optimizer}")
    yield single("optimizer lbfgs", "--optimizer lbfgs", refused="needs-value")
    for kind in ("reentrant", "plain", "selective"):
        yield single(f"checkpoint {kind}", f"--checkpoint {kind}")
    yield single("autocast bf16", "--amp bf16")
    yield single("autocast fp16, GradScaler", "--amp fp16 --clip")
    yield single("accumulation, clipping", "--accumulate 4 --clip")
    for kind in ("model", "blocks", "decorator"):
        yield single(f"torch.compile {kind}", f"--compile {kind}")
    yield single("CUDA graph", "--graph", refused="unsupported-op")


def _data_cases() -> Iterator[Case]:
    ddp, fsdp = SCRIPTS / "ddp.py", SCRIPTS / "fsdp.py"
    yield Case("DDP", ddp, large=True)
    yield Case("DDP GPT example", EXAMPLES / "ddp_gpt.py")
    yield Case("DDP, unused parameters", ddp, "--unused")
    yield Case("DDP, bucket views", ddp, "--views")
    yield Case("DDP, static graph", ddp, "--static")
    yield Case("DDP, no_sync accumulation", ddp, "--accumulate 4 --autocast")
    for hook in ("bf16", "fp16", "allreduce", "powersgd", "own"):
        yield Case(f"DDP, {hook} hook", ddp, f"--hook {hook}")
    yield Case("DDP, ZeroRedundancyOptimizer", ddp, "--zero")
    yield Case("DDP, SyncBatchNorm", ddp, "--sync-bn")
    yield Case("FSDP2", fsdp, large=True)
    yield Case("FSDP2 Llama-8B example", EXAMPLES / "llama_fsdp2.py", large=True)
    yield Case("FSDP2 Llama-8B, checkpointed", EXAMPLES / "llama_fsdp2.py", "--checkpoint")
    yield Case("HSDP", fsdp, "--replicas 2", large=True)
    yield Case("FSDP2, CPU offload", fsdp, "--offload", refused="unsupported-op")
    yield Case("FSDP2, no reshard", fsdp, "--reshard no")
    yield Case("FSDP2, reshard to 4", fsdp, "--reshard 4")
    yield Case("FSDP2, accumulation, clipping", fsdp, "--accumulate 4 --clip")
    yield Case("FSDP2, checkpointed", fsdp, "--checkpoint")
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        yield Case(f"FSDP1 {strategy}", fsdp, f"--strategy {strategy}")
    yield Case("FSDP1, original parameters", fsdp, "--strategy FULL_SHARD --original --clip")
    yield Case("Hugging Face Llama, FSDP2", SCRIPTS / "huggingface.py", large=True)
    yield Case("Hugging Face Llama, eager, checkpointed", SCRIPTS / "huggingface.py", "--attention eager --checkpoint")


def _tensor_cases() -> Iterator[Case]:
    script = SCRIPTS / "tensor_parallel.py"
    yield Case("TP", script)
    yield Case("TP, sequence parallel", script, "--sp")
    yield Case("TP, loss_parallel", script, "--loss")
    yield Case("TP, sequence and loss parallel, clipping", script, "--sp --loss --clip")
    yield Case("FSDP2 + TP", script, "--tp 4 --fsdp --sp --loss --clip", large=True)
    yield Case("HSDP + TP", script, "--tp 2 --fsdp --sp --loss --replicas 2", large=True)


def _pipeline_cases() -> Iterator[Case]:
    script = SCRIPTS / "pipeline.py"
    for schedule in (
        "GPipe",
        "1F1B",
        "Interleaved1F1B",
        "LoopedBFS",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
    ):
        yield Case(f"PP {schedule}", script, f"--schedule {schedule}", large=schedule == "1F1B")
        yield Case(f"PP {schedule}, shapes given", script, f"--schedule {schedule} --static")
    yield Case("PP 1F1B + DDP", script, "--ddp")
    yield Case("PP + TP + FSDP2 example", EXAMPLES / "tp_pp.py", "--layers 4", large=True)
    interleaved = "--layers 8 --schedule Interleaved1F1B --virtual 2"
    yield Case("PP + TP + FSDP2, interleaved", EXAMPLES / "tp_pp.py", interleaved)
    yield Case("PP + TP + FSDP2, ZBV", EXAMPLES / "tp_pp.py", "--layers 8 --schedule ZBVZeroBubble --virtual 2")


def _other_cases() -> Iterator[Case]:
    for rotate in ("allgather", "alltoall"):
        yield Case(f"CP, {rotate}", SCRIPTS / "context.py", f"--rotate {rotate}", large=rotate == "allgather")
    moe = SCRIPTS / "moe.py"
    yield Case("MoE, fixed splits", moe, "--splits fixed")
    yield Case("MoE, fixed splits, grouped", moe, "--splits fixed --grouped")
    yield Case("MoE, bincount", moe, "--splits bincount", large=True)
    yield Case("MoE, histc, grouped", moe, "--splits histc --grouped")
    yield Case("MoE example", EXAMPLES / "moe_ep.py", "--layers 2")


_SMALL = "--layers 4 --hidden 64 --heads 4 --kv-heads 2 --ffn 128 --vocab 256 --seq 32"
_REAL = (
    ("ddp_gpt.py", "--layers 4 --hidden 512 --heads 4 --seq 16 --vocab 256 --batch 1 --accumulate 2", (2, 4)),
    ("llama_fsdp2.py", "--size tiny --seq 32", (2, 4)),
    ("llama_fsdp2.py", "--size tiny --seq 32 --replicas 2 --checkpoint", (4,)),
    ("tp_pp.py", f"{_SMALL} --pp 2 --tp 2", (4,)),
    ("tp_pp.py", f"{_SMALL} --pp 1 --tp 2", (4,)),
    ("tp_pp.py", f"{_SMALL} --pp 2 --tp 2 --schedule Interleaved1F1B", (4,)),
    ("tp_pp.py", f"{_SMALL} --pp 2 --tp 1 --schedule ZBVZeroBubble", (4,)),
    ("moe_ep.py", "--layers 2 --hidden 64 --heads 4 --ffn 128 --seq 32 --vocab 256 --ep 2 --experts 8 --top-k 2", (4,)),
)
"""The examples, small, and with how many processes they exchange data."""


def _compare() -> int:
    """Compares the collectives of the third step with those that processes really issue; returns 1 if some differ."""
    sys.path.insert(0, str(HERE.parent))
    from foretrace.inputs.script.tracing import TraceRequest, trace_script
    from tests.real_collectives import run_really
    from tests.traced_collectives import traced_calls, without_splits

    differ = 0
    print(f"{'script':<100} {'ranks':>5} {'calls':>6}  result")
    for name, arguments, worlds in _REAL:
        script, given = EXAMPLES / name, [*arguments.split(), "--steps", "3"]
        for world in worlds:
            real = run_really(script, [*given, "--device", "cpu"], world)
            request = TraceRequest(str(script), tuple(given), world, ranks=tuple(range(world)), steps=(2, 2))
            traced = [traced_calls(recording) for recording in trace_script(request).recordings]
            if name == "moe_ep.py":  # real routers choose other experts than those that are assumed
                real, traced = list(map(without_splits, real)), list(map(without_splits, traced))
            same = real == traced and all(real)
            differ += not same
            calls = sum(map(len, real))
            print(
                f"{name} {arguments:<{99 - len(name)}} {world:>5} {calls:>6}  {'same' if same else 'DIFFERENT'}",
                flush=True,
            )
    return int(differ > 0)


def main() -> int:
    """Traces the cases that were asked for; returns 1 where one does not do what it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, nargs="+", help="ranks; 8, 1,024 and for some 16,384 otherwise")
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=1, help="cases that are traced at once")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gloo", action="store_true", help="compare with processes that exchange data")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(_trace(**json.loads(args.one))))
        return 0
    if args.gloo:
        return _compare()
    runs = [
        (case, world)
        for case in _cases()
        if any(text in case.name for text in args.only)
        for world in _worlds(case, args.world)
    ]
    outcomes = []
    if not args.json:
        print(_HEADER)
    with ThreadPoolExecutor(args.jobs) as pool:
        for outcome in pool.map(lambda run: _run(*run), runs):
            outcomes.append(outcome)
            if not args.json:
                print(_row(outcome), flush=True)
    if args.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return int(not all(outcome.expected for outcome in outcomes))


def _worlds(case: Case, chosen: Sequence[int] | None) -> Sequence[int]:
    if case.alone:
        return (1,)
    if chosen:
        return chosen
    return (*WORLDS, LARGEST) if case.large else WORLDS


def _run(case: Case, world: int) -> Outcome:
    """Traces a case in a process of its own."""
    request = {"script": str(case.script), "arguments": case.arguments.split(), "world": world}
    begin = time.perf_counter()
    command = [sys.executable, __file__, "--one", json.dumps(request)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(case.name, case.text, world, "timeout", seconds=TIMEOUT_S, expected=False)
    seconds = time.perf_counter() - begin
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        text = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Outcome(case.name, case.text, world, "crashed", text, seconds=seconds, expected=False)
    found: dict[str, Any] = json.loads(lines[-1])
    found["warnings"] = tuple(found.get("warnings", ()))
    expected = found["code"] == (case.refused or "ok")
    return Outcome(case.name, case.text, world, seconds=seconds, expected=expected, **found)


def _trace(script: str, arguments: list[str], world: int) -> dict[str, Any]:
    """Traces a script in this process and those that it starts."""
    from foretrace.basics.errors import InputError
    from foretrace.inputs.script.checks import check_recordings
    from foretrace.inputs.script.recording import IssuedCall, KernelLaunch
    from foretrace.inputs.script.tracing import TraceRequest, trace_script

    found: dict[str, Any] = {"code": "ok"}
    try:
        job = trace_script(TraceRequest(script, tuple(arguments), world))
        first = job.recordings[0]
        begin, end = first.steps[-1]
        events = first.events[begin:end]
        found["roles"] = len(job.recordings)
        found["events"] = sum(isinstance(event, KernelLaunch | IssuedCall) for event in events)
        found["calls"] = sum(isinstance(event, IssuedCall) for event in events)
        found["warnings"] = [f"{note.code}: {note.message}" for note in check_recordings(job.recordings)]
    except InputError as error:
        found["code"] = error.code
        found["message"] = f"{error} ({error.where})" if error.where else str(error)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return found


_HEADER = f"{'case':<42} {'world':>6}  {'result':<16} {'roles':>5} {'ops':>6} {'calls':>5} {'s':>6} {'MB':>5}  checks"


def _row(own: Outcome) -> str:
    result = own.code if own.expected else f"! {own.code}"
    sizes = f"{own.roles:>5} {own.events:>6} {own.calls:>5}" if own.code == "ok" else f"{'':>5} {'':>6} {'':>5}"
    note = "; ".join(own.warnings) or ("pass" if own.code == "ok" else own.message.partition("\n")[0])
    return f"{own.case:<42} {own.world:>6}  {result:<16} {sizes} {own.seconds:>6.1f} {own.peak_mb:>5.0f}  {note[:160]}"


if __name__ == "__main__":
    sys.exit(main())
