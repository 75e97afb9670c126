"""What a user says about NCCL, and which prices count: --nccl, --nccl-algo, --nccl-proto, --prices, --no-silicon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.cli.main import run
from foretrace.cost.silicon import installed
from shared_files import ROOT

FILE = "examples/llama405b_1024gpu.txt"
LOG = """\
n1:10:20 [0] NCCL INFO comm 0xaa rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
n1:10:20 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels, 4 p2p channels per peer
n1:10:20 [0] NCCL INFO comm 0xaa rank 0 nranks 8 cudaDev 0 busId 18000 - Init COMPLETE
n1:10:10 [0] NCCL INFO AllGather: 1024 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}
n1:10:10 [0] NCCL INFO AllGather: 1073741824 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}
"""


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        run([*map(str, words)])
    return int(ended.value.code or 0)


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert call(*words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def simulated(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    return answer(capsys, "simulate", FILE, "--cluster", "h100-dgx", *words)


def sources(of: dict[str, Any]) -> str:
    return " ".join(one["source"] for one in of["provenance"])


def test_a_workload_is_priced_by_nvidias_tables_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert ("NCCL tables" in sources(simulated(capsys))) == installed()
    assert "NCCL tables" not in sources(simulated(capsys, "--no-silicon"))
    assert "NCCL tables" not in sources(simulated(capsys, "--prices", "model"))


def test_a_forced_choice_leaves_the_tables_out_and_changes_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    free = simulated(capsys, "--no-silicon")
    forced = simulated(capsys, "--nccl-proto", "LL")
    assert "NCCL tables" not in sources(forced)
    assert forced["step_time_s"] > free["step_time_s"], "LL moves half of what the links carry"


def test_what_nccl_said_is_read_and_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(LOG)
    words = ("network", "all-gather", "64MiB", "--cluster", "h100-dgx", "--ranks", 8, "--no-silicon")
    seen = answer(capsys, *words, "--nccl", path)
    assert (seen["algorithm"], seen["protocol"], seen["channels"]) == ("ring", "simple", 4)
    assert answer(capsys, *words, "--nccl", path, "--nccl-proto", "ll")["protocol"] == "ll"
    assert simulated(capsys, "--no-silicon", "--nccl", path)["step_time_s"] > 0


def test_predictions_take_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("predict", "llama3-8b", "--gpus", 8, "--cluster", "h100-dgx", "--tp", 8, "--no-silicon")
    free, forced = answer(capsys, *words), answer(capsys, *words, "--nccl-proto", "ll")
    assert forced["step_time_s"] > free["step_time_s"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--cluster", "h100-dgx", "--nccl-algo", "rung"), 3, "did you mean Ring?"),
        (("--cluster", "h100-dgx", "--nccl-proto", "^LL,LL128,Simple"), 3, "leaves nothing to choose from"),
        (("--cluster", "h100-dgx", "--nccl-algo", "tree"), 3, "leaves no way to run the all-gather"),
        (("--cluster", "h100-dgx", "--nccl", "absent.log"), 3, "there is no such file"),
        (("--cluster", "h100-dgx", "--nccl", FILE), 3, "no line of the log is NCCL's"),
        (("--nccl-algo", "ring"), 2, "--cluster"),
    ],
)
def test_mistakes(words: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("simulate", FILE, *words) == code
    assert message in capsys.readouterr().err
