"""Compares predictions of traced training scripts with their steps and memory on one H200.

    python benchmarks/traced_scripts.py [--only NAME,...] [--hosts] [--ops NAME] [--cache FOLDER]

Traces every script of `benchmarks/scripts` that `truth/h200_scripts.jsonl` has, simulates it on one GPU of an H200 node
and prints its step, the time of its kernels, that of its host and its memory next to what was measured. `--hosts` takes
the tiny sizes, which the host limits. `--ops` compares one script op by op and shape by shape. `--cache` keeps
recordings in a folder until the script, its arguments or the tracer change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np

import foretrace
from foretrace.inputs.script.fuse import fused
from foretrace.inputs.script.host_costs import HostCosts, host_s
from foretrace.inputs.script.kernels import kernel_texts
from foretrace.inputs.script.memory import peak_bytes
from foretrace.inputs.script.program import program_of
from foretrace.inputs.script.recording import KernelLaunch, RankRecording
from foretrace.inputs.script.tracing import TracedJob, TraceRequest, trace_script
from foretrace.inputs.script.window import window_of
from foretrace.inputs.torch_ops.kinds import plain_name
from foretrace.program.columns import Kind

HERE: Final = Path(__file__).resolve().parent
TRUTH: Final = HERE / "truth" / "h200_scripts.jsonl"
SCRIPTS: Final = HERE / "scripts"
TRACER: Final = HERE.parent / "src" / "foretrace" / "inputs" / "script"
CLUSTER: Final = "h200-dgx"
FIRST_MEASURED: Final = 4
"""The first steps do not count: they also allocate the optimizer's states."""

SAME_OP: Final = {
    "to_copy": "copy",
    "clone": "copy",
    "contiguous": "copy",
    "fill": "zero",
    "zeros": "zero",
    "zeros_like": "zero",
    "ones_like": "zero",
    "full": "zero",
    "full_like": "zero",
    "new_zeros": "zero",
    "new_full": "zero",
    "ones": "zero",
    "scaled_dot_product_cudnn_attention": "cudnn_attention_forward",
    "scaled_dot_product_cudnn_attention_backward": "cudnn_attention_backward",
    "scaled_dot_product_flash_attention": "flash_attention_forward",
    "scaled_dot_product_flash_attention_backward": "flash_attention_backward",
    "scaled_dot_product_efficient_attention": "efficient_attention_forward",
    "scaled_dot_product_efficient_attention_backward": "efficient_attention_backward",
    "convolution": "cudnn_convolution",
    "linalg_vector_norm": "norm",
}
"""The op that launches the kernels for PyTorch's profiler, by the op that the tracer records."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What Foretrace predicts for a script, in seconds and bytes.

    Attributes:
        step_s: The step.
        device_s: The kernels.
        host_s: The host without waits.
        peak_bytes: The most memory that is allocated.
        trace_s: The time that tracing took.
        kernel_s: The seconds of every signature's kernels.
        recording: What rank 0 issued.
        launches: How many kernels the device runs.
    """

    step_s: float
    device_s: float
    host_s: float
    peak_bytes: int
    trace_s: float
    kernel_s: dict[str, float]
    recording: RankRecording
    launches: int


