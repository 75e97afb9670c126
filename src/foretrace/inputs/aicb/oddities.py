"""Reports the marks of how AICB made a workload, or of a hand that changed it."""

from __future__ import annotations

from statistics import median

from foretrace.basics.errors import Diagnostic
from foretrace.basics.mesh import Mesh
from foretrace.basics.units import format_time
from foretrace.inputs.aicb.format import Workload, WorkloadRow, split_collective
from foretrace.inputs.aicb.format.records import base_name
from foretrace.inputs.aicb.microbatches import Structure
from foretrace.inputs.aicb.plan import tokens_of

_FILLERS = (0, 1, 1000)
"""What stands for computation that was not measured, in nanoseconds."""

SMALLEST_HIDDEN = 512
"""No model that is trained on many GPUs is narrower (GPT-2 small: 768)."""

MAX_FLOPS = 3e15
"""FLOP/s of the projections of an attention over the time of its layer. They are at most a third of a layer, and a B200
reaches 9e15 in fp4."""
MIN_FLOPS = 2e11
"""A hundredth of the same rate in layers of real workloads on an A100."""
_ATTENTION_FLOPS = 8
"""FLOPs of a token in the projections of an attention, in squares of the hidden size; the rest of a layer is more."""
_MAX_RATIO = 10.0
"""The ratio of forward to backward of all layers (2 in real files), and of a row to the median of its name (1)."""


def oddities(workload: Workload, structure: Structure, mesh: Mesh) -> list[Diagnostic]:
    """Reports what the rows tell about how they were made."""
    if workload.header.mode == 1:
        return [*_only_fillers(workload, structure), *_groups_of_one(workload, mesh)]
    return [
        *_only_fillers(workload, structure),
        *_recompute(workload, structure),
        *_stale_embedding(workload),
        *_bare_reductions(workload, structure),
        *_half_reductions(workload, structure),
        *_groups_of_one(workload, mesh),
        *_other_fillers(workload),
        *_small_model(workload, structure),
        *_odd_times(workload, structure, mesh),
    ]


def hidden_size(structure: Structure) -> int | None:
    """Returns the hidden size that tokens and the bytes of an activation imply, at two bytes a number."""
    tokens, row = tokens_of(structure), next(iter(_layer_rows(structure)), None)
    if (
        tokens is None
        or row is None
        or row.forward.collective.upper() not in ("ALLGATHER", "REDUCESCATTER", "ALLREDUCE")
    ):
        return None
    size, rest = divmod(round(row.forward.size_bytes), 2 * tokens)
    return size if size and not rest else None


def _layer_rows(structure: Structure) -> list[WorkloadRow]:
    return [row for layer in structure.microbatches[0].layers for row in layer]


def _only_fillers(workload: Workload, structure: Structure) -> list[Diagnostic]:
    rows = _layer_rows(structure)
    if rows and all(row.forward.compute_ns in _FILLERS for row in rows):
        text = "no layer's computation was measured (1 µs or less each): the result is communication alone"
        return [Diagnostic("warning", "unmeasured-compute", text, workload.at(rows[0].line))]
    return []


def _recompute(workload: Workload, structure: Structure) -> list[Diagnostic]:
    for row in _layer_rows(structure):
        forward, backward = row.forward.compute_ns, row.input_grad.compute_ns
        if base_name(row.name).startswith("attention") and backward > 1000 and abs(forward - 2 * backward) <= 2:
            text = f"{row.name} takes twice as long forward as backward: recomputation, counted in the forward"
            return [Diagnostic("note", "guessed", text, workload.at(row.line))]
    return []


def _stale_embedding(workload: Workload) -> list[Diagnostic]:
    """AICB's loop leaves the weight-gradient time of the row before in the embedding's."""
    before: WorkloadRow | None = None
    for row in workload.rows:
        if base_name(row.name) == "embedding_layer" and before is not None:
            time = row.weight_grad.compute_ns
            if time > 1000 and time == before.weight_grad.compute_ns:
                text = (
                    f"{row.name}'s weight gradient takes {format_time(time * 1e-9)}, as {before.name} before it: "
                    "a leftover of AICB's loop; taken as written"
                )
                return [Diagnostic("warning", "odd-input", text, workload.at(row.line))]
        before = row
    return []


def _bare_reductions(workload: Workload, structure: Structure) -> list[Diagnostic]:
    """Sequence parallelism scatters the gradient of what a column gathered; AICB writes 0 bytes for it."""
    rows = [
        row
        for row in _layer_rows(structure)
        if row.forward.collective.upper() == "ALLGATHER"
        and row.input_grad.collective.upper() == "REDUCESCATTER"
        and row.input_grad.size_bytes == 0 < row.forward.size_bytes
    ]
    if not rows:
        return []
    row = rows[0]
    text = (
        f"{row.name}'s backward reduce-scatter has 0 bytes, its forward gathers {row.forward.size_bytes:,} "
        f"({len(rows)} rows a microbatch): AICB leaves it out, so tp is too low; taken as written"
    )
    return [Diagnostic("warning", "odd-input", text, workload.at(row.line))]


