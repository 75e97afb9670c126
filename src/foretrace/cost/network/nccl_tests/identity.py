"""Checks that measured collectives are of the GPU that they are to price.

Logs name the GPU of each rank, tables have a column `hardware`. Times of another chip, or of another form of it (PCIe
for SXM), do not apply to a cluster, since links differ. A chip with more memory has the same links.
"""

from __future__ import annotations

from dataclasses import replace

from foretrace.basics.errors import Diagnostic, InputError, listed
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.records import Measurements
from foretrace.hardware.device_names import chip_of, preset_of, sameness


def states_gpu(measured: Measurements) -> bool:
    """Returns whether every row names a GPU that is known."""
    return all(chip_of(name) is not None for name in {row.gpu for row in measured.rows})


def of_gpu(measured: Measurements, gpu: str) -> Measurements:
    """Returns the measurements of one GPU, and of GPUs that are not named.

    Args:
        measured: The measurements.
        gpu: Our name of the GPU.

    Raises:
        InputError: All measurements that name a GPU are of another one.
    """
    same = {name: sameness(name, gpu) for name in dict.fromkeys(row.gpu for row in measured.rows) if name}
    others = {name for name, how in same.items() if how == "other"}
    notes = list(measured.diagnostics)
    if variants := [name for name, how in same.items() if how == "other memory"]:
        text = f"measured on {listed(variants, 3)}, which is {gpu} with another memory: links are the same"
        notes.append(Diagnostic("note", "other-gpu", text, measured.name))
    if not others:
        return replace(measured, diagnostics=tuple(notes)) if variants else measured
    first = next(row for row in measured.rows if row.gpu in others)
    if others == same.keys():
        raise InputError(
            "other-gpu",
            f"collectives measured on {listed(sorted(others), 3)} are to price {gpu}",
            where=first.where,
            hint=f"name a cluster of {preset_of(first.gpu)}, or correct the name of the GPU in the file",
        )
    rows = [row for row in measured.rows if row.gpu not in others]
    text = f"{len(measured.rows) - len(rows):,} rows measured on {listed(sorted(others), 3)} are not used for {gpu}"
    notes.append(Diagnostic("warning", "other-gpu", text, first.where))
    again = measurements_of(rows, [note for note in notes if note.code != "repaired-input"], measured.name)
    return replace(again, source=measured.source, partial=measured.partial, measured_on=measured.measured_on)
