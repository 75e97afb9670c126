"""Reads the constants of the efficiency model, with the source of each.

`data/fitted.yaml` is written by benchmarks/fit_kernels.py; `data/efficiency.yaml` is set by hand. A GPU that is in
neither has the constants of the nearest GPU of its architecture: efficiencies are shares of a datasheet's peak and
rate, so they carry over. Only the frequency that its power sustains is computed again.

A hypothetical GPU, which changes some figures of a preset, has the constants of that preset. So every changed figure
acts: a higher peak is reached to the same share, and another power sustains another frequency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from foretrace.hardware.cluster import Gpu
from foretrace.hardware.presets import gpu as gpu_preset
from foretrace.hardware.presets import names

DATA: Final = Path(__file__).parent / "data"

STATIC_POWER: Final = 0.2
"""The share of a module's power that its clock does not change: memory, leakage, links. A judgement; NVML shows an idle
H200 with clocks held at 0.15 to 0.2 of its limit."""


@dataclass(frozen=True, slots=True)
class GemmFit:
    """A GEMM's constants for one dtype: what the best tile reaches of the peak; what loading a tile's panels costs, in
    rows of it; the K a tile's start and end are worth; how far a part wave costs a whole one (0 to 1); what operands
    reach of the memory's rate; and what any launch takes."""

    efficiency: float
    panel: float
    depth: float
    quantised: float
    memory_share: float
    fixed_s: float


@dataclass(frozen=True, slots=True)
class GroupedFit:
    """The constants of grouped products of one layout: the efficiency that groups of many rows reach, relative to the
    same products as a batch in `tn`; and the rows that the start and end of each group are worth."""

    efficiency: float = 1.0
    rows: float = 0.0


@dataclass(frozen=True, slots=True)
class AttentionFit:
    """Fused attention's constants for one backend, direction and head size: the share of the peak that long sequences
    reach, and the keys per query that the start and end of a block are worth."""

    efficiency: float
    keys: float


@dataclass(frozen=True, slots=True)
class StreamFit:
    """A memory-bound kernel's constants: the most it reaches of the memory's rate; bytes that an SM moves in a clock
    when instructions hold it up; what a launch takes; and how often each byte read counts."""

    share: float
    bytes_per_clock: float
    fixed_s: float
    reads: float = 1.0


@dataclass(frozen=True, slots=True)
class Efficiency:
    """All constants of one GPU; `like` is the GPU they were found on."""

    like: str
    gemm: Mapping[str, GemmFit]
    layout: Mapping[str, float]
    """Efficiency of the tensor cores by layout, relative to `tn`."""
    grouped: Mapping[str, GroupedFit]
    """Grouped products, by layout."""
    sustained: Mapping[str, float]
    """Frequencies under the power of a training run, relative to a short measurement, by dtype of the products."""
    attention_sustained: Mapping[str, float]
    """The same of fused attention, by backend."""
    attention: Mapping[tuple[str, bool, int], AttentionFit]
    """By backend, whether backward, and head size."""
    attention_tail: tuple[float, float]
    """Blocks' times for which the last blocks of attention keep the others waiting: forward, backward."""
    streams: Mapping[str, Mapping[int, StreamFit]]
    """Memory-bound kernels, by name and length of a row (0: any)."""
    extra_launch_s: float
    """The least time of each further launch of a stream."""
    clock_hz: float
    """The frequency of the SMs in a long run."""
    most_clock_hz: float
    """The highest frequency: in a short measurement, or where little draws power."""


def efficiency(gpu: Gpu) -> Efficiency:
    """The constants for a GPU: its own, those of the preset that it changes, or those of the nearest of its
    architecture."""
    base = base_of(gpu)
    if base is not None:
        return _at_power(efficiency(base), gpu, base)
    document = _document()
    like = nearest(gpu)
    module = gpu_preset(like)
    fitted: dict[str, Any] = document["gpus"][like]
    family: dict[str, Any] = document["families"][fitted["family"]]
    clock = 1.0 if gpu.name == like else _clock(gpu, module)
    share = clock * (1.0 if gpu.name == like else _peak_share(gpu, module))
    return Efficiency(
        like=like,
        gemm={dtype: GemmFit(*map(float, values)) for dtype, values in fitted["gemm"].items()},
        layout={name: float(value) for name, value in family["layout"].items()},
        grouped={name: GroupedFit(*map(float, values)) for name, values in family["grouped"].items()},
        sustained=_shares(fitted["sustained"], share),
        attention_sustained=_shares(fitted["attention_sustained"], share),
        attention=dict(_attention(_merged(family["attention"], fitted.get("attention", {})))),
        attention_tail=(float(family["tail"][0]), float(family["tail"][1])),
        streams={name: _streams(rows) for name, rows in document["streams"].items()},
        extra_launch_s=float(document["extra_launch_s"]),
        clock_hz=1e6 * float(fitted["clock_mhz"]) * min(clock, 1 / float(fitted["sustained"]["bf16"])),
        most_clock_hz=1e6 * float(family["most_clock_mhz"]),
    )


