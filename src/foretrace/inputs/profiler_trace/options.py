"""The options of profiler traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.option_values import (
    MAX_BATCH,
    HostMode,
    check_factor,
    check_mesh,
    check_whole,
    check_word,
    read_pairs,
)


@dataclass(frozen=True, slots=True)
class ProfilerTraceOptions:
    """How to build a job from profiler traces; what is None is read off the traces.

    Attributes:
        mesh: The mesh of the job to predict; as text ("dp=64"), axes that it does not name stay as traced.
        traced: The mesh of the traces, where they do not say it.
        gpus: Another number of GPUs; dp follows.
        host: How the host runs.
        steps: Which of the recorded steps are used, by their position from 0.
        batch: How many times the recorded samples a step has.
        gpu: The GPU that computation is rescaled to.
        sizes: Names and values of what a trace does not hold: `(("moe.tokens", "8192"),)`.
        priced: Whether recorded communication is left to a machine to price.
    """

    mesh: Mesh | str | None = None
    traced: Mesh | str | None = None
    gpus: int | None = None
    host: HostMode = "profiled"
    steps: tuple[int, ...] | None = None
    batch: float = 1.0
    gpu: str | None = None
    sizes: tuple[tuple[str, str], ...] = ()
    priced: bool = False

    def __post_init__(self) -> None:
        check_mesh("mesh", self.mesh)
        check_mesh("traced", self.traced)
        check_whole("gpus", self.gpus, 1)
        check_word("host", self.host, get_args(HostMode))
        hint = f"expected a number from {1 / MAX_BATCH:g} to {MAX_BATCH:g}"
        check_factor("batch", self.batch, 1 / MAX_BATCH, MAX_BATCH, hint)
        object.__setattr__(self, "sizes", read_pairs("sizes", self.sizes))
        if self.steps is None:
            return
        if not isinstance(self.steps, Sequence) or isinstance(self.steps, str):
            raise InputError("bad-value", f"steps is {self.steps!r}", hint="expected positions from 0, such as (1, 2)")
        object.__setattr__(self, "steps", tuple(self.steps))
        for step in self.steps:
            check_whole("a step", step, 0)
