"""SimAI's ratio tables: reading them, and reading them off."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.compat.simai import RatioTable, load_tables
from foretrace.compat.simai.tables import SizeBeyondTableError

MIB = 1 << 20
ROWS = """Size,1,2,4,8,16,32,64,128,m16
16777216,.4,.5,.5,.5,.5,,,,.5
33554432,.6,.8,.8,.8,.8,.9,,,.8
67108864,.8,1,1,1,1,,,,1"""


def write(folder: Path, text: str = ROWS) -> Path:
    for name in ("nvlink_ratio.csv", "nic_ratio.csv", "ata_ratio.csv"):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> RatioTable:
    return load_tables(write(tmp_path)).nic


def test_ratios_are_those_of_the_largest_size(table: RatioTable) -> None:
    assert table.ratio(64 * MIB, 1) == 1.0
    assert table.ratio(32 * MIB, 1) == pytest.approx(0.75)
    assert table.ratio(24 * MIB, 1) == pytest.approx(0.625)


def test_below_the_first_row_it_counts_and_nothing_reaches_all(table: RatioTable) -> None:
    assert table.ratio(1, 1) == table.ratio(16 * MIB, 1) == pytest.approx(0.5)
    assert table.ratio(0, 1) == 1.0


def test_unknown_numbers_of_nodes_read_the_column_of_16(table: RatioTable) -> None:
    assert table.ratio(32 * MIB, 3) == table.ratio(32 * MIB, 256) == table.ratio(32 * MIB, 16)


def test_an_empty_cell_is_1_or_its_left_neighbour(table: RatioTable) -> None:
    assert table.ratio(16 * MIB, 32) == 1.0
    assert table.ratio(16 * MIB, 64, fill_left=True) == pytest.approx(0.5)
    assert table.ratio(32 * MIB, 64, fill_left=True) == pytest.approx(0.9)


def test_a_size_above_the_last_row_throws_unless_clamped(table: RatioTable) -> None:
    with pytest.raises(SizeBeyondTableError):
        table.ratio(64 * MIB + 1, 1)
    assert table.ratio(64 * MIB + 1, 1, clamp=True) == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROWS.replace(".6", "high"), 'ratio.csv:3: "high" is not a number above 0'),
        (ROWS.replace(".6", "-1"), 'ratio.csv:3: "-1" is not a number above 0'),
        (ROWS.replace(",,,,.5", ""), "ratio.csv:2: expected a size in bytes and at least 9 ratios"),
        (ROWS.replace("33554432", ""), "ratio.csv:3: expected a size"),
        (ROWS.replace("33554432", "5"), "ratio.csv:3: sizes do not rise"),
        ("Size\n", "fewer than two rows"),
    ],
)
def test_a_broken_table_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        load_tables(write(tmp_path, text))
    assert message in str(refusal.value)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_tables(tmp_path)
    assert caught.value.code == "file-not-found"
