"""Decides how a workload is run: mesh, schedule, chunks and stage transfers, from its header and the user."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.limits import MAX_STAGES, check_gpus, check_ops
from foretrace.basics.mesh import Mesh
from foretrace.basics.units import format_bytes
from foretrace.inputs.aicb.format import Workload, WorkloadRow, split_collective
from foretrace.inputs.aicb.microbatches import Structure
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.option_values import Overlap, check_parts
from foretrace.schedules import Schedule, make
from foretrace.schedules.in_turn import forward_only

FEWER_CHUNKS = "take fewer chunks: --vpp 1"


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """The decisions that a workload is lowered by."""

    mesh: Mesh
    schedule: Schedule
    trains: bool
    transfer_bytes: int
    tokens_per_step: float | None
    layers: int
    """Layers of a stage that the file lists."""
    diagnostics: tuple[Diagnostic, ...]


def make_plan(workload: Workload, structure: Structure, options: WorkloadOptions) -> WorkloadPlan:
    """Decides what the file leaves open, and reports it."""
    notes: list[Diagnostic] = []
    mesh = _mesh(workload, options, notes)
    notes += _unread(workload, structure)
    trains = workload.header.mode != 1
    microbatches = options.microbatches or len(structure.microbatches)
    if options.microbatches and options.microbatches != len(structure.microbatches):
        text = f"{microbatches:,} microbatches as asked; the list holds {len(structure.microbatches)}, taken in turn"
        notes.append(Diagnostic("note", "changed-as-asked", text, workload.at_header))
    if trains:
        schedule = _schedule(workload, structure, options, mesh.pp, microbatches, notes)
    else:
        _check_size(structure, options, mesh.pp, microbatches, workload.at_header)
        schedule = forward_only(mesh.pp, microbatches)
        text = "an inference file (mode: 1): forward only, the time of one pass"
        ignored = [f"--schedule {options.schedule}"] if options.schedule else []
        ignored += [f"--overlap {kind}" for kind in sorted(options.overlap - {Overlap.TP})]
        text += f"; {', '.join(ignored)} ignored" if ignored else ""
        notes.append(Diagnostic("note", "odd-input", text, workload.at_header))
    _check_chunks(workload, structure, schedule)
    if options.stage_layers is not None:
        notes.append(_uneven(workload, structure, schedule, options.stage_layers))
    transfer = _transfer_bytes(workload, structure, options, mesh, notes) if mesh.pp > 1 else 0
    tokens = tokens_of(structure)
    per_step = None if tokens is None else float(tokens * microbatches * mesh.dp)
    return WorkloadPlan(mesh, schedule, trains, transfer, per_step, structure.layers, tuple(notes))


def _uneven(workload: Workload, structure: Structure, schedule: Schedule, layers: tuple[int, ...]) -> Diagnostic:
    """Checks the layers that are asked for, and says what becomes of the file's."""
    check_parts(layers, schedule.pieces, workload.at_header)
    text = (
        f"{sum(layers):,} layers in parts of {', '.join(map(str, layers))} as asked; the file lists {structure.layers} "
        "for every stage, taken in turn; gradients, optimizer and gathers in proportion"
    )
    return Diagnostic("note", "changed-as-asked", text, workload.at_header)


def _unread(workload: Workload, structure: Structure) -> list[Diagnostic]:
    """Reports what the header or the rows ask for and the simulation does not do."""
    header, ignored = workload.header, []
    if not header.policy.startswith("HYBRID_TRANSFORMER"):
        ignored.append(
            ("odd-input", f"policy {header.policy}: groups are read as for HYBRID_TRANSFORMER, by suffix and pass")
        )
    if any(row.policy for row in workload.rows):
        ignored.append(("field-ignored", "policies of single rows are not read"))
    if header.checkpoints or header.checkpoint_initiates:
        ignored.append(
            ("not-modelled", "checkpoints: recomputation of these rows is not simulated; times are taken as written")
        )
    if header.mode not in (None, 0, 1):
        ignored.append(("odd-input", f"mode {header.mode} is not known: taken as training"))
    once = len(structure.step) + len(structure.optimizer)
    if header.mode == 1 and once:
        ignored.append(("rows-skipped", f"{once} rows that happen once per step are not run in inference"))
    return [Diagnostic("warning", code, text, workload.at_header) for code, text in ignored]


