"""Reads SimAI's ratio tables: the share of the bandwidth that a collective reaches, by size and number of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from foretrace.basics.errors import InputError, quoted
from foretrace.basics.files import read_whole
from foretrace.basics.numbers import NumberError, real_number
from foretrace.compat.simai.machine import f32

_COLUMNS: Final = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4, 32: 5, 64: 6, 128: 7, 9: 8}
"""Nodes to column. 9 stands for "several groups over 16 nodes", so nine real nodes land there too."""
_OTHER_COLUMN: Final = 4
MAX_BYTES: Final = 1 << 20
"""A table has a line for each size, of which there are some dozens."""
_HINT: Final = "SimAI keeps nvlink_ratio.csv, nic_ratio.csv and ata_ratio.csv in inputs/ratio"


class SizeBeyondTableError(Exception):
    """A size above the last row: SimAI throws, swallows it, and writes no figures."""


@dataclass(frozen=True, slots=True)
class RatioTable:
    """One table: rising sizes in bytes, and ratios by column for each; None is an empty cell, read as 1 by SimAI."""

    sizes: tuple[float, ...]
    rows: tuple[tuple[float | None, ...], ...]

    def ratio(self, size_bytes: int, nodes: int, *, fill_left: bool = False, clamp: bool = False) -> float:
        """Fraction of the bandwidth of the largest size, as a C++ `float`; linear between rows, below the first flat.

        `fill_left` reads an empty cell as its neighbour to the left instead of 1; `clamp` reads sizes above the table
        as its last row instead of raising `SizeBeyondTableError`.
        """
        if size_bytes == 0:
            return 1.0
        column = _COLUMNS.get(nodes, _OTHER_COLUMN)
        last = self._cell(-1, column, fill_left)
        size = float(size_bytes)
        if size < self.sizes[0]:
            return f32(self._cell(0, column, fill_left) / last)
        for row, (low, high) in enumerate(pairwise(self.sizes)):
            if low <= size <= high:
                value = self._cell(row, column, fill_left)
                rise = self._cell(row + 1, column, fill_left) - value
                return f32((value + rise * (size - low) / (high - low)) / last)
        if clamp:
            return 1.0
        raise SizeBeyondTableError

    def _cell(self, row: int, column: int, fill_left: bool) -> float:
        cells = self.rows[row]
        if fill_left:
            return next((cell for cell in cells[column::-1] if cell is not None), 1.0)
        cell = cells[column]
        return 1.0 if cell is None else cell


@dataclass(frozen=True, slots=True)
class RatioTables:
    """SimAI's three tables: rings bound by NVLink, rings otherwise, and all-to-all."""

    nvlink: RatioTable
    nic: RatioTable
    all_to_all: RatioTable


def load_tables(directory: str | Path) -> RatioTables:
    """The tables nvlink_ratio.csv, nic_ratio.csv and ata_ratio.csv of a directory."""
    folder = Path(directory)
    return RatioTables(
        _read(folder / "nvlink_ratio.csv"), _read(folder / "nic_ratio.csv"), _read(folder / "ata_ratio.csv")
    )


def _read(path: Path) -> RatioTable:
    data = read_whole(path, "ratio table", _HINT, MAX_BYTES)
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError("not-text", "ratio table is not text", where=str(path)) from None
    sizes: list[float] = []
    rows: list[tuple[float | None, ...]] = []
    for number, line in enumerate(lines[1:], start=2):
        if line:
            size, cells = _row(line, f"{path}:{number}")
            if sizes and size <= sizes[-1]:
                raise InputError("bad-value", "sizes do not rise", where=f"{path}:{number}")
            sizes.append(size)
            rows.append(cells)
    if len(rows) < 2:
        raise InputError("empty-file", "ratio table has fewer than two rows of sizes", where=str(path))
    return RatioTable(tuple(sizes), tuple(rows))


def _row(line: str, where: str) -> tuple[float, tuple[float | None, ...]]:
    size, *cells = (_cell(text.strip(), where) for text in line.split(","))
    columns = len(_COLUMNS)
    if size is None or len(cells) < columns:
        raise InputError("bad-syntax", f"expected a size in bytes and at least {columns} ratios", where=where)
    return size, tuple(cells[:columns])


def _cell(text: str, where: str) -> float | None:
    if not text:
        return None
    try:
        number = real_number(text)
    except NumberError:
        number = 0.0
    if not number:
        raise InputError("bad-value", f"{quoted(text)} is not a number above 0", where=where)
    return number
