"""Finds the kernels of recorded ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from foretrace.basics.errors import Diagnostic, listed
from foretrace.inputs.script.recording import KernelLaunch, RankRecording, Signature
from foretrace.inputs.torch_ops.shapes import is_known, is_product, kernels_of
from foretrace.inputs.torch_ops.tensors import Tensor
from foretrace.program.kernels import Kernel, Stream, kernels_text

_MAX_LISTED: Final = 12


def kernels_of_signature(signature: Signature) -> tuple[tuple[int, Kernel], ...]:
    """Returns what an op computes or moves, each kernel with its count; () for an op of empty tensors.

    An unknown op is one pass over its tensors: it reads every input and writes every output once.
    """
    outputs = tuple(Tensor(output.dims, output.type, output.strides) for output in signature.outputs)
    return tuple((1, kernel) for kernel in kernels_of(signature.op, signature.inputs, outputs))


def kernel_texts(recording: RankRecording) -> list[str]:
    """Returns the kernels of every signature of a recording as text, "" where there are none."""
    return [kernels_text(kernels_of_signature(signature)) for signature in recording.signatures]


def launch_counts(recording: RankRecording) -> list[int]:
    """Returns how many launches the host issues for every signature of a recording; one for a loop in C++."""
    return [
        sum(
            count * (1 if isinstance(kernel, Stream) and kernel.looped else kernel.launches)
            for count, kernel in kernels_of_signature(signature)
        )
        for signature in recording.signatures
    ]


def _is_guessed(op: str, kernels: tuple[tuple[int, Kernel], ...]) -> bool:
    """Whether kernels are a pass over the tensors since nothing else is known, as of a product in double precision."""
    return not is_known(op) or (is_product(op) and not any(kernel.flops for _, kernel in kernels))


def unknown_ops(recordings: Iterable[RankRecording]) -> Diagnostic | None:
    """Returns a warning that names the ops that are not known and how often they run; None where all are known."""
    runs: Counter[str] = Counter()
    for recording in recordings:
        names = [signature.op for signature in recording.signatures]
        unknown = {
            number
            for number, signature in enumerate(recording.signatures)
            if (kernels := kernels_of_signature(signature)) and _is_guessed(signature.op, kernels)
        }
        launches = (event.signature for event in recording.events if isinstance(event, KernelLaunch))
        runs.update(names[number] for number in launches if number in unknown)
    if not runs:
        return None
    words = [f"{name} ({count:,})" for name, count in runs.most_common()]
    text = f"unknown ops are taken to read and write each tensor once: {listed(words, _MAX_LISTED)}"
    return Diagnostic("warning", "unknown-op", text)
