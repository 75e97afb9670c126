"""The options of inputs as a command line spells them: their flags, their help, and how their text is read.

Every command that takes an input has all of these options; `Input.read_options` refuses those that the input at hand
does not have. `option_values` checks the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from foretrace.basics.errors import InputError, UsageError, did_you_mean, quoted, shortened
from foretrace.basics.numbers import NumberError, whole_number
from foretrace.basics.units import parse_bytes, parse_count, parse_factor, parse_tokens
from foretrace.schedules.registry import resolve

MAX_NAMED: Final = 10_000
"""Numbers that one range may stand for."""


@dataclass(frozen=True, slots=True)
class OptionText:
    """An option of a command line: how it is written, what its value is, and what it means.

    Attributes:
        flag: The flag. `--sp/--no-sp` is on or off, and `-o --output` has a short form.
        metavar: The placeholder of the value; empty for flags and where `choices` lists the values.
        help: The meaning, in a sentence.
        repeated: Whether the option can be given several times.
        choices: All values; empty where other texts are possible, or where `metavar` lists the values.
        kind: The type of the value.
        default: The value without the option; None where its reader, or the input, decides.
    """

    flag: str
    metavar: str
    help: str
    repeated: bool = False
    choices: tuple[str, ...] = ()
    kind: type = str
    default: Any = None

    @property
    def is_flag(self) -> bool:
        """Whether the option has no value, but is on or off."""
        return not self.metavar and not self.choices


INPUT_OPTIONS: Final[dict[str, OptionText]] = {
    "gpus": OptionText("--gpus", "N", "GPUs of the job; dp follows."),
    "tp": OptionText("--tp", "N", "Tensor parallelism."),
    "pp": OptionText("--pp", "N", "Pipeline stages."),
    "gbs": OptionText("--gbs", "N", "Sequences of a step."),
    "mbs": OptionText("--mbs", "N", "Sequences of a microbatch."),
    "seq_len": OptionText("--seq", "N", "Tokens of a sequence (8k = 8,192); else the model's own."),
    "cp": OptionText("--cp", "N", "Context parallelism."),
    "cp_comm": OptionText("--cp-comm", "p2p|all_gather|a2a", "How cp ranks share keys and values."),
    "vpp": OptionText(
        "--vpp", "N", "Model chunks of each stage; of a workload file also layers|chunks: what its own vpp means."
    ),
    "ep": OptionText("--ep", "N", "Expert parallelism."),
    "etp": OptionText("--etp", "N", "Tensor parallelism of experts."),
    "rank_order": OptionText("--rank-order", "tp-cp-ep-dp-pp", "How axes number the ranks, fastest first."),
    "schedule": OptionText("--schedule", "NAME", "1f1b, interleaved-1f1b, zb-h1, … (foretrace list schedules)."),
    "stage_layers": OptionText("--stage-layers", "20,20,20,20", "Layers of every chunk."),
    "layout": OptionText("--layout", "'Et*4|(t*4|)*14tmL'", "What every chunk holds, as Megatron writes it."),
    "account_for": OptionText("--account-for", "embedding,loss", "Ends that count as a layer each."),
    "first_stage_layers": OptionText("--first-stage-layers", "N", "Layers of the first stage."),
    "last_stage_layers": OptionText("--last-stage-layers", "N", "Layers of the last stage."),
    "zero": OptionText("--zero", "0|1|2|3", "What dp ranks split: optimizer, gradients, parameters (FSDP)."),
    "shard": OptionText("--shard", "N", "Ranks that split under ZeRO-3; the rest replicate (HSDP)."),
    "prefetch": OptionText("--prefetch", "N", "ZeRO-3: layers gathered ahead."),
    "recompute": OptionText("--recompute", "none|selective|full", "What the backward computes again."),
    "recompute_layers": OptionText("--recompute-layers", "N", "full: of how many layers of a stage."),
    "recompute_modules": OptionText(
        "--recompute-modules",
        "core_attn,mlp,…",
        "selective: core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts.",
    ),
    "precision": OptionText("--precision", "bf16|fp8|mxfp8|…", "Of linear layers."),
    "grad_dtype": OptionText("--grad-dtype", "fp32|bf16", "Of gradients, as they are summed and reduced."),
    "master_dtype": OptionText("--master-dtype", "fp32|fp16", "Of the optimizer's copy of parameters."),
    "moment_dtype": OptionText("--moment-dtype", "fp32|bf16|fp16|fp8", "Of the optimizer's two moments."),
    "fp8_params": OptionText("--fp8-params", "", "Parameters held and gathered in 8 bits."),
    "fp8_activation_input": OptionText(
        "--fp8-activation-input", "", "The input of an MLP's activation is kept in 8 bits."
    ),
    "overlap": OptionText(
        "--overlap",
        "grad,param,tp,…",
        "What runs next to computation: grad, param, tp, pp, for models moe; dp = grad,param; all; none.",
    ),
    "sequence_parallel": OptionText("--sp/--no-sp", "", "Sequence parallelism next to tp."),
    "reshard": OptionText("--reshard/--no-reshard", "", "ZeRO-3: drop parameters after the forward."),
    "cuda_graphs": OptionText(
        "--cuda-graphs",
        "none|router|partial|full",
        "What CUDA graphs replay: nothing, routers, attention and routers, or all.",
    ),
    "offload_optimizer": OptionText("--offload-optimizer", "", "Optimizer state on the host."),
    "offload_layers": OptionText("--offload-layers", "N", "Layers of a stage whose activations go to the host."),
    "offload_modules": OptionText(
        "--offload-modules",
        "core_attn,…",
        "Inputs that go to the host: attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act.",
    ),
    "documents": OptionText("--documents", "4096,4096", "Packed sequences: tokens of each document."),
    "routing": OptionText(
        "--routing",
        "1.3x|balanced|FILE",
        "Tokens of the busiest expert rank over the mean; for models also a file with a line per layer; for scripts "
        "balanced, zipf:1.2 or a file.",
    ),
    "dispatcher": OptionText(
        "--dispatcher",
        "alltoall|deepep|…",
        "How tokens go to experts: alltoall, hierarchical, deepep, hybridep, low_latency.",
    ),
    "stack": OptionText(
        "--stack", "NAME[@VERSION]", "The software: megatron-core, megatron-bridge@26.04, … (foretrace list stacks)."
    ),
    "mesh": OptionText("--mesh", "pp=4,dp=16", "Of traces: the mesh; axes not named stay as traced."),
    "microbatches": OptionText("--microbatches", "N", "Of traces and workload files: microbatches of a step."),
    "pp_comm": OptionText(
        "--pp-comm", "16MiB", "Of traces and workload files: what crosses a stage boundary per microbatch."
    ),
    "every_stage": OptionText(
        "--every-stage", "", "Of a workload file: embedding, head and loss on every stage, as SimAI has it."
    ),
    "steps": OptionText("--steps", "1,2,5-7", "Of a profiler trace or a script (2:4): which steps, from 0."),
    "world": OptionText("--world", "N", "Of a script: GPUs of the job, which are its ranks."),
    "trace_ranks": OptionText(
        "--trace-ranks", "0,5,63|all", "Of a script: the ranks to trace; else those that differ."
    ),
    "unknown": OptionText(
        "--unknown", "NUMBER", "Of a script: what stands for numbers that only a GPU knows, such as a loss."
    ),
    "arguments": OptionText("--args", "'--layers 4'", "Of a script: its arguments, which may also follow after --."),
    "sizes": OptionText("--set", "NAME=VALUE", "What a profile does not hold, such as moe.tokens=8192.", repeated=True),
}
"""Options by name: fields of the `Options` of inputs, or texts that `parse_options` turns into some."""

_FLAGS: Final = {
    "pp_comm_bytes": "--pp-comm",
    "ends": "--every-stage",
    "host": "--what-if cuda-graphs|no-host-gaps|unprofiled",
    "batch": "--what-if batch=",
    "gpu": "--what-if gpu=",
    **dict.fromkeys(("grad_overlap", "param_overlap", "tp_overlap", "moe_overlap", "pp_overlap"), "--overlap"),
}
"""How fields are spelled that no option is named after."""

_TOKENS: Final = ("seq_len", "documents")
"""Options that are tokens of a sequence, whose k is 1,024."""
_MAX_NUMBER: Final = 10**12
_INTERNAL: Final = {"traced", "priced"}


def flag_of(name: str) -> str:
    """Returns how a command line spells an option or a field of `Options`."""
    if name in _FLAGS:
        return _FLAGS[name]
    known = INPUT_OPTIONS.get(name)
    return f"--{name.replace('_', '-')}" if known is None else known.flag.partition("/")[0]


def flags_of(options: type[Any]) -> list[str]:
    """Returns how a command line spells the options of a kind of input."""
    return list(dict.fromkeys(flag_of(field.name) for field in fields(options) if field.name not in _INTERNAL))


Reader = Callable[[str], Any]


def read_texts(texts: dict[str, Any], readers: dict[str, Reader]) -> dict[str, Any]:
    """Returns options with their texts read by the reader of each name; others, and values that are not text, stay."""
    return {
        name: readers[name](value) if name in readers and isinstance(value, str) else value
        for name, value in texts.items()
    }


def read_count(name: str) -> Reader:
    """Returns a reader of counts such as 512, 1,024 or 4k; k is 1,024 of a sequence's tokens, otherwise 1,000."""
    parse = parse_tokens if name in _TOKENS else parse_count
    return lambda text: parse(text, where=flag_of(name))


