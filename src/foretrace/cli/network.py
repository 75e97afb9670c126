"""`foretrace network`: what a collective takes on a cluster."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.cli import arguments

if TYPE_CHECKING:
    from foretrace.analysis.network import Asked, NetworkTable

EXAMPLES = """Examples:

foretrace network all-reduce 256MiB --cluster h100-dgx --ranks 64

foretrace network all-to-all 1KiB..1GiB --cluster h100-dgx --ranks 64 --plot busbw.svg

foretrace network reduce-scatter 1GiB --cluster h100-dgx --ranks 2..1024 --ranks-per-node 1 --groups 8"""


class Mode(StrEnum):
    """How the network is reckoned with."""

    ANALYTIC = "analytic"
    FLOW = "flow"
    PACKETS = "packets"


class Prices(StrEnum):
    """Where times come from."""

    BEST = "best"
    MODEL = "model"


def command(
    collective: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE",
            help="all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, send, …",
            show_default=False,
        ),
    ],
    sizes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SIZE...", help="nccl-tests' size: 256MiB; several; or a range, 8B..8GiB.", show_default=False
        ),
    ] = None,
    cluster: arguments.Cluster = None,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="N", help="Ranks of the group (a node's, unless said), or a range: 2..1024."),
    ] = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option("--ranks-per-node", metavar="N", min=1, help="Ranks on each node: 1 for dp groups across nodes."),
    ] = None,
    groups: Annotated[
        int, typer.Option("--groups", metavar="N", min=1, help="So many such groups at work at once.")
    ] = 1,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="OUT.svg", help="Plot bus bandwidth over sizes or ranks.")
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option("--network", help="Formulas, messages that divide the links they meet on, or packets (ns-3)."),
    ] = Mode.ANALYTIC,
    heatmap: arguments.Heatmap = None,
    placement: arguments.PlacementFile = None,
    prices: Annotated[
        Prices, typer.Option("--prices", help="Measured times where there are some, or the model only.")
    ] = Prices.BEST,
    no_silicon: arguments.NoSilicon = False,
    collectives: arguments.Collectives = None,
    calibration: arguments.Calibration = None,
    nccl_algo: arguments.NcclAlgo = None,
    nccl_proto: arguments.NcclProto = None,
    nccl: arguments.NcclFiles = None,
    way: Annotated[
        str | None,
        typer.Option("--way", metavar="WAY", help="How tokens go to experts: style=deepep,experts=256,topk=8."),
    ] = None,
    as_json: arguments.AsJson = False,
    output: arguments.Output = None,
) -> None:
    """Show what a collective takes: its time, how NCCL runs it, its bus bandwidth and what limits it."""
    from foretrace.analysis.network import WORD_BYTES, asked_for
    from foretrace.analysis.network_words import read_collective, read_ranks, read_sizes
    from foretrace.cli.options import check_outputs, check_svg, needed_cluster, read_nccl
    from foretrace.errors import UsageError
    from foretrace.program.columns import Collective

    barrier = read_collective(collective, way).collective is Collective.BARRIER
    if not sizes and not barrier:
        raise UsageError(f"{collective} of how many bytes?", hint=f"foretrace network {collective} 256MiB")
    named = needed_cluster(cluster)
    if heatmap is not None and mode == Mode.ANALYTIC:
        raise UsageError("formulas know no links to map", hint="add --network flow")
    check_svg(plot, heatmap)
    check_outputs(None, [plot, heatmap, output])
    bytes_asked = read_sizes(sizes) if sizes else [WORD_BYTES]
    counts = None if ranks is None else read_ranks(ranks)
    asked = asked_for(
        collective,
        cluster=named,
        ranks_per_node=ranks_per_node,
        groups=groups,
        placement=placement,
        mode=mode.value,
        prices=prices.value,
        silicon=False if no_silicon else None,
        collectives=collectives,
        nccl=read_nccl(nccl_algo, nccl_proto, nccl),
        way=way,
        calibration=calibration,
    )
    show(_run(asked, bytes_asked, counts), Outputs(plot, heatmap, as_json, output))


def _run(asked: Asked, sizes: list[int], ranks: list[int] | None) -> NetworkTable:
    from foretrace.analysis.network import default_ranks, network_table
    from foretrace.cli.progress import Progress

    with Progress("asking the network") as progress:

        def starts(done: int, count: int) -> None:
            progress.text = f"asking the network, {done + 1} of {count}"

        return network_table(asked, sizes, ranks or [default_ranks(asked)], starts)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where an answer goes besides the screen."""

    plot: Path | None = None
    heatmap: Path | None = None
    as_json: bool = False
    json_file: Path | None = None

    def draw(self, found: NetworkTable) -> None:
        """Writes the plot, and the map of the links under the last answer."""
        from foretrace.files import write_text

        if self.plot is not None and found.answers:
            from foretrace.report.network_plot import network_svg

            write_text(self.plot, network_svg(found.answers))
            print(f"{self.plot}: {len(found.answers)} points", file=sys.stderr)
        if self.heatmap is not None and found.answers and found.answers[-1].links is not None:
            from foretrace.report.heatmap import heatmap_svg
            from foretrace.report.network import title_text

            loads = found.answers[-1].links.loads
            write_text(self.heatmap, heatmap_svg(loads, title_text(found.answers[-1])))
            print(f"{self.heatmap}: {loads.fabric.links:,} links", file=sys.stderr)


def show(found: NetworkTable, outputs: Outputs) -> None:
    """Prints, plots and writes an answer or a table; what an interrupt left of it as well, before it goes on."""
    import json

    from foretrace.report.json import write_json
    from foretrace.report.network import network_json, print_network, print_table, table_json

    single = len(found.answers) == 1 and not found.interrupted
    result = network_json(found.answers[0]) if single else table_json(found)
    outputs.draw(found)
    if outputs.json_file is not None:
        write_json(result, outputs.json_file)
    if outputs.as_json:
        print(json.dumps(result, allow_nan=False))
    elif single:
        print_network(found.answers[0])
    else:
        print_table(found)
    if found.interrupted:
        raise KeyboardInterrupt
