"""Workloads written in code, and a cluster whose prices can be worked out by hand.

A pass is its nanoseconds of computation, or (nanoseconds, collective, bytes):

    run([row("attention_layer", 100 * US, input_grad=(50 * US, "ALLREDUCE", 4096))], tp=2, all_gpus=2)

On `CLUSTER` someone has measured (`round_collectives.csv`) that a message of S bytes between two GPUs takes 11.8 µs +
S / 150 GB/s, an all-gather or reduce-scatter over two 11.8 µs + S/2 / 150 GB/s and an all-reduce over two 15.2 µs +
S / 150 GB/s.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from foretrace import Answer, Machine, Program, simulate
from foretrace.hardware.cluster import Cluster, Gpu, Nic, Node
from foretrace.inputs.aicb.format import Workload, parse_workload
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.aicb.program import lower_workload
from foretrace.program.check import check
from foretrace.program.columns import Collective, Phase, label
from foretrace.program.expand import expand

US = 1000
"""A microsecond in nanoseconds, as rows count."""

TRANSFER_20_US = 1_230_000
"""Bytes that take 11.8 + 8.2 = 20 µs from one GPU of `CLUSTER` to another."""
GATHER_20_US = 2 * TRANSFER_20_US
"""Bytes that two GPUs gather, or reduce and scatter, in 20 µs."""

_GPU = Gpu(
    name="round",
    title="A GPU of round numbers",
    vendor="nobody",
    architecture="none",
    memory_bytes=80e9,
    memory_bytes_per_s=1e12,
    peak_flops={"bf16": 1e15},
    links=8,
    link_bytes_per_s=200e9,
    pcie_bytes_per_s=50e9,
    compute_units=0,
    power_w=0.0,
)
_NODE = Node(
    name="round",
    title="A node of round numbers",
    gpu=_GPU,
    gpus=8,
    domain_gpus=8,
    switched=True,
    nic=Nic("round", "A NIC of round numbers", 50e9),
    nics=8,
)
CLUSTER = Cluster("round", "A cluster of round numbers", _NODE)
MEASURED = Path(__file__).parent / "round_collectives.csv"

Part = int | float | tuple[int | float, str, int]
"""One pass of a row."""

KEYS = ("tp", "ep", "pp", "vpp", "ga", "all_gpus", "mode", "pp_comm")
_WRITTEN = {"tp": "model_parallel_NPU_group"}


def row(name: str, forward: Part = 0, input_grad: Part = 0, weight_grad: Part = 0) -> str:
    """A line of a workload file."""
    columns: list[object] = [name, -1]
    for part in (forward, input_grad, weight_grad):
        columns += part if isinstance(part, tuple) else (part, "NONE", 0)
    return "\t".join(map(str, (*columns, 100)))


def text(rows: Iterable[str], *, declared: int | None = None, **header: int | float | None) -> str:
    """A workload file; header fields are named as in `Header`, and those that are None are left out."""
    assert set(header) <= set(KEYS), header
    lines = list(rows)
    fields = [f"{_WRITTEN.get(key, key)}: {header[key]}" for key in KEYS if header.get(key) is not None]
    first = " ".join(["HYBRID_TRANSFORMER_FWD_IN_BCKWD", *fields, "checkpoints: 0", "checkpoint_initiates: 0"])
    return "\n".join([first, str(len(lines) if declared is None else declared), *lines, ""])


def workload(
    rows: Iterable[str], *, name: str = "job.txt", declared: int | None = None, **header: int | float | None
) -> Workload:
    """A workload as it is read from such a file; one GPU and one microbatch unless the header says otherwise."""
    fields = {"tp": 1, "ep": 1, "pp": 1, "ga": 1, "all_gpus": 1} | header
    return parse_workload(text(rows, declared=declared, **fields).encode(), name)


def lowered(
    rows: Iterable[str],
    options: WorkloadOptions = WorkloadOptions(),  # noqa: B008
    **header: int | float | None,
) -> Program:
    """The program of such a file, checked as those of users are."""
    program = lower_workload(workload(rows, **header), options)
    check(program)
    return program


def run(
    rows: Iterable[str],
    options: WorkloadOptions = WorkloadOptions(),  # noqa: B008
    *,
    cluster: Cluster = CLUSTER,
    folded: bool = True,
    **header: int | float | None,
) -> Answer:
    """The answer for such a file."""
    program = lowered(rows, options, **header)
    measured = MEASURED if cluster is CLUSTER else None
    return simulate(program, Machine(cluster, collectives=measured, prices="model"), folded=folded, explain=False)


class Op(NamedTuple):
    """One op of a stage: computation has seconds and no axis, communication an axis and bytes."""

    name: str
    phase: str
    microbatch: int
    chunk: int
    seconds: float
    axis: str | None
    collective: str
    bytes: int


def listed(program: Program, stage: int = 0) -> list[Op]:
    """What a stage does, in the order of issue."""
    ops = expand(program)
    chosen = range(ops.start[stage], ops.start[stage + 1])
    names, microbatch, seconds = ops.names, ops.microbatch.tolist(), ops.floats("duration_s").tolist()
    phase, chunk, communicator, collective, size = (
        ops.ints(column).tolist() for column in ("phase", "chunk", "communicator", "collective", "bytes")
    )
    axes = [*(one.axis for one in program.communicators), None]
    return [
        Op(
            names[op],
            label(Phase(phase[op])),
            microbatch[op],
            chunk[op],
            0.0 if communicator[op] >= 0 else seconds[op],
            axes[communicator[op]],
            label(Collective(collective[op])),
            size[op],
        )
        for op in chosen
    ]


def messages(program: Program, word: str = "") -> list[str]:
    """What the diagnostics with a word say, each as `level where: message`."""
    return [f"{one.level} {one.where}: {one.message}" for one in program.diagnostics if word in one.message]


def actions(answer: Answer) -> dict[tuple[int, str, int], tuple[int, int]]:
    """Start and end in ns of every action ("forward", "backward.1" for chunk 1) and of every other op by its name, as
    `golden.reading.us` draws them."""
    graph, timeline = answer.timeline.graph, answer.timeline
    ops = graph.ops
    phase, chunk, microbatch = ops.ints("phase").tolist(), ops.ints("chunk").tolist(), ops.microbatch.tolist()
    spans: dict[tuple[int, str, int], tuple[int, int]] = {}
    for rank, number in enumerate(graph.classes.of_rank.tolist()):
        for node in range(graph.start[number], graph.start[number + 1]):
            op = int(graph.op[node])
            own = phase[op] in (Phase.NONE, Phase.OPTIMIZER)
            name = ops.names[op] if own else label(Phase(phase[op])) + (f".{chunk[op]}" if chunk[op] else "")
            start, end = (round(float(times[node]) * 1e9) for times in (timeline.start_s, timeline.end_s))
            low, high = spans.get((rank, name, microbatch[op]), (start, end))
            spans[rank, name, microbatch[op]] = min(low, start), max(high, end)
    return spans
