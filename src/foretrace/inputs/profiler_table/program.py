"""Turns a profiler table into a program: computation as recorded, communication for another mesh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.limits import check_gpus
from foretrace.basics.mesh import Mesh
from foretrace.inputs.profiler_table.format import ProfilerTable
from foretrace.inputs.profiler_table.options import ProfilerTableOptions
from foretrace.inputs.profiler_table.profile import choose_table, understand
from foretrace.inputs.profiler_table.sizes import Sizes
from foretrace.inputs.profiler_table.step import TableStep
from foretrace.program.program import Program
from foretrace.step import build_step

_MAX_STEPS: Final = 10**6


def lower_tables(tables: Sequence[ProfilerTable], options: ProfilerTableOptions, path: str) -> Program:
    """Builds the program of a table's step; with a mesh its communication is priced on a cluster, without one only what
    the profiled GPU and its host did is there."""
    table, notes = choose_table(tables)
    where = table.at(table.line)
    profile = understand(table)
    if not profile.device.parts:
        raise InputError(
            "nothing-to-do",
            "the table has no device time: nothing of it can be simulated",
            where=where,
            hint="profile with ProfilerActivity.CUDA, and print the table again",
        )
    mesh = _mesh(options)
    check_gpus(mesh.world, "--mesh")
    sizes = Sizes.of(options.sizes, mesh)
    steps = sizes.count("steps") or profile.host.steps
    if not 1 <= steps <= _MAX_STEPS:
        raise InputError("out-of-range", f"{steps:,} steps in one table", where="--set steps")
    if options.mesh is None and options.sizes and set(sizes.given) - {"steps"}:
        raise InputError(
            "option-not-for-command",
            "sizes are of communication, which a mesh decides",
            where=where,
            hint="add --mesh, as in --mesh dp=8,ep=8",
        )
    profile = replace(profile, host=replace(profile.host, steps=steps))
    step = TableStep(profile, mesh, sizes, steps, options, shlex.quote(path))
    return build_step(step.spec((*table.diagnostics, *notes)))


def _mesh(options: ProfilerTableOptions) -> Mesh:
    """The wanted mesh: data and expert parallelism only, since a table's GPU keeps what it computes."""
    if options.mesh is None:
        return Mesh()
    mesh = _parsed(options.mesh) if isinstance(options.mesh, str) else options.mesh
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
        experts = re.fullmatch(r"ep=([0-9]{1,7})", text.strip())
        if experts is None:
            raise
        hint = f"experts are divided among the replicas of dp: --mesh dp={experts[1]},ep={experts[1]}"
        raise InputError(error.code, error.message, where=error.where, hint=hint) from None
