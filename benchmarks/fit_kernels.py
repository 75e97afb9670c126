"""Fits the constants of the efficiency model of kernels and prints how far it is off.

    python benchmarks/fit_kernels.py --write --kernels kernels.csv [--errors]

writes src/foretrace/cost/kernels/data/fitted.yaml from three sources, never from a training step's time:
NVIDIA's GEMM tables (the extra `[silicon]`), the shipped kernel profile of the H200, and published measurements by
shape (`--kernels`: a CSV with columns gpu, op, shape, tflops). The same inputs give the same file, to the byte.
`--errors` prints what is left: of the model by GPU and kind, and of the profile's interpolation with points left out.
`--attention` prints the grid search over flash-attention's published rows, from which efficiency.yaml was set by hand.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from foretrace.cost.kernels.attention import AttentionWork, attention_s, computed_flops, computed_pairs, side_bytes
from foretrace.cost.kernels.corrections import MeasuredCorrections, family
from foretrace.cost.kernels.gemm import DeviceRates, Products, gemm_s
from foretrace.cost.kernels.kernel_profile import KernelProfile, read_profile
from foretrace.cost.kernels.model import ATTENTION_MEMORY_SHARE, EfficiencyModel, peak_flops
from foretrace.cost.kernels.parameters import DATA, GemmFit, GroupedFit, efficiency, power_clock
from foretrace.cost.kernels.silicon_kernels import gemm_table
from foretrace.cost.kernels.streams import row_length, stream_kind
from foretrace.cost.silicon import SYSTEMS
from foretrace.hardware import presets
from foretrace.hardware.cluster import Gpu
from foretrace.models.flops import attention_pairs
from foretrace.program.kernels import Attention, Gemm, GroupedGemm, Kernel, Stream

START = (0.85, 8.0, 200.0, 0.6, 0.85, 4e-6)
LOW = (0.3, 0.0, 0.0, 0.0, 0.4, 1e-6)
HIGH = (1.0, 60.0, 2000.0, 1.0, 0.95, 12e-6)
ROUNDS = 400
SAMPLE = 1200
TABLES = ("a100-80g-sxm", "b200", "gb200", "b300", "gb300")
"""GPUs whose bf16 constants come from NVIDIA's tables; Hopper's come from our profile."""
PROFILE = "h200-sxm"
HOPPER = ("h100-sxm", "h200-sxm")
BURST_CLOCK = 0.8
"""The sustained clock over that in a burst: 1582 of 1980 MHz; kernels that wait for it alone show 1 / 1.25."""
LARGE_BYTES = 64e6
TOP_SHARE = 0.93
"""The most of the memory's rate that any stream measured reaches."""
BLACKWELL_ATTENTION = 0.85
"""What B200's published causal attention of 131,072 tokens (30 ms and more) reaches of that of 32,768."""
MAX_KEYS = 1000
HOT_TOKENS = 32_768
"""Sequences from here on run for tens of milliseconds a call, repeated: their rates are those of a hot GPU."""
CUDNN_SHAPES = {"mla": (128, 128, 192, 128, 0), "gqa": (64, 8, 128, 128, 0), "window": (128, 128, 64, 64, 128)}
"""Heads, heads of keys, head sizes of queries and values, and window of the rows below."""
CUDNN_ROWS = {
    "gb200": {
        ("mla", 2048): (0.321, 1.056),
        ("mla", 4096): (0.977, 3.383),
        ("mla", 8192): (3.470, 11.98),
        ("mla", 32768): (50.46, 212.5),
        ("gqa", 2048): (0.125, 0.389),
        ("gqa", 4096): (0.391, 1.198),
        ("gqa", 8192): (1.397, 4.127),
        ("gqa", 32768): (21.69, 71.76),
        ("window", 4096): (0.210, 0.465),
        ("window", 8192): (0.414, 0.911),
    },
    "gb300": {
        ("mla", 2048): (0.268, 0.977),
        ("mla", 4096): (0.864, 3.127),
        ("mla", 8192): (3.013, 11.07),
        ("mla", 32768): (44.19, 177.5),
        ("gqa", 2048): (0.100, 0.356),
        ("gqa", 4096): (0.323, 1.101),
        ("gqa", 8192): (1.185, 3.832),
        ("gqa", 32768): (18.01, 59.02),
        ("window", 4096): (0.202, 0.442),
        ("window", 8192): (0.397, 0.862),
    },
}
"""Milliseconds of cuDNN's attention, forward and backward, by shape and tokens: bf16, causal, batch 2, cuDNN 9.22.
NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results (April 2026, commit 3929da2)."""
CUDNN_BATCH = 2
EARLY_CUDNN = "cudnn_2025"
"""The backend of B200's published rows, whose cuDNN was of 2025.

NVIDIA's own results with 9.10.2 are 1,434 and 1,201 TFLOP/s for 32,768 tokens on a B200 (cudnn-frontend 1.13,
benchmark/sdpa_benchmark_training), with 9.18 1,686 and 1,441 on a GB200.
"""
HEADER = """
# Constants of the efficiency model of kernels that measurements give: written by benchmarks/fit_kernels.py; not to be
# edited. What each list means is said in efficiency.yaml. Comments give the error left over the rows it was fitted on.
# gemm: bf16 of A100 and Blackwell from the GEMM tables of aiconfigurator-core (TensorRT-LLM); Hopper's from our H200
#   profile.
# sustained: Hopper's from the same profile (burst over sustained, of kernels of 0.05 to 1 ms). B200: what published
#   products of more than 1 ms, run back to back, reach of the tables' rates; the GB200 from that by its power (the cube
#   root) and SMs; the GB300 from the GB200 by cuDNN's long rows of attention on both; the B300 from the GB300 by power.
#   At most their own tables' rates. Narrower dtypes of Blackwell, of which nobody has published a long run: the H200's
#   share of fp8, by the same speeds.
# grouped, attention: Hopper's from our profile (cudnn, flash2); A100's from published rows by shape; Blackwell's from
#   cuDNN's own published timings on GB200 (B200) and GB300 (B300), and those of a B200 with cuDNN of 2025 (cudnn_2025).
# streams: from our profile: kernels that a lower clock slows down are bound by instructions, others by memory.
"""
MIN_LAUNCH_S = 2e-6
"""The profile's kernel_floor_us."""
HOT_S = 1e-2
"""From here on B200's attention, repeated, falls behind that of shorter ones."""
Row = tuple[Kernel, float]


