"""Turns a setting into the description of its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from foretrace.program.columns import Collective, Phase
from foretrace.program.dispatch import COPIES
from foretrace.program.kernels import DTYPE_BYTES
from foretrace.program.program import Source
from foretrace.schedules import Schedule
from foretrace.schedules.pipeline import Transfer
from foretrace.step.buckets import Bucket, megatron_buckets, megatron_limit
from foretrace.step.end import TrainingEnd, turns_of
from foretrace.step.groups import group_size
from foretrace.step.optimizer import WIDE_BYTES, Adam, Share
from foretrace.step.segments import LISTED_PART
from foretrace.step.sharding import GRADIENT_BUFFERS, ShardedUnits
from foretrace.step.spec import (
    Call,
    ChunkSpec,
    Compute,
    Concurrent,
    EndItem,
    HostWork,
    Item,
    Launches,
    RoleSpec,
    Sharding,
    StepSpec,
    Unit,
    Work,
)
from foretrace.workload import layers
from foretrace.workload.plan import NARROW_PRECISIONS
from foretrace.workload.setting import Setting
from foretrace.workload.settle import schedule_of

WORKSPACE_BYTES: Final = 32 << 20
"""The workspace of a cuBLAS handle on Hopper and later, and of a stream of Transformer Engine."""

BLAS_HANDLES, USER_BUFFER_STREAMS, GROUPED_STREAMS = 2, 3, 4

QUANTIZED_WEIGHT_BYTES: Final = {
    "fp8": 2.0,
    "fp8_block": 2 * (1 + 4 / 128**2),
    "mxfp8": 2 * (1 + 1 / 32),
    "nvfp4": 2 * (1 / 2 + 1 / 16),
}
"""Bytes of a quantized weight, for both directions of products, with scales of blocks. With one scale per tensor
Hopper needs a transposed copy; Blackwell does not (`is_non_tn_fp8_gemm_supported` of Transformer Engine), but the GPU
is not known here. Scales: one fp32 for 128 x 128 elements, a byte for 32, a byte for 16."""


@dataclass(frozen=True, slots=True)
class ModelWorks:
    """The work of a model's parts on one rank: every layer by number, and the ends. Equal layers are one object."""

    layers: tuple[Work, ...]
    embedding: Work | None = None
    head: Work | None = None
    mtp: tuple[Work, ...] = ()
    """The modules of multi-token prediction."""


def works_of(setting: Setting) -> ModelWorks:
    """Returns what the parts of a setting's model do."""
    model = setting.model
    return ModelWorks(
        layers=_layer_works(setting),
        embedding=layers.embedding_work(setting) if model.vocab else None,
        head=layers.head_work(setting),
        mtp=_mtp_works(setting),
    )


def _layer_works(setting: Setting) -> tuple[Work, ...]:
    """Returns the work of every layer, found once for equal ones."""
    model, plan = setting.model, setting.plan
    if plan.recompute == "full" and plan.recompute_layers is not None:  # then places matter
        return tuple(layers.layer_work(setting, layer, number) for number, layer in enumerate(model.layers))
    known: dict[tuple[object, float], Work] = {}
    works = []
    for number, layer in enumerate(model.layers):
        key = (layer, setting.routing_of(number))
        if key not in known:
            known[key] = layers.layer_work(setting, layer, number)
        works.append(known[key])
    return tuple(works)


def _mtp_works(setting: Setting) -> tuple[Work, ...]:
    """Returns the modules of multi-token prediction."""
    return tuple(layers.mtp_work(setting, tables) for tables in mtp_tables(setting))


def mtp_tables(setting: Setting) -> tuple[int, ...]:
    """Returns of how many tables each module of multi-token prediction holds a copy; only the first holds any.

    A stage with MTP has an embedding and a head (Megatron-core, gpt_model.py, `mtp_process`). They are those of the
    first and the last part where these are on the same stage.
    """
    if not setting.model.mtp:
        return ()
    first, own, last = (_stages_of(setting, piece) for piece in (0, setting.mtp_chunk, -1))
    tables = int(own != first) + int(own != last)
    if setting.model.tied:  # one table is both
        tables = int(own not in (first, last))
    return (tables, *[0] * (setting.model.mtp - 1))


