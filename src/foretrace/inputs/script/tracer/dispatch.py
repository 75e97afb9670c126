"""Runs every op of a traced script on sizes alone, and records what it would launch on a GPU.

`Recorder` sees ops below autograd and below tensor subclasses such as DTensor, so that shapes are those of one rank.
An op that writes to a tensor changes no sizes and is not run at all; others run on PyTorch's meta device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import local
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from foretrace.inputs.script.tracer.events import EventLog
from foretrace.inputs.script.tracer.op_plans import OpKind, OpPlan, plan_of, replaced, tensors_in
from foretrace.inputs.script.tracer.signatures import signature_of
from foretrace.inputs.script.tracer.storages import (
    CPU,
    META,
    SHADOW_ELEMENTS,
    SHADOW_REALS,
    Storages,
    is_simulated,
    tensor_bytes,
)
from foretrace.inputs.script.tracer.unknown import CannotTrace

REAL_BYTES: Final = 1 << 20
"""Tensors of the CPU are real up to this size; larger ones, such as the weights of a model before it moves to the GPU,
have no data."""

MAX_SHADOW_REALS: Final = 1 << 16
"""Elements up to which values of other types are computed from values that are known."""


_INLINED: Final = frozenset(
    [
        "wrap",
        "wrap_activation_checkpoint",
        "wrap_with_autocast",
        "wrap_with_set_grad_enabled",
        "tag_activation_checkpoint",
        "invoke_subgraph",
        "run_and_save_rng_state",
        "run_dtensor_rng_op",
        "run_with_rng_state",
    ]
)
"""Higher-order operators that run the function that they are given, and nothing else."""

_RANDOM_REALS: Final = frozenset(["rand", "randn", "normal", "rand_like", "randn_like"])

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Runs an op of one name with its arguments."""


class _Local(local):
    inside: bool = False


