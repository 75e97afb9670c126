"""Divides the device time of a table into parts that do not overlap, so that nothing is counted twice.

There are three ways, and the first that a table allows is used:

- *Ops*: the self device time of ops, which is that of the kernels each of them launched itself.
- *Kernels*: the self device time of the kernels' own rows. Where a table has both, the two are counts of the same work
  and are compared.
- *Labels*: where every self time is 0, the totals of labels less what is inside them, and next to them the autograd
  nodes, which run on a thread of their own and so in no label of the main thread. The one such table we know has no
  rows of kernels and few of ops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from foretrace.inputs.profiler_table.format import TableRow
from foretrace.inputs.profiler_table.labels import Label, label_tree
from foretrace.inputs.profiler_table.rows import ClassifiedRows, RowKind, device_s, self_device_s
from foretrace.inputs.torch_ops.kinds import WorkKind, kind_of_kernel, kind_of_op
from foretrace.inputs.torch_ops.ranges import ENGINE
from foretrace.program.columns import Phase

Basis = Literal["ops", "kernels", "labels", "op totals", "none"]
Origin = Literal["op", "kernel", "label", "autograd node"]

AGREES: Final = 0.01
"""How far the sums over ops and over kernels may lie apart."""

_COMPOSITE: Final = re.compile(
    r"linear|matmul|conv[123]d|_?convolution|batch_norm|_batch_norm_impl_index|(layer|group|instance|rms)_norm|dropout"
    r"|cross_entropy_loss|nll_loss(_nd)?|(log_)?softmax|to|contiguous|reshape|embedding|max_pool2d|adaptive_avg_pool2d"
    r"|scaled_dot_product_attention|(zeros|ones|full)(_like)?|randn?|lstm|gru|rnn_(tanh|relu)|flatten|einsum|repeat|stack"
)
"""Ops that only call others (native_functions.yaml: CompositeImplicitAutograd, or a first step of a chain)."""


@dataclass(frozen=True, slots=True)
class TablePart:
    """Device work that no other part holds, in seconds over the whole table."""

    name: str
    kind: WorkKind
    phase: Phase
    device_s: float
    calls: int
    origin: Origin = "op"
    """The kind of row that says so."""
    rest: bool = False
    """Whether it is what is left of a label besides its parts."""


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """The device time of a table, split; `kernels_s` and `ops_s` are the two counts of it that Self times give."""

    basis: Basis
    parts: tuple[TablePart, ...]
    kernels_s: float
    ops_s: float
    artefacts_s: float
    """Device time on rows of the profiler's own work: not added."""
    labels: tuple[Label, ...]

    @property
    def total_s(self) -> float:
        """All of it."""
        return sum(part.device_s for part in self.parts)

    @property
    def agree(self) -> bool | None:
        """Whether ops and kernels give the same sum; None where only one of them is there."""
        if not self.kernels_s or not self.ops_s:
            return None
        return abs(self.kernels_s - self.ops_s) <= AGREES * self.kernels_s

    def by_kind(self, origin: Origin | None = None) -> dict[WorkKind, float]:
        """Seconds of each kind, the most first: of all parts, or of those of one origin."""
        seconds: dict[WorkKind, float] = {}
        for part in self.parts:
            if origin in (None, part.origin):
                seconds[part.kind] = seconds.get(part.kind, 0.0) + part.device_s
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))

    def by_phase(self) -> dict[Phase, float]:
        """Seconds of each phase, in the order of a step."""
        seconds: dict[Phase, float] = {}
        for part in self.parts:
            seconds[part.phase] = seconds.get(part.phase, 0.0) + part.device_s
        return {phase: seconds[phase] for phase in (*list(Phase)[1:], Phase.NONE) if phase in seconds}


def device_time(rows: ClassifiedRows) -> DeviceTime:
    """Splits the device time of a table."""
    kernels, ops = rows.of(RowKind.KERNEL), _hosts(rows)
    of_kernels, of_ops = self_device_s(kernels), self_device_s(ops)
    artefacts = self_device_s(rows.of(RowKind.ARTEFACT))
    labels = label_tree(rows)
    basis, parts = _split(rows, labels, of_kernels, of_ops)
    return DeviceTime(basis, tuple(parts), of_kernels, of_ops, artefacts, labels)


def _split(
    rows: ClassifiedRows, labels: tuple[Label, ...], of_kernels: float, of_ops: float
) -> tuple[Basis, list[TablePart]]:
    # Names of kernels are mostly cut, which hides what they do; names of ops hardly ever are.
    cut = any(row.cut for row in rows.of(RowKind.KERNEL))
    if of_ops > 0 and (not of_kernels or (cut and abs(of_kernels - of_ops) <= AGREES * of_kernels)):
        return "ops", _phased(rows, _sum_by_kind(_hosts(rows), host=True))
    if of_kernels > 0:
        parts = _phased(rows, _sum_by_kind(rows.of(RowKind.KERNEL), host=False))
        return "kernels", [replace(part, origin="kernel") for part in parts]
    nodes = [replace(_part(row, Phase.BACKWARD), origin="autograd node") for row in _nodes(rows) if device_s(row) > 0]
    held = _beside([part for label in labels for part in _leaves(label, Phase.NONE)], nodes)
    if held:
        return "labels", [*held, *nodes]
    leaves = [row for row in rows.of(RowKind.OP) if device_s(row) > 0 and not _COMPOSITE.fullmatch(_plain(row.name))]
    if leaves:
        return "op totals", [_part(row, Phase.NONE) for row in leaves]
    return ("labels", nodes) if nodes else ("none", [])


