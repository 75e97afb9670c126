"""Puts kernels of experts that benchmarks/gpu/experts measured into the shipped kernel profile of the H200.

    python benchmarks/gpu/add_to_profile.py benchmarks/gpu/experts_h200.jsonl

Rows of an earlier call are replaced. A kernel that the profile has already keeps its time. Afterwards
`benchmarks/fit_kernels.py --write` fits the model to them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

PROFILE = Path(__file__).parents[2] / "src/foretrace/cost/kernels/data/h200-sxm.profile"
MARK = "## kernels of experts, measured on another H200 (benchmarks/gpu/experts):"
CHOSEN = {
    "grouped bf16": ("mm on 4 streams", "addmm on 4 streams", "grouped_mm"),
    "grouped fp8": ("scaled_mm on 4 streams", "scaled_grouped_mm"),
    "permutations": ("triton", "triton sort", "triton weighted"),
    "quantisation": ("triton",),
    "activations": ("inductor", "eager", "eager, probabilities in bf16", "eager, probabilities in fp32"),
    "attention": ("sdpa",),
    "router": ("triton",),
}
"""Parts of the measurement, and whose kernels of each are taken: those that frameworks run, or the nearest."""
QUANTIZERS = ("quantize_amax_fused", "quantize_cast_both_fused", "quantize_block_both_fused")
"""Casts that are taken. Transformer Engine's own that writes scales of 32 elements has been published."""


def kernel_of(row: dict[str, Any]) -> str | None:
    """Returns the kernel of a row under the name that layers give it; None where it is not taken."""
    kernel: str = row["kernel"]
    if row["how"] not in CHOSEN.get(row["part"], ()) or "backend=flash2" in kernel:
        return None
    if row["part"] == "quantisation" and not any(f"name={name} " in kernel for name in QUANTIZERS):
        return None
    if row["part"] == "activations":
        # Inductor's code for rows that vary divides by widths that are no power of two, which takes longer.
        width = row["shape"][1]
        if kernel.startswith("stream name=weighted_swiglu_backward") and width & (width - 1):
            kernel = kernel.replace("weighted_swiglu_backward", "weighted_swiglu_backward_uneven")
        if row["how"].endswith("fp32"):
            kernel = kernel.replace("expert_bias", "expert_bias_wide")
    if row["part"] == "permutations" and row["how"] == "triton" and "name=unpermute_fused" in kernel:
        return None  # the weighted one is as fast, and what runs
    words = [word for word in kernel.split() if not (row["part"] in ("permutations", "router") and "rows=" in word)]
    return " ".join(words)


def main() -> int:
    """Adds the kernels of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("measured", type=Path, help="the JSON lines that benchmarks/gpu/experts wrote")
    options = parser.parse_args()
    lines = PROFILE.read_text(encoding="utf-8").splitlines()
    kept = lines[: lines.index(MARK)] if MARK in lines else lines
    known = {line.partition("\t")[0] for line in kept}
    added = []
    for text in options.measured.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        kernel = kernel_of(row) if row["row"] == "kernel" else None
        if kernel is not None and kernel not in known:
            known.add(kernel)
            seconds = f"{row['burst_s']:.5g}\t{row['sustained_s']:.5g}"
            added.append(f"{kernel}\t{seconds}\t{row['clock_mhz']}\t{row['power_w']}")
    PROFILE.write_text("\n".join([*kept, MARK, *added]) + "\n", encoding="utf-8")
    print(f"{len(added)} kernels added")
    return 0


if __name__ == "__main__":
    sys.exit(main())
