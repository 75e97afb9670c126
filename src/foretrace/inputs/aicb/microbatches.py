"""Finds what each row is for: the microbatches in the unrolled list, their layers, and what happens once per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.aicb.format import Workload, WorkloadRow
from foretrace.inputs.aicb.format.records import base_name

STEP_ROWS = frozenset(
    {
        "grad_gather",
        "grad_param_comm",
        "grad_param_compute",
        "layernorm",
        "embedding_grads",
        "moe_grad_norm1",
        "moe_grad_norm2",
        "grad_norm",
    }
)
"""Rows before the first microbatch that stand for what happens once per step."""

EMBEDDING = "embedding_layer"
_MAX_NAMED = 8
"""Microbatches that notes name one by one."""
HEAD_ROWS = frozenset({"final_column", "embedding_norm"})


@dataclass(frozen=True, slots=True)
class Microbatch:
    """One pass through a stage: the rows of the embedding, of each layer, and of head and loss."""

    embedding: tuple[WorkloadRow, ...]
    layers: tuple[tuple[WorkloadRow, ...], ...]
    head: tuple[WorkloadRow, ...]

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return len(self.embedding) + sum(map(len, self.layers)) + len(self.head)

    @property
    def line(self) -> int:
        """Where it begins."""
        rows = self.embedding or (self.layers[0] if self.layers else self.head)
        return rows[0].line


@dataclass(frozen=True, slots=True)
class Structure:
    """The rows of a workload by what they are for, and what was odd about them."""

    step: tuple[WorkloadRow, ...]
    optimizer: tuple[WorkloadRow, ...]
    microbatches: tuple[Microbatch, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def layers(self) -> int:
        """The layers of a stage: those of the longest microbatch."""
        return max(len(microbatch.layers) for microbatch in self.microbatches)


def find_structure(workload: Workload) -> Structure:
    """Sorts the rows; whatever has to be guessed is in the diagnostics."""
    step: list[WorkloadRow] = []
    optimizer: list[WorkloadRow] = []
    listed: list[list[WorkloadRow]] = []
    loss: list[WorkloadRow] = []
    begun = False
    for row in workload.rows:
        base = base_name(row.name)
        if base.startswith("optimizer"):
            optimizer.append(row)
        elif not begun and base in STEP_ROWS:
            step.append(row)
        elif base == EMBEDDING or not begun:
            begun = True
            listed.append([row])
        else:
            listed[-1].append(row)
    if not listed:
        raise InputError(
            "nothing-to-do",
            "no row is a layer: the file lists only what happens once per step",
            where=workload.at(workload.rows[0].line),
            hint="expected rows such as attention_column and mlp_row",
        )
    notes: list[Diagnostic] = []
    listed = _split_evenly(workload, listed, notes)
    loss = _shared_loss(workload, listed, notes)
    microbatches = tuple(_microbatch(rows, loss) for rows in listed)
    _compare_with_header(workload, microbatches, notes)
    _compare_lengths(workload, microbatches, notes)
    return Structure(tuple(step), tuple(optimizer), microbatches, tuple(notes))


def _split_evenly(
    workload: Workload, listed: list[list[WorkloadRow]], notes: list[Diagnostic]
) -> list[list[WorkloadRow]]:
    """Microbatches of a list without embedding rows: `ga` equal parts, where it has them."""
    ga = workload.header.ga or 1
    rows = listed[0]
    if len(listed) > 1 or ga < 2 or base_name(rows[0].name) == EMBEDDING:
        return listed
    body = [row for row in rows if not _is_loss(row)]
    size, rest = divmod(len(body), ga)
    if rest or not size:  # before anything is built: ga may be any number
        return listed
    parts = [body[i * size : (i + 1) * size] for i in range(ga)]
    if any(_facts(part) != _facts(parts[0]) for part in parts):
        return listed
    notes.append(
        Diagnostic(
            "note",
            "guessed",
            f"no embedding rows: the list is {ga} equal parts, one for each microbatch",
            workload.at_header,
        )
    )
    parts[-1] += [row for row in rows if _is_loss(row)]
    return parts


def _shared_loss(workload: Workload, listed: list[list[WorkloadRow]], notes: list[Diagnostic]) -> list[WorkloadRow]:
    """The loss rows, if the list has them once, after its last microbatch, for all microbatches."""
    loss = [row for row in listed[-1] if _is_loss(row)]
    if len(listed) == 1 or not loss or any(_is_loss(row) for rows in listed[:-1] for row in rows):
        return []
    notes.append(
        Diagnostic(
            "note",
            "odd-input",
            f"the loss is listed once for {len(listed)} microbatches; it is computed in each",
            workload.at(loss[0].line),
        )
    )
    listed[-1] = [row for row in listed[-1] if not _is_loss(row)]
    return loss


def _microbatch(rows: Sequence[WorkloadRow], loss: list[WorkloadRow]) -> Microbatch:
    embedding: list[WorkloadRow] = []
    head: list[WorkloadRow] = []
    layers: list[list[WorkloadRow]] = []
    begins = ""
    for row in rows:
        base = base_name(row.name)
        if base == EMBEDDING:
            embedding.append(row)
        elif base in HEAD_ROWS or _is_loss(row):
            head.append(row)
        elif base == begins or not layers:
            # A layer begins with the row that the first one begins with.
            begins = base
            layers.append([row])
        else:
            layers[-1].append(row)
    return Microbatch(tuple(embedding), tuple(tuple(layer) for layer in layers), (*head, *loss))


def _compare_with_header(workload: Workload, microbatches: Sequence[Microbatch], notes: list[Diagnostic]) -> None:
    count, ga = len(microbatches), workload.header.ga
    if ga is None:
        notes.append(
            Diagnostic("note", "guessed", f"no ga in the header: {_count(count)} found in the list", workload.at_header)
        )
    elif ga != count:
        notes.append(
            Diagnostic(
                "warning",
                "conflicting-values",
                f"the header says ga {ga}, the list holds {_count(count)}: "
                f"{count} simulated (choose with --microbatches)",
                workload.at_header,
            )
        )


def _compare_lengths(workload: Workload, microbatches: Sequence[Microbatch], notes: list[Diagnostic]) -> None:
    longest = max(len(microbatch.layers) for microbatch in microbatches)
    short = [number for number, microbatch in enumerate(microbatches) if len(microbatch.layers) < longest]
    for number in short[:_MAX_NAMED]:
        microbatch = microbatches[number]
        message = (
            f"microbatch {number} is cut short: it has {len(microbatch.layers)} of {longest} layers; taken as it is"
        )
        notes.append(Diagnostic("warning", "odd-input", message, workload.at(microbatch.line)))
    if len(short) > _MAX_NAMED:
        message = f"{len(short) - _MAX_NAMED:,} more microbatches are cut short"
        notes.append(Diagnostic("warning", "odd-input", message, workload.path))


def _count(microbatches: int) -> str:
    return f"{microbatches} microbatch{'' if microbatches == 1 else 'es'}"


def _facts(rows: Sequence[WorkloadRow]) -> list[tuple[object, ...]]:
    return [(base_name(row.name), row.forward, row.input_grad, row.weight_grad) for row in rows]


def _is_loss(row: WorkloadRow) -> bool:
    return row.name.startswith("cross_entropy")
