"""SimAI-Analytical's command line: what is read, and what is refused that SimAI would crash on."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import UsageError
from foretrace.compat.simai import SimaiFlags, parse_flags

COUNTS = "-g 128 -g_p_s 8 -n_p_s 4"
LEAST = f"{COUNTS} -g_type H100"


def test_what_is_not_given_is_what_simai_defaults_to() -> None:
    assert parse_flags(LEAST.split()) == SimaiFlags(
        gpus=128,
        gpus_per_server=8,
        nics_per_server=4,
        gpu_type="H100",
        nic_type="cx7",
        dp_overlap=0.0,
        tp_overlap=0.0,
        ep_overlap=0.0,
        pp_overlap=1.0,
    )


def test_every_flag_in_its_long_spelling() -> None:
    words = (
        "--workload w.txt --gpus 16 --gpus-per-server 8 --nic_per_server 8 --nvlink 360 --nic_busbw 48.5 "
        "--nic_type BF3 --gpu_type h20 --dp_overlap .1 --tp_overlap .2 --ep_overlap .3 --pp_overlap .4 "
        "--result r- --result_folder out --visual 1 --lang ja"
    )
    assert parse_flags(words.split()) == SimaiFlags(
        gpus=16,
        gpus_per_server=8,
        nics_per_server=8,
        gpu_type="H20",
        nic_type="bf3",
        nvlink_gb_per_s=360.0,
        nic_gb_per_s=48.5,
        dp_overlap=0.1,
        tp_overlap=0.2,
        ep_overlap=0.3,
        pp_overlap=0.4,
        pp_overlap_given=True,
        prefix="r-",
        folder="out",
        visual=True,
        language="ja",
        workload="w.txt",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-g_p_s 8 -n_p_s 8 -g_type H100", "-g is missing  [missing-argument]\n       SimAI crashes"),
        ("-g 8 -n_p_s 8 -g_type H100", "-g_p_s is missing"),
        (
            "-g 8 -g_p_s 8 -g_type H100",
            "-n_p_s is missing  [missing-argument]\n       SimAI reads uninitialised memory",
        ),
        (f"{LEAST} -busbw b.yaml", "no longer parses -busbw"),
        (f"{LEAST} -gtype H100", "did you mean -g_type"),
        (f"{LEAST} -nic", "-nic needs a value"),
        (f"{LEAST} -nic fast", 'is "fast"; expected a bandwidth'),
        (f"{LEAST} -tp_o 1.5", "a fraction from 0 to 1"),
        (f"{LEAST} -tp_o nan", "a fraction from 0 to 1"),
        (f"{LEAST} -g_p_s 0", "expected 1 to"),
        (f"{LEAST} -g_p_s 9999999999", "expected 1 to"),
        (f"{LEAST} -n_p_s \N{ARABIC-INDIC DIGIT THREE}", "whole number"),
        (f"{LEAST} -n_p_s 1_0", "whole number"),
        (f"{LEAST} -nv 1_0", "GB/s"),
        (f"{LEAST} -n_p_s 1.5", "a whole number"),
        (f"{LEAST} -l de", "expected en or ja"),
        ("-g 8 -g_p_s 8 -n_p_s 8 -g_type H1000", "known: A100 A800 H100 H800 H20; or give -nv"),
        (f"{LEAST} -nic_t cx8", "known: cx6 cx7 bf3"),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_would_be_right(words: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_flags(words.split())
    assert message in str(refusal.value)


def test_a_bandwidth_takes_the_place_of_a_type_that_simai_does_not_know() -> None:
    flags = parse_flags(f"{COUNTS} -g_type B200 -nv 720 -nic_t cx8 -nic 97".split())
    assert (flags.nvlink_rate_gb_per_s, flags.nic_rate_gb_per_s) == (720.0, 97.0)
    assert len(flags.diagnostics) == 2


def test_a_bandwidth_of_zero_is_none_at_all() -> None:
    flags = parse_flags(f"{LEAST} -nv 0 -nic 0".split())
    assert (flags.nvlink_rate_gb_per_s, flags.nic_rate_gb_per_s) == (pytest.approx(370.8), 48.5)
    assert len(flags.diagnostics) == 2


def test_no_gpu_type_is_noted_as_the_one_that_fresh_memory_means() -> None:
    flags = parse_flags(COUNTS.split())
    assert flags.nvlink_rate_gb_per_s == 240.0
    assert flags.diagnostics[0].code == "assumed"


def test_another_workload_is_noted_and_not_read() -> None:
    assert parse_flags(f"{LEAST} -w a/w.txt".split(), workload="a/w.txt").diagnostics == ()
    (note,) = parse_flags(f"{LEAST} -w other.txt".split(), workload="a/w.txt").diagnostics
    assert "other.txt is not read" in note.message


def test_the_first_number_of_gpus_counts_and_the_last_of_all_else() -> None:
    flags = parse_flags(f"{LEAST} -g 64 -n_p_s 2".split())
    assert (flags.gpus, flags.nics_per_server) == (128, 2)
