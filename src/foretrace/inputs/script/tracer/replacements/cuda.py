"""Answers a script's calls of `torch.cuda` as a machine with GPUs would: streams, events, memory, devices."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch

from foretrace.inputs.script.tracer.events import EventLog
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.storages import Storages
from foretrace.inputs.script.tracer.unknown import UnknownNumber

GPU_NAME: Final = "NVIDIA H100 80GB HBM3"
CAPABILITY: Final = (9, 0)
GPU_BYTES: Final = 80 << 30
SMS: Final = 132
"""The GPU that a script sees. It affects which paths of its own code the script takes, and nothing else."""

CUDA_VERSION: Final = "12.8"
NCCL_VERSION: Final = (2, 27, 5)


class SimulatedStream:
    """A stream of the simulated GPU: `torch.cuda.Stream`."""

    log: EventLog
    default: SimulatedStream

    def __init__(self, device: Any = None, priority: int = 0, **given: Any) -> None:
        self.device = torch.device("cuda", 0) if device is None else torch.device(device)
        self.priority = priority
        self.number: int = given.get("number", -1)
        if self.number < 0:
            self.number = self.log.new_stream()
        self._before: list[SimulatedStream] = []

    @property
    def cuda_stream(self) -> int:
        """The handle of the stream."""
        return self.number

    stream_id = cuda_stream
    device_index = 0
    device_type = 1

    def wait_stream(self, stream: SimulatedStream) -> None:
        """Makes work issued from now on wait for what was issued to `stream`."""
        self.log.wait_for_stream(self.number, stream.number, self.log.next_number)

    def wait_event(self, event: Event) -> None:
        """Makes work issued from now on wait for an event."""
        if event.recorded:
            self.log.wait_for_stream(self.number, event.stream, event.number)

    def record_event(self, event: Event | None = None) -> Event:
        """Records an event on this stream."""
        event = Event() if event is None else event
        return event.record(self)

    def synchronize(self) -> None:
        """Makes the host wait for this stream."""
        self.log.host_waits((self.number,), "synchronize")

    def query(self) -> bool:
        """Returns whether all work is done, which is assumed."""
        return True

    def is_capturing(self) -> bool:
        """Returns whether a graph is captured, which is refused."""
        return False

    def __enter__(self) -> SimulatedStream:
        self._before.append(current(self.log))
        self.log.stream = self.number
        return self

    def __exit__(self, *_: object) -> None:
        self.log.stream = self._before.pop().number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimulatedStream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


class Event:
    """An event of the simulated GPU: `torch.cuda.Event`."""

    log: EventLog

    def __init__(self, *_: Any, **__: Any) -> None:
        self.recorded = False
        self.stream = self.number = 0

    def record(self, stream: SimulatedStream | None = None) -> Event:
        """Marks what was issued to a stream so far."""
        self.stream = self.log.stream if stream is None else stream.number
        self.number, self.recorded = self.log.next_number, True
        return self

    def wait(self, stream: SimulatedStream | None = None) -> None:
        """Makes a stream wait for the event."""
        (current(self.log) if stream is None else stream).wait_event(self)

    def synchronize(self) -> None:
        """Makes the host wait for the event."""
        if self.recorded:
            self.log.host_waits((self.stream,), "event", self.number)

    def query(self) -> bool:
        """Returns whether the event has passed, which is assumed."""
        return True

    def elapsed_time(self, _: Event) -> float:
        """Returns the milliseconds between two events, which are not known."""
        return UnknownNumber.make("the time between two CUDA events")


_STREAMS: dict[int, SimulatedStream] = {}


def current(log: EventLog) -> SimulatedStream:
    """Returns the stream that is current."""
    stream = _STREAMS.get(log.stream)
    if stream is None or stream.log is not log:
        stream = _STREAMS[log.stream] = SimulatedStream(number=log.stream)
    return stream


class StreamContext(contextlib.ContextDecorator):
    """Makes a stream current within: `torch.cuda.stream`."""

    def __init__(self, stream: SimulatedStream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


class _NullContext:
    """A context manager and decorator that does nothing: a device guard, a range of NVTX."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> _NullContext:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, function: Any) -> Any:
        return function


