"""Stands in for smaller parts of PyTorch that need real data or other ranks: shards, compilers, scalers, files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _pop_mode, _push_mode

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.script.tracer.dispatch import Recorder
from foretrace.inputs.script.tracer.mailbox import Mailbox
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.places import StepPlaces
from foretrace.inputs.script.tracer.storages import is_simulated
from foretrace.inputs.script.tracer.unknown import CannotTrace


def install(
    patches: Patches, recorder: Recorder, places: StepPlaces, mailbox: Mailbox, notes: list[Diagnostic]
) -> None:
    """Replaces parts of PyTorch that need real data or other ranks."""
    _install_shards(patches)
    _install_offload(patches)
    _install_pipelines(patches, mailbox)
    _install_scaler(patches, recorder)
    _install_compiler(patches, places, notes)
    _install_files(patches, notes)
    _install_parallel(patches)
    _install_threads(patches, recorder)
    _install_recurrences(patches, notes)
    _install_initialisers(patches)
    _install_loaders(patches)


class _Shards(list[torch.Tensor]):
    """Chunks of a tensor, each made when it is indexed: a rank needs its own and the first."""

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        super().__init__()
        self._tensor, self._count, self._dim = tensor, count, dim
        self._rows = -(-tensor.size(dim) // count)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        start = min(at * self._rows, self._tensor.size(self._dim))
        rows = min(self._rows, self._tensor.size(self._dim) - start)
        if at and rows <= 0:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, rows)


def _install_shards(patches: Patches) -> None:
    """Makes FSDP cut out the shard of this rank only: to cut out all takes time in proportion to the world."""
    from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param

    for module in (_fsdp_common, _fsdp_param):
        if hasattr(module, "_chunk_with_empty"):
            patches.set(module, "_chunk_with_empty", lambda tensor, num_chunks, dim: _Shards(tensor, num_chunks, dim))


def _install_offload(patches: Patches) -> None:
    """Refuses parameters that live on the host, where the optimizer would run."""
    from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, FullyShardedDataParallel

    def refuse(name: str) -> None:
        text = f"{name} runs the optimizer on the host, whose time is not known"
        raise CannotTrace("unsupported-op", text, "trace without offload")

    def init_policy(*_: Any, **__: Any) -> None:
        refuse("CPUOffloadPolicy")

    plain_init = FullyShardedDataParallel.__init__

    def init(self: Any, *args: Any, cpu_offload: CPUOffload | None = None, **kwargs: Any) -> None:
        if cpu_offload is not None and cpu_offload.offload_params:
            refuse("CPUOffload")
        plain_init(self, *args, cpu_offload=cpu_offload, **kwargs)

    patches.set(CPUOffloadPolicy, "__init__", init_policy)
    patches.set(FullyShardedDataParallel, "__init__", init)


def _install_pipelines(patches: Patches, mailbox: Mailbox) -> None:
    """Lets stages of `torch.distributed.pipelining` learn shapes from each other through the mailbox."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining import stage as stages

    def send(objects: list[Any], dst: int | None = None, group: Any = None, *_: Any, **given: Any) -> None:
        mailbox.send(_global_rank(dst, given.get("group_dst"), group), objects)

    def receive(objects: list[Any], src: int | None = None, group: Any = None, *_: Any, **given: Any) -> int:
        rank = _global_rank(src, given.get("group_src"), group)
        objects[:] = mailbox.receive(rank)
        return rank

    for module in (dist, c10d):
        patches.set(module, "send_object_list", send)
        patches.set(module, "recv_object_list", receive)
    modes = getattr(stages, "InferenceMode", None)
    if modes is None:
        return

    def warm_up(_: Any, own: list[Any], has_backward: bool, *__: Any) -> None:
        for stage in own:
            dynamic = modes.needs_dynamic(stage._user_meta, has_backward)
            stage._inference_mode = modes.DYNAMIC if dynamic else modes.STATIC

    patches.set(schedules._PipelineSchedule, "_warmup_p2p", warm_up)


def _global_rank(rank: int | None, group_rank: int | None, group: Any) -> int:
    import torch.distributed as dist

    if rank is not None:
        return rank
    return dist.get_global_rank(group or dist.group.WORLD, group_rank or 0)


