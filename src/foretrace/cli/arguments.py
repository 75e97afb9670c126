"""Options that several commands have, each written once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME|FILE", help="What it runs on: see foretrace list clusters.")
]
Collectives = Annotated[
    Path | None,
    typer.Option("--collectives", metavar="DIR|FILE", help="Measured collectives (nccl-tests) to price it with."),
]
Calibration = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="Your own measurements (foretrace calibrate): the best source."),
]
Mesh = Annotated[
    str | None, typer.Option("--mesh", metavar="pp=4,dp=16", help="The mesh of traces; axes not named stay as traced.")
]
Gpus = Annotated[str | None, typer.Option("--gpus", metavar="N", help="Another number of GPUs: dp follows.")]
Schedule = Annotated[
    str | None, typer.Option("--schedule", metavar="NAME", help="1f1b, interleaved-1f1b, zb-h1, zb-v, …")
]
Vpp = Annotated[
    str | None, typer.Option("--vpp", metavar="layers|chunks|N", help="Chunks per stage, or what the file's vpp means.")
]
Overlap = Annotated[
    str | None,
    typer.Option("--overlap", metavar="grad,param,tp,pp", help="What overlaps in a workload; dp = grad,param; all."),
]
Microbatches = Annotated[
    int | None, typer.Option("--microbatches", metavar="N", help="Microbatches of a step, or another number of them.")
]
PpComm = Annotated[
    str | None, typer.Option("--pp-comm", metavar="16MiB", help="What crosses a stage boundary per microbatch.")
]
Routing = Annotated[
    str | None,
    typer.Option("--routing", metavar="balanced|1.5x", help="How uneven tokens go to experts: busiest over mean."),
]
PlacementFile = Annotated[
    Path | None,
    typer.Option("--placement", metavar="FILE", help="Which rank sits where (hostfile, rankfile, YAML)."),
]


class NetworkMode(StrEnum):
    """Whether communications divide the links they meet on."""

    ANALYTIC = "analytic"
    FLOW = "flow"


Network = Annotated[
    NetworkMode,
    typer.Option("--network", help="Communications go as if alone, or divide the links they meet on (slower to run)."),
]
NoOverlapCost = Annotated[
    bool, typer.Option("--no-overlap-cost", help="Kernels beside a collective take as long as alone.")
]
NcclAlgo = Annotated[
    str | None,
    typer.Option("--nccl-algo", metavar="ring,tree|^tree|…", help="Algorithms NCCL may use, as NCCL_ALGO has them."),
]
NcclProto = Annotated[
    str | None, typer.Option("--nccl-proto", metavar="LL,Simple|^LL|…", help="Protocols, as NCCL_PROTO has them.")
]
NcclFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--nccl", metavar="FILE", help="What NCCL said on your machine: a debug log, a graph or topology dump."
    ),
]


class PriceSource(StrEnum):
    """Where times come from."""

    BEST = "best"
    MODEL = "model"
    ROOFLINE = "roofline"


Prices = Annotated[
    PriceSource,
    typer.Option("--prices", help="Kernels and collectives: best source, fitted model only, or datasheet (kernels)."),
]
NoSilicon = Annotated[
    bool, typer.Option("--no-silicon", help="Leave NVIDIA's tables out, as where they are not installed.")
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option("--what-if", metavar="WHAT=1.1x", help="Make ops or a resource so many times as fast."),
]
TraceWhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="WHAT=1.1x",
        help="Make ops or a resource so many times as fast. Of a profiler's trace also: cuda-graphs, no-host-gaps, "
        "unprofiled, batch=2x, gpu=h100-sxm.",
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="What a profile does not hold, such as moe.tokens=8192."),
]
Steps = Annotated[
    str | None, typer.Option("--steps", metavar="1,2,5-7", help="Which steps of a profiler's trace, from 0.")
]
Straggler = Annotated[
    list[str] | None,
    typer.Option("--straggler", metavar="RANK=1.2x", help="Make a rank compute so many times as slowly."),
]
SlowLink = Annotated[
    list[str] | None,
    typer.Option("--slow-link", metavar="RANK:AXIS=2x", help="Make what a rank communicates so many times as slow."),
]
Jitter = Annotated[
    str | None, typer.Option("--jitter", metavar="3%", help="How much computation varies: groups wait longer.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT", help="Also write the JSON to a file.")]
Perfetto = Annotated[
    Path | None, typer.Option("--perfetto", metavar="OUT", help="Write the timeline for ui.perfetto.dev.")
]
Heatmap = Annotated[
    Path | None, typer.Option("--heatmap", metavar="OUT.svg", help="Draw how busy every link of the network is.")
]
Ranks = Annotated[str | None, typer.Option("--ranks", metavar="0,7,16-19", help="Which ranks the Perfetto file shows.")]
