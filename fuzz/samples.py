"""Makes the small valid inputs that are mutated: one or more for every reader, from texts and from Foretrace's writers.

Samples are a few hundred bytes to a few kilobytes, so that hundreds can be tried in a second. A sample is a folder: its
files by name. Larger real files are cut to size in `excerpt`, where they are at hand.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
SHARED: Final = Path(os.environ.get("FORETRACE_SHARED") or ROOT.parent / "shared")

if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))  # small traces and exports are written as the tests write them


@dataclass(frozen=True)
class Sample:
    """A valid input: files by name, and which of them are mutated (None: any)."""

    files: Mapping[str, bytes]
    mutated: tuple[str, ...] | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The files that are mutated."""
        return self.mutated or tuple(self.files)


def texts(**files: str) -> Sample:
    """Returns a sample of text files; `_` in a name stands for the dot of its suffix."""
    return Sample({name.replace("__", "/").replace("_", "."): text.encode() for name, text in files.items()})


def named(name: str, content: str | bytes) -> Sample:
    """Returns a sample of one file."""
    return Sample({name: content.encode() if isinstance(content, str) else content})


def written(write: Callable[[Path], object]) -> dict[str, bytes]:
    """Returns the files that a function writes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def excerpt(place: str, name: str, *, lines: int = 0) -> list[Sample]:
    """Returns the beginning of a real file of the checkout or of the shared folder; nothing where it is absent."""
    for folder in (ROOT, SHARED):
        path = folder / place
        if path.is_file():
            data = path.read_bytes()
            return [named(name, b"".join(data.splitlines(keepends=True)[:lines]) if lines else data)]
    return []


@cache
def kineto() -> list[Sample]:
    """Returns traces of the PyTorch profiler: two steps of one rank with shapes, plain and packed."""
    from kineto_files import document, kernel, small_step, span

    events: list[dict[str, Any]] = []
    for step in range(3):
        for event in small_step():
            moved = json.loads(json.dumps(event))
            moved["ts"] += 60 * step
            for place, key in ((moved, "id"), (moved.get("args", {}), "correlation")):
                if key in place:
                    place[key] += 10 * step
            if moved["name"].startswith("ProfilerStep"):
                moved["name"] = f"ProfilerStep#{3 + step}"
            events.append(moved)
        call = {"Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096, "dtype": "BFloat16"}
        group = {"Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
        events.append(span("cuda_runtime", "cudaLaunchKernel", 125 + 60 * step, 2, correlation=500 + step))
        events.append(kernel("ncclDevKernel_AllReduce_Sum", 128 + 60 * step, 9, 500 + step, stream=20, **call, **group))
    device = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 1 << 37, "numSms": 132}
    info = {"backend": "nccl", "rank": 0, "world_size": 2}
    text = json.dumps(document(events, deviceProperties=[device], distributedInfo=info)).encode()
    return [Sample({"trace.json": text}), Sample({"trace.json.gz": gzip.compress(text, 1, mtime=0)})]


@cache
def kineto_ranks() -> list[Sample]:
    """Returns the traces of two ranks that reduce gradients together."""
    from rank_traces import step, write_ranks

    files = written(lambda folder: write_ranks(folder, step((0, 1), slow=1), (0, 1), steps=2))
    return [Sample(files)]


@cache
def nsight() -> list[Sample]:
    """Returns an export of Nsight Systems with two steps."""
    from nsys_export import steps, write_export

    def write(folder: Path) -> None:
        with closing(sqlite3.connect(write_export(folder / "trace.sqlite", steps(2)))) as connection:
            connection.execute("PRAGMA page_size = 512")  # an eighth of the bytes
            connection.execute("VACUUM")

    return [Sample(written(write))]


@cache
def execution_trace() -> list[Sample]:
    """Returns an execution trace of PyTorch: two products and a collective."""
    tensor = [6, 7, 0, 32, 4, "cuda:0"]

    def node(number: int, name: str, inputs: list[Any], types: list[str], shapes: list[Any], **more: Any) -> Any:
        attributes = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "tid": 1, "op_schema": "", **more}
        return {
            "id": number,
            "name": name,
            "ctrl_deps": 1,
            "inputs": {"values": inputs, "shapes": shapes, "types": types},
            "outputs": {"values": [tensor], "shapes": [[8, 4]], "types": ["Tensor(float)"]},
            "attrs": [{"name": key, "type": "string", "value": value} for key, value in attributes.items()],
        }

    pair = ["Tensor(float)", "Tensor(float)"]
    call = {"collective_name": "allreduce", "dtype": "Float", "in_msg_nelems": 32, "out_msg_nelems": 32, "pg_size": 2}
    nodes = [
        node(1, "[pytorch|profiler|execution_trace|process]", [], [], []),
        node(5, "aten::mm", [tensor, tensor], pair, [[8, 4], [4, 2]]),
        node(6, "aten::add", [tensor, [1, 2], 0.5], [pair[0], "GenericList[Int,Int]", "Double"], [[8], [[], []], []]),
        node(7, "record_param_comms", [tensor], ["Tensor(float)"], [[8, 4]], pg_name="0", **call),
    ]  # fmt: skip
    document = {"schema": "1.1.1-chakra.0.0.4", "pid": 77, "time": "now", "start_ts": 1, "nodes": nodes}
    text = json.dumps(document).encode()
    return [Sample({"et.json": text}), Sample({"et.json.gz": gzip.compress(text, 1, mtime=0)})]


def _rank_line(rank: int, op: str, batch: int, start: float, took: float, subs: str = "") -> str:
    facts = f"stage_id=0,batch_id={batch},mg_state=steady,duration={took},description=None,group_kind=None"
    return f"rank:{rank}:{op}({facts},input__shape=None,input__dtype=None,timestamp={start},sub_operations=[{subs}])\n"


@cache
def rank_traces() -> list[Sample]:
    """Returns Megatron rank traces: two ranks of one stage, and the real excerpt of the examples."""
    sub = (
        "'trace_src_func=_reduce,duration=0.4,timestamp={0},input__shape=[8, 64],input__dtype=torch.float16,"
        "func_name=x,group=tp,comm_func=allreduce'"
    )
    files = {}
    for rank in (0, 1):
        lines = [_rank_line(rank, "get_batch", 0, 1001.0, 0.5)]
        for batch in (0, 1):
            at = 1010.0 + 30 * batch
            lines.append(_rank_line(rank, "forward_step", batch, at, 8.0, sub.format(at - 2)))
            lines.append(_rank_line(rank, "backward_step", batch, at + 15, 14.0, sub.format(at + 9)))
        lines.append(_rank_line(rank, "optimizer", 1, 1080.0, 5.0))
        files[f"wd2_tp2_pp1_numl4_bs1_GPT_rank{rank}.txt"] = "".join(lines).encode()
    first = next(iter(files))
    alone = {"rank0.txt": files[first]}
    return [Sample({f"run/{name}": data for name, data in files.items()}), Sample(alone)]


def _without(rows: bytes, keep: int) -> bytes:
    lines = rows.splitlines(keepends=True)
    return b"".join([lines[0], b"%d\n" % keep, *lines[2 : 2 + keep]])


@cache
def aicb() -> list[Sample]:
    """Returns workload files: the beginning of the example, and a small one of this writer."""
    samples = []
    example = ROOT / "examples" / "moe_128gpu.txt"
    if example.is_file():
        samples.append(named("w.txt", _without(example.read_bytes(), 24)))
    return [*samples, Sample(_generated("aicb", "w.txt"))]


@cache
def _generated(form: str, name: str) -> dict[str, bytes]:
    return _by_command("generate", ["--format", form, "-o"], name)


def _by_command(command: str, words: list[str], name: str) -> dict[str, bytes]:
    """Returns what a command writes under a name for a small job."""
    from fuzz.oracle import run_command

    job = "model: {based_on: gpt2, layers: 2}\nplan: {gpus: 4, tp: 2, pp: 2, gbs: 4, seq_len: 128}\ncluster: a100-dgx\n"

    def write(folder: Path) -> None:
        (folder / "job.yaml").write_text(job)
        done = run_command([command, str(folder / "job.yaml"), *words, str(folder / name)])
        (folder / "job.yaml").unlink()
        if done.code != 0:
            raise RuntimeError(f"a sample cannot be made: foretrace {command} {' '.join(words)}: {done.stderr}")

    return written(write)


@cache
def programs() -> list[Sample]:
    """Returns program files: a pipeline of a small model, and one written through the Python API."""
    return [Sample(_generated("program", "job.foretrace")), Sample(written(_small_program))]


def _small_program(folder: Path) -> None:
    from foretrace import Mesh, ProgramBuilder, Transfer, pipeline, save, schedule

    build = ProgramBuilder(Mesh(dp=2, pp=2), title="small", tokens_per_step=64.0)
    block = build.block("work")
    block.compute("work", 1e-3)

    pipeline(build, schedule("1f1b", 2, 2), lambda stage, action: block, Transfer(bytes=1024, duration_s=1e-5))  # noqa: ARG005
    save(build.program(), folder / "job.foretrace")


@cache
def answers() -> list[Sample]:
    """Returns a saved answer."""
    return [Sample(_by_command("predict", ["--save"], "job.answer"))]


def questions() -> list[Sample]:
    """Returns requests as the page of `foretrace serve` sends them, each next to the file that it may name."""
    plan = {"gpus": "4", "gbs": "4", "seq_len": "128"}
    machine = {"cluster": "a100-dgx"}
    asked: list[dict[str, Any]] = [
        {"input": {"model": "gpt2"}, "options": {**plan, "tp": "2"}, "machine": machine},
        {"input": {"model": "gpt2"}, "options": plan, "machine": machine, "scenario": {"what_if": ["compute=2x"]}},
        {"ask": "plan", "input": {"model": "gpt2"}, "options": plan, "machine": machine, "search": {"time_s": 0.1}},
        {"input": {"upload": "A" * 22}, "options": {"mbs": "2"}},
        {"ask": "explain", "input": {"upload": "A" * 22}},
        {"ask": "compare", "answers": ["A" * 22, "B" * 22]},
    ]
    job = {"job.yaml": JOB.encode()}
    return [Sample({"question.json": json.dumps(values).encode(), **job}, ("question.json",)) for values in asked]


TABLE_COLUMNS: Final = ("Name", "Self CPU", "CPU total", "Self CUDA", "CUDA total", "# of Calls")


@cache
def tables() -> list[Sample]:
    """Returns tables of the PyTorch profiler: a written one, and the rows of the example."""
    from table_files import write_times

    rows = [
        ("ProfilerStep*", 1e-4, 2e-2, 0.0, 1e-2),
        ("aten::mm", 1e-3, 2e-3, 4e-3, 4e-3),
        ("nccl:_all_gather_base", 0.0, 1e-3, 2e-3, 2e-3),
        ("aten::add_", 1e-4, 2e-4, 5e-4, 5e-4),
        ("cudaLaunchKernel", 2e-4, 2e-4, 0.0, 0.0),
    ]
    files = written(lambda folder: write_times(folder / "table.txt", rows))
    return [Sample(files), *excerpt("examples/moe_fairseq_profile.txt", "table.txt", lines=30)]


RUNS: Final = """id,model,layers,hidden,ffn_hidden,heads,vocab,seq_len,gpu,gpus,dtype,tp,pp,mbs,gbs,memory_gb,step_time_s,complete,family
a,GPT 22B,4,1024,4096,16,51200,512,A100-80GB SXM,8,FP16,8,1,4,4,12.5,0.142,A,one
b,gpt2,12,768,3072,12,50257,1024,H100,8,bf16,1,1,1,8,,0.2,A,two
"""  # fmt: skip # noqa: E501


@cache
def training_runs() -> list[Sample]:
    """Returns measured runs as CSV and as JSON lines."""
    line = {"name": "tiny", "seq": 256, "mbs": 4, "hidden": 256, "ffn": 512, "heads": 4, "kv": 4, "vocab": 1000}
    line |= {"layers": 2, "style": "llama", "recompute": "none", "head_dim": 64, "step_ms": 13.8, "peak_gb": 2.1}
    rows = "".join(json.dumps({**line, "mbs": size, "gpu": "H200", "gpus": 1, "ok": True}) + "\n" for size in (1, 4))
    return [named("runs.csv", RUNS), named("runs.jsonl", rows)]


CLUSTER: Final = """name: mine
node:
  gpu: {memory: 64GiB, memory_bandwidth: 2TB/s, bf16: 500TFLOPS}
  gpus: 4
  nic: 400Gbps
  nics: 4