def base_of(gpu: Gpu) -> Gpu | None:
    """Returns the preset that a GPU is a variation of: the one that it changes, else the most similar preset of its
    architecture. None for presets, and for architectures without one."""
    known = names("gpu")
    if gpu.base:
        return gpu_preset(gpu.base)
    if gpu.name in known and gpu_preset(gpu.name) == gpu:
        return None
    siblings = [preset for preset in map(gpu_preset, known) if preset.architecture == gpu.architecture]
    return _most_similar(gpu, siblings) if siblings else None


def _at_power(constants: Efficiency, gpu: Gpu, base: Gpu) -> Efficiency:
    """Returns the constants of `base` at the frequencies that the power of `gpu` sustains."""
    if not (gpu.power_w and base.power_w) or gpu.power_w == base.power_w:
        return constants
    factor = power_clock(gpu.power_w, 1, base.power_w, 1)
    clock_hz = min(constants.clock_hz * factor, max(constants.most_clock_hz, constants.clock_hz))
    return replace(
        constants,
        sustained=_shares(constants.sustained, factor),
        attention_sustained=_shares(constants.attention_sustained, factor),
        clock_hz=clock_hz,
    )


def _shares(values: Mapping[str, Any], by: float) -> dict[str, float]:
    """Shares of a peak, none above it."""
    return {name: min(1.0, float(value) * by) for name, value in values.items()}


def _streams(rows: Mapping[int, list[float]]) -> dict[int, StreamFit]:
    return {int(length): StreamFit(*map(float, values)) for length, values in rows.items()}


def nearest(gpu: Gpu) -> str:
    """The GPU with constants that this one is, or is most like: same architecture, then peak and memory rate; for an
    architecture that is not there, the one that efficiency.yaml names under `otherwise`."""
    document = _document()
    if gpu.name in document["gpus"]:
        return gpu.name
    siblings = [
        candidate for candidate in map(gpu_preset, document["gpus"]) if candidate.architecture == gpu.architecture
    ]
    return _most_similar(gpu, siblings).name if siblings else str(document["otherwise"])


def _most_similar(gpu: Gpu, candidates: list[Gpu]) -> Gpu:
    """Returns the candidate whose peak and memory rate are nearest to those of a GPU."""

    def distance(candidate: Gpu) -> float:
        peak = gpu.peak_flops.get("bf16", 0.0) or candidate.peak_flops["bf16"]
        return abs(peak / candidate.peak_flops["bf16"] - 1) + abs(
            gpu.memory_bytes_per_s / candidate.memory_bytes_per_s - 1
        )

    return min(candidates, key=distance)


def _clock(gpu: Gpu, measured: Gpu) -> float:
    """The clock that this module's power sustains, as a share of the measured module's.

    Dynamic power goes as the cube of the clock, since the voltage follows it (P = C V² f), on as many SMs as there are.
    """
    if not (gpu.power_w and gpu.compute_units) or gpu.architecture != measured.architecture:
        return 1.0
    return power_clock(gpu.power_w, gpu.compute_units, measured.power_w, measured.compute_units)


def power_clock(power_w: float, units: int, of_power_w: float, of_units: int) -> float:
    """Returns the frequency that `power_w` sustains on `units` SMs, relative to `of_power_w` on `of_units` SMs of the
    same chip."""
    static = STATIC_POWER * of_power_w
    dynamic = max(power_w - static, 0.05 * of_power_w) / units / ((of_power_w - static) / of_units)
    return float(dynamic ** (1 / 3))


def _peak_share(gpu: Gpu, measured: Gpu) -> float:
    """The measured module's peak per SM as a share of this one's: a datasheet that gives a module a lower peak has
    lowered the clock already."""
    peak = gpu.peak_flops.get("bf16", 0.0)
    if not (gpu.power_w and peak and gpu.compute_units) or gpu.architecture != measured.architecture:
        return 1.0
    return (measured.peak_flops["bf16"] / measured.compute_units) / (peak / gpu.compute_units)


def _attention(rows: Mapping[str, Mapping[str, Mapping[int, list[float]]]]) -> Any:
    for backend, ways in rows.items():
        for way, sizes in ways.items():
            for head_dim, (reached, keys) in sizes.items():
                yield (backend, way == "backward", int(head_dim)), AttentionFit(float(reached), float(keys))


@cache
def _document() -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = (DATA / name for name in ("fitted.yaml", "efficiency.yaml"))
    fitted, by_hand = (yaml.load(path.read_text(encoding="utf-8"), Loader=loader) for path in files)
    return _merged(fitted, by_hand)


def _merged(first: dict[Any, Any], second: dict[Any, Any]) -> dict[Any, Any]:
    """Both, table by table; where both have a value, the second's."""
    merged = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
