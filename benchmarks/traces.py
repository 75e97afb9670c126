"""How well traces are replayed, and whole jobs foretold from one GPU's traces, where measured runs are at hand; and how
fast.

    python benchmarks/traces.py

Reads `data/traces` and `data/collectives/a100_2x8` of `$FORETRACE_SHARED` or of `../shared`. A prediction reads ex-situ
traces and collectives only; the real run it is compared with is read apart. Nothing is fitted on any of them.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import foretrace
from foretrace import Answer, Machine, simulate
from foretrace.inputs.megatron_trace.format import read_runs
from foretrace.inputs.megatron_trace.layout import find_job
from foretrace.inputs.megatron_trace.options import MegatronTraceOptions
from foretrace.inputs.megatron_trace.pieces import TracePiece
from foretrace.inputs.megatron_trace.program import recording_of
from foretrace.inputs.megatron_trace.recording import Recording
from foretrace.inputs.megatron_trace.whole_job import whole_job, work
from foretrace.inputs.megatron_trace.whole_job.corrections import HOST, HOST_GAP_S
from foretrace.inputs.megatron_trace.whole_job.pools import Pools
from foretrace.inputs.megatron_trace.whole_job.work import read_stones
from foretrace.inputs.registry import open_input
from foretrace.readings.answer.recorded import recorded_answer

HERE = Path(__file__).parents[1]
CLUSTER = HERE / "examples" / "clusters" / "a100_2x8.yaml"
PAIRS = {
    "moe16/pp2_tp1_ep2_expn8_dp8_nl8_hs4096_sl1024": 8,
    "moe16/pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024": 8,
    "moe16/pp4_tp1_ep4_expn16_dp4_nl8_hs4096_sl1024": 16,
    "dense4": 1,
}
"""Real and ex-situ traces of the same job, and its microbatches."""
REAL = (
    *(f"{pair}/real" for pair in PAIRS),
    "moe16/pp4_tp1_exp4_expn8_dp4_nl8_hs4096_sl4096/real",
    "dense8/tp2_pp4_real",
)
GAPS_FROM = "dense8/tp2_pp4_real"
"""The run that HOST_GAP_S is from: it has no ex-situ counterpart."""
CAMPAIGNS = (("scaling_a",), ("scaling_b",), ("scaling_a", "scaling_b"))


def main() -> None:
    """Prints replay, prediction, agreement of campaigns and speed."""
    shared = Path(os.environ.get("FORETRACE_SHARED", HERE.parent / "shared")) / "data"
    traces, collectives = shared / "traces", shared / "collectives" / "a100_2x8"
    if not traces.exists():
        print(f"{traces}: not there; nothing to compare with")
        return
    replays(traces)
    predictions(traces, collectives)
    sensitivity(traces, collectives)
    agreement(traces, collectives)
    speed(traces, collectives)


def predict(traces: Path, collectives: Path, pair: str, campaigns: Sequence[str], explain: bool = True) -> Answer:
    """A whole job from ex-situ campaigns, on the 2×8 A100 machine."""
    job = foretrace.open([traces / pair / campaign for campaign in campaigns], microbatches=PAIRS[pair])
    return simulate(job, Machine(CLUSTER, collectives=collectives), explain=explain)


def read_recording(path: Path) -> Recording:
    """A real run as its ranks recorded it."""
    recording = recording_of(read_runs([path]), MegatronTraceOptions())
    assert recording is not None
    return recording


def replays(traces: Path) -> None:
    """Each real run against the program made of it."""
    print("replay of real runs (step in ms; starts: how far the median op is from where it was, of the step)")
    print(f"  {'run':<54} {'real':>8} {'replay':>8} {'error':>8} {'starts':>8}")
    for name in REAL:
        recording, job = read_recording(traces / name), open_input([traces / name])
        real = job.recorded()
        assert real is not None
        again = simulate(job, folded=False, explain=False)
        off = np.median(np.abs(again.timeline.start_s - real.start_s)) / recording.step_s
        error = again.step_time_s / recording.step_s - 1
        print(f"  {name:<54} {recording.step_s * 1e3:8.1f} {again.step_time_s * 1e3:8.1f} {error:+8.2%} {off:8.2%}")
        if name == GAPS_FROM:
            items = (item for rank in recording.traced.values() for item in rank)
            gaps = [item.taken_s * 1e3 for item in items if item.name == "gap"]
    low, high = HOST.low * HOST_GAP_S * 1e3, HOST.high * HOST_GAP_S * 1e3
    within = np.mean([low <= gap <= high for gap in gaps])
    print(f"  median gap of the host between two ops of {GAPS_FROM}: {np.median(gaps):.3f} ms of {len(gaps)}", end="")
    print(f"; {within:.0%} in its band")


def predictions(traces: Path, collectives: Path) -> None:
    """Each pair: what ex-situ traces foretell, and what the real run took."""
    print("\nwhole jobs from one GPU's traces (step in ms; dense4: up to the optimizer)")
    print(f"  {'job':<47} {'campaigns':<10} {'real':>7} {'foretold':>9} {'error':>7}  {'band':<16} holds it")
    for pair in PAIRS:
        dense = pair == "dense4"
        measured = recorded_answer(open_input([traces / pair / "real"]))
        assert measured is not None
        real = measured.until_optimizer_s if dense else read_recording(traces / pair / "real").step_s
        assert real is not None
        for campaigns in CAMPAIGNS:
            answer = predict(traces, collectives, pair, campaigns)
            foretold = answer.until_optimizer_s if dense else answer.step_time_s
            assert foretold is not None and answer.step_time_band_s is not None
            low, high = (end / answer.step_time_s - 1 for end in answer.step_time_band_s)
            holds = "yes" if (1 + low) * foretold <= real <= (1 + high) * foretold else "no"
            names = " + ".join(campaign[-1] for campaign in campaigns)
            print(
                f"  {pair:<47} {names:<10} {real * 1e3:7.1f} {foretold * 1e3:9.1f} {foretold / real - 1:+7.1%}"
                f"  {low:+6.1%} to {high:+6.1%}  {holds}"
            )


def sensitivity(traces: Path, collectives: Path) -> None:
    """What rests on the correction for placeholder data, and on taking the median of a pool."""
    print("\nthe MoE jobs with two campaigns, had experts' times been multiplied by, or pools given")
    used, typical = whole_job.EXPERT_SLOWDOWN, Pools.typical

    def errors() -> str:
        cells = []
        for pair in PAIRS:
            if pair != "dense4":
                recording = read_recording(traces / pair / "real")
                step = predict(traces, collectives, pair, ("scaling_a", "scaling_b"), explain=False).step_time_s
                cells.append(f"{step / recording.step_s - 1:+7.1%}")
        return "  ".join(cells)

    def other(middle: Callable[[Sequence[float]], float]) -> Callable[[Pools, Any], float]:
        return lambda pools, key: pools.used_s.setdefault(key, middle(pools.samples[key]))

    try:
        for factor in (1.0, used, used**2):
            whole_job.EXPERT_SLOWDOWN = factor  # type: ignore[misc]
            print(f"  {f'{factor:.3f}' + (' and medians (used)' if factor == used else ''):<28} {errors()}")
        whole_job.EXPERT_SLOWDOWN = used  # type: ignore[misc]
        for name, middle in (("the fastest timing", min), ("the mean of the timings", fmean)):
            Pools.typical = other(middle)  # type: ignore[method-assign]
            print(f"  {name:<28} {errors()}")
    finally:
        whole_job.EXPERT_SLOWDOWN, Pools.typical = used, typical  # type: ignore[misc, method-assign]


Key = Callable[[int, int, TracePiece], object]


@contextmanager
def pooled_by(key: Key) -> Iterator[None]:
    """Other pools for a while: which timings are taken for the same work."""
    usual = work.pieces_of

    def pieces_of(op: Any, *rest: Any, **more: Any) -> list[TracePiece]:
        pieces = enumerate(usual(op, *rest, **more))
        return [replace(piece, key=(op.op, key(op.rank, number, piece))) for number, piece in pieces]

    work.pieces_of = pieces_of
    try:
        yield
    finally:
        work.pieces_of = usual


def agreement(traces: Path, collectives: Path) -> None:
    """How far two campaigns of the same job are apart, by what is pooled: no real run is looked at."""
    ways: dict[str, Key] = {
        "each timing by itself": lambda rank, number, _piece: (rank, number),
        "layers of a rank pooled": lambda rank, _number, piece: (rank, piece.key),
        "ranks pooled, not layers": lambda _rank, number, piece: (number, piece.key),
        "all alike pooled (used)": lambda _rank, _number, piece: piece.key,
    }
    print("\ncampaign b over campaign a, by what is pooled (no real run is looked at)")
    print(f"  {'':<26} " + "  ".join(f"{pair[:23]:>23}" for pair in PAIRS))
    for way, key in ways.items():
        with pooled_by(key):
            ratios = []
            for pair in PAIRS:
                a, b = (
                    predict(traces, collectives, pair, (campaign,), explain=False)
                    for campaign in ("scaling_a", "scaling_b")
                )
                ratios.append((b.until_optimizer_s or 0.0) / (a.until_optimizer_s or 1.0) - 1)
        spread = np.sqrt(np.mean(np.square(ratios)))
        print(f"  {way:<26} " + "  ".join(f"{ratio:+23.1%}" for ratio in ratios) + f"   root mean square {spread:.1%}")
    spreads = [
        read_stones(find_job(read_runs([traces / pair / campaign]), None)).pools.spread(lambda _: True)
        for pair in PAIRS
        if pair != "dense4"
        for campaign in ("scaling_a", "scaling_b")
    ]
    lowest, highest = min(low for low, _ in spreads), max(high for _, high in spreads)
    print(
        f"  spread of timings in the pools of one campaign, widest of {len(spreads)}: "
        f"{lowest - 1:+.1%} to {highest - 1:+.1%}"
    )


def speed(traces: Path, collectives: Path) -> None:
    """CPU seconds in process, best of several."""
    print("\nspeed (CPU, best of 7 in process; targets 50 ms, 5 s and 2 GB)")
    pair = "moe16/pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024"
    both = ("scaling_a", "scaling_b")
    rows = {
        "16 GPUs, 32 files: step, breakdown data": lambda: predict(traces, collectives, pair, both, explain=False),
        "16 GPUs, 32 files: with gains and band": lambda: predict(traces, collectives, pair, both),
        "16 GPUs, one campaign, with gains and band": lambda: predict(traces, collectives, pair, both[:1]),
    }
    for what, run in rows.items():
        print(f"  {what:<44} {cpu(run, 7) * 1e3:8.1f} ms")
    large = traces / "pp64_tp8_dp16"

    def largest() -> None:
        simulate(foretrace.open(large, microbatches=512), Machine("a100-dgx"))

    cpu_s = cpu(largest, 1)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"  {'8,192 GPUs, 512 microbatches, gains and band':<44} {cpu_s:8.2f} s   {memory:.2f} GB")


def cpu(run: Callable[[], object], repeats: int) -> float:
    """The least CPU seconds of several runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


if __name__ == "__main__":
    main()
