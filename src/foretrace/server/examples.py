"""Names what a page can start from: a few models with a plan, and the example files of the repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from foretrace.basics.errors import InputError, did_you_mean, shortened
from foretrace.inputs.registry import kinds

FOLDER: Final = "examples"

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_PLACES: Final = (_PACKAGE, _PACKAGE.parents[1])
"""The folders in which there may be a folder of examples: the installed package, and a checkout of the repository."""


@dataclass(frozen=True, slots=True)
class Example:
    """Something to start from.

    Attributes:
        id: Its name in questions and links.
        title: What it is, in words.
        kind: The kind of its input.
        file: Its file below the folder of examples; empty for a model.
        question: What a page asks about it at first.
    """

    id: str
    title: str
    kind: str
    file: str = ""
    question: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path of the file from the folder above the examples, as a command line has it."""
        return f"{FOLDER}/{self.file}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the example as a page lists it."""
        noun = next(kind.noun for kind in kinds() if kind.kind == self.kind)
        return {
            "id": self.id,
            "title": self.title,
            "kind": self.kind,
            "noun": noun,
            "question": dict(self.question),
        }


def _of_model(name: str, title: str, options: Mapping[str, Any], **others: Any) -> Example:
    question = {
        "ask": "step",
        "input": {"model": name},
        "options": dict(options),
        "machine": {"cluster": "h100-dgx"},
        **others,
    }
    return Example(f"{name}_{options['gpus']}gpu", title, "model", question=question)


def _of_file(name: str, file: str, title: str, kind: str, ask: str = "step", **others: Any) -> Example:
    question = {"ask": ask, "input": {"example": name}, **others}
    return Example(name, title, kind, file, question)


_CLUSTER: Final = {"cluster": "h100-dgx"}

_ALL: Final = (
    _of_model("llama3-70b", "Llama 3 70B on 512 H100", {"gpus": "512", "tp": "4", "pp": "4", "gbs": "1024"}),
    _of_model(
        "deepseek-v3", "DeepSeek-V3 on 2,048 H100", {"gpus": "2048", "tp": "2", "pp": "16", "ep": "64", "gbs": "15360"}
    ),
    _of_file(
        "llama405b_1024gpu",
        "llama405b_1024gpu.txt",
        "SimAI/AICB workload: a model of 405 B parameters on 1,024 GPUs",
        "aicb",
        machine=_CLUSTER,
    ),
    _of_file(
        "moe_128gpu",
        "moe_128gpu.txt",
        "SimAI/AICB workload: a mixture of experts on 128 GPUs",
        "aicb",
        machine=_CLUSTER,
    ),
    _of_file(
        "moe_fairseq_profile",
        "moe_fairseq_profile.txt",
        "PyTorch profiler table of a mixture of experts",
        "profiler-table",
        ask="explain",
    ),
    _of_file(
        "gpt13b_real_rank0",
        "traces/gpt13b_real_rank0.txt",
        "Megatron trace of a real run, one rank",
        "megatron-trace",
        ask="explain",
    ),
    _of_file(
        "moe_ex_situ_rank2",
        "traces/moe_ex_situ_rank2.txt",
        "Megatron trace of one GPU that ran as each rank",
        "megatron-trace",
        options={"mesh": "pp=2,ep=8,dp=8", "pp_comm": "8MiB", "microbatches": "8"},
        machine={"cluster": "a100-dgx"},
    ),
)


@cache
def examples_folder() -> Path | None:
    """Returns the folder above the examples; None where they are not installed."""
    return next((place for place in _PLACES if (place / FOLDER / "moe_128gpu.txt").is_file()), None)


@cache
def examples() -> Mapping[str, Example]:
    """Returns what can be started from, by id."""
    has_files = examples_folder() is not None
    return {example.id: example for example in _ALL if has_files or not example.file}


def example_of(name: str) -> Example:
    """Returns an example whose input is a file. Raises InputError where there is none of this name."""
    files = {example.id: example for example in examples().values() if example.file}
    if name not in files:
        problem = f'no example is called "{shortened(name)}"{did_you_mean(name, files)}'
        raise InputError("unknown-name", problem, where="input.example", hint=f"known: {', '.join(files)}")
    return files[name]