def gemm_errors(
    values: np.ndarray, gpu: Gpu, kernels: Sequence[Kernel], seconds: np.ndarray, clock: float
) -> np.ndarray:
    """The logarithm of modelled over measured time, at a share `clock` of the peak's."""
    products = Products(*np.array([(g.m, g.n, g.k, g.batch, g.moved_bytes) for g in kernels], dtype=float).T)  # type: ignore[union-attr]
    peak = clock * peak_flops(gpu, kernels[0].dtype)  # type: ignore[union-attr]
    own = GemmFit(*values.tolist())
    device = DeviceRates(peak, gpu.memory_bytes_per_s, gpu.compute_units)
    return np.asarray(np.log(gemm_s(products, own, device) / seconds))


def fit_gemm(gpu: Gpu, kernels: Sequence[Kernel], seconds: np.ndarray, clock: float) -> tuple[np.ndarray, np.ndarray]:
    """The constants that make the mean absolute error of the logarithm least, and the errors over all rows."""
    random = np.random.default_rng(0)
    sample = random.choice(len(kernels), min(SAMPLE, len(kernels)), replace=False)
    some = [kernels[i] for i in sample]
    best, low, high = np.array(START), np.array(LOW), np.array(HIGH)
    least, step = np.abs(gemm_errors(best, gpu, some, seconds[sample], clock)).mean(), 0.15
    for turn in range(ROUNDS):
        change = (random.random(6) < 0.4) * random.normal(0, step, 6) * (high - low)
        trial = np.clip(best + change, low, high)
        error = np.abs(gemm_errors(trial, gpu, some, seconds[sample], clock)).mean()
        if error < least:
            best, least = trial, error
        step = max(0.01, step * (0.99 if turn % 2 else 1.0))
    best = np.array([float(f"{value:.3g}") for value in best])
    return best, gemm_errors(best, gpu, kernels, seconds, clock)


def gemm_line(dtype: str, fit: tuple[np.ndarray, np.ndarray]) -> str:
    values, errors = fit
    off = np.abs(errors)
    return (
        f"      {dtype}: [{', '.join(f'{value:.3g}' for value in values)}] # {len(off)} rows,"
        f" median {100 * np.median(off):.1f} %, p90 {100 * np.quantile(off, 0.9):.1f} %"
    )


def from_tables(name: str) -> tuple[np.ndarray, np.ndarray]:
    """bf16 on a GPU that NVIDIA's tables have: 256 rows and columns and 1 GFLOP at least."""
    kernels, seconds = gemm_table(SYSTEMS[name], "bf16")
    chosen = [i for i, kernel in enumerate(kernels) if kernel.flops > 1e9 and kernel.m >= 256 and kernel.n >= 256]
    return fit_gemm(presets.gpu(name), [kernels[i] for i in chosen], seconds[chosen], 1.0)


def of_profile(profile: KernelProfile, keep: Callable[[Kernel], bool]) -> tuple[list[Kernel], np.ndarray, np.ndarray]:
    """Kernels of a profile with their burst and sustained seconds."""
    rows = [i for i, kernel in enumerate(profile.kernels) if keep(kernel) and profile.sustained_s[i] > 0]
    return [profile.kernels[i] for i in rows], profile.burst_s[rows], profile.sustained_s[rows]


