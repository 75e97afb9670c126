"""Explains the terms of forms and answers, each in one plain sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TERMS: Final[Mapping[str, str]] = {
    "tp": "Tensor parallelism: the GPUs among which each layer is divided.",
    "pp": "Pipeline parallelism: the stages that the layers are divided into, one after the other.",
    "vpp": "Virtual pipeline: the parts of the model on each stage, which take turns so that stages wait less.",
    "cp": "Context parallelism: the GPUs among which each sequence is divided.",
    "ep": "Expert parallelism: the GPUs among which the experts of a layer are divided.",
    "etp": "Tensor parallelism of experts: the GPUs among which each expert is divided.",
    "dp": "Data parallelism: the copies of the model, each of which works on a part of the batch.",
    "gbs": "Global batch size: the sequences of a step of the whole job.",
    "mbs": "Microbatch size: the sequences that pass through the pipeline together.",
    "seq len": "The tokens of a sequence.",
    "zero": "The state that data-parallel ranks divide: 1 the optimizer's, 2 also gradients, 3 also weights.",
    "recompute": "Activations that are computed again in the backward pass instead of being kept in memory.",
    "schedule": "The order in which a stage runs the forward and backward passes of its microbatches.",
    "step": "The time from one update of the weights to the next.",
    "band": "The range in which a measured step is expected.",
    "MFU": "Model FLOPs utilisation: the FLOPs that the model needs, as a share of what the GPUs could do at most.",
    "bubble": "The time in which a stage waits for others because its pipeline is filling or draining.",
    "exposed": "Communication that no computation hides, so that it makes the step longer.",
    "imbalance": "The time in which ranks wait for one that has more to do.",
    "host": "The time in which a GPU waits for its host to launch kernels.",
    "critical path": "The chain of ops that the length of the step depends on.",
    "rank": "A process of the job, which has one GPU.",
}
