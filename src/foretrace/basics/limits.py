"""Limits on the size of a job. A job above them is a typing mistake, or more than can be run."""

from __future__ import annotations

from foretrace.basics.errors import InputError

MAX_STAGES = 1024
MAX_GPUS = 4_000_000
MAX_OPS = 8_000_000
"""Of one rank of every kind; more would take gigabytes and longer than a person waits."""


def check_gpus(gpus: int, where: str) -> None:
    """Raises an error where there are more than any cluster has."""
    if gpus > MAX_GPUS:
        raise InputError(
            "too-large", f"{gpus:,} GPUs are more than any cluster has", where=where, hint=f"at most {MAX_GPUS:,}"
        )


def check_ops(ops: int, stages: int, microbatches: int, where: str) -> None:
    """Raises an error where there are more than can be run."""
    if ops > MAX_OPS:
        raise InputError(
            "too-large",
            f"{microbatches:,} microbatches on {stages:,} stages are more than can be run",
            where=where,
            hint="take fewer: the step grows in proportion, --microbatches 256",
        )
