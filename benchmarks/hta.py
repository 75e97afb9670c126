"""Our analyses of traces against Holistic Trace Analysis (HTA): the same numbers, and how much sooner.

    pip install HolisticTraceAnalysis
    python benchmarks/hta.py [--rounded] [--values] [--all] [TRACE...]

Reads `data/kineto` and `data/h200` of `$FORETRACE_SHARED` or of `../shared`, or the traces that are given. HTA cuts
events to whole microseconds by default, which loses much of short kernels (and makes some negative); here it reads
them as they are (its HTA_DISABLE_NS_ROUNDING), unless `--rounded` asks for its default, with which ours are then cut
too. Both run in this process; our times are the best of several runs from a loaded trace with nothing kept. The same
launches are counted on both sides: HTA knows a few names of runtime calls. `--all` adds what takes HTA long: sequences
of kernels, the critical path, the difference of two ranks; these need pandas below 3. What still differs is named below
the table, and in docs/trace-analysis.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrace import ProfilerTrace

HERE = Path(__file__).parents[1]
REPEATS = 3
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
QUEUED = (
    *LAUNCHES,
    "cuLaunchKernel",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemsetAsync",
    "hipMemcpyAsync",
    "hipMemcpyWithStream",
)
"""The runtime calls that HTA 0.5.0 counts as launches, in its launch statistics and in its queue lengths."""
PAIR = ("timeline_analysis_sampled_rank-0.json.gz", "trace_filter_sampled_rank-1.json.gz")
"""Two ranks of one job."""

Values = dict[str, float]


@dataclass(frozen=True)
class Method:
    """A question, as both answer it: named numbers in microseconds, GB/s, percent or plain counts."""

    name: str
    theirs: Callable[[Any], Values]
    ours: Callable[[ProfilerTrace], Values]
    why: str = ""
    """Where the two may differ by more than 1 %."""


def main() -> None:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument(
        "--rounded", action="store_true", help="whole microseconds on both sides, as HTA has by default"
    )
    parser.add_argument("--values", action="store_true", help="also print every number that differs by more than 1 %%")
    parser.add_argument("--all", action="store_true", help="also what takes HTA long, some 20 s a trace")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write HTA's numbers, for tests to compare with")
    asked = parser.parse_args()
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "0" if asked.rounded else "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    # This file has HTA's own name, and Python looks in its folder first.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parent.resolve()]
    try:
        import hta.trace_analysis  # noqa: F401 - only whether it is there
    except ImportError:
        print("HolisticTraceAnalysis is not installed: pip install HolisticTraceAnalysis")
        return
    groups = [[path.resolve()] for path in asked.traces] or list(_samples())
    if not groups:
        print("no traces: set FORETRACE_SHARED, or name some")
        return
    if asked.record is not None:
        record(groups, asked.record)
        return
    header()
    totals = [0.0, 0.0, 0.0, 0.0]
    reasons: dict[str, set[str]] = {}
    for paths in groups:
        compare(paths, asked.rounded, asked.values, METHODS + (SLOW if asked.all else ()), totals, reasons)
    if not totals[1]:
        return
    print()
    sums = (*totals, totals[0] + totals[2], totals[1] + totals[3])
    for name, their_s, our_s in zip(("load", "analyses", "both"), sums[::2], sums[1::2], strict=True):
        print(f"{name:<8} HTA {their_s:7.2f} s   ours {our_s:7.3f} s   {their_s / our_s:6.1f} times as fast")
    for why, where in reasons.items():
        print(f"\ndiffers in {', '.join(sorted(where))}:\n  {why}")


def header() -> None:
    """The names of the columns."""
    numbers = f"{'numbers':>7} {'within 1%':>9} {'worst':>9}"
    print(f"{'trace':<34} {'method':<20} {numbers} {'HTA ms':>9} {'ours ms':>8} {'faster':>8}")


def record(groups: list[list[Path]], file: Path) -> None:
    """Writes what HTA says of each trace: not of every kernel, whose names are long."""
    from hta.trace_analysis import TraceAnalysis

    recorded: dict[str, dict[str, Values]] = {}
    for paths in groups:
        theirs, _ = _timed(
            lambda paths=paths: TraceAnalysis(trace_files={n: str(path) for n, path in enumerate(paths)})
        )
        if isinstance(theirs, Exception):
            continue
        answers = {method.name: _timed(lambda method=method, hta=theirs: method.theirs(hta))[0] for method in METHODS}
        recorded[" ".join(path.name for path in paths)] = {
            name: {key: float(f"{value:.6g}") for key, value in values.items() if value == value and _told(key)}
            for name, values in answers.items()
            if not isinstance(values, Exception)
        }
    file.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    print(f"{file}: {sum(len(values) for answers in recorded.values() for values in answers.values())} numbers")


def _told(key: str) -> bool:
    """Whether a number is worth keeping: not those of kernels, of ranges but their sums, and under long names."""
    kernel = any(f" {kind} " in key for kind in _TYPES.values()) and " + " not in key
    spread = any(f" {side} " in key for side in ("host", "device")) and not key.endswith(" sum")
    return len(key) <= 60 and not kernel and not spread


def _samples() -> Iterator[list[Path]]:
    shared = Path(os.environ.get("FORETRACE_SHARED") or HERE.parent / "shared") / "data"
    for folder in ("h200", "kineto"):
        for path in sorted((shared / folder).glob("*.json.gz")):
            if not path.name.endswith("_et.json.gz"):
                yield [path]
    pair = [shared / "kineto" / name for name in PAIR]
    if all(path.exists() for path in pair):
        yield pair


def compare(
    paths: list[Path],
    rounded: bool,
    values: bool,
    methods: Sequence[Method],
    totals: list[float],
    reasons: dict[str, set[str]],
) -> None:
    """One trace, or the traces of one job."""
    from hta.trace_analysis import TraceAnalysis

    name = paths[0].name.removesuffix(".json.gz")[:32] + (" +1" if len(paths) > 1 else "")
    numbered = {number: str(path) for number, path in enumerate(paths)}
    theirs, their_s = _timed(lambda: TraceAnalysis(trace_files=dict(numbered)))
    if isinstance(theirs, Exception):
        print(f"{name:<34} HTA does not read it: {type(theirs).__name__}")
        return
    trace, our_s = _timed(lambda: _ours(paths, rounded))
    if isinstance(trace, Exception):
        raise trace
    totals[0] += their_s
    totals[1] += our_s
    times = f"{their_s * 1e3:9.1f} {our_s * 1e3:8.1f} {their_s / our_s:7.1f}x"
    print(f"{name:<34} {'load':<20} {'':>27} {times}")
    for method in methods:
        their_values, their_s = _timed(lambda method=method: method.theirs(theirs))
        our_values, our_s = _best(method.ours, trace)
        if isinstance(their_values, Exception):
            print(f"{name:<34} {method.name:<20} HTA fails: {type(their_values).__name__}: {str(their_values)[:60]}")
            continue
        totals[2] += their_s
        totals[3] += our_s
        _line(name, method, their_values, our_values, their_s, our_s, values, reasons)


def _line(
    name: str,
    method: Method,
    their_values: Values,
    our_values: Values,
    their_s: float,
    our_s: float,
    values: bool,
    reasons: dict[str, set[str]],
) -> None:
    off = {key: _off(value, our_values.get(key)) for key, value in their_values.items()}
    within = sum(error <= 0.01 for error in off.values())
    worst = max(off.values(), default=0.0)
    print(
        f"{name:<34} {method.name:<20} {len(off):>7} {within:>9} {worst * 100:>8.2f}% "
        f"{their_s * 1e3:9.1f} {our_s * 1e3:8.2f} {their_s / our_s:7.1f}x"
    )
    if within < len(off):
        reasons.setdefault(f"{method.name}: {method.why}", set()).add(name)
    for key, error in off.items():
        if values and error > 0.01:
            print(f"    {key:<70} HTA {their_values[key]:14.4f}  ours {our_values.get(key, float('nan')):14.4f}")


def _off(their_value: float, our_value: float | None) -> float:
    """How far ours is from theirs, as a part of theirs; 1 where one of the two has no such number."""
    if our_value is None or our_value != our_value:
        return 0.0 if their_value != their_value else 1.0
    if their_value != their_value:
        return 0.0 if abs(our_value) < 1e-9 else 1.0
    least = 1e-3  # a nanosecond, in microseconds
    return 0.0 if abs(our_value - their_value) <= least else abs(our_value - their_value) / max(abs(their_value), least)


def _ours(paths: list[Path], rounded: bool) -> ProfilerTrace:
    from foretrace.inputs.profiler_trace.format import read_trace

    return ProfilerTrace([read_trace(path) for path in paths], hta_steps=True, whole_us=rounded)


def _anew(trace: ProfilerTrace) -> ProfilerTrace:
    """The same loaded traces without anything that an analysis has kept."""
    return ProfilerTrace([rank.trace for rank in trace.ranks], hta_steps=True)


def _timed(action: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = action()
    except Exception as error:  # whatever HTA raises is a result to print
        return error, time.perf_counter() - start
    return result, time.perf_counter() - start


def _best(method: Callable[[ProfilerTrace], Values], trace: ProfilerTrace) -> tuple[Values, float]:
    runs = []
    for _ in range(REPEATS):
        anew = _anew(trace)
        start = time.perf_counter()
        result = method(anew)
        runs.append(time.perf_counter() - start)
    return result, min(runs)


def _their_temporal(hta: Any) -> Values:
    table = hta.get_temporal_breakdown(visualize=False)
    names = {
        "idle_time(us)": "idle",
        "compute_time(us)": "compute",
        "non_compute_time(us)": "other",
        "kernel_time(us)": "span",
    }
    return {
        f"{name} {rank}": float(row[key])
        for rank, row in enumerate(table.to_dict("records"))
        for key, name in names.items()
    }


def _our_temporal(trace: ProfilerTrace) -> Values:
    values: Values = {}
    for number, rank in enumerate(trace.temporal_breakdown().ranks):
        values |= {f"idle {number}": rank.idle_s * 1e6, f"compute {number}": rank.compute_s * 1e6}
        values |= {f"other {number}": rank.non_compute_s * 1e6, f"span {number}": rank.span_s * 1e6}
    return values


def _their_overlap(hta: Any) -> Values:
    table = hta.get_comm_comp_overlap(visualize=False)
    return {f"overlap {rank}": float(share) for rank, share in enumerate(table["comp_comm_overlap_pctg"])}


def _our_overlap(trace: ProfilerTrace) -> Values:
    return {
        f"overlap {number}": round(100 * (rank.overlap or 0.0), 2) for number, rank in enumerate(trace.overlap().ranks)
    }


def _their_idle(hta: Any) -> Values:
    table = hta.get_idle_time_breakdown(ranks=list(hta.t.traces), visualize=False)[0]
    return {f"{row.rank} stream {row.stream} {row.idle_category}": float(row.idle_time) for row in table.itertuples()}


def _our_idle(trace: ProfilerTrace) -> Values:
    values: Values = {}
    for number, rank in enumerate(trace.idle().ranks):
        for stream in rank.streams:
            times = {
                "host_wait": stream.times.host_wait_s,
                "kernel_wait": stream.times.kernel_wait_s,
                "other": stream.times.other_s,
            }
            values |= {
                f"{number} stream {stream.stream} {cause}": round(seconds * 1e6, 2) for cause, seconds in times.items()
            }
    return values


_TYPES = {"COMPUTATION": "compute", "COMMUNICATION": "communication", "MEMORY": "memory"}


def _their_kernels(hta: Any) -> Values:
    types, kernels = hta.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**6)
    values: Values = {}
    for row in types.to_dict("records"):
        values[" + ".join(_TYPES[kind] for kind in row["kernel_type"].split(" overlapping "))] = float(row["sum"])
    for row in kernels.to_dict("records"):
        key = f"{row['rank']} {_TYPES[row['kernel_type']]} {row['name']}"
        values |= {f"{key} sum": row["sum (us)"], f"{key} max": row["max (us)"], f"{key} std": row["stddev"]}
    return values


def _our_kernels(trace: ProfilerTrace) -> Values:
    numbers = {rank.number: number for number, rank in enumerate(trace.ranks)}
    answer = trace.kernels()
    values: Values = {}
    for states in answer.states_s:
        for state, seconds in states.items():
            values[state] = values.get(state, 0.0) + seconds * 1e6
    for kernel in answer.kernels:
        key = f"{numbers[kernel.rank]} {kernel.type} {kernel.name}"
        values |= {
            f"{key} sum": kernel.total_s * 1e6,
            f"{key} max": kernel.most_s * 1e6,
            f"{key} std": kernel.deviation_s * 1e6,
        }
    return values


def _their_launches(hta: Any) -> Values:
    values: Values = {}
    for rank, table in hta.get_cuda_kernel_launch_stats(ranks=list(hta.t.traces), visualize=False).items():
        for column in ("cpu_duration", "gpu_duration", "launch_delay"):
            values |= {
                f"{rank} {column} sum": float(table[column].sum()),
                f"{rank} {column} median": table[column].median(),
            }
        values[f"{rank} count"] = float(len(table))
    return values


def _our_launches(trace: ProfilerTrace) -> Values:
    values: Values = {}
    for number, rank in enumerate(trace.launches(calls=LAUNCHES).ranks):
        columns = {"cpu_duration": rank.call, "gpu_duration": rank.device, "launch_delay": rank.delay}
        for name, spread in columns.items():
            values |= {
                f"{number} {name} sum": spread.mean * spread.count * 1e6,
                f"{number} {name} median": spread.median * 1e6,
            }
        values[f"{number} count"] = float(rank.call.count)
    return values


def _their_queues(hta: Any) -> Values:
    table = hta.get_queue_length_summary(ranks=list(hta.t.traces))
    values: Values = {}
    for (rank, stream), row in () if table is None else table["queue_length"].iterrows():
        values |= {
            f"{rank} stream {stream} {name}": float(row[name]) for name in ("count", "mean", "std", "50%", "max")
        }
    return values


def _our_queues(trace: ProfilerTrace) -> Values:
    numbers = {rank.number: number for number, rank in enumerate(trace.ranks)}
    values: Values = {}
    for queue in trace.queues(calls=QUEUED).queues:
        key, spread = f"{numbers[queue.rank]} stream {queue.stream}", queue.spread
        values |= {f"{key} count": spread.count, f"{key} mean": spread.mean, f"{key} std": spread.deviation}
        values |= {f"{key} 50%": spread.median, f"{key} max": spread.most}
    return values


def _their_bandwidth(hta: Any) -> Values:
    table = hta.get_memory_bw_summary(ranks=list(hta.t.traces))
    values: Values = {}
    for (rank, name), row in () if table is None or not len(table) else table["memory_bw_gbps"].iterrows():
        values |= {f"{rank} {name} {which}": float(row[which]) for which in ("count", "mean", "50%", "max")}
    return values


def _our_bandwidth(trace: ProfilerTrace) -> Values:
    numbers = {rank.number: number for number, rank in enumerate(trace.ranks)}
    values: Values = {}
    for copy in trace.memory_bandwidth().copies:
        key, spread = f"{numbers[copy.rank]} {copy.kind}", copy.spread
        values |= {f"{key} count": spread.count, f"{key} mean": spread.mean / 1e9}
        values |= {f"{key} 50%": spread.median / 1e9, f"{key} max": spread.most / 1e9}
    return values


def _their_annotations(hta: Any) -> Values:
    values: Values = {}
    for side, device in (("device", True), ("host", False)):
        table = hta.get_gpu_user_annotation_breakdown(use_gpu_annotation=device, visualize=False, num_kernels=10**6)
        for row in () if table is None else table.to_dict("records"):
            key = f"{row['rank']} {side} {row['name']}"
            values |= {f"{key} sum": row["sum (us)"], f"{key} mean": row["mean (us)"], f"{key} std": row["stddev"]}
    return values


def _our_annotations(trace: ProfilerTrace) -> Values:
    numbers = {rank.number: number for number, rank in enumerate(trace.ranks)}
    values: Values = {}
    for annotation in trace.annotations().annotations:
        key = f"{numbers[annotation.rank]} {annotation.side} {annotation.name}"
        values |= {
            f"{key} sum": annotation.total_s * 1e6,
            f"{key} mean": annotation.mean_s * 1e6,
            f"{key} std": annotation.deviation_s * 1e6,
        }
    return values


METHODS = (
    Method(
        "temporal_breakdown",
        _their_temporal,
        _our_temporal,
        "HTA takes everything with a stream for device work: waits (cuda_sync) and a Triton op of the host too",
    ),
    Method("overlap", _their_overlap, _our_overlap),
    Method(
        "idle", _their_idle, _our_idle, "HTA lets the gap before a kernel that overlaps the one before it count below 0"
    ),
    Method(
        "kernels",
        _their_kernels,
        _our_kernels,
        "HTA takes waits for kernels, and cuts every stretch of a type to whole microseconds",
    ),
    Method("launches", _their_launches, _our_launches),
    Method(
        "queues", _their_queues, _our_queues, "HTA lets a queue be shorter than 0 where a kernel starts with its call"
    ),
    Method(
        "memory_bandwidth",
        _their_bandwidth,
        _our_bandwidth,
        "HTA counts what rounding leaves over where nothing is copied as bandwidth above 0",
    ),
    Method("annotations", _their_annotations, _our_annotations),
)


def _their_sequences(hta: Any) -> Values:
    table = hta.get_frequent_cuda_kernel_sequences(
        operator_name=SEQUENCES_UNDER, output_dir=tempfile.mkdtemp(), rank=0, visualize=False
    )
    values: Values = {}
    for row in table.to_dict("records"):
        kernels = row["pattern"].partition("|")[2]
        values |= {f"{kernels} count": row["count"], f"{kernels} device": row["GPU kernel duration (us)"]}
        values[f"{kernels} host"] = row["CPU op duration (us)"]
    return values


def _our_sequences(trace: ProfilerTrace) -> Values:
    values: Values = {}
    for sequence in trace.sequences(SEQUENCES_UNDER).sequences:
        if sequence.rank == trace.ranks[0].number:
            kernels = "|".join(sequence.kernels)
            values |= {f"{kernels} count": float(sequence.count), f"{kernels} device": sequence.device_s * 1e6}
            values[f"{kernels} host"] = sequence.host_s * 1e6
    return values


def _their_path(hta: Any) -> Values:
    names = hta.t.symbol_table.get_sym_table()
    word = next((step_word for step_word in STEP_WORDS if any(name.startswith(step_word) for name in names)), None)
    if word is None:
        return {}
    graph, worked = hta.critical_path_analysis(rank=0, annotation=word, instance_id=0)
    if not worked:
        raise ValueError("no path found")
    kinds = {"OPERATOR_KERNEL": "work and host", "KERNEL_KERNEL_DELAY": "gap", "KERNEL_LAUNCH_DELAY": "launch"}
    values = dict.fromkeys(kinds.values(), 0.0)
    for edge in graph.critical_path_edges_set:
        if edge.type.name in kinds:
            values[kinds[edge.type.name]] += float(edge.weight)
    return values


def _our_path(trace: ProfilerTrace) -> Values:
    """Our path is of the median step, HTA's of the first; where a step waits for its host, ours is the host's alone."""
    path = trace.critical_path()
    named = {op.name: op.total_s * 1e6 for op in path.by_name}
    gap, launch = named.get("gap between kernels", 0.0), named.get("launch latency", 0.0)
    return {"work and host": path.length_s * 1e6 - gap - launch, "gap": gap, "launch": launch}


def _their_diff(hta: Any) -> Values:
    from hta.common.trace import Trace as TheirTrace
    from hta.trace_diff import DeviceType, LabeledTrace, TraceDiff

    if len(hta.t.trace_files) < 2:
        return {}
    both = [
        LabeledTrace(label=str(label), t=TheirTrace(trace_files={0: path})) for label, path in hta.t.trace_files.items()
    ]
    table = TraceDiff.compare_traces(*both, device_type=DeviceType.GPU)
    values: Values = {}
    for name, row in table.iterrows():
        values |= {f"{name} count": float(row["diff_counts"]), f"{name} time": float(row["diff_duration"])}
    return values


def _our_diff(trace: ProfilerTrace) -> Values:
    if len(trace.ranks) < 2:
        return {}
    first, second = (ProfilerTrace([rank.trace]) for rank in trace.ranks[:2])
    changes = first.diff(second, step=first.ranks[0].steps.names[0]).of("device")
    counts = {f"{change.name} count": change.after_count - change.before_count for change in changes}
    return counts | {f"{change.name} time": change.change_s * 1e6 for change in changes}


STEP_WORDS = ("ProfilerStep", "train_step")
SEQUENCES_UNDER = "evaluate_function"
SLOW = (
    Method(
        "sequences", _their_sequences, _our_sequences, "HTA looks only at ops that nest least deep in the whole trace"
    ),
    Method(
        "critical_path",
        _their_path,
        _our_path,
        "HTA's path is the longest through a graph that does not join threads or streams it saw no wait between, and "
        "leaves out the host's time between its ops; ours sums to the step",
    ),
    Method("diff", _their_diff, _our_diff),
)


if __name__ == "__main__":
    main()
