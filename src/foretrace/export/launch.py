"""Writes launch scripts: a plan as the options of a training framework, behind the header of a batch job.

    launch = launch_text(setting, cluster)                          # the framework of the plan's stack
    launch = launch_text(setting, cluster, "megatron-bridge")

`foretrace.workload.launch` maps plans to options. A new framework is a `LaunchFormat` there and an entry of `WRITERS`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from foretrace.basics.errors import Diagnostic, InputError, did_you_mean, printable
from foretrace.cost.network.domains import place_job
from foretrace.hardware.cluster import Cluster
from foretrace.models.model import Model
from foretrace.workload.launch.arguments import Argument, Arguments
from foretrace.workload.launch.bridge import MEGATRON_BRIDGE, overrides
from foretrace.workload.launch.deepspeed import DEEPSPEED
from foretrace.workload.launch.megatron import MEGATRON_LM
from foretrace.workload.launch.megatron_model import model_options, read_model, unexpressed_parts
from foretrace.workload.launch.rules import LaunchFormat, Options, OptionValue, Reading
from foretrace.workload.launch.torchtitan import QUANTIZED, TORCHTITAN, TORCHTITAN_TOML, torchtitan_model
from foretrace.workload.setting import Setting

SCRIPT: Final = "launch.sh"
TOML: Final = "train.toml"
JSON: Final = "ds_config.json"
SCRIPT_START: Final = "#!/bin/bash\n#SBATCH --job-name="
"""The beginning of every script that is written here."""
_PORT: Final = 29500
"""torchrun's usual port."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A plan as a framework starts it.

    Attributes:
        framework: The name of the framework.
        files: The texts of its files by name; the first is the script that starts it.
        diagnostics: What of the plan, or of the model, the files cannot say.
    """

    framework: str
    files: dict[str, str]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def text(self) -> str:
        """The files as one text to be shown: the script, then each file that it names behind its name."""
        (_, script), *others = self.files.items()
        return "\n".join([script, *(f"# {name}\n{text}" for name, text in others)])


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes that a job is started on."""

    count: int
    gpus: int
    """Ranks of each node."""
    segment: int | None
    """Nodes that must be in one link domain, where domains reach over nodes."""
    is_whole: bool
    """Whether all GPUs of a node are used."""
    is_blackwell: bool = False

    @classmethod
    def of(cls, setting: Setting, cluster: Cluster) -> _Nodes:
        gpus, size = setting.plan.gpus, cluster.node.gpus
        is_blackwell = cluster.gpu.architecture.startswith("Blackwell")
        cluster.check_fits(gpus)
        if gpus <= size:
            return cls(1, gpus, None, gpus == size, is_blackwell)
        if gpus % size:
            problem = f"{gpus} GPUs do not fill nodes of {size}; a launcher starts as many ranks on each"
            raise InputError("not-divisible", problem, hint=f"take a multiple of {size} GPUs")
        _, use = place_job(cluster, gpus, setting.mesh)
        segment = use.segment if use is not None and use.segment > 1 else None
        return cls(gpus // size, size, segment, True, is_blackwell)


Writer = Callable[[LaunchFormat, Setting, _Nodes], tuple[dict[str, str], list[str]]]
"""Returns the texts of files, and in sentences what of the model they cannot say."""


def launch_text(setting: Setting, cluster: Cluster, framework: str | None = None) -> Launch:
    """Returns the files that start a job, and what of its plan they cannot say.

    Args:
        setting: The model and its plan, all choices made.
        cluster: Where the job runs: the size of its nodes and link domains.
        framework: A name of `WRITERS`; None: the framework that the plan's stack is.

    Raises:
        InputError: The stack is not a framework that can be written, or the framework cannot run the plan
            (`not-launchable`); the GPUs do not fill nodes (`not-divisible`).
    """
    layout, write = _chosen(setting, framework)
    problem = launch_problem(setting, framework)
    if problem is not None:
        raise InputError("not-launchable", problem, hint="see docs/launch.md for what each framework runs")
    notes = [lack.diagnostic for lack in layout.lacks(setting)]
    files, unsaid = write(layout, setting, _Nodes.of(setting, cluster))
    notes += [Diagnostic("warning", "not-expressible", text) for text in unsaid]
    remarks = "".join(_comment(f"not expressed: {note.message}") for note in notes)
    script = files[SCRIPT].replace("\n\n", f"\n{remarks}\n", 1)
    return Launch(layout.name, files | {SCRIPT: script}, tuple(notes))


def _comment(text: str) -> str:
    """Returns a line of a script that the shell skips, whatever the text holds."""
    return f"# {' '.join(printable(text).split())}\n"


def launch_problem(setting: Setting, framework: str | None = None) -> str | None:
    """Returns in words why a plan has no launch arguments; None where it has."""
    try:
        layout, _ = _chosen(setting, framework)
    except InputError as error:
        if error.code != "not-launchable":
            raise
        return error.message
    return layout.problem(setting)


def _chosen(setting: Setting, framework: str | None) -> tuple[LaunchFormat, Writer]:
    if framework is not None:
        if not isinstance(framework, str):
            raise InputError("bad-value", "a framework is given by its name", hint=f"known: {', '.join(WRITERS)}")
        plain = framework.strip().lower().replace("_", "-")
        if plain not in WRITERS:
            problem = f'framework "{framework}" is not known{did_you_mean(plain, WRITERS)}'
            raise InputError("unknown-name", problem, hint=f"known: {', '.join(WRITERS)}")
        return WRITERS[plain]
    for layout, write in WRITERS.values():
        if setting.stack.name in layout.stacks:
            return layout, write
    problem = f"the stack {setting.stack.name} is not a framework whose launch arguments are known"
    raise InputError("not-launchable", problem, hint=f"name a framework: {', '.join(WRITERS)}")


def batch_header(model: Model, nodes: _Nodes) -> list[str]:
    """Returns the first lines of a batch script: what `sbatch` asks Slurm for.

    `--segment` is Slurm's (topology/block): nodes of a segment are in one block, which is a rack on NVL72 clusters.
    """
    wishes = [
        f"job-name={re.sub(r'[^A-Za-z0-9._-]', '-', model.name) or 'job'}",
        f"nodes={nodes.count}",
        f"gpus-per-node={nodes.gpus}",
        "ntasks-per-node=1",
        *(["exclusive"] if nodes.is_whole else []),
        *([f"segment={nodes.segment}"] if nodes.segment is not None else []),
    ]
    return ["#!/bin/bash", *(f"#SBATCH --{wish}" for wish in wishes)]


def _torchrun(nodes: _Nodes) -> tuple[list[str], str]:
    """Returns the lines before torchrun, and torchrun itself with the options that say where ranks run."""
    ranks = f"torchrun --nproc-per-node {nodes.gpus} --nnodes {nodes.count}"
    if nodes.count == 1:
        return [], f"{ranks} --standalone"
    head = 'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)'
    meeting = f"--rdzv-id $SLURM_JOB_ID --rdzv-backend c10d --rdzv-endpoint $HEAD:{_PORT}"
    return [head], f"srun {ranks} {meeting}"


def _script(model: Model, nodes: _Nodes, before: Iterable[str], words: Iterable[str]) -> str:
    lines = [*batch_header(model, nodes), "", *before, " \\\n  ".join(words)]
    return "\n".join(lines) + "\n"


def _write_megatron(layout: LaunchFormat, setting: Setting, nodes: _Nodes) -> tuple[dict[str, str], list[str]]:
    options = model_options(setting.model) | layout.options(setting)
    before, start = _torchrun(nodes)
    before = ["# Data, tokenizer and learning rate are arguments of this script.", *before]
    if setting.plan.tp * setting.plan.cp > 1 and setting.zero < 2 and not nodes.is_blackwell:
        before.append("export CUDA_DEVICE_MAX_CONNECTIONS=1")  # validate_args asks for it
    words = [f'{start} pretrain_gpt.py "$@"', *_dashed(options)]
    return {SCRIPT: _script(setting.model, nodes, before, words)}, _unsaid(setting.model)


def _write_bridge(layout: LaunchFormat, setting: Setting, nodes: _Nodes) -> tuple[dict[str, str], list[str]]:
    options = model_options(setting.model) | layout.options(setting)
    before, start = _torchrun(nodes)
    data = "# The recipe and its data are arguments of this script: --recipe NAME …"
    words = [f'{start} scripts/training/run_recipe.py "$@"', *map(shlex.quote, overrides(options))]
    return {SCRIPT: _script(setting.model, nodes, [data, *before], words)}, _unsaid(setting.model)


def _unsaid(model: Model) -> list[str]:
    """Returns the parts of a model that Megatron's arguments cannot say: those that are not read back."""
    arguments = Arguments(model.name, {name: _argument(value) for name, value in model_options(model).items() if value})
    parts = unexpressed_parts(model, read_model(Reading(arguments)))
    return [f"{model.name}: Megatron's arguments cannot say its {', '.join(parts)}"] if parts else []


def _argument(value: OptionValue) -> Argument:
    if isinstance(value, bool):
        return Argument((), 0)
    return Argument(value if isinstance(value, tuple) else (str(value),), 0)


def _dashed(options: Options) -> list[str]:
    """Returns options as words of a command line, without those that are off."""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        values = () if value is True else value if isinstance(value, tuple) else (str(value),)
        words.append(" ".join([f"--{name}", *map(shlex.quote, values)]))
    return words


def _write_torchtitan(layout: LaunchFormat, setting: Setting, nodes: _Nodes) -> tuple[dict[str, str], list[str]]:
    """Writes a command line; what is off is written too, since the configuration in code may have it on."""
    before, start = _torchrun(nodes)
    named = torchtitan_model(setting.model)
    words = [f"{start} -m torchtitan.train"]
    words += [f"--module {named[0]} --config {named[0]}_{named[1].lower()}"] if named else []
    for name, value in layout.options(setting).items():
        section, _, key = name.partition(".")
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--{section}.no-{key.replace('_', '-')}")
        elif value is not None:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words.append(f"--{name} {shlex.quote(text)}")
    memory = ["export PYTORCH_ALLOC_CONF=expandable_segments:True"]
    unsaid = _unsaid_of_titan(setting, "--module and --config", quantizes=True)
    return {SCRIPT: _script(setting.model, nodes, [*memory, *before], words)}, unsaid


def _unsaid_of_titan(setting: Setting, options: str, *, quantizes: bool) -> list[str]:
    """Returns what of the model is not said: where torchtitan has none of it, or one that quantizes in code."""
    named = torchtitan_model(setting.model)
    if named is None:
        return [f"{setting.model.name}: no such model of torchtitan is known here; add {options}"]
    if quantizes and named[1] in QUANTIZED and setting.plan.precision != "fp8":
        return [f"precision is {setting.plan.precision}: the configuration of {named[1]} in code has products in fp8"]
    return []


def _write_toml(layout: LaunchFormat, setting: Setting, nodes: _Nodes) -> tuple[dict[str, str], list[str]]:
    before, start = _torchrun(nodes)
    named = torchtitan_model(setting.model)
    options = {name: value for name, value in layout.options(setting).items() if value is not None}
    if named:
        options |= {"model.name": named[0], "model.flavor": named[1]}
    sections: dict[str, list[str]] = {}
    for name, value in options.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, []).append(f"{key} = {_toml_value(value)}")
    text = "\n".join("\n".join([f"[{section}]", *lines, ""]) for section, lines in sections.items())
    memory = ["export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]
    words = [f"{start} -m torchtitan.train --job.config_file {TOML}"]
    script = _script(setting.model, nodes, [*memory, *before], words)
    unsaid = _unsaid_of_titan(setting, "name and flavor to [model]", quantizes=False)
    return {SCRIPT: script, TOML: text}, unsaid


def _toml_value(value: OptionValue) -> str:
    """Returns a value in TOML, whose strings, numbers and lists of words are JSON's."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _write_deepspeed(layout: LaunchFormat, setting: Setting, nodes: _Nodes) -> tuple[dict[str, str], list[str]]:
    tree: dict[str, object] = {}
    for name, value in layout.options(setting).items():
        *sections, key = name.split(".")
        branch = tree
        for section in sections:
            below = branch.setdefault(section, {})
            assert isinstance(below, dict)
            branch = below
        if value is not None:
            branch[key] = value
    hosts = f"""scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/ slots={nodes.gpus}/' > hostfile"""
    words = [
        f"deepspeed --num_nodes {nodes.count} --num_gpus {nodes.gpus} --hostfile hostfile",
        f'train.py "$@" --deepspeed --deepspeed_config {JSON}',
    ]
    note = "# train.py is the training script; its own options are arguments of this one."
    script = _script(setting.model, nodes, [note, hosts], words)
    text = json.dumps({name: value for name, value in tree.items() if value != {}}, indent=2) + "\n"
    return {SCRIPT: script, JSON: text}, [f"{setting.model.name}: the training script has the model"]


WRITERS: Final[dict[str, tuple[LaunchFormat, Writer]]] = {
    layout.name: (layout, write)
    for layout, write in (
        (MEGATRON_LM, _write_megatron),
        (MEGATRON_BRIDGE, _write_bridge),
        (TORCHTITAN, _write_torchtitan),
        (TORCHTITAN_TOML, _write_toml),
        (DEEPSPEED, _write_deepspeed),
    )
}
"""The frameworks by name, and how each is written; the first that a stack is, is the usual one."""