nodes: 8
topology:
  kind: fat-tree
  leaf_ports: 16
  oversubscription: 1.5
  hop_latency: 600ns
  failed: [leaf 0 - spine 0]
"""


@cache
def clusters() -> list[Sample]:
    """Returns cluster files as YAML and JSON, and those of the examples."""
    plain = {"name": "mine", "node": {"gpu": "h100-sxm", "gpus": 8, "nic": "400Gbps", "nics": 8}, "nodes": 16}
    samples = [named("c.yaml", CLUSTER), named("c.json", json.dumps(plain)), named("c.yaml", "based_on: h100-dgx\n")]
    for name in ("h100_dragonfly", "h100_torus", "h100_hpn", "h100_failed_spine", "a100_2x8"):
        samples += excerpt(f"examples/clusters/{name}.yaml", "c.yaml")
    return samples


NETWORK: Final = """links:
  - {from: node 0 GPU 0, to: link switch 0, rate: 450GB/s}
  - {from: node 0 GPU 1, to: link switch 0, rate: 450GB/s}
  - {from: node 0 GPU 0, to: node 0 NIC 0, rate: 64GB/s, latency: 300ns}
  - {from: node 0 GPU 1, to: node 0 NIC 0, rate: 64GB/s, latency: 300ns}
  - {from: node 0 NIC 0, to: leaf 0, rate: 400Gbps, latency: 500ns}
  - {from: node 1 GPU 0, to: leaf 0, rate: 400Gbps}
  - {from: leaf 0, to: node 1 GPU 1, rate: 200Gbps}
