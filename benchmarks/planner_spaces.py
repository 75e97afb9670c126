"""Spaces and problems on which `benchmarks/planner.py` measures the planner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from foretrace import Machine, Model, Plan, PlanRequest, load_model
from foretrace.search.planner.plan_table import PlanTable
from foretrace.search.planner.space import Space, SpaceAxis
from foretrace.workload.nearest_plans import divisors

GPUS, BATCH, LAYERS = 4096, 3072, 96
CALCULON_EXECUTIONS = 238_568
"""Executions that Calculon counts with its own code for GPT-3 175B on 4,096 H100 and a batch of 3,072, without offload
tier and without overlap of tp and dp (`calculon llm-optimal-execution … -d`)."""
CALCULON_TIERS = 31_042
"""Those of them that differ in more than the network tiers that tp, pp and dp use, which is our rank order."""


def calculon_space() -> tuple[Model, Space]:
    """Returns Calculon's space for GPT-3 175B, axis by axis.

    Calculon lowers the batch where dp does not divide it, tries all microbatches below 1,024 sequences that divide what
    is left, tp and pp of up to 32 whatever the link domain, and chunks that divide the layers of a stage. It has no
    rule that microbatches fill the groups of an interleaved schedule; Megatron has.
    """
    model = load_model("gpt3-175b")
    sizes = (1, 2, 4, 8, 16, 32)
    recompute = (("none", None, None), ("selective", ("core_attn",), None), ("full", None, None))
    batches = tuple(sorted({BATCH // dp * dp for dp in divisors(GPUS) if dp <= BATCH}, reverse=True))
    axes = (
        SpaceAxis.of("tp", sizes),
        SpaceAxis.of("pp", sizes),
        SpaceAxis.of("gbs", batches, lambda choice, outer: choice[0] == _batch(outer)),
        SpaceAxis.of("vpp", divisors(LAYERS), lambda choice, outer: _divides_stage(choice[0], outer["pp"])),
        SpaceAxis.of("sequence_parallel", (False, True), lambda choice, outer: outer["tp"] > 1 or not choice[0]),
        SpaceAxis.of("zero", (0, 1), lambda choice, outer: _dp(outer) > 1 or not choice[0]),
        SpaceAxis(
            "recompute",
            ("recompute", "recompute_modules", "recompute_layers"),
            recompute,
        ),
        SpaceAxis.of(
            "mbs",
            [size for size in divisors(BATCH) if size < 1024],
            lambda choice, outer: _batch(outer) // _dp(outer) % choice[0] == 0,
        ),
    )
    base = Plan(GPUS, gbs=BATCH, seq_len=2048, stack="megatron-core")
    return model, Space(model, base, axes)


def _dp(outer: Any) -> int:
    return max(GPUS // (outer["tp"] * outer["pp"]), 1)


def _batch(outer: Any) -> int:
    return BATCH // _dp(outer) * _dp(outer)


def _divides_stage(chunks: int, stages: int) -> bool:
    return chunks == 1 if stages == 1 else LAYERS // stages % chunks == 0


def calculon_request() -> PlanRequest:
    """Returns the request for Calculon's space. Steps with fewer sequences count by their tokens."""
    return PlanRequest(calculon_space()[1].base, objective="tokens")


@dataclass(frozen=True, slots=True)
class Job:
    """A search by name."""

    name: str
    model: str
    cluster: str
    plan: Plan

    @property
    def words(self) -> list[str]:
        """The command that runs it."""
        sizes = ["--gpus", str(self.plan.gpus), "--gbs", str(self.plan.gbs), "--seq", str(self.plan.seq_len)]
        return ["plan", self.model, "--cluster", self.cluster, *sizes]


JOBS = (
    Job("GPT-3 175B, 4,096 H100", "gpt3-175b", "h100-dgx", Plan(4096, gbs=3072, seq_len=2048)),
    Job("Llama 3 70B, 512 H100", "llama3-70b", "h100-dgx", Plan(512, gbs=1024, seq_len=8192)),
    Job("DeepSeek-V3, 2,048 H800", "deepseek-v3", "h800-dgx", Plan(2048, gbs=15360, seq_len=4096)),
    Job("Llama 3.1 405B, 4,096 H100", "llama3.1-405b", "h100-dgx", Plan(4096, gbs=2048, seq_len=8192)),
)
"""Searches of the default space."""


