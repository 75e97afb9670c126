"""Traces code of the calling process: a block of a script, or a function that makes a step.

with foretrace.trace(world=1024) as traced:
    main()  # trains with PyTorch
answer = foretrace.simulate(traced.program(), foretrace.Machine("h100-dgx"))
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from foretrace.basics.errors import InputError, UsageError
from foretrace.inputs.option_values import check_whole
from foretrace.inputs.script.options import DEFAULT_STEP, ScriptOptions

if TYPE_CHECKING:
    from foretrace.inputs.script.recording import RankRecording
    from foretrace.inputs.script.tracer.session import TraceSession
    from foretrace.program.program import Program

State = TypeVar("State")

_running: Final = Lock()
"""Held while a block is traced: traces within each other or of two threads would record each other's work."""


class ScriptTrace:
    """A context manager that simulates a GPU for what runs within it, and records that.

    All changes to the process are undone after the block. The block ends early, without an error, if a step begins
    after the last step to record.

    Attributes:
        rank: The rank that the block runs as.
        world: Ranks of the job.
    """

    def __init__(
        self, world: int, rank: int, gpus_per_node: int, steps: tuple[int, int], unknown: float | None, routing: str
    ) -> None:
        self.rank, self.world = rank, world
        self._gpus_per_node, self._steps, self._unknown, self._routing = gpus_per_node, steps, unknown, routing
        self._session: TraceSession | None = None
        self._recording: RankRecording | None = None
        self._environ: dict[str, str] = {}

    def __enter__(self) -> Self:
        from foretrace.inputs.script.tracing import check_torch

        if self._session is not None:
            raise UsageError("usage", "a trace is of one block", hint="make another one with foretrace.trace")
        check_torch()
        if not _running.acquire(blocking=False):
            problem = "another trace is running in this process, and each replaces parts of PyTorch"
            raise UsageError("usage", problem, hint="trace one after the other, or each in a process of its own")
        try:
            return self._enter()
        except BaseException:
            _running.release()
            raise

    def _enter(self) -> Self:
        self._environ = dict(os.environ)  # importing parts of PyTorch sets variables too
        from foretrace.inputs.script.routing import parse_routing
        from foretrace.inputs.script.tracer.session import TraceSession

        self._session = TraceSession(
            self.rank,
            self.world,
            gpus=self._gpus_per_node,
            steps=self._steps,
            unknown=self._unknown,
            routing=parse_routing(self._routing),
        )
        try:
            self._session.__enter__()
        except BaseException:
            self._session.patches.undo()
            self._restore_environ()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        from foretrace.inputs.script.tracer.places import TraceComplete
        from foretrace.inputs.script.tracer.unknown import CannotTrace

        assert self._session is not None, "entered before"
        try:
            self._session.__exit__(kind, error, trace)
            self._restore_environ()
        finally:
            _running.release()
        if isinstance(error, CannotTrace):
            raise InputError(error.code, error.message, where=error.where, hint=error.hint) from None
        if error is not None and not isinstance(error, TraceComplete):
            return False
        self._recording = self._session.recording()
        return True

    def _restore_environ(self) -> None:
        if os.environ != self._environ:
            os.environ.clear()
            os.environ.update(self._environ)

    @property
    def recording(self) -> RankRecording:
        """What was recorded: the steps to record, or the last step if the block ran fewer."""
        if self._recording is None:
            raise UsageError("usage", "nothing is recorded before the block has ended")
        return self._recording

    def program(self, *, title: str = "", pace: float = 1.0) -> Program:
        """Returns the program of a job whose ranks all behave as the recorded one.

        Args:
            title: The title of the program.
            pace: The factor on the seconds of the host.

        Raises:
            InputError: The recording fails a check, such as a step without a backward.
        """
        from foretrace.inputs.script.checks import check_recordings
        from foretrace.inputs.script.program import program_of
        from foretrace.inputs.script.roles import with_roles

        job = with_roles((self.recording,), self.world)
        warnings = check_recordings(job.recordings)
        program = program_of(job.recordings, job.stands_for, title=title or "a traced block", pace=pace)
        return replace(program, diagnostics=(*job.diagnostics, *program.diagnostics, *warnings))


def trace(
    *,
    world: int,
    rank: int = 0,
    gpus_per_node: int = 8,
    steps: int | tuple[int, int] = DEFAULT_STEP,
    unknown: float | None = None,
    routing: str = "balanced",
) -> ScriptTrace:
    """Returns a context manager within which PyTorch runs as if on a GPU of a job, and is recorded.

    Args:
        world: Ranks of the job.
        rank: The rank that the block runs as.
        gpus_per_node: GPUs of a node.
        steps: The step to record, from 0, or the first and the last one.
        unknown: What stands for numbers that only a GPU knows; None: code that decides by one is refused.
        routing: How tokens choose experts: `balanced`, `zipf:1.2` or the path of a file.
    """
    recorded = (steps, steps) if isinstance(steps, int) else steps
    options = ScriptOptions(world=world, trace_ranks=(rank,), steps=recorded, routing=routing, unknown=unknown)
    check_whole("gpus_per_node", gpus_per_node, 1)
    assert options.steps is not None, "steps were given"
    return ScriptTrace(world, rank, gpus_per_node, options.steps, unknown, routing)


def trace_step(
    build: Callable[[], State],
    step: Callable[[State], object],
    *,
    world: int,
    rank: int = 0,
    gpus_per_node: int = 8,
    warmup: int = 1,
    unknown: float | None = None,
    routing: str = "balanced",
) -> ScriptTrace:
    """Traces a step that a function runs.

    Args:
        build: Returns the model, the optimizer and all else that a step needs.
        step: Runs a step on what `build` returned, up to and including that of the optimizer.
        world: Ranks of the job.
        rank: The rank that they run as.
        gpus_per_node: GPUs of a node.
        warmup: Steps before the one that is recorded; the first one allocates memory that stays.
        unknown: What stands for numbers that only a GPU knows; None: code that decides by one is refused.
        routing: How tokens choose experts: `balanced`, `zipf:1.2` or the path of a file.
    """
    traced = trace(world=world, rank=rank, gpus_per_node=gpus_per_node, steps=warmup, unknown=unknown, routing=routing)
    with traced:
        state = build()
        for _ in range(warmup + 1):
            step(state)
    return traced
