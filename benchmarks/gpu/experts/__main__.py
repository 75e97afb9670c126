"""Runs the parts of the measurement one after the other; see the docstring of the package."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import triton

import experts
from experts.activations import activations
from experts.attention import attention
from experts.grouped import grouped_bf16, grouped_fp8
from experts.host import host, nccl
from experts.measuring import HANG_S, Session
from experts.native import compile_native
from experts.permutations import permutations
from experts.quantization import quantization
from experts.router import router
from foretrace.calibrate.gpu.machine import facts_of

PARTS: dict[str, tuple[Callable[[Session], None], float]] = {
    "host": (host, 55.0),
    "grouped bf16": (grouped_bf16, 70.0),
    "grouped fp8": (grouped_fp8, 40.0),
    "permutations": (permutations, 30.0),
    "quantisation": (quantization, 35.0),
    "activations": (activations, 45.0),
    "attention": (attention, 50.0),
    "router": (router, 35.0),
    "nccl": (nccl, 15.0),
}
"""Each part and the seconds it may take; most end before."""


def child(names: Sequence[str], out: Path, ends_at: float, library: Path, state: Any) -> None:
    """Measures parts; `state` tells the parent which one, and when its time is up."""
    state[0], state[1] = 0, time.monotonic() + 60
    session = Session(out, ends_at, library)
    session.write("facts", **facts_of(session.bench), triton=triton.__version__, host=platform.platform())
    for place, name in enumerate(names):
        function, limit_s = PARTS[name]
        session.begin(name, limit_s)
        state[0], state[1] = place, session.ends_at
        began = time.monotonic()
        try:
            if session.over:
                session.write("skipped", reason="time was up", what=name)
            else:
                function(session)
        except Exception as error:
            session.fail(name, error)
        torch.cuda.empty_cache()
        session.write("part", state="ended", seconds=round(time.monotonic() - began, 1))
    session.monitor.close()


def watch(parts: Sequence[str], out: Path, ends_at: float, library: Path) -> None:
    """Runs children until all parts are done or time is up."""
    context = multiprocessing.get_context("fork")  # what is imported need not be again
    left = list(parts)
    while left and time.monotonic() < ends_at - 20:
        state = context.RawArray("d", 2)
        process = context.Process(target=child, args=(left, out, ends_at, library, state))
        state[1] = time.monotonic() + 60
        process.start()
        while process.is_alive():
            process.join(0.5)
            if process.is_alive() and time.monotonic() > min(state[1] + HANG_S, ends_at + 25):
                process.kill()
                process.join()
        if process.exitcode == 0:
            return
        died = left[int(state[0])]
        with out.open("a") as file:
            file.write(
                json.dumps({"row": "failed", "part": died, "what": "process", "reason": process.exitcode}) + "\n"
            )
        print(f"the process died in {died}: {process.exitcode}", flush=True)
        left = left[int(state[0]) + 1 :]


def ratios(out: Path) -> Iterator[dict[str, Any]]:
    """Yields the times of random and skewed rows over those of equal ones."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    products_ = [row for row in rows if row["row"] == "kernel" and "pattern" in row]

    def shape(row: dict[str, Any]) -> tuple[str, str]:
        words = [word for word in row["kernel"].split() if not word.startswith("largest=")]
        return row["how"], " ".join(words)

    equal = {shape(row): row for row in products_ if row["pattern"] == "equal"}
    for row in products_:
        base = equal.get(shape(row))
        if base is not None and row["pattern"] != "equal":
            yield {
                "row": "ratio",
                "how": row["how"],
                "kernel": shape(row)[1],
                "pattern": row["pattern"],
                "burst": round(row["burst_s"] / base["burst_s"], 4),
                "sustained": round(row["sustained_s"] / base["sustained_s"], 4),
            }


def summarise(out: Path) -> None:
    """Adds ratios to the file and prints a short table."""
    with out.open("a") as file:
        found = list(ratios(out))
        for ratio in found:
            file.write(json.dumps(ratio) + "\n")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for ratio in sorted({(row["how"], row["pattern"]) for row in found}):
        values = [row["sustained"] for row in found if (row["how"], row["pattern"]) == ratio]
        print(f"{ratio[1]:7} over equal, {ratio[0]:24} {median(values):.3f} of {len(values)}")
    for row in rows:
        if row["row"] == "host":
            print(f"{row['us']:9.2f} us {row.get('us_each', ''):>8}  {row['what']} {row.get('tokens', '')}")
    failed = [row for row in rows if row["row"] == "failed" or row.get("passed") is False]
    for row in failed:
        print("NOT RIGHT:", json.dumps(row)[:250])
    print(f"{sum(row['row'] == 'kernel' for row in rows)} kernels, {len(failed)} failures, in {out}")


def main() -> int:
    """Measures all parts, or those named."""
    parser = argparse.ArgumentParser(prog="experts", description=experts.__doc__.split("\n")[0])
    parser.add_argument("--out", "-o", type=Path, required=True, help="the JSON lines to write")
    parser.add_argument("--seconds", type=float, default=330.0, help="stop measuring after so long")
    parser.add_argument("--only", nargs="*", default=(), help="parts to measure, by a word of their name")
    given = parser.parse_args()
    ends_at = time.monotonic() + given.seconds
    chosen = [name for name in PARTS if not given.only or any(word in name for word in given.only)]
    given.out.write_text("")
    with tempfile.TemporaryDirectory() as folder:
        compiler, library = compile_native(Path(folder))
        watch(chosen, given.out, ends_at, library)
        compiler.wait(timeout=60)
    summarise(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
