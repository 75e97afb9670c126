"""How a workload is run: mesh, schedule, chunks and what crosses stage boundaries, from its header and the user."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.errors import Diagnostic, InputError
from foretrace.formats.aicb import Row, Workload, split_collective
from foretrace.lower.aicb.choices import Choices
from foretrace.lower.aicb.microbatches import Structure
from foretrace.mesh import Mesh
from foretrace.schedules import Schedule, make
from foretrace.schedules.in_turn import forward_only
from foretrace.units import format_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What the lowering goes by."""

    mesh: Mesh
    schedule: Schedule
    trains: bool
    transfer_bytes: int
    tokens_per_step: float | None
    diagnostics: tuple[Diagnostic, ...]


def make_plan(workload: Workload, structure: Structure, choices: Choices) -> Plan:
    """Decides what the file leaves open, and says so."""
    notes: list[Diagnostic] = []
    mesh = _mesh(workload, choices, notes)
    trains = workload.header.mode != 1
    microbatches = choices.microbatches or len(structure.microbatches)
    if choices.microbatches and choices.microbatches != len(structure.microbatches):
        text = f"{microbatches} microbatches as asked; the list holds {len(structure.microbatches)}, taken in turn"
        notes.append(Diagnostic("note", text))
    if trains:
        schedule = _schedule(workload, structure, choices, mesh.pp, microbatches, notes)
    else:
        schedule = forward_only(mesh.pp, microbatches)
        notes.append(
            Diagnostic("note", "an inference file (mode: 1): forward only, the time of one pass", workload.at(1))
        )
    _check_chunks(workload, structure, schedule)
    transfer = _transfer_bytes(workload, structure, choices, mesh, notes) if mesh.pp > 1 else 0
    tokens = tokens_of(structure)
    per_step = None if tokens is None else float(tokens * microbatches * mesh.dp)
    return Plan(mesh, schedule, trains, transfer, per_step, tuple(notes))


