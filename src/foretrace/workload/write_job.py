"""Writes jobs as YAML with comments: what each field means, and which values are guessed."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from foretrace.workload.job_file import PlanValue

ModelText: TypeAlias = "str | Mapping[str, object]"

_MEANINGS: Final = {
    "gpus": "dp follows from it and the other axes",
    "mbs": "sequences of one microbatch on one rank",
    "gbs": "sequences of one step",
    "seq_len": "tokens of a sequence",
    "tp": "tensor parallelism",
    "sequence_parallel": "norms and dropout split over tp too",
    "cp": "context parallelism",
    "pp": "pipeline stages",
    "vpp": "model chunks of each stage",
    "stage_layers": "layers of every chunk, in the model's order",
    "layout": "what every chunk holds: E embedding, t layer, m MTP, L loss",
    "account_for": "ends of the model that count as a layer each",
    "first_stage_layers": "layers of the first stage",
    "last_stage_layers": "layers of the last stage",
    "ep": "expert parallelism",
    "etp": "tensor parallelism of experts",
    "routing": "tokens of the busiest expert rank over the mean: 1 is balanced",
    "rank_order": "how axes number the ranks, fastest first",
    "zero": "what data-parallel ranks split: 1 optimizer state, 2 gradients too, 3 parameters too (FSDP)",
    "recompute": "none, selective or full",
    "recompute_layers": "of how many layers of each stage",
    "recompute_modules": "selective: the parts of a layer",
    "offload_modules": "parts of a layer whose inputs go to the host",
    "fp8_activation_input": "SwiGLU keeps its input in 8 bits",
    "precision": "of linear layers: bf16, fp16, fp8, fp8_block, mxfp8, nvfp4",
    "grad_overlap": "gradients reduced under the backward",
    "param_overlap": "parameters gathered under the forward",
    "stack": "the software that runs it",
}
_GUESSES: Final[dict[str, PlanValue]] = {"mbs": 1, "tp": 1, "pp": 1, "recompute": "none", "precision": "bf16"}
"""What is written where nothing is known; GPUs are whole nodes of eight, and as many as the axes need."""
_LEFT_OUT: Final = ("gbs", "zero", "grad_overlap", "param_overlap", "stack")
"""What is shown as a comment where it is not known: a rule chooses it."""

_NOT_TEXT: Final = ("yes", "no", "true", "false", "on", "off", "null")


@dataclass(frozen=True, slots=True)
class JobDraft:
    """A job to be written: a model by name or as `model_spec` gives it, what is known of its plan, what was guessed
    about either, and remarks on what is left out of both."""

    model: ModelText
    plan: Mapping[str, PlanValue]
    cluster: str | None
    made_from: str
    guesses: tuple[str, ...] = ()
    plan_guesses: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def job_text(draft: JobDraft) -> str:
    """The file; `read_job` reads it back."""
    lines = [
        f"# A training job, made from {_one_line(draft.made_from)}: foretrace predict THIS_FILE",
        "# What is marked guessed was not said there: look at it before you trust the answer.",
        *(line for remark in draft.remarks for line in _comment(remark)),
        "",
        *_model(draft),
        "",
        "plan:",
        *_plan(draft),
        "",
    ]
    cluster = draft.cluster or "h100-dgx"
    mark = "" if draft.cluster else "guessed: nothing says which; see foretrace list clusters"
    return "\n".join([*lines, _line(0, "cluster", cluster, mark)]) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        _one_line(text),
        80,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _model(draft: JobDraft) -> list[str]:
    guesses = [f"# guessed: {_one_line(guess)}" for guess in draft.guesses]
    if isinstance(draft.model, str):
        return [*guesses, _line(0, "model", draft.model, "see foretrace show " + draft.model)]
    lines = ["model:", *(f"  {guess}" for guess in guesses)]
    return [*lines, *(_line(1, name, value) for name, value in draft.model.items())]


def _plan(draft: JobDraft) -> list[str]:
    axes = [draft.plan.get(name, 1) for name in ("tp", "cp", "pp")]
    needed = math.prod(size for size in axes if isinstance(size, int))
    unknown = {"gpus": math.lcm(8, needed), **_GUESSES}
    order = [*_MEANINGS, *(name for name in draft.plan if name not in _MEANINGS)]
    lines = []
    for name in order:
        meaning = _MEANINGS.get(name, "")
        if name in draft.plan:
            guess = draft.plan_guesses.get(name)
            lines.append(_line(1, name, draft.plan[name], f"guessed: {guess}" if guess else meaning))
        elif name in unknown:
            lines.append(_line(1, name, unknown[name], f"guessed: not given; {meaning}"))
        elif name in _LEFT_OUT:
            lines.append(f"  # {name}: chosen unless given; {meaning}")
    return lines


def _line(depth: int, name: str, value: object, comment: str = "") -> str:
    text = f"{'  ' * depth}{name}: {_text(value)}"
    return f"{text:<34}  # {_one_line(comment)}" if comment else text


def _text(value: object) -> str:
    """A value in YAML's flow style; text is quoted where it might be read as something else."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, str) and not (value[:1].isalpha() and value.isascii() and _is_plain(value)):
        import json

        return json.dumps(value)
    return str(value)


def _is_plain(text: str) -> bool:
    return all(char.isalnum() or char in "-_." for char in text) and text.lower() not in _NOT_TEXT


def _one_line(text: str) -> str:
    return " ".join(text.split())
