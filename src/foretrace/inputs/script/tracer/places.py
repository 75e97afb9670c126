"""Follows where in a step a script is (phase, module, microbatch), and where its steps end."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakSet

import torch
from torch import nn

from foretrace.inputs.script.recording import Place
from foretrace.inputs.script.tracer.events import EventLog
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.program.columns import Phase

NO_MODULE: Final = -1

_WRAPPERS: Final = re.compile(r"(?:^module(?=\.|$)|_checkpoint_wrapped_module|_orig_mod|_fsdp_wrapped_module)\.?")
"""Parts of a module's path that wrappers of PyTorch add."""


MAX_REPEATS: Final = 8
"""Steps of one optimizer, such as that of a critic, after which a step of the script ends without the others."""


class TraceComplete(BaseException):
    """Ends the script after its last step to record."""


class StepPlaces:
    """Follows modules, backward passes and optimizer steps of a script.

    A step ends with the last `Optimizer.step` before the next forward pass, once every optimizer of the script has
    stepped. Optimizers that have not stepped while one has stepped `MAX_REPEATS` times, or that never step, are left
    out, also of the steps before. In a script without optimizers a step ends where the next forward pass follows a
    backward. `last_step` is the number of the last step to record, from 0. After it, the next forward pass raises
    `TraceComplete`.

    Attributes:
        modules: Paths of modules, which places refer to by number.
        ends: The number of events at the end of each step.
        models: The outermost modules that were called.
        on_optimizer: Called with each optimizer after its step.
        on_step_end: Called with the number of steps that have ended if no further optimizer steps.
        on_input: Called with the positional and the keyword arguments of an outermost module.
        on_caught: Called where the script goes on though `TraceComplete` was raised, since it catches everything.
    """

    def __init__(self, log: EventLog, last_step: int) -> None:
        self._log, self._last_step = log, last_step
        self.modules: list[str] = []
        self.ends: list[int] = []
        self.models: list[nn.Module] = []
        self.on_optimizer: Callable[[torch.optim.Optimizer], None] = lambda _: None
        self.on_step_end: Callable[[int], None] = lambda _: None
        self.on_input: Callable[[tuple[Any, ...], dict[str, Any]], None] = lambda *_: None
        self.on_caught: Callable[[], None] = lambda: None
        self._complete = False
        self._number: dict[str, int] = {}
        self._path: dict[int, int] = {}
        self._stack: list[int] = []
        self._backward_depth = self._backwards = self._forwards = 0
        self._keeps_graph = False
        self._optimizing = 0
        self._clipping = 0
        self._stepped: int | None = None
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._ever_stepped: set[int] = set()
        self._ended_parts: list[int] = []
        self._steps_of: Counter[int] = Counter()
        # The module of a backward node is that which was running when the node got its sequence number.
        self._first_numbers: list[int] = [0]
        self._owners: list[tuple[int, int]] = [(NO_MODULE, 0)]
        self._regions = 0
        self._region = 0
        log.place = self.place

    @property
    def backwards(self) -> int:
        """Backward passes since the last step ended."""
        return self._backwards

    def place(self) -> Place:
        """Returns where the step is now."""
        if self._optimizing or self._clipping:
            self._log.region = 0
            return Place(Phase.OPTIMIZER, NO_MODULE, -1)
        module = self._stack[-1] if self._stack else NO_MODULE
        self._log.region = self._region
        if not self._backward_depth:
            return Place(Phase.FORWARD, module, max(self._forwards - 1, 0))
        microbatch = self._backwards - 1
        if torch.is_grad_enabled() and (self._stack or not self._keeps_graph):
            return Place(Phase.RECOMPUTE, module, microbatch)
        node = torch._C._current_autograd_node()
        if node is not None and not self._stack:
            number = node._sequence_nr()
            at = bisect_right(self._first_numbers, number) - 1
            module, self._log.region = self._owners[at] if 0 <= at < len(self._owners) else (NO_MODULE, 0)
        return Place(Phase.BACKWARD, module, microbatch)

    def module_path(self, number: int) -> str:
        """Returns the path of a module that a place names."""
        return self.modules[number] if number >= 0 else ""

    def new_region(self) -> int:
        """Returns the number of a new compiled region."""
        self._regions += 1
        return self._regions

    @contextmanager
    def region(self, number: int) -> Iterator[None]:
        """Marks what runs within as a compiled region."""
        before, self._region = self._region, number
        self._mark(self._stack[-1] if self._stack else NO_MODULE)
        try:
            yield
        finally:
            self._region = before
            self._mark(self._stack[-1] if self._stack else NO_MODULE)

    def install(self, patches: Patches) -> None:
        """Makes modules, the autograd engine and optimizers report what they do."""
        self._install_modules(patches)
        self._install_engine(patches)
        self._install_optimizers(patches)

    def finish_step(self) -> None:
        """Ends the step where the optimizer stepped last."""
        self._end_without_optimizer()
        if any(id(optimizer) not in self._ever_stepped for optimizer in self._optimizers):
            self._leave_out()
        self._end_step()

    def _end_step(self) -> None:
        if self._stepped is not None:
            self.ends.append(self._stepped)
            self._stepped = None
        self._ended_parts.clear()

    def _leave_out(self) -> None:
        """Leaves out optimizers that do not step; parts that they were awaited in are steps of their own."""
        for optimizer in [optimizer for optimizer in self._optimizers if id(optimizer) not in self._steps_of]:
            self._optimizers.discard(optimizer)
        self.ends += self._ended_parts

    def _install_modules(self, patches: Patches) -> None:
        call = nn.Module._call_impl
        places = self

        def call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            places._enter(module, args, kwargs)
            try:
                return call(module, *args, **kwargs)
            finally:
                places._leave()

        patches.set(nn.Module, "_call_impl", call_module)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._stack and not self._backward_depth and torch.is_grad_enabled():
            self._end_without_optimizer()
            if self._stepped is not None and self._all_stepped():
                self._next_step()
            elif self._stepped is not None and self._stepped not in self._ended_parts[-1:]:
                self._ended_parts.append(self._stepped)
            self._forwards += 1
            self.on_input(args, kwargs)
        number = self._path.get(id(module))
        if number is None:
            number = self._learn(module)
        self._stack.append(number)
        self._mark(number)

    def _end_without_optimizer(self) -> None:
        if self._backwards and not self._optimizers and not self._steps_of:
            self._stepped = self._log.next_number
            self.on_step_end(len(self.ends) + 1)

    def _all_stepped(self) -> bool:
        if max(self._steps_of.values(), default=0) >= MAX_REPEATS:
            self._leave_out()
            return True
        return all(id(optimizer) in self._steps_of for optimizer in self._optimizers)

    def _leave(self) -> None:
        self._stack.pop()
        self._mark(self._stack[-1] if self._stack else NO_MODULE)

    def _mark(self, module: int) -> None:
        number = torch.autograd._get_sequence_nr()
        if self._first_numbers[-1] == number:
            self._owners[-1] = module, self._region
        elif self._first_numbers[-1] < number:
            self._first_numbers.append(number)
            self._owners.append((module, self._region))

    def _learn(self, module: nn.Module) -> int:
        """Numbers a module that is called for the first time, and all within it."""
        root = not self._stack
        if root:
            self.models.append(module)
        prefix = "" if root else f"{self.module_path(self._stack[-1])}."
        for path, inner in module.named_modules():
            # The path has the names that the script gives, without those of wrappers.
            text = _WRAPPERS.sub("", prefix + path).strip(".")
            if id(inner) not in self._path or root:
                number = self._number.setdefault(text, len(self._number))
                if number == len(self.modules):
                    self.modules.append(text)
                self._path[id(inner)] = number
        return self._path[id(module)]

    def _install_engine(self, patches: Patches) -> None:
        run = torch.autograd._engine_run_backward

        def keeps_graph(*args: Any, create_graph: bool = False, **_: Any) -> bool:
            return bool(args[3]) if len(args) > 3 else create_graph

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if not self._backward_depth:
                self._backwards += 1
            self._backward_depth += 1
            before, self._keeps_graph = self._keeps_graph, keeps_graph(*args, **kwargs)
            try:
                return run(*args, **kwargs)
            finally:
                self._backward_depth -= 1
                self._keeps_graph = before

        patches.set(torch.autograd, "_engine_run_backward", run_backward)
        patches.set(torch.autograd.graph, "_engine_run_backward", run_backward)

    def _install_optimizers(self, patches: Patches) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        init = torch.optim.Optimizer.__init__

        def init_optimizer(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self._optimizers.add(optimizer)

        def begin_step(*_: Any) -> None:
            self._optimizing += 1

        def end_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self._optimizing -= 1
            self.on_optimizer(optimizer)
            self._stepped = self._log.next_number
            self.on_step_end(len(self.ends) + 1)
            self._steps_of[id(optimizer)] += 1
            self._ever_stepped.add(id(optimizer))

        patches.set(torch.optim.Optimizer, "__init__", init_optimizer)
        patches.on_undo(register_optimizer_step_pre_hook(begin_step).remove)
        patches.on_undo(register_optimizer_step_post_hook(end_step).remove)
        clip = torch.nn.utils.clip_grad_norm_

        def clip_gradients(*args: Any, **kwargs: Any) -> Any:
            self._clipping += 1
            try:
                return clip(*args, **kwargs)
            finally:
                self._clipping -= 1

        patches.set(torch.nn.utils, "clip_grad_norm_", clip_gradients)
        patches.set(torch.nn.utils.clip_grad, "clip_grad_norm_", clip_gradients)

    def _next_step(self) -> None:
        self._end_without_optimizer()
        self._end_step()
        self._steps_of.clear()
        self._backwards = self._forwards = 0
        if len(self.ends) > self._last_step:
            if self._complete:
                self.on_caught()
            self._complete = True
            raise TraceComplete
