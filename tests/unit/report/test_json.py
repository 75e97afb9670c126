"""Records as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from foretrace.report.json import read_record, to_json, with_properties


@dataclass(frozen=True, slots=True)
class Answer:
    """Something that is reported."""

    time_s: float
    name: str

    @property
    def time_us(self) -> float:
        """The time in microseconds."""
        return 1e6 * self.time_s


@dataclass(frozen=True, slots=True)
class Record:
    """What is reported about it, in another order."""

    label: str
    time_us: float
    time_s: float


def test_the_schema_comes_first_and_parts_follow_in_order() -> None:
    result = to_json("foretrace.test/1", {"kind": "x"}, Answer(2.0, "a"), {"path": Path("b"), "kind": ("y",)})
    assert list(result) == ["schema", "kind", "time_s", "name", "path"]
    assert result == {"schema": "foretrace.test/1", "kind": ["y"], "time_s": 2.0, "name": "a", "path": "b"}


def test_a_record_reads_attributes_of_the_same_name() -> None:
    assert read_record(Record, Answer(2.0, "a"), label="b") == Record("b", 2e6, 2.0)
    with pytest.raises(AttributeError):
        read_record(Record, Answer(2.0, "a"))


def test_properties_follow_the_fields() -> None:
    assert list(with_properties(Answer(2.0, "a"), "time_us").items()) == [
        ("time_s", 2.0),
        ("name", "a"),
        ("time_us", 2e6),
    ]
