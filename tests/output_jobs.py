"""A small job for every output of every command, to be run where writing fails or is interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import foretrace
from recorded_steps import trace_file

OUT: Final = "OUT"
"""Stands for the output among the words of a job."""

_ON = ("--cluster", "h100-dgx", "--no-silicon")
_MODEL = ("gpt2", "--gpus", "2", "--gbs", "2", *_ON)
_FEW_PLANS = ("--tp", "1", "--pp", "1", "--mbs", "1")
_SIMAI = ("--compat", "simai", "--simai-tables", ".", "--csv", OUT, "--", "-g", "2", "-g_p_s", "8", "-n_p_s", "8")

JOBS: Final[dict[tuple[str, str], tuple[str, tuple[str, ...]]]] = {
    ("predict", "--html"): ("out.html", (*_MODEL, "--html", OUT)),
    ("predict", "--output"): ("out.json", (*_MODEL, "-o", OUT)),
    ("predict", "--perfetto"): ("out.pftrace", (*_MODEL, "--perfetto", OUT)),
    ("predict", "--traces"): ("traces", (*_MODEL, "--traces", OUT)),
    ("predict", "--heatmap"): ("out.svg", (*_MODEL, "--heatmap", OUT)),
    ("predict", "--save"): ("out.answer", (*_MODEL, "--save", OUT)),
    ("plan", "--html"): ("out.html", (*_MODEL, *_FEW_PLANS, "--html", OUT)),
    ("plan", "--output"): ("out.json", (*_MODEL, *_FEW_PLANS, "-o", OUT)),
    ("plan", "--plot"): ("out.svg", (*_MODEL, *_FEW_PLANS, "--plot", OUT)),
    ("memory", "--html"): ("out.html", (*_MODEL, "--html", OUT)),
    ("memory", "--output"): ("out.json", (*_MODEL, "-o", OUT)),
    ("memory", "--plot"): ("out.svg", (*_MODEL, "--plot", OUT)),
    ("simulate", "--html"): ("out.html", ("job.txt", *_ON, "--html", OUT)),
    ("simulate", "--output"): ("out.json", ("job.txt", *_ON, "-o", OUT)),
    ("simulate", "--perfetto"): ("out.pftrace.gz", ("job.txt", *_ON, "--perfetto", OUT)),
    ("simulate", "--traces"): ("traces", ("job.txt", *_ON, "--traces", OUT)),
    ("simulate", "--heatmap"): ("out.svg", ("job.txt", *_ON, "--heatmap", OUT)),
    ("simulate", "--save"): ("out.answer", ("job.txt", *_ON, "--save", OUT)),
    ("simulate", "--csv"): ("out.csv", ("job.txt", *_SIMAI)),
    ("sweep", "--html"): ("out.html", ("job.txt", *_ON, "--over", "microbatches=1,2", "--html", OUT)),
    ("sweep", "--output"): ("out.json", ("job.txt", *_ON, "--over", "microbatches=1,2", "-o", OUT)),
    ("sweep", "--csv"): ("out.csv", ("job.txt", *_ON, "--over", "microbatches=1,2", "--csv", OUT)),
    ("sweep", "--plot"): ("out.svg", ("job.txt", *_ON, "--over", "microbatches=1,2", "--plot", OUT)),
    ("network", "--html"): ("out.html", ("all-reduce", "1MiB", "2MiB", "--ranks", "8", *_ON, "--html", OUT)),
    ("network", "--output"): ("out.json", ("all-reduce", "1MiB", "--ranks", "8", *_ON, "-o", OUT)),
    ("network", "--plot"): ("out.svg", ("all-reduce", "1MiB", "2MiB", "--ranks", "8", *_ON, "--plot", OUT)),
    ("network", "--heatmap"): (
        "out.svg",
        ("all-reduce", "1MiB", "--ranks", "8", *_ON, "--network", "flow", "--heatmap", OUT),
    ),
    ("compare", "--html"): ("out.html", (*_MODEL, "--with", "gbs=4", "--html", OUT)),
    ("compare", "--output"): ("out.json", (*_MODEL, "--with", "gbs=4", "-o", OUT)),
    ("compare", "--perfetto"): ("out.pftrace", (*_MODEL, "--with", "gbs=4", "--perfetto", OUT)),
    ("explain", "--html"): ("out.html", ("step.json", "--html", OUT)),
    ("explain", "--output"): ("out.json", ("step.json", "-o", OUT)),
    ("explain", "--plot"): ("out.svg", ("step.json", "--plot", OUT)),
    ("explain", "--perfetto"): ("out.pftrace", ("run", "--perfetto", OUT)),
    ("explain", "--traces"): ("traces", ("job.txt", *_ON, "--traces", OUT)),
    ("explain", "--heatmap"): ("out.svg", ("job.txt", *_ON, "--heatmap", OUT)),
    ("explain", "--save"): ("out.answer", ("job.txt", *_ON, "--save", OUT)),
    ("validate", "--html"): ("out.html", ("runs.csv", "--workers", "1", "--no-silicon", "--html", OUT)),
    ("validate", "--output"): ("out.json", ("runs.csv", "--workers", "1", "--no-silicon", "-o", OUT)),
    ("validate", "--svg"): ("out.svg", ("runs.csv", "--workers", "1", "--no-silicon", "--svg", OUT)),
    ("generate", "--output"): ("out.txt", (*_MODEL, "-o", OUT)),
    ("generate", "--format program"): ("out.foretrace", (*_MODEL, "--format", "program", "-o", OUT)),
    ("generate", "--format megatron-trace"): ("traces", (*_MODEL, "--format", "megatron-trace", "-o", OUT)),
    ("generate", "--format launch"): (
        "run.sh",
        (*_MODEL, "--stack", "torch-eager", "--format", "launch", "--framework", "deepspeed", "-o", OUT),
    ),
    ("report", "--output"): ("out.html", ("job.answer", "-o", OUT)),
    ("init", "--output"): ("out.yaml", ("--model", "gpt2", "--force", "-o", OUT)),
    ("inspect", "--html"): ("out.html", ("job.txt", "--html", OUT)),
    ("inspect", "--output"): ("out.json", ("job.txt", "-o", OUT)),
    ("calibrate", "--html"): ("out.html", ("step.json", "calls.csv", "-o", "new.yaml", "--html", OUT)),
    ("calibrate", "--out"): ("out.yaml", ("step.json", "calls.csv", "-o", OUT)),
    ("calibration", "--html"): ("out.html", ("show", "my.yaml", "--html", OUT)),
    ("calibration", "--output"): ("out.json", ("show", "my.yaml", "-o", OUT)),
    ("show", "--simai-topology"): ("out.topo", ("h100-dgx", "--nodes", "2", "--simai-topology", OUT)),
}
"""By command and option, or format: the name of the output, and the words of the command."""

NOT_RUN: Final = {("measure", "--out"), ("trace", "--output")}
"""Outputs that need a GPU, or PyTorch."""

_SIZES = "layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,gpu,gpus,dtype,tp,mbs,gbs,recompute"
_RUN = "GPT 22B,48,6144,24576,64,64,51200,2048,A100-80GB SXM,8,FP16,8,4,4,full"
_CALLS = "collective,gpus,nodes,bytes,time_us\nall_reduce,8,1,1048576,400\nall_reduce,8,1,1073741824,9000\n"
_OP = (
    "rank:{rank}:{name}(stage_id=0,batch_id=0,mg_state=steady,duration=3.5,description=None,group_kind=None,"
    "input__shape=None,input__dtype=None,timestamp={end},sub_operations=[])\n"
)
_WORKLOAD = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 2 ga: 1 all_gpus: 2 \
checkpoints: 0 checkpoint_initiates: 0
3
grad_norm\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLREDUCE\t100000\t100
layer\t-1\t10000\tALLREDUCE\t1000000\t10000\tALLREDUCE\t1000000\t10000\tNONE\t0\t100
layer\t-1\t10000\tALLREDUCE\t1000000\t10000\tALLREDUCE\t1000000\t10000\tNONE\t0\t100
"""


