"""Measures steps and memory of training scripts on this machine's GPU, at sizes on which nothing was fitted.

Needs PyTorch with CUDA: `python benchmarks/gpu/more_scripts.py --out FOLDER`. Every script of `CASES` runs unchanged in
a process of its own; what it prints as its step time, and the peak of its memory, go to `more_scripts.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CASES = (
    "examples/scripts/ddp_gpt.py --steps 16",
    "examples/scripts/ddp_gpt.py --layers 24 --hidden 1024 --heads 16 --batch 8 --accumulate 2 --steps 14",
    "examples/scripts/llama_fsdp2.py --size 1b --steps 14",
    "examples/scripts/llama_fsdp2.py --size 1b --checkpoint --batch 4 --steps 12",
    "examples/scripts/moe_ep.py --ep 1 --layers 4 --steps 12",
    "examples/scripts/tp_pp.py --pp 1 --tp 1 --layers 8 --steps 10",
    "benchmarks/scripts/vit.py --layers 12 --hidden 768 --heads 12 --batch 128 --steps 20",
    "benchmarks/scripts/bert.py --layers 24 --hidden 1024 --heads 16 --ffn 4096 --batch 16 --steps 16",
    "benchmarks/scripts/tinyllama.py --layers 8 --hidden 4096 --heads 32 --kv-heads 8 --ffn 11008 --batch 2 --steps 14",
    "benchmarks/scripts/seq2seq.py --layers 6 --batch 64 --steps 14",
    "benchmarks/scripts/moe_loop.py --layers 4 --hidden 2048 --heads 16 --ffn 4096 --batch 4 --steps 14",
    "benchmarks/scripts/moe_grouped.py --layers 4 --hidden 4096 --heads 32 --ffn 1024 --batch 4 --steps 14",
    "benchmarks/scripts/resnet50.py --batch 64 --steps 24",
    "benchmarks/scripts/compiled_gpt.py --layers 6 --hidden 2048 --heads 16 --batch 8 --steps 16",
    "benchmarks/scripts/small_eager.py --layers 24 --hidden 512",
    "benchmarks/scripts/fsdp2_llama.py --layers 8 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --batch 1",
)
PRINTED = re.compile(r"step_ms=([\d.]+)|step \d+: ([\d.]+) ms")
LIMIT_S = 120.0
WATCH = (
    "import sys, runpy, atexit, torch; sys.argv = sys.argv[1:]; "
    "atexit.register(lambda: print('peak_bytes=%d' % torch.cuda.max_memory_allocated(), flush=True)); "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""Runs a script and prints the peak of its memory when it ends."""


def measure(case: str) -> dict[str, object]:
    """Runs a script and returns its printed step time, the median of the last half, and its peak."""
    defaults = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    begin = time.monotonic()
    try:
        process = subprocess.run(
            [sys.executable, "-c", WATCH, *case.split()],
            cwd=ROOT,
            env={**os.environ, **defaults},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"case": case, "error": f"more than {LIMIT_S:.0f} s"}
    steps = [float(first or second) for first, second in PRINTED.findall(process.stdout)]
    late = sorted(steps[len(steps) // 2 :])
    peak = re.search(r"peak_bytes=(\d+)", process.stdout)
    return {
        "case": case,
        "step_ms": late[len(late) // 2] if late else None,
        "printed": steps,
        "peak_bytes": int(peak[1]) if peak else None,
        "rc": process.returncode,
        "stderr": process.stderr[-600:] if process.returncode else "",
        "run_s": round(time.monotonic() - begin, 1),
    }


def main() -> None:
    """Measures all cases, or those that contain a text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    with (options.out / "more_scripts.jsonl").open("a") as out:
        for case in CASES:
            if options.only in case:
                row = measure(case)
                print(json.dumps(row)[:300], flush=True)
                out.write(json.dumps(row) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
