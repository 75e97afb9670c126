"""Installs everything that traces a script, and returns the recording afterwards."""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import partial
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

import torch
import torch._dynamo  # before anything is replaced: it looks at functions by identity

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.script.recording import RankRecording
from foretrace.inputs.script.routing import Routing
from foretrace.inputs.script.tracer import unknown
from foretrace.inputs.script.tracer.dispatch import Recorder
from foretrace.inputs.script.tracer.events import EventLog
from foretrace.inputs.script.tracer.mailbox import Mailbox
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.places import StepPlaces
from foretrace.inputs.script.tracer.replacements import (
    autocast,
    composites,
    cuda,
    ddp,
    frameworks,
    functional,
    routers,
    tensors,
    values,
)
from foretrace.inputs.script.tracer.replacements.groups import GroupBook, environment
from foretrace.inputs.script.tracer.storages import Storages
from foretrace.inputs.script.tracer.unknown import CannotTrace, UnknownNumber
from foretrace.program.columns import Category


class TraceSession:
    """A context within which PyTorch runs as a rank of a job, as if on a GPU; `recording()` returns what it issued.

    Args:
        rank: The rank that runs.
        world: Ranks of the job.
        gpus: GPUs of a node.
        steps: The numbers of the first and the last step to record, from 0.
        unknown: The number that stands for values that are known on a GPU only; None: those are errors.
        routing: How tokens choose experts.
        mailbox: What carries objects between ranks that are traced together.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        *,
        gpus: int = 8,
        steps: tuple[int, int] = (1, 1),
        unknown: float | None = None,
        routing: Routing | None = None,
        mailbox: Mailbox | None = None,
    ) -> None:
        self.rank, self.world, self.gpus = rank, world, gpus
        self.patches = Patches()
        self.log = EventLog()
        self.storages = Storages(self.log, torch.device("cuda", rank % min(gpus, world)))
        self.recorder = Recorder(self.log, self.storages)
        self.groups = GroupBook(self.recorder, rank, world)
        self.places = StepPlaces(self.log, steps[1])
        self._first_step, self._last_step = steps
        self.mailbox = mailbox or Mailbox(rank, None)
        self.notes: list[Diagnostic] = []
        self._unknown, self._routing = unknown, routing or Routing()
        self._tally = CallTally(self.recorder)
        self._parameters = self._whole_parameters = 0
        self._tokens: list[tuple[int, int]] = []
        self._optimizers: set[int] = set()
        self._lost_before: Counter[str] = Counter()

    def __enter__(self) -> Self:
        UnknownNumber.assumed = self._unknown
        UnknownNumber.noted.clear()
        UnknownNumber.decisions.clear()
        CannotTrace.count = 0
        environ = dict(os.environ)
        os.environ.update(environment(self.rank, self.world, self.gpus))
        self.patches.on_undo(partial(_restore_environment, environ))
        cuda.install(
            self.patches, self.log, self.storages, self.rank % min(self.gpus, self.world), min(self.gpus, self.world)
        )
        tensors.install(self.patches, self.recorder)
        values.install(self.patches, self.recorder)
        unknown.install(self.patches)
        self.groups.install(self.patches)
        functional.install(self.groups)
        composites.install(self.patches, self.recorder)
        autocast.install(self.patches)
        ddp.install(self.patches, self.recorder)
        frameworks.install(self.patches, self.recorder, self.places, self.mailbox, self.notes)
        routers.install(self.recorder, self._routing, self.notes)
        self.places.on_optimizer = self._mark_optimizer
        self.places.on_input = self._count_tokens
        self.places.on_step_end = self._after_steps
        self.places.install(self.patches)
        self.recorder.__enter__()
        self._after_steps(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tally.stop()
        self.recorder.__exit__(kind, error, trace)
        self.patches.undo()

    def recording(self) -> RankRecording:
        """Returns what was recorded: the steps to record, or the last one if the script ended before."""
        self.places.finish_step()
        ends = self.places.ends
        first = min(self._first_step, max(len(ends) - 1, 0))
        steps = list(zip([0, *ends], ends, strict=False))[first : self._last_step + 1]
        return RankRecording(
            rank=self.rank,
            world=self.world,
            events=self.log.events,
            steps=steps,
            first_step=first,
            signatures=self.log.signatures,
            modules=self.places.modules,
            groups=self.groups.recorded_groups(),
            streams=self.log.streams,
            storages=self.storages.recorded_lives(),
            parameters=self._parameters,
            whole_parameters=self._whole_parameters,
            tokens=self._tokens_of(steps[-1]) if steps else 0,
            torch_version=str(torch.__version__),
            diagnostics=[*self.notes, *self._lost(), *UnknownNumber.noted.values()],
        )

    def _after_steps(self, steps: int) -> None:
        """Starts to count calls at the beginning of the first step to record."""
        if steps >= self._first_step:
            self._tally.start()

    def _lost(self) -> list[Diagnostic]:
        """Returns a warning about ops of a step on tensors of the meta device, which are not recorded."""
        lost = self.recorder.lost - self._lost_before
        if not lost:
            return []
        some = ", ".join(f"{name} ({count:,})" for name, count in lost.most_common(3))
        text = f"{sum(lost.values()):,} ops ran on PyTorch's meta device and are not in the step: {some}"
        return [Diagnostic("warning", "ops-lost", text)]

    def _mark_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """States the categories of the memory of parameters, gradients and states."""
        if not self._optimizers:
            self._lost_before = Counter(self.recorder.lost)  # models may be laid out on the meta device first
        if id(optimizer) not in self._optimizers:
            self._optimizers.add(id(optimizer))
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                self._whole_parameters += parameter.numel()
                self._parameters += getattr(parameter, "_local_tensor", parameter).numel()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._mark(parameter, Category.WEIGHTS)
                if parameter.grad is not None:
                    self._mark(parameter.grad, Category.GRADIENTS)
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._mark(value, Category.OPTIMIZER)

    def _mark(self, tensor: Any, category: Category) -> None:
        self.storages.mark(getattr(tensor, "_local_tensor", tensor), category)

    def _count_tokens(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Counts the elements of the first matrix of integers among the inputs of a model."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32) and value.dim() == 2:
                self._tokens.append((self.log.next_number, value.numel()))
                return

    def _tokens_of(self, step: tuple[int, int]) -> int:
        """Returns the tokens that a step was given, by the numbers of its first event and of that after its last."""
        return sum(tokens for event, tokens in self._tokens if step[0] <= event < step[1])


def _restore_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


_TORCH: Final = Path(torch.__file__).parent
_DISPATCH: Final = "_compile.py _dynamo/eval_frame.py _library/simple_registry.py compiler/__init__.py _jit_internal.py"
_NOT_COUNTED: Final = frozenset(
    [
        *(str(path) for path in Path(__file__).parent.rglob("*.py")),
        *(str(_TORCH / name) for name in _DISPATCH.split()),
        "<frozen abc>",
    ]
)
"""Files of the tracer, and those through which PyTorch calls a dispatch mode."""


class CallTally:
    """Counts the calls of Python functions by a script and by PyTorch, from which the time of a host is estimated.

    Calls by the tracer, and by PyTorch to compute sizes on the meta device, do not count: on a GPU they do not happen.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._log = recorder, recorder.log
        self._running = False

    def start(self) -> None:
        """Starts to count, unless this thread has another profile function."""
        if not self._running and sys.getprofile() is None:
            self._running = True
            sys.setprofile(self._count)

    def stop(self) -> None:
        """Stops counting."""
        if self._running:
            self._running = False
            sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self._recorder.inside:
            return
        code = frame.f_code
        # Python reports that a generator resumes as a call, too; that takes next to no time.
        if code.co_filename not in _NOT_COUNTED and not code.co_flags & CO_GENERATOR:
            self._log.calls += 1
