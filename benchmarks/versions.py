"""Checks that two checkouts give the same answers, for example before and after a restructuring.

    python benchmarks/versions.py BASE [NEW] [--only WORD] [--cache DIR] [--out differences.json]

Runs the commands of `CASES` with the code of BASE and of NEW. Compares exit codes, schemas, the numbers in `VALUES`
wherever they occur in the JSON, and the keys of the JSON: one that only NEW has is not a difference. Inputs are read
from NEW and from the shared folder: $FORETRACE_SHARED, or `shared` next to NEW. With `--cache`, results of BASE are
kept by command, inputs and commit. Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Result = dict[str, Any]
"""A command's name, exit code, error and JSON."""
Place = tuple[str | int, ...]
"""Where a value is in a JSON: keys and indices."""

RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""Numbers are equal within either. The second is for parts that are zero but for rounding."""
MAX_SECONDS = 600
VALUES = {
    *("step_time_s", "breakdown_s", "step_time_band_s", "step_time_unprofiled_s", "unchanged_step_time_s"),
    *("until_optimizer_s", "overlap_cost_s", "mfu", "peak_memory_bytes", "peak_bytes"),  # simulate, predict, memory
    *("predicted_s", "band_s", "mape", "bias", "coverage", "time_s", "busbw_bytes_per_s"),  # validate, compare, network
    *("step_s", "states_s", "by_kind_s", "transfer_s", "wait_s", "after_s", "length_s", "span_s", "idle_s"),  # explain
    *("compute_s", "exposed_s", "host_wait_s", "device_s", "total_s", "mean"),  # views of explain
    *("factor", "launch_s", "parameters_per_rank"),  # calibrate, generate
}
"""Keys whose numbers are compared, with all that is below them."""
FILES = {
    "ranks.txt": "".join(f"rank {rank}=node{rank % 16} slot={rank // 16}\n" for rank in range(128)),
    "hosts.txt": "".join(f"node{number} slots=8\n" for number in range(16)),
    "config.json": '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, '
    '"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072}',
    "train.sh": "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --swiglu "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --tensor-model-parallel-size 8\n",
}
"""Small inputs that every case finds in the folder it runs in."""

LLAMA, MOE, TABLE = "@examples/llama405b_1024gpu.txt", "@examples/moe_128gpu.txt", "@examples/moe_fairseq_profile.txt"
EX_SITU = "@examples/traces/moe_ex_situ_rank2.txt --mesh pp=2,ep=8,dp=8 --pp-comm 8MiB --cluster a100-dgx"
PROFILES, TRACES, DATA = "@truth/profiles", "@shared/data/traces", "@shared/data"
GPT, TINY = (f"{PROFILES}/{name}.shapes.json.gz" for name in ("gpt_4x4096_mbs4_s1024", "tinyllama_mbs1_s256"))
REAL = f"{TRACES}/moe16/pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024/real"
SIMAI_FLAGS = "-- -g 128 -g_p_s 8 -n_p_s 8 -g_type H100 -nic_t cx7"
LLAMA_8B = "llama3-8b --gpus 32 --tp 2 --pp 4 --gbs 32"
LLAMA_70B = "llama3-70b --gpus 512 --tp 4 --pp 4 --gbs 1024"
QWEN_MOE = "qwen3-30b-a3b --gpus 64 --ep 8 --pp 2 --mbs 1 --gbs 128"

CASES = f"""
simulate {LLAMA} --cluster
    h100-dgx | b200-dgx --gpus 16384 | gb200-nvl72 | mi300x | @examples/clusters/h100_24k.yaml | h10-dgx
    a100-dgx --collectives {DATA}/collectives/a100_2x8 | @examples/clusters/h100_hpn.yaml
simulate {LLAMA} --cluster h100-dgx
    --schedule zb-h1 | --schedule zb-h1 --overlap dp --gpus 16384 | --vpp 2 | --overlap dp | --overlap all
    --overlap all --no-overlap-cost | --microbatches 64 | --pp-comm 16MiB | --every-stage | --straggler 5=1.2x
    --what-if compute=1.5x --what-if dp=2x | --what-if tp=2x --overlap tp | --slow-link 5:dp=2x | --jitter 3%
    --straggler 5=1.2x --jitter 3% | --prices model | --no-silicon | --nccl-algo ring --nccl-proto Simple
