"""Limits on what is read and on the size of a job, and how a user raises them.

A job above its limits is a typing mistake, or more than can be run. A file above its limits is not of its kind, or was
made to do harm. The limits on files and on time can be raised: `FORETRACE_LIMITS=4x` multiplies all of them by four.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from foretrace.basics.errors import InputError, UsageError, quoted
from foretrace.basics.numbers import NumberError, real_number

MAX_STAGES = 1024
MAX_GPUS = 4_000_000
MAX_OPS = 8_000_000
"""Ops of one rank of every kind; more would take gigabytes and longer than a person waits."""

VARIABLE = "FORETRACE_LIMITS"
"""The environment variable that multiplies the limits on files and on time."""

_MIN_FACTOR, _MAX_FACTOR = 1e-6, 1e6


def limit_factor() -> float:
    """Returns the factor by which the user raised the limits, 1 where the variable is not set."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return 1.0
    try:
        return real_number(text.removesuffix("x"), least=_MIN_FACTOR, most=_MAX_FACTOR)
    except NumberError:
        raise UsageError(
            "bad-value", f"{VARIABLE}={quoted(text)} is not a factor", hint=f"for example {VARIABLE}=4x"
        ) from None


def limited(most: int) -> int:
    """Returns a limit as the user raised it."""
    return round(most * limit_factor())


_RAISE = f"{VARIABLE}=4x raises the limits on files and on time"


def too_large(what: str, where: str | None, hint: str | None = None) -> InputError:
    """Returns the error for an input above a limit; `what` states the limit: "the file has more than 1 MiB"."""
    return InputError("input-too-large", what, where=where, hint=f"{hint}; {_RAISE}" if hint else _RAISE)


def check_limit(amount: int, most: int, what: str, where: str | None) -> None:
    """Raises an error where `amount` of `what` ("lines", "characters of expanded variables") is above a limit."""
    if amount > limited(most):
        raise too_large(f"there are more than {limited(most):,} {what}", where)


def check_lines(data: bytes, max_lines: int, max_bytes: int, where: str) -> None:
    """Raises an error where a text has more than `max_lines`, or a line of more than `max_bytes`."""
    most, longest = limited(max_lines), limited(max_bytes)
    if max(data.count(b"\n"), data.count(b"\r")) > most:
        raise too_large(f"the file has more than {most:,} lines", where)
    begin = 0
    while begin + longest < len(data):
        end = max(data.rfind(mark, begin, begin + longest + 1) for mark in (b"\n", b"\r"))
        if end < 0:
            line = data.count(b"\n", 0, begin) + 1
            raise too_large(f"the line has more than {longest:,} bytes", f"{where}:{line}")
        begin = end + 1


@dataclass(slots=True)
class Deadline:
    """The time that a piece of work may take; whoever does the work calls `check` now and then."""

    seconds: float
    what: str
    """The work, as errors name it: "reading the log"."""
    where: str | None = None
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self.seconds *= limit_factor()
        self._end = time.monotonic() + self.seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is spent."""
        return time.monotonic() > self._end

    def extend(self, seconds: float) -> None:
        """Adds time, for work that turned out to be larger."""
        seconds *= limit_factor()
        self.seconds += seconds
        self._end += seconds

    def check(self) -> None:
        """Raises an error where the time is spent."""
        if self.is_over:
            problem = f"{self.what} took more than {self.seconds:.3g} s"
            raise InputError("gave-up", problem, where=self.where, hint=_RAISE)


def check_gpus(gpus: int, where: str) -> None:
    """Raises an error where there are more than any cluster has."""
    if gpus > MAX_GPUS:
        raise InputError(
            "too-large", f"{gpus:,} GPUs are more than any cluster has", where=where, hint=f"at most {MAX_GPUS:,}"
        )


def check_ops(ops: int, stages: int, microbatches: int, where: str) -> None:
    """Raises an error where there are more than can be run."""
    if ops > MAX_OPS:
        raise InputError(
            "too-large",
            f"{microbatches:,} microbatches on {stages:,} stages are more than can be run",
            where=where,
            hint="take fewer: the step grows in proportion, --microbatches 256",
        )
