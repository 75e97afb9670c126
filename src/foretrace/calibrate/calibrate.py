"""`foretrace calibrate` as a function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.calibrate.make import calibration_of_files
from foretrace.calibrate.whole_steps import fit_steps
from foretrace.cost.calibration import Calibration, write_calibration
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.presets import cluster as load_cluster


def make_calibration(
    paths: Sequence[str | Path],
    output: str | Path,
    *,
    gpu: str | None = None,
    cluster: Cluster | str | None = None,
    step_factor: bool | None = None,
) -> tuple[Calibration, tuple[Diagnostic, ...]]:
    """Makes a calibration of profiler traces and tables, kernel profiles, measured collectives and whole steps, and
    writes it; returns it with what a user should know.

    `gpu` names the GPU where the files do not, `cluster` also how many GPUs its nodes have. `step_factor` says whether
    whole steps set a factor on all computation (None: if there are at least two of them).
    """
    where = load_cluster(cluster) if isinstance(cluster, str) else cluster
    made = calibration_of_files(paths, output, gpu, where)
    calibration, notes = made.calibration, list(made.notes)
    if made.steps:
        calibration, step_notes = fit_steps(calibration, made.steps, step_factor)
        notes += step_notes
    elif step_factor:
        raise InputError(
            "missing-argument", "a factor for whole steps needs some", hint="add a CSV or JSON lines of measured steps"
        )
    if not (calibration.kernels or calibration.collectives or calibration.host or calibration.steps):
        raise InputError("nothing-to-do", "the files give nothing that a calibration can hold", where=str(paths[0]))
    write_calibration(calibration)
    return calibration, tuple(dict.fromkeys(notes))