def _stages_of(setting: Setting, piece: int) -> tuple[int, ...]:
    """Returns the stages that hold a piece of the model: two in DualPipe, otherwise one."""
    return tuple(np.nonzero(schedule_of(setting).piece == piece % len(setting.chunks))[0].tolist())


def step_spec(setting: Setting, works: ModelWorks | None = None) -> StepSpec:
    """Describes a training step; `works` is what the parts of the model do, where that is not the setting's own."""
    works, schedule, plan = works or works_of(setting), schedule_of(setting), setting.plan
    output_bytes = next((work.output_bytes for work in works.layers), 0)
    launches, optimizer, sharding = launches_of(setting), optimizer_of(setting), sharding_of(setting)
    end = TrainingEnd(
        optimizer=optimizer,
        grad_overlap=setting.grad_overlap,
        param_overlap=setting.param_overlap,
        ranks=setting.mesh.world,
        frees_gradients=not keeps_gradients(setting),
        launches=launches,
        reduces=setting.zero < 2,
    )
    return StepSpec(
        title=_title(setting, schedule),
        mesh=setting.mesh,
        schedule=schedule,
        roles=_roles(setting, schedule, works, end, sharding, 2 * output_bytes if schedule.stages > 1 else 0),
        transfer=Transfer(bytes=output_bytes),
        pp_overlap=plan.pp_overlap,
        tokens_per_step=float(setting.gbs * setting.seq_len),
        launches=launches,
        sharding=sharding,
        prefetch=prefetch_of(setting),
        gradient_bytes=0 if keeps_gradients(setting) else optimizer.gradient_bytes,
        diagnostics=setting.diagnostics,
    )


def launches_of(setting: Setting) -> Launches | None:
    """Returns the host's time for kernel launches; None where CUDA graphs replay everything."""
    stack, graphs = setting.stack, setting.plan.cuda_graphs
    if graphs == "full" or stack.launch_s <= 0:
        return None
    return Launches(stack.launch_s, _host_source(setting), graphs)


def _host_source(setting: Setting) -> Source:
    """Returns whose the host's times are, with their band."""
    return Source(setting.stack.launch_source or f"host launches of {setting.stack.name}", 0.7, 1.4)


def prefetch_of(setting: Setting) -> tuple[int, int]:
    """Returns how many units ahead parameters are gathered, forward and backward."""
    ahead = setting.plan.prefetch
    return ahead, ahead if setting.stack.backward_prefetch else 0


def optimizer_of(setting: Setting) -> Adam:
    """Returns the optimizer of a setting's stack."""
    stack, plan, splits = setting.stack, setting.plan, setting.splits_parameters
    # FSDP hands a rank's part of gradients to the optimizer in the dtype of its parameters.
    gradient_dtype = stack.parameter_dtype if splits and not stack.fused_gradient_accumulation else stack.gradient_dtype
    parameter_bytes, gradient_bytes, state_bytes = (
        int(DTYPE_BYTES[dtype]) for dtype in (stack.parameter_dtype, gradient_dtype, stack.optimizer_state_dtype)
    )
    master_bytes = int(DTYPE_BYTES[stack.master_dtype]) if stack.master_weights else 0
    return Adam(
        parameter_bytes=parameter_bytes,
        gradient_bytes=gradient_bytes,
        state_bytes=state_bytes,
        master_bytes=master_bytes,
        zero=3 if splits else setting.zero,
        ranks=setting.shard,
        expert_ranks=setting.mesh.edp,
        clips_gradients=stack.clips_gradients,
        loss_scaling=stack.loss_scaling,
        keeps_gradients=stack.fused_gradient_accumulation,
        offloaded=plan.offload_optimizer,
        copies_gradients=gradient_bytes < master_bytes == WIDE_BYTES and _copies_gradients(setting),
        narrow_held_bytes=_narrow_held_bytes(setting, parameter_bytes),
        narrow_gathered_bytes=_narrow_gathered_bytes(setting),
    )


