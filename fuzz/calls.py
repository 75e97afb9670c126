"""Makes command lines and calls of the Python API with wrong, hostile and nearly right values, and runs calls.

Options come from the commands themselves, so that a new one is tried without a change here. A call of the API is an
expression, which can be printed, stored and run again.
"""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any, Final

from fuzz.mutators import NUMBERS, WORDS

COMMAND_LINES: Final = {
    "predict": "predict gpt2 --gpus 8 --tp 2 --gbs 8 --seq 128 --cluster a100-dgx",
    "plan": "plan gpt2 --gpus 4 --gbs 4 --seq 128 --cluster a100-dgx --tp 1,2 --pp 1 --mbs 1 --time 0.2s",
    "memory": "memory gpt2 --gpus 8 --pp 2 --gbs 8 --seq 128 --cluster a100-dgx",
    "simulate": "simulate job.yaml",
    "trace": "trace missing.py --world 8 --args '--layers 4'",  # no script is run
    "sweep": "sweep gpt2 --gpus 4 --gbs 8 --seq 128 --cluster a100-dgx --over tp=1,2",
    "network": "network all-reduce 1MiB --cluster h100-dgx --ranks 16",
    "compare": "compare gpt2 --gpus 4 --gbs 8 --seq 128 --cluster a100-dgx --with tp=2",
    "explain": "explain job.yaml",
    "validate": "validate runs.csv --workers 1",
    "generate": "generate gpt2 --gpus 4 --tp 2 --gbs 4 --seq 128 --cluster a100-dgx --format program -o out.foretrace",
    "report": "report job.answer -o out.html",
    "init": "init --model gpt2",
    "inspect": "inspect job.yaml",
    "measure": "measure -o out.profile --quick --minutes 0.001",
    "calibrate": "calibrate runs.csv --gpu h100-sxm -o out.yaml",
    "calibration": "calibration show my.yaml gpt2 --gpus 2",
    "list": "list models",
    "show": "show h100-dgx",
}
"""A command line that works, for every command but `serve`, which runs until it is interrupted (`CALLS`)."""

_OPTION_VALUES: Final = """
1 2 4 8 0 -1 3 1000000 1e9 64:1024:x2 1:4:+1 4:1000000000:x1.0000001 1..8 8..1 tp=1,2 gpus=4:64:x2 mbs=1,2,4
microbatches=4:1000000000:x1.0000001 compute=1x,2x jitter=1%,5% cluster=h100-dgx,a100-dgx straggler:0=1x,2x
nic=2x hbm=0.5x gpu=h200-sxm cluster=b200-dgx power=500W compute=1.1x dp=inf gemm=1e400x 0=1.2x 0:dp=2x
1:tp=1e308x 0=0x -1=2x 3% 300% -3% 1e308% nan% balanced 1.5x 1e300x 1e308 routing.txt 0,7,16-19 0-999999999
h100-dgx a100-dgx gb200-nvl72 nowhere c.yaml job.yaml runs.csv missing.txt . / /dev/null 1f1b zb-h1
interleaved-1f1b dualpipe megatron-core fsdp torch-eager tp-cp-ep-dp-pp dp-dp pp=4,dp=16 tp=0 8B..8GiB 1B..1EiB
1e30B 16MiB -5MiB 0B 1KiB..1KiB Et*4|(t*4|)*14tmL t*999999999 (((( 6,6 12,0 1,2,3 20,20,20,20 4096,4096 all none
grad,param core_attn,mlp full selective fp8 bf16 ring,tree ^tree LL,Simple style=deepep,experts=256,topk=8
style=x moe.tokens=8192 params=2.5e8 params=nan 10s 0s 1e-9s 5e-324 0.5% 15T 60 out.svg out.json out.csv
out.pftrace out.answer out.html job.answer
"""
OPTION_VALUES: Final = (*_OPTION_VALUES.split(), f"{'9' * 4400}=2x", "E|" * 50)
"""Values of options that are right for some of them."""

FILES: Final = ("job.yaml", "runs.csv", "c.yaml", "my.yaml", "routing.txt", "job.answer")
"""The files that command lines and calls name; they lie where these are run."""


@cache
def parameters(command: str) -> tuple[Any, ...]:
    """Returns the options and arguments of a command as click has them."""
    from fuzz.oracle import command_of

    return tuple(parameter for parameter in command_of(command).params if parameter.name != "help")


