"""States which figures of hardware are possible, and which exist.

A figure outside what is possible is an error. One that is possible, and far from that of anything that exists, is most
often a mistake in its unit (GB/s for Gb/s), and a warning names the likely one. Hypothetical hardware is within what is
possible. The usual ranges go from a tenth of the least to ten times the most of the presets, except NICs, whose bits
and bytes are eight apart: the fastest announced has 1.6 Tb/s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.numbers import NumberError, number_error, real_number
from foretrace.basics.units import format_bandwidth, format_bytes, format_flops

_BITS: Final = 8.0
_PREFIX: Final = 1000.0


@dataclass(frozen=True, slots=True)
class FigureRange:
    """Holds the values of a figure that are possible, and those that hardware has, in SI units."""

    least: float
    most: float
    usual_least: float
    usual_most: float
    show: Callable[[float], str]

    def meant(self, value: float) -> str | None:
        """Returns what a value that no hardware has was probably meant to be; None where there is nothing odd."""
        if self.usual_least <= value <= self.usual_most:
            return None
        steps = (_BITS, _PREFIX) if self.show is format_bandwidth else (_PREFIX,)
        for factor in steps:
            other = value / factor if value > self.usual_most else value * factor
            if self.usual_least <= other <= self.usual_most:
                remark = "b is bits, B is bytes" if factor == _BITS else "k, M, G and T are thousands apart"
                # Whoever wrote bytes for bits recognises the same digits.
                in_bits = factor == _BITS and other < value
                return f"is {self.show(value).replace('B/s', 'b/s') if in_bits else self.show(other)} meant? ({remark})"
        return f"{self.show(self.usual_least)} to {self.show(self.usual_most)} are usual"


def _watts(power_w: float) -> str:
    return f"{power_w:,.0f} W"


FIGURES: Final[Mapping[str, FigureRange]] = {
    "memory": FigureRange(1 << 26, 1 << 46, 4e9, 3e12, format_bytes),
    "memory_bandwidth": FigureRange(10e9, 1e15, 150e9, 80e12, format_bandwidth),
    "flops": FigureRange(1e10, 1e19, 1e12, 150e15, format_flops),
    "link_bandwidth": FigureRange(1e9, 200e12, 10e9, 9e12, format_bandwidth),
    "pcie_bandwidth": FigureRange(1e8, 20e12, 2e9, 1.3e12, format_bandwidth),
    "host_bandwidth": FigureRange(1e8, 20e12, 2e9, 3e12, format_bandwidth),
    "rate": FigureRange(1e6, 12.5e12, 0.1e9, 250e9, format_bandwidth),
    "power_w": FigureRange(10.0, 1e5, 50.0, 15_000.0, _watts),
}
"""Ranges by the fields of GPUs and NICs in a user's file; `flops` are the peaks of all dtypes."""


def unusual_figure(name: str, field: str, value: float, where: str) -> Diagnostic | None:
    """Returns the warning for the value of a field that no hardware has; None where it is usual."""
    figure = FIGURES[name]
    meant = figure.meant(value)
    if meant is None:
        return None
    text = f"{field} is {figure.show(value)}, which no hardware has: {meant}"
    return Diagnostic("warning", "unusual-hardware", text, where)


def check_figure(name: str, value: object, *, zero: bool = False) -> None:
    """Raises an error unless a value is a finite number from 1 on; `zero` means that 0 stands for none.

    What-ifs make hardware that is not possible: a NIC that is a million times as fast shows what it costs to wait.
    """
    try:
        if not zero or value != 0:
            real_number("" if isinstance(value, str | bytes) else value, least=1.0)
    except NumberError as error:
        raise number_error(error, name, value, None, "expected a figure in SI units: bytes, bytes/s, FLOP/s") from None


MAX_LAUNCH_FACTOR: Final = 10.0
"""How many times as slow or fast as usual a host may launch kernels: a launch of Python takes 31 us, of C++ about 3."""


def check_launch_factor(name: str, value: object, where: str | None = None) -> None:
    """Raises an error unless a host takes a tenth to ten times as long for a launch as a usual one."""
    try:
        number = "" if isinstance(value, str | bytes) else value
        real_number(number, least=1 / MAX_LAUNCH_FACTOR, most=MAX_LAUNCH_FACTOR)
    except NumberError as error:
        raise number_error(error, name, value, where, "expected a factor such as 2.75x") from None


MAX_COUNTS: Final[Mapping[str, int]] = {
    "links": 1_000,
    "compute_units": 4_096,
    "bridged_gpus": 16,
    "gpus": 1_024,
    "nics": 1_024,
    "domain_gpus": 100_000,
    "nodes": 10_000_000,
}
"""The largest counts of a GPU, a node and a cluster, far above those that exist: 18 links, 304 compute units, 16 GPUs
of a node, 72 GPUs that links join. Hypothetical hardware is possible, and three digits too many are not."""


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raises an error unless a value is a whole number from `least` to what `MAX_COUNTS` has for its name."""
    most = MAX_COUNTS[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        problem = NumberError("out-of-range", "cannot be meant")
        error: InputError = number_error(problem, name, value, None, f"expected {least:,} to {most:,}")
        raise error
