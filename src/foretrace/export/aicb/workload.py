"""Makes a SimAI/AICB workload of a model and a plan, as AICB's own generator does, with correct sizes and times.

A file is the view of one rank: the layers of one stage, with the embedding before and the head after them, once for
each microbatch. If stages differ, the layers are those of the slowest stage, which sets the pace. Parameters are those
of the first stage, whose gradients come last and whose forward is the first to wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.mesh import Mesh
from foretrace.cost.kernels.interface import KernelPricer
from foretrace.export.aicb.express import check_expressible, notes_of, stage_parameters
from foretrace.export.aicb.modules import embedding_module, head_modules, layer_modules
from foretrace.export.aicb.rows import FileRow, Seconds, rows_of, step_row, work_of_rows
from foretrace.inputs.aicb.format import Header, Pass, Workload, WorkloadRow
from foretrace.program.columns import Collective, Phase
from foretrace.program.kernels import Kernel
from foretrace.schedules import Schedule
from foretrace.schedules.pipeline import Transfer
from foretrace.step.spec import Call, ChunkSpec, Compute, EndItem, Item, RoleSpec, StepSpec, Unit, Work
from foretrace.step.units import sync_gap_s
from foretrace.workload.setting import Setting
from foretrace.workload.settle import schedule_of
from foretrace.workload.step_spec import ModelWorks, chunks_of, optimizer_of, works_of

POLICY = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"

FILLER_S = 1e-9
"""The time that AICB writes for computation that nobody measured; a pass of many computations has it once."""

SMALL_MESSAGE_BYTES = 1 << 20
"""From here on SimAI divides by a bandwidth, which a group of one does not have."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A workload and what it was made from.

    Attributes:
        workload: What is written.
        spec: The step that the workload expresses.
        pieces: The piece of the model whose layers it lists, for each chunk of a stage.
        parameters: Dense parameters of a rank of the first stage.
        expert_parameters: Its parameters of experts.
        layers_per_stage: Layers that every stage gets.
        microbatches: Of the step.
        diagnostics: What the file leaves out or says differently.
    """

    workload: Workload
    spec: StepSpec
    pieces: tuple[int, ...]
    parameters: int
    expert_parameters: int
    layers_per_stage: int
    microbatches: int
    diagnostics: tuple[Diagnostic, ...]


def aicb_workload(setting: Setting, kernels: KernelPricer | None = None, *, exposed_only: bool = False) -> Generated:
    """Returns the workload of a setting.

    Args:
        setting: The model and its plan.
        kernels: Prices of kernels; without them every computation takes a nanosecond.
        exposed_only: Leaves out collectives that the software runs next to gradients: sizes are then too small, and a
            sum of all times, as SimAI forms it, nearer to the step.
    """
    schedule = schedule_of(setting)
    check_expressible(setting, schedule)
    works = works_of(setting)
    pieces = _slowest_pieces(setting, schedule, works, kernels)
    chosen = [setting.chunks[piece] for piece in pieces]
    layers = [layer for chunk in chosen for layer in chunk]
    chunks = chunks_of(setting, works)
    dense, expert = stage_parameters(schedule, chunks)[0]
    writer = _FileWriter(setting, works, kernels, exposed_only)
    end = _FileEnd.of(setting, dense, expert, kernels)
    rows = [*end.rows(), *setting.microbatches * writer.microbatch(layers), *end.norm_rows()]
    notes = notes_of(setting, schedule, chunks, [works.layers[number] for number in layers], left_out=exposed_only)
    if kernels is None:
        text = "no cluster: every computation takes 1 ns; sizes are what they should be"
        notes.append(Diagnostic("warning", "unpriced-op", text))
    return Generated(
        workload=Workload(_header(setting, works), len(rows), tuple(rows if kernels else map(_filled, rows))),
        spec=_file_spec(setting, schedule, writer.chunks(chosen), end.items(), works.layers[0].output_bytes),
        pieces=pieces,
        parameters=dense,
        expert_parameters=expert,
        layers_per_stage=len(layers),
        microbatches=setting.microbatches,
        diagnostics=(*setting.diagnostics, *notes),
    )


def _file_spec(
    setting: Setting,
    schedule: Schedule,
    chunks: Sequence[Sequence[ChunkSpec]],
    end: tuple[EndItem, ...],
    output_bytes: int,
) -> StepSpec:
    """Returns the step that the file expresses: every stage with the same layers and the same end."""
    ranks = setting.mesh.stage_ranks()
    roles = []
    for stage, pieces in enumerate(schedule.piece.tolist()):
        held = []
        for chunk, piece in enumerate(pieces):
            which = 2 * (piece == 0) + (piece == schedule.pieces - 1)
            held.append((chunks[chunk][which],))
        roles.append(RoleSpec(stage, f"stage {stage}", ranks[stage], tuple(held), end))
    return StepSpec(
        title=f"{setting.model.name} as a workload file",
        mesh=setting.mesh,
        schedule=schedule,
        roles=tuple(roles),
        transfer=Transfer(bytes=output_bytes),
        tokens_per_step=float(setting.gbs * setting.seq_len),
        diagnostics=setting.diagnostics,
    )


class _FileWriter:
    """Writes the rows of a microbatch, and the works that they express. Layers that do the same are written once."""

    def __init__(self, setting: Setting, works: ModelWorks, kernels: KernelPricer | None, exposed_only: bool) -> None:
        self.setting, self.works, self.exposed_only = setting, works, exposed_only
        self.seconds = _seconds(setting, kernels)
        self._layers: dict[int, list[FileRow]] = {}
        self._works: dict[int, Work] = {}
        self._embedding = rows_of(embedding_module(setting), self._listed, self.seconds)
        self._head = [row for module in head_modules(setting) for row in rows_of(module, self._listed, self.seconds)]

    def microbatch(self, layers: Sequence[int]) -> list[WorkloadRow]:
        """Returns the rows of one microbatch through these layers."""
        setting = self.setting
        rows = [*self._embedding, *(row for number in layers for row in self._layer(number)), *self._head]
        listed = [row.row() for row in rows]
        if setting.plan.tp == 1 and setting.model.vocab and 4 * setting.tokens < SMALL_MESSAGE_BYTES:
            # Nothing is sent, but the size of the loss's sums tells readers how many tokens there are.
            listed.append(step_row("cross_entropy1", forward=Pass(0, "ALLREDUCE", 4 * setting.tokens)))
        return listed

    def chunks(self, chosen: Sequence[Sequence[int]]) -> list[list[ChunkSpec]]:
        """Returns each chunk of a stage: in the middle of the model, with its head, its embedding, and both."""
        embedding = [Unit(work_of_rows("embedding", self._embedding))]
        head = [Unit(work_of_rows("head", self._head))] if self._head else []
        variants = []
        for layers in chosen:
            body = [Unit(self._work(number), at) for at, number in enumerate(layers)]
            variants.append(
                [
                    ChunkSpec((*first, *body, *last))
                    for first, last in (([], []), ([], head), (embedding, []), (embedding, head))
                ]
            )
        return variants

    def _layer(self, number: int) -> list[FileRow]:
        work = self.works.layers[number]
        if id(work) not in self._layers:
            modules = layer_modules(self.setting, self.setting.model.layers[number], work)
            rows = [row for module in modules for row in rows_of(module, self._listed, self.seconds)]
            self._layers[id(work)] = rows
        return self._layers[id(work)]

    def _work(self, number: int) -> Work:
        key = id(self.works.layers[number])
        if key not in self._works:
            self._works[key] = work_of_rows("layer", self._layer(number))
        return self._works[key]

    def _listed(self, call: Call) -> bool:
        return self.setting.mesh.size(call.axis) > 1 and not (self.exposed_only and call.concurrent is not None)


@dataclass(frozen=True, slots=True)
class _FileEnd:
    """The end of the step as a file has it: one reduction and one gather for each group, and one computation."""

    reduces: tuple[tuple[str, Call], ...]
    """Rows' names with their calls."""
    gathers: tuple[tuple[str, Call], ...]
    update_ns: int
    norm: bool
    """Whether the norm of gradients is reduced, which a file can do over tp only."""
    mesh: Mesh

    @classmethod
    def of(cls, setting: Setting, dense: int, expert: int, kernels: KernelPricer | None) -> _FileEnd:
        """Returns the end of a setting whose first stage has `dense` and `expert` parameters on a rank."""
        optimizer = optimizer_of(setting)
        share = optimizer.share(dense, expert)
        groups = [("grad_gather", "grad_param_comm", "dp", dense, setting.dp * setting.plan.cp)]
        groups += [("moe_grad_norm1", "moe_grad_norm2", "edp", expert, setting.mesh.edp)]
        what = Collective.REDUCE_SCATTER if setting.zero else Collective.ALL_REDUCE
        reduces, gathers = [], []
        for gather, reduce, axis, count, ranks in groups:
            if axis == "edp" and not (count and ranks > 1):
                continue
            call = Call(reduce, Phase.BACKWARD, what, axis, optimizer.gradient_bytes * count)
            reduces.append((reduce, call))
            if setting.zero:
                size = optimizer.parameter_bytes * count
                gathers.append((gather, Call(gather, Phase.OPTIMIZER, Collective.ALL_GATHER, axis, size)))
        listed = [
            *(optimizer.norm_kernels(share) if optimizer.clips_gradients else ()),
            *optimizer.update_kernels(share),
            *optimizer.zero_kernels(share),
        ]
        update_s = FILLER_S if kernels is None else _price(listed, kernels)
        update_ns = round(1e9 * update_s)
        return cls(tuple(reduces), tuple(gathers), update_ns, optimizer.clips_gradients, setting.mesh)

    def rows(self) -> list[WorkloadRow]:
        """Returns the rows before the first microbatch: dense gradients, the optimizer, experts' gradients."""
        update = step_row("grad_param_compute", input_grad=Pass(self.update_ns, "NONE", 0))
        rows = []
        for name, call in sorted(
            (*self.gathers, *self.reduces), key=lambda named_call: (named_call[1].axis, named_call[0])
        ):
            suffix, word = "_DP_EP" if call.axis == "edp" else "", call.collective.name.replace("_", "")
            rows.append(step_row(name, weight_grad=Pass(0, f"{word}{suffix}", call.bytes)))
        first = sum(call.axis == "dp" for _, call in (*self.gathers, *self.reduces))
        return [*rows[:first], update, *rows[first:]]

    def norm_rows(self) -> list[WorkloadRow]:
        """Returns the row after the last microbatch: the norm is one number, and tp the widest group of a file."""
        return [step_row("optimizer1", forward=Pass(0, "ALLREDUCE", 4))] if self.norm else []

    def items(self) -> tuple[EndItem, ...]:
        """Returns the same as items of a step's end."""
        norm = Call("optimizer1", Phase.OPTIMIZER, Collective.ALL_REDUCE, "tp", 4)
        update = Compute("grad_param_compute", Phase.OPTIMIZER, seconds=1e-9 * self.update_ns)
        calls = [[call for _, call in each if self.mesh.size(call.axis) > 1] for each in (self.reduces, self.gathers)]
        items: list[Item] = [*calls[0], *([norm] if self.norm and self.mesh.tp > 1 else []), update, *calls[1]]
        return tuple(EndItem(item) for item in items)


