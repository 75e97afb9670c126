"""Makes simulated tensors look like tensors of a GPU to a script, and answers it when it reads their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors

from foretrace.inputs.script.tracer.dispatch import Recorder, plan_of, tensors_in
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.storages import CPU, META, SHADOW_ELEMENTS, is_simulated
from foretrace.inputs.script.tracer.unknown import CannotTrace, UnknownNumber, asked_by
from foretrace.program.columns import Phase


class Generator(torch.Generator):
    """A generator of random numbers, which is the CPU's whatever device it is asked for."""

    def __new__(cls, device: Any = None) -> Generator:
        """Makes one."""
        del device
        return super().__new__(cls, device="cpu")


def install(patches: Patches, recorder: Recorder) -> None:
    """Replaces the methods of tensors by which a script sees devices and values."""
    _device_constructors()  # remembers the functions as they are
    _install_devices(patches, recorder)
    _install_groups(patches, recorder)
    _install_meta(patches, recorder)
    _install_moves(patches, recorder)
    _install_values(patches, recorder)
    _install_dynamic(recorder)
    _install_finite(patches, recorder)
    _install_refusals(patches, recorder)
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
    """Gives memory without data addresses that differ."""
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
        # The autograd engine asks a device of wrapped tensors, too, and PyTorch without CUDA aborts for a GPU.
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
    """Notes where a script asks for the meta device itself, as deferred initialisation does."""
    enter, leave = DeviceContext.__enter__, DeviceContext.__exit__

    def is_meta(device: Any) -> bool:
        return device is not None and (device == "meta" or device == META)

    def entered(self: Any) -> Any:
        recorder.asked_for_meta += is_meta(self.device)
        return enter(self)

    def left(self: Any, *args: Any) -> Any:
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

    patches.set(DeviceContext, "__enter__", entered)
    patches.set(DeviceContext, "__exit__", left)
    for name in _FACTORIES:
        patches.set(torch, name, asking(getattr(torch, name)))
    patches.set(torch.Tensor, "to", asking_first(recorder, torch.Tensor.to, is_meta))


def asking_first(recorder: Recorder, move: Callable[..., Any], is_meta: Callable[[Any], bool]) -> Callable[..., Any]:
    """Returns `Tensor.to` that notes where its device is the meta device."""

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


def _install_groups(patches: Patches, recorder: Recorder) -> None:
    """Makes lists of tensors that are grouped by device know the device that they stand for."""
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
    """Replaces what PyTorch refuses to do for a device that its build does not have."""
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


