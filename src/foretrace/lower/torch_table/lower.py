"""From a profiler table to a program: its computation as it was recorded, its communication for another mesh."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Final

from foretrace.errors import InputError
from foretrace.formats.torch_table import read_tables
from foretrace.lower.choices import Choices
from foretrace.lower.torch_table.profile import choose_table, understand
from foretrace.lower.torch_table.sizes import Sizes
from foretrace.lower.torch_table.writer import Writer
from foretrace.mesh import Mesh
from foretrace.program.program import Program

_NOT_OF_A_TABLE: Final = (
    "traced",
    "schedule",
    "vpp",
    "overlap",
    "microbatches",
    "pp_comm_bytes",
    "ends",
    "routing",
    "steps",
    "batch",
    "gpu",
)
_MOST_STEPS: Final = 10**6


def lower_table(path: str | Path, choices: Choices = Choices()) -> Program:  # noqa: B008
    """The program of a table's step; with a mesh its communication is priced on a cluster, without one only what the
    profiled GPU and its host did is there."""
    table, notes = choose_table(read_tables(path))
    where = table.at(table.line)
    if choices.gpus is not None:
        raise InputError(
            "unknown-mesh",
            "gpus: a table does not say what more GPUs are for",
            where=where,
            hint=f"say it: --mesh dp={choices.gpus}",
        )
    choices.refuse(_NOT_OF_A_TABLE, "a profiler table does not hold enough for this", where)
    if choices.host in ("unprofiled", "graphs"):
        raise InputError(
            "option-not-for-input",
            f"{choices.host}: a table has no single launches",
            where=where,
            hint="give the trace of the same run",
        )
    profile = understand(table)
    if not profile.device.parts:
        raise InputError(
            "nothing-to-do",
            "the table has no device time: nothing of it can be simulated",
            where=where,
            hint="profile with ProfilerActivity.CUDA, and print the table again",
        )
    mesh = _mesh(choices)
    sizes = Sizes.of(choices.sizes, mesh)
    steps = sizes.count("steps") or profile.host.steps
    if not 1 <= steps <= _MOST_STEPS:
        raise InputError("out-of-range", f"{steps:,} steps in one table", where="--set steps")
    if choices.mesh is None and choices.sizes and set(sizes.given) - {"steps"}:
        raise InputError(
            "option-not-for-command",
            "sizes are of communication, which a mesh decides",
            where=where,
            hint="add --mesh, as in --mesh dp=8,ep=8",
        )
    profile = replace(profile, host=replace(profile.host, steps=steps))
    writer = Writer(profile, mesh, sizes, steps, choices, shlex.quote(str(path)))
    return writer.program((*table.diagnostics, *notes))


def _mesh(choices: Choices) -> Mesh:
    """The wanted mesh: data and expert parallelism only, since a table's GPU keeps what it computes."""
    if choices.mesh is None:
        return Mesh()
    mesh = _parsed(choices.mesh) if isinstance(choices.mesh, str) else choices.mesh
    others = [axis for axis in ("tp", "cp", "pp") if mesh.size(axis) > 1]
    if others:
        raise InputError(
            "cannot-change",
            f"{' and '.join(others)} would change what one GPU computes, which a table cannot tell",
            where="--mesh",
            hint="data and expert parallelism can be chosen: --mesh dp=64,ep=8 (shard=8 for HSDP)",
        )
    return mesh


def _parsed(text: str) -> Mesh:
    try:
        return Mesh.parse(text, where="--mesh")
    except InputError as error:
        experts = re.fullmatch(r"ep=(\d+)", text.strip())
        if experts is None:
            raise
        hint = f"experts are divided among the replicas of dp: --mesh dp={experts[1]},ep={experts[1]}"
        raise InputError(error.code, error.message, where=error.where, hint=hint) from None