def install(patches: Patches, log: EventLog, storages: Storages, local_rank: int, gpus: int) -> None:
    """Makes `torch.cuda` answer for `gpus` simulated GPUs, of which the script has number `local_rank`."""
    SimulatedStream.log = Event.log = log
    _STREAMS.clear()
    state = SimpleNamespace(device=local_rank, seed=torch.initial_seed())
    generator_state = torch.zeros(16, dtype=torch.uint8)

    def nothing(*_: Any, **__: Any) -> None: ...

    def properties(*_: Any) -> SimpleNamespace:
        return SimpleNamespace(
            name=GPU_NAME,
            major=CAPABILITY[0],
            minor=CAPABILITY[1],
            total_memory=GPU_BYTES,
            multi_processor_count=SMS,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536,
            shared_memory_per_block_optin=232448,
            L2_cache_size=50 << 20,
            gcnArchName="",
            is_integrated=0,
        )

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        state.device = state.device if index is None or index < 0 else index

    def synchronize(*_: Any) -> None:
        log.host_waits((), "synchronize")

    def held(*_: Any) -> int:
        return storages.held_bytes

    def peak(*_: Any) -> int:
        return storages.peak_bytes

    answers: dict[str, Any] = {
        "Stream": SimulatedStream,
        "Event": Event,
        "current_stream": lambda *_: current(log),
        "default_stream": lambda *_: SimulatedStream(number=0),
        "set_stream": lambda stream: setattr(log, "stream", stream.number),
        "stream": StreamContext,
        "StreamContext": StreamContext,
        "synchronize": synchronize,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: gpus,
        "_device_count_nvml": lambda: gpus,
        "current_device": lambda: state.device,
        "set_device": set_device,
        "device": _NullContext,
        "device_of": _NullContext,
        "get_device_name": lambda *_: GPU_NAME,
        "get_device_capability": lambda *_: CAPABILITY,
        "get_device_properties": properties,
        "get_arch_list": lambda: ["sm_90"],
        "can_device_access_peer": lambda *_: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "mem_get_info": lambda *_: (GPU_BYTES - storages.held_bytes, GPU_BYTES),
        "memory_allocated": held,
        "memory_reserved": held,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "memory_stats": lambda *_: defaultdict(int),
        "memory_summary": lambda *_, **__: "",
        "memory_snapshot": lambda *_: [],
        "get_rng_state": lambda *_: generator_state.clone(),
        "get_rng_state_all": lambda: [generator_state.clone() for _ in range(gpus)],
        "initial_seed": lambda: state.seed,
        "utilization": lambda *_: 100,
    }
    silent = (
        "_lazy_init init empty_cache ipc_collect reset_peak_memory_stats reset_max_memory_allocated "
        "reset_max_memory_cached reset_accumulated_memory_stats manual_seed manual_seed_all seed seed_all "
        "set_rng_state set_rng_state_all set_per_process_memory_fraction _sleep _lazy_call"
    )
    answers |= dict.fromkeys(silent.split(), nothing)
    for name, answer in answers.items():
        patches.set(torch.cuda, name, answer)
    patches.set(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))
    patches.set(torch, "Stream", SimulatedStream)
    patches.set(torch, "Event", Event)
    patches.set(torch.version, "cuda", CUDA_VERSION)
    _install_memory(patches, answers, nothing)
    _install_accelerator(patches, answers, nothing)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        patches.set(torch.cuda.nvtx, name, nothing)
    patches.set(torch.cuda.nvtx, "range", _NullContext)
    patches.set(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
    for name in ("CUDAGraph", "graph", "make_graphed_callables"):
        patches.set(torch.cuda, name, _refused(f"torch.cuda.{name}"))


def _install_memory(patches: Patches, answers: dict[str, Any], nothing: Callable[..., None]) -> None:
    memory = torch.cuda.memory
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "mem_get_info"):
        patches.set(memory, name, answers[name])
    for name in ("memory_stats", "memory_summary", "memory_snapshot"):
        patches.set(memory, name, answers[name])
    for name in (
        "empty_cache",
        "reset_peak_memory_stats",
        "_record_memory_history",
        "_dump_snapshot",
        "_set_allocator_settings",
    ):
        patches.set(memory, name, nothing)


def _install_accelerator(patches: Patches, answers: dict[str, Any], nothing: Callable[..., None]) -> None:
    accelerator = torch.accelerator
    accelerator_answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": answers["device_count"],
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_device_index": answers["current_device"],
        "current_device_idx": answers["current_device"],
        "set_device_index": answers["set_device"],
        "set_device_idx": answers["set_device"],
        "current_stream": answers["current_stream"],
        "set_stream": answers["set_stream"],
        "synchronize": answers["synchronize"],
    }
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats"):
        accelerator_answers[name] = answers[name]
    accelerator_answers |= dict.fromkeys(("empty_cache", "reset_peak_memory_stats"), nothing)
    for name, answer in accelerator_answers.items():
        if hasattr(accelerator, name):
            patches.set(accelerator, name, answer)


def _refused(name: str) -> type:
    """Returns a class that annotations may name and that refuses to be instantiated."""

    def refuse(*_: Any, **__: Any) -> Any:
        from foretrace.inputs.script.tracer.unknown import CannotTrace

        raise CannotTrace(
            "unsupported-op", f"{name} captures what a GPU runs, which a traced script has not", "trace the eager step"
        )

    return type(name.rpartition(".")[2], (), {"__new__": refuse})
