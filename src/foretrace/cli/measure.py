"""`foretrace measure gpu`: measure what kernels take on the GPU of this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from foretrace.basics.errors import UsageError

EXAMPLES = """Examples:

foretrace measure gpu -o mygpu.profile

foretrace measure gpu -o mygpu.profile --minutes 3 --quick"""

SCHEMA = "foretrace.profile/1"


def command(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="gpu.", show_default=False)] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="OUT", help="The kernel table to write (.gz packs it).")
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", metavar="N", help="Stop measuring after N minutes.")] = 10.0,
    quick: Annotated[bool, typer.Option("--quick", help="Measure every sixth kernel only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Measure what kernels take on the GPU of this machine; needs PyTorch with CUDA."""
    if what.lower() != "gpu":
        problem = f'"{what}" cannot be measured' if what else "measure what?"
        raise UsageError("missing-argument", problem, hint="foretrace measure gpu")
    if out is None:
        raise UsageError("missing-argument", "where is the kernel table to go?", hint="foretrace measure gpu -o FILE")
    if not 0 < minutes <= 24 * 60:
        raise UsageError("out-of-range", f"--minutes {minutes:g} is not above 0 and at most a day")
    from foretrace.calibrate.gpu.machine import bench_here
    from foretrace.calibrate.gpu.measure import measure_gpu

    count = measure_gpu(bench_here(), out, minutes, quick, lambda line: print(line, file=sys.stderr, flush=True))
    if as_json:
        print(json.dumps({"schema": SCHEMA, "file": str(out), "kernels": count}, allow_nan=False))
    else:
        print(f"{count:,} kernels in {out}")