def _header(setting: Setting, works: ModelWorks) -> Header:
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
    """Returns what a computation takes, with the gap that it leaves where the host waits for it."""
    if kernels is None:
        return lambda _: FILLER_S
    launch_s = 0.0 if setting.plan.cuda_graphs == "full" else setting.stack.launch_s

    def priced(item: Compute) -> float:
        return _price(item.kernels, kernels) + (sync_gap_s(launch_s) if item.syncs_host else 0.0)

    return priced


def _filled(row: WorkloadRow) -> WorkloadRow:
    """Returns a row whose passes take a nanosecond if they compute at all."""
    forward, inputs, weights = (
        replace(row_pass, compute_ns=min(row_pass.compute_ns, 1))
        for row_pass in (row.forward, row.input_grad, row.weight_grad)
    )
    return replace(row, forward=forward, input_grad=inputs, weight_grad=weights)


def _price(listed: Sequence[tuple[int, Kernel]], kernels: KernelPricer) -> float:
    if not listed:
        return 0.0
    durations = kernels.price([kernel for _, kernel in listed]).duration_s.tolist()
    return float(sum(count * each for (count, _), each in zip(listed, durations, strict=True)))


def _slowest_pieces(
    setting: Setting, schedule: Schedule, works: ModelWorks, kernels: KernelPricer | None
) -> tuple[int, ...]:
    """Returns the piece of the model whose layers the file lists, for each chunk of a stage: the slowest of any."""
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
    return tuple(chosen)


def _once(known: dict[int, float], work: Work, kernels: KernelPricer | None) -> float:
    """Returns the seconds of a layer's computation, or its FLOPs where there are no prices."""
    if id(work) not in known:
        items = (*work.forward, *work.recompute, *work.backward)
        listed = [pair for item in items if isinstance(item, Compute) for pair in item.kernels]
        known[id(work)] = (
            sum(count * kernel.flops for count, kernel in listed) if kernels is None else _price(listed, kernels)
        )
    return known[id(work)]