simulate {MOE} --cluster
    @examples/clusters/h100_failed_spine.yaml --network flow | @examples/clusters/h100_fat_tree_4to1.yaml
    @examples/clusters/h100_torus.yaml | @examples/clusters/h100_dragonfly.yaml --network flow
simulate {MOE} --cluster h100-dgx
    | --gpus 256 | --schedule gpipe | --placement ranks.txt | --placement hosts.txt | --executor shared | --unfolded
    --network flow | --network flow --placement ranks.txt --overlap all | --what-if ep=2x --slow-link 3:ep=2x
    --traces out --ranks 0-127 && simulate out --what-if tp=2x
simulate {TABLE}
    | --what-if gemm=1.2x | --cluster h100-dgx --mesh dp=8,ep=8
    --cluster h100-dgx --mesh dp=64,ep=8 --set moe.tokens=8192 --set moe.hidden=2048 --set params=2.5e8
simulate @examples/traces/gpt13b_real_rank0.txt
    | --what-if compute=1.5x | --straggler 0=1.2x
simulate {EX_SITU} --microbatches
    8 | 16 --schedule zb-h1 | 8 --what-if ep=2x --straggler 3=1.2x | 8 --routing 1.5x | 8 --jitter 3%
predict {LLAMA_70B} --cluster
    h100-dgx | h200-dgx --vpp 5 | b200-dgx --precision mxfp8 | h100-dgx --network flow
predict {LLAMA_8B} --cluster
    a100-dgx | mi300x | h100-pcie --no-sp | gb200-nvl72
predict {LLAMA_8B} --cluster h100-dgx
    | --schedule zb-h1 | --schedule interleaved-1f1b --vpp 2 | --precision fp8 | --precision fp8_block | --overlap tp
    --overlap all | --overlap none --no-sp | --prices model | --prices roofline | --no-silicon | --no-overlap-cost
    --jitter 3% | --straggler 3=1.2x --slow-link 1:dp=2x --what-if tp=2x | --stage-layers 7,9,9,7 --zero 0
    --recompute full --recompute-layers 2 --cuda-graphs full --offload-optimizer | --network flow | --precision mxfp8
predict {QWEN_MOE} --cluster h100-dgx
    | --routing 1.5x | --dispatcher deepep | --precision fp8 --overlap all
predict
    llama3-8b --gpus 8 --cluster h100-dgx --stack fsdp --zero 3 --recompute selective --what-if dp=2x
    llama3-8b --gpus 64 --cluster h100-dgx --stack fsdp-compile --zero 3 --shard 8 --prefetch 2 --recompute selective
    llama3-8b --gpus 32 --cluster h100-dgx --cp 4 --seq 32768 --gbs 32 --recompute full
    llama3-8b --gpus 32 --cluster h100-dgx --cp 2 --cp-comm a2a --seq 16384 --documents 8192,8192 --recompute full
    mixtral-8x7b --gpus 64 --tp 2 --ep 8 --pp 4 --gbs 128 --cluster h100-dgx --overlap all
    deepseek-v3 --gpus 1024 --pp 16 --ep 64 --gbs 4096 --recompute full --cluster h800-hgx --dispatcher deepep
    gpt3-175b --gpus 64 --tp 8 --pp 8 --gbs 64 --cluster a100-dgx --stack megatron-2021 --recompute full
    tinyllama-1.1b --gpus 1 --mbs 4 --gbs 4 --cluster h200-dgx --stack torch-eager
    mpt-7b --gpus 8 --cluster a100-40g-dgx --stack llm-foundry --zero 3 --mbs 2
    config.json --gpus 64 --cluster h100-dgx --stack fsdp --zero 3 | llama3.1-405b --gpus 8 --cluster h100-dgx --tp 8
    llama3.1-405b --gpus 8 --cluster h100-dgx --tp 8 --even-if-oom
init
    --from-megatron train.sh --cluster h100-dgx -o job.yaml && predict job.yaml --gbs 32
    --model llama3-8b --cluster b200-dgx -o job.yaml && predict job.yaml --gpus 16 --gbs 32
