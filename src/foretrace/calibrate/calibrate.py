"""Makes a calibration of measured files.

`make_calibration` is `foretrace calibrate` as a function. Traces, tables and kernel profiles give times of kernels and
launches, logs of nccl-tests and traces give collectives, and whole steps set a factor on all computation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import Diagnostic, InputError, quoted, shown
from foretrace.calibrate.fit import family_fits
from foretrace.calibrate.inputs import KNOWN, input_kind
from foretrace.calibrate.recorded import (
    RecordedKernels,
    as_measured,
    host_fit,
    profiled_host,
    recorded_collectives,
    recorded_kernels,
    tabled_kernels,
)
from foretrace.calibrate.sustained import at_clocks
from foretrace.calibrate.whole_steps import fit_steps
from foretrace.cost.calibration import Calibration, HostFit, InputKind, MadeOf, write_calibration
from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.kernels.clocks import Mix, products_factor
from foretrace.cost.kernels.kernel_profile import KernelProfile, read_profile
from foretrace.cost.kernels.model import EfficiencyModel
from foretrace.cost.kernels.parameters import efficiency
from foretrace.cost.kernels.plausible import plausible_kernels
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.identity import of_gpu, states_gpu
from foretrace.cost.network.nccl_tests.reader import read_measurements
from foretrace.cost.network.nccl_tests.records import Measurements
from foretrace.hardware.cluster import Cluster, Gpu
from foretrace.hardware.device_names import preset_of, sameness
from foretrace.hardware.presets import cluster as load_cluster
from foretrace.hardware.presets import gpu as gpu_preset
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.program.kernels import Kernel

_SOFTWARE: Final = ("torch", "cuda", "cudnn", "driver", "cuda_driver_version", "cuda_runtime_version", "nccl_version")


def make_calibration(
    paths: Sequence[str | Path],
    output: str | Path,
    *,
    gpu: str | None = None,
    cluster: Cluster | str | None = None,
    step_factor: bool | None = None,
) -> tuple[Calibration, tuple[Diagnostic, ...]]:
    """Makes a calibration of measured files, writes it, and returns it with what a user should know.

    Args:
        paths: Profiler traces and tables, kernel profiles, measured collectives, rows of whole steps.
        output: The file to write.
        gpu: The GPU, if the files do not name it.
        cluster: The cluster that was measured: its GPU, and how many of them a node has.
        step_factor: Whether whole steps set a factor on all computation; None: if there are at least two of them.
    """
    where = load_cluster(cluster) if isinstance(cluster, str) else cluster
    of_files = calibration_of_files(paths, output, gpu, where)
    calibration, notes = of_files.calibration, list(of_files.notes)
    if of_files.steps:
        calibration, step_notes = fit_steps(calibration, of_files.steps, step_factor)
        notes += step_notes
    elif step_factor:
        raise InputError(
            "missing-argument", "a factor for whole steps needs some", hint="add a CSV or JSON lines of measured steps"
        )
    if not (calibration.kernels or calibration.collectives or calibration.host or calibration.steps):
        raise InputError("nothing-to-do", "the files give nothing that a calibration can hold", where=str(paths[0]))
    write_calibration(calibration)
    return calibration, tuple(dict.fromkeys(notes))


@dataclass(slots=True)
class _Evidence:
    """Holds what files have given so far. `times` has burst and sustained seconds of each kernel, by file."""

    gpu: Gpu
    device: str = ""
    software: dict[str, str] = field(default_factory=dict)
    made_of: list[MadeOf] = field(default_factory=list)
    times: dict[Kernel, list[tuple[float, float]]] = field(default_factory=dict)
    collectives: list[Measurements] = field(default_factory=list)
    hosts: list[HostFit] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)

    def take(self, kernels: Sequence[Kernel], burst_s: Floats, sustained_s: Floats, where: str) -> None:
        """Adds times of kernels that this GPU can have taken."""
        modelled = EfficiencyModel(self.gpu, efficiency(self.gpu)).seconds(kernels)
        fastest = np.minimum(burst_s, sustained_s)
        usable, notes = plausible_kernels(self.gpu, kernels, fastest, modelled, where)
        self.notes += notes
        for i in np.flatnonzero(usable).tolist():
            times = self.times.setdefault(as_measured(kernels[i]), [])
            times.append((float(burst_s[i]), float(sustained_s[i])))


@dataclass(frozen=True, slots=True)
class FilesCalibration:
    """A calibration before it is fitted to whole steps and written, the files of whole steps, and notes."""

    calibration: Calibration
    steps: tuple[Path, ...]
    notes: tuple[Diagnostic, ...]


def calibration_of_files(
    paths: Sequence[str | Path], output: str | Path, gpu: str | None = None, cluster: Cluster | None = None
) -> FilesCalibration:
    """Returns a calibration of these files, whatever they are.

    Args:
        paths: The files.
        output: The file that it is to be written to.
        gpu: The GPU, if the files do not name it.
        cluster: Its GPU, and how many nodes the groups of recorded collectives are on.
    """
    if not paths:
        raise InputError("nothing-to-do", "there is nothing to calibrate with", hint=KNOWN)
    kinds: list[tuple[Path, InputKind]] = [(Path(path), input_kind(path)) for path in paths]
    traces = {path: _traces(path) for path, kind in kinds if kind == "trace"}
    profiles = {path: read_profile(path) for path, kind in kinds if kind == "kernel profile"}
    collectives = {path: read_measurements(path) for path, kind in kinds if kind == "collectives"}
    stated = _stated_gpus([trace for its in traces.values() for trace in its], profiles)
    if not stated and gpu is None and cluster is None:
        rows = [row for measured in collectives.values() for row in measured.rows if row.gpu]
        stated = {preset_of(row.gpu): row.where for row in rows}
    evidence = _Evidence(_gpu(gpu, cluster, stated))
    model = EfficiencyModel(evidence.gpu, efficiency(evidence.gpu))
    node_gpus = None if cluster is None else cluster.node.gpus
    for path, kind in kinds:
        if kind == "trace":
            _take_traces(evidence, path, traces[path], model, node_gpus)
        elif kind == "table":
            _take_table(evidence, path, model)
        elif kind == "kernel profile":
            _take_profile(evidence, path, profiles[path])
        elif kind == "collectives":
            measured = of_gpu(collectives[path], evidence.gpu.name)
            if not states_gpu(measured):
                text = f"not every row states its GPU: they are taken to be of {evidence.gpu.name}"
                evidence.notes.append(Diagnostic("note", "gpu-not-stated", text, str(path)))
            evidence.collectives.append(measured)
            evidence.notes += measured.diagnostics
            evidence.made_of.append(MadeOf(path.name, "collectives", collectives=len(measured.rows)))
    steps = tuple(path for path, kind in kinds if kind == "steps")
    return FilesCalibration(_calibration(evidence, str(output), model), steps, tuple(evidence.notes))


def _traces(path: Path) -> list[RankProfile]:
    from foretrace.inputs.profiler_trace.format import read_traces

    return read_traces([path])


def _stated_gpus(traces: Sequence[RankProfile], profiles: Mapping[Path, KernelProfile]) -> dict[str, str]:
    """Returns our names of the GPUs that files state, each with a file that states it."""
    path_of: dict[str, str] = {}
    for trace in traces:
        for device in trace.devices[:1]:
            path_of[preset_of(device.name)] = trace.path
    for path, profile in profiles.items():
        preset, device_name = profile.facts.get("preset", ""), profile.facts.get("gpu", "")
        if preset and sameness(device_name, preset) == "other":
            problem = f"the profile is of {shown(device_name)} and of {shown(preset)}"
            raise InputError("other-gpu", problem, where=str(path), hint="correct its header: gpu and preset")
        if preset or device_name:
            path_of[preset or preset_of(device_name)] = str(path)
    return path_of


def _gpu(named: str | None, cluster: Cluster | None, path_of: Mapping[str, str]) -> Gpu:
    """Returns the GPU of all files, as they state it or as it is named. Raises InputError where these differ."""
    asked = gpu_preset(named).name if named is not None else None
    if asked is None and cluster is not None:
        asked = cluster.gpu.base or cluster.gpu.name
    names = [*path_of, *([asked] if asked is not None and asked not in path_of else [])]
    if len(names) > 1:
        where = path_of[next(iter(path_of))]
        raise InputError(
            "other-gpu",
            f"measurements of {shown(names[0])} and of {shown(names[1])}",
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
            "unknown-name",
            f"GPU {quoted(names[0])} is not known",
            where=path_of.get(names[0]),
            hint=hint,
        ) from None


def _take_traces(
    evidence: _Evidence, path: Path, traces: Sequence[RankProfile], model: EfficiencyModel, node_gpus: int | None
) -> None:
    measured = recorded_collectives(traces, node_gpus)
    for trace in traces:
        evidence.device = evidence.device or next((device.name for device in trace.devices), "")
        evidence.software |= {name: trace.facts[name] for name in _SOFTWARE if name in trace.facts}
        host = host_fit(trace)
        evidence.hosts += [host] if host is not None else []
        try:
            recorded = recorded_kernels(trace)
        except InputError as error:
            if measured is None:
                raise
            evidence.notes.append(
                Diagnostic("warning", error.code, f"{error.message}: its collectives alone are used", trace.path)
            )
            continue
        slower = _take_recorded(evidence, recorded, model, trace.path)
        product = MadeOf(
            Path(trace.path).name,
            "trace",
            kernels=len(recorded.seconds),
            step_s=recorded.step_s,
            busy=recorded.busy,
            slower=slower,
            products=recorded.products,
            flops=recorded.flops,
        )
        evidence.made_of.append(product)
        if recorded.unknown > 0.02:
            text = f"{recorded.unknown:.0%} of its device time is of ops that no kernel of ours stands for; left out"
            evidence.notes.append(Diagnostic("note", "not-modelled", text, trace.path))
    if measured is not None:
        evidence.collectives.append(measured)
        evidence.notes += measured.diagnostics
        evidence.made_of.append(MadeOf(path.name, "collectives", collectives=len(measured.rows)))


def _take_recorded(evidence: _Evidence, recorded: RecordedKernels, model: EfficiencyModel, where: str) -> float:
    """Adds recorded kernels as prices are kept; returns how much the clock had slowed products down."""
    kernels = tuple(recorded.seconds)
    seconds = np.array([recorded.seconds[kernel] for kernel in kernels])
    mix = Mix(dict(recorded.calls), recorded.busy)
    factor = products_factor(evidence.gpu, mix, kernel_pricer(evidence.gpu, prices="model"))
    by_power = max(factor / model.constants.sustained["bf16"], 1.0)
    clocks = at_clocks(kernels, seconds, model, by_power)
    evidence.take(kernels, clocks.burst_s, clocks.sustained_s, where)
    return clocks.slower


def _take_table(evidence: _Evidence, path: Path, model: EfficiencyModel) -> None:
    from foretrace.inputs.profiler_table.format import read_tables

    recorded = tabled_kernels(read_tables(path))
    slower = _take_recorded(evidence, recorded, model, str(path))
    evidence.notes.append(
        Diagnostic("note", "assumed", "a table has no dtypes: tensors are taken to be bf16", str(path))
    )
    evidence.made_of.append(MadeOf(path.name, "table", kernels=len(recorded.seconds), slower=slower))


def _take_profile(evidence: _Evidence, path: Path, profile: KernelProfile) -> None:
    evidence.take(profile.kernels, profile.burst_s, profile.sustained_s, str(path))
    evidence.device = evidence.device or profile.facts.get("gpu", "")
    evidence.software |= {name: profile.facts[name] for name in _SOFTWARE if name in profile.facts}
    host = profiled_host(profile.facts, str(path))
    evidence.hosts += [host] if host is not None else []
    evidence.made_of.append(MadeOf(path.name, "kernel profile", kernels=len(profile.kernels)))


def _calibration(evidence: _Evidence, output: str, model: EfficiencyModel) -> Calibration:
    calibration = Calibration(
        output,
        evidence.gpu.name,
        evidence.device,
        dict(evidence.software),
        tuple(evidence.made_of),
        host=_host(evidence.hosts),
    )
    if evidence.times:
        kernels = tuple(evidence.times)
        burst, sustained = (
            np.array([median(time_[at] for time_ in evidence.times[kernel]) for kernel in kernels]) for at in (0, 1)
        )
        facts = {
            "gpu": evidence.device or evidence.gpu.title,
            "preset": evidence.gpu.name,
            "method": "foretrace calibrate",
        }
        unknown = np.zeros(len(kernels))
        profile = KernelProfile(facts, kernels, burst, sustained, unknown, unknown)
        calibration = replace(
            calibration, kernels=profile, families=family_fits(kernels, sustained, model.seconds(kernels))
        )
    if evidence.collectives:
        rows = [row for collective in evidence.collectives for row in collective.rows]
        calibration = replace(calibration, collectives=measurements_of(rows, (), output))
    return calibration


def _host(hosts: Sequence[HostFit]) -> HostFit | None:
    """Returns the mean by launches of the traces that have the style of the first."""
    same = [host for host in hosts if host.style == hosts[0].style]
    launches = sum(fit.launches for fit in same)
    if not launches:
        return None
    return replace(same[0], launch_s=sum(fit.launch_s * fit.launches for fit in same) / launches, launches=launches)