"""
SIMAI_NETWORK: Final = """6 2 1 1 6 H100
4 5
0 4 2880Gbps 0.000025ms 0
1 4 2880Gbps 0.000025ms 0
2 5 400Gbps 0.0005ms 0
3 5 400Gbps 0.0005ms 0
0 5 400Gbps 0.0005ms 0
1 5 400Gbps 0.0005ms 0
"""


@cache
def networks() -> list[Sample]:
    """Returns a cluster whose network is written out link by link."""
    cluster = "node: {based_on: dgx-h100, gpus: 2, nics: 1}\nnodes: 2\ntopology: {kind: file, path: net.yaml}\n"
    return [Sample({"c.yaml": cluster.encode(), "net.yaml": NETWORK.encode()}, ("net.yaml",))]


@cache
def simai_networks() -> list[Sample]:
    """Returns a cluster whose network is a topology file of SimAI."""
    cluster = "node: {based_on: dgx-h100, gpus: 2, nics: 1}\nnodes: 2\ntopology: {kind: file, path: topo.txt}\n"
    return [Sample({"c.yaml": cluster.encode(), "topo.txt": SIMAI_NETWORK.encode()}, ("topo.txt",))]


@cache
def calibrations() -> list[Sample]:
    """Returns a calibration as it is written, one without hashes, and one of version 1, with its tables next to it."""
    import numpy as np

    from foretrace.cost.calibration import Calibration, FamilyFit, HostFit, MadeOf, StepFit, write_calibration
    from foretrace.cost.kernels.kernel_profile import KernelProfile
    from foretrace.cost.network.nccl_tests.aggregation import measurements_of
    from foretrace.cost.network.nccl_tests.records import Measurement
    from foretrace.program.columns import Collective
    from foretrace.program.kernels import Gemm, Stream

    def write(folder: Path) -> None:
        os.chdir(folder)
        times = np.array([1e-4, 2e-5])
        kernels = (Gemm(8192, 4096, 1024), Stream("add", 2**20, 2**19))
        write_calibration(
            Calibration(
                "my.yaml",
                "h200-sxm",
                "NVIDIA H200",
                {"torch": "2.11.0"},
                (MadeOf("step.json", "trace", kernels=2, step_s=0.125, busy=0.5, slower=1.25, products=3, flops=1e8),),
                KernelProfile({"gpu": "NVIDIA H200"}, kernels, times, 2 * times, 0 * times, 0 * times),
                measurements_of([Measurement(Collective.ALL_REDUCE, 8, 1, 1 << 20, 4e-5, "log", 1)]),
                (FamilyFit("gemm bf16 tn", 1, 0.9, 0.85, 1.1, 0.05),),
                HostFit(3.1e-5, 1300),
                StepFit(1.02, 4, 0.01, 0.03),
            )
        )

    before = Path.cwd()
    try:
        bound = written(write)["my.yaml"]
    finally:
        os.chdir(before)
    free = b"".join(line for line in bound.splitlines(keepends=True) if not line.startswith(b"sha256"))
    first = "calibration: 1\ngpu: h200-sxm\nkernels: my.profile\ncollectives: my.csv\n"
    files = {"my.yaml": first.encode(), "my.profile": kernel_profiles()[0].files["gpu.profile"]}
    files["my.csv"] = NCCL_TESTS_TABLE.encode()
    return [named("my.yaml", bound), named("my.yaml", free), Sample(files)]


@cache
def kernel_profiles() -> list[Sample]:
    """Returns a table of measured kernels."""
    rows = "gemm m=8192 n=4096 k=1024\t1e-4\t1.25e-4\t1650\t690\n"
    rows += "stream name=add read=67108864 write=33554432\t3e-5\t4e-5\t1600\t600\n"
    return [named("gpu.profile", f"# foretrace kernel profile: 1\n# gpu: NVIDIA H200\n{rows}")]


@cache
def hf_configs() -> list[Sample]:
    """Returns config.json files of a dense model, a mixture of experts, and one with latent attention."""
    dense = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8}
    dense |= {"num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 512}
    dense |= {"tie_word_embeddings": False, "hidden_act": "silu", "rope_scaling": None}
    experts = {**dense, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 32}
    experts |= {"moe_intermediate_size": 128, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
    latent = {**dense, "model_type": "deepseek_v3", "num_key_value_heads": 8, "q_lora_rank": 64, "kv_lora_rank": 32}
    latent |= {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "n_group": 1}
    latent |= {"moe_intermediate_size": 64, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    return [named("config.json", json.dumps(config, indent=1)) for config in (dense, experts, latent)]


JOB: Final = """model: {based_on: gpt2, layers: 4}
plan:
  gpus: 8
  tp: 2
  pp: 2
  mbs: 1
  gbs: 8
  seq_len: 256
  sequence_parallel: yes
  recompute: full
  stage_layers: [2, 2]
  schedule: 1f1b
  zero: 1
