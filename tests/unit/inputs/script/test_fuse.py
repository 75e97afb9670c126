"""Compiled regions: which ops become one kernel, what it reads and writes, and what the backward makes again."""

from __future__ import annotations

from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.script.fuse import FUSED, FUSED_SOFTMAX, fused
from foretrace.inputs.script.kernels import kernels_of_signature
from foretrace.inputs.script.memory import peak_bytes
from foretrace.inputs.script.recording import (
    Event,
    HostEffort,
    HostWait,
    KernelLaunch,
    Place,
    RankRecording,
    Signature,
    StorageLife,
    TensorShape,
)
from foretrace.program.columns import Category, Phase
from foretrace.program.kernels import Stream

FP32 = "float"
ROWS = 1 << 10


class Region:
    """Writes a compiled region op by op. Storages that it is given are there before it."""

    def __init__(self, given: int) -> None:
        self.events: list[Event] = []
        self.signatures: list[Signature] = []
        self.storages = [StorageLife(4 * ROWS * ROWS, -1, -1, Category.ACTIVATIONS) for _ in range(given)]

    def op(self, name: str, *reads: int, rows: int = ROWS, phase: Phase = Phase.FORWARD) -> int:
        """Adds an op on square tensors and returns the storage that it writes."""
        shape = (rows, ROWS)
        inputs = Inputs((shape,) * len(reads), (FP32,) * len(reads))
        signature = Signature(f"aten::{name}", inputs, (TensorShape(shape, FP32),))
        if signature not in self.signatures:
            self.signatures.append(signature)
        number = len(self.events)
        self.storages.append(StorageLife(4 * rows * ROWS, number, -1, Category.ACTIVATIONS))
        made = len(self.storages) - 1
        place = Place(phase, -1, 0)
        self.events.append(
            KernelLaunch(
                self.signatures.index(signature), 0, place, HostEffort(), region=1, reads=reads, writes=(made,)
            )
        )
        return made

    def release(self, *storages: int) -> None:
        """Releases storages before the next op."""
        for storage in storages:
            self.storages[storage] = self.storages[storage]._replace(released=len(self.events))

    def recording(self) -> RankRecording:
        """Returns the recording of the one step that it is."""
        steps = [(0, len(self.events))]
        return RankRecording(0, 1, self.events, steps, 0, self.signatures, [], [], ["default"], self.storages)


def ops(recording: RankRecording) -> list[str]:
    return [recording.signatures[event.signature].op for event in recording.events if isinstance(event, KernelLaunch)]


def streams(recording: RankRecording) -> list[Stream]:
    kernels = [
        kernels_of_signature(recording.signatures[e.signature]) for e in recording.events if isinstance(e, KernelLaunch)
    ]
    return [kernel for own in kernels for _, kernel in own if isinstance(kernel, Stream)]


TENSOR = 4 * ROWS * ROWS


def test_a_chain_is_one_kernel_that_reads_its_input_and_writes_its_result() -> None:
    region = Region(1)
    first = region.op("sin", 0)
    second = region.op("exp", first)
    region.release(first)
    region.op("mul", second, 0)
    region.release(second)
    result = fused(region.recording())
    assert ops(result) == [FUSED]
    assert [(kernel.read, kernel.write) for kernel in streams(result)] == [(TENSOR, TENSOR)]
    assert peak_bytes(result) == 2 * TENSOR


def test_products_stay_and_divide_chains() -> None:
    region = Region(2)
    made = region.op("exp", 0)
    product = region.op("mm", made, 1)
    region.op("exp", product)
    assert ops(fused(region.recording())) == [FUSED, "aten::mm", FUSED]


def test_chains_of_different_inputs_are_kernels_of_their_own() -> None:
    region = Region(2)
    region.op("exp", 0)
    region.op("sin", 1)
    assert ops(fused(region.recording())) == [FUSED, FUSED]


def test_the_same_work_is_done_once() -> None:
    region = Region(1)
    left, right = region.op("exp", 0), region.op("exp", 0)
    region.op("mm", left, right)
    result = fused(region.recording())
    assert ops(result) == [FUSED, "aten::mm"]
    assert [kernel.write for kernel in streams(result)] == [TENSOR]


def test_random_numbers_are_drawn_each_time() -> None:
    region = Region(1)
    region.op("mm", region.op("native_dropout", 0), region.op("native_dropout", 0))
    assert [kernel.write for kernel in streams(fused(region.recording()))] == [2 * TENSOR]


def test_the_backward_makes_again_what_only_it_needs() -> None:
    region = Region(2)
    product = region.op("mm", 0, 1)
    kept = region.op("exp", product)
    region.op("mm", region.op("sin", kept), 1)
    region.op("mul", kept, 0, phase=Phase.BACKWARD)
    result = fused(region.recording())
    assert ops(result) == ["aten::mm", FUSED, "aten::mm", FUSED]
    forward, backward = streams(result)
    assert (forward.read, forward.write) == (TENSOR, TENSOR)
    assert (backward.read, backward.write) == (2 * TENSOR, TENSOR)


def test_a_softmax_of_long_rows_has_a_kernel_of_its_kind() -> None:
    region = Region(1)
    shape = (64, 4096)
    region.signatures.append(Signature("aten::_log_softmax", Inputs((shape,), (FP32,)), (TensorShape(shape, FP32),)))
    region.storages.append(StorageLife(4 * 64 * 4096, 0, -1, Category.ACTIVATIONS))
    region.events.append(
        KernelLaunch(0, 0, Place(Phase.FORWARD, -1, 0), HostEffort(), region=1, reads=(0,), writes=(1,))
    )
    assert ops(fused(region.recording())) == [FUSED_SOFTMAX]


def test_waits_and_steps_keep_their_places() -> None:
    region = Region(1)
    region.op("exp", region.op("sin", 0))
    region.events.append(HostWait((), 2, "synchronize"))
    result = fused(region.recording())
    assert result.steps == [(0, 2)]
    assert result.events[-1] == HostWait((), 1, "synchronize")


def test_fusing_twice_changes_nothing_more() -> None:
    region = Region(1)
    region.op("exp", region.op("sin", 0))
    once = fused(region.recording())
    assert fused(once) is once
    eager = RankRecording(0, 1, [], [], 0, [], [], [], ["default"], [])
    assert fused(eager) is eager