@dataclass(frozen=True, slots=True)
class SmallProblem:
    """A space small enough to simulate all of it."""

    model: Model
    request: PlanRequest

    def __str__(self) -> str:
        return f"{self.model.name}[:{len(self.model.layers)}] {self.request.plan} {dict(self.request.axes)}"


SCHEDULES = "1f1b,interleaved-1f1b,gpipe,zb-h1,zb-v,interleaved-zb,looped-bfs"


def small_problems(count: int, seed: int = 0) -> Iterator[SmallProblem]:
    """Yields random small problems: dense models and models with experts, Megatron and FSDP, all schedules."""
    random = Random(seed)
    for _ in range(count):
        yield _small_problem(random)


def _small_problem(random: Random) -> SmallProblem:
    kind = random.choice(("dense", "experts", "fsdp", "schedules"))
    names = {"experts": ("mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b")}
    whole = load_model(random.choice(names.get(kind, ("llama3.2-1b", "llama3-8b", "qwen2.5-1.5b", "gpt2"))))
    layers = random.choice((4, 6, 8))
    model = replace(whole, layers=whole.layers[-layers:])
    gpus = random.choice((4, 8, 16))
    gbs, seq_len = gpus * random.choice((1, 2, 4)), random.choice((1024, 2048, 4096))
    plan = Plan(gpus, gbs=gbs, seq_len=seq_len, stack="fsdp" if kind == "fsdp" else "megatron-core")
    axes = {
        "tp": random.choice(("1", "2", "1,2", "1,4")),
        "cp": random.choice(("1", "1", "1,2")),
        "mbs": random.choice(("1", "1,2")),
        "recompute": random.choice(("none", "none,full")),
        "offload_optimizer": "off",
    }
    if kind == "fsdp":
        axes |= {"pp": "1", "cp_comm": random.choice(("p2p", "all_gather"))}
    else:
        axes |= {"zero": random.choice(("1", "0,1", "0,1,2")), "vpp": random.choice(("1", "1,2")), "cp_comm": "p2p"}
        axes["pp"] = random.choice(("1,2", "2,4", "1,2,4"))
    if kind == "schedules":
        axes |= {"schedule": SCHEDULES, "pp": "2,4", "vpp": "1,2", "tp": "1", "cp": "1", "zero": "1", "mbs": "1"}
    if kind == "experts":
        axes |= {"ep": random.choice(("1,2", "2,4")), "tp": "1", "etp": "1"}
    return SmallProblem(model, PlanRequest(plan, axes))


def law_tables(machine: Machine, rows: int, seed: int = 0) -> Iterator[tuple[Model, PlanTable]]:
    """Yields models, each with `rows` plans that can be launched or simulated, drawn from wide spaces."""
    from foretrace.search.planner.asked_axes import space_of

    random = Random(seed)
    both = {"cp": "1,2,4", "cp_comm": "all", "mbs": "1,2", "offload_optimizer": "on,off"}
    cases: list[tuple[str, Plan, dict[str, str]]] = [
        ("llama3-8b", Plan(64, gbs=128, seq_len=8192), {**both, "zero": "0,1,2,3"}),
        ("llama3.2-1b", Plan(32, gbs=64, seq_len=4096), {"schedule": SCHEDULES, "pp": "2,4", "vpp": "1,2", "cp": "1"}),
        ("mixtral-8x7b", Plan(64, gbs=128, seq_len=4096), {"mbs": "1,2", "cp": "1,2"}),
        ("deepseek-v2-lite", Plan(32, gbs=128, seq_len=4096), {"mbs": "1,2", "cp": "1"}),
        ("llama3-8b", Plan(32, gbs=64, seq_len=8192, stack="fsdp"), {"mbs": "1,2"}),
        ("gpt-oss-20b", Plan(32, gbs=64, seq_len=4096), {"mbs": "1,2", "cp": "1"}),
        ("llama3-8b", Plan(32, gbs=64, seq_len=4096, stack="torch-compile"), {"mbs": "1,2", "cp": "1"}),
    ]
    for name, plan, axes in cases:
        model = load_model(name)
        table = space_of(model, plan, machine.needed_cluster(), axes).enumerate().table
        chosen = sorted(random.sample(range(len(table)), min(rows, len(table))))
        yield model, PlanTable.of([table.plan(row) for row in chosen])
