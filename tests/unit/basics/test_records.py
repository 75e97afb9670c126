from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.basics.records import MAX_NESTING, Record, dims_of, read_json


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "bad-syntax"),
        ('{"a": Infinity}', "out-of-range"),
        ("[NaN]", "out-of-range"),
        ("9" * 5000, "out-of-range"),
        ("[" * 100_000, "too-deep"),
        ("[" * (MAX_NESTING + 1) + "]" * (MAX_NESTING + 1), "too-deep"),
    ],
)
def test_json_that_is_refused(text: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        read_json(text, "file.json")
    assert caught.value.code == code
    assert caught.value.where is not None


def test_json_at_the_limit_of_nesting() -> None:
    assert read_json("[" * MAX_NESTING + "]" * MAX_NESTING, "file.json")


@pytest.mark.parametrize("value", ["x", -1, True, [1], {}, 1.5, 10**400])
def test_a_field_that_is_not_a_whole_number(value: object) -> None:
    with pytest.raises(InputError) as caught:
        Record({"rank": value}, "file.json").whole("rank")
    assert caught.value.where == "file.json"
    assert len(caught.value.message) < 200


def test_missing_fields() -> None:
    record = Record({"a": None}, "file.json")
    assert record.whole("a", 3) == 3
    assert record.text("b", "") == ""
    for take in (record.whole, record.real, record.text, record.items, record.dims, record.record):
        with pytest.raises(InputError) as caught:
            take("a")
        assert caught.value.code == "missing-field"


def test_dims() -> None:
    assert dims_of([[2, 3], 4], "dims", "file.json") == ((2, 3), 4)
    nested: list[object] = [1]
    for _ in range(600):
        nested = [nested]
    with pytest.raises(InputError) as caught:
        dims_of(nested, "dims", "file.json")
    assert caught.value.code == "too-deep"
