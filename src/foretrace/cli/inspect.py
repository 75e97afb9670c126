"""`foretrace inspect`: say what a file is and what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

EXAMPLES = """Examples:

foretrace inspect examples/llama405b_1024gpu.txt

foretrace inspect examples/traces/moe_ex_situ_rank2.txt

foretrace inspect rank0.json.gz

foretrace inspect examples/moe_fairseq_profile.txt

foretrace inspect job.foretrace --json"""


def command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="A SimAI/AICB workload, folders of Megatron rank traces, a program (.foretrace), a table of the "
            "PyTorch profiler, or traces of it or of Nsight Systems (.json, .json.gz, .sqlite).",
            show_default=False,
        ),
    ],
    mesh: Annotated[
        str | None, typer.Option("--mesh", metavar="tp=1,pp=2,ep=8,dp=8", help="The mesh of traces.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what a file is, what is in it and what is odd about it."""
    from foretrace.errors import UsageError
    from foretrace.lower.load import file_kind

    kind = file_kind(files[0])
    profiles = kind in ("profile", "execution")
    if (kind != "traces" and mesh) or (kind != "traces" and not profiles and len(files) > 1):
        raise UsageError(
            "several files, or a mesh, are only for traces", hint="inspect one workload or program at a time"
        )
    if kind == "traces":
        result, screen = _traces(files, mesh)
    elif profiles:
        result, screen = _profiles(files)
    elif kind == "table":
        result, screen = _tables(files[0])
    else:
        result, screen = _program(files[0]) if kind == "program" else _workload(files[0])
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        screen()


def _program(file: Path) -> tuple[dict[str, Any], Callable[[], None]]:
    from foretrace.analysis.inventory import take_inventory
    from foretrace.program.file import load
    from foretrace.report.inventory import inventory_json, print_inventory

    inventory = take_inventory(load(file), file.stat().st_size)
    return inventory_json(inventory), lambda: print_inventory(inventory, file.name)


def _traces(files: list[Path], mesh: str | None) -> tuple[dict[str, Any], Callable[[], None]]:
    from foretrace.lower.megatron_trace.inventory import take_inventory
    from foretrace.report.trace_inventory import print_traces, traces_json

    inventory = take_inventory(files, mesh)
    return traces_json(inventory), lambda: print_traces(inventory, " ".join(file.name for file in files))


def _profiles(files: list[Path]) -> tuple[dict[str, Any], Callable[[], None]]:
    from foretrace.formats.execution_trace import read_execution_trace
    from foretrace.lower.profiler_trace.execution import read_with_shapes, split_execution_traces
    from foretrace.lower.profiler_trace.inventory import take_inventory
    from foretrace.report.profile_inventory import print_profiles, profiles_json

    traces, others = split_execution_traces(files)
    joined = read_with_shapes(files) if traces else []
    found = [take_inventory(one) for one in joined]
    executions = [read_execution_trace(one) for one in others]
    return profiles_json(found, executions), lambda: print_profiles(found, executions)


def _tables(file: Path) -> tuple[dict[str, Any], Callable[[], None]]:
    from foretrace.formats.torch_table import read_tables
    from foretrace.report.torch_table import print_tables, tables_json

    tables = read_tables(file)
    return tables_json(tables), lambda: print_tables(tables, file)


def _workload(file: Path) -> tuple[dict[str, Any], Callable[[], None]]:
    from foretrace.formats.aicb import read_workload
    from foretrace.lower.aicb.inventory import take_inventory
    from foretrace.report.workload import print_workload, workload_json

    inventory = take_inventory(read_workload(file))
    return workload_json(inventory), lambda: print_workload(inventory, file.name)