cluster: a100-dgx
"""
OWN_MODEL: Final = """model:
  name: mine
  hidden: 256
  layers: 4
  attention: {heads: 8, kv_heads: 2}
  mlp: {ffn: 512}
  vocab: 1000
  seq_len: 512
plan: {gpus: 2, gbs: 4, routing: 1.2x}
cluster: h100-dgx
"""


@cache
def jobs() -> list[Sample]:
    """Returns job files: a preset with a plan, and a model written out."""
    return [named("job.yaml", JOB), named("job.yaml", OWN_MODEL)]


@cache
def placements() -> list[Sample]:
    """Returns the kinds of placement files: YAML, JSON, rankfile, hostfile."""
    listed = "hosts:\n  - name: n0\n    ranks: [0, 3]\n  - {name: n1, ranks: 1-2}\n"
    plain = '[{"name": "n0", "ranks": [0, 3]}, {"name": "n1", "ranks": [1, 2]}]'
    ranks = "rank 0=n0 slot=0\nrank 1=n1 slot=0 # spare\n\nrank 3=n0 slot=1\nrank 2=n1 slot=1\n"
    hosts = "# cluster\nn0 slots=2\nn1 slots=2\n"
    return [named("p.yaml", listed), named("p.json", plain), named("p", ranks), named("p", hosts)]


@cache
def snapshots() -> list[Sample]:
    """Returns memory snapshots of PyTorch, as pickle and as JSON."""
    frames = [{"filename": "model.py", "name": "forward", "line": 7}]
    sizes = dict.fromkeys(("allocated_size", "active_size", "requested_size"), 8 << 20)
    block = {"address": 1 << 46, "size": 20 << 20, "requested_size": 8 << 20, "state": "inactive", "frames": frames}
    segment = {"device": 0, "address": 1 << 46, "stream": 0, "total_size": 20 << 20, **sizes, "segment_type": "large"}
    segment |= {"frames": [], "blocks": [block]}
    actions = (("segment_alloc", 20), ("alloc", 8), ("alloc", 10), ("free_requested", 10), ("free_completed", 10))
    events = [
        {
            "action": name,
            "addr": (1 << 46) + at,
            "size": size << 20,
            "stream": 0,
            "time_us": 10**6 + at,
            "frames": frames,
        }
        for at, (name, size) in enumerate(actions)
    ]
    document = {"segments": [segment], "device_traces": [events, []], "allocator_settings": {}}
    return [
        named("snapshot.json", json.dumps(document)),
        named("snapshot.pickle", pickle.dumps(document, 4)),
        named("snapshot.pickle", pickle.dumps(document, 2)),
    ]


NCCL_LOG: Final = """NCCL version 2.21.5+cuda12.4
n1:10:20 [0] NCCL INFO ncclCommInitRank comm 0xaa rank 0 nranks 16 cudaDev 0 busId 18000 - Init START
n1:10:20 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 6, bw 40.000000/20.000000, type NVL/PIX, sameChannels 1
n1:10:20 [0] NCCL INFO Pattern 1, crossNic 0, nChannels 6, bw 48.000000/20.000000, type NVL/PIX, sameChannels 1
n1:10:20 [0] NCCL INFO comm 0xaa rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
n1:10:20 [0] NCCL INFO 12 coll channels, 12 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer
n1:10:20 [0] NCCL INFO ncclCommInitRank comm 0xaa rank 0 nranks 16 cudaDev 0 busId 18000 - Init COMPLETE
n1:10:10 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..11}
n1:10:10 [0] NCCL INFO NCCL_ALGO set by environment to ring
"""
NCCL_GRAPH: Final = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="30" speedinter="12" typeintra="NVL" typeinter="PIX">
    <channel><net dev="0"/>{gpus}<net dev="0"/></channel>
  </graph>
  <graph id="1" pattern="3" crossnic="0" nchannels="1" speedintra="20" speedinter="6" typeintra="NVL" typeinter="PIX">
    <channel><net dev="0"/>{gpus}<net dev="0"/></channel>
  </graph>
</graphs>
""".format(gpus="".join(f'<gpu dev="{number}"/>' for number in range(8)))
NCCL_SYSTEM: Final = """<system version="1"><cpu numaid="0">
  <pci busid="1" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
    <gpu dev="0" sm="90" rank="0"><nvlink target="2" count="18" tclass="0x068000"/></gpu>
  </pci>
  <pci busid="3" class="0x020000"><nic><net name="mlx5_0" dev="0" speed="200000"/></nic></pci>
</cpu></system>
"""
NCCL_TESTS: Final = """# nThread 1 nGpus 1 minBytes 1024 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid  100 on host-0 device  0 [0x00] NVIDIA H100
#  Rank  1 Group  0 Pid  101 on host-0 device  1 [0x00] NVIDIA H100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    20.50    0.05    0.05      0    20.10    0.05    0.05      0
     1048576        262144     float     sum      -1    60.00   17.48   17.48      0    59.10   17.74   17.74      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 8.77
"""
NCCL_TESTS_TABLE: Final = """collective,gpus,nodes,size_bytes,time_us
all_reduce,8,1,1048576,35.0
all_reduce,8,1,16777216,115.0
all_gather,8,1,1048576,25.0
"""