def has_json(command: str) -> bool:
    """Returns whether a command prints JSON on demand."""
    return any("--json" in parameter.opts for parameter in parameters(command))


def option_value(random: Random) -> str:
    """Returns a value for any option."""
    kind = random.random()
    if kind < 0.55:
        return random.choice(OPTION_VALUES)
    if kind < 0.75:
        return random.choice(NUMBERS)
    if kind < 0.85:
        return random.choice(WORDS)
    text = random.choice(OPTION_VALUES)
    at = random.randrange(len(text) + 1)
    return text[:at] + random.choice((*"=:,.x%-+0123456789kMT \n", "1e9", "٣")) + text[at + random.randrange(3) :]


def command_line(command: str, random: Random) -> tuple[str, ...]:
    """Returns a command line with values changed and options added that the command has."""
    words = shlex.split(COMMAND_LINES[command])
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, 4))):
        parameter = random.choice(parameters(command))
        choices = getattr(parameter.type, "choices", None)
        if parameter.param_type_name == "argument":
            words.insert(random.randint(1, len(words)), option_value(random))
        elif getattr(parameter, "is_flag", False):
            words.append(random.choice([*parameter.opts, *parameter.secondary_opts]))
        else:
            value = str(random.choice(list(choices))) if choices and random.random() < 0.8 else option_value(random)
            flag = random.choice(parameter.opts)
            words += [f"{flag}={value}"] if random.random() < 0.2 and flag.startswith("--") else [flag, value]
    for _ in range(random.choice((0, 0, 1, 2))):
        at = random.randrange(1, len(words) + 1)
        words[at : at + 1] = [option_value(random)] if random.random() < 0.8 else []
    return tuple(_safe(word) for word in words)


def _safe(word: str) -> str:
    """Returns a word that a shell can pass, and that names no file outside the folder; devices stay, as inputs."""
    word = word.replace("\x00", "")
    return word if not word.startswith(("/", "~", "../")) or word.startswith("/dev/") else word.lstrip("/~.") or "x"


_JUNK_TEXT: Final = """
None | True | 0 | -1 | 1 | 1.5 | float('nan') | float('inf') | -float('inf') | 10**400 | 2**63 | 1e308 | ''
'x' | '-1' | '\\x00' | 'x' * 100_000 | '\\x1b[31m' | b'x' | [] | () | {} | [None] | ['x'] | {'x': 1} | {1: 2}
{'tp': -1} | [[1, 2]] | {'compute': float('nan')} | set() | object() | print | range(3) | iter([])
'h100-dgx' | 'gpt2' | 'a100-dgx' | 4 | foretrace | foretrace.Mesh() | foretrace.Plan(gpus=4, gbs=4)
foretrace.Scenario() | foretrace.Machine() | 8 | '8' | foretrace.Machine('h100-dgx') | numpy.zeros(3)
numpy.int64(4) | numpy.float32(2) | Path('.') | 'job.yaml' | 'missing' | {0: 2.0} | {(0, 'dp'): 2.0}
'tp-cp-ep-dp-pp' | '1f1b'
"""
_JUNK: Final = tuple(value for line in _JUNK_TEXT.strip().splitlines() for value in line.split(" | "))
"""Values of every type, as expressions."""