def _mesh(workload: Workload, choices: Choices, notes: list[Diagnostic]) -> Mesh:
    header, where = workload.header, workload.at(1)
    tp, pp, ep = header.tp or 1, header.pp or 1, header.ep or 1
    absent = [name for name, size in (("tp", header.tp), ("pp", header.pp), ("ep", header.ep)) if size is None]
    if absent:
        notes.append(Diagnostic("note", f"no {', '.join(absent)} in the header: 1 taken", where))
    given = choices.gpus or header.all_gpus
    if given is None:
        raise InputError("the header has no all_gpus", where=where, hint="say how many GPUs: --gpus 128")
    if given % (tp * pp):
        raise InputError(
            f"{given:,} GPUs cannot be divided into tp {tp} × pp {pp} = {tp * pp}",
            where=where,
            hint=f"ask for a multiple of {tp * pp}, as in --gpus {max(given // (tp * pp), 1) * tp * pp}",
        )
    if choices.gpus and header.all_gpus and choices.gpus != header.all_gpus:
        text = f"{choices.gpus:,} GPUs as asked, {header.all_gpus:,} in the header: dp {given // (tp * pp)}"
        notes.append(Diagnostic("note", text, where))
    try:
        return Mesh(tp=tp, dp=given // (tp * pp), pp=pp, ep=ep)
    except InputError as error:
        raise InputError(error.message, where=where, hint=error.hint) from None


def _schedule(
    workload: Workload,
    structure: Structure,
    choices: Choices,
    stages: int,
    microbatches: int,
    notes: list[Diagnostic],
) -> Schedule:
    chunks = _chunks(workload, structure, choices, stages, notes)
    name = choices.schedule or ("interleaved-1f1b" if chunks and chunks > 1 else "1f1b")
    try:
        made = make(name, stages, microbatches, chunks if chunks and chunks > 1 else None)
    except InputError as error:
        raise InputError(error.message, where=workload.at(1), hint=error.hint) from None
    if not choices.schedule and stages > 1:
        notes.append(Diagnostic("note", f"no schedule in the file: {made.name} taken (choose with --schedule)"))
    return made


def _chunks(
    workload: Workload, structure: Structure, choices: Choices, stages: int, notes: list[Diagnostic]
) -> int | None:
    """Chunks per stage as the user or the header wants them; None leaves them to the schedule."""
    written, layers, where = workload.header.vpp, structure.layers, workload.at(1)
    if isinstance(choices.vpp, int):
        return choices.vpp
    if written is None:
        if stages > 1:
            text = "no vpp in the header, by which SimAI divides: 1 chunk per stage taken"
            notes.append(Diagnostic("note", text, where))
        return None
    if choices.vpp == "chunks":
        return written
    if written <= 1 or stages == 1:
        return None
    if choices.vpp == "layers" or written == layers:
        why = (
            "as asked"
            if choices.vpp == "layers"
            else f"the list has {layers} layers per stage, which AICB writes there"
        )
        notes.append(Diagnostic("note", f"vpp {written} read as layers per stage, not chunks: {why}", where))
        return None
    if layers % written:
        text = (
            f"vpp {written} is neither the {layers} layers per stage nor a number of chunks that divides them: ignored"
        )
        notes.append(Diagnostic("warning", text, where))
        return None
    notes.append(Diagnostic("note", f"vpp {written} read as chunks per stage ({layers} layers)", where))
    return written


def _check_chunks(workload: Workload, structure: Structure, schedule: Schedule) -> None:
    """Every microbatch needs a layer for each chunk of a stage."""
    parts = schedule.chunks // schedule.directions
    for number, one in enumerate(structure.microbatches):
        if len(one.layers) < parts or (not one.layers and schedule.stages > 1):
            raise InputError(
                f"microbatch {number} has {len(one.layers)} layers per stage, too few for {parts} chunks",
                where=workload.at(one.line),
                hint="take fewer chunks: --vpp 1, or another --schedule",
            )


def _transfer_bytes(
    workload: Workload, structure: Structure, choices: Choices, mesh: Mesh, notes: list[Diagnostic]
) -> int:
    if choices.pp_comm_bytes is not None:
        return choices.pp_comm_bytes
    written = workload.header.pp_comm_bytes
    found = _activation(structure, mesh)
    if written:
        if found and found[0] != written:
            size, row = found
            text = (
                f"pp_comm is {format_bytes(written)}, {written / size:g} times the {format_bytes(size)} that "
                f"{row.name} (line {row.line}) implies; taken as written"
            )
            notes.append(Diagnostic("warning", text, workload.at(1)))
        return round(written)
    missing = "pp_comm is 0" if written is not None else "no pp_comm"
    if found is None:
        raise InputError(
            f"{missing} in the header, and no row tells the size of an activation",
            where=workload.at(1),
            hint="say what crosses a stage boundary: --pp-comm 16MiB",
        )
    size, row = found
    text = f"{missing} in the header: {format_bytes(size)} derived from {row.name}"
    notes.append(Diagnostic("note", text, workload.at(row.line)))
    return size


def _activation(structure: Structure, mesh: Mesh) -> tuple[int, Row] | None:
    """What a rank holds of an activation between layers, and the row that tells: a gather or scatter moves all of it
    between tp ranks that hold a part each (sequence parallelism); an all-reduce leaves all of it on each."""
    for row in structure.microbatches[0].layers[0]:
        name, suffix = split_collective(row.forward.collective.upper())
        size = round(row.forward.size_bytes)
        if suffix or not size:
            continue
        if name in ("ALLGATHER", "REDUCESCATTER"):
            return size // mesh.tp, row
        if name == "ALLREDUCE":
            return size, row
    return None


def tokens_of(structure: Structure) -> int | None:
    """Tokens of a microbatch: the loss reduces one fp32 number for each."""
    for row in structure.microbatches[0].head:
        if row.name.startswith("cross_entropy") and row.forward.collective.upper() == "ALLREDUCE":
            size = round(row.forward.size_bytes)
            return size // 4 if size >= 4 and size % 4 == 0 else None
    return None