def _copies_gradients(setting: Setting) -> bool:
    """Returns whether 16-bit gradients are copied to fp32 for the update of an fp32 copy of parameters.

    A precision-aware optimizer reads them as they are, unless weights are quantized: then Megatron-core keeps the fp32
    copy of parameters itself (`use_precision_aware_optimizer_no_fp8_or_ds_fp8` of OptimizerConfig). PyTorch's
    optimizers take gradients in the dtype of what they update.
    """
    plan = setting.plan
    chosen = plan.moment_dtype is not None or plan.master_dtype is not None
    aware = setting.stack.precision_aware_optimizer and chosen
    return not plan.offload_optimizer and not (aware and plan.precision not in NARROW_PRECISIONS)


def _narrow_held_bytes(setting: Setting, parameter_bytes: int) -> float | None:
    """Returns the memory of a parameter whose products are in 8 bits or fewer; None: that of any other.

    Transformer Engine keeps quantized weights from the first microbatch of a step on, as they are for the forward and,
    for the backward, transposed or scaled along the other dimension. Ranks that split parameters hold no such copies of
    whole ones, and transpose those that they gather.
    """
    plan = setting.plan
    if not setting.stack.keeps_quantized_weights or plan.precision not in NARROW_PRECISIONS:
        return None
    if setting.splits_parameters and (not plan.fp8_params or plan.precision == "fp8"):
        return _narrow_gathered_bytes(setting)
    return QUANTIZED_WEIGHT_BYTES[plan.precision] + (0 if plan.fp8_params else parameter_bytes)


def _narrow_gathered_bytes(setting: Setting) -> float | None:
    """Returns the size of such a parameter when it is gathered; None: that of any other.

    After an update Megatron-core gathers mxfp8 parameters in bf16, in the place of gradients, and quantizes them both
    ways, for they cannot be transposed (`reuse_grad_buf_for_mxfp8_param_ag`). Megatron-FSDP gathers those of the
    direction that a pass needs.
    """
    plan = setting.plan
    if not plan.fp8_params:
        return None
    if setting.splits_parameters:
        return QUANTIZED_WEIGHT_BYTES[plan.precision] / 2
    return None if plan.precision == "mxfp8" else 1


def keeps_gradients(setting: Setting) -> bool:
    """Returns whether gradients have memory of their own all the time, as Megatron's buffers.

    Else they appear in the first backward of a step and are dropped after the update.
    """
    return setting.stack.fused_gradient_accumulation or setting.zero >= 2


def workspace_bytes(setting: Setting) -> int:
    """Returns the workspaces of matrix products, which the framework's allocator holds throughout.

    PyTorch gives cuBLAS one for the forward thread and one for autograd's (CublasHandlePool.cpp); 64 MiB of them
    explained the peaks of the first steps measured on an H200. Transformer Engine has one for each stream of products:
    three with user buffers, four more for experts (get_cublas_workspace_size_bytes). The size is that on Hopper and
    later; earlier GPUs use less.
    """
    streams = BLAS_HANDLES
    if setting.stack.runs_transformer_engine:
        streams += USER_BUFFER_STREAMS if setting.plan.tp_overlap and setting.plan.tp > 1 else 1
        streams += GROUPED_STREAMS if setting.model.has_experts else 0
    return streams * WORKSPACE_BYTES


def sharding_of(setting: Setting) -> Sharding | None:
    """Returns how units are split; None where nothing is, or where gradients are reduced once a step."""
    if setting.zero < 2 or (not setting.splits_parameters and max(setting.shard, setting.mesh.edp) == 1):
        return None
    return Sharding(
        ranks=setting.shard,
        expert_ranks=setting.mesh.edp,
        replicas=setting.mesh.replicate,
        # Computation is in bf16 or fp16 unless it is in full precision.
        parameter_bytes=4 if setting.plan.precision in ("fp32", "tf32") else 2,
        gradient_bytes=int(DTYPE_BYTES[setting.stack.gradient_dtype]),
        reshard=setting.plan.reshard and setting.zero == 3,
        copies=setting.stack.copies_gathered and setting.splits_parameters,
        gathers=setting.splits_parameters,
        overlap=setting.grad_overlap or (setting.splits_parameters and not setting.stack.lists_tensors),
        # Forwards of later microbatches find the parameters that the first one gathered.
        holds=setting.splits_parameters and setting.plan.pp > 1,
        narrow_parameter_bytes=_narrow_gathered_bytes(setting),
        listing=_listing(setting) if setting.stack.lists_tensors and setting.splits_parameters else None,
    )


