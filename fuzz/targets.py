"""Registers everything that reads something from outside: its samples, and the command lines that reach it.

A new input or command joins by a line in `TARGETS`; a test holds that every kind of input, every command and
every public name has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final

from fuzz import samples
from fuzz.calls import API_CALLS, COMMAND_LINES, FILES, RESULTS, api_call, command_line, has_json
from fuzz.mutators import mutate
from fuzz.oracle import Case
from fuzz.samples import Sample


@dataclass(frozen=True)
class Target:
    """Something that is fuzzed.

    Attributes:
        name: The name that reports and findings have.
        samples: Makes its valid inputs.
        entries: Command lines that reach it; `{file}` is the first file of the sample. `python:job` uses the API.
        inputs: The classes of inputs (`Input.kind`) that it covers.
        words: Makes the words of a case instead of `entries`; files then stay as they are.
        commands: The commands that `words` covers.
        names: The public names that `words` covers.
    """

    name: str
    samples: Callable[[], list[Sample]]
    entries: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    words: Callable[[Random], tuple[str, ...]] | None = None
    commands: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def case(self, seed: int, parents: list[Sample] | None = None) -> Case:
        """Makes the input of a seed, by default from a sample of the target."""
        random = Random(f"{self.name}:{seed}")
        sample = random.choice(parents or self.samples())
        if self.words is not None:
            return Case(self.name, sample.files, self.words(random), seed)
        files = dict(sample.files)
        for name in random.sample(sample.targets, 1 if random.random() < 0.9 else len(sample.targets)):
            files[name] = mutate(name, files[name], random)
        return Case(self.name, files, self.entry(random, sample), seed)

    def entry(self, random: Random, sample: Sample) -> tuple[str, ...]:
        """Chooses a command line for a sample, with JSON or with the screen."""
        first = next(iter(sample.files))
        words = (
            random.choice(self.entries).replace("{file}", first).replace("{folder}", first.partition("/")[0]).split()
        )
        if not words[0].startswith("python:") and has_json(words[0]) and random.random() < 0.5:
            at = words.index("--") if "--" in words else len(words)
            words[at:at] = ["--json"]
        return tuple(words)


_VIEWS: Final = (
    *("breakdown", "overlap", "idle", "kernels", "launches", "queue", "bandwidth", "annotations", "sequences"),
    *("stragglers", "critical-path", "steps"),
)
_JOB: Final = ("inspect {file}", "simulate {file} --cluster h100-dgx", "python:job {file}")
_NETWORK: Final = "network all-reduce 1MiB --cluster"


def _workspace() -> list[Sample]:
    """Returns a folder with the files that command lines and calls of the API name."""
    makers = (
        *(samples.jobs, samples.training_runs, samples.clusters, samples.calibrations),
        *(samples.routings, samples.kineto, samples.answers),
    )
    files = {name: data for make in makers for name, data in make()[0].files.items()}
    return [Sample({name: files[name] for name in (*FILES, "trace.json")})]


def _command_target(command: str) -> Target:
    return Target(
        f"words:{command}", _workspace, words=lambda random: command_line(command, random), commands=(command,)
    )


def _api_target(name: str) -> Target:
    return Target(
        f"api:{name}",
        _workspace,
        words=lambda random: ("python:call", api_call(name, random)),
        names=(name, *RESULTS.get(name, ())),
    )


@cache
def all_targets() -> dict[str, Target]:
    """Returns every target by name."""
    commands = [_command_target(command) for command in COMMAND_LINES]
    calls = [_api_target(name) for name in API_CALLS]
    targets = (*TARGETS, *commands, *calls)
    return {target.name: target for target in targets}


TARGETS: Final = (
    Target(
        "kineto",
        samples.kineto,
        (
            *(
                "explain {file}",
                "explain {file} --hta-steps",
                "explain {file} --plot out.svg",
                "explain {file} --html out.html",
                "calibrate {file} -o out.yaml",
            ),
            *("explain {file} --perfetto out.pftrace", *(f"explain {{file}} --view {view}" for view in _VIEWS)),
            *("simulate {file}", "simulate {file} --what-if cuda-graphs", "simulate {file} --what-if no-host-gaps"),
            *(
                "simulate {file} --cluster h100-dgx --what-if batch=2x",
                "simulate {file} --what-if unprofiled --steps 1",
            ),
            *(
                "inspect {file}",
                "explain {file} {file} --view diff",
                "python:job {file}",
                "simulate {file} --save out.answer",
            ),
        ),
        ("profiler-trace",),
    ),
    Target(
        "kineto-ranks",
        samples.kineto_ranks,
        (
            *("explain rank0.json rank1.json", "simulate rank0.json rank1.json", "inspect rank0.json rank1.json"),
            *("explain rank0.json rank1.json --view stragglers", "explain rank0.json rank1.json --view diff"),
            *("simulate rank0.json rank1.json --cluster h100-dgx --mesh dp=4", "explain . --view overlap"),
            "compare rank0.json rank1.json",
        ),
    ),
    Target(
        "nsight",
        samples.nsight,
        (
            "explain {file}",
            "inspect {file}",
            "simulate {file}",
            "explain {file} --view queue",
            "explain {file} --html out.html",
            "calibrate {file} -o out.yaml",
        ),
    ),
    Target(
        "execution-trace",
        samples.execution_trace,
        ("inspect {file}", "explain {file}", "simulate {file} --cluster h100-dgx"),
    ),
    Target(
        "megatron-trace",
        samples.rank_traces,
        (
            *(
                "inspect {folder}",
                "simulate {folder}",
                "explain {folder}",
                "simulate {folder} --cluster a100-dgx --mesh dp=4",
            ),
            *(
                "simulate {file} --cluster a100-dgx --microbatches 8 --pp-comm 8MiB",
                "explain {folder} --perfetto out.pftrace",
                "explain {folder} --html out.html",
            ),
            *("compare {folder} {folder}", "simulate {folder} --traces out --what-if tp=2x", "python:job {folder}"),
        ),
        ("megatron-trace",),
    ),
    Target(
        "stage-plan", lambda: [samples.named("plan.txt", samples.STAGE_PLAN)], ("inspect {file}", "simulate {file}")
    ),
    Target(
        "aicb",
        samples.aicb,
        (
            *(
                *_JOB,
                "simulate {file} --cluster h100-dgx --network flow",
                "simulate {file} --cluster h100-dgx --every-stage",
                "simulate {file} --cluster h100-dgx --html out.html",
            ),
            *(
                "simulate {file} --cluster h100-dgx --microbatches 4 --save out.answer",
                "memory {file} --cluster h100-dgx",
            ),
            "sweep {file} --cluster h100-dgx --over microbatches=2,4",
        ),
        ("aicb",),
    ),
    Target(
        "aicb-simai",
        samples.ratio_tables,
        (
            "simulate w.txt --compat simai --simai-tables tables -- -g 128 -g_p_s 8 -n_p_s 8 -g_type H100 -nic_t cx7",
            "simulate w.txt --compat simai --simai-tables tables --csv out.csv -- -g 16 -g_p_s 8 -g_type A100",
        ),
    ),
    Target(
        "torch-table",
        samples.tables,
        (
            *(
                "inspect {file}",
                "explain {file}",
                "simulate {file} --cluster h100-dgx --mesh dp=8",
                "explain {file} --html out.html",
                "calibrate {file} -o out.yaml",
            ),
            "simulate {file} --cluster h100-dgx --mesh dp=8,ep=8 --set params=1e8 --set moe.tokens=8",
        ),
        ("profiler-table",),
    ),
    Target(
        "training-runs",
        samples.training_runs,
        (
            *(
                "validate {file} --workers 1",
                "validate {file} --workers 1 --svg out.svg",
                "validate {file} --workers 1 --html out.html",
                "calibrate {file} -o out.yaml",
            ),
            "calibrate {file} --gpu h200-sxm -o out.yaml --step-factor",
        ),
    ),
    Target(
        "cluster",
        samples.clusters,
        (
            *(
                "show {file}",
                f"{_NETWORK} {{file}} --ranks 16",
                f"{_NETWORK} {{file}} --ranks 8 --network flow",
                "inspect {file}",
            ),
            *(
                "show {file} --nodes 4 --simai-topology out.txt",
                "memory gpt2 --gpus 8 --gbs 8 --seq 128 --cluster {file}",
            ),
        ),
    ),
    Target("network-file", samples.networks, (f"{_NETWORK} c.yaml --ranks 4 --network flow", "show c.yaml --nodes 2")),
    Target(
        "simai-topology",
        samples.simai_networks,
        (f"{_NETWORK} c.yaml --ranks 4 --network flow", "show c.yaml --nodes 2"),
    ),
    Target(
        "calibration",
        samples.calibrations,
        (
            *("calibration show my.yaml", "calibration show my.yaml gpt2 --gpus 2 --gbs 2 --seq 128"),
            "memory gpt2 --gpus 8 --gbs 8 --seq 128 --cluster h200-dgx --calibration my.yaml",
            f"{_NETWORK} h200-dgx --ranks 8 --calibration my.yaml",
        ),
    ),
    Target(
        "kernel-profile",
        samples.kernel_profiles,
        ("calibrate {file} -o out.yaml", "calibrate {file} --gpu h200-sxm -o out.yaml"),
    ),
    Target(
        "hf-config",
        samples.hf_configs,
        (
            *("show {file}", "show {file} --as model", "init --hf {file}", "inspect {file} --gpus 8"),
            *(
                "predict {file} --gpus 2 --gbs 2 --cluster h100-dgx",
                "memory {file} --gpus 2 --gbs 2 --cluster h100-dgx",
            ),
        ),
        ("model",),
    ),
    Target(
        "job",
        samples.jobs,
        (
            *(
                "predict {file}",
                "inspect {file}",
                "inspect {file} --html out.html",
                "memory {file}",
                "simulate {file}",
                "generate {file} -o out.txt",
                "show {file}",
            ),
            *(
                "generate {file} --format launch",
                "sweep {file} --over mbs=1,2",
                "compare {file} --with tp=1",
                "python:job {file}",
            ),
        ),
    ),
    Target(
        "placement",
        samples.placements,
        (
            f"{_NETWORK} h100-dgx --ranks 4 --placement {{file}}",
            "memory gpt2 --gpus 4 --gbs 4 --seq 128 --cluster a100-dgx --placement {file}",
        ),
    ),
    Target(
        "program",
        samples.programs,
        (
            *(
                "inspect {file}",
                "simulate {file} --cluster h100-dgx",
                "simulate {file} --cluster h100-dgx --network flow",
            ),
            *(
                "explain {file} --cluster h100-dgx",
                "python:job {file}",
                "simulate {file} --cluster h100-dgx --perfetto out.pftrace",
            ),
            "sweep {file} --cluster h100-dgx --over compute=1x,2x",
        ),
        ("program",),
    ),
    Target(
        "answer",
        samples.answers,
        (
            *("inspect {file}", "simulate {file}", "explain {file}", "compare {file} {file}", "python:job {file}"),
            *(
                "simulate {file} --cluster h100-dgx --what-if compute=2x",
                "memory {file}",
                "simulate {file} --traces out",
                "report {file} -o out.html",
                "report {file} {file} -o out.html",
            ),
        ),
        ("answer",),
    ),
    Target("question", samples.questions, ("python:ask {file}",), commands=("serve",)),
    Target(
        "memory-snapshot",
        samples.snapshots,
        ("memory gpt2 --gpus 2 --gbs 2 --seq 128 --cluster a100-dgx --snapshot {file}",),
    ),
    Target("nccl-log", samples.nccl_logs, (f"{_NETWORK} h100-dgx --ranks 16 --nccl {{file}}",)),
    Target("nccl-xml", samples.nccl_xml, (f"{_NETWORK} h100-dgx --ranks 16 --nccl {{file}}",)),
    Target(
        "nccl-tests",
        samples.nccl_tests,
        (
            *(f"{_NETWORK} h100-dgx --ranks 8 --collectives {{file}}", "calibrate {file} --gpu h100-sxm -o out.yaml"),
            f"{_NETWORK} a100-dgx --ranks 8 --collectives {{file}}",
            "memory gpt2 --gpus 8 --gbs 8 --seq 128 --cluster h100-dgx --collectives {file}",
        ),
    ),
    Target(
        "script",
        samples.scripts,
        ("inspect {file}", "trace {file}", "simulate {file} --cluster h100-dgx -- --layers 4", "python:job {file}"),
        inputs=("script",),
    ),
    Target(
        "routing",
        samples.routings,
        ("memory config.json --gpus 4 --ep 4 --gbs 4 --cluster h100-dgx --routing routing.txt",),
    ),
    Target(
        "launch",
        samples.launches,
        ("init --from {file} --model gpt2", "init --from {file}", "init --from {file} --cluster a100-dgx"),
    ),
)
"""The readers, each with the command lines that reach it."""
