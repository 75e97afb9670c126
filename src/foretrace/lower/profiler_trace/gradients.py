"""Gradients of a job that was recorded on one GPU, reduced over the replicas of another mesh.

A trace of one GPU has no communication. On more, PyTorch's DistributedDataParallel all-reduces gradients in buckets,
each as soon as its last gradient is there, on a stream of its own, and the optimizer waits for all of them. Such calls
are added to the trace as if they had been recorded: a launch of no time, a kernel, and the waits between the streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Final

import numpy as np

from foretrace.errors import Diagnostic, InputError
from foretrace.formats.profiler_trace.records import ON_DEVICE, Call, Category, Events, Floats, ProfilerTrace
from foretrace.lower.choices import Choices
from foretrace.lower.profiler_trace.communication import communications, element_bytes
from foretrace.lower.profiler_trace.layout import ADDED, find_layout
from foretrace.lower.profiler_trace.links import Links
from foretrace.lower.profiler_trace.phases import phases
from foretrace.lower.profiler_trace.resize import target_mesh
from foretrace.lower.profiler_trace.said import check_said
from foretrace.lower.profiler_trace.steps import Steps, find_steps
from foretrace.lower.torch.parameters import ACCUMULATE
from foretrace.lower.torch.tensors import tensors
from foretrace.program.columns import Phase
from foretrace.units import parse_count

FIRST_BUCKET_BYTES: Final = 1 << 20
BUCKET_BYTES: Final = 25 << 20
"""PyTorch's `DistributedDataParallel`: bucket_cap_mb = 25, the first bucket 1 MiB so that communication starts early
(torch/nn/parallel/distributed.py, `_DEFAULT_FIRST_BUCKET_BYTES`)."""

_TICK_S: Final = 1e-9
_DTYPES: Final = {"bf16": "BFloat16", "fp16": "Half", "fp32": "Float"}


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Gradients reduced in one call: elements of a type, and when the host has the last of them."""

    at_s: float
    elements: int
    dtype: str


def with_gradients_reduced(traces: Sequence[ProfilerTrace], choices: Choices) -> list[ProfilerTrace]:
    """The traces; where replicas are asked for and none were recorded, with the all-reduces that these need."""
    check_said(choices, traces[0].path)
    if choices.mesh is None and choices.gpus is None:
        return list(traces)
    return [_with_reduced(trace, choices) for trace in traces]


def _with_reduced(trace: ProfilerTrace, choices: Choices) -> ProfilerTrace:
    links = Links(trace)
    layout = find_layout([trace], communications(trace, links).values(), choices)
    target = target_mesh(layout.mesh, choices, trace.path)
    reduced = any({"dp", "shard", "edp", "replicate"} & set(axes) for axes in layout.of_group.values())
    if reduced or layout.mesh.dp > 1 or target.dp == 1:
        return trace
    steps = find_steps(trace, links)
    found, note = _buckets(trace, links, steps, choices)
    sizes = dict(choices.sizes)
    overlap = sizes.get("overlap", "on")
    if overlap not in ("on", "none"):
        raise InputError(f"--set overlap={overlap} is not known", hint="known: on, none")
    total = sum(one.elements * (element_bytes(one.dtype) or 4) for one in found[0]) if found else 0
    how = "each bucket under the backward" if overlap == "on" else "all of them after the backward"
    text = (
        f"one GPU was recorded, without communication: gradients ({total / 1e9:.2f} GB, {note}) are all-reduced over "
        f"dp={target.dp} in {len(found[0])} buckets of 25 MiB as DDP does, {how} (--set overlap=none|on)"
    )
    added = _Added(trace, links)
    for step in found:
        added.reduce(step if overlap == "on" else [replace(one, at_s=step[-1].at_s) for one in step])
    return replace(added.trace(), diagnostics=(*trace.diagnostics, Diagnostic("note", text, trace.path)))