def _listing(setting: Setting) -> HostWork:
    """Returns the host's work before one tensor is gathered or its gradient reduced over a list of ranks' parts.

    The host slices the tensor once for every rank, in Python, and ProcessGroupNCCL copies every part from or to the
    buffer of the collective.
    """
    seconds = setting.shard * LISTED_PART * setting.stack.launch_s
    return HostWork("list parts", seconds, _host_source(setting))


def _whole_parameter_bytes(sharding: Sharding | None, chunks: Sequence[ChunkSpec]) -> int:
    """Returns the memory of gathered parameters that stays all the time."""
    if sharding is None:
        return 0
    sharded = ShardedUnits(sharding, {})
    return sum(sharded.held_bytes(unit) for chunk in chunks for unit in chunk.units)


def _gradient_buffer_bytes(setting: Setting, chunks: Sequence[ChunkSpec], optimizer: Adam, share: Share) -> int:
    """Returns the memory of the buffers in which whole gradients of units wait for their reduction, under ZeRO-2.

    A stage of one or two units needs no more than it does with whole gradients.
    """
    if setting.zero != 2 or setting.splits_parameters:
        return 0
    works = [unit.work for chunk in chunks for unit in chunk.units]
    dense, expert = setting.shard > 1, setting.mesh.edp > 1
    largest = max((dense * work.parameters + expert * work.expert_parameters for work in works), default=0)
    return optimizer.gradient_bytes * min(GRADIENT_BUFFERS * largest, share.total - share.owned)


def _roles(
    setting: Setting,
    schedule: Schedule,
    works: ModelWorks,
    end: TrainingEnd,
    sharding: Sharding | None,
    buffer_bytes: int,
) -> tuple[RoleSpec, ...]:
    """Returns what each stage does. Stages that do the same share their chunks and the end of their step."""
    chunks, optimizer = chunks_of(setting, works), end.optimizer
    # A stage that has both the embedding and the head needs nobody to add their gradients.
    ends_on = {stage for piece in (0, -1) for stage in _stages_of(setting, piece)}
    shares = len(ends_on) > 1 and shares_embedding(setting)
    ends: dict[object, tuple[EndItem, ...]] = {}
    roles, ranks = [], setting.mesh.stage_ranks()
    for stage, pieces in enumerate(schedule.piece.tolist()):
        held = [chunks[piece] for piece in pieces]
        share = optimizer.share(
            sum(chunk.parameters for chunk in held),
            sum(chunk.expert_parameters for chunk in held),
            (sum(chunk.narrow_parameters[0] for chunk in held), sum(chunk.narrow_parameters[1] for chunk in held)),
        )
        finals = list(turns_of(schedule)[stage].finals)
        buckets = [] if setting.splits_parameters else _buckets(setting, stage, held, finals)
        tied = shares and stage in ends_on
        order = tuple(turns_of(schedule)[stage].firsts)
        key = (tuple(buckets), share, tied, order)
        if key not in ends:
            ends[key] = end.items(buckets, share, order, tied_embedding(setting) if tied else None)
        resident = {
            "weights": optimizer.held_weight_bytes(share),
            "gradients": optimizer.held_gradient_bytes(share) if keeps_gradients(setting) else 0,
            "optimizer": optimizer.held_state_bytes(share),
            # Activations and gradients that a stage has received and not yet used, and workspaces.
            "buffers": buffer_bytes
            + workspace_bytes(setting)
            + _gradient_buffer_bytes(setting, held, optimizer, share)
            + _whole_parameter_bytes(sharding, held),
        }
        chosen = tuple((chunk,) for chunk in held)
        roles.append(RoleSpec(stage, _role_name(stage), ranks[stage], chosen, ends[key], resident=resident))
    return tuple(roles)