def _mesh(workload: Workload, options: WorkloadOptions, notes: list[Diagnostic]) -> Mesh:
    header, where = workload.header, workload.at_header
    tp, pp, ep = header.tp or 1, header.pp or 1, header.ep or 1
    absent = [name for name, size in (("tp", header.tp), ("pp", header.pp), ("ep", header.ep)) if size is None]
    if absent:
        notes.append(Diagnostic("note", "assumed", f"no {', '.join(absent)} in the header: 1 taken", where))
    if pp > MAX_STAGES:
        raise InputError(
            "too-large",
            f"{pp:,} pipeline stages are more than any job has",
            where=where,
            hint=f"at most {MAX_STAGES:,}",
        )
    given = options.gpus or header.all_gpus
    if given is None:
        raise InputError(
            "missing-field", "the header has no all_gpus", where=where, hint="say how many GPUs: --gpus 128"
        )
    check_gpus(given, where)
    if given % (tp * pp):
        raise InputError(
            "not-divisible",
            f"{given:,} GPUs cannot be divided into tp {tp} × pp {pp} = {tp * pp}",
            where=where,
            hint=f"ask for a multiple of {tp * pp}, as in --gpus {max(given // (tp * pp), 1) * tp * pp}",
        )
    if options.gpus and header.all_gpus and options.gpus != header.all_gpus:
        times = options.gpus / header.all_gpus
        text = f"{options.gpus:,} GPUs as asked, {header.all_gpus:,} in the header: dp {given // (tp * pp)}"
        text += f", and {times:g} times the tokens in a step (--microbatches decides how many)"
        notes.append(Diagnostic("note", "changed-as-asked", text, where))
    dp = given // (tp * pp)
    if dp % ep:
        raise InputError(
            "not-divisible",
            f"ep {ep} does not divide dp {dp}, which is {given:,} GPUs / tp {tp} / pp {pp}",
            where=where,
            hint=f"ask for a multiple of {tp * pp * ep:,} GPUs",
        )
    try:
        return Mesh(tp=tp, dp=dp, pp=pp, ep=ep)
    except InputError as error:
        raise InputError(error.code, error.message, where=where, hint=error.hint) from None