def read_whole_number(name: str) -> Reader:
    """Returns a reader of whole numbers, negative ones included, whose range another place checks."""

    def read(text: str) -> int:
        negative = text.strip().startswith("-")
        return -int(read_count(name)(text.strip()[1:])) if negative else int(read_count(name)(text))

    return read


def read_number_list(name: str, least: int) -> Reader:
    """Returns a reader of whole numbers from `least` on, divided by commas."""

    def read(text: str) -> tuple[int, ...]:
        try:
            numbers = tuple(read_count(name)(part) for part in text.split(","))
        except InputError:
            numbers = (-1,)
        if not all(least <= number <= _MAX_NUMBER for number in numbers):
            problem = f"{flag_of(name)} {shortened(text)}: expected whole numbers from {least} on"
            raise UsageError("bad-value", problem, hint=f"example: {flag_of(name)} {INPUT_OPTIONS[name].metavar}")
        return numbers

    return read


def read_schedule(text: str) -> str:
    """Reads the name of a schedule."""
    return resolve(text)


def read_bytes(text: str) -> int:
    """Reads a size such as 16MiB."""
    return round(parse_bytes(text, where="--pp-comm"))


def read_routing(text: str) -> float:
    """Reads `balanced`, or how many times the mean the busiest receives."""
    text = text.strip()
    if text.lower() == "balanced":
        return 1.0
    if text[:1] not in set("+.0123456789"):
        problem = f"{quoted(text)} is neither a factor nor a file that exists"
        raise InputError("bad-value", problem, where="--routing", hint="1x or more, balanced, or a file")
    return parse_factor(text, where=f"--routing {shortened(text)}")


