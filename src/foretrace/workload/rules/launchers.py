"""Declares which plans the launcher of each stack can express: the values of fields, and rules between them.

Foretrace simulates more than any launcher offers, such as DualPipe on Megatron-core. A search is within a launcher
unless it is asked for more; plans beyond it are hypothetical and have no launch arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from foretrace.basics.mesh import DEFAULT_ORDER
from foretrace.workload.rules.constraint import Constraint
from foretrace.workload.rules.sizes import Flag, JobSizes, PlanSizes, implies, negated
from foretrace.workload.stack import Stack

_OFF: Final = (False,)
_EITHER: Final = (False, True)
_STACK: Final = ("stack", "zero")


@dataclass(frozen=True, slots=True)
class Launcher:
    """What the launcher of a stack can express.

    Attributes:
        title: The scripts that start a run.
        values: The values that a field of a plan may have. Fields that are not named may have any.
        uneven_stages: Whether stages may differ in their number of layers.
        splits_sequences: Whether tp always comes with sequence parallelism.
        runs_megatron: Whether it starts Megatron-core, as it is today.
        sources: Where these facts come from.
    """

    title: str
    values: Mapping[str, tuple[Any, ...]]
    uneven_stages: bool
    sources: tuple[str, ...]
    splits_sequences: bool = False
    runs_megatron: bool = False

    def offers(self, field: str, value: Any) -> bool:
        """Returns whether a field may have a value; None, which leaves the choice to the stack, always may be."""
        return value is None or field not in self.values or value in self.values[field]


_MEGATRON: Final = Launcher(
    "Megatron-LM and Megatron-Bridge",
    {
        "schedule": ("1f1b", "interleaved-1f1b"),
        "cp_comm": ("p2p", "all_gather", "a2a"),
        "dispatcher": ("alltoall", "deepep", "hybridep"),
        "rank_order": (DEFAULT_ORDER, "tp-cp-ep-pp-dp"),
        "pp_overlap": _OFF,
    },
    uneven_stages=True,
    sources=(
        "schedules: megatron/core/pipeline_parallel/schedules.py, get_forward_backward_func",
        "cp_comm: megatron/training/arguments.py, --cp-comm-type",
        "dispatchers: transformer_config.py, moe_token_dispatcher_type and moe_flex_dispatcher_backend",
        "rank order: arguments.py, --use-tp-pp-dp-mapping",
        "transfers of 1F1B: arguments.py sets overlap_p2p_comm to False without the interleaved schedule",
        "stages: pipeline_parallel_layer_layout.py, --pipeline-model-parallel-layout",
        "ZeRO-2 and -3: megatron/core/distributed/fsdp, data_parallel_sharding_strategy",
    ),
    runs_megatron=True,
)

_MEGATRON_2021: Final = Launcher(
    "Megatron-LM",
    {
        "schedule": ("1f1b", "interleaved-1f1b"),
        "cp": (1,),
        "ep": (1,),
        "etp": (1,),
        "dispatcher": ("alltoall",),
        "zero": (0, 1),
        "rank_order": ("tp-cp-ep-dp-pp",),
        **dict.fromkeys(("grad_overlap", "param_overlap", "tp_overlap", "moe_overlap", "pp_overlap"), _OFF),
        "offload_optimizer": _OFF,
        "offload_layers": (0,),
        "offload_modules": ((),),
    },
    uneven_stages=False,
    sources=(
        "schedules: Megatron-LM v2.5, megatron/schedules.py",
        "distributed optimizer: Megatron-LM v3.0, --use-distributed-optimizer; no overlap",
        "layers: megatron/model/transformer.py asserts that pp divides them",
    ),
)

_DEEPSPEED_2021: Final = Launcher(
    "DeepSpeed with Megatron-LM",
    {
        **_MEGATRON_2021.values,
        "pp": (1,),
        "vpp": (1,),
        "zero": (3,),
    },
    uneven_stages=False,
    sources=("DeepSpeedExamples, Megatron-LM-v1.1.5-ZeRO3: tensor parallelism and ZeRO-3",),
)

_TORCHTITAN: Final = Launcher(
    "torchtitan",
    {
        "schedule": ("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs", "interleaved-zb", "zb-v", "dualpipe-v"),
        "cp_comm": ("all_gather", "p2p"),
        "dispatcher": ("alltoall", "deepep", "hybridep"),
        "zero": (0, 2, 3),
        "rank_order": (DEFAULT_ORDER,),
        "recompute_layers": (None,),
        **dict.fromkeys(("tp_overlap", "moe_overlap", "pp_overlap", "offload_optimizer"), _OFF),
        "offload_layers": (0,),
        "offload_modules": ((),),
    },
    uneven_stages=True,
    sources=(
        "schedules: torch/distributed/pipelining/schedules.py, get_schedule_class",
        "cp_comm: torchtitan, context_parallel_rotate_method (alltoall passes keys on around a ring)",
        "tp: torchtitan/models/llama3/parallelize.py always applies SequenceParallel to norms",
        "zero: data_parallel_replicate_degree and _shard_degree, fsdp_reshard_after_forward",
        "dispatchers: torchtitan/config, expert_parallel_comm_backend",
        "CPU offload moves parameters and gradients too, which a plan cannot say",
    ),
    splits_sequences=True,
)

_COMPOSER: Final = Launcher(
    "Composer",
    {
        **dict.fromkeys(("tp", "cp", "pp", "vpp", "ep", "etp"), (1,)),
        "zero": (2, 3),
        "rank_order": (DEFAULT_ORDER,),
        "recompute_layers": (None,),
        **dict.fromkeys(("tp_overlap", "moe_overlap", "pp_overlap", "offload_optimizer"), _OFF),
        "offload_layers": (0,),
        "offload_modules": ((),),
    },
    uneven_stages=False,
    sources=("llmfoundry and composer/distributed/dist_strategy.py: FSDP1, sharding_strategy",),
)

_PYTORCH: Final = replace(
    _TORCHTITAN,
    title="a script of PyTorch's own parts",
    values={
        **_TORCHTITAN.values,
        "dispatcher": ("alltoall",),
        "zero": (0, 1, 2, 3),
    },
    splits_sequences=False,
    sources=(
        *_TORCHTITAN.sources[:1],
        "ZeRO: torch.distributed.optim.ZeroRedundancyOptimizer, and FSDP",
        "cp: torch/distributed/tensor/experimental/_attention.py",
    ),
)

LAUNCHERS: Final[dict[str, Launcher]] = {
    "megatron-core": _MEGATRON,
    "megatron-bridge": _MEGATRON,
    "megatron-2021": _MEGATRON_2021,
    "deepspeed-2021": _DEEPSPEED_2021,
    "fsdp": _TORCHTITAN,
    # Asynchronous tensor parallelism is a pass of torch.compile (enable_async_tensor_parallel).
    "fsdp-compile": replace(_TORCHTITAN, values={**_TORCHTITAN.values, "tp_overlap": _EITHER}),
    "fsdp-compile-rowwise": replace(_TORCHTITAN, values={**_TORCHTITAN.values, "tp_overlap": _EITHER}),
    "llm-foundry": _COMPOSER,
    "torch-eager": _PYTORCH,
    "torch-compile": replace(_PYTORCH, values={**_PYTORCH.values, "tp_overlap": _EITHER}),
}
"""The launcher of each stack by name."""


def launcher_of(stack: Stack) -> Launcher:
    """Returns what the launcher of a stack can express; software that is not listed is taken to run anything."""
    anything = Launcher(stack.title, {}, uneven_stages=True, sources=())
    return LAUNCHERS.get(stack.name, anything)


def runs_megatron(stack: Stack) -> bool:
    """Returns whether Megatron-core runs the job, as it is today."""
    return launcher_of(stack).runs_megatron


def _is_megatron(sizes: JobSizes) -> Flag:
    return sizes.of_stack(runs_megatron)


def _chunks_given(sizes: JobSizes) -> Flag:
    chunks = sizes.of_schedule(lambda facts: facts.min_chunks if facts.max_chunks is not None else 2)
    return implies((sizes.pp > 1) & (chunks > 1), sizes.vpp > 1)


def _even_stages(sizes: JobSizes) -> Flag:
    uneven = sizes.of_stack(lambda stack: launcher_of(stack).uneven_stages)
    return uneven | (sizes.layers % sizes.pieces == 0)


def _split_sequences(sizes: JobSizes) -> Flag:
    always = sizes.of_stack(lambda stack: launcher_of(stack).splits_sequences)
    needed = always | (_is_megatron(sizes) & bool(sizes.facts.experts))
    return implies(needed & (sizes.tp > 1), sizes.sequence_parallel)


def _expert_overlap(sizes: JobSizes) -> Flag:
    recomputed = sizes.each(_recomputes_experts, "recompute", "recompute_modules")
    runs = (sizes.ep > 1) & ((sizes.pp == 1) | (sizes.vpp > 1)) & negated(recomputed)
    return implies(sizes.number("moe_overlap") == 1, runs)


def _overlap_words(sizes: PlanSizes) -> str:
    if sizes.plan.ep == 1:
        return "moe_overlap is on, and ep is 1"
    if _recomputes_experts(sizes):
        return "moe_overlap is on, and experts are recomputed"
    return "moe_overlap is on, and stages have one chunk (vpp is 1)"


def _recomputes_experts(sizes: PlanSizes) -> bool:
    return sizes.plan.recompute == "full" or "moe" in (sizes.plan.recompute_modules or ())


def _parameter_overlap(sizes: JobSizes) -> Flag:
    asked = sizes.number("param_overlap") == 1
    reduced = sizes.each(
        lambda plan_sizes: (
            plan_sizes.stack.grad_overlap if plan_sizes.plan.grad_overlap is None else plan_sizes.plan.grad_overlap
        ),
        *("grad_overlap", *_STACK),
    )
    return implies(asked, (sizes.zero > 0) & reduced)


def _offloaded_layers(sizes: JobSizes) -> Flag:
    return implies(sizes.number("offload_layers") > 0, (sizes.pp == 1) & sizes.is_word("recompute", "none"))


def _order_of_fsdp(sizes: JobSizes) -> Flag:
    return implies(_is_megatron(sizes) & (sizes.zero >= 2), sizes.is_word("rank_order", DEFAULT_ORDER))


ASSERTED: Final = (
    Constraint(
        "tp overlap needs sequence parallelism",
        "bad-plan",
        ("tp_overlap", "sequence_parallel"),
        lambda sizes: implies(sizes.number("tp_overlap") == 1, sizes.sequence_parallel),
        lambda _: "tp_overlap is on without sequence parallelism",
        "Megatron-LM, arguments.py, --tp-comm-overlap; torchtitan's is over sequence-parallel collectives",
    ),
    Constraint(
        "moe overlap needs ep and chunks",
        "bad-plan",
        ("moe_overlap", "ep", "vpp"),
        _expert_overlap,
        _overlap_words,
        "Megatron-core, TransformerConfig.__post_init__, overlap_moe_expert_parallel_comm",
    ),
    Constraint(
        "param overlap needs zero and grad overlap",
        "bad-plan",
        ("param_overlap", "zero", "grad_overlap"),
        _parameter_overlap,
        lambda _: "param_overlap is on without the distributed optimizer or without grad_overlap",
        "Megatron-LM, arguments.py, --overlap-param-gather",
    ),
    Constraint(
        "offloaded layers without pp or recompute",
        "bad-plan",
        ("offload_layers", "pp", "recompute"),
        _offloaded_layers,
        lambda _: "offload_layers is given with stages or with recomputation",
        "Megatron-core, TransformerConfig.__post_init__, cpu_offloading",
    ),
    Constraint(
        "rank order of FSDP",
        "bad-plan",
        ("rank_order", "zero"),
        _order_of_fsdp,
        lambda sizes: f"rank_order is {sizes.plan.rank_order} under FSDP",
        "Megatron-Bridge: use_tp_pp_dp_mapping does not go with Megatron-FSDP",
    ),
)
"""Rules of plans that can be simulated, and that the software itself refuses."""

LAUNCH_CONSTRAINTS: Final = (
    Constraint(
        "vpp of an interleaved schedule",
        "bad-plan",
        ("vpp", "schedule"),
        _chunks_given,
        lambda sizes: f"{sizes.schedule} has several chunks a stage, but vpp is 1",
    ),
    Constraint(
        "even stages of the launcher",
        "bad-plan",
        ("pp", "vpp"),
        _even_stages,
        lambda sizes: f"{sizes.layers} layers cannot be divided among {sizes.pieces} parts as {sizes.stack.name} asks",
    ),
    Constraint(
        "tp needs sequence parallelism",
        "bad-plan",
        ("sequence_parallel", "tp"),
        _split_sequences,
        lambda sizes: f"tp is {sizes.tp} without sequence parallelism, which {sizes.stack.name} asks for here",
        "Megatron-LM, arguments.py, asks for it of models with experts; torchtitan always splits sequences",
    ),
    *ASSERTED,
)
"""Rules of plans that can be simulated, and that no launcher starts. A search checks them after all others."""


def asserted_problem(sizes: PlanSizes) -> str | None:
    """Returns in words what the software itself refuses of a plan; None: nothing."""
    return _first_problem(sizes, ASSERTED)


def launcher_problems(sizes: PlanSizes) -> frozenset[str]:
    """Returns the fields whose values the launcher of a plan's software does not offer, and the rules it breaks."""
    refused = {constraint.name for constraint in LAUNCH_CONSTRAINTS if constraint.problem(sizes) is not None}
    return frozenset({*_not_offered(sizes), *refused})


def _not_offered(sizes: PlanSizes) -> list[str]:
    launcher = launcher_of(sizes.stack)
    return [name for name in launcher.values if not launcher.offers(name, getattr(sizes.plan, name))]


def beyond_launcher(sizes: PlanSizes) -> str | None:
    """Returns in words what a plan has that the launcher of its software does not offer or refuses; None: nothing."""
    launcher = launcher_of(sizes.stack)
    for name in _not_offered(sizes):
        value = getattr(sizes.plan, name)
        return f"{name} {'on' if value is True else value} is not offered by {launcher.title}"
    refused = _first_problem(sizes, LAUNCH_CONSTRAINTS)
    return None if refused is None else f"{refused}: not started by {launcher.title}"


def _first_problem(sizes: PlanSizes, constraints: Iterable[Constraint]) -> str | None:
    problems = (constraint.problem(sizes) for constraint in constraints)
    return next((problem for problem in problems if problem is not None), None)