memory
    {LLAMA_70B} --cluster h100-dgx | {QWEN_MOE} --cluster h100-dgx | llama3-8b --gpus 1 --cluster h100-dgx
    llama3-8b --gpus 8 --cluster h100-dgx --zero 3
generate {LLAMA_8B} --cluster h100-dgx
    -o job.txt && simulate job.txt --cluster h100-dgx --overlap grad,param
    --format program -o job.foretrace && inspect job.foretrace && simulate job.foretrace --cluster h100-dgx
    --format program --detail kernel -o job.foretrace && simulate job.foretrace --cluster b200-dgx --what-if gemm=2x
    --format megatron-trace --overlap none -o out && simulate out && explain out
generate {QWEN_MOE} --cluster h100-dgx
    -o job.txt && simulate job.txt --cluster h100-dgx
sweep {LLAMA} --over
    cluster=a100-dgx,h100-dgx,b200-dgx | microbatches=16:128:x2 --cluster h100-dgx | jitter=0,1%,5% --cluster h100-dgx
    gpus=1024:16384:x2 --cluster h100-dgx --overlap dp | compute=1x,2x --cluster h100-dgx --schedule zb-h1
    network=1x:8x:x2 --cluster h100-dgx | straggler:5=1x,1.2x --cluster h100-dgx | dp=4,8 --cluster h100-dgx
sweep {EX_SITU} --over
    microbatches=8,16 | pp=2,4 --microbatches 8 | ep=4,8 --microbatches 8 | routing=1,1.5,2 --microbatches 8
sweep {GPT} --over
    batch=1,2,4 --what-if unprofiled | gpu=h100-sxm,b200 | gemm=1x,1.5x
sweep {MOE} --cluster h100-dgx --over
    tp=1x,2x --network flow
explain
    {MOE} --cluster h100-dgx | {LLAMA} --cluster h100-dgx | {TABLE} | {EX_SITU.replace("--pp-comm 8MiB", "")}
    {DATA}/h200/tinyllama_mbs1_s512.json.gz | {DATA}/h200/tinyllama_mbs4.table.txt | {PROFILES}/streams.sync.json.gz
    {PROFILES}/streams.shapes.json.gz {PROFILES}/streams.sync.json.gz --view diff | {DATA}/kineto/*[!t].json.gz
    {TRACES}/moe16/*/real | {TRACES}/dense4/real | {TRACES}/dense8/tp2_pp4_real
explain {TINY} --view
    breakdown | overlap | idle | kernels | launches | queue | critical-path
explain {GPT} --view
    annotations | bandwidth | steps | sequences --op mm | idle --hta-steps
