"""Runs what SimAI-Analytical was asked with our own model: the same cluster, the same job."""

from __future__ import annotations

from dataclasses import replace

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.compat.simai.flags import SimaiFlags
from foretrace.cost.network import reaching
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster, Node
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.option_values import Overlap

GPU_PRESETS = {"A100": "a100-80g-sxm", "A800": "a800-80g-sxm", "H100": "h100-sxm", "H800": "h800-sxm", "H20": "h20"}
UNNAMED_GPU = "A100"
"""SimAI's GPU type where none is given, the first of its list."""

GB = 1e9


def own_cluster(flags: SimaiFlags) -> Cluster:
    """The cluster that the flags describe. Rates given as numbers are what SimAI takes as reached; our own model comes
    to the same after its losses."""
    gpu, nic = presets.gpu(GPU_PRESETS[flags.gpu_type or UNNAMED_GPU]), presets.nic(flags.nic_type)
    size = flags.gpus_per_server
    title = f"server of {size} × {gpu.name}, {flags.nics_per_server} × {nic.name}"
    node = Node(
        name="simai-server",
        title=title,
        gpu=gpu,
        gpus=size,
        domain_gpus=size,
        switched=True,
        nic=nic,
        nics=max(flags.nics_per_server, 1),
    )
    cluster = Cluster(name="SimAI's flags", title=title, node=node, nodes=-(-flags.gpus // size))
    return reaching(
        cluster,
        link_bytes_per_s=_rate("-nv", flags.nvlink_gb_per_s),
        nic_bytes_per_s=_rate("-nic", flags.nic_gb_per_s),
    )


def _rate(flag: str, gb_per_s: float | None) -> float | None:
    """Bytes per second; a rate that no hardware has would only make numbers that mean nothing."""
    if gb_per_s is not None and not 1e-3 <= gb_per_s <= 1e6:
        raise InputError("out-of-range", f"{flag} {gb_per_s:g} GB/s is no rate of any hardware")
    return None if gb_per_s is None else gb_per_s * GB


def own_options(flags: SimaiFlags, options: WorkloadOptions) -> tuple[WorkloadOptions, list[Diagnostic]]:
    """How our run reads the file: as the user chose, on SimAI's number of GPUs, with what its overlap flags hide
    overlapped; and what to say of that."""
    asked = {
        "-dp_o": (flags.dp_overlap, (Overlap.GRAD, Overlap.PARAM)),
        "-tp_o": (flags.tp_overlap, (Overlap.TP,)),
        "-pp_o": (flags.pp_overlap if flags.pp_overlap_given else 0.0, (Overlap.PP,)),
    }
    overlap = set(options.overlap)
    notes = []
    for flag, (share, kinds) in asked.items():
        if share > 0:
            overlap.update(kinds)
            words = " and ".join(kinds)
            notes.append(
                Diagnostic(
                    "note",
                    "replaced-option",
                    f"{flag} {share:g}: {words} overlapped as the timeline allows, not by a set share",
                )
            )
    if flags.ep_overlap > 0:
        notes.append(
            Diagnostic(
                "warning",
                "not-modelled",
                f"-ep_o {flags.ep_overlap:g}: expert all-to-alls are not overlapped in our run",
            )
        )
    if flags.nics_per_server < 1:
        notes.append(Diagnostic("warning", "assumed", "-n_p_s 0: one NIC per server taken in our run"))
    return replace(options, gpus=flags.gpus, overlap=frozenset(overlap)), notes
