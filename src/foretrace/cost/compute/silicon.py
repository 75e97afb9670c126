"""NVIDIA's measured kernel tables, as the package `aiconfigurator-core` carries them (the extra `[silicon]`).

They are of inference: forward products, each measured alone and for a short while. Rows with no tokens and repeated
keys occur: the former are left out, of the latter the median counts. Read once per process.

The tables of attention are not used: they time a server's whole operator, with its rotary embedding and its writes to a
cache. On an A100 (causal, head size 128, 4096 tokens) they show 130 TFLOP/s forward, where flash-attention's authors
measured 173 forward and backward together.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foretrace.program.kernels import Gemm

Floats = NDArray[np.float64]

SYSTEMS: Final = {
    "a100-80g-sxm": "a100_sxm",
    "a800-80g-sxm": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "h800-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
}
"""The system whose tables a GPU has; those of the China variants are the same chips at the same power."""

FRAMEWORKS: Final = ("trtllm", "sglang", "vllm")
"""In the order of preference: the first calls the vendor's libraries most directly."""

DTYPES: Final = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
"""What the tables call a dtype; fp16 runs at the rate of bf16. MXFP8 is not in them."""

LEAST: Final = 128
"""Tables begin at one row or column; training has products that thin only where the model serves as well."""


def installed() -> bool:
    """Whether the tables and what reads them are there."""
    return find_spec("aiconfigurator_core") is not None and find_spec("pyarrow") is not None


@cache
def gemm_table(system: str, dtype: str) -> tuple[tuple[Gemm, ...], Floats]:
    """The GEMMs measured for a dtype and their seconds."""
    name = DTYPES.get(dtype)
    columns, seconds = _table(system, "gemm", "gemm_perf", "gemm_dtype", name, ("m", "n", "k")) if name else _none()
    # Odd sizes (1025, 2049, …) show the step at a tile's edge, which the model knows; they would only slow the search.
    keep = [i for i, row in enumerate(columns) if min(row) >= LEAST and row[0] % 16 == 0]
    return tuple(Gemm(m, n, k, dtype) for m, n, k in (columns[i] for i in keep)), seconds[keep]


def _none() -> tuple[list[tuple[int, ...]], Floats]:
    return [], np.empty(0)


def _table(
    system: str, family: str, file: str, dtype_column: str, dtype: str, names: tuple[str, ...]
) -> tuple[list[tuple[int, ...]], Floats]:
    """Distinct keys and the median of their seconds, from the first framework that has the dtype."""
    compute: Any = import_module("pyarrow.compute")
    parquet: Any = import_module("pyarrow.parquet")

    for path in _files(system, family, file):
        schema = parquet.read_schema(path).names
        if not set(names) <= set(schema):
            continue
        table = parquet.read_table(path, columns=[dtype_column, *names, "latency"])
        table = table.filter(compute.equal(table.column(dtype_column), dtype))
        if table.num_rows:
            keys = np.stack([table.column(name).to_numpy().astype(np.int64) for name in names], axis=1)
            return _medians(keys, table.column("latency").to_numpy() * 1e-3)
    return _none()


def _medians(keys: NDArray[np.int64], seconds: Floats) -> tuple[list[tuple[int, ...]], Floats]:
    good = (keys[:, 0] > 0) & np.isfinite(seconds) & (seconds > 0)
    keys, seconds = keys[good], seconds[good]
    order = np.lexsort((seconds, *keys.T[::-1]))
    keys, seconds = keys[order], seconds[order]
    first = np.flatnonzero(np.concatenate([[True], (keys[1:] != keys[:-1]).any(axis=1)]))
    size = np.diff(np.concatenate([first, [len(keys)]]))
    middle = (seconds[first + (size - 1) // 2] + seconds[first + size // 2]) / 2
    return [tuple(row) for row in keys[first].tolist()], middle


def _files(system: str, family: str, file: str) -> list[Path]:
    """The tables of a system: the preferred framework first, of each the newest version."""
    spec = find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        return []
    root = Path(spec.submodule_search_locations[0]) / "systems" / "data" / system / family
    found = []
    for framework in FRAMEWORKS:
        versions = list((root / framework).glob(f"*/{file}.parquet"))
        found += sorted(versions, key=lambda path: _version(path.parent.name), reverse=True)
    return found


def _version(text: str) -> tuple[int, ...]:
    digits = "".join(char if char.isdigit() else " " for char in text.replace("rc", ".0.").replace("post", "."))
    return tuple(int(part) for part in digits.split())
