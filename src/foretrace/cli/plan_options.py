"""The options that describe a plan, written once for every command that takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

if TYPE_CHECKING:
    from foretrace.errors import Diagnostic
    from foretrace.models.model import Model
    from foretrace.workload.plan import Plan

EXPLAINED: Final = (
    "A model's name (foretrace list models), a Hugging Face config.json, or a job.yaml of foretrace init."
)
_DIGITS: Final = 12
_OVERLAPS: Final = {"grad": "grad_overlap", "param": "param_overlap", "tp": "tp_overlap", "moe": "moe_overlap"}
_BESIDE_LAYERS: Final = {"tp", "moe"}


class _Option(NamedTuple):
    """An option: the type of its value, its name, what it shows for a value, and what it means."""

    type: Any
    flag: str
    metavar: str
    help: str


OPTIONS: Final[dict[str, _Option]] = {
    "gpus": _Option(int, "--gpus", "N", "GPUs of the job; dp follows."),
    "tp": _Option(int, "--tp", "N", "Tensor parallelism."),
    "pp": _Option(int, "--pp", "N", "Pipeline stages."),
    "gbs": _Option(int, "--gbs", "N", "Sequences of a step."),
    "mbs": _Option(int, "--mbs", "N", "Sequences of a microbatch."),
    "seq_len": _Option(int, "--seq", "N", "Tokens of a sequence; else the model's own."),
    "cp": _Option(int, "--cp", "N", "Context parallelism."),
    "cp_comm": _Option(str, "--cp-comm", "p2p|all_gather|a2a", "How cp ranks share keys and values."),
    "vpp": _Option(int, "--vpp", "N", "Model chunks of each stage."),
    "ep": _Option(int, "--ep", "N", "Expert parallelism."),
    "etp": _Option(int, "--etp", "N", "Tensor parallelism of experts."),
    "schedule": _Option(str, "--schedule", "NAME", "1f1b, interleaved-1f1b, zb-h1, zb-v, …"),
    "stage_layers": _Option(str, "--stage-layers", "20,20,20,20", "Layers of every chunk."),
    "zero": _Option(int, "--zero", "0|1|2|3", "What dp ranks split: optimizer, gradients, parameters (FSDP)."),
    "shard": _Option(int, "--shard", "N", "Ranks that split under ZeRO-3; the rest replicate (HSDP)."),
    "prefetch": _Option(int, "--prefetch", "N", "ZeRO-3: layers gathered ahead."),
    "recompute": _Option(str, "--recompute", "none|selective|full", "What the backward computes again."),
    "recompute_layers": _Option(int, "--recompute-layers", "N", "full: of how many layers of a stage."),
    "precision": _Option(str, "--precision", "bf16|fp8|mxfp8|…", "Of linear layers."),
    "overlap": _Option(
        str, "--overlap", "grad,param,tp,moe", "What overlaps; all; none. tp and moe alone leave the rest to the stack."
    ),
    "sequence_parallel": _Option(bool, "--sp/--no-sp", "", "Sequence parallelism beside tp."),
    "reshard": _Option(bool, "--reshard/--no-reshard", "", "ZeRO-3: drop parameters after the forward."),
    "cuda_graphs": _Option(str, "--cuda-graphs", "none|partial|full", "What the host does not launch."),
    "offload_optimizer": _Option(bool, "--offload-optimizer", "", "Optimizer state on the host."),
    "offload_layers": _Option(int, "--offload-layers", "N", "Layers of a stage whose activations go to the host."),
    "documents": _Option(str, "--documents", "4096,4096", "Packed sequences: tokens of each document."),
    "routing": _Option(
        str, "--routing", "balanced|1.5x|FILE", "How uneven tokens go to experts: busiest over mean; a number a layer."
    ),
    "dispatcher": _Option(
        str,
        "--dispatcher",
        "alltoall|deepep|…",
        "How tokens go to experts: hierarchical, deepep, hybridep, low_latency.",
    ),
    "stack": _Option(str, "--stack", "NAME", "The software: megatron-core, fsdp, torch-eager, …"),
}
"""Options by the field of the plan they set; `overlap` sets several."""


def with_plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes the options of a plan as well; they reach it as `options`, the given ones by name."""
    own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "options"]

    def run(**given: Any) -> None:
        chosen = {name: value for name in OPTIONS if (value := given.pop(name)) is not None}
        command(options=chosen, **given)

    made = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[one.type | None, typer.Option(one.flag, metavar=one.metavar or None, help=one.help)],
        )
        for name, one in OPTIONS.items()
    ]
    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    # typer reads a command's options off its signature and its annotations.
    run.__signature__ = inspect.Signature([keywords[0], *made, *keywords[1:]])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*keywords, *made)}
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run


