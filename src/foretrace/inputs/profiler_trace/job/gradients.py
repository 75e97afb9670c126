"""Gradients of a job that was recorded on one GPU, reduced over the replicas of another mesh.

A trace of one GPU has no communication. On more, PyTorch's DistributedDataParallel all-reduces gradients in buckets,
each as soon as its last gradient is there, on a stream of its own, and the optimizer waits for all of them. Such calls
are added to the trace as if they had been recorded: a launch of no time, a kernel, and the waits between the streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.profiler_trace.format.records import (
    ON_DEVICE,
    CollectiveArguments,
    EventCategory,
    Events,
    RankProfile,
)
from foretrace.inputs.profiler_trace.job.communication import communications, element_bytes
from foretrace.inputs.profiler_trace.job.layout import ADDED, find_layout
from foretrace.inputs.profiler_trace.job.resize import target_mesh
from foretrace.inputs.profiler_trace.job.user_groups import check_user_sizes
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.profiler_trace.rank.phases import phases
from foretrace.inputs.profiler_trace.rank.steps import Steps, find_steps
from foretrace.inputs.torch_ops.parameters import ACCUMULATE, gradients
from foretrace.inputs.torch_ops.user_sizes import UserSizes
from foretrace.program.columns import Phase
from foretrace.step.buckets import ddp_buckets, spread_evenly

_TICK_S: Final = 1e-9
_C10_TYPES: Final = {"bf16": "BFloat16", "fp16": "Half", "fp32": "Float", "fp8": "Float8_e4m3fn"}


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Gradients reduced in one call: elements of a type, and when the host has the last of them."""

    at_s: float
    elements: int
    dtype: str


def with_gradients_reduced(traces: Sequence[RankProfile], options: ProfilerTraceOptions) -> list[RankProfile]:
    """Returns the traces, with all-reduces of gradients added if replicas are asked for and none were recorded."""
    check_user_sizes(options, traces[0].path)
    if options.mesh is None and options.gpus is None:
        return list(traces)
    return [_with_reduced(trace, options) for trace in traces]


def _with_reduced(trace: RankProfile, options: ProfilerTraceOptions) -> RankProfile:
    links = EventLinks(trace)
    layout = find_layout([trace], communications(trace, links).values(), options)
    target = target_mesh(layout.mesh, options, trace.path)
    reduced = any({"dp", "shard", "edp", "replicate"} & set(axes) for axes in layout.of_group.values())
    if reduced or layout.mesh.dp > 1 or target.dp == 1:
        return trace
    steps = find_steps(trace, links)
    buckets, note = _buckets(trace, links, steps, options)
    overlap = dict(options.sizes).get("overlap", "on")
    total = sum(bucket.elements * (element_bytes(bucket.dtype) or 4) for bucket in buckets[0]) if buckets else 0
    how = "each bucket under the backward" if overlap == "on" else "all of them after the backward"
    count = "1 bucket" if len(buckets[0]) == 1 else f"{len(buckets[0])} buckets"
    text = (
        f"one GPU was recorded, without communication: gradients ({total / 1e9:.2f} GB, {note}) are all-reduced over "
        f"dp={target.dp} in {count} of 25 MiB as DDP does, {how} (--set overlap=none|on)"
    )
    added = _Added(trace, links)
    for step in buckets:
        added.reduce(step if overlap == "on" else [replace(bucket, at_s=step[-1].at_s) for bucket in step])
    return replace(added.trace(), diagnostics=(*trace.diagnostics, Diagnostic("note", "assumed", text, trace.path)))


def _buckets(
    trace: RankProfile, links: EventLinks, steps: Steps, options: ProfilerTraceOptions
) -> tuple[list[list[_Bucket]], str]:
    """Returns the buckets of each step in which gradients come, and how they are known."""
    stated, sized = _stated_gradients(options), gradients(trace)
    if stated is None and not sized:
        raise InputError(
            "not-recorded",
            "the sizes of gradients are not in the trace",
            where=trace.path,
            hint="record with record_shapes=True, or say them: --set params=1.1e9, or --set model=llama3-8b",
        )
    buckets: list[list[_Bucket]] = []
    rounds, end_s = _Rounds(trace, links, steps), trace.events.end_s
    for step in range(len(steps)):
        if stated is None:
            last = rounds.last(step, [at for at in sized if steps.of_event[at] == step])
            coming = [(float(end_s[at]), sized[at].count, sized[at].type) for at in last]
        else:
            times = rounds.backward_s(step)
            counts = spread_evenly(stated.elements, len(times))
            coming = [(at, count, stated.dtype) for at, count in zip(times, counts, strict=True)]
        if coming:
            buckets.append(_filled(coming))
    if not buckets:
        raise InputError(
            "nothing-to-do", "no backward was recorded: there are no gradients to reduce", where=trace.path
        )
    return buckets, "from the recorded gradients" if stated is None else stated.how


