"""Reads NVIDIA's measured kernel tables (`foretrace.cost.silicon`).

They were made for inference: forward products, each measured alone and for a short while. Rows without tokens are left
out, and repeated keys give their median. The tables are read once per process.

The tables of attention are not used: they time a server's whole operator, with its rotary embedding and its writes to a
cache. On an A100 (causal, head size 128, 4096 tokens) they show 130 TFLOP/s forward, where flash-attention's authors
measured 173 forward and backward together.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.cost.silicon import SYSTEMS, tables_of
from foretrace.program.kernels import Gemm

KERNEL_SYSTEMS: Final = {**SYSTEMS, "a800-80g-sxm": "a100_sxm", "h800-sxm": "h100_sxm"}
"""The system whose kernels run as a GPU's do: the China variants have the same chip and power; only
their links are slower."""

FRAMEWORKS: Final = ("trtllm", "sglang", "vllm")
"""In the order of preference: the first calls the vendor's libraries most directly."""

DTYPES: Final = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
"""The tables' names of dtypes; fp16 runs at the rate of bf16. MXFP8 is not in them."""

MIN_SIZE: Final = 128
"""Tables begin at one row or column; training has products that thin only where the model serves as well."""


@cache
def gemm_table(system: str, dtype: str) -> tuple[tuple[Gemm, ...], Floats]:
    """The GEMMs measured for a dtype and their seconds."""
    columns, seconds = _distinct(system, DTYPES.get(dtype, ""))
    # Odd sizes (1025, 2049, …) show the step at a tile's edge, which the model knows; they would only slow the search.
    keep = [i for i, row in enumerate(columns) if min(row) >= MIN_SIZE and row[0] % 16 == 0]
    return tuple(Gemm(m, n, k, dtype) for m, n, k in (columns[i] for i in keep)), seconds[keep]


def _distinct(system: str, dtype: str) -> tuple[list[tuple[int, ...]], Floats]:
    """Distinct (m, n, k) and the median of their seconds, from the first framework that has the dtype."""
    compute: Any = import_module("pyarrow.compute")
    parquet: Any = import_module("pyarrow.parquet")

    for path in _files(system):
        # read_table would import all of pyarrow's datasets, and take far longer.
        table = parquet.ParquetFile(path).read(columns=["gemm_dtype", "m", "n", "k", "latency"])
        table = table.filter(compute.equal(table.column("gemm_dtype"), dtype))
        if table.num_rows:
            keys = np.stack([table.column(name).to_numpy().astype(np.int64) for name in "mnk"], axis=1)
            return _medians(keys, table.column("latency").to_numpy() * 1e-3)
    return [], np.empty(0)


def _medians(keys: Longs, seconds: Floats) -> tuple[list[tuple[int, ...]], Floats]:
    good = (keys[:, 0] > 0) & np.isfinite(seconds) & (seconds > 0)
    keys, seconds = keys[good], seconds[good]
    order = np.lexsort((seconds, *keys.T[::-1]))
    keys, seconds = keys[order], seconds[order]
    first = np.flatnonzero(np.concatenate([[True], (keys[1:] != keys[:-1]).any(axis=1)]))
    size = np.diff(np.concatenate([first, [len(keys)]]))
    middle = (seconds[first + (size - 1) // 2] + seconds[first + size // 2]) / 2
    return [tuple(row) for row in keys[first].tolist()], middle


def _files(system: str) -> list[Path]:
    """The GEMM tables of a system: the preferred framework first, of each the newest version."""
    root = tables_of(system)
    if root is None:
        return []
    files: list[Path] = []
    for framework in FRAMEWORKS:
        versions = list((root / "gemm" / framework).glob("*/gemm_perf.parquet"))
        files += sorted(versions, key=lambda path: _version(path.parent.name), reverse=True)
    return files


def _version(text: str) -> tuple[int, ...]:
    digits = "".join(char if char.isdigit() else " " for char in text.replace("rc", ".0.").replace("post", "."))
    return tuple(int(part) for part in digits.split())