def chunks_of(setting: Setting, works: ModelWorks) -> list[ChunkSpec]:
    """Returns the pieces of the model, the first with the embedding, the last with the head.

    Pieces that do the same are one object.
    """
    overlapped: dict[tuple[int, bool], Work] = {}
    known: dict[tuple[int, ...], ChunkSpec] = {}

    def chunk_of(works: Sequence[tuple[Work, int]], offloads: int, *, paired: bool) -> ChunkSpec:
        units = []
        for work, layer in works:
            key = id(work), paired
            if key not in overlapped:
                overlapped[key] = with_overlap(work, setting, paired=paired)
            placed = overlapped[key]
            units.append(Unit(placed, layer, offloaded=0 <= layer < offloads and placed.saved_bytes > 0))
        unpaired = chunk_of(works, offloads, paired=False) if paired and pairs_actions(setting) else None
        return ChunkSpec(tuple(units), unpaired)

    chunks = []
    last = len(setting.chunks) - 1
    for number, numbers in enumerate(setting.chunks):
        body = [works.layers[layer] for layer in numbers]
        if number == setting.mtp_chunk % len(setting.chunks):
            body += works.mtp
        first = [works.embedding] if number == 0 and works.embedding else []
        final = [works.head] if number == last and works.head else []
        # As of recompute_layers, a stage's first layers are meant, over all its chunks.
        earlier = sum(len(part) for part in setting.chunks[number % setting.plan.pp : number : setting.plan.pp])
        offloads = max(setting.plan.offload_layers - earlier, 0)
        key = (min(offloads, len(body)), *(id(work) for work in (*first, *body, *final)))
        if key not in known:
            layers = [(work, at) for at, work in enumerate(body)]
            ends = [[(work, -1) for work in end] for end in (first, final)]
            known[key] = chunk_of([*ends[0], *layers, *ends[1]], offloads, paired=True)
        chunks.append(known[key])
    return chunks


def largest_tensors(setting: Setting) -> dict[str, int]:
    """Returns the bytes of the largest tensor of each stage, by the name of its role."""
    chunks, schedule = chunks_of(setting, works_of(setting)), schedule_of(setting)
    each = [max((unit.work.largest_bytes for unit in chunk.units), default=0) for chunk in chunks]
    return {
        _role_name(stage): max(each[piece] for piece in pieces) for stage, pieces in enumerate(schedule.piece.tolist())
    }


def _role_name(stage: int) -> str:
    return f"stage {stage}"


def with_overlap(work: Work, setting: Setting, *, paired: bool = True) -> Work:
    """Returns a work without the collectives of groups of one, and with the concurrency that the plan asks for.

    Args:
        work: The work.
        setting: The model under its plan.
        paired: Whether an opposite action of another microbatch runs next to it.
    """
    before = len(items := _listed(work.recompute, setting))
    backward = _overlapped([*items, *_listed(work.backward, setting)], setting, paired=paired)
    return replace(
        work,
        forward=tuple(_overlapped(_listed(work.forward, setting), setting, paired=paired)),
        recompute=tuple(backward[:before]),
        backward=tuple(backward[before:]),
    )


def _listed(items: Sequence[Item], setting: Setting) -> list[Item]:
    return [item for item in items if not isinstance(item, Call) or setting.mesh.size(item.axis) > 1]


def pairs_actions(setting: Setting) -> bool:
    """Returns whether actions that run next to one of another microbatch differ from those that do not."""
    return setting.plan.moe_overlap and setting.mesh.ep > 1


def _overlapped(items: Sequence[Item], setting: Setting, *, paired: bool) -> list[Item]:
    """Returns items whose collectives run next to what the plan says."""
    phases = paired and pairs_actions(setting)
    if not (setting.plan.tp_overlap or phases):
        return list(items)
    if phases:
        items = _in_phases(items)
    overlapped = list(items)
    for at, item in enumerate(items):
        product = _product_of(items, at, item) if setting.plan.tp_overlap and isinstance(item, Call) else None
        if isinstance(item, Call) and product is not None:
            # By copy engines around a ring (transformer_engine/common/comm_gemm_overlap).
            overlapped[at] = replace(item, concurrent=product, way=COPIES)
    return overlapped


