"""Every run of SimAI-Analytical v1.6 that was recorded: its figures to the microsecond, its files to the byte."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from foretrace.compat.simai import end_to_end_csv, figures, figures_json, load_tables
from foretrace.inputs.aicb.format import Workload, read_workload
from shared_files import shared
from unit.compat.simai.cases import simai

KEYS = ("dp_us", "dp_ep_us", "tp_us", "ep_us", "pp_us", "bubble_us", "compute_us", "exposed_us", "total_us")


@dataclass(frozen=True)
class Run:
    file: tuple[str, ...]
    gpus: int
    flags: str
    figures: tuple[int | None, ...]
    result: str | None = None
    header: tuple[tuple[str, Any], ...] = ()

    def workload(self) -> Workload:
        read = read_workload(shared(*self.file))
        return replace(read, header=replace(read.header, **dict(self.header)))


MOE = ("seeds", "002*.txt")
LLAMA = ("seeds", "004*.txt")
H100 = "-g_type H100 -nic_t cx7"
GENERATED = ("data", "simai", "workloads")
GPT, PLAIN_GPT = (*GENERATED, "gpt13b_tp8_aiob.txt"), (*GENERATED, "gpt13b_tp8.txt")
LLAMA_405B, MIXTRAL = (*GENERATED, "llama405b_tp8_pp16_aiob.txt"), (*GENERATED, "mixtral8x7b_tp2_ep8_pp4_aiob.txt")

RUNS = (
    Run(MOE, 128, f"{H100} -r s2_h100-", (7582, 0, 2828, 3641, 0, 16906, 40829, 14051, 71787), "s2_h100"),
    Run(
        MOE, 128, "-g_type H800 -nic_t cx7 -r s2_h800-", (7582, 0, 5932, 3641, 0, 18064, 40829, 17156, 76049), "s2_h800"
    ),
    Run(
        MOE,
        128,
        f"{H100} -dp_o .5 -tp_o .3 -ep_o .2 -r s2_ovl-",
        (3791, 0, 1980, 2913, 0, 16906, 40829, 8684, 66419),
        "s2_ovl",
    ),
    Run(MOE, 128, f"{H100} -pp_o .5", (7582, 0, 2828, 3641, 750000, 16906, 40829, 14051, 821787)),
    Run(LLAMA, 1024, f"{H100} -r s4_h100-", (322654, 0, 281609, 0, 0, None, 7213232, 604263, None), "s4_h100"),
    Run(LLAMA, 1024, "-nv 360 -nic 48.5", (322654, 0, 290054, 0, 0, None, 7213232, 612708, None)),
    Run(
        LLAMA,
        1024,
        f"{H100} -r s4v1-",
        (322654, 0, 281609, 0, 0, 6938663, 7213232, 604263, 14756159),
        "s4v1",
        (("vpp", 1), ("pp_comm_bytes", 16777216)),
    ),
    Run(
        GPT,
        128,
        "-g_type A100 -nic_t cx6 -r g_gpt13b-",
        (389580, 0, 235498, 0, 0, 0, 4212077, 625078, 4837155),
        "g_gpt13b",
    ),
    Run(PLAIN_GPT, 128, f"{H100} -r g_gpt13b_na-", (125844, 0, 317531, 0, 0, 0, 4, 443374, 443378), "g_gpt13b_na"),
    Run(
        LLAMA_405B,
        1024,
        f"{H100} -r g_llama405-",
        (424136, 0, 281609, 0, 0, 234410, 1771941, 705745, 2712097),
        "g_llama405",
    ),
    Run(
        LLAMA_405B,
        1024,
        f"{H100} -r l1-",
        (424136, 0, 281609, 0, 0, 1875284, 1771941, 705745, 4352970),
        "g_llama405_vpp1",
        (("vpp", 1),),
    ),
    Run(
        MIXTRAL,
        128,
        f"{H100} -r g_mixtral-",
        (16552, 27062, 20460, 52365, 0, 42257, 401553, 116438, 560249),
        "g_mixtral",
    ),
)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.result or run.flags)
def test_figures_are_those_that_simai_printed(run: Run) -> None:
    tables = load_tables(shared("data", "simai"))
    answer = figures_json(figures(run.workload(), simai(run.flags, gpus=run.gpus), tables))
    assert answer == dict(zip(KEYS, run.figures, strict=True))


@pytest.mark.parametrize("run", [run for run in RUNS if run.result], ids=lambda run: run.result)
def test_the_csv_is_that_of_simai_to_the_byte(run: Run) -> None:
    tables = load_tables(shared("data", "simai"))
    text = end_to_end_csv(run.workload(), simai(run.flags, gpus=run.gpus), tables)
    assert text.encode() == shared("data", "simai", "results", f"{run.result}-EndToEnd.csv").read_bytes()


def test_too_few_nics_give_the_total_that_was_observed() -> None:
    """1.2e17 with NICs fewer than TP; 5.3e17 where -n_p_s was left out, so that SimAI found a 0 in fresh memory."""
    tables = load_tables(shared("data", "simai"))
    moe = RUNS[0].workload()
    few = figures(moe, simai(f"{H100} -n_p_s 4"), tables).total_us
    none = figures(moe, simai(f"{H100} -n_p_s 0"), tables).total_us
    assert few == pytest.approx(1.245e17, rel=1e-3)
    assert none == pytest.approx(5.26e17, rel=1e-3)
