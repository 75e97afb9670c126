"""Every screen fits 80 columns; a word that is longer, such as an address, stands alone."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from foretrace.cli.main import COMMANDS
from foretrace.report.catalogue.lists import _LISTS
from unit.cli.command_line import call

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = 80
JOB = "llama3-8b --gpus 16 --cluster h100-dgx --tp 2 --pp 2 --gbs 32 --no-silicon"
WORKLOAD = "examples/llama405b_1024gpu.txt --cluster h100-dgx --no-silicon"
SCREENS = [
    f"predict {JOB}",
    "predict llama3.2-1b --gpus 16 --cluster h100-dgx --tp 2 --pp 2 --precision fp8 --network flow --no-silicon",
    f"predict {JOB} --precision fp8 --what-if compute=1.1x",
    "predict llama3-70b --gpus 8 --cluster h100-dgx",
    "predict llama3-70b --gpus 512 --tp 3 --cluster h100-dgx",
    f"memory {JOB}",
    "plan llama3.2-1b --gpus 8 --cluster h100-dgx --gbs 32 --tp 1,2 --cp 1 --mbs 1 --no-offload --no-silicon",
    f"simulate {WORKLOAD}",
    f"explain {WORKLOAD}",
    "explain examples/moe_fairseq_profile.txt",
    f"compare {JOB} examples/traces/gpt13b_real_rank0.txt",
    f"compare {WORKLOAD} examples/llama405b_1024gpu.txt",
    "sweep llama3-8b --cluster h100-dgx --tp 2 --no-silicon --over gpus=2,8,16",
    "network all-reduce 1GiB --cluster h100-dgx --ranks 64 --no-silicon",
    "network all-to-all 1KiB..1GiB --cluster h100-dgx --ranks 64 --no-silicon",
    "inspect examples/llama405b_1024gpu.txt",
    "inspect examples/moe_fairseq_profile.txt",
    "inspect examples/traces/moe_ex_situ_rank2.txt",
    "inspect llama3-8b",
    "show deepseek-v3",
    "show gb200-nvl72",
    "show examples/clusters/h100_hpn.yaml",
    f"generate {JOB} -o OUT",
    "validate --rows no-such-row",
    "simulate nothing-of-this-name.foretrace",
    *(f"list {kind}" for kind in _LISTS),
    *(f"{command} --help" for command in COMMANDS),
]


@pytest.mark.parametrize("line", SCREENS)
def test_no_line_is_longer_than_the_screen(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.chdir(ROOT)
    call(*(word.replace("OUT", str(tmp_path / "job.txt")) for word in shlex.split(line)))
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).split("\n")
    assert len(lines) > 1
    assert [text for text in lines if len(text) > COLUMNS and len(text.split()) > 1] == []