inspect
    {LLAMA} | {MOE} | {TABLE} | @examples/traces/*.txt | {TINY} | {DATA}/h200/tinyllama_mbs4.table.txt | {REAL}
    {DATA}/kineto/*.json.gz | {DATA}/simai/workloads/[!a]*_*.txt | train.sh
network
    all-gather 64MiB --cluster h100-dgx --ranks 64 | all-to-all 64MiB --cluster h100-dgx --ranks 64
    broadcast 64MiB --cluster h100-dgx --ranks 64 | all-reduce 1KiB..1GiB:x32 --cluster h100-dgx --ranks 64
    all-reduce 256MiB --cluster mi300x --ranks 16 | send 64MiB --cluster h100-dgx --ranks-per-node 1
    reduce-scatter 1GiB --cluster h100-dgx --ranks 2..1024 --ranks-per-node 1 --groups 8
    barrier --cluster h100-dgx --ranks 64 | all-gather 1GiB --cluster h100-dgx --ranks 16 --nccl-algo tree
    all-reduce 64MiB --cluster a100-dgx --ranks 16 --collectives {DATA}/collectives/a100_2x8
    dispatch 64MiB --cluster h800-hgx --ranks 64 --way style=deepep,experts=256,topk=8
    all-reduce 1MiB,64MiB --cluster h100-dgx --ranks 8,64 --prices model | all-reduce 1MiB --cluster h100-pcie
    all-reduce 1GiB --cluster @examples/clusters/h100_fat_tree_4to1.yaml --ranks 512 --network flow
    all-to-all 64MiB --cluster @examples/clusters/a100_written_out.yaml --ranks 8 --network flow
    all-to-all 64MiB --cluster h100-dgx --ranks 128 --network flow --placement ranks.txt
validate --workers 1
    @truth/korthikanti.csv | @truth/h200_steps.jsonl | @truth/h200_steps.jsonl --prices roofline
validate --workers 1 {DATA}/runs/training_steps_dev.csv --family
    torchtitan | torchtitan --no-silicon --prices model | sc21 | simumax-b200
calibrate {DATA}/h200/tinyllama_mbs4.json.gz -o my.yaml
    && calibration show my.yaml | && calibration show my.yaml llama3-8b --gpus 8 --stack torch-eager
    && predict llama3-8b --gpus 8 --tp 2 --cluster h200-dgx --calibration my.yaml
calibrate {DATA}/collectives/a100_40g_ib_1to256/nccl_16.log --cluster a100-40g-dgx -o my.yaml
    && network all-reduce 64MiB --cluster a100-40g-dgx --ranks 16 --calibration my.yaml
simulate {PROFILES}/*.shapes.json.gz
    | --what-if unprofiled
simulate {GPT} --what-if
    batch=2x | gpu=h100-sxm | gemm=1.2x --steps 1,2
simulate {TINY}
    --what-if cuda-graphs | --what-if no-host-gaps | --what-if gpu=b200 --what-if batch=2x
    --cluster h100-dgx --mesh dp=64 | --cluster h200-dgx --mesh dp=8 --network flow
simulate {DATA}/h200/
    tinyllama_mbs4.json.gz | tinyllama_mbs4.json.gz --cluster h100-dgx --mesh dp=64 --set overlap=none
    tinyllama_mbs4.table.txt --cluster h100-dgx --mesh dp=64 --set model=tinyllama --no-silicon
simulate {DATA}/
    kineto/*[!t].json.gz | simai/workloads/[!a]*_*.txt --cluster h100-dgx
    simai/workloads/gpt13b_tp8_aiob.txt --compat simai --simai-tables {DATA}/simai {SIMAI_FLAGS} | traces/moe16/*/real
    traces/dense4/real | traces/dense8/tp2_pp4_real | traces/pp64_tp8_dp16 --microbatches 128 --cluster h100-dgx
simulate {REAL}
    --what-if ep=2x | --straggler 3=1.2x | --routing balanced | --microbatches 32 | --cluster a100-dgx
    --cluster h100-dgx --mesh pp=4,dp=64 | --schedule zb-h1 --cluster a100-dgx | --slow-link 3:ep=2x