def _half_reductions(workload: Workload, structure: Structure) -> list[Diagnostic]:
    for row in _layer_rows(structure):
        forward, backward = row.forward, row.input_grad
        pair = forward.collective.upper() == "ALLGATHER" and backward.collective.upper() == "REDUCESCATTER"
        if pair and 0 < backward.size_bytes < forward.size_bytes:
            text = (
                f"{row.name} gathers {forward.size_bytes:,} bytes forward but scatters {backward.size_bytes:,} "
                "backward, where AICB writes 0 and Megatron sends as many; taken as written"
            )
            return [Diagnostic("note", "odd-input", text, workload.at(row.line))]
    return []


def _groups_of_one(workload: Workload, mesh: Mesh) -> list[Diagnostic]:
    """Collectives with nobody to send to: the row stays, the collective takes no time."""
    alone = {"_EP": mesh.ep == 1, "_DP_EP": mesh.edp == 1}
    rows = [
        (row, part.collective)
        for row in workload.rows
        for part in (row.forward, row.input_grad, row.weight_grad)
        if part.size_bytes and "_" in part.collective and alone.get(split_collective(part.collective.upper())[1])
    ]
    if not rows:
        return []
    row, collective = rows[0]
    group = "ep" if split_collective(collective.upper())[1] == "_EP" else "dp/ep"
    text = f"{row.name}'s {collective} has a group of one ({group} is 1): nothing is sent ({len(rows)} such)"
    return [Diagnostic("note", "odd-input", text, workload.at(row.line))]


def _other_fillers(workload: Workload) -> list[Diagnostic]:
    """Times and sizes where AICB writes 1 ns, 0 ns or 4 bytes: a file edited by hand or by another tool."""
    notes = []
    padded = [
        row
        for row in workload.rows
        for part in (row.forward, row.input_grad, row.weight_grad)
        if part.compute_ns == 1000 and part.collective.upper() == "NONE"
    ]
    if padded:
        text = f"{len(padded)} passes that do nothing take 1,000 ns, where AICB writes 1; taken as written"
        notes.append(Diagnostic("note", "odd-input", text, workload.at(padded[0].line)))
    for word in ("cross_entropy", "optimizer"):
        rows = [row for row in workload.rows if row.name.startswith(word) and row.forward.compute_ns > 1]
        if rows:
            row = rows[0]
            text = f"{row.name} computes for {format_time(row.forward.compute_ns * 1e-9)}, where AICB writes 0"
            if word == "optimizer" and row.forward.size_bytes > 4:
                text += f", and reduces {row.forward.size_bytes:,} bytes, where AICB writes 4"
            notes.append(Diagnostic("note", "odd-input", f"{text}; taken as written", workload.at(row.line)))
    return notes


def _small_model(workload: Workload, structure: Structure) -> list[Diagnostic]:
    size, tokens = hidden_size(structure), tokens_of(structure)
    if size is None or size >= SMALLEST_HIDDEN:
        return []
    row = _layer_rows(structure)[0]
    activation = f"{row.forward.size_bytes:,} bytes of activation"
    text = f"{tokens:,} tokens and {activation} imply a hidden size of {size}: no real model"
    return [Diagnostic("note", "odd-input", text, workload.at(row.line))]


def _odd_times(workload: Workload, structure: Structure, mesh: Mesh) -> list[Diagnostic]:
    """Reports computation in another unit: of all layers, of one direction, or of some rows of many."""
    rows = _layer_rows(structure)
    forward_ns = sum(row.forward.compute_ns for row in rows)
    if all(row.forward.compute_ns in _FILLERS for row in rows):
        return []
    notes, unit = [], "; taken as written: times are nanoseconds"
    hidden, tokens = hidden_size(structure), tokens_of(structure)
    if hidden is not None and tokens is not None and hidden >= SMALLEST_HIDDEN:
        layers = len(structure.microbatches[0].layers)
        rate = _ATTENTION_FLOPS * hidden**2 * tokens * layers / mesh.tp / (forward_ns * 1e-9)
        if not MIN_FLOPS < rate < MAX_FLOPS:
            text = f"attentions compute at {rate / 1e12:,.3g} TFLOP/s, for hidden size {hidden:,} and {tokens:,} tokens"
            notes.append(Diagnostic("warning", "implausible-rate", f"{text}{unit}", workload.at(rows[0].line)))
    backward_ns = sum(row.input_grad.compute_ns for row in rows)
    if backward_ns > len(rows) and not 1 / _MAX_RATIO < forward_ns / backward_ns < _MAX_RATIO:
        text = f"forwards of layers take {forward_ns / backward_ns:,.3g} times as long as gradients of inputs{unit}"
        notes.append(Diagnostic("warning", "implausible-time", text, workload.at(rows[0].line)))
    times: dict[tuple[object, ...], list[tuple[float, WorkloadRow]]] = {}
    for row in rows:
        parts = (row.forward, row.input_grad, row.weight_grad)
        key = (base_name(row.name), *((part.collective, part.size_bytes) for part in parts))
        times.setdefault(key, []).append((sum(float(part.compute_ns) for part in parts), row))
    for entries in times.values():
        usual_ns = median(total_ns for total_ns, _ in entries)
        odd = [row for total_ns, row in entries if not usual_ns / _MAX_RATIO < total_ns < usual_ns * _MAX_RATIO]
        if odd and usual_ns > max(_FILLERS):
            text = f"{len(odd)} of {len(entries)} rows of {odd[0].name} take ten times or a tenth of the others{unit}"
            return [*notes, Diagnostic("warning", "implausible-time", text, workload.at(odd[0].line))]
    return notes
