"""Measures step times, kernels and memory of the scripts in benchmarks/scripts on this machine's GPU.

Needs PyTorch with CUDA and nothing else: `python benchmarks/gpu/scripts.py --out FOLDER [--only name,...]`. Every
script runs in processes of its own. First it runs unchanged (`steps.jsonl`, section `steps`: what it printed as
`step_ms`). Then it runs again under an `Observer`, which counts the steps of its optimizer and writes a record of one
of them (`scripts.jsonl.gz`): memory, the time of the host, and from PyTorch's profiler every kernel with the op that
launched it. Last come tiny sizes of many scripts, unchanged, which the host limits (`steps.jsonl`, section `hosts`).
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import os
import platform
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
FIRST_STEADY = 5
"""The number of steps after which a script is steady: allocator, cuDNN, compiler and loss scale have settled."""
HOST_STEPS = 3
MAX_TEXT = 2000
MAX_RUN_S = 150.0
SLOW_TO_START = {"compiled_gpt": 260.0}
"""Limits in seconds of scripts that compile first."""

TINY = "--hidden 128 --heads 4 --seq 64 --vocab 1024 --batch 2 --steps 40"
TINY_LLAMA = f"{TINY} --kv-heads 2 --ffn 256"
HOSTS: tuple[tuple[str, str], ...] = (
    ("ddp_gpt2", f"--layers 12 --accum 1 {TINY}"),
    ("fsdp2_llama", f"--layers 16 {TINY_LLAMA}"),
    ("tinyllama", f"--layers 22 {TINY_LLAMA}"),
    ("resnet50", "--batch 2 --image 32 --width 16 --steps 40"),
    ("moe_loop", f"--layers 8 --ffn 256 {TINY}"),
    ("fsdp2_llama_checkpointed", f"--layers 16 {TINY_LLAMA}"),
    ("bert", f"--layers 12 --ffn 256 {TINY}"),
    ("ddp_gpt2", f"--layers 12 --accum 4 {TINY}"),
    ("lora", f"--layers 28 {TINY_LLAMA}"),
    ("moe_capacity", f"--layers 8 --ffn 256 {TINY}"),
    ("vit", "--layers 24 --hidden 128 --heads 4 --image 64 --batch 2 --steps 40"),
    (
        "seq2seq",
        "--layers 12 --hidden 128 --heads 4 --ffn 256 --vocab 1024 --source 64 --target 32 --batch 2 --steps 40",
    ),
    ("moe_grouped", f"--layers 6 --ffn 128 {TINY}"),
    ("long_context", f"--layers 4 --chunk 32 {TINY_LLAMA}"),
    ("small_eager", "--layers 4 --hidden 64"),
    ("compiled_gpt", f"--layers 12 {TINY}"),
)


class Observer:
    """Counts the optimizer's steps and records, between two of their ends, memory, host time and a profile."""

    def __init__(self, out: Path) -> None:
        import torch

        self.torch, self.out = torch, out
        self.ended, self.quiet = 0, False
        self.record: dict[str, Any] = {"torch": torch.__version__, "complete": False}
        self.host_ms: list[float] = []
        self.start_s = 0.0
        self.profiler: Any = None
        self.synchronize = torch.cuda.synchronize
        torch.cuda.synchronize = self.maybe_synchronize
        self.patch_optimizers()

    def patch_optimizers(self) -> None:
        """Calls `step_ended` after `step` of every optimizer.

        PyTorch's own hooks run inside the range that it records around `step`; a profiler that stops there and another
        one that starts corrupt memory at the end of the range.
        """
        optimizer = self.torch.optim.Optimizer
        patch = optimizer._patch_step_function

        def patch_and_wrap(instance: Any) -> None:
            patch(instance)
            step = type(instance).step
            if getattr(step, "observed", False):
                return

            @functools.wraps(step)
            def observed_step(*args: Any, **kwargs: Any) -> Any:
                result = step(*args, **kwargs)
                self.step_ended()
                return result

            observed_step.observed = True  # type: ignore[attr-defined]
            type(instance).step = observed_step

        optimizer._patch_step_function = patch_and_wrap

    def maybe_synchronize(self, *args: Any, **kwargs: Any) -> None:
        """Synchronizes, except in the steps whose host time is measured."""
        if not self.quiet:
            self.synchronize(*args, **kwargs)

    def step_ended(self) -> None:
        """Goes on to the next measurement; called at the end of every optimizer step."""
        self.ended += 1
        after = self.ended - FIRST_STEADY
        if after < 0:
            return
        if after == 0:
            self.start_memory()
        elif after == 1:
            self.stop_memory()
            self.start_host()
        elif after <= HOST_STEPS:
            self.stop_host()
            self.start_host()
        elif after == HOST_STEPS + 1:
            self.stop_host()
            self.quiet = False
            self.start_profile()  # of a step whose record is discarded: the profiler's start is slow
        elif after == HOST_STEPS + 2:
            self.profiler.stop()
            self.start_profile()
        else:
            self.stop_profile()
            self.finish()

    def start_memory(self) -> None:
        """Begins the step whose peak is the steady one."""
        self.synchronize()
        self.record["memory"] = self.peaks()
        self.record["memory"]["allocated_after_step"] = self.torch.cuda.memory_allocated()
        self.torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, int]:
        """Returns the allocator's peaks in bytes."""
        cuda = self.torch.cuda
        return {"max_allocated": cuda.max_memory_allocated(), "max_reserved": cuda.max_memory_reserved()}

    def stop_memory(self) -> None:
        """Records the steady peak, and the peak of all steps so far."""
        self.synchronize()
        memory, steady = self.record["memory"], self.peaks()
        memory["steady_allocated"], memory["steady_reserved"] = steady["max_allocated"], steady["max_reserved"]
        memory.update({name: max(memory[name], peak) for name, peak in steady.items()})
        memory["retries"] = self.torch.cuda.memory_stats().get("num_alloc_retries", 0)

    def start_host(self) -> None:
        """Begins a step, with an idle device, in which the script's own synchronizations do nothing."""
        self.synchronize()
        self.quiet = True
        self.start_s = time.perf_counter()

    def stop_host(self) -> None:
        """Records the time until the host was done and until the device was."""
        host_s = time.perf_counter() - self.start_s
        self.synchronize()
        self.host_ms.append(1000 * host_s)
        self.record.setdefault("host_to_idle_ms", []).append(1000 * (time.perf_counter() - self.start_s))

    def start_profile(self) -> None:
        """Starts PyTorch's profiler on an idle device."""
        from torch.profiler import ProfilerActivity, profile

        self.synchronize()
        self.profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)
        self.profiler.start()
        self.start_s = time.perf_counter()

    def stop_profile(self) -> None:
        """Stops the profiler and records the step's kernels."""
        self.synchronize()
        self.record["profiled_step_ms"] = 1000 * (time.perf_counter() - self.start_s)
        self.profiler.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self.profiler.export_chrome_trace(str(path))
            self.record["trace_bytes"] = path.stat().st_size
            events = json.loads(path.read_bytes())["traceEvents"]
        self.record.update(summarize(events))
        self.record["complete"] = True

    def finish(self) -> NoReturn:
        """Writes the record and leaves the script, whose remaining steps add nothing."""
        self.write()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def write(self) -> None:
        """Writes the record."""
        self.record["steps_seen"] = self.ended
        self.record["host_ms"] = self.host_ms
        self.out.write_text(json.dumps(self.record))