def write_inputs(folder: Path) -> None:
    """Writes what the jobs read; they are run in this folder."""
    trace_file(folder)
    (folder / "job.txt").write_text(_WORKLOAD)
    foretrace.simulate(folder / "job.txt", "h100-dgx").save(folder / "job.answer")
    (folder / "calls.csv").write_text(_CALLS)
    (folder / "runs.csv").write_text(f"id,model,{_SIZES},step_time_s,complete,family\ngood,{_RUN},1.42,A,one\n")
    (folder / "my.yaml").write_text("calibration: 1\ngpu: h200-sxm\nhost: {launch_s: 1.0e-6, launches: 100}\n")
    (folder / "run").mkdir(exist_ok=True)
    for rank in range(2):
        ops = (("forward_step", 1e9 + 3.5), ("backward_step", 1e9 + 7))
        text = "".join(_OP.format(rank=rank, name=name, end=end) for name, end in ops)
        (folder / "run" / f"wd2_tp1_pp1_rank{rank}_20000101000000.txt").write_text(text)
    row = ",".join(["1.0"] * 10)
    for name in ("nvlink", "nic", "ata"):
        (folder / f"{name}_ratio.csv").write_text(f"size,{row}\n1,{row}\n1000000000000,{row}\n")


def words_of(command: str, words: tuple[str, ...], output: str) -> list[str]:
    """Returns the words of a command that writes to `output`."""
    return [command, *(output if word == OUT else word for word in words)]
