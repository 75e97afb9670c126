"""A command line for every kind of answer and of input that has a page, and the files that they read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import foretrace
from foretrace.basics.units import format_bytes, format_count, format_percent, format_time
from kineto_files import document, kernel, span, write
from output_jobs import write_inputs
from shared_files import ROOT

ON = ("--cluster", "h100-dgx", "--no-silicon")
GPT2 = ("gpt2", "--gpus", "2", "--gbs", "2", *ON)
TABLE = str(ROOT / "examples" / "moe_fairseq_profile.txt")
CLUSTER = str(ROOT / "examples" / "clusters" / "h100_fat_tree_4to1.yaml")
SIMAI = ("--compat", "simai", "--simai-tables", ".")
SIMAI_FLAGS = ("--", "-g", "2", "-g_p_s", "8", "-n_p_s", "8")
ALL_REDUCE = ("network", "all-reduce")

Headline = Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class InSection:
    """A text of an answer's JSON that a section of its page has."""

    key: str
    text: Headline


def step(answer: dict[str, Any]) -> str:
    return format_time(answer["step_time_s"])


def shortest(answer: dict[str, Any]) -> str:
    return format_time(min(point["time_s"] for point in answer["points"]))


CASES: dict[str, tuple[tuple[str, ...], Headline | InSection]] = {
    "a prediction": (("predict", *GPT2), step),
    "a simulation": (("simulate", "job.txt", *ON), step),
    "a simulation on links": (("simulate", "job.txt", "--cluster", CLUSTER, "--no-silicon", "--network", "flow"), step),
    "a simulation with a placement": (
        ("simulate", "job.txt", "--cluster", CLUSTER, "--no-silicon", "--network", "flow", "--placement", "ranks.txt"),
        step,
    ),
    "a program": (("simulate", "job.foretrace", *ON), step),
    "a saved answer": (("simulate", "job.answer"), step),
    "a replayed run": (("simulate", "run"), step),
    "replayed traces": (("simulate", "traces"), step),
    "a table as one step": (("simulate", TABLE), step),
    "SimAI's figures": (
        ("simulate", "job.txt", *SIMAI, *SIMAI_FLAGS),
        InSection("simai", lambda answer: format_count(answer["simai"]["total_us"])),
    ),
    "why SimAI differs": (("simulate", "job.txt", *SIMAI, "--explain", *SIMAI_FLAGS), step),
    "a search": (
        ("plan", *GPT2, "--tp", "1", "--pp", "1", "--mbs", "1"),
        lambda answer: format_time(answer["best"]["step_time_s"]),
    ),
    "a comparison": (("compare", *GPT2, "--with", "gbs=4"), lambda answer: format_time(answer["b"]["step_time_s"])),
    "memory": (("memory", *GPT2), lambda answer: format_bytes(answer["needed_bytes"])),
    "memory that does not fit": (
        ("memory", "llama3-8b", "--gpus", "1", "--gbs", "1", *ON),
        InSection("relief", lambda answer: answer["would_fit"][0]["options"]),
    ),
    "memory next to a snapshot": (
        ("memory", *GPT2, "--snapshot", "snapshot.json"),
        InSection("measured", lambda answer: format_bytes(answer["snapshot"]["peak_allocated_bytes"])),
    ),
    "a collective": ((*ALL_REDUCE, "1MiB", "--ranks", "8", *ON), lambda answer: format_time(answer["time_s"])),
    "a collective on a changed machine": (
        (*ALL_REDUCE, "1MiB", "--ranks", "16", *ON, "--what-if", "nic=2x"),
        lambda answer: format_time(answer["unchanged_time_s"]),
    ),
    "a collective on links": (
        (*ALL_REDUCE, "1MiB", "--ranks", "16", *ON, "--network", "flow"),
        InSection("links", lambda answer: format_time(answer["flow"]["analytic_time_s"])),
    ),
    "a collective over sizes": ((*ALL_REDUCE, "1KiB..1MiB", "--ranks", "8", *ON), shortest),
    "a collective over ranks": ((*ALL_REDUCE, "1MiB", "--ranks", "2..16", *ON), shortest),
    "a collective over both": ((*ALL_REDUCE, "1KiB", "1MiB", "--ranks", "8..16", *ON), shortest),
    "a sweep": (
        ("sweep", "job.txt", *ON, "--over", "microbatches=1,2"),
        lambda answer: format_time(answer["points"][1]["step_time_s"]),
    ),
    "a sweep with points that do not fit": (
        ("sweep", "llama3-8b", *ON, "--over", "gpus=1:8:x2", "--over", "zero=0,3", "--gbs", "8"),
        lambda answer: format_time(min(point["step_time_s"] for point in answer["points"] if point["step_time_s"])),
    ),
    "a validation": (
        ("validate", "runs.csv", "--workers", "1", "--no-silicon"),
        lambda answer: format_percent(answer["mape"]),
    ),
    "a calibrated validation": (
        ("validate", "h200.csv", "--workers", "1", "--no-silicon", "--calibration", "my.yaml"),
        lambda answer: format_percent(answer["calibration"]["mean_absolute"]["step"]["after"]),
    ),
    "a workload's contents": (("inspect", "job.txt"), lambda answer: format_count(answer["world_size"])),
    "a table's contents": (
        ("inspect", TABLE),
        InSection("step", lambda answer: f"{len(answer['tables'][0]['rows'])} rows"),
    ),
    "a cluster": (
        ("inspect", CLUSTER),
        lambda answer: format_count(answer["nodes"] * answer["node"]["gpus"]),
    ),
    "a new calibration": (
        ("calibrate", "step.json", "calls.csv", "-o", "new.yaml"),
        InSection("families", lambda answer: answer["families"][0]["name"]),
    ),
    "a calibration": (("calibration", "show", "my.yaml"), lambda answer: format_count(answer["kernels"])),
    "a calibration's coverage": (
        ("calibration", "show", "my.yaml", "llama3-8b", "--gpus", "1", "--stack", "torch-eager", "--no-silicon"),
        InSection("coverage", lambda answer: format_percent(answer["coverage"]["shares"]["not_covered"])),
    ),
    "an explained workload": (("explain", "job.txt", *ON), step),
    "an explained run": (("explain", "run"), step),
    "an explained table": (("explain", TABLE), lambda answer: format_time(answer["tables"][0]["device_time_s"])),
    "explained traces": (("explain", "traces"), lambda answer: format_time(answer["summary"]["step_s"])),
    "a step without annotations": (("explain", "step.json"), lambda answer: format_time(answer["summary"]["step_s"])),
    "the difference of two traces": (
        ("explain", "traces/rank0.json", "traces/rank1.json", "--view", "diff"),
        lambda answer: f"{format_time(answer['before_step_s'])} → {format_time(answer['after_step_s'])}",
    ),
    "sequences under an op": (
        ("explain", "traces", "--view", "sequences", "--op", "mm"),
        InSection("sequences", lambda answer: format_time(answer["sequences"]["sequences"][0]["device_s"])),
    ),
    **{
        f"traces: {view}": (("explain", "traces", "--view", view), InSection(view.replace("breakdown", "device"), text))
        for view, text in {
            "breakdown": lambda answer: format_time(answer["temporal_breakdown"]["mean"]["idle_s"]),
            "overlap": lambda answer: format_time(answer["overlap"]["ranks"][0]["exposed_s"]),
            "idle": lambda answer: format_time(answer["idle"]["ranks"][0]["device"]["idle_s"]),
            "kernels": lambda answer: format_time(answer["kernels"]["kernels"][0]["total_s"]),
            "launches": lambda answer: format_time(answer["launches"]["ranks"][0]["delay"]["median"]),
            "queue": lambda answer: format_percent(answer["queues"]["queues"][0]["empty_share"]),
            "bandwidth": lambda answer: answer["memory_bandwidth"]["copies"][0]["kind"],
            "annotations": lambda answer: answer["annotations"]["annotations"][0]["name"],
            "stragglers": lambda answer: format_time(answer["stragglers"][0]["held_others_s"]),
            "critical-path": lambda answer: format_time(answer["critical_path"]["length_s"]),
            "steps": lambda answer: format_time(answer["steps"]["step_s"]),
        }.items()
    },
}
"""By name: the words of a command, and what of its JSON the page must show: the value of a key figure, or a text of a
section."""