def _buckets(trace: ProfilerTrace, links: Links, steps: Steps, choices: Choices) -> tuple[list[list[_Bucket]], str]:
    """The buckets of each step in which gradients come, and from what they are known."""
    events = trace.events
    named = {number for number, name in enumerate(trace.strings) if name == ACCUMULATE}
    ops = events.of(Category.CPU_OP)
    ops = ops[np.isin(events.name[ops], list(named))]
    said = _said_elements(choices)
    sized = [at for at in ops.tolist() if _gradient(trace, at) is not None]
    if said is None and not sized:
        raise InputError(
            "the sizes of gradients are not in the trace",
            where=trace.path,
            hint="record with record_shapes=True, or say them: --set params=1.1e9, or --set model=llama3-8b",
        )
    found: list[list[_Bucket]] = []
    rounds = _Rounds(trace, links, steps)
    for step in range(len(steps)):
        if said is None:
            last = rounds.last(step, [at for at in sized if steps.of_event[at] == step])
            gradients = [(float(events.end_s[at]), *(_gradient(trace, at) or (0, ""))) for at in last]
        else:
            times = rounds.backward_s(step)
            gradients = [(at, said[0] // len(times), said[1]) for at in times]
        if gradients:
            found.append(_filled(gradients))
    if not found:
        raise InputError("no backward was recorded: there are no gradients to reduce", where=trace.path)
    return found, "from the recorded gradients" if said is None else said[2]


def _gradient(trace: ProfilerTrace, op: int) -> tuple[int, str] | None:
    """Elements and type of the gradient that an AccumulateGrad was given."""
    number = int(trace.events.inputs[op])
    given = next((one for one in tensors(trace.inputs[number]) if one is not None), None) if number >= 0 else None
    return (prod(given.dims), given.type) if given is not None and given.dims else None


class _Rounds:
    """The microbatches of steps: gradients of the last are reduced, those of the others only added up. A microbatch
    begins with a forward."""

    def __init__(self, trace: ProfilerTrace, links: Links, steps: Steps) -> None:
        self.trace, self.links, self.steps = trace, links, steps
        device = trace.events.of(*ON_DEVICE)
        self.device = device[links.launch[device] >= 0]
        self.phase = phases(trace, links)[self.device]

    def last(self, step: int, ops: list[int]) -> list[int]:
        """Those of some ops of a step that come after its last forward."""
        forward_s = self._launched_s(step, Phase.FORWARD)
        if not ops or not len(forward_s):
            return ops
        number = np.searchsorted(forward_s, self.trace.events.start_s[ops])
        return [op for op, own in zip(ops, number.tolist(), strict=True) if own == number[-1]]

    def backward_s(self, step: int) -> list[float]:
        """When the host launched the backward kernels of a step's last microbatch: gradients whose order is not known
        are spread over them."""
        forward_s, backward_s = (self._launched_s(step, one) for one in (Phase.FORWARD, Phase.BACKWARD))
        if not len(backward_s):
            return []
        number = np.searchsorted(forward_s, backward_s)
        found: list[float] = backward_s[number == number[-1]].tolist()
        return found

    def _launched_s(self, step: int, phase: Phase) -> Floats:
        mine = self.device[(self.steps.of_event[self.device] == step) & (self.phase == phase)]
        return np.sort(self.trace.events.end_s[self.links.launch[mine]])


def _said_elements(choices: Choices) -> tuple[int, str, str] | None:
    """Parameters of a rank as the user says them, the type of their gradients, and how they are said."""
    sizes = dict(choices.sizes)
    dtype = sizes.get("dtype", "bf16")
    if dtype not in _DTYPES:
        raise InputError(f'--set dtype={dtype}: "{dtype}" is not known', hint=f"known: {', '.join(_DTYPES)}")
    if "params" in sizes:
        return parse_count(sizes["params"], where="--set params"), _DTYPES[dtype], f"--set params, {dtype}"
    if "model" in sizes:
        from foretrace.models.load import load_model  # only who names a model needs one
        from foretrace.models.parameters import parameters

        return parameters(load_model(sizes["model"])), _DTYPES[dtype], f"parameters of {sizes['model']}, {dtype}"
    return None


def _filled(gradients: Iterable[tuple[float, int, str]]) -> list[_Bucket]:
    """Gradients in buckets, in the order they come: a bucket is full once it has reached its size."""
    buckets: list[_Bucket] = []
    elements, limit = 0, FIRST_BUCKET_BYTES
    at_s, dtype = 0.0, ""
    for ready_s, count, kind in gradients:
        if elements and kind != dtype:
            buckets.append(_Bucket(at_s, elements, dtype))
            elements = 0
        at_s, dtype, elements = ready_s, kind, elements + count
        if elements * (element_bytes(kind) or 4) >= limit:
            buckets.append(_Bucket(at_s, elements, dtype))
            elements, limit = 0, BUCKET_BYTES
    return [*buckets, _Bucket(at_s, elements, dtype)] if elements else buckets


class _Added:
    """A trace with calls added to it."""

    def __init__(self, trace: ProfilerTrace, links: Links) -> None:
        self.before, self.links = trace, links
        events = trace.events
        device = events.of(*ON_DEVICE)
        keys, counts = np.unique(events.stream[device], return_counts=True)
        self.main = int(keys[np.argmax(counts)])
        self.stream = int(events.stream.max()) + 1
        self.device = int(events.device[device[0]])
        self.correlation = int(events.correlation.max()) + 1
        accumulate = [number for number, name in enumerate(trace.strings) if name == ACCUMULATE]
        threads = events.thread[np.isin(events.name, accumulate) & (events.thread >= 0)]
        launches = events.thread[self.links.launch[device][self.links.launch[device] >= 0]]
        self.thread = int(np.bincount(threads if len(threads) else launches).argmax())
        self.strings = {text: number for number, text in enumerate(trace.strings)}
        self.calls = list(trace.calls)
        self.rows: list[dict[str, float]] = []
        self.busy_until_s = 0.0

    def reduce(self, buckets: Sequence[_Bucket]) -> None:
        """All-reduces of one step, and the main stream's wait for the last."""
        for bucket in buckets:
            mark = self._call("cudaEventRecord", bucket.at_s)
            self._wait(bucket.at_s, self.stream, self.main, mark)
            launch = self._call("cudaLaunchKernelExC", bucket.at_s)
            # As recorded on one rank; what it is on more is for `resize` to say.
            call = Call("allreduce", bucket.elements, bucket.elements, bucket.dtype, ADDED, 1, description="dp")
            self.calls.append(call)
            start = max(bucket.at_s, self.busy_until_s)
            kernel = {
                "category": Category.KERNEL,
                "name": self._string("ncclDevKernel_AllReduce_Sum"),
                "start_s": start,
            }
            kernel |= {"device": self.device, "stream": self.stream, "correlation": launch, "call": len(self.calls) - 1}
            self.rows.append(kernel)
            self.busy_until_s = start
        after = buckets[-1].at_s + _TICK_S
        self._wait(after, self.main, self.stream, self._call("cudaEventRecord", after))

    def trace(self) -> ProfilerTrace:
        """All events in order."""
        events = self.before.events
        columns = {}
        for one in fields(Events):
            old = getattr(events, one.name)
            none = 0.0 if one.name.endswith("_s") else -1
            new = np.array([row.get(one.name, none) for row in self.rows], dtype=np.float64).astype(old.dtype)
            columns[one.name] = np.concatenate([old, new])
        order = np.lexsort((-columns["duration_s"], columns["start_s"]))
        return replace(
            self.before,
            strings=tuple(self.strings),
            calls=tuple(self.calls),
            events=Events(**{name: column[order] for name, column in columns.items()}),
        )

    def _call(self, name: str, at_s: float) -> int:
        """A runtime call of no time; its correlation."""
        self.correlation += 1
        row = {"category": Category.RUNTIME, "name": self._string(name), "start_s": at_s, "thread": self.thread}
        self.rows.append({**row, "correlation": self.correlation})
        return self.correlation

    def _wait(self, at_s: float, stream: int, waits_for: int, mark: int) -> None:
        """A stream that waits for what another had been given when a mark was made."""
        called = self._call("cudaStreamWaitEvent", at_s)
        row = {"category": Category.SYNC, "name": self._string("Stream Wait Event"), "start_s": at_s}
        row |= {"device": self.device, "stream": stream, "correlation": called}
        self.rows.append({**row, "waits_stream": waits_for, "waits_correlation": mark})

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))
