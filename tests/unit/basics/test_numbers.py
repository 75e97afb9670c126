from __future__ import annotations

import pytest

from foretrace.basics.numbers import NumberError, real_number, whole_number


@pytest.mark.parametrize(
    ("value", "number"),
    [("8192", 8192), ("1,048,576", 1048576), (b"12", 12), ("1e6", 1000000), (7, 7), (8.0, 8), (" 3 ", 3), ("+5", 5)],
)
def test_whole_numbers(value: object, number: int) -> None:
    assert whole_number(value) == number


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("1,04", "bad-value"),
        ("1,0480,576", "bad-value"),
        ("1_000", "bad-value"),
        ("0x10", "bad-value"),
        ("\N{SUPERSCRIPT TWO}", "bad-value"),
        ("\N{ARABIC-INDIC DIGIT THREE}", "bad-value"),
        ("", "bad-value"),
        ("2.5", "bad-value"),
        (True, "bad-value"),
        (None, "bad-value"),
        ([1], "bad-value"),
        ("-1", "out-of-range"),
        ("nan", "out-of-range"),
        (float("inf"), "out-of-range"),
        ("1e400", "out-of-range"),
        ("9" * 400, "out-of-range"),
        ("9" * 5000, "out-of-range"),
        (10**400, "out-of-range"),
    ],
)
def test_values_that_are_not_whole_numbers(value: object, code: str) -> None:
    with pytest.raises(NumberError) as caught:
        whole_number(value)
    assert caught.value.code == code


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e31", 10**400, "1.2.3", float("nan"), "1e9999999999", {}])
def test_values_that_are_not_real_numbers(value: object) -> None:
    with pytest.raises(NumberError):
        real_number(value)


def test_ranges() -> None:
    assert real_number("-2.5", least=-3) == -2.5
    with pytest.raises(NumberError):
        whole_number(9, most=8)