_BLOCK = {"address": 1 << 46, "size": 5 << 20, "requested_size": 3 << 20, "state": "active_allocated", "frames": []}
_SIZES = {"total_size": 5 << 20, "allocated_size": 3 << 20, "active_size": 3 << 20, "requested_size": 3 << 20}
_SEGMENT = {"device": 0, "address": 1 << 46, "stream": 0, "segment_type": "large", **_SIZES, "blocks": [_BLOCK]}
SNAPSHOT = {"segments": [_SEGMENT], "device_traces": [[]], "allocator_settings": {}}

MISFITS = ("memory that does not fit",)
"""Cases whose command says by its exit code that nothing fits; it writes the page all the same."""


def write_traces(folder: Path) -> None:
    """Writes two ranks with three steps each of a gemm, an all-reduce next to it and a copy."""
    folder.mkdir()
    for rank in range(2):
        events: list[Any] = []
        for number in range(3):
            base, first = 1000.0 * number, 10 * number
            events.append(span("user_annotation", f"ProfilerStep#{number}", base, 1000))
            events.append(span("cpu_op", "aten::mm", base + 10, 30))
            for launch, at in enumerate((15, 20, 25)):
                name = "cudaMemcpyAsync" if launch == 2 else "cudaLaunchKernel"
                events.append(span("cuda_runtime", name, base + at, 2, correlation=first + launch))
            events.append(kernel("ampere_sgemm_128x64_nn", base + 30, 40 + 20 * rank, first))
            nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            events.append(kernel(nccl, base + 50, 100 - 20 * rank, first + 1, stream=20))
            where = {"pid": 0, "tid": 7, "device": 0, "stream": 7, "correlation": first + 2, "bytes": 4000}
            events.append(span("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", base + 200, 2, **where))
        devices = [{"id": 0, "name": "NVIDIA H200"}]
        others = {"distributedInfo": {"rank": rank, "world_size": 2}, "deviceProperties": devices}
        write(folder, document(events, **others), f"rank{rank}.json")


def write_page_inputs(folder: Path) -> None:
    """Writes what the cases read; they are run in this folder."""
    write_inputs(folder)
    write_traces(folder / "traces")
    foretrace.save(foretrace.open(folder / "job.txt").program(), folder / "job.foretrace")
    (folder / "ranks.txt").write_text("rank 0=node1 slot=0\nrank 1=node0 slot=0\n")
    (folder / "snapshot.json").write_text(json.dumps(SNAPSHOT))
    runs = (folder / "runs.csv").read_text()
    (folder / "h200.csv").write_text(runs.replace("A100-80GB SXM", "H200").replace("FP16", "BF16"))


def page_words(case: str, output: str) -> list[str]:
    """Returns the words of a case's command that writes its page and prints JSON."""
    words, _ = CASES[case]
    before = words.index("--") if "--" in words else len(words)
    return [*words[:before], "--html", output, "--json", *words[before:]]