def launching_ops(events: Sequence[dict[str, Any]]) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """Returns the innermost and the outermost op around every launch, by the launch's correlation."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver"):
            threads[event["pid"], event["tid"]].append(event)
    ops = {}
    for thread in threads.values():
        thread.sort(key=lambda event: (event["ts"], -event["dur"]))
        stack: list[dict[str, Any]] = []
        for event in thread:
            while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
                stack.pop()
            if event["cat"] == "cpu_op":
                stack.append(event)
            elif stack and "correlation" in event["args"]:
                ops[event["args"]["correlation"]] = stack[-1], stack[0]
    return ops


def busy_us(events: Sequence[dict[str, Any]]) -> float:
    """Returns the time in which at least one of the events ran."""
    total, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: event["ts"]):
        end = event["ts"] + event["dur"]
        total += max(0.0, end - max(until, event["ts"]))
        until = max(until, end)
    return total


def totals(events: Sequence[dict[str, Any]], limit: int = 400) -> dict[str, tuple[int, float]]:
    """Returns number and microseconds of the events of every name, the most frequent names first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in events:
        entry = sums[event["name"]]
        entry[0] += 1
        entry[1] += event["dur"]
    frequent = sorted(sums.items(), key=lambda item: -item[1][0])[:limit]
    return {name: (int(count), round(us, 1)) for name, (count, us) in frequent}