def _install_values(patches: Patches, recorder: Recorder) -> None:
    plain = {name: getattr(torch.Tensor, name) for name in ("item", "tolist", "numpy", "__bool__", "__array__")}
    plain |= {name: getattr(torch.Tensor, name) for name in ("__float__", "__int__", "__index__")}

    def read(tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a tensor with the values, after the host has waited for them."""
        if recorder.storages.device_of(tensor).type == "cuda":
            recorder.log.copy(tensor.numel() * tensor.element_size(), to_host=True, blocking=True)
        with torch.no_grad():
            return recorder.known(tensor.detach())

    def is_real(tensor: torch.Tensor) -> bool:
        if is_simulated(tensor):
            return False
        return not recorder.unknown or tensor.untyped_storage()._cdata not in recorder.unknown

    def item(tensor: torch.Tensor) -> Any:
        if is_real(tensor):
            return plain["item"](tensor)
        values = read(tensor)
        return UnknownNumber.make("a value of a tensor") if values is None else plain["item"](values)

    def tolist(tensor: torch.Tensor) -> Any:
        if is_real(tensor):
            return plain["tolist"](tensor)
        values = read(tensor)
        if values is not None:
            return plain["tolist"](values)
        return _nested(tuple(tensor.size()))

    def truth(tensor: torch.Tensor) -> bool:
        return plain["__bool__"](tensor) if is_real(tensor) else bool(item(tensor))

    def real(tensor: torch.Tensor) -> float:
        return plain["__float__"](tensor) if is_real(tensor) else float(item(tensor))

    def whole(tensor: torch.Tensor) -> int:
        return plain["__int__"](tensor) if is_real(tensor) else int(item(tensor))

    def array(name: str) -> Callable[..., Any]:
        def read_array(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if is_real(tensor):
                return plain[name](tensor, *args, **kwargs)
            values = read(tensor)
            if values is None:
                if UnknownNumber.assumed is None:
                    raise CannotTrace(
                        "needs-value",
                        "the script takes the values of a tensor out of PyTorch, which are known on a GPU only",
                        "--unknown NUMBER says what to take for such numbers",
                    )
                values = torch.full(tensor.size(), UnknownNumber.assumed, dtype=tensor.dtype)
            return plain[name](values, *args, **kwargs)

        return read_array

    show = torch.Tensor.__repr__

    def shown(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        if not is_simulated(tensor) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return show(tensor, *args, **kwargs)
        values = read(tensor)
        text = f"tensor(..., size={tuple(tensor.size())})" if values is None else show(values)
        return f"{text[:-1]}, device='{tensor.device}', dtype={tensor.dtype})"

    patches.set(torch.Tensor, "__repr__", shown)
    patches.set(torch.Tensor, "item", item)
    patches.set(torch.Tensor, "tolist", tolist)
    patches.set(torch.Tensor, "__bool__", truth)
    patches.set(torch.Tensor, "__float__", real)
    patches.set(torch.Tensor, "__int__", whole)
    patches.set(torch.Tensor, "__index__", whole)
    patches.set(torch.Tensor, "numpy", array("numpy"))
    patches.set(torch.Tensor, "__array__", array("__array__"))


def _nested(size: tuple[int, ...]) -> Any:
    if not size:
        return UnknownNumber.make("a value of a tensor")
    return [_nested(size[1:]) for _ in range(size[0])]


def _install_finite(patches: Patches, recorder: Recorder) -> None:
    """Takes every number that is not known for finite, as training scripts assert."""

    def answered(ask: Callable[..., Any], answer: bool) -> Callable[..., Any]:
        def asked(tensor: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = ask(tensor)
            plain = getattr(result, "_local_tensor", result)
            if is_simulated(plain) and plain.numel() <= SHADOW_ELEMENTS and recorder.known(plain) is None:
                recorder.storages.set_shadow(plain, torch.full(plain.size(), answer))
            return result

        return asked

    for name, answer in (("isnan", False), ("isinf", False), ("isfinite", True)):
        for owner in (torch, torch.Tensor):
            patches.set(owner, name, answered(getattr(owner, name), answer))


_SPARSE: Final = [
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_sparse_coo_tensor_unsafe",
    "embedding_sparse_backward",
    "_embedding_bag_sparse_backward",
    "_sparse_coo_tensor_with_dims",
]


def _install_refusals(patches: Patches, recorder: Recorder) -> None:
    """Refuses ops of which sizes say too little."""

    def refusing(name: str, hint: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            raise CannotTrace("unsupported-op", f"{name} cannot be traced: its work depends on values", hint)

        return refuse

    for name in _SPARSE:
        recorder.handlers[f"aten::{name}"] = refusing(f"aten::{name}", "use dense gradients: sparse=False")
    recorder.handlers["aten::_pack_padded_sequence"] = refusing("pack_padded_sequence", "pad sequences instead")
    for name in ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged"):
        patches.set(torch.nested, name, refusing(f"torch.nested.{name}", "pad sequences instead"))


def _install_dynamic(recorder: Recorder) -> None:
    """Runs ops whose results depend on values: those are computed where the values are known."""
    storages, log = recorder.storages, recorder.log

    def known(tensors: list[torch.Tensor]) -> bool:
        return all(recorder.known(tensor) is not None for tensor in tensors)

    def to_device(real: Any, phase: Any) -> Any:
        if not isinstance(real, torch.Tensor):
            return real
        made = torch.empty_like(real, device=META)
        storages.add(made, storages.device, phase)
        storages.set_shadow(made, real)
        return made

    def dynamic(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tensors_in(args, kwargs)
        name = plan_of(func).name
        if not known(given):
            raise CannotTrace(
                "needs-value",
                f"the sizes that {name} returns depend on values that are known on a GPU only",
                "--routing says how tokens choose experts; other values cannot be given yet",
            )
        real = recorder.evaluate(func, args, kwargs)
        phase = log.place().phase
        if isinstance(real, torch.Tensor | int | float | bool):
            result = to_device(real, phase)
        else:
            result = None if real is None else type(real)(to_device(value, phase) for value in real)
        recorder.record(name, func, args, kwargs, result, tensors_in([result], {}))
        log.copy(8, to_host=True, blocking=True)
        return result

    def scalar(_: Any, args: tuple[Any, ...], __: Any) -> Any:
        values = recorder.known(args[0])
        if storages.device_of(args[0]).type == "cuda":
            log.copy(args[0].element_size(), to_host=True, blocking=True)
        if values is not None:
            return values.item()
        if args[0].dtype is torch.bool and torch.is_anomaly_enabled() and log.place().phase is Phase.BACKWARD:
            return False  # anomaly mode looks for NaN after each node of the backward
        return UnknownNumber.make("a value of a tensor").settled()

    def selected(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Turns masks into positions, which have sizes."""
        positions: list[Any] = []
        for index in args[1]:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                values = recorder.known(index)
                if values is None and asked_by("torch/nn/modules/_functions.py"):
                    values = torch.ones(index.size(), dtype=index.dtype)  # SyncBatchNorm: ranks that have samples
                if values is None:
                    raise CannotTrace(
                        "needs-value",
                        "a mask decides how many elements are taken, and its values are known on a GPU only",
                        "write it with sizes that do not depend on values, such as torch.where(mask, x, 0)",
                    )
                log.copy(8, to_host=True, blocking=True)
                positions += [to_device(part, log.place().phase) for part in values.nonzero(as_tuple=True)]
            else:
                positions.append(index)
        args = (args[0], positions, *args[2:])
        return recorder.simulate(
            func, plan_of(func), args, kwargs, tensors_in(args, kwargs), recorder._device(tensors_in(args, kwargs), {})
        )

    def put(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Fills where a mask says, without a look at it, or puts values at positions."""
        indices = [index for index in args[1] if index is not None]
        accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        one_mask = len(indices) == len(args[1]) == 1 and indices[0].dtype in (torch.bool, torch.uint8)
        if not one_mask or accumulates or args[2].numel() != 1:
            return selected(func, args, kwargs)
        # ATen/native/TensorAdvancedIndexing.cpp, canDispatchToMaskedFill
        mask = indices[0].view(*indices[0].shape, *(1 for _ in range(args[0].dim() - indices[0].dim())))
        fill = torch.ops.aten.masked_fill_.Scalar
        in_place = plan_of(func).name.endswith("_")
        target = args[0] if in_place else torch.ops.aten.clone(args[0])
        given = tensors_in((target, mask), {})
        return recorder.simulate(fill, plan_of(fill), (target, mask, 0), {}, given, recorder._device(given, {}))

    def masked_select(_: Any, args: tuple[Any, ...], __: Any) -> Any:
        return selected(torch.ops.aten.index.Tensor, (args[0], [args[1]]), {})

    def asserted(*_: Any) -> None:
        return None

    words = "nonzero unique_dim unique_consecutive unique_dim_consecutive _unique2 _unique bincount equal"
    for word in (*words.split(), "repeat_interleave", "nonzero_static"):
        recorder.handlers[f"aten::{word}"] = dynamic
    recorder.handlers["aten::index"] = selected
    for word in ("index_put_", "index_put", "_index_put_impl_"):
        recorder.handlers[f"aten::{word}"] = put
    recorder.handlers["aten::_local_scalar_dense"] = scalar
    recorder.handlers["aten::masked_select"] = masked_select
    recorder.handlers["aten::_assert_async"] = asserted
