"""Every file of a command is opened once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared_files import ROOT, shared

EXAMPLES = ROOT / "examples"
COUNTED = """
import json, os, sys
opens = {}
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and os.path.realpath(arguments[0]).startswith(tuple(folders)):
        path = os.path.realpath(arguments[0])
        opens[path] = opens.get(path, 0) + 1
folders = json.loads(sys.argv.pop(1))
sys.addaudithook(hook)
from foretrace.cli.main import run
try:
    run(sys.argv[1:])
except SystemExit as stopped:
    sys.stdout.flush()
    sys.stderr.write("\\n" + json.dumps([stopped.code, opens]))
"""


def opens(folders: list[Path], *arguments: object) -> dict[str, int]:
    """How often a command opens each file of these folders."""
    command = [sys.executable, "-c", COUNTED, json.dumps([os.path.realpath(one) for one in folders])]
    ran = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)
    code, counted = json.loads(ran.stderr.splitlines()[-1])
    assert code == 0, ran.stderr
    assert counted, "the command reads nothing"
    return dict(counted)


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", EXAMPLES / "llama405b_1024gpu.txt", "--cluster", EXAMPLES / "clusters" / "h100_hpn.yaml"),
        ("sweep", EXAMPLES / "moe_128gpu.txt", "--cluster", "h100-dgx", "--over", "microbatches=2,4"),
        ("explain", EXAMPLES / "moe_128gpu.txt", "--cluster", "h100-dgx"),
        ("simulate", EXAMPLES / "moe_fairseq_profile.txt"),
        ("inspect", EXAMPLES / "traces" / "moe_ex_situ_rank2.txt"),
        ("simulate", EXAMPLES / "traces" / "gpt13b_real_rank0.txt"),
        ("inspect", EXAMPLES / "clusters" / "h100_torus.yaml"),
        ("show", EXAMPLES / "clusters" / "h100_torus.yaml"),
    ],
    ids=lambda arguments: f"{arguments[0]} {Path(arguments[1]).stem}",
)
def test_examples(arguments: tuple[object, ...]) -> None:
    counted = opens([EXAMPLES], *arguments)
    assert set(counted.values()) == {1}, counted


@pytest.mark.parametrize("command", ["inspect", "show"])
def test_models_in_files(command: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model: llama3-8b\nplan: {gpus: 8}\n")
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("job.yaml", "config.json"):
        assert opens([tmp_path], command, tmp_path / name) == {os.path.realpath(tmp_path / name): 1}


def test_ex_situ_campaigns_with_another_schedule() -> None:
    """Version 0.6 read each of these files three times."""
    folder = shared("data", "traces", "moe16", "*", "scaling_a")
    arguments = (folder, "--cluster", "a100-dgx", "--microbatches", 8, "--schedule", "zb-h1")
    counted = opens([folder], "simulate", *arguments)
    assert set(counted.values()) == {1}, counted


def test_a_comparison_reads_both_sides_once() -> None:
    folder = shared("data", "traces", "moe16", "*", "real")
    counted = opens([folder.parent], "compare", folder.parent / "scaling_a", folder, "--cluster", "a100-dgx")
    assert set(counted.values()) == {1}, counted


def test_profiler_traces() -> None:
    trace = ROOT / "benchmarks" / "truth" / "profiles" / "tinyllama_mbs1_s256.shapes.json.gz"
    for words in (("simulate", trace, "--what-if", "cuda-graphs"), ("explain", trace), ("inspect", trace)):
        counted = opens([trace.parent], *words)
        assert set(counted.values()) == {1}, counted