class _Rounds:
    """The microbatches of steps: gradients of the last are reduced, those of the others only added up. A microbatch
    begins with a forward."""

    def __init__(self, trace: RankProfile, links: EventLinks, steps: Steps) -> None:
        self.trace, self.links, self.steps = trace, links, steps
        device = trace.events.of(*ON_DEVICE)
        self.device = device[links.launch[device] >= 0]
        self.phase = phases(trace, links)[self.device]

    def last(self, step: int, ops: list[int]) -> list[int]:
        """Returns the ops, of these ops of a step, that come after its last forward."""
        forward_s = self._launched_s(step, Phase.FORWARD)
        if not ops or not len(forward_s):
            return ops
        number = np.searchsorted(forward_s, self.trace.events.start_s[ops])
        return [op for op, own in zip(ops, number.tolist(), strict=True) if own == number[-1]]

    def backward_s(self, step: int) -> list[float]:
        """Returns when the host launched the backward kernels of a step's last microbatch.

        Gradients whose order is not known are spread over these times.
        """
        forward_s, backward_s = (self._launched_s(step, phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
        if not len(backward_s):
            return []
        number = np.searchsorted(forward_s, backward_s)
        launched_s: list[float] = backward_s[number == number[-1]].tolist()
        return launched_s

    def _launched_s(self, step: int, phase: Phase) -> Floats:
        mine = self.device[(self.steps.of_event[self.device] == step) & (self.phase == phase)]
        return np.sort(self.trace.events.end_s[self.links.launch[mine]])


@dataclass(frozen=True, slots=True)
class _StatedGradients:
    """Gradients of a rank as the user states them: elements of a type (c10's name), and by which option."""

    elements: int
    dtype: str
    how: str


def _stated_gradients(options: ProfilerTraceOptions) -> _StatedGradients | None:
    sizes = UserSizes(dict(options.sizes))
    dtype, elements = sizes.dtype(), sizes.count("params")
    if elements is not None:
        return _StatedGradients(elements, _C10_TYPES[dtype], f"--set params, {dtype}")
    model = sizes.given.get("model")
    if model is None:
        return None
    from foretrace.models.load import load_model  # only who names a model needs one
    from foretrace.models.parameters import parameters

    return _StatedGradients(parameters(load_model(model)), _C10_TYPES[dtype], f"parameters of {model}, {dtype}")


def _filled(gradients: Sequence[tuple[float, int, str]]) -> list[_Bucket]:
    """Returns gradients, in the order they come, in DDP's buckets; each is ready when its last gradient is."""
    sized = [(count * (element_bytes(dtype) or 4), dtype) for _, count, dtype in gradients]
    return [
        _Bucket(gradients[bucket[-1]][0], sum(gradients[number][1] for number in bucket), gradients[bucket[0]][2])
        for bucket in ddp_buckets(sized)
    ]


class _Added:
    """A trace with calls added to it."""

    def __init__(self, trace: RankProfile, links: EventLinks) -> None:
        self.before, self.links = trace, links
        events = trace.events
        device = events.of(*ON_DEVICE)
        keys, counts = np.unique(events.stream[device], return_counts=True)
        self.main = int(keys[np.argmax(counts)])
        self.stream = int(events.stream.max()) + 1
        self.device = int(events.device[device[0]])
        self.correlation = int(events.correlation.max()) + 1
        threads = events.thread[trace.named(ACCUMULATE.__eq__) & (events.thread >= 0)]
        launches = events.thread[self.links.launch[device][self.links.launch[device] >= 0]]
        self.thread = int(np.bincount(threads if len(threads) else launches).argmax())
        self.strings = {text: number for number, text in enumerate(trace.strings)}
        self.calls = list(trace.calls)
        self.rows: list[dict[str, float]] = []
        self.busy_until_s = 0.0

    def reduce(self, buckets: Sequence[_Bucket]) -> None:
        """Adds the all-reduces of one step, and the main stream's wait for the last."""
        for bucket in buckets:
            mark = self._call("cudaEventRecord", bucket.at_s)
            self._wait(bucket.at_s, self.stream, self.main, mark)
            launch = self._call("cudaLaunchKernelExC", bucket.at_s)
            # As recorded on one rank; what it is on more is for `resize` to say.
            call = CollectiveArguments(
                "allreduce", bucket.elements, bucket.elements, bucket.dtype, ADDED, 1, description="dp"
            )
            self.calls.append(call)
            start = max(bucket.at_s, self.busy_until_s)
            kernel = {
                "category": EventCategory.KERNEL,
                "name": self._string("ncclDevKernel_AllReduce_Sum"),
                "start_s": start,
            }
            kernel |= {"device": self.device, "stream": self.stream, "correlation": launch, "call": len(self.calls) - 1}
            self.rows.append(kernel)
            self.busy_until_s = start
        after = buckets[-1].at_s + _TICK_S
        self._wait(after, self.main, self.stream, self._call("cudaEventRecord", after))

    def trace(self) -> RankProfile:
        """Returns the trace with all events in order."""
        events = self.before.events
        columns = {}
        for field in fields(Events):
            old = getattr(events, field.name)
            if old is None:
                continue
            none = 0.0 if field.name.endswith("_s") else -1
            new = np.array([row.get(field.name, none) for row in self.rows], dtype=np.float64).astype(old.dtype)
            columns[field.name] = np.concatenate([old, new])
        order = np.lexsort((-columns["duration_s"], columns["start_s"]))
        return replace(
            self.before,
            strings=tuple(self.strings),
            calls=tuple(self.calls),
            events=Events(**{name: column[order] for name, column in columns.items()}),
        )

    def _call(self, name: str, at_s: float) -> int:
        """Adds a runtime call that takes no time, and returns its correlation."""
        self.correlation += 1
        row = {"category": EventCategory.RUNTIME, "name": self._string(name), "start_s": at_s, "thread": self.thread}
        self.rows.append({**row, "correlation": self.correlation})
        return self.correlation

    def _wait(self, at_s: float, stream: int, waits_for: int, mark: int) -> None:
        """Adds a wait of a stream for the work that another had been given when a mark was made."""
        called = self._call("cudaStreamWaitEvent", at_s)
        row = {"category": EventCategory.SYNC, "name": self._string("Stream Wait Event"), "start_s": at_s}
        row |= {"device": self.device, "stream": stream, "correlation": called}
        self.rows.append({**row, "waits_stream": waits_for, "waits_correlation": mark})

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))