@cache
def nccl_logs() -> list[Sample]:
    """Returns a debug log of NCCL."""
    return [named("nccl.log", NCCL_LOG)]


@cache
def nccl_xml() -> list[Sample]:
    """Returns NCCL's dumps of its graph and of the system."""
    return [named("nccl.xml", NCCL_GRAPH), named("nccl.xml", NCCL_SYSTEM)]


@cache
def nccl_tests() -> list[Sample]:
    """Returns a log of nccl-tests and a table of measured collectives."""
    return [named("m.log", NCCL_TESTS), named("m.csv", NCCL_TESTS_TABLE)]


RATIOS: Final = """Size,1 Node(NVLinkx),2Node-16GPU(NIC ),4Node-32GPU(NIC),8Node-64GPU(NIC),16Node-128GPU(NIC),32Node-256GPU(NIC),64Node-512GPU(NIC),128Node-1024GPU(NIC),Multi 16,Multi 32,Muiti 64,Multi (NIC)
16777216,0.45,0.32,0.24,0.13,0.05,0.044,0.021,0.0087,0.86,0.86,0.77,
268435456,0.73,0.85,0.77,0.69,0.57,0.387,0.209,0.1027,0.94,0.93,0.91,0.9
4294967296,0.79,0.94,0.95,0.93,0.88,0.8,0.7,0.5,0.96,0.96,0.95,0.95
"""  # fmt: skip # noqa: E501


