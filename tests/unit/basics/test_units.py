"""Quantities as text: what is read, what is refused and how it is shown."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics import units
from foretrace.basics.errors import InputError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("25us", 25e-6),
        ("25 µs", 25e-6),
        ("25 μs", 25e-6),
        ("1.5 ms", 1.5e-3),
        ("2h", 7200.0),
        ("3min", 180.0),
        ("1d", 86400.0),
        (" 7ns ", 7e-9),
        ("1e-3s", 1e-3),
        ("0", 0.0),
        (2, 2.0),
        (0.5, 0.5),
        (np.int64(3), 3.0),
    ],
)
def test_time_is_read_in_seconds(text: str | float, seconds: float) -> None:
    assert units.parse_time(text) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("80GiB", 80 * 2**30),
        ("16MB", 16_000_000),
        ("512", 512),
        ("1.5KiB", 1536),
        ("1kB", 1000),
        ("1KB", 1000),
        ("2EB", 2 * 10**18),
        ("1,024", 1024),
        (2**60 + 1, 2**60 + 1),
    ],
)
def test_binary_and_decimal_sizes_are_told_apart(text: str | int, size_bytes: int) -> None:
    assert units.parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("400Gbps", 50e9),
        ("400 Gb/s", 50e9),
        ("400Gbit/s", 50e9),
        ("50GB/s", 50e9),
        ("50GBps", 50e9),
        ("3.35TB/s", 3.35e12),
        ("1GiB/s", 2.0**30),
        ("8 b/s", 1.0),
        (50e9, 50e9),
    ],
)
def test_bits_and_bytes_per_second_are_told_apart(text: str | float, bytes_per_s: float) -> None:
    assert units.parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize("text", ["989 TFLOP/s", "989TFLOPS", "989 TFLOPs", "0.989PFLOP/s", 989e12])
def test_compute_rate_is_read_in_flop_per_second(text: str | float) -> None:
    assert units.parse_flops(text) == pytest.approx(989e12, rel=1e-15)


@pytest.mark.parametrize("text", ["1.1x", "1.1", "1.1×", "110%", "110 %", 1.1])
def test_factor_is_read_as_a_ratio(text: str | float) -> None:
    assert units.parse_factor(text) == 1.1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("1e6", 10**6), ("1_024", 1024), ("1,024", 1024), (4096.0, 4096)),
        *(("300k", 300_000), ("2.5B", 2_500_000_000), ("15T", 15 * 10**12), ("1.005k", 1005)),
    ],
)
def test_count_is_read_as_a_whole_number(text: str | float, count: int) -> None:
    assert units.parse_count(text) == count


@pytest.mark.parametrize(
    ("parse", "value", "problem"),
    [
        (units.parse_time, "25", "has no unit"),
        (units.parse_time, "25US", 'unknown unit "US"; did you mean us?'),
        (units.parse_time, "5 seconds", 'unknown unit "seconds"; did you mean sec'),
        (units.parse_time, "-1s", "is negative"),
        (units.parse_time, "−1s", "is negative"),
        (units.parse_time, "nan", "is not a finite number"),
        (units.parse_time, "1e999s", "is too large"),
        (units.parse_time, "fast", "does not start with a number"),
        (units.parse_time, ".", "does not start with a number"),
        (units.parse_time, "  ", "is empty"),
        (units.parse_time, math.nan, "is not a finite number"),
        (units.parse_time, 10**400, "is not a finite number"),
        (units.parse_time, -2, "is negative"),
        (units.parse_time, True, "is neither text nor a number"),
        (units.parse_time, None, "is neither text nor a number"),
        (units.parse_bytes, "80G", "did you mean GB or GiB?"),
        (units.parse_bytes, "16Mb", "did you mean MB?"),
        (units.parse_bytes, "1,5MB", 'has ",5MB" after the number'),
        (units.parse_bytes, -3, "is negative"),
        (units.parse_bandwidth, "400Gb", "did you mean Gbps or Gb/s?"),
        (units.parse_bandwidth, "400gbps", "did you mean GBps or Gbps?"),
        (units.parse_bandwidth, "400", "has no unit"),
        (units.parse_flops, "989tflops", "did you mean TFLOPS"),
        (units.parse_factor, "0", "is zero"),
        (units.parse_factor, "+10%", "does not start with a number"),
        (units.parse_count, "2.5", "is not whole"),
        (units.parse_count, "8kk", "unknown unit"),
        (units.parse_count, "-3", "is negative"),
        (units.parse_count, "2x", "unknown unit"),
        (units.parse_tokens, "8kk", "unknown unit"),
        (units.parse_tokens, "1.5", "is not whole"),
    ],
)
def test_refusal_names_the_text_the_problem_and_the_form(
    parse: Callable[..., float], value: object, problem: str
) -> None:
    with pytest.raises(InputError) as refused:
        parse(value, where="cluster.yaml:7")
    assert problem in refused.value.message
    assert str(refused.value).startswith("cluster.yaml:7: ")
    assert "expected" in (refused.value.hint or "")
    assert len(refused.value.message) < 150


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (-0.0, "0 s"),
        (12.84, "12.84 s"),
        (0.0032, "3.20 ms"),
        (25e-6, "25.0 µs"),
        (9.999e-6, "10.0 µs"),
        (0.99996, "1.00 s"),
        (250e-12, "0.250 ns"),
        (130.44, "130.4 s"),
        (1800.0, "30.0 min"),
        (8300.0, "2.3 h"),
        (354_000.0, "4.1 d"),
        (-3.94, "−3.94 s"),
        (math.inf, "inf s"),
        (math.nan, "nan s"),
    ],
)
def test_time_is_shown_in_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert units.format_time(seconds) == text


def test_time_is_shown_in_a_shared_unit() -> None:
    assert units.format_time(0.06, unit="s") == "0.06 s"
    assert units.format_time(-0.98, unit="s") == "−0.98 s"
    assert units.format_time(-0.001, unit="s") == "0.00 s"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1.5, "1.50 B"),
        (1024, "1.00 KiB"),
        (1023.9 * 1024, "1.00 MiB"),
        (61.3 * 2**30, "61.3 GiB"),
        (-2048, "−2.00 KiB"),
    ],
)
def test_size_is_shown_in_binary_units(size_bytes: float, text: str) -> None:
    assert units.format_bytes(size_bytes) == text


def test_rates_counts_and_percentages_are_shown() -> None:
    assert units.format_bandwidth(50e9) == "50.0 GB/s"
    assert units.format_bandwidth(0) == "0 B/s"
    assert units.format_flops(989e12) == "989 TFLOP/s"
    assert units.format_count(1024) == "1,024"
    assert units.format_count(-1024) == "−1,024"
    assert units.format_percent(0.412) == "41.2 %"
    assert units.format_percent(-0.1) == "−10.0 %"
    assert units.format_percent(-1e-9) == "0.0 %"


amounts = st.floats(min_value=1e-12, max_value=1e25)


@given(amounts)
def test_what_is_shown_reads_back_within_its_rounding(amount: float) -> None:
    assert units.parse_time(units.format_time(amount)) == pytest.approx(amount, rel=0.025)
    assert units.parse_bandwidth(units.format_bandwidth(amount)) == pytest.approx(amount, rel=0.0051)
    assert units.parse_flops(units.format_flops(amount)) == pytest.approx(amount, rel=0.0051)


@given(st.integers(min_value=0, max_value=10**15))
def test_a_count_reads_back_exactly(count: int) -> None:
    assert units.parse_count(units.format_count(count)) == count


@given(st.floats(min_value=0.01, max_value=100))
def test_a_percentage_reads_back_within_its_rounding(fraction: float) -> None:
    assert units.parse_factor(units.format_percent(fraction)) == pytest.approx(fraction, abs=0.00051)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (units.parse_time, units.parse_bytes, units.parse_bandwidth, units.parse_factor):
        with contextlib.suppress(InputError):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        *(("8k", 8192), ("128K", 131_072), ("1M", 2**20), ("8,192", 8192)),
        *(("131k", 131_072), ("65k", 65_536), ("262k", 262_144), ("100k", 102_400), ("1k", 1024)),
    ],
)
def test_k_of_a_sequence_is_binary(text: str, tokens: int) -> None:
    assert units.parse_tokens(text) == tokens


@given(st.floats(min_value=512, max_value=9e18))
def test_sizes_read_back_within_their_rounding(size: float) -> None:
    assert units.parse_bytes(units.format_bytes(size)) == pytest.approx(size, rel=0.0051, abs=0.51)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((units.parse_count, text) for text in ("1e-400", "1e-999999999", "0.5", "1e20", "9" * 5000, "٣", "1e30")),
        *((units.parse_bytes, text) for text in ("1.5", "1.5B", "0.0001KiB", "9EiB", 2.5, 10**400)),
        *((units.parse_factor, text) for text in ("1e300x", "1e-31", "5e-324", "0e-999999999", "infx", "1e31%")),
        *((units.parse_time, text) for text in ("1e-300s", "1e31s", 1e-40, "nan")),
    ],
)
def test_numbers_that_cannot_be_meant(parse: Callable[[object], float], text: object) -> None:
    with pytest.raises(InputError, match=r"\[(bad-value|out-of-range)\]"):
        parse(text)


def test_zero_with_any_exponent_is_zero() -> None:
    assert units.parse_count("0e-999999999") == 0
    assert units.parse_bytes("0.1GiB") == 107_374_182


@pytest.mark.parametrize("text", ["1.1", "2", "2.", "1e3", " 3 "])
def test_a_factor_without_x_could_be_a_count(text: str) -> None:
    with pytest.raises(InputError) as caught:
        units.parse_marked_factor(text)
    assert caught.value.code == "bad-value"
    assert units.parse_marked_factor(f"{text}x") == float(text)
    assert units.parse_marked_factor("110%") == 1.1


@pytest.mark.parametrize("seconds", [2.2e-16, -2.22e-16, 9e-13, 0.0])
def test_less_than_a_picosecond_is_nothing(seconds: float) -> None:
    assert units.format_time(seconds) == "0 s"


def test_a_difference_below_the_resolution_of_its_times_is_nothing() -> None:
    assert units.format_difference(22.79, 22.79 + 1e-9) == "0 s"
    assert units.format_difference(0.0, 0.0) == "0 s"
    assert units.format_difference(1.0, 1.5) == "−500 ms"
    assert units.format_difference(2e-9, 1e-9) == "+1.00 ns"


@pytest.mark.parametrize("digits", [308, 309, 310, 399, 400, 5000])
def test_numbers_beyond_all_floats_are_refused(digits: int) -> None:
    for parse, unit in (
        (units.parse_time, "s"),
        (units.parse_bytes, "GiB"),
        (units.parse_bandwidth, "Gbps"),
        (units.parse_flops, "TFLOPS"),
        (units.parse_factor, "x"),
        (units.parse_count, ""),
        (units.parse_power, "W"),
    ):
        with pytest.raises(InputError) as caught:
            parse("9" * digits + unit)
        assert caught.value.code == "out-of-range"