def _in_phases(items: Sequence[Item]) -> list[Item]:
    """Returns the items of a layer whose all-to-alls of experts run next to another microbatch's computation.

    Megatron-core runs a forward and a backward layer by layer in phases, each as long as the longer of its
    communication and its computation: the combine of one microbatch next to the attention of the other, a dispatch next
    to its experts (megatron/core/models/common/model_chunk_schedule_plan.py). Dispatch and combine move the same bytes
    both ways. So they may run next to the experts and the attention of their own pass instead: a combine of the forward
    is put before attention, and calls of the backward stay where they are. A pair of passes takes as long, or longer if
    a dispatch takes longer than the experts of one pass and shorter than those of the other.
    """
    front: list[Item] = []
    rest: list[Item] = []
    for item in items:
        if isinstance(item, Call) and item.axis == "ep" and item.collective == Collective.ALL_TO_ALL:
            combines = item.returns and item.phase in (Phase.FORWARD, Phase.RECOMPUTE)
            (front if combines else rest).append(replace(item, concurrent="phase"))
        else:
            rest.append(item)
    return [*front, *rest]


def _product_of(items: Sequence[Item], at: int, call: Call) -> Concurrent | None:
    """Returns the product that Transformer Engine runs a collective with.

    It gathers next to the product that needs the result, and scatters next to the one that makes it.
    """
    if call.axis != "tp" or call.concurrent is not None:
        return None
    if call.collective == Collective.ALL_GATHER and isinstance(next(iter(items[at + 1 :]), None), Compute):
        return "next"
    if call.collective == Collective.REDUCE_SCATTER and at > 0 and isinstance(items[at - 1], Compute):
        return "previous"
    return None


def _buckets(
    setting: Setting, stage: int, chunks: Sequence[ChunkSpec], order: Sequence[int]
) -> list[tuple[str, Bucket]]:
    """Returns the gradient buckets of a stage with the group that reduces each."""
    groups = [(group, group_size(setting.mesh, group)) for group in ("dp", "edp")]
    buckets: list[tuple[str, Bucket]] = []
    for chunk in order:
        units = chunks[chunk].units
        for group, ranks in groups:
            if ranks > 1:
                dense, works = group == "dp", [unit.work for unit in units]
                sizes = [work.parameters if dense else work.expert_parameters for work in works]
                narrow = [work.narrow_parameters if dense else work.narrow_expert_parameters for work in works]
                for bucket in megatron_buckets(stage, chunk, sizes, megatron_limit(ranks)):
                    part = sum(narrow[bucket.first : bucket.last + 1])
                    buckets.append((group, replace(bucket, narrow=part)))
    return buckets


def shares_embedding(setting: Setting) -> bool:
    """Returns whether the last stage has a copy of the embedding: for a tied head, or for multi-token prediction.

    Megatron-core adds up the gradients of both copies (finalize_model_grads.py, `_get_shared_word_embedding_weight`).
    """
    mtp_is_last = setting.model.mtp > 0 and _stages_of(setting, setting.mtp_chunk) == _stages_of(setting, -1)
    return setting.model.vocab > 0 and (setting.model.tied or mtp_is_last)


def tied_embedding(setting: Setting) -> Call:
    """Returns the reduction of an embedding that first and last stage share."""
    size = int(DTYPE_BYTES[setting.stack.gradient_dtype]) * setting.vocab // setting.plan.tp * setting.model.hidden
    return Call("reduce tied embedding", Phase.BACKWARD, Collective.ALL_REDUCE, "embd", size)


def _title(setting: Setting, schedule: Schedule) -> str:
    plan, count = setting.plan, setting.microbatches
    sizes = {
        "tp": plan.tp,
        "cp": plan.cp,
        "pp": plan.pp,
        "dp": setting.dp,
        "ep": plan.ep,
        "etp": plan.etp if plan.ep > 1 else 1,
    }
    axes = " · ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
    what = [setting.model.title or setting.model.name] + ([axes] if axes else [])
    if schedule.stages > 1:
        what.append(schedule.name + (f", {schedule.chunks} chunks" if schedule.chunks > 1 else ""))
    return " · ".join([*what, f"{count} microbatch{'' if count == 1 else 'es'}"])
