"""A SimAI/AICB workload from a model and a plan: what AICB's own generator does, with the sizes and times that are so.

A file is the view of one rank: the layers of one stage, with the embedding before and the head behind them, once for
each microbatch. Where stages differ, the layers are those of the slowest stage, which sets the pace; parameters are the
first stage's, whose gradients come last and whose forward is the first to wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretrace.analysis.generate.express import check_expressible, notes_of, stage_parameters
from foretrace.analysis.generate.modules import embedding_module, head_modules, layer_modules
from foretrace.analysis.generate.rows import Listed, Seconds, rows_of, step_row
from foretrace.cost.compute.interface import KernelPricer
from foretrace.errors import Diagnostic, InputError
from foretrace.formats.aicb import Header, Pass, Row, Workload
from foretrace.program.kernels import DTYPE_BYTES, Kernel
from foretrace.schedules import Schedule
from foretrace.step.spec import Call, Compute, Work
from foretrace.step.units import SYNC_LAUNCHES
from foretrace.workload.setting import Setting
from foretrace.workload.settle import schedule_of
from foretrace.workload.step_spec import Works, chunks_of, optimizer_of, works_of

POLICY = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"

FILLER_S = 1e-9
"""What AICB writes for computation that nobody measured; a pass of many computations has it once."""

SMALL_MESSAGE_BYTES = 1 << 20
"""From here on SimAI divides by a bandwidth, which a group of one does not have."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A workload and what it was made from: parameters of a rank of the first stage, layers that every stage gets."""

    workload: Workload
    parameters: int
    expert_parameters: int
    layers_per_stage: int
    microbatches: int
    diagnostics: tuple[Diagnostic, ...]


def aicb_workload(setting: Setting, kernels: KernelPricer | None = None, *, exposed_only: bool = False) -> Generated:
    """The workload of a setting. Times are those of `kernels`; without, every computation takes a nanosecond.

    `exposed_only` leaves out collectives that the software runs beside gradients: sizes are then too small, and a sum
    of all times, as SimAI forms it, nearer to the step.
    """
    schedule = schedule_of(setting)
    check_expressible(setting, schedule)
    works = works_of(setting)
    pieces = chunks_of(setting, works)
    seconds = _seconds(setting, kernels)
    chosen = _chosen_layers(setting, schedule, works, kernels)
    dense, expert = stage_parameters(schedule, pieces)[0]
    rows = _step_rows(setting, dense, expert, kernels)

    def listed(item: Call) -> bool:
        return setting.mesh.size(item.axis) > 1 and not (exposed_only and item.concurrent is not None)

    rows += setting.microbatches * _microbatch(setting, chosen, works, seconds, listed)
    rows += _optimizer_rows(setting)
    notes = notes_of(setting, schedule, pieces, [works.layers[number] for number in chosen], left_out=exposed_only)
    if kernels is None:
        notes.append(
            Diagnostic(
                "warning", "unpriced-op", "no cluster: every computation takes 1 ns; sizes are what they should be"
            )
        )
    return Generated(
        workload=Workload(_header(setting, works), len(rows), tuple(rows if kernels else map(_filled, rows))),
        parameters=dense,
        expert_parameters=expert,
        layers_per_stage=len(chosen),
        microbatches=setting.microbatches,
        diagnostics=(*setting.diagnostics, *notes),
    )


def _header(setting: Setting, works: Works) -> Header:
    plan = setting.plan
    return Header(
        policy=POLICY,
        tp=plan.tp,
        ep=plan.ep,
        pp=plan.pp,
        vpp=setting.chunks_per_stage if plan.pp > 1 else 1,
        ga=setting.microbatches,
        all_gpus=plan.gpus,
        checkpoints=(),
        checkpoint_initiates=(),
        pp_comm_bytes=works.layers[0].output_bytes if plan.pp > 1 else 0,
    )


def _seconds(setting: Setting, kernels: KernelPricer | None) -> Seconds:
    """What a computation takes, with the gap that it leaves where the host waits for it."""
    if kernels is None:
        return lambda _: FILLER_S
    launch_s = 0.0 if setting.plan.cuda_graphs == "full" else setting.stack.launch_s

    def priced(item: Compute) -> float:
        return _price(item.kernels, kernels) + (SYNC_LAUNCHES * launch_s if item.syncs_host else 0.0)

    return priced


def _filled(row: Row) -> Row:
    """A row whose passes take a nanosecond if they compute at all."""
    forward, inputs, weights = (
        replace(one, compute_ns=min(one.compute_ns, 1)) for one in (row.forward, row.input_grad, row.weight_grad)
    )
    return replace(row, forward=forward, input_grad=inputs, weight_grad=weights)


