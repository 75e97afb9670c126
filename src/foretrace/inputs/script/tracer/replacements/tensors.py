"""Makes simulated tensors look like tensors of a GPU to a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors

from foretrace.inputs.script.tracer.dispatch import Recorder
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.storages import CPU, META, is_simulated


class Generator(torch.Generator):
    """A generator of random numbers on the CPU, whatever device the script names."""

    def __new__(cls, device: Any = None) -> Generator:
        """Makes a generator on the CPU."""
        del device
        return super().__new__(cls, device="cpu")


def install(patches: Patches, recorder: Recorder) -> None:
    """Replaces the methods of tensors by which a script sees and chooses devices."""
    _device_constructors()  # caches the functions before they are replaced
    _install_devices(patches, recorder)
    _install_device_lists(patches, recorder)
    _install_meta(patches, recorder)
    _install_moves(patches, recorder)
    _install_addresses(patches)
    _install_data(patches)
    resize = torch.UntypedStorage.resize_

    def resize_(raw: Any, size: int) -> Any:
        result = resize(raw, size)
        recorder.storages.resized(raw, recorder.log.place().phase)
        return result

    patches.set(torch.UntypedStorage, "resize_", resize_)
    patches.set(torch.Tensor, "record_stream", lambda *_: None)
    patches.set(torch.Tensor, "pin_memory", lambda tensor, *_, **__: tensor)
    patches.set(torch.Tensor, "is_pinned", lambda tensor, *_, **__: not is_simulated(tensor))


class _DeviceType(type):
    """Makes `torch.device(0)` the first GPU, for which PyTorch asks an accelerator that its build does not have."""

    plain: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and type(args[0]) is int and not kwargs:
            return cls.plain("cuda", args[0])
        return cls.plain(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.plain)

    def __subclasscheck__(cls, kind: type) -> bool:
        return kind is cls or issubclass(kind, cls.plain)


def _install_addresses(patches: Patches) -> None:
    """Gives each storage without data an address of its own."""
    plain, plain_of_storage = torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr

    def address(raw: Any) -> int:
        return raw._cdata if raw.nbytes() else 0

    def of_tensor(tensor: torch.Tensor) -> int:
        if not is_simulated(tensor):
            return plain(tensor)
        return address(tensor.untyped_storage()) + tensor.storage_offset() * tensor.element_size()

    def of_storage(raw: Any) -> int:
        return address(raw) if raw.device.type == "meta" else plain_of_storage(raw)

    patches.set(torch.Tensor, "data_ptr", of_tensor)
    patches.set(torch.UntypedStorage, "data_ptr", of_storage)


def _install_data(patches: Patches) -> None:
    """Lets a tensor of the host become one of the GPU, as `Module.to` does by setting `data`."""
    plain = torch._C.TensorBase.data
    compatible = torch._has_compatible_shallow_copy_type

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        if is_simulated(tensor) == is_simulated(value):
            plain.__set__(tensor, value)
            return
        with torch.no_grad():
            made: Any = torch.nn.Parameter(value.detach(), tensor.requires_grad)
            if not isinstance(tensor, torch.nn.Parameter):
                made = value.detach().requires_grad_(tensor.requires_grad)
        _swap(tensor, made)

    def is_compatible(tensor: torch.Tensor, value: torch.Tensor) -> bool:
        moves = type(tensor) in (torch.Tensor, torch.nn.Parameter) and is_simulated(tensor) != is_simulated(value)
        return moves or compatible(tensor, value)

    patches.set(torch.Tensor, "data", property(plain.__get__, set_data))
    patches.set(torch, "_has_compatible_shallow_copy_type", is_compatible)


def _swap(tensor: torch.Tensor, made: torch.Tensor) -> None:
    """Makes a tensor another one of the same class.

    A graph may hold the tensor of the host, as a weight norm's does that computes the weight before the model moves.
    `torch.utils.swap_tensors` refuses that, and setting `data` on a GPU does not.
    """
    if tensor._use_count() <= 1:
        torch.utils.swap_tensors(tensor, made)
        return
    tensor.__dict__, made.__dict__ = made.__dict__, tensor.__dict__
    torch._C._swap_tensor_impl(tensor, made)


def _install_devices(patches: Patches, recorder: Recorder) -> None:
    storages = recorder.storages
    members = {"plain": torch.device, "__module__": "torch", "__qualname__": "device"}
    patches.set(torch, "device", _DeviceType("device", (), members))
    plain = torch._C.TensorBase.device.__get__

    def device(tensor: torch.Tensor) -> torch.device:
        if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
            # DTensor and the results of collectives that run have no memory themselves.
            tensor = getattr(tensor, "_local_tensor", getattr(tensor, "elem", tensor))
        if not is_simulated(tensor):
            own: torch.device = plain(tensor)
            return own
        return META if recorder.inside else storages.device_of(tensor)

    plain_subclass = torch.Tensor._make_wrapper_subclass

    def make_subclass(cls: Any, size: Any, *args: Any, device: Any = None, **given: Any) -> Any:
        # The autograd engine reads the device of wrapped tensors too; PyTorch without CUDA aborts if it is a GPU.
        named = None if device is None else torch.device(device)
        real = META if named is not None and named.type == "cuda" else named
        return plain_subclass(cls, size, *args, device=real, **given)

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make_subclass))
    patches.set(torch.Tensor, "device", property(device))
    patches.set(torch.Tensor, "is_cuda", property(lambda tensor: device(tensor).type == "cuda"))
    patches.set(torch.Tensor, "is_cpu", property(lambda tensor: device(tensor).type == "cpu"))
    patches.set(torch.Tensor, "is_meta", property(lambda tensor: device(tensor).type == "meta"))
    patches.set(
        torch.Tensor, "get_device", lambda tensor: device(tensor).index if device(tensor).index is not None else -1
    )


_FACTORIES: Final = [
    "empty",
    "empty_like",
    "empty_strided",
    "zeros",
    "zeros_like",
    "ones",
    "ones_like",
    "full",
    "full_like",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "arange",
]


def _install_meta(patches: Patches, recorder: Recorder) -> None:
    """Tells the recorder when a script itself names the meta device, as deferred initialisation does."""
    enter, leave = DeviceContext.__enter__, DeviceContext.__exit__

    def is_meta(device: Any) -> bool:
        return device is not None and (device == "meta" or device == META)

    def enter_context(self: Any) -> Any:
        recorder.asked_for_meta += is_meta(self.device)
        return enter(self)

    def leave_context(self: Any, *args: Any) -> Any:
        recorder.asked_for_meta -= is_meta(self.device)
        return leave(self, *args)

    def asking(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            if type(kwargs.get("device")) is int:
                kwargs["device"] = torch.device(kwargs["device"])
            if not is_meta(kwargs.get("device")):
                return make(*args, **kwargs)
            recorder.asked_for_meta += 1
            try:
                return make(*args, **kwargs)
            finally:
                recorder.asked_for_meta -= 1

        return made

    patches.set(DeviceContext, "__enter__", enter_context)
    patches.set(DeviceContext, "__exit__", leave_context)
    for name in _FACTORIES:
        patches.set(torch, name, asking(getattr(torch, name)))
    patches.set(torch.Tensor, "to", _noting_meta(recorder, torch.Tensor.to, is_meta))


def _noting_meta(recorder: Recorder, move: Callable[..., Any], is_meta: Callable[[Any], bool]) -> Callable[..., Any]:
    """Returns `Tensor.to` that tells the recorder when its device is the meta device."""

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        first = kwargs.get("device", args[0] if args else None)
        if isinstance(first, torch.Tensor) or not is_meta(first):
            return move(tensor, *args, **kwargs)
        recorder.asked_for_meta += 1
        try:
            return move(tensor, *args, **kwargs)
        finally:
            recorder.asked_for_meta -= 1

    return to


def _install_device_lists(patches: Patches, recorder: Recorder) -> None:
    """Makes PyTorch group lists of tensors by the device that they stand for."""
    plain = torch._C._group_tensors_by_device_and_dtype

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        result = {}
        for (device, dtype), (tensors, indices) in plain(lists, with_indices).items():
            if device == META:
                first = next(tensor for tensor in tensors[0] if tensor is not None)
                device = recorder.storages.device_of(first)
            result[device, dtype] = (tensors, indices)
        return result

    patches.set(torch._C, "_group_tensors_by_device_and_dtype", grouped)


def _install_moves(patches: Patches, recorder: Recorder) -> None:
    """Replaces functions that PyTorch refuses to run for a device that its build does not support."""
    to, tensor_of, as_tensor = torch.Tensor.to, torch.tensor, torch.as_tensor
    own = recorder.storages.device

    def is_gpu(value: Any) -> bool:
        if isinstance(value, torch.device):
            return value.type == "cuda"
        return (isinstance(value, str) and value.startswith("cuda")) or type(value) is int

    def move(tensor: torch.Tensor, dtype: torch.dtype | None, non_blocking: bool, copy: bool, **more: Any) -> Any:
        if not copy and tensor.device.type == "cuda" and (dtype is None or dtype == tensor.dtype) and not more:
            return tensor
        dtype = tensor.dtype if dtype is None else dtype
        return torch.ops.aten._to_copy(tensor, dtype=dtype, device=own, non_blocking=non_blocking, **more)

    def to_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        first = kwargs.get("device", args[0] if args else None)
        if isinstance(first, torch.Tensor):
            device, rest = first.device, [first.dtype, *args[1:]]
        else:
            device, rest = first, list(args if "device" in kwargs else args[1:])
        if not is_gpu(device) and not (isinstance(first, torch.Tensor) and device.type == "cuda"):
            if is_simulated(tensor) and (device == "cpu" or device == torch.device("cpu")):
                return _to_host(tensor, rest, kwargs)
            return to(tensor, *args, **kwargs)
        dtype = kwargs.get("dtype") or next((value for value in rest if isinstance(value, torch.dtype)), None)
        flags = [value for value in rest if isinstance(value, bool)]
        non_blocking = bool(kwargs.get("non_blocking", flags[0] if flags else False))
        copy = bool(kwargs.get("copy", flags[1] if len(flags) > 1 else False))
        more = {"memory_format": kwargs["memory_format"]} if kwargs.get("memory_format") is not None else {}
        return move(tensor, dtype, non_blocking, copy, **more)

    def cuda(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **_: Any) -> Any:
        del device
        return move(tensor, None, non_blocking, False)

    def cpu(tensor: torch.Tensor, **_: Any) -> Any:
        return _to_host(tensor, [], {}) if is_simulated(tensor) else to(tensor, "cpu")

    def made(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def on_device(data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
            device = _default_device() if device is None else device
            if not is_gpu(device):
                more = {"requires_grad": True} if requires_grad else {}
                return make(data, *args, device=device, **more, **kwargs)
            if isinstance(data, torch.Tensor) and is_simulated(data):
                return data.to(device, kwargs.get("dtype") or data.dtype)
            moved = make(data, *args, device="cpu", **kwargs).to(device)
            return moved.requires_grad_() if requires_grad else moved

        return on_device

    parse = torch._C._nn._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            args = (torch.device(args[0]), *args[1:])
        return parse(*args, **kwargs)

    patches.set(torch._C._nn, "_parse_to", parse_to)
    patches.set(torch.Tensor, "to", to_)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(torch.Tensor, "cpu", cpu)
    patches.set(torch, "tensor", made(tensor_of))
    patches.set(torch, "as_tensor", made(as_tensor))
    patches.set(torch, "asarray", made(torch.asarray))
    patches.set(torch, "Generator", Generator)


def _default_device() -> torch.device:
    """Returns the device on which tensors are made where none is named."""
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return torch.device(mode.device)
    return CPU


def _to_host(tensor: torch.Tensor, rest: list[Any], kwargs: dict[str, Any]) -> Any:
    dtype = kwargs.get("dtype") or next((value for value in rest if isinstance(value, torch.dtype)), tensor.dtype)
    flags = [value for value in rest if isinstance(value, bool)]
    non_blocking = bool(kwargs.get("non_blocking", flags[0] if flags else False))
    if tensor.device.type == "cpu" and dtype == tensor.dtype:
        return tensor
    return torch.ops.aten._to_copy(tensor, dtype=dtype, device=torch.device("cpu"), non_blocking=non_blocking)
