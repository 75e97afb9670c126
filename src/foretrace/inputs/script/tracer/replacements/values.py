"""Answers a script that reads values of simulated tensors, and runs the ops whose results depend on values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from foretrace.inputs.script.tracer.dispatch import Recorder
from foretrace.inputs.script.tracer.op_plans import plan_of, tensors_in
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.storages import META, SHADOW_ELEMENTS, is_simulated, tensor_bytes
from foretrace.inputs.script.tracer.unknown import CannotTrace, UnknownNumber, asked_by
from foretrace.program.columns import Phase


def install(patches: Patches, recorder: Recorder) -> None:
    """Replaces the methods of tensors by which a script sees values, and the ops that depend on them."""
    _install_values(patches, recorder)
    _install_dynamic(recorder)
    _install_finite(patches, recorder)
    _install_refusals(patches, recorder)


def _install_values(patches: Patches, recorder: Recorder) -> None:
    plain = {name: getattr(torch.Tensor, name) for name in ("item", "tolist", "numpy", "__bool__", "__array__")}
    plain |= {name: getattr(torch.Tensor, name) for name in ("__float__", "__int__", "__index__")}

    def read(tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a tensor with the values, after the host has waited for them."""
        if recorder.storages.device_of(tensor).type == "cuda":
            recorder.log.copy(tensor_bytes(tensor), to_host=True, blocking=True)
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
        return _unknown_list(tuple(tensor.size()))

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

    def represent(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        if not is_simulated(tensor) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return show(tensor, *args, **kwargs)
        values = read(tensor)
        text = f"tensor(..., size={tuple(tensor.size())})" if values is None else show(values)
        return f"{text[:-1]}, device='{tensor.device}', dtype={tensor.dtype})"

    patches.set(torch.Tensor, "__repr__", represent)
    patches.set(torch.Tensor, "item", item)
    patches.set(torch.Tensor, "tolist", tolist)
    patches.set(torch.Tensor, "__bool__", truth)
    patches.set(torch.Tensor, "__float__", real)
    patches.set(torch.Tensor, "__int__", whole)
    patches.set(torch.Tensor, "__index__", whole)
    patches.set(torch.Tensor, "numpy", array("numpy"))
    patches.set(torch.Tensor, "__array__", array("__array__"))


def _unknown_list(size: tuple[int, ...]) -> Any:
    if not size:
        return UnknownNumber.make("a value of a tensor")
    return [_unknown_list(size[1:]) for _ in range(size[0])]


def _install_finite(patches: Patches, recorder: Recorder) -> None:
    """Takes unknown numbers to be finite, as training scripts assert."""

    def answering(ask: Callable[..., Any], answer: bool) -> Callable[..., Any]:
        def ask_known(tensor: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = ask(tensor)
            plain = getattr(result, "_local_tensor", result)
            if is_simulated(plain) and plain.numel() <= SHADOW_ELEMENTS and recorder.known(plain) is None:
                recorder.storages.set_shadow(plain, torch.full(plain.size(), answer))
            return result

        return ask_known

    for name, answer in (("isnan", False), ("isinf", False), ("isfinite", True)):
        for owner in (torch, torch.Tensor):
            patches.set(owner, name, answering(getattr(owner, name), answer))


_SPARSE: Final = [
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_sparse_coo_tensor_unsafe",
    "embedding_sparse_backward",
    "_embedding_bag_sparse_backward",
    "_sparse_coo_tensor_with_dims",
]


def _install_refusals(patches: Patches, recorder: Recorder) -> None:
    """Refuses ops whose work depends on more than sizes."""

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

    def all_known(tensors: list[torch.Tensor]) -> bool:
        return all(recorder.known(tensor) is not None for tensor in tensors)

    def to_device(real: Any, phase: Any) -> Any:
        if not isinstance(real, torch.Tensor):
            return real
        made = torch.empty_like(real, device=META)
        storages.add(made, storages.device, phase)
        storages.set_shadow(made, real)
        return made

    def run_on_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tensors_in(args, kwargs)
        name = plan_of(func).name
        if not all_known(given):
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
        recorder.record(name, func, args, kwargs, result, tensors_in([result]))
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

    def select(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Indexes by the positions in the place of each mask, since their number is the size of the result."""
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
        given = tensors_in(args, kwargs)
        return recorder.simulate(func, plan_of(func), args, kwargs, given, recorder.device_for(given, {}))

    def put(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Fills the elements that a mask selects, whose values are not needed, or puts values at positions."""
        indices = [index for index in args[1] if index is not None]
        accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        one_mask = len(indices) == len(args[1]) == 1 and indices[0].dtype in (torch.bool, torch.uint8)
        if not one_mask or accumulates or args[2].numel() != 1:
            return select(func, args, kwargs)
        # ATen/native/TensorAdvancedIndexing.cpp, canDispatchToMaskedFill
        mask = indices[0].view(*indices[0].shape, *(1 for _ in range(args[0].dim() - indices[0].dim())))
        fill = torch.ops.aten.masked_fill_.Scalar
        in_place = plan_of(func).name.endswith("_")
        target = args[0] if in_place else torch.ops.aten.clone(args[0])
        given = tensors_in((target, mask))
        return recorder.simulate(fill, plan_of(fill), (target, mask, 0), {}, given, recorder.device_for(given, {}))

    def masked_select(_: Any, args: tuple[Any, ...], __: Any) -> Any:
        return select(torch.ops.aten.index.Tensor, (args[0], [args[1]]), {})

    def ignore(*_: Any) -> None:
        return None

    words = "nonzero unique_dim unique_consecutive unique_dim_consecutive _unique2 _unique bincount equal"
    for word in (*words.split(), "repeat_interleave", "nonzero_static"):
        recorder.handlers[f"aten::{word}"] = run_on_values
    recorder.handlers["aten::index"] = select
    for word in ("index_put_", "index_put", "_index_put_impl_"):
        recorder.handlers[f"aten::{word}"] = put
    recorder.handlers["aten::_local_scalar_dense"] = scalar
    recorder.handlers["aten::masked_select"] = masked_select
    recorder.handlers["aten::_assert_async"] = ignore
