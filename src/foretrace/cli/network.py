"""`foretrace network`: show what a collective takes on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrace.basics.errors import UsageError
from foretrace.basics.progress import doing
from foretrace.cli.emit import emit, write_picture
from foretrace.cli.groups import CHANGED_MACHINE, MACHINE, OUTPUT, OutputOptions, check_svg, takes
from foretrace.cost.machine_texts import MachineOptions
from foretrace.hardware.changes import Change
from foretrace.program.columns import Collective
from foretrace.report.network import network_json, print_network, print_table, table_json, title_text
from foretrace.report.views import view_of
from foretrace.simulation.network.network import (
    WORD_BYTES,
    CollectiveQuestion,
    NetworkTable,
    ask_network,
    default_ranks,
    network_table,
)
from foretrace.simulation.network.words import read_collective, read_ranks, read_sizes

EXAMPLES = """Examples:

foretrace network all-reduce 256MiB --cluster h100-dgx --ranks 64

foretrace network all-to-all 1KiB..1GiB --cluster h100-dgx --ranks 64 --plot busbw.svg

foretrace network all-to-all 1GiB --cluster h100-dgx --ranks 64 --what-if nic=800Gbps

foretrace network reduce-scatter 1GiB --cluster h100-dgx --ranks 2..1024 --ranks-per-node 1 --groups 8"""


@takes(MACHINE, CHANGED_MACHINE, OUTPUT)
def command(
    collective: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE",
            help="all-reduce, all-gather, reduce-scatter, all-to-all, … (foretrace list collectives)",
            show_default=False,
        ),
    ],
    machine: MachineOptions,
    changes: dict[str, Change],
    output: OutputOptions,
    sizes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SIZE...", help="nccl-tests' size: 256MiB; several; or a range, 8B..8GiB.", show_default=False
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="N", help="Ranks of the group (a node's, unless given), or a range: 2..1024."),
    ] = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option("--ranks-per-node", metavar="N", min=1, help="Ranks on each node: 1 for dp groups across nodes."),
    ] = None,
    groups: Annotated[
        int, typer.Option("--groups", metavar="N", min=1, help="How many such groups are at work at once.")
    ] = 1,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="OUT.svg", help="Plot bus bandwidth over sizes or ranks.")
    ] = None,
    heatmap: Annotated[
        Path | None, typer.Option("--heatmap", metavar="OUT.svg", help="Draw how busy every link of the network is.")
    ] = None,
    way: Annotated[
        str | None,
        typer.Option("--way", metavar="WAY", help="How tokens go to experts: style=deepep,experts=256,topk=8."),
    ] = None,
) -> None:
    """Show what a collective takes: its time, how NCCL runs it, its bus bandwidth and what limits it."""
    barrier = read_collective(collective, way).collective is Collective.BARRIER
    if not sizes and not barrier:
        hint = f"foretrace network {collective} 256MiB"
        raise UsageError("missing-argument", f"{collective} of how many bytes?", hint=hint)
    as_is = machine.needed_machine()
    on = as_is.changed(changes)
    if heatmap is not None and on.network == "analytic":
        raise UsageError("conflicting-options", "formulas know no links to map", hint="add --network flow")
    check_svg(plot, heatmap)
    byte_sizes = read_sizes(sizes) if sizes else [WORD_BYTES]
    counts = None if ranks is None else read_ranks(ranks)
    question = ask_network(collective, on, ranks_per_node=ranks_per_node, groups=groups, way=way)
    table = _run(question, byte_sizes, counts)
    if changes:
        before = ask_network(collective, as_is, ranks_per_node=ranks_per_node, groups=groups, way=way)
        table = table.compared_with(_run(before, byte_sizes, counts))
    _draw(table, plot, heatmap)
    single = len(table.answers) == 1 and not table.interrupted
    emit(
        lambda: network_json(table.answers[0]) if single else table_json(table),
        lambda: print_network(table.answers[0]) if single else print_table(table),
        output,
        lambda: view_of(table.answers[0] if single else table),
    )
    if table.interrupted:
        raise KeyboardInterrupt


def _run(question: CollectiveQuestion, sizes: list[int], ranks: list[int] | None) -> NetworkTable:
    with doing("asking the network") as progress:

        def starts(done: int, count: int) -> None:
            progress.text = f"asking the network, {done + 1} of {count}"

        return network_table(question, sizes, ranks or [default_ranks(question)], starts)


def _draw(table: NetworkTable, plot: Path | None, heatmap: Path | None) -> None:
    """Writes the plot, and the map of the links under the last answer."""
    if not table.answers:
        return
    last = table.answers[-1]
    if plot is not None:
        from foretrace.report.plots.network_plot import network_svg

        write_picture(plot, lambda: network_svg(table.answers), f"{len(table.answers)} points")
    if heatmap is not None and last.links is not None:
        from foretrace.report.plots.heatmap import heatmap_svg

        loads = last.links.loads
        write_picture(heatmap, lambda: heatmap_svg(loads, title_text(last)), f"{loads.fabric.links:,} links")