def _schedule(
    workload: Workload,
    structure: Structure,
    options: WorkloadOptions,
    stages: int,
    microbatches: int,
    notes: list[Diagnostic],
) -> Schedule:
    where, asked = workload.at_header, options.schedule
    chunks = _chunks(workload, structure, options, stages, notes)
    if chunks is not None and chunks > structure.layers:
        raise InputError(
            "invalid-schedule",
            f"{chunks:,} chunks are more than the {structure.layers} layers of a stage",
            where=where,
            hint=f"at most {structure.layers}",
        )
    _check_size(structure, options, stages, microbatches, where)
    name = asked or ("interleaved-1f1b" if chunks and chunks > 1 else "1f1b")
    try:
        try:
            made = make(name, stages, microbatches, chunks)
        except InputError:
            # Chunks that only the header wants give way to a schedule that the user wants.
            if asked is None or chunks is None or isinstance(options.vpp, int):
                raise
            made = make(name, stages, microbatches)
            notes.append(
                Diagnostic(
                    "note", "field-ignored", f"vpp {chunks} of the header does not go with {made.name}: ignored", where
                )
            )
    except InputError as error:
        hint = error.hint if asked else f"choose a schedule with --schedule, or {FEWER_CHUNKS}"
        raise InputError(error.code, error.message, where=where, hint=hint) from None
    if asked is None and stages > 1:
        notes.append(
            Diagnostic("note", "assumed", f"no schedule in the file: {made.name} taken (choose with --schedule)", where)
        )
    parts = made.chunks // made.directions
    if structure.layers % parts:
        split = [(i + 1) * structure.layers // parts - i * structure.layers // parts for i in range(parts)]
        text = f"{structure.layers} layers in {parts} chunks: {', '.join(map(str, split))}"
        notes.append(Diagnostic("note", "assumed", text, where))
    return made


def _check_size(structure: Structure, options: WorkloadOptions, stages: int, microbatches: int, where: str) -> None:
    rows = max(microbatch.rows for microbatch in structure.microbatches)
    if options.stage_layers is not None:
        rows = -(-rows * sum(options.stage_layers) // max(structure.layers * stages, 1))
    # A row is about two ops forward and two backward.
    check_ops(stages * microbatches * 4 * max(rows, 1), stages, microbatches, where)


def _chunks(
    workload: Workload, structure: Structure, options: WorkloadOptions, stages: int, notes: list[Diagnostic]
) -> int | None:
    """Chunks per stage as the user or the header wants them; None leaves them to the schedule."""
    written, layers, where = workload.header.vpp, structure.layers, workload.at_header
    if isinstance(options.vpp, int):
        return options.vpp
    if written is None:
        if stages > 1 and options.schedule is None:
            text = "no vpp in the header, by which SimAI divides: 1 chunk per stage taken"
            notes.append(Diagnostic("note", "assumed", text, where))
        return None
    if written <= 1 or stages == 1:
        return None
    if options.vpp == "chunks":
        return written
    if options.vpp == "layers" or written == layers:
        reason = f"the list has {layers} layers per stage, which AICB writes there"
        why = "as asked" if options.vpp == "layers" else reason
        notes.append(
            Diagnostic("note", "vpp-reading", f"vpp {written} read as layers per stage, not chunks: {why}", where)
        )
        return None
    if layers % written:
        text = f"vpp {written} is neither the {layers} layers per stage nor divides them: ignored"
        notes.append(Diagnostic("warning", "field-ignored", text, where))
        return None
    notes.append(Diagnostic("note", "vpp-reading", f"vpp {written} read as chunks per stage ({layers} layers)", where))
    return written


def _check_chunks(workload: Workload, structure: Structure, schedule: Schedule) -> None:
    """Every microbatch needs a layer for each chunk of a stage."""
    parts = schedule.chunks // schedule.directions
    for number, microbatch in enumerate(structure.microbatches):
        if not microbatch.layers:
            raise InputError(
                "missing-field",
                f"microbatch {number} has no layers",
                where=workload.at(microbatch.line),
                hint="an embedding row begins a microbatch; expected rows such as attention_column after it",
            )
        if len(microbatch.layers) < parts:
            layers = f"{len(microbatch.layers)} layer{'' if len(microbatch.layers) == 1 else 's'}"
            raise InputError(
                "invalid-schedule",
                f"microbatch {number} has {layers} per stage, too few for {parts} chunks",
                where=workload.at(microbatch.line),
                hint=FEWER_CHUNKS,
            )


def _transfer_bytes(
    workload: Workload, structure: Structure, options: WorkloadOptions, mesh: Mesh, notes: list[Diagnostic]
) -> int:
    if options.pp_comm_bytes is not None:
        return options.pp_comm_bytes
    written = workload.header.pp_comm_bytes
    activation = _activation(structure, mesh)
    if written:
        if activation and activation[0] != written:
            size, row = activation
            text = (
                f"pp_comm is {format_bytes(written)}, {written / size:g} times the {format_bytes(size)} that "
                f"{row.name} (line {row.line}) implies; taken as written"
            )
            notes.append(Diagnostic("warning", "conflicting-values", text, workload.at_header))
        return round(written)
    missing = "pp_comm is 0" if written is not None else "no pp_comm"
    if activation is None:
        raise InputError(
            "missing-field",
            f"{missing} in the header, and no row tells the size of an activation",
            where=workload.at_header,
            hint="say what crosses a stage boundary: --pp-comm 16MiB",
        )
    size, row = activation
    text = f"{missing} in the header: {format_bytes(size)} derived from {row.name}"
    notes.append(Diagnostic("note", "guessed", text, workload.at(row.line)))
    return size


def _activation(structure: Structure, mesh: Mesh) -> tuple[int, WorkloadRow] | None:
    """Returns the bytes of an activation between layers that a rank holds, and the row that tells them.

    A gather or scatter moves all of it between tp ranks that hold a part each (sequence parallelism); an all-reduce
    leaves all of it on each.
    """
    for row in structure.microbatches[0].layers[0]:
        name, suffix = split_collective(row.forward.collective.upper())
        size = round(row.forward.size_bytes)
        if name in ("ALLGATHER", "REDUCESCATTER"):
            size //= mesh.tp
        elif name != "ALLREDUCE":
            continue
        if size and not suffix:
            return size, row
    return None


def tokens_of(structure: Structure) -> int | None:
    """Tokens of a microbatch: the loss reduces one fp32 number for each."""
    for row in structure.microbatches[0].head:
        if row.name.startswith("cross_entropy") and row.forward.collective.upper() == "ALLREDUCE":
            size = round(row.forward.size_bytes)
            return size // 4 if size >= 4 and size % 4 == 0 else None
    return None