def summarize(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns what a profiled step did on the device and on the host."""
    spans = [event for event in events if event.get("ph") == "X"]
    device = [event for event in spans if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    cpu_ops = [event for event in spans if event.get("cat") == "cpu_op"]
    runtime = [event for event in spans if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    begin = min((event["ts"] for event in device), default=0.0)
    end = max((event["ts"] + event["dur"] for event in device), default=0.0)
    streams: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in device:
        streams[event["tid"]].append(event)
    return {
        "device_span_us": end - begin,
        "device_busy_us": busy_us(device),
        "streams_busy_us": {str(stream): busy_us(members) for stream, members in streams.items()},
        "kernels": kernel_rows(device, cpu_ops, launching_ops(spans)),
        "kernel_count": len(device),
        "cpu_op_count": len(cpu_ops),
        "cpu_ops": totals(cpu_ops),
        "runtime": totals(runtime),
    }


def kernel_rows(
    device: Sequence[dict[str, Any]], cpu_ops: Sequence[dict[str, Any]], launchers: dict[int, Any]
) -> list[dict[str, Any]]:
    """Returns a row for every kernel and launching op with its inputs: their number and their microseconds."""
    by_id = {event["args"].get("External id"): event for event in cpu_ops}
    rows: dict[str, dict[str, Any]] = {}
    for event in device:
        args = event["args"]
        op, top = launchers.get(args.get("correlation"), (by_id.get(args.get("External id")), None))
        row = {"kernel": event["name"][:500], "cat": event["cat"], "stream": event["tid"]}
        if "bytes" in args:
            row["bytes"] = args["bytes"]
        if op is not None:
            inputs = op["args"]
            row |= {"op": op["name"], "dims": inputs.get("Input Dims"), "types": inputs.get("Input type")}
            row |= {"strides": inputs.get("Input Strides"), "values": inputs.get("Concrete Inputs")}
            row = {name: shortened(value) for name, value in row.items()}
        if top is not None and top is not op:
            row["under"] = top["name"]
        entry = rows.setdefault(json.dumps(row), {**row, "count": 0, "us": 0.0})
        entry["count"] += 1
        entry["us"] += event["dur"]
    return sorted(({**row, "us": round(row["us"], 2)} for row in rows.values()), key=lambda row: -row["us"])


def shortened(value: Any) -> Any:
    """Returns a value whose text is not longer than a foreach op on a thousand tensors needs."""
    return value if len(text := json.dumps(value)) <= MAX_TEXT else text[:MAX_TEXT]


def child(words: Sequence[str]) -> None:
    """Imports PyTorch, waits for a line, and runs a script: `observed RECORD SCRIPT ...` or `plain - SCRIPT ...`."""
    kind, out, script, *args = words
    sys.path[0] = str(Path(script).parent)
    import torch  # noqa: F401

    if not sys.stdin.readline():
        return
    observer = Observer(Path(out)) if kind == "observed" else None
    sys.argv = [script, *args]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        if observer is not None:
            observer.write()


class Run:
    """A process that runs a script, and what it printed."""

    def __init__(self, words: Sequence[str], limit_s: float, waits: bool = False) -> None:
        self.limit_s, self.waits = limit_s, waits
        self.output, self.errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.errors,
            text=True,
            start_new_session=True,  # so that the compiler's workers end with it
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def finish(self) -> dict[str, Any]:
        """Lets the script run and waits for its end."""
        start = time.perf_counter()
        try:
            self.process.communicate("go\n" if self.waits else None, timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            self.stop()
        result: dict[str, Any] = {"rc": self.process.returncode, "run_s": round(time.perf_counter() - start, 1)}
        result["stdout"], result["stderr"] = (self.tail(file) for file in (self.output, self.errors))
        times = re.findall(r"step_ms=([0-9.]+)", result["stdout"])
        result["step_ms"] = float(times[-1]) if times else None
        return result

    @staticmethod
    def tail(file: Any) -> str:
        """Returns the end of a file's text."""
        file.seek(0)
        return file.read()[-MAX_TEXT:]

    def stop(self) -> None:
        """Ends the process and its workers."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Session:
    """Runs scripts one after another until a time limit and appends what they report to the files in a folder."""

    def __init__(self, out: Path, limit_s: float) -> None:
        self.steps, self.records = out / "steps.jsonl", out / "scripts.jsonl.gz"
        self.end_s = time.perf_counter() + limit_s

    def limit(self, name: str) -> float:
        """Returns the seconds that a run of a script may take."""
        return min(SLOW_TO_START.get(name, MAX_RUN_S), self.end_s - time.perf_counter())

    def prepared(self, kind: str, name: str, args: Sequence[str], out: str = "-") -> Run:
        """Starts a process that imports PyTorch and then waits."""
        return Run([__file__, "--child", kind, out, str(SCRIPTS / f"{name}.py"), *args], self.limit(name), waits=True)

    def write(self, section: str, name: str, args: str, result: dict[str, Any]) -> None:
        """Appends a line to `steps.jsonl` and prints it in short."""
        line = {"section": section, "script": name, "args": args, **result}
        with self.steps.open("a") as file:
            file.write(json.dumps(line) + "\n")
        message = f"{section} {name} {args}: step_ms={result['step_ms']} rc={result['rc']} in {result['run_s']} s"
        print(message if result["rc"] == 0 else f"{message}\n{result['stderr'][-600:]}", flush=True)

    def measure(self, name: str) -> None:
        """Runs a script unchanged, then observed."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "record.json"
            observed = self.prepared("observed", name, (), str(out))
            try:
                result = Run([str(SCRIPTS / f"{name}.py")], self.limit(name)).finish()
                self.write("steps", name, "", result)
                if result["rc"] != 0:
                    return
                observed.limit_s = self.limit(name)
                again = observed.finish()
            finally:
                observed.stop()
            record = json.loads(out.read_bytes()) if out.exists() else {}
        again.pop("stdout")
        line = {"script": name, "unobserved_step_ms": result["step_ms"], **again, **record}
        with gzip.open(self.records, "at") as file:
            file.write(json.dumps(line) + "\n")
        kernels, host = record.get("kernel_count"), record.get("host_ms")
        print(f"  observed: rc={again['rc']} in {again['run_s']} s, {kernels} kernels, host_ms={host}", flush=True)
        if again["rc"] != 0 or not record.get("complete"):
            print(again["stderr"][-600:], flush=True)

    def measure_hosts(self, cases: Sequence[tuple[str, str]]) -> None:
        """Runs tiny scripts unchanged; the next one's process imports PyTorch before its turn."""
        following = None
        try:
            for index, (name, args) in enumerate(cases):
                if self.limit(name) < 10:
                    print(f"hosts: no time left for {len(cases) - index} cases", flush=True)
                    return
                current = following or self.prepared("plain", name, args.split())
                current.limit_s = self.limit(name)
                following = None
                if index + 1 < len(cases):
                    following = self.prepared("plain", cases[index + 1][0], cases[index + 1][1].split())
                self.write("hosts", name, args, current.finish())
        finally:
            if following is not None:
                following.stop()


def describe_machine() -> dict[str, Any]:
    """Returns versions and names of the machine."""
    code = (
        "import json, torch; p = torch.cuda.get_device_properties(0);"
        "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, 'gpu': p.name,"
        " 'memory': p.total_memory, 'cudnn': torch.backends.cudnn.version(), 'nccl': torch.cuda.nccl.version()}))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout
    cpu = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*:\s*(.*)", cpu.read_text()) if cpu.exists() else []
    return {
        **json.loads(output or "{}"),
        "python": platform.python_version(),
        "cpu": models[:1],
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
    }


def main() -> None:
    """Measures the scripts that the command line names."""
    names = sorted((path.stem for path in SCRIPTS.glob("*.py")), key=lambda name: (name in SLOW_TO_START, name))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(names), help="names of scripts, without .py, separated by commas")
    parser.add_argument("--sections", default="steps,hosts")
    parser.add_argument("--limit-s", type=float, default=560.0, help="no run lasts past so many seconds")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    session = Session(options.out, options.limit_s)
    only = options.only.split(",")
    if unknown := [name for name in only if name not in names]:
        parser.error(f"no such scripts: {', '.join(unknown)}; there are {', '.join(names)}")
    machine = describe_machine()
    print(json.dumps(machine), flush=True)
    with session.steps.open("a") as file:
        file.write(json.dumps({"section": "machine", **machine}) + "\n")
    for name in only if "steps" in options.sections else ():
        if session.limit(name) < 15:
            print(f"no time left for {name}", flush=True)
            continue
        try:
            session.measure(name)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    if "hosts" in options.sections:
        session.measure_hosts([case for case in HOSTS if case[0] in only])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
