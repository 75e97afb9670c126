"""Represents numbers that a script reads from the GPU, whose values a trace does not know."""

from __future__ import annotations

import math
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any, ClassVar, Final

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.script.tracer.patches import Patches

_OWN: Final = ("/foretrace/inputs/script/tracer/", "/torch/", "<frozen")


MAX_CAUGHT: Final = 100
"""How often a script may go on where it cannot be traced."""
MAX_DECISIONS: Final = 10_000
"""How often a script may decide by an unknown number at one line; more is a loop that such a number never ends."""


class CannotTrace(BaseException):
    """Ends a script that cannot be traced: it needs something that a trace does not have.

    It is not an `Exception`, so that a script does not catch it. One that catches everything is ended by `on_caught`,
    which is called with every such error after the first `MAX_CAUGHT`.
    """

    count: ClassVar[int] = 0
    on_caught: ClassVar[Callable[[CannotTrace], None] | None] = None

    def __init__(self, code: str, message: str, hint: str, where: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint
        self.where = where or script_line()
        CannotTrace.count += 1
        if CannotTrace.count > MAX_CAUGHT and CannotTrace.on_caught is not None:
            CannotTrace.on_caught(self)


def script_line() -> str:
    """Returns the line of the script that is running: the innermost one outside PyTorch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not any(part in name for part in _OWN):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return traceback.extract_stack()[0].filename


def asked_by(*files: str) -> bool:
    """Returns whether the script called code of PyTorch in a file whose path ends with one of `files`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in _OWN):
        if frame.f_code.co_filename.endswith(files):
            return True
        frame = frame.f_back
    return False


_BOUNDED: Final = ("torch/optim/_adafactor.py",)
"""Code of PyTorch that bounds one number by another, and launches the same kernels for any result."""


class UnknownNumber(float):
    """A number that is not known: it can be computed with and printed, but not compared.

    Attributes:
        assumed: The number that stands for every unknown one; None: a script that needs one is refused.
        noted: A note for each line of the script where a number was assumed.
        what: What the number is, for messages: "a value of a tensor".
    """

    assumed: ClassVar[float | None] = None
    noted: ClassVar[dict[str, Diagnostic]] = {}
    decisions: ClassVar[Counter[str]] = Counter()
    what: str

    @classmethod
    def make(cls, what: str) -> UnknownNumber:
        """Returns an unknown number, which messages call `what`."""
        number = cls(1.0 if cls.assumed is None else cls.assumed)
        number.what = what
        return number

    def settled(self) -> float:
        """Returns the assumed number, and notes that; raises `CannotTrace` if there is none."""
        if self.assumed is None and asked_by(*_BOUNDED):
            return 1.0
        if self.assumed is None:
            raise CannotTrace(
                "needs-value",
                f"the script decides by {self.what}, which is known on a GPU only",
                "--unknown NUMBER says what to take for such numbers, for example --unknown 1",
            )
        line = script_line()
        self.decisions[line] += 1
        if self.decisions[line] > MAX_DECISIONS:
            raise CannotTrace(
                "needs-value",
                f"the script decided {MAX_DECISIONS:,} times by {self.what}, taken to be {self.assumed:g}",
                "a loop that waits for another number needs a limit, or another --unknown",
            )
        text = f"{self.what} is taken to be {self.assumed:g} where the script decides by it"
        self.noted.setdefault(line, Diagnostic("note", "assumed", text, line))
        return self.assumed

    def __float__(self) -> float:
        # The result is a plain float, which is not recognisable as unknown.
        line, value = script_line(), 1.0 if self.assumed is None else self.assumed
        text = f"{self.what} is taken to be {value:g} where the script makes it a plain number"
        self.noted.setdefault(line, Diagnostic("note", "assumed", text, line))
        return value

    def __repr__(self) -> str:
        return "?"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "?"

    def __bool__(self) -> bool:
        return bool(self.settled())

    def __int__(self) -> int:
        return int(self.settled())

    __index__ = __trunc__ = __int__

    def __hash__(self) -> int:
        return float.__hash__(self)

    def __round__(self, digits: Any = None) -> Any:
        return self


def _compare(name: str) -> Callable[[UnknownNumber, Any], Any]:
    plain = getattr(float, name)

    def compared(self: UnknownNumber, other: Any) -> Any:
        own = self.settled()
        other = other.settled() if isinstance(other, UnknownNumber) else other
        return plain(own, other) if isinstance(other, int | float) else NotImplemented

    return compared


def _combine(number: UnknownNumber, *_: Any) -> UnknownNumber:
    return UnknownNumber.make(number.what)


_MATH: Final = (
    "acos acosh asin asinh atan atan2 atanh cbrt copysign cos cosh degrees dist erf erfc exp exp2 expm1 fabs fmod "
    "fsum gamma hypot ldexp lgamma log log10 log1p log2 pow prod radians sin sinh sqrt sumprod tan tanh"
)


def install(patches: Patches) -> None:
    """Makes functions of `math` return unknown numbers for such; they would read the assumed one unseen."""
    for name in _MATH.split():
        if hasattr(math, name):  # Python 3.12 has more of them
            patches.set(math, name, _through(getattr(math, name)))


def _through(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            if isinstance(value, UnknownNumber):
                return UnknownNumber.make(value.what)
        return function(*args, **kwargs)

    return computed


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(UnknownNumber, _name, _compare(_name))
for _name in [
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__truediv__",
    "__rtruediv__",
    "__floordiv__",
    "__rfloordiv__",
    "__mod__",
    "__rmod__",
    "__pow__",
    "__rpow__",
    "__neg__",
    "__pos__",
    "__abs__",
]:
    setattr(UnknownNumber, _name, _combine)
