"""A calibration of measured files: kernels of traces, tables and profiles, collectives, and what the host takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.calibrate.collectives import recorded_collectives
from foretrace.calibrate.fit import family_fits
from foretrace.calibrate.gpu.machine import preset_of
from foretrace.calibrate.host import host_fit, profiled_host
from foretrace.calibrate.inputs import KNOWN, input_kind
from foretrace.calibrate.recorded import RecordedKernels, as_measured, recorded_kernels
from foretrace.calibrate.sustained import at_clocks
from foretrace.calibrate.tables import tabled_kernels
from foretrace.cost.calibration import Calibration, HostFit, InputKind, MadeOf
from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.kernels.clocks import Mix, products_factor
from foretrace.cost.kernels.kernel_profile import KernelProfile, read_profile
from foretrace.cost.kernels.model import EfficiencyModel
from foretrace.cost.kernels.parameters import efficiency
from foretrace.cost.network.nccl_tests import Measurements, read_measurements
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.hardware.cluster import Cluster, Gpu
from foretrace.hardware.presets import gpu as gpu_preset
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.program.kernels import Kernel

_SOFTWARE: Final = ("torch", "cuda", "cudnn", "driver", "cuda_driver_version", "cuda_runtime_version", "nccl_version")


@dataclass(slots=True)
class _Found:
    """What files have given so far: burst and sustained seconds of each kernel, by file."""

    gpu: Gpu
    device: str = ""
    software: dict[str, str] = field(default_factory=dict)
    made_of: list[MadeOf] = field(default_factory=list)
    times: dict[Kernel, list[tuple[float, float]]] = field(default_factory=dict)
    collectives: list[Measurements] = field(default_factory=list)
    hosts: list[HostFit] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)

    def take(self, kernels: Sequence[Kernel], burst_s: Sequence[float], sustained_s: Sequence[float]) -> None:
        """Adds times of kernels."""
        for kernel, alone, amid in zip(kernels, burst_s, sustained_s, strict=True):
            self.times.setdefault(as_measured(kernel), []).append((alone, amid))


@dataclass(frozen=True, slots=True)
class Made:
    """A calibration about to be written, the files of whole steps that it still is to be fitted to, and notes."""

    calibration: Calibration
    steps: tuple[Path, ...]
    notes: tuple[Diagnostic, ...]


def calibration_of_files(
    paths: Sequence[str | Path], output: str | Path, gpu: str | None = None, cluster: Cluster | None = None
) -> Made:
    """A calibration of these files, whatever they are; `gpu` names the GPU where they do not say it, `cluster` also on
    how many nodes groups of recorded collectives sit."""
    if not paths:
        raise InputError("nothing-to-do", "there is nothing to calibrate with", hint=KNOWN)
    kinds: list[tuple[Path, InputKind]] = [(Path(path), input_kind(path)) for path in paths]
    traces = {path: _traces(path) for path, kind in kinds if kind == "trace"}
    found = _Found(_gpu(gpu, cluster, [one for its in traces.values() for one in its], kinds))
    model = EfficiencyModel(found.gpu, efficiency(found.gpu))
    node_gpus = None if cluster is None else cluster.node.gpus
    for path, kind in kinds:
        if kind == "trace":
            _take_traces(found, path, traces[path], model, node_gpus)
        elif kind == "table":
            _take_table(found, path, model)
        elif kind == "kernel profile":
            _take_profile(found, path)
        elif kind == "collectives":
            measured = read_measurements(path)
            found.collectives.append(measured)
            found.notes += measured.diagnostics
            found.made_of.append(MadeOf(path.name, "collectives", collectives=len(measured.rows)))
    steps = tuple(path for path, kind in kinds if kind == "steps")
    return Made(_calibration(found, str(output), model), steps, tuple(found.notes))


def _traces(path: Path) -> list[RankProfile]:
    from foretrace.inputs.profiler_trace.format import read_traces

    return read_traces([path])


def _gpu(
    named: str | None, cluster: Cluster | None, traces: Sequence[RankProfile], kinds: Sequence[tuple[Path, InputKind]]
) -> Gpu:
    """The GPU that all files are of: as they say, or as it is named; an error where these differ."""
    said: dict[str, str] = {}
    for trace in traces:
        for device in trace.devices[:1]:
            said[preset_of(device.name)] = trace.path
    for path, kind in kinds:
        if kind == "kernel profile":
            facts = read_profile(path).facts
            said[facts.get("preset") or preset_of(facts.get("gpu", ""))] = str(path)
    asked = gpu_preset(named).name if named is not None else cluster.gpu.name if cluster is not None else None
    names = [*said, *([asked] if asked is not None and asked not in said else [])]
    if len(names) > 1:
        where = said[next(iter(said))]
        raise InputError(
            "other-gpu",
            f"measurements of {names[0]} and of {names[1]}",
            where=where,
            hint="calibrate one GPU at a time",
        )
    if not names:
        raise InputError(
            "missing-argument",
            "the files do not say which GPU they are of",
            hint="say --gpu, for example --gpu h200-sxm",
        )
    try:
        return gpu_preset(names[0])
    except InputError:
        hint = "say --gpu with the most similar one; see foretrace list gpus"
        raise InputError(
            "unknown-name", f'GPU "{names[0]}" is not known', where=said.get(names[0]), hint=hint
        ) from None


def _take_traces(
    found: _Found, path: Path, traces: Sequence[RankProfile], model: EfficiencyModel, node_gpus: int | None
) -> None:
    measured = recorded_collectives(traces, node_gpus)
    for trace in traces:
        found.device = found.device or next((device.name for device in trace.devices), "")
        found.software |= {name: trace.facts[name] for name in _SOFTWARE if name in trace.facts}
        host = host_fit(trace)
        found.hosts += [host] if host is not None else []
        try:
            recorded = recorded_kernels(trace)
        except InputError as error:
            if measured is None:
                raise
            found.notes.append(
                Diagnostic("warning", error.code, f"{error.message}: its collectives alone are used", trace.path)
            )
            continue
        slower = _take_recorded(found, recorded, model)
        made = MadeOf(
            Path(trace.path).name,
            "trace",
            kernels=len(recorded.seconds),
            step_s=recorded.step_s,
            busy=recorded.busy,
            slower=slower,
            products=recorded.products,
            flops=recorded.flops,
        )
        found.made_of.append(made)
        if recorded.unknown > 0.02:
            text = f"{recorded.unknown:.0%} of its device time is of ops that no kernel of ours stands for; left out"
            found.notes.append(Diagnostic("note", "not-modelled", text, trace.path))
    if measured is not None:
        found.collectives.append(measured)
        found.notes += measured.diagnostics
        found.made_of.append(MadeOf(path.name, "collectives", collectives=len(measured.rows)))


def _take_recorded(found: _Found, recorded: RecordedKernels, model: EfficiencyModel) -> float:
    """Adds recorded kernels as prices are kept; returns how much the clock had slowed products down."""
    kernels = tuple(recorded.seconds)
    seconds = np.array([recorded.seconds[kernel] for kernel in kernels])
    mix = Mix(dict(recorded.calls), recorded.busy)
    factor = products_factor(found.gpu, mix, kernel_pricer(found.gpu, prices="model"))
    by_power = max(factor / model.constants.sustained["bf16"], 1.0)
    clocks = at_clocks(kernels, seconds, model, by_power)
    found.take(kernels, clocks.burst_s.tolist(), clocks.sustained_s.tolist())
    return clocks.slower


def _take_table(found: _Found, path: Path, model: EfficiencyModel) -> None:
    from foretrace.inputs.profiler_table.format import read_tables

    recorded = tabled_kernels(read_tables(path))
    slower = _take_recorded(found, recorded, model)
    found.notes.append(Diagnostic("note", "assumed", "a table has no dtypes: tensors are taken to be bf16", str(path)))
    found.made_of.append(MadeOf(path.name, "table", kernels=len(recorded.seconds), slower=slower))


def _take_profile(found: _Found, path: Path) -> None:
    profile = read_profile(path)
    found.take(profile.kernels, profile.burst_s.tolist(), profile.sustained_s.tolist())
    found.device = found.device or profile.facts.get("gpu", "")
    found.software |= {name: profile.facts[name] for name in _SOFTWARE if name in profile.facts}
    host = profiled_host(profile.facts)
    found.hosts += [host] if host is not None else []
    found.made_of.append(MadeOf(path.name, "kernel profile", kernels=len(profile.kernels)))


def _calibration(found: _Found, output: str, model: EfficiencyModel) -> Calibration:
    made = Calibration(
        output, found.gpu.name, found.device, dict(found.software), tuple(found.made_of), host=_host(found.hosts)
    )
    if found.times:
        kernels = tuple(found.times)
        burst, sustained = (
            np.array([median(time_[at] for time_ in found.times[kernel]) for kernel in kernels]) for at in (0, 1)
        )
        facts = {"gpu": found.device or found.gpu.title, "preset": found.gpu.name, "method": "foretrace calibrate"}
        unknown = np.zeros(len(kernels))
        profile = KernelProfile(facts, kernels, burst, sustained, unknown, unknown)
        made = replace(made, kernels=profile, families=family_fits(kernels, sustained, model.seconds(kernels)))
    if found.collectives:
        rows = [row for collective in found.collectives for row in collective.rows]
        made = replace(made, collectives=measurements_of(rows, (), output))
    return made


def _host(hosts: Sequence[HostFit]) -> HostFit | None:
    """Of several traces, the mean by launches of those of the first one's style."""
    same = [host for host in hosts if host.style == hosts[0].style]
    launches = sum(one.launches for one in same)
    if not launches:
        return None
    return replace(same[0], launch_s=sum(one.launch_s * one.launches for one in same) / launches, launches=launches)