"""
"""Beginnings of commands, and below each what follows, divided by `|`. A path begins with `@`; one with `*` stands for
a case for each match. `&&` joins commands that run in one folder."""
EX_SITU_CASES = """
simulate {job}/scaling_a --microbatches {microbatches} {machine}
simulate {job}/scaling_a {job}/scaling_b --microbatches {microbatches} {machine}
compare {job}/scaling_a {job}/scaling_b {job}/real --microbatches {microbatches} {machine}
"""
EX_SITU_JOBS = {
    "moe16/pp2_tp1_ep2_expn8_dp8_nl8_hs4096_sl1024": 8,
    "moe16/pp2_tp1_ep8_expn8_dp8_nl8_hs4096_sl1024": 8,
    "moe16/pp4_tp1_ep4_expn16_dp4_nl8_hs4096_sl1024": 16,
    "dense4": 1,
}
"""Jobs with real and ex-situ traces, and their microbatches."""
MACHINE = f"--cluster @examples/clusters/a100_2x8.yaml --collectives {DATA}/collectives/a100_2x8"


@dataclass(frozen=True)
class Checkout:
    """Holds a folder with the repository, and where results of its commit are kept."""

    folder: Path
    commit: str
    cache: Path | None
    pycache: Path

    def results(self, case: str, roots: dict[str, Path]) -> list[Result]:
        """Returns exit code, error and JSON of each command of a case, from the cache where it has them."""
        words = [_resolved(word, roots) for word in case.split()]
        kept = self.cache and self.cache / self.commit / f"{_digest(case, words)}.json"
        if kept and kept.exists():
            return list(json.loads(kept.read_text(encoding="utf-8"))["results"])
        results = self._run(words)
        if kept and all(isinstance(result["exit"], int) for result in results):
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({"case": case, "results": results}), encoding="utf-8")
        return results

    def _run(self, words: list[str]) -> list[Result]:
        """Runs the commands of a case, one after the other, in a folder of their own."""
        results = []
        with tempfile.TemporaryDirectory() as folder:
            for name, text in FILES.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            while words:
                end = words.index("&&") if "&&" in words else len(words)
                results.append(self._command(words[:end], folder))
                words = words[end + 1 :]
        return results

    def _command(self, words: list[str], folder: str) -> Result:
        """Runs a command, with `--json` where it has that option."""
        asked = [] if words[0] == "init" else ["--json"]
        command = [sys.executable, "-m", "foretrace", words[0], *asked, *words[1:]]
        paths = {"PYTHONPATH": str(self.folder / "src"), "PYTHONPYCACHEPREFIX": str(self.pycache)}
        options: dict[str, Any] = {"cwd": folder, "env": os.environ | paths, "capture_output": True, "text": True}
        try:
            ended = subprocess.run(command, **options, timeout=MAX_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return {"command": words[0], "exit": f"none in {MAX_SECONDS} s", "error": "", "json": None}
        answer = json.loads(ended.stdout) if ended.stdout.startswith("{") else None
        error = (ended.stderr.strip().splitlines() or [""])[-1 if "Traceback" in ended.stderr else 0]
        return {"command": words[0], "exit": ended.returncode, "error": error[:200], "json": answer}


def main() -> int:
    """Runs all cases, prints a line for each, and returns the exit code."""
    options = _options()
    roots = _roots(options.new)
    cases = [case for case in _cases(roots) if options.only in case]
    differing: dict[str, list[str]] = {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as pycache:
        base = Checkout(options.base, _commit(options.base), options.cache, Path(pycache))
        new = Checkout(options.new, _commit(options.new), None, Path(pycache))
        print(f"base {base.folder} at {base.commit}\nnew  {new.folder} at {new.commit}", flush=True)
        for case in cases:
            lines = _compare(case, base, new, roots)
            if lines:
                differing[case] = lines
    print(f"{len(cases)} cases, {len(differing)} differ; {time.perf_counter() - began:.0f} s")
    if options.out:
        options.out.write_text(json.dumps(differing, indent=1), encoding="utf-8")
    return 1 if differing else 0


def _compare(case: str, base: Checkout, new: Checkout, roots: dict[str, Path]) -> list[str]:
    """Runs a case in both checkouts, prints the outcome, and returns what differs."""
    before, began = base.results(case, roots), time.perf_counter()
    after = new.results(case, roots)
    lines = list(_differences(before, after))
    numbers = sum(len(_numbers(result)) for result in before)
    seconds = time.perf_counter() - began
    failed = [f"; exit {result['exit']}: {result['error']}" for result in after if result["exit"]]
    print(f"{'differs' if lines else 'equal':<7} {seconds:5.1f} s {numbers:6} numbers  {case}{''.join(failed)}")
    print("".join(f"        {line}\n" for line in lines[:6]), end="", flush=True)
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", type=lambda text: Path(text).resolve(), help="checkout with the answers to keep")
    parser.add_argument("new", type=lambda text: Path(text).resolve(), nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--only", default="", metavar="WORD", help="only the cases that contain this")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where results of BASE are kept")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all differences as JSON")
    options = parser.parse_args()
    for folder in (options.base, options.new):
        if not (folder / "src" / "foretrace" / "__main__.py").exists():
            parser.error(f"{folder} is not a checkout of the repository: it has no src/foretrace/__main__.py")
    return options


def _commit(folder: Path) -> str:
    """Returns the commit of a checkout, with a digest of what is not committed of its code."""
    git = ["git", "-C", str(folder)]
    commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    changes = subprocess.run([*git, "diff", "HEAD", "--", "src"], capture_output=True, check=True).stdout
    return commit.stdout.strip() + (f"+{hashlib.sha256(changes).hexdigest()[:8]}" if changes else "")


def _roots(new: Path) -> dict[str, Path]:
    """Returns the folder that each `@name` at the beginning of a path stands for."""
    shared = Path(os.environ.get("FORETRACE_SHARED") or new.parent / "shared").absolute()
    return {"@examples": new / "examples", "@truth": new / "benchmarks" / "truth", "@shared": shared}


def _resolved(word: str, roots: dict[str, Path]) -> str:
    root, _, rest = word.partition("/")
    return str(roots[root] / rest) if root in roots else word


def _commands() -> Iterator[str]:
    """Yields the commands of the tables, before patterns are expanded."""
    beginning = ""
    for line in CASES.strip().splitlines():
        if not line.startswith(" "):
            beginning = line
            continue
        for ending in line.split("|"):
            space = "" if beginning.endswith("/") else " "
            yield " ".join(f"{beginning}{space}{ending.strip()}".split())
    for job, microbatches in EX_SITU_JOBS.items():
        words = {"job": f"{TRACES}/{job}", "microbatches": microbatches, "machine": MACHINE}
        yield from EX_SITU_CASES.format(**words).strip().splitlines()


def _cases(roots: dict[str, Path]) -> Iterator[str]:
    """Yields the commands, one for each match of a pattern; none where an input is not there."""
    for command in _commands():
        paths = [word for word in command.split() if word.startswith("@")]
        matches = {path: _matches(path, roots) for path in paths}
        absent = [path for path in paths if not matches[path]]
        if absent:
            print(f"skipped          {command}: there is no {absent[0]}")
            continue
        cases = [command]
        for path in paths:
            cases = [case.replace(path, name, 1) for case in cases for name in matches[path]]
        yield from cases


def _matches(word: str, roots: dict[str, Path]) -> list[str]:
    root, _, pattern = word.partition("/")
    names = sorted(path.relative_to(roots[root]) for path in roots[root].glob(pattern)) if pattern else []
    return [f"{root}/{name}" for name in names]


def _digest(case: str, words: list[str]) -> str:
    """Returns a name for a case and the bytes of the files it reads."""
    digest = hashlib.sha256("\0".join([case, *(text for name, text in FILES.items() if name in words)]).encode())
    for path in (Path(word) for word in words if word.startswith("/")):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            digest.update(file.name.encode() + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()[:24]


def _differences(before: list[Result], after: list[Result]) -> Iterator[str]:
    """Yields what differs between the results of a case, in words."""
    for old, new in zip(before, after, strict=True):
        command, old_json, new_json = old["command"], old["json"] or {}, new["json"] or {}
        if old["exit"] != new["exit"]:
            yield f"{command}: exit code {old['exit']} ({old['error']}), now {new['exit']} ({new['error']})"
            continue
        if old_json and old_json.get("schema") != new_json.get("schema"):  # an error may be an object now
            yield f"{command}: schema {old_json.get('schema')}, now {new_json.get('schema')}"
        old_keys, new_keys = ({_key(path) for path, _ in _nodes(answer)} for answer in (old_json, new_json))
        missing = old_keys - new_keys
        yield from (f"{command}: {key} is missing" for key in sorted(missing) if key.rpartition(".")[0] not in missing)
        old_numbers, new_numbers = _numbers(old), _numbers(new)
        for path in old_numbers | new_numbers:
            numbers = old_numbers.get(path), new_numbers.get(path)
            if _key(_value(path)) in old_keys & new_keys and not _equal(*numbers):
                yield f"{command}: {'.'.join(map(str, path))} {numbers[0]}, now {numbers[1]}"


def _numbers(result: Result) -> dict[Place, float]:
    """Returns the numbers of a result that are compared: none of a command that only describes a file."""
    if result["command"] == "inspect":
        return {}
    nodes = ((path, value) for path, value in _nodes(result["json"]) if VALUES.intersection(path))
    return {path: value for path, value in nodes if isinstance(value, int | float) and not isinstance(value, bool)}


def _value(path: Place) -> Place:
    """Returns a path up to the first key of `VALUES`."""
    return path[: min(index for index, part in enumerate(path) if part in VALUES) + 1]


def _nodes(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yields everything within a JSON value, itself included, with its path."""
    yield path, value
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _nodes(inner, (*path, key))


def _key(path: Place) -> str:
    return ".".join("[]" if isinstance(part, int) else part for part in path)


def _equal(old: float | None, new: float | None) -> bool:
    return old is not None and new is not None and math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


if __name__ == "__main__":
    sys.exit(main())