def _price(listed: Sequence[tuple[int, Kernel]], kernels: KernelPricer) -> float:
    if not listed:
        return 0.0
    durations = kernels.price([kernel for _, kernel in listed]).duration_s.tolist()
    return float(sum(count * each for (count, _), each in zip(listed, durations, strict=True)))


def _chosen_layers(setting: Setting, schedule: Schedule, works: Works, kernels: KernelPricer | None) -> list[int]:
    """The layers that the file lists, by number: of every chunk of a stage the longest that any stage has."""
    load: dict[int, float] = {}

    def weight(piece: int) -> float:
        return sum(_once(load, works.layers[layer], kernels) for layer in setting.chunks[piece])

    held = schedule.piece.tolist()
    chosen = [max((stage[chunk] for stage in held), key=weight) for chunk in range(schedule.chunks)]
    lengths = [len(setting.chunks[piece]) for piece in chosen]
    if len(set(lengths)) > 1:
        raise InputError(
            "not-expressible",
            f"an AICB file cannot express chunks of {min(lengths)} and {max(lengths)} layers in one stage",
            hint="all chunks of a stage are equal parts of its rows; choose vpp, or --stage-layers, accordingly",
        )
    return [layer for piece in chosen for layer in setting.chunks[piece]]


def _once(known: dict[int, float], work: Work, kernels: KernelPricer | None) -> float:
    """Seconds of a layer's computation, or its FLOPs where there are no prices."""
    if id(work) not in known:
        listed = [pair for item in _items(work) for pair in item.kernels]
        known[id(work)] = sum(n * one.flops for n, one in listed) if kernels is None else _price(listed, kernels)
    return known[id(work)]


def _items(work: Work) -> list[Compute]:
    return [item for item in (*work.forward, *work.recompute, *work.backward) if isinstance(item, Compute)]


def _microbatch(setting: Setting, chosen: Sequence[int], works: Works, seconds: Seconds, listed: Listed) -> list[Row]:
    """The rows of one microbatch; layers that do the same are written once."""
    known: dict[int, list[Row]] = {}
    rows = rows_of(embedding_module(setting), listed, seconds)
    for number in chosen:
        work = works.layers[number]
        if id(work) not in known:
            modules = layer_modules(setting, setting.model.layers[number], work)
            known[id(work)] = [row for module in modules for row in rows_of(module, listed, seconds)]
        rows += known[id(work)]
    for module in head_modules(setting):
        rows += rows_of(module, listed, seconds)
    if setting.plan.tp == 1 and setting.model.vocab and 4 * setting.tokens < SMALL_MESSAGE_BYTES:
        # Nothing is sent, but the size of the loss's sums tells readers how many tokens there are.
        rows.append(step_row("cross_entropy1", forward=Pass(0, "ALLREDUCE", 4 * setting.tokens)))
    return rows


def _step_rows(setting: Setting, dense: int, expert: int, kernels: KernelPricer | None) -> list[Row]:
    """Parameters gathered, gradients reduced, the optimizer's own work, and the same of experts."""
    rows = [*_gradient_rows(setting, dense, ("grad_gather", "grad_param_comm"), "")]
    optimizer = optimizer_of(setting)
    share = optimizer.share(dense, expert)
    listed = [
        *(optimizer.norm_kernels(share) if setting.stack.clips_gradients else ()),
        *optimizer.update_kernels(share),
        *optimizer.zero_kernels(share),
    ]
    update_s = FILLER_S if kernels is None else _price(listed, kernels)
    rows.append(step_row("grad_param_compute", input_grad=Pass(round(1e9 * update_s), "NONE", 0)))
    if expert and setting.mesh.edp > 1:
        rows += _gradient_rows(setting, expert, ("moe_grad_norm1", "moe_grad_norm2"), "_DP_EP")
    return rows


def _gradient_rows(setting: Setting, count: int, names: tuple[str, str], suffix: str) -> list[Row]:
    """The row that gathers parameters, where ranks share the optimizer's work, and the one that reduces gradients."""
    stack = setting.stack
    parameter, gradient = int(DTYPE_BYTES[stack.parameter_dtype]), int(DTYPE_BYTES[stack.gradient_dtype])
    gather, reduce = names
    if not setting.zero:
        return [step_row(reduce, weight_grad=Pass(0, f"ALLREDUCE{suffix}", gradient * count))]
    return [
        step_row(gather, weight_grad=Pass(0, f"ALLGATHER{suffix}", parameter * count)),
        step_row(reduce, weight_grad=Pass(0, f"REDUCESCATTER{suffix}", gradient * count)),
    ]


def _optimizer_rows(setting: Setting) -> list[Row]:
    """The norm of all gradients is one number, reduced over all ranks; the file has no wider group than tp for it."""
    if not setting.stack.clips_gradients:
        return []
    return [step_row("optimizer1", forward=Pass(0, "ALLREDUCE", 4))]