def sustained_share(burst: np.ndarray, sustained: np.ndarray) -> float:
    """Of kernels long enough to be timed well and short enough that their own burst does not heat the GPU."""
    good = (sustained > 5e-5) & (sustained < 1e-3)
    return float(np.median(burst[good] / sustained[good]))


def fit_streams(profile: KernelProfile) -> list[str]:
    """Per name and row length: [share of the memory rate, bytes per SM and clock, fixed seconds, weight of reads]."""
    gpu = presets.gpu(PROFILE)
    clocks = gpu.compute_units * float(np.median(profile.clock_mhz)) * 1e6
    groups: dict[str, dict[int, list[int]]] = {}
    for i, kernel in enumerate(profile.kernels):
        if isinstance(kernel, Stream):
            groups.setdefault(stream_kind(kernel), {}).setdefault(row_length(kernel), []).append(i)
    lines = ["streams:"]
    for name, lengths in sorted(groups.items()):
        cells, errors = [], []
        for length, rows in sorted(lengths.items()):
            values, off = _fit_stream(profile, rows, gpu.memory_bytes_per_s, clocks, name == "embedding_backward")
            cells.append(f"{length}: [{', '.join(f'{value:.3g}' for value in values)}]")
            errors += off
        lines.append(f"  {name}: {{{', '.join(cells)}}} # {len(errors)} sizes, median {100 * np.median(errors):.0f} %")
    return lines


def _fit_stream(
    profile: KernelProfile, rows: list[int], rate: float, clocks: float, apart: bool
) -> tuple[list[float], list[float]]:
    """A line through seconds over bytes (least squares of relative errors), its slope split into memory's part and the
    SMs' by how much longer the kernel takes when the clock is lowered."""
    own = [profile.kernels[i] for i in rows]
    # The model adds further launches that a kernel states.
    more_s = efficiency(presets.gpu(PROFILE)).extra_launch_s * np.array([kernel.launches - 1 for kernel in own])  # type: ignore[union-attr]
    seconds, burst = profile.sustained_s[rows] - more_s, profile.burst_s[rows] - more_s
    reads = np.array([float(kernel.read) for kernel in own])  # type: ignore[union-attr]
    moved = np.array([kernel.moved_bytes for kernel in own])
    columns = [np.ones(len(own)), moved - reads, reads] if apart else [np.ones(len(own)), moved]
    fixed, *slopes = _nonnegative(np.stack(columns, axis=1) / seconds[:, None])
    fixed = max(fixed, MIN_LAUNCH_S)
    slope, weight = slopes[0], slopes[1] / slopes[0] if apart else 1.0
    large = moved >= min(LARGE_BYTES, moved.max())
    ratio = float(np.clip(np.median(seconds[large] / burst[large]), 1.0, 1 / BURST_CLOCK)) if slope else 1.0
    issue = (1 - ratio**-4) / (1 - BURST_CLOCK**4)
    share = min(1 / (rate * slope * max(1 - issue, 1e-6) ** 0.25), TOP_SHARE) if slope else TOP_SHARE
    per_clock = min(1 / (clocks * slope * max(issue, 1e-6) ** 0.25), 50.0) if slope else 50.0
    at = weight * reads + moved - reads if apart else moved
    guess = fixed + at * ((1 / (rate * share)) ** 4 + (1 / (clocks * per_clock)) ** 4) ** 0.25
    return [share, per_clock, fixed, *([weight] if apart else [])], np.abs(np.log(guess / seconds)).tolist()


def _nonnegative(columns: np.ndarray) -> list[float]:
    """Least squares to ones with no coefficient below zero: columns that would have one are left out."""
    use = list(range(columns.shape[1]))
    while True:
        solution = np.linalg.lstsq(columns[:, use], np.ones(len(columns)), rcond=None)[0]
        if (solution >= 0).all():
            break
        use.pop(int(np.argmin(solution)))
    return [float(solution[use.index(i)]) if i in use else 0.0 for i in range(columns.shape[1])]


def modelled_attention(
    gpu: Gpu, rows: Sequence[Row], clock: np.ndarray, tails: tuple[float, float], fit: tuple[float, float]
) -> np.ndarray:
    """Returns the modelled seconds of kernels of one way, at the share `clock` of a burst's frequency."""
    own = [kernel for kernel, _ in rows if isinstance(kernel, Attention)]
    facts = [
        (
            computed_flops(k),
            computed_pairs(k),
            k.q,
            k.batch * k.heads,
            k.moved_bytes,
            side_bytes(k),
            k.launches,
        )
        for k in own
    ]
    flops, pairs, q, sequences, moved, side, launches = np.array(facts, dtype=float).T
    memory, tail = ATTENTION_MEMORY_SHARE * gpu.memory_bytes_per_s, np.full(len(own), tails[own[0].backward])
    share, keys = (np.full(len(own), value) for value in fit)
    work = AttentionWork(flops, pairs, q, sequences, moved, share, keys, tail, side, launches)
    return attention_s(work, DeviceRates(clock * peak_flops(gpu, "bf16"), memory, gpu.compute_units))


