"""`foretrace simulate --compat simai`: SimAI's own flags in, its figures, ours and the difference out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared_files import ROOT, shared

MOE = ROOT / "examples" / "moe_128gpu.txt"
LLAMA = ROOT / "examples" / "llama405b_1024gpu.txt"
FLAGS = ("-g_p_s", "8", "-n_p_s", "8", "-g_type", "H100", "-nic_t", "cx7")


def foretrace(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foretrace", "simulate", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def compared(file: Path, *flags: str, more: tuple[object, ...] = ()) -> dict[str, Any]:
    words = (file, "--compat", "simai", "--simai-tables", shared("data", "simai"), "--json", *more, "--", *flags)
    done = foretrace(*words)
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_figures_stand_beside_our_own() -> None:
    result = compared(MOE, "-g", "128", *FLAGS)
    figures = {"dp_us": 7582, "dp_ep_us": 0, "tp_us": 2828, "ep_us": 3641, "pp_us": 0, "bubble_us": 16906}
    figures |= {"compute_us": 40829, "exposed_us": 14051, "total_us": 71787}
    assert result["simai"] == figures | {"failure": None}
    assert result["world_size"] == 128
    assert result["cluster"] == "SimAI's flags"
    assert result["step_time_s"] > 0.1


def test_nan_is_null_and_what_mends_it_is_said() -> None:
    result = compared(LLAMA, "-g", "1024", *FLAGS, more=("--explain",))
    assert (result["simai"]["bubble_us"], result["simai"]["total_us"]) == (None, None)
    defects = {one["id"]: one for one in result["simai"]["defects"]}
    assert round(defects["B2"]["mended_total_us"]) == 14756159
    assert {one["effect_us"] for one in defects.values()} == {None}
    assert "B14" in defects


def test_effects_and_remainder_add_up_to_our_number() -> None:
    result = compared(MOE, "-g", "128", *FLAGS, more=("--explain",))
    effects = [one["effect_us"] for one in result["simai"]["defects"]]
    ours = result["step_time_s"] * 1e6
    assert result["simai"]["total_us"] + sum(effects) == pytest.approx(ours, abs=1.0)


def test_its_file_is_written_to_the_byte(tmp_path: Path) -> None:
    compared(MOE, "-g", "128", *FLAGS, "-r", "s2_h100-", more=("--csv", tmp_path / "out.csv"))
    recorded = shared("data", "simai", "results", "s2_h100-EndToEnd.csv").read_bytes()
    assert (tmp_path / "out.csv").read_bytes() == recorded


def test_what_has_no_meaning_to_us_still_has_simais_figures(tmp_path: Path) -> None:
    broken = tmp_path / "broken.txt"
    broken.write_bytes(MOE.read_bytes().replace(b"ALLTOALL_EP", b"ALLTOAL_EP"))
    result = compared(broken, "-g", "128", *FLAGS, more=("--explain",))
    assert result["step_time_s"] is None
    assert "not simulated" in result["diagnostics"][0]["message"]
    assert result["simai"]["ep_us"] == 0
    assert "B11" in {one["id"] for one in result["simai"]["defects"]}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--compat", "simai", "--", "-g", "128"), 2, "needs SimAI's ratio tables"),
        (("--cluster", "h100-dgx", "--", "-g", "128"), 2, "only with --compat simai"),
        (("--cluster", "h100-dgx", "--csv", "x.csv"), 2, "--csv: only with --compat simai"),
        (("--cluster", "h100-dgx", "--explain"), 2, "--explain: only with --compat simai"),
        (
            ("--compat", "simai", "--simai-tables", "nowhere", "--", "-g", "8", "-g_p_s", "8", "-n_p_s", "8"),
            3,
            "nowhere",
        ),
        (("--compat", "simai", "--cluster", "h100-dgx", "--simai-tables", "x", "--", "-g", "8"), 2, "as SimAI's flags"),
        (("--compat", "simai", "--gpus", "8", "--simai-tables", "x", "--", "-g", "8"), 2, "SimAI's own flag is -g"),
        (("--compat", "astra"), 2, "astra"),
    ],
)
def test_wrong_command_lines(words: tuple[str, ...], code: int, says: str) -> None:
    done = foretrace(MOE, *words)
    assert done.returncode == code
    assert says in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flags", [("-n_p_s", "8", "-g_p_s", "8"), ("-g", "128", "-g_p_s", "8"), ("-g", "x", *FLAGS)])
def test_flags_that_simai_needs(flags: tuple[str, ...]) -> None:
    done = foretrace(MOE, "--compat", "simai", "--simai-tables", shared("data", "simai"), "--", *flags)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