class Recorder(TorchDispatchMode):
    """The dispatch mode under which a script runs.

    `handlers` has a function for each op that runs in another way: ops whose results depend on values, and functional
    collectives.
    """

    supports_higher_order_operators = True

    def __init__(self, log: EventLog, storages: Storages) -> None:
        super().__init__()
        self.log, self.storages = log, storages
        self.handlers: dict[str, Handler] = {}
        self._local = _Local()
        self.asked_for_meta = 0
        """How many calls of the script that name the meta device are running. Where none is, PyTorch's own code names
        that device: it makes a tensor like a simulated one, and means the GPU."""
        self.lost: Counter[str] = Counter()
        """Ops on tensors of the meta device that stand for no other device, by name. They are not recorded."""
        self.unknown: set[int] = set()
        """Addresses of the storages of real tensors whose values stand for unknown ones."""

    @property
    def inside(self) -> bool:
        """Whether this thread is running an op, so that tensors show the device they have."""
        return self._local.inside

    @inside.setter
    def inside(self, value: bool) -> None:
        self._local.inside = value

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an op and records it."""
        if _fake_mode(_FAKE) is not None:
            return func(*args, **(kwargs or {}))  # DTensor computes sizes, and nothing runs
        for kind in types:
            if kind is not torch.Tensor and kind is not torch.nn.Parameter and kind.__torch_dispatch__ is not _PLAIN:
                return NotImplemented  # a subclass first, whose inner ops come back here
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._run_inner(func, args, kwargs)
        before, self.inside = self.inside, True
        try:
            return self._run(func, args, kwargs)
        finally:
            self.inside = before

    def _run_inner(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the function that a higher-order operator was given."""
        for at, value in enumerate(args if func.name() in _INLINED else ()):
            if callable(value):
                with self:
                    return value(*args[at + 1 :], **kwargs)
        raise CannotTrace("unsupported-op", f"{func.name()} runs on a GPU only", "leave it out of the traced script")

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = plan_of(func)
        if plan.kind is OpKind.SKIPPED:
            return func(*args, **kwargs)
        handler = self.handlers.get(plan.name)
        given = tensors_in(args, kwargs)
        if handler is not None and (plan.kind is not OpKind.READS or any(is_simulated(t) for t in given)):
            return handler(func, args, kwargs)
        if plan.kind is OpKind.COPIES:
            return self._copy(func, plan, args, kwargs)
        device = self.device_for(given, kwargs)
        if device == CPU and not any(is_simulated(tensor) for tensor in given):
            return self._real(func, plan, args, kwargs)
        if device == META:
            if plan.kind is OpKind.MAKES and not self.asked_for_meta:
                self.lost[plan.name] += 1
            return self._on_meta(func, args, kwargs)
        return self.simulate(func, plan, args, kwargs, given, device)

    def simulate(
        self,
        func: Any,
        plan: OpPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[torch.Tensor],
        device: torch.device,
    ) -> Any:
        """Runs an op on sizes, with values where they are known, and records what it launches on a GPU."""
        made: tuple[torch.Tensor, ...] = ()
        if plan.kind is OpKind.WRITES:
            result = self._write(func, plan, args, kwargs)
            self._register(result, device)  # memory that was made without a device
        else:
            result = _laid_out(plan.name, given, self._on_meta(func, args, kwargs))
            made = self._register(result, device)
        on_device = device.type == "cuda"
        if plan.kind in (OpKind.VIEW, OpKind.EMPTY) or not (made or plan.written):
            self.log.views += on_device
            if plan.kind in (OpKind.VIEW, OpKind.EMPTY):
                return result
        elif on_device:
            self.record(plan.name, func, args, kwargs, result, made)
        self._follow_values(func, plan, args, kwargs, given, made)
        return result

    def run_as(self, func: Any, args: tuple[Any, ...], make: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Records an op that PyTorch has for GPUs only; `make` returns its results on the meta device."""
        from torch.utils._python_dispatch import _disable_current_modes

        before, self.inside = self.inside, True
        try:
            with _disable_current_modes():
                result = make()
        finally:
            self.inside = before
        made = self._register(result, self.storages.device)
        self.record(func._schema.name, func, args, {}, result, made)
        return result

    def record(self, name: str, func: Any, args: Any, kwargs: Any, result: Any, made: Sequence[torch.Tensor]) -> None:
        """Records that an op runs on the current stream."""
        key, make = signature_of(name, func, args, kwargs, result)
        log, place = self.log, self.log.place()
        if not log.region:
            log.launch(log.signature(key, make), place)
            return
        number = self.storages.number_of
        reads = tuple(number(tensor) for tensor in tensors_in(args, kwargs))
        log.launch(log.signature(key, make), place, reads, tuple(number(tensor) for tensor in made))

    def device_for(self, given: Sequence[torch.Tensor], kwargs: Mapping[str, Any]) -> torch.device:
        """Returns the device on which an op runs."""
        named = kwargs.get("device")
        if named is not None:
            return self._resolved(torch.device(named))
        device = CPU
        for tensor in given:
            own = self.storages.device_of(tensor)
            if own.type == "cuda":
                return own
            if own == META and (device == CPU or tensor.dim()):
                device = META
        return device

    def _resolved(self, named: torch.device) -> torch.device:
        """Returns the device that the name of a device stands for."""
        if named.type == "cuda" or (named == META and not self.asked_for_meta):
            return self.storages.device
        return named

    def _on_meta(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an op on the meta device."""
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": META}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        for tensor in tensors_in(args, kwargs):
            if not is_simulated(tensor):
                args = tuple(replaced(value, self._sized) for value in args)
                kwargs = {name: replaced(value, self._sized) for name, value in kwargs.items()}
                break
        try:
            return func(*args, **kwargs)
        except NotImplementedError:
            name = func._schema.name
            text = f"PyTorch does not know the sizes of what {name} returns without running it"
            raise CannotTrace("unsupported-op", text, "write it with other ops, or leave it out") from None

    def _sized(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the meta device with the sizes of a real one."""
        if is_simulated(tensor):
            return tensor
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META)

    def _write(self, func: Any, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the results of an op that only writes to its arguments, and runs it if it may change their sizes."""
        targets = plan.targets(args, kwargs)
        for target in targets:
            if isinstance(target, torch.Tensor) and isinstance(plan.written[0], str) and not target.numel():
                return self._on_meta(func, args, kwargs)
        count = len(func._schema.returns)
        if count == 0:
            return None
        return targets[0] if count == 1 else tuple(targets[:count])

    def _register(self, result: Any, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Registers the tensors that an op returned, and returns those with memory of their own."""
        outputs = [result] if isinstance(result, torch.Tensor) else tensors_in(result) if result else []
        if not outputs:
            return ()
        phase = self.log.place().phase
        own = []
        for tensor in outputs:
            if is_simulated(tensor) and self.storages.of(tensor) is None:
                self.storages.add(tensor, device, phase)
                own.append(tensor)
        return tuple(own)

    def _real(self, func: Any, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an op of the CPU with real data, unless it makes a large tensor without an input."""
        if plan.names_device and not tensors_in(args, kwargs):
            sized = self._on_meta(func, args, {**kwargs, "device": META})
            if isinstance(sized, torch.Tensor) and tensor_bytes(sized) > REAL_BYTES:
                self.storages.add(sized, CPU, self.log.place().phase)
                return sized
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        result = func(*args, **kwargs)
        if self.unknown and plan.kind is not OpKind.EMPTY:
            self._spread_unknown(plan, args, kwargs, result)
        return result

    def _spread_unknown(self, plan: OpPlan, args: Any, kwargs: Any, result: Any) -> None:
        given = tensors_in(args, kwargs)
        if any(tensor.untyped_storage()._cdata in self.unknown for tensor in given):
            for tensor in tensors_in([result, *plan.targets(args, kwargs)]):
                self.mark_unknown(tensor)

    def mark_unknown(self, tensor: torch.Tensor) -> None:
        """Notes that the values of a real tensor stand for unknown ones."""
        import weakref

        raw = tensor.untyped_storage()
        key = raw._cdata
        if key not in self.unknown:
            self.unknown.add(key)
            weakref.finalize(raw, self.unknown.discard, key)

    def _copy(self, func: Any, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a copy on the device, on the host, or between them."""
        if plan.name == "aten::copy_":
            target, source = args[0], args[1]
            to = self.storages.device_of(target)
            non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        else:
            source = args[0]
            named = kwargs.get("device")
            to = self.storages.device_of(source)
            if named is not None and not (torch.device(named) == META and to != META and not self.asked_for_meta):
                to = self._resolved(torch.device(named))
            non_blocking = bool(kwargs.get("non_blocking", False))
        origin = self.storages.device_of(source)
        if not is_simulated(source) and to == CPU and (plan.name != "aten::copy_" or not is_simulated(args[0])):
            return self._real(func, plan, args, kwargs)
        if to == META:
            return self._on_meta(func, args, kwargs)
        result = args[0] if plan.name == "aten::copy_" else self._on_meta(func, args, {**kwargs, "device": META})
        if not is_simulated(result):  # a real tensor gets values that are not known
            self.mark_unknown(result)
        else:
            self.storages.add(result, to, self.log.place().phase)
        self.copy_values(source, result)
        if to.type == "cuda" and origin.type == "cuda":
            self.record(plan.name, func, args, kwargs, result, (result,))
        elif to.type == "cuda" and (source.dim() or plan.name != "aten::copy_"):
            self.log.copy(tensor_bytes(source), to_host=False, blocking=not non_blocking)
        elif origin.type == "cuda":
            self.log.copy(tensor_bytes(source), to_host=True, blocking=not non_blocking)
        return result

    def copy_values(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """Copies the values of `source` if they are known; otherwise a simulated `result` loses its own."""
        values = self.known(source)
        if not is_simulated(result):
            if values is not None:
                result.copy_(values)
                self.unknown.discard(result.untyped_storage()._cdata)
            return
        if values is None or not _worth_keeping(source):
            self.storages.forget(result)
            return
        shadow = self.storages.shadow(result)
        if shadow is not None:
            shadow.copy_(values)
        elif _fills(result):
            self.storages.set_shadow(result, values.to(result.dtype).expand(result.size()))

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a real tensor with the values of a tensor; None where they are not known."""
        if is_simulated(tensor):
            return self.storages.shadow(tensor)
        return None if self.unknown and tensor.untyped_storage()._cdata in self.unknown else tensor

    def _follow_values(
        self,
        func: Any,
        plan: OpPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
    ) -> None:
        """Computes the values of results from known ones, or drops those of arguments that the op writes to."""
        if any(self.known(tensor) is None for tensor in given):
            for tensor in tensors_in(plan.targets(args, kwargs)):
                self.storages.forget(tensor)
            return
        if not self._computable(plan, given, made):
            return
        real = self.evaluate(func, args, kwargs)
        results = [real] if isinstance(real, torch.Tensor) else [item for item in real or () if item is not None]
        for tensor, values in zip(made, results, strict=False):
            if _fills(tensor) and isinstance(values, torch.Tensor) and values.size() == tensor.size():
                self.storages.set_shadow(tensor, values)

    def _computable(self, plan: OpPlan, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> bool:
        if plan.kind is OpKind.WRITES:
            return bool(given)
        if plan.name.removeprefix("aten::") in _RANDOM_REALS:
            return False
        for tensor in made:
            whole = not (tensor.is_floating_point() or tensor.is_complex())
            limit = SHADOW_ELEMENTS if whole else MAX_SHADOW_REALS if given else SHADOW_REALS
            if tensor.numel() > limit:
                return False
        return bool(made)

    def evaluate(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an op on the values of its tensors, all of which must be known."""

        def values(tensor: torch.Tensor) -> torch.Tensor:
            known = self.known(tensor)
            return tensor if known is None else known

        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": CPU}
        return func(
            *(replaced(value, values) for value in args),
            **{name: replaced(value, values) for name, value in kwargs.items()},
        )


_fake_mode: Final = torch._C._get_dispatch_mode
_FAKE: Final = torch._C._TorchDispatchModeKey.FAKE
_PLAIN: Final = torch.Tensor.__torch_dispatch__

_KEEP_LAYOUT: Final = frozenset(
    [
        "aten::convolution",
        "aten::native_batch_norm",
        "aten::native_batch_norm_backward",
        "aten::convolution_backward",
        "aten::max_pool2d_with_indices",
        "aten::max_pool2d_with_indices_backward",
        "aten::avg_pool2d",
        "aten::avg_pool2d_backward",
    ]
)
"""Ops whose results on a GPU are channels-last where images are, which PyTorch's meta device does not know."""


def _laid_out(name: str, given: Sequence[torch.Tensor], result: Any) -> Any:
    """Returns the results of an op over images in the layout that they have on a GPU."""
    if name not in _KEEP_LAYOUT or not any(
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
        for tensor in given
    ):
        return result

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 4 or tensor.is_contiguous(memory_format=torch.channels_last):
            return tensor
        return torch.empty_like(tensor, memory_format=torch.channels_last)

    return replaced(result, changed)


def _worth_keeping(tensor: torch.Tensor) -> bool:
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    return tensor.numel() <= (SHADOW_ELEMENTS if whole else SHADOW_REALS)


def _fills(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is all of its storage."""
    return tensor_bytes(tensor) == tensor.untyped_storage().nbytes()
