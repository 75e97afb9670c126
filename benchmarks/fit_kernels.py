"""Finds the constants of the efficiency model (src/foretrace/cost/compute/data/efficiency.yaml) and prints its errors.

    python benchmarks/fit_kernels.py [--gemm] [--kernels kernels.csv] [--profile h200-sxm.profile]

GEMM constants are fitted on NVIDIA's tables (the extra `[silicon]`); attention and layouts on published measurements
by shape (`--kernels`, a CSV); memory-bound kernels and clocks on a kernel profile of ours (`--profile`). Never on a
training step's time. What it prints is meant to be copied into the file, by hand.
"""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path

import numpy as np

from foretrace.cost.compute.attention import attention_s
from foretrace.cost.compute.gemm import gemm_s
from foretrace.cost.compute.model import EfficiencyModel, peak_flops
from foretrace.cost.compute.parameters import GemmFit, efficiency
from foretrace.cost.compute.silicon import SYSTEMS, gemm_table
from foretrace.hardware import presets
from foretrace.hardware.cluster import Gpu
from foretrace.program.kernels import Attention, Gemm, GroupedGemm, Kernel, Stream

START = (0.85, 8.0, 200.0, 0.6, 0.85, 4e-6)
LOW = (0.3, 0.0, 0.0, 0.0, 0.4, 1e-6)
HIGH = (1.0, 60.0, 2000.0, 1.0, 0.95, 12e-6)
ROUNDS = 400
SAMPLE = 1200
QUANTISED_BYTES = {"fp8": 5.0, "fp8_block": 3.0, "nvfp4": 3.0}
"""Bytes that the tables' operators move for each element of the activations before they multiply: two passes (largest
value, then read and write) or one."""