def _install_scaler(patches: Patches, recorder: Recorder) -> None:
    """Makes gradient scalers take gradients to be finite, after the host has waited for the check."""

    def step(_: Any, optimizer: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        for overflow in state["found_inf_per_device"].values():
            recorder.log.copy(overflow.element_size(), to_host=True, blocking=True)
        return optimizer.step(*args, **kwargs)

    patches.set(torch.amp.GradScaler, "_maybe_opt_step", step)


def _install_compiler(patches: Patches, places: StepPlaces, notes: list[Diagnostic]) -> None:
    """Runs compiled code eagerly, and marks its ops as a region whose elementwise ops are fused later."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        region = places.new_region()
        if region == 1:
            text = "compiled code is traced op by op; its elementwise ops are priced as fused (docs/scripts.md)"
            notes.append(Diagnostic("note", "compiled-region", text))

        def run(*args: Any, **kwargs: Any) -> Any:
            with places.region(region):
                return function(*args, **kwargs)

        return run

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile_(function, **options)
        if isinstance(model, nn.Module):
            compile_module(model)
            return _Compiled(model)
        return mark(model)

    def compile_module(module: nn.Module, *_: Any, **__: Any) -> None:
        module.forward = mark(module.forward)

    def script(code: Any, *_: Any, **__: Any) -> Any:
        return code  # replaced functions cannot be compiled, and TorchScript launches what they launch

    patches.set(torch.jit, "script", script)
    patches.set(torch.jit, "trace", script)
    patches.set(torch, "compile", compile_)
    patches.set(nn.Module, "compile", compile_module)


class _Compiled(nn.Module):
    """The result of `torch.compile` for a module, which is its child `_orig_mod`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module."""
        return self._orig_mod(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules[name]
        return getattr(self._modules["_orig_mod"], name)


class _SavedTensor(NamedTuple):
    """A tensor of a checkpoint, and its copy on the host."""

    tensor: torch.Tensor
    on_host: torch.Tensor


def _install_files(patches: Patches, notes: list[Diagnostic]) -> None:
    """Keeps checkpoints in memory, since simulated tensors have no data to write to a file."""
    saved: dict[Any, Any] = {}
    load = torch.load

    def key(file: Any) -> Any:
        return Path(file).absolute() if isinstance(file, str | os.PathLike) else id(file)

    def stored(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        plain = getattr(value, "_local_tensor", value).detach()
        return _SavedTensor(value, plain.to("cpu") if is_simulated(plain) else plain.clone())

    def save(value: Any, file: Any, *_: Any, **__: Any) -> None:
        if not any(note.code == "not-written" for note in notes):
            notes.append(Diagnostic("note", "not-written", "torch.save writes no file: tensors have no data"))
        saved[key(file)] = pytree.tree_map(stored, value)

    def restored(value: _SavedTensor, location: Any) -> Any:
        if hasattr(value.tensor, "_local_tensor"):
            return value.tensor.detach().clone()
        return value.on_host.to(value.tensor.device if location is None or callable(location) else location)

    def load_(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        where = map_location.get("cuda:0") if isinstance(map_location, dict) else map_location
        if key(file) not in saved:
            value = load(file, "cpu", *args, **kwargs)
            on_host = where is None or callable(where) or torch.device(where).type == "cpu"
            return value if on_host else pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(where), value)
        return pytree.tree_map(
            lambda value: restored(value, where) if is_saved(value) else value, saved[key(file)], is_leaf=is_saved
        )

    def is_saved(value: Any) -> bool:
        return isinstance(value, _SavedTensor)

    patches.set(torch, "save", save)
    patches.set(torch, "load", load_)


def _install_parallel(patches: Patches) -> None:
    """Runs the function that a script would spawn for each GPU once, and refuses one process with several GPUs."""
    import torch.multiprocessing as mp

    def refuse(*_: Any, **__: Any) -> None:
        raise CannotTrace(
            "unsupported-op", "nn.DataParallel drives several GPUs from one process", "DistributedDataParallel"
        )

    def spawn(fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        fn(int(os.environ["RANK"]) % max(nprocs, 1), *args)

    patches.set(nn.DataParallel, "__init__", refuse)
    patches.set(mp, "spawn", spawn)
    patches.set(mp, "start_processes", spawn)


def _install_threads(patches: Patches, recorder: Recorder) -> None:
    """Traces the threads of a script too: a dispatch mode of PyTorch holds for one thread."""
    start = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap(thread: threading.Thread) -> None:
        _push_mode(recorder)
        try:
            start(thread)
        finally:
            _pop_mode()

    patches.set(threading.Thread, "_bootstrap_inner", bootstrap)


def _install_recurrences(patches: Patches, notes: list[Diagnostic]) -> None:
    """Warns that recurrent layers run as PyTorch composes them, where cuDNN fuses their steps."""

    def warning(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            text = "recurrent layers are traced as one step after another; cuDNN fuses them, and is faster"
            note = Diagnostic("warning", "assumed", text)
            if note not in notes:
                notes.append(note)
            return forward(*args, **kwargs)

        return run

    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        patches.set(kind, "forward", warning(kind.forward))


def _install_loaders(patches: Patches) -> None:
    """Lets the workers of a data loader make batches of large tensors, which have no data to share."""
    from torch.utils.data._utils import collate

    plain = collate.collate_tensor_fn

    def collate_tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torch.stack(batch, 0) if is_simulated(batch[0]) else plain(batch, collate_fn_map=collate_fn_map)

    kinds = collate.default_collate_fn_map
    patches.on_undo(lambda: kinds.update({torch.Tensor: plain}))
    kinds[torch.Tensor] = collate_tensors


def _install_initialisers(patches: Patches) -> None:
    """Replaces initialisers that inspect the values that they draw, which simulated tensors do not have."""
    init = torch.nn.init
    for name in ("trunc_normal_", "orthogonal_"):
        patches.set(init, name, _without_values(getattr(init, name)))


def _without_values(fill: Callable[..., Any]) -> Callable[..., Any]:
    def fill_normally(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_simulated(tensor) or hasattr(tensor, "_local_tensor"):
            return init_normal(tensor)
        return fill(tensor, *args, **kwargs)

    init_normal = torch.nn.init.normal_
    return fill_normally