def fit_attention(
    gpu: Gpu, rows: Sequence[Row], clock: np.ndarray, tails: tuple[float, float], known: float | None = None
) -> tuple[float, float, float]:
    """Share of the peak and keys per query for kernels of one backend, way and head size, and the mean error; `clock`
    is what that of each row was of a burst's, and `known` the share where it is not to be found."""
    seconds = np.array([kernel_s for _, kernel_s in rows])
    best = (0.0, 0.0, np.inf)
    for share in np.arange(0.1, 1.0, 0.005) if known is None else (known,):
        for keys in range(0, MAX_KEYS, 20):
            guess = modelled_attention(gpu, rows, clock, tails, (float(share), float(keys)))
            error = float(np.abs(np.log(guess / seconds)).mean())
            if error < best[2] - 1e-9:
                best = (round(float(share), 3), float(keys), error)
    return best


def attention_lines(
    gpu: Gpu, rows: Sequence[Row], clocks: dict[str, float], tails: tuple[float, float], hot_s: float = 0.0
) -> list[str]:
    """The fitted constants of each backend, way and head size; rows from `hot_s` on were measured at the share `clocks`
    of the burst's clock, shorter ones at that."""
    groups: dict[tuple[str, bool, int], list[Row]] = {}
    for kernel, seconds in rows:
        assert isinstance(kernel, Attention)
        key = (kernel.backend, kernel.backward, (kernel.head_dim + kernel.v_dim) // 2)
        groups.setdefault(key, []).append((kernel, seconds))
    lines = []
    for backend in dict.fromkeys(key[0] for key in sorted(groups)):
        lines.append(f"      {backend}:")
        for backward in (False, True):
            lines.append(f"        {'backward' if backward else 'forward'}:")
            for key in sorted(groups):
                if key[:2] == (backend, backward):
                    clock = np.array([clocks[backend] if kernel_s > hot_s else 1.0 for _, kernel_s in groups[key]])
                    share, keys, error = fit_attention(gpu, groups[key], clock, tails)
                    note = f"# {len(groups[key])} rows, mean {100 * error:.0f} %"
                    lines.append(f"          {key[2]}: [{share:.3g}, {keys:.0f}] {note}")
    return lines


def published(path: Path) -> list[tuple[str, Kernel, float]]:
    """Rows of the CSV as kernels: the GPU's preset, the kernel, its seconds."""
    gpus = {"A100-80GB PCIe": "a100-80g-pcie", "B200 SXM": "b200", "H800 SXM5": "h800-sxm"}
    rows: list[tuple[str, Kernel, float]] = []
    for row in csv.DictReader(path.open(encoding="utf-8")):
        shape = dict(re.findall(r"([\w/]+)=(\w+)", row["shape"]))
        kernel: Kernel | None = None
        flops = 0.0
        if row["op"] == "matmul" and "layout" in shape:
            m, n, k = (int(shape[name]) for name in "mnk")
            out, added = shape["out_dtype"], shape["accumulate"] == "True"
            kernel = Gemm(m, n, k, "bf16", shape["layout"].lower(), int(shape["b"]), out, added)
        elif row["op"] == "group_matmul":
            kernel = _grouped(shape)
        elif row["op"] in ("sdp_fwd", "sdp_bwd"):
            kernel = _attention(shape, row["op"] == "sdp_bwd", EARLY_CUDNN if row["gpu"] == "B200 SXM" else "cudnn")
            flops = 2 * kernel.flops  # the file counts all pairs of a causal mask: values of the A100 exceed the peak
        elif row["op"] == "fp8_gemm":
            kernel = Gemm(int(shape["M"]), int(shape["N"]), int(shape["K"]), "fp8_block")
        elif row["op"] == "fp8_group_gemm" and "M/group" in shape:
            groups, m = int(shape["groups"]), int(shape["M/group"])
            kernel = GroupedGemm(groups, groups * m, int(shape["N"]), int(shape["K"]), "fp8_block")
        if kernel is not None and row["gpu"] in gpus:
            rows.append((gpus[row["gpu"]], kernel, (flops or kernel.flops) / (float(row["tflops"]) * 1e12)))
    return rows


def _attention(shape: dict[str, str], backward: bool, backend: str) -> Attention:
    names = ("batch", "head_num", "kv_head_num", "seq_len", "seq_len", "qk_head_dim", "v_head_dim")
    b, h, kv, q, k, d, v = (int(shape[name]) for name in names)
    return Attention(b, h, kv, q, k, d, v, q * q // 2, backward, backend)


def _grouped(shape: dict[str, str]) -> GroupedGemm:
    """Transformer Engine's grouped GEMM, one launch a group; backward's rows give the shape of their forward."""
    groups, m, n, k = (int(shape[name]) for name in ("ng", "M", "N", "K"))
    if shape["stage"] == "fwd":
        return GroupedGemm(groups, groups * m, n, k, layout="tn", separate=True)
    if shape["stage"] == "bwd_grad_act":
        return GroupedGemm(groups, groups * m, k, n, layout="nn", separate=True)
    out, added = shape["main_grad_dtype"], shape["accumulate"] == "True"
    return GroupedGemm(groups, n, k, groups * m, layout="nt", out=out, accumulate=added, separate=True)


def shares_by_layout(model: EfficiencyModel, rows: Iterable[Row]) -> dict[str, float]:
    """What the rate of products of each layout must be multiplied by for the median of modelled over measured to be 1;
    `model` prices all layouts alike."""
    own = list(rows)
    modelled = model.seconds([kernel for kernel, _ in own])
    ratios: dict[str, list[float]] = {}
    for (kernel, seconds), guess in zip(own, modelled.tolist(), strict=True):
        ratios.setdefault(kernel.layout, []).append(guess / seconds)  # type: ignore[union-attr]
    return {name: float(np.median(ratios[name])) for name in ("tn", "nn", "nt")}


def grouped_line(model: EfficiencyModel, rows: Sequence[Row]) -> str:
    """Grouped products in bf16: by layout, the efficiency and the rows of a group with the least mean error.

    The efficiency is at most 1: each group runs the kernels that a single product runs.
    """
    cells, errors = [], []
    for layout in ("tn", "nn", "nt"):
        own = [
            row for row in rows if getattr(row[0], "layout", "") == layout and getattr(row[0], "dtype", "") == "bf16"
        ]
        kernels, measured_s = [kernel for kernel, _ in own], np.array([seconds for _, seconds in own])
        best = (np.inf, 1.0, 0)
        for share in np.arange(0.7, 1.005, 0.01).round(2).tolist():
            for lost in range(0, 161, 8):
                tried = replace(model.constants, grouped={layout: GroupedFit(share, lost)})
                off = np.log(EfficiencyModel(model.gpu, tried).seconds(kernels) / measured_s)
                best = min(best, (float(np.abs(off).mean()), share, lost))
        cells.append(f"{layout}: [{best[1]:.2f}, {best[2]}]")
        errors.append(f"{100 * best[0]:.0f}")
    return f"    grouped: {{{', '.join(cells)}}} # mean errors {', '.join(errors)} %"


def unbiased(name: str, gemm: np.ndarray, sustained: float) -> EfficiencyModel:
    """A model with the given constants of bf16 products, in which all layouts reach the same."""
    gpu, equal = presets.gpu(name), {"tn": 1.0, "nn": 1.0, "nt": 1.0}
    own = replace(efficiency(gpu), gemm={"bf16": GemmFit(*gemm.tolist())}, layout=equal, grouped={})
    return EfficiencyModel(gpu, replace(own, sustained={"bf16": sustained}))


def mapping(values: dict[str, float]) -> str:
    return "{" + ", ".join(f"{key}: {value:.3f}" for key, value in values.items()) + "}"


def is_plain(kernel: Kernel, dtype: str) -> bool:
    return isinstance(kernel, Gemm) and kernel.dtype == dtype and kernel.batch == 1 and min(kernel.m, kernel.n) >= 128


def hopper_lines(profile: KernelProfile) -> tuple[list[str], list[str]]:
    """Constants of the H200, which are its siblings' too, from our profile: of the GPUs, and of the family."""
    gpu = presets.gpu(PROFILE)
    kernels, burst, seconds = of_profile(profile, lambda kernel: is_plain(kernel, "bf16"))
    clock = sustained_share(burst, seconds)
    gemm = fit_gemm(gpu, kernels, seconds, clock)
    eights = of_profile(profile, lambda kernel: is_plain(kernel, "fp8"))
    clock8 = sustained_share(*eights[1:])
    fits = [gemm_line("bf16", gemm), gemm_line("fp8", fit_gemm(gpu, eights[0], eights[2], clock8))]
    attention, sums = {}, []
    for backend in ("cudnn", "flash2"):
        own, its_burst, its = of_profile(profile, lambda kernel: getattr(kernel, "backend", "") == backend)  # noqa: B023
        attention[backend] = sustained_share(its_burst, its)
        sums += list(zip(own, its.tolist(), strict=True))
    clocks = {**attention, "flash3": attention["cudnn"], "flash1": attention["flash2"]}
    lines = []
    for name in HOPPER:
        lines += [f"  {name}:", f"    clock_mhz: {np.median(profile.clock_mhz):.0f}", "    gemm:", *fits]
        lines.append(f"    sustained: {mapping({'bf16': clock, 'fp8': clock8, 'fp8_block': clock8})}")
        lines.append(f"    attention_sustained: {mapping(clocks)}")
    model = unbiased(PROFILE, gemm[0], clock)
    layout = shares_by_layout(model, zip(kernels, seconds.tolist(), strict=True))
    grouped, _, grouped_s = of_profile(profile, lambda kernel: isinstance(kernel, GroupedGemm))
    family = ["  hopper:", f"    layout: {mapping({key: share / layout['tn'] for key, share in layout.items()})}"]
    family += [grouped_line(model, list(zip(grouped, grouped_s.tolist(), strict=True))), "    attention:"]
    tails = efficiency(gpu).attention_tail
    own_lines = attention_lines(gpu, sums, clocks, tails)
    # FA3's backward was not measured by anyone we could cite; cuDNN's uses the same instructions.
    cudnn = own_lines[: own_lines.index("      flash2:")]
    own_lines += ["      flash3:", *cudnn[cudnn.index("        backward:") :]]
    return lines, family + own_lines


def published_lines(rows: Sequence[tuple[str, Kernel, float]], profile: KernelProfile) -> tuple[list[str], list[str]]:
    """Constants of Ampere and Blackwell: bf16 from NVIDIA's tables; clocks, groups, attention from published rows."""
    lines: list[str] = []
    eights = of_profile(profile, lambda kernel: is_plain(kernel, "fp8"))
    fits = {name: from_tables(name) for name in TABLES}
    own = [(kernel, seconds) for gpu, kernel, seconds in rows if gpu == "b200"]
    long = [(kernel, s) for kernel, s in own if isinstance(kernel, Gemm) and s > 1e-3 and kernel.layout != "nt"]
    burst = unbiased("b200", fits["b200"][0], 1.0)
    reached = float(np.median(burst.seconds([kernel for kernel, _ in long]) / np.array([s for _, s in long])))
    cube = [Gemm(8192, 8192, 8192)]
    hot = cube[0].flops / float(burst.seconds(cube)[0]) * reached
    base, speeds = presets.gpu("b200"), hot_speeds()
    for name, fit in fits.items():
        lines += [f"  {name}:", "    gemm:", gemm_line("bf16", fit)]
        if name != "a100-80g-sxm":
            gpu, speed = presets.gpu(name), speeds[name]
            cool = cube[0].flops / float(unbiased(name, fit[0], 1.0).seconds(cube)[0])
            shares = {"bf16": hot * speed / cool}
            for dtype in ("fp8", "fp8_block", "nvfp4"):
                peaks = peak_flops(gpu, dtype) / peak_flops(base, dtype)
                shares[dtype] = sustained_share(*eights[1:]) * speed / peaks
            lines.append(f"    sustained: {mapping({key: min(1.0, share) for key, share in shares.items()})}")
            lines += attention_of(name)
    families: list[str] = []
    for its, name, like in (("ampere", "a100-80g-pcie", "a100-80g-sxm"), ("blackwell", "b200", "b200")):
        gpu = presets.gpu(name)
        mine = [(kernel, seconds) for whose, kernel, seconds in rows if whose == name]
        clock = reached if name == "b200" else efficiency(gpu).sustained["bf16"]
        groups = [row for row in mine if isinstance(row[0], GroupedGemm)]
        families += [f"  {its}:", grouped_line(unbiased(name, fits[like][0], clock), groups)]
        if name == "b200":
            attention = [row for row in mine if isinstance(row[0], Attention)]
            clocks, tails = {EARLY_CUDNN: BLACKWELL_ATTENTION}, efficiency(gpu).attention_tail
            families += ["    attention:", *attention_lines(gpu, attention, clocks, tails, HOT_S)]
    return lines, families


def hot_speeds() -> dict[str, float]:
    """Returns how fast hot products of Blackwell run, relative to the B200's.

    By power and SMs between modules of one chip; the GB300's relative to the GB200's by what cuDNN's long rows of
    attention show, which the power alone (its cube root) would put at 1.06.
    """

    def by_power(name: str, other: str) -> float:
        gpu, its = presets.gpu(name), presets.gpu(other)
        clock = power_clock(gpu.power_w, gpu.compute_units, its.power_w, its.compute_units)
        return clock * gpu.compute_units / its.compute_units

    long = [key for key in CUDNN_ROWS["gb300"] if key[1] >= HOT_TOKENS]
    ratios = [
        slow / fast
        for key in long
        for slow, fast in zip(CUDNN_ROWS["gb200"][key], CUDNN_ROWS["gb300"][key], strict=True)
    ]
    speeds = {"b200": 1.0, "gb200": by_power("gb200", "b200")}
    speeds["gb300"] = speeds["gb200"] * float(np.exp(np.log(ratios).mean()))
    speeds["b300"] = speeds["gb300"] * by_power("b300", "gb300")
    return speeds


def attention_of(name: str) -> list[str]:
    """Returns the lines of a Blackwell module's own attention: its share when hot, and its constants.

    The B200 has the GB200's constants and the B300 the GB300's, of the same chips; hot, they differ by power.
    """
    measured = name if name in CUDNN_ROWS else f"g{name}"
    gpu, tails = presets.gpu(measured), efficiency(presets.gpu(measured)).attention_tail
    hopper = efficiency(presets.gpu(PROFILE)).attention
    fits: dict[tuple[bool, int], tuple[float, float, float]] = {}
    heat, weight = 0.0, 0.0
    for shape in ("gqa", "mla", "window"):
        for backward in (False, True):
            rows = {
                tokens: (_cudnn_kernel(shape, tokens, backward), 1e-3 * times[backward])
                for (what, tokens), times in CUDNN_ROWS[measured].items()
                if what == shape
            }
            short = [row for tokens, row in rows.items() if tokens < HOT_TOKENS]
            head = sum(CUDNN_SHAPES[shape][2:4]) // 2
            # Rows of one window cannot tell a share from keys: the share is that of head size 128, less as on Hopper.
            like = [hopper["cudnn", backward, size].efficiency for size in (64, 128)]
            share = fits[backward, 128][0] * like[0] / like[1] if shape == "window" else None
            fits[backward, head] = fit_attention(gpu, short, np.ones(len(short)), tails, share)
            for row in (row for tokens, row in rows.items() if tokens >= HOT_TOKENS):
                alone = modelled_attention(gpu, [row], np.ones(1), tails, fits[backward, head][:2])
                heat, weight = heat + float(alone[0]), weight + row[1]
    its, base = presets.gpu(name), presets.gpu("b200")
    heat = heat / weight * power_clock(its.power_w, its.compute_units, gpu.power_w, gpu.compute_units)
    early = BLACKWELL_ATTENTION * power_clock(its.power_w, its.compute_units, base.power_w, base.compute_units)
    shares = {"cudnn": min(1.0, heat), EARLY_CUDNN: min(1.0, early), "flash2": min(1.0, heat)}
    lines = [f"    attention_sustained: {mapping(shares)}", "    attention:", "      cudnn:"]
    for backward in (False, True):
        lines.append(f"        {'backward' if backward else 'forward'}:")
        for (way, head), (share, keys, error) in sorted(fits.items()):
            if way == backward:
                lines.append(f"          {head}: [{share:.3g}, {keys:.0f}] # mean error {100 * error:.0f} %")
    return lines


def _cudnn_kernel(shape: str, tokens: int, backward: bool) -> Attention:
    heads, kv_heads, head_dim, v_dim, window = CUDNN_SHAPES[shape]
    pairs = round(attention_pairs(tokens, window or None))
    return Attention(
        CUDNN_BATCH, heads, kv_heads, tokens, tokens, head_dim, v_dim, pairs, backward, "cudnn", window=window
    )


def write(rows: Sequence[tuple[str, Kernel, float]]) -> None:
    """Writes fitted.yaml."""
    profile = read_profile(DATA / f"{PROFILE}.profile")
    hopper, others = hopper_lines(profile), published_lines(rows, profile)
    lines = [*HEADER.strip().splitlines(), "gpus:", *others[0], *hopper[0], "families:", *others[1], *hopper[1]]
    (DATA / "fitted.yaml").write_text("\n".join([*lines, *fit_streams(profile)]) + "\n", encoding="utf-8")


def show_errors(rows: list[tuple[str, Kernel, float]]) -> None:
    """How far the model is off, by GPU, kind and layout, name or backend; products run back to back apart by length."""
    kinds: dict[tuple[str, ...], list[float]] = {}
    for name in dict.fromkeys(gpu for gpu, *_ in rows):
        own = [(kernel, seconds) for gpu, kernel, seconds in rows if gpu == name]
        gpu = presets.gpu(name)
        model = EfficiencyModel(gpu, efficiency(gpu)).seconds([kernel for kernel, _ in own])
        for (kernel, seconds), predicted in zip(own, model.tolist(), strict=True):
            what = getattr(kernel, "layout", "") or getattr(kernel, "name", "") or getattr(kernel, "backend", "")
            way = "backward" if getattr(kernel, "backward", False) else ""
            if isinstance(kernel, Gemm):
                way = "< 0.1 ms" if seconds < 1e-4 else "< 1 ms" if seconds < 1e-3 else "longer"
            elif isinstance(kernel, GroupedGemm):
                what, way = "", "a launch each" if kernel.separate else "one launch"
            key = (name, type(kernel).__name__, getattr(kernel, "dtype", ""), what, way)
            kinds.setdefault(key, []).append(float(np.log(seconds / predicted)))
    for key, errors in sorted(kinds.items()):
        off = np.array(errors)
        print(
            f"{' '.join(key):50} {len(off):5} rows: measured/model median {np.exp(np.median(off)):.3f}, 80 % within"
            f" {np.exp(np.quantile(off, 0.1)):.3f} to {np.exp(np.quantile(off, 0.9)):.3f}, median error"
            f" {100 * np.median(np.abs(off)):.1f} %, p90 {100 * np.quantile(np.abs(off), 0.9):.1f} %"
        )


def show_left_out(profile: KernelProfile) -> None:
    """Errors of the profile's prices of its own kernels, each priced from the others alone."""
    gpu = presets.gpu(PROFILE)
    modelled = EfficiencyModel(gpu, efficiency(gpu)).seconds(profile.kernels)
    families: dict[tuple[object, ...], list[int]] = {}
    for i, kernel in enumerate(profile.kernels):
        families.setdefault(family(kernel), []).append(i)
    kinds: dict[str, list[float]] = {}
    for name, rows in families.items():
        for i in rows if len(rows) > 3 else []:
            rest = [j for j in rows if j != i]
            measured = MeasuredCorrections(
                [profile.kernels[j] for j in rest], profile.sustained_s[rest], modelled[rest]
            )
            factor = measured.correction([profile.kernels[i]]).factor[0]
            off = abs(float(np.log(modelled[i] * factor / profile.sustained_s[i])))
            kinds.setdefault(" ".join(map(str, name[: 2 if name[0] == "gemm" else 1])), []).append(off)
    for kind, errors in sorted(kinds.items()):
        median, most = 100 * np.median(errors), 100 * np.quantile(errors, 0.9)
        print(f"left out: {kind:20} {len(errors):5} rows, median {median:.1f} %, p90 {most:.1f} %")


def show_attention(path: Path) -> None:
    """Fits share of the peak and keys to flash-attention's published rows: those of forward alone, and, for FA1 and FA2
    on the A100, those of both ways, with forward's share 1 / 0.85 of backward's (SimuMax's rows of the A100)."""
    groups: dict[tuple[str, str, int], list[tuple[dict[str, int], float]]] = {}
    for row in csv.DictReader(path.open(encoding="utf-8")):
        if row["op"].startswith("attn") and "standard" not in row["op"]:
            shape = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", row["shape"])}
            own = groups.setdefault((row["gpu"], row["op"], shape["head_dim"]), [])
            own.append((shape, float(row["tflops"]) * 1e12))
    for (name, op, head), rows in groups.items():
        gpu = presets.gpu("a100-80g-sxm" if name.startswith("A100") else "h100-sxm")
        both = "fwd+bwd" in op
        tries = [(share, keys) for share in np.arange(0.2, 0.9, 0.005) for keys in range(0, 420, 30)]
        # Training's attention is causal; where the rows have such, they alone decide.
        rows = [(shape, rate) for shape, rate in rows if shape["causal"]] or rows
        errors = [np.mean([abs(_both_error(gpu, shape, rate, *pair, both)) for shape, rate in rows]) for pair in tries]
        best = int(np.argmin(errors))
        print(f"{gpu.name} {op} {head}: share {tries[best][0]:.3f}, keys {tries[best][1]}, error {errors[best]:.3f}")


def _both_error(gpu: Gpu, shape: dict[str, int], rate: float, share: float, keys: float, both: bool) -> float:
    """The logarithm of modelled over measured time of forward, or of both ways."""
    q, heads, head = shape["seq"], shape["heads"], shape["head_dim"]
    tails, peak = efficiency(gpu).attention_tail, np.array([peak_flops(gpu, "bf16")])
    pairs = q * q // (2 if shape["causal"] else 1)
    total_s = work = 0.0
    for backward in (True, False) if both else (False,):
        kernel = Attention(shape["batch"], heads, heads, q, q, head, head, pairs, backward, "flash2")
        reached = share if backward or not both else share / 0.85
        facts = (kernel.flops, pairs, q, kernel.batch * heads, kernel.moved_bytes, reached, keys, tails[backward])
        columns = [np.array([float(value)]) for value in (*facts, side_bytes(kernel), kernel.launches)]
        memory = ATTENTION_MEMORY_SHARE * gpu.memory_bytes_per_s
        total_s += float(attention_s(AttentionWork(*columns), DeviceRates(peak, memory, gpu.compute_units))[0])
        work += kernel.flops
    return float(np.log(total_s * rate / work))


def main() -> None:
    """Fits and prints what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="fit all and write fitted.yaml; needs --kernels")
    parser.add_argument("--kernels", type=Path, help="CSV of published measurements by shape")
    parser.add_argument("--errors", action="store_true", help="print errors of the model and of the profile")
    parser.add_argument("--attention", action="store_true", help="print the grid search over --kernels' attention")
    chosen = parser.parse_args()
    if (chosen.write or chosen.attention) and not chosen.kernels:
        parser.error("--kernels is missing")
    rows = published(chosen.kernels) if chosen.kernels else []
    if chosen.write:
        write(rows)
    if chosen.attention:
        show_attention(chosen.kernels)
    if chosen.errors:
        profile = read_profile(DATA / f"{PROFILE}.profile")
        own = zip(profile.kernels, profile.sustained_s.tolist(), strict=True)
        show_errors([*rows, *((PROFILE, kernel, seconds) for kernel, seconds in own)])
        show_left_out(profile)


if __name__ == "__main__":
    main()
