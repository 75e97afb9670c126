"""How near replays of recorded steps come to them, and how much work two streams of a GPU do at once.

    python benchmarks/replays.py

Replays every trace in `truth`, and, where they are, the samples of Holistic Trace Analysis in `data/kineto`
of `$FORETRACE_SHARED` or of `../shared`. Work at once is read off `streams`, eager and as a CUDA graph: the same
kernels, one at a time and two at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

import foretrace
from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.format.execution_trace import looks_like_execution_trace
from foretrace.inputs.profiler_trace.format.records import EventCategory
from foretrace.inputs.profiler_trace.rank.rank_step import RankStep, read_step

HERE: Final = Path(__file__).parent
PROFILES: Final = HERE / "truth" / "profiles"
GRAPH: Final = HERE / "truth" / "streams.graph.json.gz"


def traces() -> Iterator[Path]:
    """Every trace that is here."""
    samples = Path(os.environ.get("FORETRACE_SHARED", HERE.parents[1] / "shared")) / "data" / "kineto"
    for path in sorted([*PROFILES.glob("*.json.gz"), GRAPH, *samples.glob("*.json.gz")]):
        if not looks_like_execution_trace(path):
            yield path


def busy_s(rank: RankStep) -> tuple[float, float, float]:
    """Per step: how long one kernel ran, how long two did, and the sum of all kernels' times."""
    events = rank.trace.events
    kernels = np.intersect1d(rank.steady.device.ravel(), events.of(EventCategory.KERNEL))
    times = np.concatenate([events.start_s[kernels], events.end_s[kernels]])
    change = np.repeat([1, -1], len(kernels))
    order = np.lexsort((change, times))
    running, apart = np.cumsum(change[order])[:-1], np.diff(times[order])
    steps = len(rank.steady.steps)
    single_s, double_s = (float(apart[running == depth].sum()) / steps for depth in (1, 2))
    return single_s, double_s, float(events.duration_s[kernels].sum()) / steps


def main() -> None:
    """Prints both."""
    print(f"{'replays':<64} {'recorded':>12} {'replayed':>12}")
    for path in traces():
        recorded_s = read_step(read_trace(path)).recorded_s
        replayed_s = foretrace.simulate(path, explain=False).step_time_s
        name = path.name.removesuffix(".json.gz")
        error = round(replayed_s / recorded_s - 1, 4) + 0.0  # not "-0.00%"
        print(f"{name:<64} {recorded_s * 1e3:>9.2f} ms {error:>+12.2%}")
    eager, graph = (read_step(read_trace(path)) for path in (PROFILES / "streams.shapes.json.gz", GRAPH))
    (_, _, alone), (single_s, double_s, _) = busy_s(eager), busy_s(graph)
    print(
        f"\ntwo streams of an H200: {alone * 1e3:.2f} ms of kernels took {single_s * 1e3:.2f} ms with one running and ",
        end="",
    )
    print(f"{double_s * 1e3:.2f} ms with two: {(alone - single_s) / double_s:.2f} times the work of one at a time")


if __name__ == "__main__":
    main()