def read_sizes(texts: list[str] | tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Reads `moe.tokens=8192` and the like: names and values of what a profile does not hold."""
    sizes: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise UsageError(
                "bad-value", f"--set {shortened(text)}: expected NAME=VALUE", hint="example: --set moe.tokens=8192"
            )
        if name in sizes:
            raise UsageError("repeated-option", f"--set {shortened(name)} is given twice")
        sizes[name] = value
    return tuple(sizes.items())


def read_steps(text: str) -> tuple[int, ...]:
    """Reads `1,2,5-7`: recorded steps, by their position from 0."""
    return tuple(read_numbers(text, "--steps", "step", "1,2,5-7"))


def read_numbers(text: str, option: str, what: str, example: str) -> list[int]:
    """Reads single numbers and ranges."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low = whole_number(first)
            high = whole_number(last, least=low) if dash else low
        except NumberError:
            problem = f'{option} {shortened(text)}: "{shortened(part)}" is not a {what} or a range'
            raise UsageError("bad-value", problem, hint=f"example: {option} {example}") from None
        if high - low >= MAX_NAMED - len(numbers):
            raise UsageError("out-of-range", f"{option} {shortened(text)}: more than {MAX_NAMED:,} {what}s")
        numbers.extend(range(low, high + 1))
    return numbers


HOST_WHAT_IFS: Final = {"cuda-graphs": "graphs", "no-host-gaps": "none", "unprofiled": "unprofiled"}
_REBUILDS: Final = "cuda-graphs, no-host-gaps, unprofiled or batch=2x"


def split_what_ifs(texts: list[str] | tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """Splits the texts of `--what-if` into options of inputs (`cuda-graphs`, `batch=2x`, …) and those of a scenario."""
    options: dict[str, Any] = {}
    rest: list[str] = []
    for text in texts:
        refuse_several(text)
        what, equals, value = (part.strip() for part in text.partition("="))
        if not equals and what not in (*HOST_WHAT_IFS, "batch"):
            known = (*HOST_WHAT_IFS, "batch=2x", "gpu=h100-sxm")
            raise UsageError(
                "unknown-name",
                f"--what-if {shortened(text)} is not known{did_you_mean(what, known)}",
                hint=f"expected NAME=FACTOR such as compute=1.1x, gpu=h200-sxm, or of a profiler trace {_REBUILDS}",
            )
        if what not in (*HOST_WHAT_IFS, "batch"):
            rest.append(text)
            continue
        name = "host" if what in HOST_WHAT_IFS else what
        if name in options:
            raise UsageError(
                "repeated-option",
                f"--what-if {shortened(text)}: {'the host' if name == 'host' else name} is given twice",
            )
        if bool(value) == (name == "host"):
            raise UsageError("bad-value", f"--what-if {shortened(text)}: expected {_REBUILDS}")
        options[name] = HOST_WHAT_IFS[what] if name == "host" else value
    return options, rest


def refuse_several(text: str) -> None:
    """Raises an error where one `--what-if` holds what needs two."""
    first, comma, rest = text.partition(",")
    if comma and ("=" in first or first.strip() in HOST_WHAT_IFS) and rest.strip()[:1].isalpha():
        raise UsageError(
            "bad-value",
            f"--what-if {shortened(text)}: one at a time",
            hint=f"repeat it: --what-if {shortened(first.strip())} --what-if {shortened(rest.strip())}",
        )