def read_plan(options: dict[str, Any], base: dict[str, Any] | None = None) -> Plan:
    """The plan of options, over the fields of a file where there is one."""
    from foretrace.errors import UsageError
    from foretrace.workload.plan import Plan

    values = {**(base or {}), **_fields(options)}
    if "gpus" not in values:
        raise UsageError("on how many GPUs?", hint="for example --gpus 512")
    known = {field.name for field in fields(Plan)}
    return Plan(**{name: value for name, value in values.items() if name in known})


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """Fields of a plan from the texts of options; what a size may be, `settle` checks."""
    values = dict(options)
    for name in ("documents", "stage_layers"):
        if name in values:
            values[name] = _numbers(values[name], OPTIONS[name], least=int(name == "documents"))
    if "overlap" in values:
        values |= _overlaps(values.pop("overlap"))
    if "routing" in values:
        values["routing"] = _routing(values["routing"])
    for name in ("recompute", "precision", "cuda_graphs", "cp_comm", "dispatcher"):
        if name in values:
            values[name] = _word(name, values[name])
    return values


def _word(name: str, value: str) -> str:
    from foretrace.errors import UsageError, did_you_mean
    from foretrace.workload.plan import WORDS

    known, plain = WORDS[name], value.lower().replace("-", "_")
    if plain not in known:
        problem = f'{OPTIONS[name].flag} "{value}" is not known{did_you_mean(value, known)}'
        raise UsageError(problem, hint=f"known: {', '.join(known)}")
    return plain


def _numbers(text: str, option: _Option, least: int) -> tuple[int, ...]:
    from foretrace.errors import UsageError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= _DIGITS and int(part) >= least for part in parts):
        problem = f"{option.flag} {text}: expected whole numbers from {least} on"
        raise UsageError(problem, hint=f"example: {option.flag} {option.metavar}")
    return tuple(int(part) for part in parts)


def _overlaps(text: str) -> dict[str, bool]:
    from foretrace.errors import UsageError, did_you_mean

    words = {word.strip() for word in text.split(",")}
    # Of gradients and parameters a stack has a habit; who speaks of tp or experts alone does not mean to change it.
    decided = set(_OVERLAPS) if words - _BESIDE_LAYERS else _BESIDE_LAYERS
    words -= {"none"}
    words = words - {"dp"} | {"grad", "param"} if "dp" in words else words
    words = set(_OVERLAPS) if words == {"all"} else words
    for word in sorted(words - set(_OVERLAPS)):
        raise UsageError(f'--overlap "{word}" is not known{did_you_mean(word, _OVERLAPS)}', hint=f"known: {_KNOWN}")
    return {field: word in words for word, field in _OVERLAPS.items() if word in decided}


_KNOWN: Final = f"{', '.join(_OVERLAPS)}, dp = grad,param; all; none"


def _routing(text: str) -> float | tuple[float, ...]:
    """A factor for all layers, or a file with one on a line for each layer; `#` begins a comment."""
    from foretrace.files import read_whole
    from foretrace.units import parse_factor

    if text == "balanced":
        return 1.0
    if not Path(text).is_file():
        return parse_factor(text, where=f"--routing {text}")
    lines = read_whole(text, "routing", "a number a layer").decode("utf-8", "replace").splitlines()
    found = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    return tuple(parse_factor(one, where=f"{text}:{number}") for number, one in found if one)


class Job(NamedTuple):
    """What a command line asks for: a model, the fields of a plan that a file gives, its cluster, and its guesses."""

    model: Model
    fields: dict[str, Any]
    cluster: str | None
    diagnostics: tuple[Diagnostic, ...] = ()


def read_job(text: str) -> Job:
    """The model that is called so, or what a file describes; a folder stands for the config.json in it."""
    from foretrace.models.load import is_configuration, is_file, read_model

    if is_configuration(text) or not (text.endswith((".yaml", ".yml")) or is_file(Path(text))):
        found, guesses = read_model(text)
        return Job(found, {}, None, guesses)
    from foretrace.workload.job_file import read_job as read_job_file

    job = read_job_file(text)
    return Job(job.model, dict(job.plan_fields), job.cluster, job.diagnostics)
