"""The options of training scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from foretrace.basics.errors import InputError, UsageError, shortened, shown_value
from foretrace.basics.numbers import MAX_REAL
from foretrace.inputs.option_texts import read_numbers
from foretrace.inputs.option_values import check_factor, check_whole

MAX_WORLD: Final = 1 << 20
MAX_STEP: Final = 1000
"""The last step that can be recorded; every step before it is traced too."""
DEFAULT_STEP: Final = 1
"""The step that is recorded: the first one allocates memory that stays, such as optimizer states."""


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    """How to trace a script.

    Attributes:
        world: GPUs of the job, which are its ranks.
        arguments: The arguments of the script.
        trace_ranks: The ranks to trace, or "all"; None: those that differ.
        steps: The first and the last step to record, from 0; None: the second step.
        routing: How tokens choose experts: `balanced`, `zipf:1.2` or the path of a file.
        unknown: The number that stands for numbers that only a GPU knows; None: a script that needs one is refused.
    """

    world: int | None = None
    arguments: tuple[str, ...] = ()
    trace_ranks: tuple[int, ...] | Literal["all"] | None = None
    steps: tuple[int, int] | None = None
    routing: str = "balanced"
    unknown: float | None = None

    def __post_init__(self) -> None:
        check_whole("world", self.world, 1, MAX_WORLD)
        object.__setattr__(self, "arguments", _texts("arguments", self.arguments))
        object.__setattr__(self, "trace_ranks", _ranks(self.trace_ranks, self.world))
        object.__setattr__(self, "steps", _steps(self.steps))
        if not isinstance(self.routing, str):
            raise InputError("bad-value", f"routing is {shown_value(self.routing)}", hint=_ROUTING)
        if self.unknown is not None:
            check_factor("unknown", self.unknown, -MAX_REAL, MAX_REAL, "expected a number")


_ROUTING: Final = "expected balanced, zipf:1.2 or the path of a file"
_STEPS: Final = "expected a step from 0 such as 1, or the first and the last such as 2:4"


def _texts(name: str, value: object) -> tuple[str, ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, tuple | list)
        or not all(isinstance(text, str) for text in value)
    ):
        hint = 'expected texts such as ("--layers", "4")'
        raise InputError("bad-value", f"{name} is {shown_value(value)}", hint=hint)
    return tuple(value)


def _ranks(value: object, world: int | None) -> tuple[int, ...] | Literal["all"] | None:
    if value is None or value == "all":
        return value
    if isinstance(value, str) or not isinstance(value, tuple | list) or not value:
        raise InputError("bad-value", f"trace_ranks is {shown_value(value)}", hint='expected ranks, or "all"')
    for rank in value:
        check_whole("a rank", rank, 0, MAX_WORLD)
        if world is not None and rank >= world:
            hint = f"ranks are from 0 to {world - 1:,}"
            raise InputError("no-such-rank", f"there is no rank {rank:,} among {world:,}", hint=hint)
    return tuple(sorted(set(value)))


def _steps(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value, value)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InputError("bad-value", f"steps is {shown_value(value)}", hint=_STEPS)
    first, last = value
    check_whole("the first step", first, 0, MAX_STEP)
    check_whole("the last step", last, first, MAX_STEP)
    return first, last


def read_ranks(text: str) -> tuple[int, ...] | Literal["all"]:
    """Reads `0,5,60-63` or `all`."""
    if text.strip().lower() == "all":
        return "all"
    return tuple(read_numbers(text, "--trace-ranks", "rank", "0,5,63"))


def read_recorded_steps(text: str) -> tuple[int, int]:
    """Reads `1`, `2:4` or `2-4`: the first and the last step to record."""
    steps = read_numbers(text.replace(":", "-"), "--steps", "step", "2:4")
    if len(steps) > 1 and "," in text:
        problem = f"--steps {shortened(text)}: steps of a script that are recorded follow each other"
        raise UsageError("bad-value", problem, hint=_STEPS)
    return steps[0], steps[-1]