@cache
def ratio_tables() -> list[Sample]:
    """Returns SimAI's three tables with a workload."""
    tables = {f"tables/{name}_ratio.csv": RATIOS.encode() for name in ("nvlink", "nic", "ata")}
    return [Sample({**tables, **aicb()[0].files}, tuple(tables))]


@cache
def scripts() -> list[Sample]:
    """Returns a training script; it is never run, since no command line states the number of its GPUs."""
    return [Sample({"train.py": b"import torch\n\nraise SystemExit\n"})]


@cache
def routings() -> list[Sample]:
    """Returns a routing file: a factor for each layer."""
    factors = b"# busiest over mean\n1.2\n1.5x\n"
    return [Sample({**hf_configs()[1].files, "routing.txt": factors}, ("routing.txt",))]


STAGE_PLAN: Final = "stage:0:forward_step(batch_id=0,chunk=0)\nstage:1:backward_step(batch_id=0,chunk=0)\n"

MEGATRON: Final = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
MODEL_ARGS=(
    --num-layers 4 --hidden-size 256 --num-attention-heads 8 # small
    --ffn-hidden-size 1024 --max-position-embeddings 512 --seq-length 512 --vocab-size 1000
    --num-experts 8 --moe-router-topk 2 --moe-layer-freq "([0]*2+[1]*2)"
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py ${MODEL_ARGS[@]} \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 \\
    --global-batch-size 16 --bf16 --use-distributed-optimizer --recompute-granularity selective 2>&1 | tee log
"""
BRIDGE: Final = """python scripts/training/run_recipe.py --mode pretrain model.num_layers=4 model.hidden_size=256 \\
  model.ffn_hidden_size=1024 model.num_attention_heads=8 model.num_query_groups=2 model.gated_linear_unit=true \\
  model.vocab_size=1000 model.position_embedding_type=rope dataset.seq_length=512 \\
  train.micro_batch_size=1 'model.recompute_modules=[mlp, core_attn]' \\
  model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=2 mixed_precision=bf16_mixed
"""
TITAN: Final = """[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]
[training]
local_batch_size = 2
seq_len = 8192
compile = true
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 4
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
TITAN_COMMAND: Final = """torchrun --nproc_per_node=8 --nnodes 2 -m torchtitan.train \\
  --module llama3 --config llama3_8b \\
  --parallelism.tensor_parallel_degree 4 --training.local_batch_size 2 --training.seq_len=4096
"""


@cache
def launches() -> list[Sample]:
    """Returns launch files of Megatron-LM, Megatron-Bridge, torchtitan and DeepSpeed."""
    config = {"train_batch_size": 512, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    config |= {"zero_optimization": {"stage": 3, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}}}
    config |= {"bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
    script = "deepspeed --num_gpus 8 --num_nodes 4 train.py --deepspeed ds_config.json\n"
    return [
        named("train.sh", MEGATRON),
        named("train.sh", BRIDGE),
        named("train.toml", TITAN),
        named("train.sh", TITAN_COMMAND),
        named("ds_config.json", json.dumps(config, indent=1)),
        Sample({"train.sh": script.encode(), "ds_config.json": json.dumps(config, indent=1).encode()}),
    ]


REAL: Final[dict[str, tuple[tuple[str, str, int], ...]]] = {
    "kineto": (
        ("data/kineto/amd_trace_mi250_minitoy_train_ROCm6_2_kineto.json.gz", "trace.json.gz", 0),
        ("data/kineto/critical_path_cuda_event_sync_multi_stream_event_sync_trace.json.gz", "trace.json.gz", 0),
        ("data/kineto/triton_example_triton_example.json.gz", "trace.json.gz", 0),
    ),
    "execution-trace": (("data/kineto/execution_trace_benchmark_simple_add_et.json.gz", "et.json.gz", 0),),
    "megatron-trace": (
        ("examples/traces/gpt13b_real_rank0.txt", "rank0.txt", 0),
        ("examples/traces/moe_ex_situ_rank2.txt", "rank2.txt", 0),
    ),
    "nccl-tests": (
        ("data/collectives/a100_40g_ib_1to256/nccl_8.log", "m.log", 0),
        ("data/collectives/a100_2x8/allreduce_8gpu_20250820_200910.csv", "m.csv", 0),
    ),
    "torch-table": (("data/h200/tinyllama_mbs4.table.txt", "table.txt", 60),),
    "training-runs": (
        ("benchmarks/truth/korthikanti.csv", "runs.csv", 2),
        ("data/runs/training_steps_dev.csv", "runs.csv", 3),
        ("benchmarks/truth/h200_memory.jsonl", "runs.jsonl", 2),
    ),
}
"""Real files of the checkout and of the shared folder, as which name and how many lines (0: all)."""


def real_samples(target: str) -> list[Sample]:
    """Returns the real files of a target that are at hand; says which are not."""
    samples = []
    for place, name, lines in REAL.get(target, ()):
        at_hand = excerpt(place, name, lines=lines)
        if not at_hand:
            print(f"not at hand: {place}; set FORETRACE_SHARED to a folder that has it")
        samples += at_hand
    return samples