def _hosts(rows: ClassifiedRows) -> list[TableRow]:
    """Rows of the host to which kernels are attributed."""
    return rows.of(RowKind.OP, RowKind.NODE, RowKind.ENGINE, RowKind.LABEL, RowKind.COLLECTIVE, RowKind.RUNTIME)


def _nodes(rows: ClassifiedRows) -> list[TableRow]:
    """Returns the autograd nodes of the backward pass as the engine ran them, each once."""
    return rows.of(RowKind.ENGINE) or rows.of(RowKind.NODE)


def _part(row: TableRow, phase: Phase) -> TablePart:
    return TablePart(row.name.removeprefix(ENGINE), kind_of_op(row.name), phase, device_s(row), row.calls)


def _plain(name: str) -> str:
    return name.rpartition("::")[2].partition(".")[0]


def _leaves(label: Label, phase: Phase) -> Iterator[TablePart]:
    """A label's parts that have none of their own, and what is left of it besides them."""
    mine = label.phase if label.phase is not Phase.NONE else phase
    for part in label.parts:
        yield from _leaves(part, mine)
    seconds = label.rest_s if label.parts else label.device_s
    if seconds > 0:
        yield TablePart(label.name, kind_of_op(label.name), mine, seconds, label.calls, "label", bool(label.parts))


def _beside(held: list[TablePart], nodes: list[TablePart]) -> list[TablePart]:
    """Parts of labels without the autograd nodes, which are inside the backward pass's label only where they fit."""
    inside = sum(part.device_s for part in nodes)
    remaining = []
    for part in held:
        if part.phase is Phase.BACKWARD and 0 < inside <= part.device_s:
            part, inside = replace(part, device_s=part.device_s - inside, rest=True), 0.0
        remaining.append(part)
    return [part for part in remaining if part.device_s > 0]


@dataclass(slots=True)
class _Sum:
    seconds: float = 0.0
    calls: int = 0


def _sum_by_kind(rows: Iterable[TableRow], *, host: bool) -> dict[WorkKind, _Sum]:
    sums: dict[WorkKind, _Sum] = {}
    for row in rows:
        seconds = max(row.self_device_s or 0.0, 0.0)
        if seconds > 0:
            total = sums.setdefault(kind_of_op(row.name) if host else kind_of_kernel(row.name), _Sum())
            total.seconds += seconds
            total.calls += row.calls
    return sums


def _phased(rows: ClassifiedRows, sums: dict[WorkKind, _Sum]) -> list[TablePart]:
    """Parts by kind and phase: backward as the autograd nodes of each kind say, the optimizer's own, and forward as
    what is left. Ops of the two passes share rows, so the split of a kind is an estimate; its sum is not."""
    backward: dict[WorkKind, float] = {}
    for row in _nodes(rows):
        kind = kind_of_op(row.name)
        backward[kind] = backward.get(kind, 0.0) + device_s(row)
    parts: list[TablePart] = []
    for kind, total in sorted(sums.items(), key=lambda item: -item[1].seconds):
        if kind is WorkKind.OPTIMIZER:
            parts.append(TablePart(str(kind), kind, Phase.OPTIMIZER, total.seconds, total.calls))
            continue
        behind = min(backward.get(kind, 0.0), total.seconds)
        for phase, seconds in ((Phase.FORWARD, total.seconds - behind), (Phase.BACKWARD, behind)):
            if seconds > 0:
                parts.append(TablePart(str(kind), kind, phase, seconds, total.calls))
    return _shifted(parts, sum(backward.values()))


def _shifted(parts: list[TablePart], backward_s: float) -> list[TablePart]:
    """Moves what nodes of one kind did in ops of another to the backward pass, in proportion: the sum over the nodes is
    sure, their kinds are not."""
    held = sum(part.device_s for part in parts if part.phase is Phase.BACKWARD)
    ahead = sum(part.device_s for part in parts if part.phase is Phase.FORWARD)
    missing = min(backward_s - held, ahead)
    if missing <= 0 or ahead <= 0:
        return parts
    shifted: list[TablePart] = []
    for part in parts:
        moved = part.device_s * missing / ahead if part.phase is Phase.FORWARD else 0.0
        if moved:
            shifted.append(TablePart(part.name, part.kind, Phase.BACKWARD, moved, part.calls))
        if part.device_s > moved:
            shifted.append(TablePart(part.name, part.kind, part.phase, part.device_s - moved, part.calls))
    return _merged(shifted)


def _merged(parts: list[TablePart]) -> list[TablePart]:
    merged: dict[tuple[str, Phase], TablePart] = {}
    for part in parts:
        before = merged.get((part.name, part.phase))
        seconds = part.device_s + (before.device_s if before else 0.0)
        merged[part.name, part.phase] = TablePart(part.name, part.kind, part.phase, seconds, part.calls)
    return list(merged.values())