API_CALLS: Final = {
    "Cluster": "Cluster(name='c', title='c', node=foretrace.load_cluster('h100-dgx').node, nodes=4, domain_gpus=8)",
    "Diagnostic": "Diagnostic('note', 'bad-value', 'text', where=None)",
    "ForetraceError": "ForetraceError('bad-value', 'text', where='x', hint='y')",
    "Machine": "Machine('h100-dgx', placement=None, prices='best', collectives=None, calibration='my.yaml',"
    " nccl=foretrace.NcclSettings('ring'), network='flow', overlap_cost=True)",
    "Mesh": "Mesh(tp=2, cp=1, dp=4, pp=2, ep=2, etp=1, shard=2, order='tp-cp-ep-dp-pp')",
    "Model": "Model(name='m', hidden=64, layers=foretrace.load_model('gpt2').layers, vocab=100, norm='rmsnorm',"
    " tied=False, seq_len=128, mtp=0, positions=0, dropout=False)",
    "NcclSettings": "NcclSettings(algorithms='ring', protocols='Simple', files=())",
    "Placement": "Placement(numpy.array([0, 0, 1]), numpy.array([0, 1, 0]), names=('a', 'b'))",
    "Plan": "Plan(gpus=8, tp=2, pp=2, mbs=1, gbs=8, seq_len=128, zero=1, recompute='full', precision='bf16', vpp=1,"
    " schedule='1f1b', stage_layers=(6, 6), routing=1.5, stack='megatron-core', documents=(64, 64), layout=None,"
    " dispatcher='alltoall', account_for=None, offload_modules=(), rank_order='tp-cp-ep-dp-pp')",
    "PlanRequest": "PlanRequest(foretrace.Plan(gpus=4, gbs=4, seq_len=128), axes={'tp': '1,2'}, objective='step',"
    " gap=0.1, time_s=0.5, workers=1, top=3, gpu_counts=(4, 8), tokens=10**9, deadline_s=1e6, largest=None,"
    " price_per_gpu_hour=2.0)",
    "PriceSources": "PriceSources(source='model', silicon=False, kernels=None)",
    "ProfilerTrace": "ProfilerTrace(foretrace.open('trace.json').traces, hta_steps=True, whole_us=False)",
    "ProgramBuilder": "ProgramBuilder(foretrace.Mesh(dp=2), title='t', repeats=True, tokens_per_step=64.0)",
    "Scenario": "Scenario(what_if={'compute': 1.1}, stragglers={0: 1.2}, slow_links={(0, 'dp'): 2.0}, jitter=0.03,"
    " steady=True)",
    "Transfer": "Transfer(bytes=1024, duration_s=1e-5)",
    "load_cluster": "load_cluster('c.yaml', where='x')",
    "load_model": "load_model('gpt2')",
    "make_calibration": "make_calibration(['runs.csv'], 'out.yaml', gpu='h100-sxm', cluster=None, step_factor=True)",
    "model": "model('gpt2', foretrace.Plan(gpus=2, gbs=2, seq_len=128))",
    "network": "network('all_reduce', '1MiB', foretrace.Machine('h100-dgx'), ranks=16, ranks_per_node=8, groups=1,"
    " way=None)",
    "open": "open('job.yaml', tp=1, gbs=8)",
    "pipeline": "pipeline(foretrace.ProgramBuilder(foretrace.Mesh(pp=2)), foretrace.schedule('1f1b', 2, 4), [],"
    " foretrace.Transfer(1024, 1e-5), transfers='async')",
    "plan": "plan('gpt2', 'a100-dgx', foretrace.PlanRequest(foretrace.Plan(gpus=2, gbs=2, seq_len=128), time_s=0.1),"
    " framework='megatron-lm')",
    "save": "save(foretrace.model('gpt2', foretrace.Plan(gpus=2, gbs=2, seq_len=128)).program(), 'out.foretrace')",
    "schedule": "schedule('1f1b', 4, 8, chunks=1)",
    "simulate": "simulate('job.yaml', 'a100-dgx', foretrace.Scenario(), executor='auto', folded=True, explain=True,"
    " even_if_oom=False, try_changes=False)",
    "trace": "trace(world=16, rank=3, gpus_per_node=4, steps=(1, 2), unknown=1.0, routing='balanced')",
}
"""A call of every public name that users call: right, or nearly so."""

RESULTS: Final = {
    "network": ("NetworkAnswer",),
    "open": ("Input",),
    "plan": ("PlanSearch",),
    "save": ("Program",),
    "simulate": ("Answer", "Timeline"),
    "trace": ("ScriptTrace", "trace_step"),  # the latter runs code of its caller
}
"""Public names that users receive and do not call, by the function that returns or takes them."""


def api_call(name: str, random: Random) -> str:
    """Returns an expression that calls a public name, or a method of what it returns, with some junk as arguments."""
    methods = _methods(name)
    if methods and random.random() < 0.3:
        method, count = random.choice(methods)
        junk = ", ".join(random.choice(_JUNK) for _ in range(count))
        return f"foretrace.{API_CALLS[name]}.{method}({junk})"
    arguments, keywords = _arguments(name)
    required = _required(name)
    chosen = {key: value for key, value in keywords.items() if key in required or random.random() < 0.5}
    for _ in range(random.choice((1, 1, 2, 3))):
        places = [*range(len(arguments)), *keywords]
        if not places:
            break
        place = random.choice(places)
        if isinstance(place, int):
            arguments[place] = random.choice(_JUNK)
        else:
            chosen[place] = random.choice(_JUNK)
    words = [*arguments, *(f"{key}={value}" for key, value in chosen.items())]
    return f"foretrace.{name}({', '.join(words)})"