def read_truth(section: str, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Returns the measured rows of a section."""
    rows = [json.loads(line) for line in TRUTH.read_text().splitlines()]
    return [row for row in rows if row["section"] == section and (not only or row["script"] in only)]


def traced(script: str, arguments: str, cache: Path | None) -> tuple[TracedJob, float]:
    """Returns the recordings of a script, and the seconds that tracing took."""
    path = SCRIPTS / f"{script}.py"
    sources = [path, TRACER / "recording.py", *sorted((TRACER / "tracer").rglob("*.py"))]
    key = hashlib.sha256(arguments.encode() + b"".join(source.read_bytes() for source in sources)).hexdigest()
    stored = None if cache is None else cache / f"{path.stem}-{key[:16]}.pickle"
    if stored is not None and stored.exists():
        job, seconds = pickle.loads(stored.read_bytes())
        return job, seconds
    start = time.perf_counter()
    job = trace_script(TraceRequest(str(path), tuple(arguments.split()), 1))
    seconds = time.perf_counter() - start
    if stored is not None:
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(pickle.dumps((job, seconds)))
    return job, seconds


def predict(job: TracedJob, trace_s: float, machine: foretrace.Machine, costs: HostCosts | None = None) -> Prediction:
    """Simulates the recordings of a script on one GPU."""
    program = program_of(job.recordings, job.stands_for, title="traced script", costs=costs)
    answer = foretrace.simulate(program, machine, explain=False)
    priced = machine.price(program)
    kinds, texts = priced.ops.column("kind"), priced.ops.ints("kernel")
    seconds = priced.prices.duration_s[0]
    compute = kinds == Kind.COMPUTE
    names = program.strings
    kernel_s = dict(zip([names[text] for text in texts[compute].tolist()], seconds[compute].tolist(), strict=True))
    recording = job.recordings[0]
    steps = window_of(recording).steps
    return Prediction(
        answer.step_time_s / steps,
        float(seconds[compute].sum()) / steps,
        float(np.nansum(seconds[kinds == Kind.HOST])) / steps,
        peak_bytes(fused(recording)),
        trace_s,
        kernel_s,
        recording,
        0,
    )


def host_by_event(recording: RankRecording, costs: HostCosts) -> Iterator[float]:
    """Yields the host's seconds of each event in the recorded step."""
    window = window_of(recording)
    for event in recording.events[window.first : window.end]:
        yield host_s(event, recording.signatures[event.signature] if isinstance(event, KernelLaunch) else None, costs)


def table(rows: Sequence[dict[str, Any]], machine: foretrace.Machine, cache: Path | None) -> None:
    """Prints what was measured and predicted of every script."""
    print(
        f"{'script':26}{'step ms':>9}{'is':>9}{'error':>8}{'device':>9}{'is':>8}{'error':>7}{'host':>8}{'is':>8}"
        f"{'peak GB':>9}{'is':>7}{'error':>7}{'trace s':>8}"
    )
    errors, peaks = [], []
    for row in rows:
        try:
            prediction = predict(*traced(row["script"], row["args"], cache), machine)
        except foretrace.ForetraceError as error:
            print(f"{row['script']:26}{error}")
            continue
        step_ms = 1e3 * prediction.step_s
        errors.append(step_ms / row["step_ms"] - 1)
        name = Path(row["script"]).name
        line = f"{name:26}{step_ms:9.2f}{row['step_ms']:9.2f}{errors[-1]:8.1%}{1e3 * prediction.device_s:9.2f}"
        if "peak_bytes" in row:
            peaks.append(prediction.peak_bytes / row["peak_bytes"] - 1)
            line += f"{'':15}{1e3 * prediction.host_s:8.1f}{'':8}{prediction.peak_bytes / 1e9:9.2f}"
            line += f"{row['peak_bytes'] / 1e9:7.2f}{peaks[-1]:7.1%}"
        elif "memory" in row:
            measured_ms, peak = row["device_busy_ms"], row["memory"]["steady_allocated"]
            peaks.append(prediction.peak_bytes / peak - 1)
            line += (
                f"{measured_ms:8.1f}{1e3 * prediction.device_s / measured_ms - 1:7.1%}{1e3 * prediction.host_s:8.1f}"
            )
            line += f"{median(row['host_ms']):8.1f}{prediction.peak_bytes / 1e9:9.2f}{peak / 1e9:7.2f}{peaks[-1]:7.1%}"
        else:
            line += f"{'':15}{1e3 * prediction.host_s:8.1f}{'':31}"
        print(f"{line}{prediction.trace_s:8.1f}", flush=True)
    print(f"mean error of steps {fmean(map(abs, errors)):.1%}, at most {max(map(abs, errors)):.1%}")
    if peaks:
        print(f"mean error of peaks {fmean(map(abs, peaks)):.1%}, at most {max(map(abs, peaks)):.1%}")


Totals = dict[tuple[str, str], list[float]]


def compare_ops(row: dict[str, Any], machine: foretrace.Machine, cache: Path | None, most: int) -> None:
    """Prints the device time of a script by op, then by op and shape, the largest differences first."""
    prediction = predict(*traced(row["script"], row["args"], cache), machine)
    predicted, measured = predicted_ops(prediction), measured_ops(row)
    by_op = [summed_by_op(predicted), summed_by_op(measured)]
    for ours, theirs in ((by_op[0], by_op[1]), (predicted, measured)):
        print(f"{'op':40}{'shape':40}{'count':>7}{'kernels':>9}{'ms':>9}{'is':>9}{'differs':>9}")
        keys = sorted(ours.keys() | theirs.keys(), key=lambda key: -abs(ours[key][1] - theirs[key][1]))
        for key in keys[:most]:
            print(
                f"{key[0]:40}{key[1]:40}{ours[key][0]:7.0f}{theirs[key][0]:9.0f}{1e3 * ours[key][1]:9.3f}"
                f"{1e3 * theirs[key][1]:9.3f}{1e3 * (ours[key][1] - theirs[key][1]):9.3f}"
            )
        print()


def summed_by_op(totals: Totals) -> Totals:
    """Returns totals of all shapes together."""
    result: Totals = defaultdict(lambda: [0, 0.0])
    for (op, _), (count, seconds) in totals.items():
        result[op, ""][0] += count
        result[op, ""][1] += seconds
    return result


def predicted_ops(prediction: Prediction) -> Totals:
    """Returns launches and seconds by op and shape."""
    recording, totals = prediction.recording, defaultdict(lambda: [0, 0.0])
    texts, window = kernel_texts(recording), window_of(recording)
    for event in recording.events[window.first : window.end]:
        if not isinstance(event, KernelLaunch) or not texts[event.signature]:
            continue
        signature = recording.signatures[event.signature]
        dims = [list(dims) for dims, type_ in zip(signature.inputs.dims, signature.inputs.types, strict=False) if type_]
        entry = totals[same_op(signature.op), largest(dims + [list(output.dims) for output in signature.outputs])]
        entry[0] += 1 / window.steps
        entry[1] += prediction.kernel_s[texts[event.signature]] / window.steps
    return totals


def measured_ops(row: dict[str, Any]) -> Totals:
    """Returns kernels and seconds by op and shape."""
    totals: Totals = defaultdict(lambda: [0, 0.0])
    for op, tensors, count, us in row["ops"]:
        entry = totals[same_op(op), largest([dims for dims, _ in tensors or []])]
        entry[0] += count
        entry[1] += us / 1e6
    return totals


def same_op(name: str) -> str:
    """Returns the name by which an op is compared."""
    plain = plain_name(name)
    return SAME_OP.get(plain, plain)


def largest(shapes: Sequence[Any]) -> str:
    """Returns the shape of the most elements, as text."""
    flat = [dims for dims in shapes if isinstance(dims, list) and all(isinstance(size, int) for size in dims)]
    return "x".join(map(str, max(flat, key=prod, default=[])))


def main() -> None:
    """Prints the comparison that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("--more", action="store_true", help="sizes and scripts on which nothing was fitted")
    parser.add_argument("--ops", default="")
    parser.add_argument("--most", type=int, default=30)
    parser.add_argument("--cache", type=Path)
    arguments = parser.parse_args()
    machine = foretrace.Machine(CLUSTER)
    only = [name for name in (arguments.ops or arguments.only).split(",") if name]
    rows = read_truth("hosts" if arguments.hosts else "more" if arguments.more else "steps", only)
    if arguments.ops:
        for row in rows:
            compare_ops(row, machine, arguments.cache, arguments.most)
    else:
        table(rows, machine, arguments.cache)


if __name__ == "__main__":
    main()
