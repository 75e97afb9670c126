"""`python -m foretrace.calibrate.gpu`: as `foretrace measure gpu`, for machines that have PyTorch and nothing else."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from foretrace.basics.errors import ForetraceError
from foretrace.calibrate.gpu.machine import bench_here
from foretrace.calibrate.gpu.measure import measure_gpu


def main() -> int:
    """Parses, measures, says where the profile is."""
    parser = argparse.ArgumentParser(prog="python -m foretrace.calibrate.gpu", description=__doc__)
    parser.add_argument("--out", "-o", type=Path, required=True, help="the kernel profile to write")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop measuring after so long")
    parser.add_argument("--quick", action="store_true", help="every sixth kernel only")
    parser.add_argument("--only", nargs="*", default=(), help="parts to measure, by a word of their name")
    given = parser.parse_args()
    say = partial(print, flush=True)
    try:
        count = measure_gpu(bench_here(), given.out, given.minutes, given.quick, say, given.only)
    except ForetraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{count} kernels in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