@cache
def _arguments_of(name: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    tree = ast.parse(API_CALLS[name], mode="eval").body
    assert isinstance(tree, ast.Call)
    keywords = ((str(keyword.arg), ast.unparse(keyword.value)) for keyword in tree.keywords)
    return tuple(ast.unparse(argument) for argument in tree.args), tuple(keywords)


@cache
def _required(name: str) -> frozenset[str]:
    """Returns the arguments without which Python itself refuses a call."""
    import inspect

    import foretrace

    given = inspect.signature(getattr(foretrace, name)).parameters.values()
    return frozenset(each.name for each in given if each.default is each.empty)


_OF_REGISTRY: Final = ("open", "recognises", "parse_options")
"""Methods of inputs that the registry calls with what it has checked."""


@cache
def _methods(name: str) -> tuple[tuple[str, int], ...]:
    """Returns the public methods of what a call returns, each with how many arguments it must be given."""
    import inspect

    import foretrace

    public = getattr(foretrace, name)
    kind = public if isinstance(public, type) else getattr(foretrace, RESULTS.get(name, ("Diagnostic",))[0])
    found = []
    for method in sorted(set(dir(kind)) - set(dir(Exception))):
        attribute = inspect.getattr_static(kind, method)
        if (
            method.startswith("_")
            or method in _OF_REGISTRY
            or not (inspect.isfunction(attribute) or isinstance(attribute, classmethod))
        ):
            continue
        given = inspect.signature(getattr(kind, method)).parameters.values()
        count = sum(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in given)
        found.append((method, count - inspect.isfunction(attribute)))
    return tuple(found)


def _arguments(name: str) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments of the call of a public name: by position, and by keyword."""
    positional, keywords = _arguments_of(name)
    return list(positional), dict(keywords)


def call(name: str, words: Sequence[str]) -> object:
    """Runs a call of `CALLS`."""
    return CALLS[name](words)


def _evaluate(words: Sequence[str]) -> object:
    """Evaluates an expression that was made in `api_call`."""
    from pathlib import Path

    import numpy

    import foretrace

    return _used(eval(words[0], {"foretrace": foretrace, "numpy": numpy, "Path": Path}))


def _run_job(words: Sequence[str]) -> object:
    """Opens, counts, builds and simulates a job, given by its paths."""
    import foretrace

    job = foretrace.open(list(words))
    if isinstance(job, foretrace.Answer):
        return _used(job)
    _used(job.inventory())
    job.program()
    return _used(foretrace.simulate(job, "h100-dgx", explain=False))


def _ask(words: Sequence[str]) -> object:
    """Answers the request in a file as `foretrace serve` does, without a socket; uploads are other files next to it."""
    from pathlib import Path

    from foretrace.server.answering import Answerer
    from foretrace.server.questions import FilePlace, WebQuestion, read_json

    class CurrentPlace(FilePlace):
        """The current folder, which this process shares with other inputs."""

        def enter(self) -> None:
            """Changes nothing, so that other inputs can be read afterwards."""

    question = WebQuestion.read(read_json(Path(words[0]).read_bytes()))
    place = CurrentPlace("", ("job.yaml",), ("job.yaml",))
    if question.source == "answers":
        return question.text
    answerer = Answerer()
    if question.ask == "step":
        answerer.quick(question, place)
    answer = answerer.full(question, place, lambda _: None)
    return json.dumps(answer, allow_nan=False)


CALLS: Final[dict[str, Callable[[Sequence[str]], object]]] = {"call": _evaluate, "job": _run_job, "ask": _ask}
"""What `python:NAME` runs with the words after it, within this process and in the folder of the input."""


def _used(result: Any) -> Any:
    """Does with a result what users do: prints it, and writes it as JSON, which has finite numbers only."""
    repr(result)
    if hasattr(result, "to_dict") and not isinstance(result, type) and not hasattr(result, "iloc"):  # no frame
        json.dumps(result.to_dict(), allow_nan=False)
    return result