def fit_gemm(name: str, dtype: str) -> tuple[GemmFit, np.ndarray]:
    """The constants that make the mean absolute error of the logarithm least, and the errors over all rows."""
    gpu = presets.gpu(name)
    kernels, seconds = gemm_table(SYSTEMS[name], dtype)
    flops = np.array([one.flops for one in kernels])
    if dtype in QUANTISED_BYTES:
        moved = QUANTISED_BYTES[dtype] * np.array([float(one.m * one.k) for one in kernels])
        seconds = np.maximum(seconds - 3e-6 - moved / (0.85 * gpu.memory_bytes_per_s), 0.3 * seconds)
    chosen = np.flatnonzero((flops > 1e9) & np.array([one.m >= 256 and one.n >= 256 for one in kernels]))
    random = np.random.default_rng(0)
    sample = random.choice(chosen, min(SAMPLE, len(chosen)), replace=False)

    def errors(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        m, n, k, b, moved = np.array(
            [(g.m, g.n, g.k, g.batch, g.moved_bytes) for g in (kernels[i] for i in rows)], dtype=float
        ).T
        fit = GemmFit(*values.tolist())
        rate = (gpu.memory_bytes_per_s, gpu.compute_units)
        return np.log(gemm_s(m, n, k, b, moved, fit, peak_flops(gpu, dtype), *rate) / seconds[rows])

    best, low, high = np.array(START), np.array(LOW), np.array(HIGH)
    least, step = np.abs(errors(best, sample)).mean(), 0.15
    for turn in range(ROUNDS):
        change = (random.random(6) < 0.4) * random.normal(0, step, 6) * (high - low)
        trial = np.clip(best + change, low, high)
        error = np.abs(errors(trial, sample)).mean()
        if error < least:
            best, least = trial, error
        step = max(0.01, step * (0.99 if turn % 2 else 1.0))
    return GemmFit(*best.tolist()), errors(best, chosen)


def show_gemm() -> None:
    """Fits every GPU and dtype that has a table."""
    for name in dict.fromkeys(SYSTEMS):
        if name in ("a800-80g-sxm", "h800-sxm"):
            continue
        for dtype in ("bf16", "fp8", "fp8_block", "nvfp4"):
            if not gemm_table(SYSTEMS[name], dtype)[0]:
                continue
            fit, errors = fit_gemm(name, dtype)
            values = (fit.efficiency, fit.panel, fit.depth, fit.quantised, fit.memory_share, fit.fixed_s)
            print(
                f"{name:14} {dtype}: [{', '.join(f'{one:.3g}' for one in values)}]  # {len(errors)} rows,"
                f" median {100 * np.median(np.abs(errors)):.1f} %, p90 {100 * np.quantile(np.abs(errors), 0.9):.1f} %",
                flush=True,
            )


def published(path: Path) -> list[tuple[str, Kernel, float]]:
    """GEMMs of the CSV as kernels: the GPU's preset, the kernel, its seconds."""
    gpus = {"A100-80GB PCIe": "a100-80g-pcie", "B200 SXM": "b200", "H800 SXM5": "h800-sxm"}
    rows: list[tuple[str, Kernel, float]] = []
    for row in csv.DictReader(path.open(encoding="utf-8")):
        shape = dict(re.findall(r"([\w/]+)=(\w+)", row["shape"]))
        kernel: Kernel | None = None
        if row["op"] == "matmul" and "layout" in shape:
            m, n, k = (int(shape[name]) for name in "mnk")
            out, added = shape["out_dtype"], shape["accumulate"] == "True"
            kernel = Gemm(m, n, k, "bf16", shape["layout"].lower(), int(shape["b"]), out, added)
        elif row["op"] == "group_matmul":
            kernel = _grouped(shape)
        elif row["op"] == "fp8_gemm":
            kernel = Gemm(int(shape["M"]), int(shape["N"]), int(shape["K"]), "fp8_block")
        elif row["op"] == "fp8_group_gemm" and "M/group" in shape:
            groups, m = int(shape["groups"]), int(shape["M/group"])
            kernel = GroupedGemm(groups, groups * m, int(shape["N"]), int(shape["K"]), "fp8_block")
        if kernel is not None and row["gpu"] in gpus:
            rows.append((gpus[row["gpu"]], kernel, kernel.flops / (float(row["tflops"]) * 1e12)))
    return rows


def _grouped(shape: dict[str, str]) -> GroupedGemm:
    """Transformer Engine's grouped GEMM: one launch a group."""
    groups, m, n, k = (int(shape[name]) for name in ("ng", "M", "N", "K"))
    if shape["stage"] == "fwd":
        return GroupedGemm(groups, groups * m, n, k, layout="tn", separate=True)
    if shape["stage"] == "bwd_grad_act":
        return GroupedGemm(groups, groups * m, n, k, layout="nn", separate=True)
    return GroupedGemm(groups, m, n, groups * k, layout="nt", out="fp32", accumulate=True, separate=True)


def show_attention(path: Path) -> None:
    """Fits share of the peak and keys to flash-attention's published rows: those of forward alone, and, for FA1 and FA2
    on the A100, those of both ways, with forward's share 1 / 0.85 of backward's (SimuMax's rows of the A100)."""
    groups: dict[tuple[str, str, int], list[tuple[dict[str, int], float]]] = {}
    for row in csv.DictReader(path.open(encoding="utf-8")):
        if row["op"].startswith("attn") and "standard" not in row["op"]:
            shape = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", row["shape"])}
            groups.setdefault((row["gpu"], row["op"], shape["head_dim"]), []).append(
                (shape, float(row["tflops"]) * 1e12)
            )
    for (name, op, head), rows in groups.items():
        gpu = presets.gpu("a100-80g-sxm" if name.startswith("A100") else "h100-sxm")
        both = "fwd+bwd" in op
        tries = [(share, keys) for share in np.arange(0.2, 0.9, 0.005) for keys in range(0, 420, 30)]
        # Training's attention is causal; where the rows have such, they alone decide.
        rows = [(one, rate) for one, rate in rows if one["causal"]] or rows
        errors = [np.mean([abs(_attention_error(gpu, one, rate, *pair, both)) for one, rate in rows]) for pair in tries]
        best = int(np.argmin(errors))
        print(f"{gpu.name} {op} {head}: share {tries[best][0]:.3f}, keys {tries[best][1]}, error {errors[best]:.3f}")


def _attention_error(gpu: Gpu, shape: dict[str, int], rate: float, share: float, keys: float, both: bool) -> float:
    """The logarithm of modelled over measured time; backward has 2.5 times the products."""
    q, sequences, head = shape["seq"], shape["batch"] * shape["heads"], shape["head_dim"]
    pairs = q * q / (2 if shape["causal"] else 1)
    flops, moved, tails = 4.0 * sequences * pairs * head, 8.0 * sequences * q * head, efficiency(gpu).attention_tail
    ways = [(2.5, 2.0, share, tails[1]), (1.0, 1.0, share / 0.85, tails[0])] if both else [(1.0, 1.0, share, tails[0])]
    taken = 0.0
    for work, ends, reached, tail in ways:
        columns = [
            np.array([float(one)]) for one in (work * flops, pairs, q, sequences, ends * moved, reached, keys, tail)
        ]
        peak = np.array([peak_flops(gpu, "bf16")])
        taken += float(attention_s(*columns, peak, 0.88 * gpu.memory_bytes_per_s, gpu.compute_units)[0])
    return float(np.log(taken * rate / (flops * (3.5 if both else 1.0))))


def show_errors(rows: list[tuple[str, Kernel, float]], sustained: bool) -> None:
    """How far the model is off, by GPU, kind and layout or name."""
    kinds: dict[tuple[str, ...], list[float]] = {}
    for name in dict.fromkeys(gpu for gpu, *_ in rows):
        own = [(kernel, seconds) for gpu, kernel, seconds in rows if gpu == name]
        gpu = presets.gpu(name)
        model = EfficiencyModel(gpu, efficiency(gpu)).seconds([kernel for kernel, _ in own], sustained)
        for (kernel, seconds), predicted in zip(own, model.tolist(), strict=True):
            what = getattr(kernel, "layout", "") or getattr(kernel, "name", "") or getattr(kernel, "backend", "")
            way = "backward" if getattr(kernel, "backward", False) else ""
            key = (name, type(kernel).__name__, getattr(kernel, "dtype", ""), what, way)
            kinds.setdefault(key, []).append(float(np.log(seconds / predicted)))
    for key, errors in sorted(kinds.items()):
        off = np.array(errors)
        print(
            f"{' '.join(key):50} {len(off):5} rows: measured/model median {np.exp(np.median(off)):.3f}, spread"
            f" {np.exp(np.quantile(off, 0.1)):.3f} to {np.exp(np.quantile(off, 0.9)):.3f}"
        )


def show_streams(path: Path) -> None:
    """What each memory-bound kernel of a profile reaches of the datasheet's rate, for moves of 64 MB and more."""
    from foretrace.formats.kernel_profile import read_profile

    profile = read_profile(path)
    gpu = presets.gpu(str(profile.facts.get("preset", path.name.split(".")[0])))
    shares: dict[str, list[float]] = {}
    for kernel, seconds in zip(profile.kernels, profile.sustained_s, strict=True):
        if isinstance(kernel, Stream) and kernel.moved_bytes >= 64e6 and np.isfinite(seconds):
            shares.setdefault(kernel.name, []).append(kernel.moved_bytes / seconds / gpu.memory_bytes_per_s)
    for name, values in sorted(shares.items()):
        print(f"  {name}: {np.median(values):.2f}  # {len(values)} sizes, {min(values):.2f} to {max(values):.2f}")
    ratios = profile.burst_s / profile.sustained_s
    for kind in (Gemm, GroupedGemm, Attention, Stream):
        large = [isinstance(one, kind) and one.moved_bytes >= 64e6 for one in profile.kernels]
        if any(large):
            print(f"sustained, {kind.__name__}: {np.nanmedian(ratios[large]):.3f} of the burst rate, {sum(large)} rows")
    show_errors([(gpu.name, k, float(s)) for k, s in zip(profile.kernels, profile.sustained_s, strict=True)], True)


def main() -> None:
    """Fits and prints what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gemm", action="store_true", help="fit GEMM constants on the silicon tables")
    parser.add_argument("--kernels", type=Path, help="CSV of published measurements: errors by layout")
    parser.add_argument("--profile", type=Path, help="a kernel profile: shares of memory-bound kernels, errors")
    chosen = parser.parse_args()
    if chosen.gemm:
        show_gemm()
    if chosen.kernels:
        show_attention(chosen.kernels)
        show_errors(published(chosen.kernels), sustained=True)
    if chosen.profile:
        show_streams(chosen.profile)


if __name__ == "__main__":
    main()
