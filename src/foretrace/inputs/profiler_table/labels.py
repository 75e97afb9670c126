"""Infers how the labels of a table nest, from their order, calls, totals and names.

Rows that were not sorted stand in the order in which each name first began, so what is inside a label comes after it.
What fits exactly into a label's device time, or nearly, and comes directly after it, is taken as its inside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from foretrace.basics.limits import check_limit
from foretrace.inputs.profiler_table.format import TableRow
from foretrace.inputs.profiler_table.rows import ClassifiedRows, RowKind, device_s, host_s
from foretrace.inputs.torch_ops.ranges import whole_phase
from foretrace.program.columns import Phase

FILLED: Final = 0.97
"""The least share of a label's device time that what follows it must fill to count as its inside."""
ROUNDING_S: Final = 1e-6
"""How far one printed total may be off: three digits of a millisecond."""

MAX_LABELS: Final = 1000
"""Labels that differ in more than a number; how they nest takes time in proportion to the square of their count."""

_STEP: Final = re.compile(r"profilerstep|(train(ing)?)?[-_ ]?step|iter", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Label:
    """A label, or several that differ in their number only (LAYER_0, LAYER_1, …), with what is inside.

    `rest_s` is device time inside it and inside none of its parts. `how` says why its parts are taken to be its parts.
    """

    name: str
    rows: tuple[TableRow, ...]
    phase: Phase = Phase.NONE
    parts: tuple[Label, ...] = ()
    how: str = ""

    @property
    def calls(self) -> int:
        """How often it was entered."""
        return sum(row.calls for row in self.rows)

    @property
    def device_s(self) -> float:
        """Device time inside it."""
        return sum(device_s(row) for row in self.rows)

    @property
    def host_s(self) -> float:
        """Host time inside it."""
        return sum(host_s(row) for row in self.rows)

    @property
    def rest_s(self) -> float:
        """Device time inside it and none of its parts; what rounding leaves counts as nothing."""
        rest = self.device_s - sum(part.device_s for part in self.parts)
        return rest if rest > self.rounding_s else 0.0

    @property
    def rounding_s(self) -> float:
        """How far the sums above may be off."""
        return ROUNDING_S * (len(self.rows) + sum(len(part.rows) for part in self.parts))


def label_tree(rows: ClassifiedRows) -> tuple[Label, ...]:
    """The labels of a table as a forest: steps, in them the phases of training, in these everything else."""
    families = _families(rows.of(RowKind.LABEL))
    check_limit(len(families), MAX_LABELS, "different labels in the table", rows.table.at(rows.table.line))
    steps = [family for family in families if _STEP.match(family.name)]
    step = max(steps, key=lambda step: step.host_s, default=None)
    inside = [family for family in families if family is not step]
    if in_order(rows):
        inside = _phased(inside)
    else:
        inside = _nested_optimizers([replace(family, phase=whole_phase(family.name)) for family in inside])
    if step is None:
        return tuple(inside)
    within = [family for family in inside if family.host_s <= step.host_s]
    how = "it is the longest label, and named as a step"
    return (replace(step, parts=tuple(within), how=how), *(family for family in inside if family not in within))


def in_order(rows: ClassifiedRows) -> bool:
    """Whether the rows stand as they first began: no column falls from row to row, as one would that they are sorted
    by."""
    columns = (
        "cpu_total_s",
        "self_cpu_s",
        "cpu_average_s",
        "device_total_s",
        "self_device_s",
        "device_average_s",
        "calls",
    )
    for column in columns:
        values = [getattr(row, column) for row in rows.table.rows]
        known = [value for value in values if value is not None]
        if len(known) > 1 and known[0] > known[-1] and all(a >= b for a, b in pairwise(known)):
            return False
    return True


def _families(labels: Sequence[TableRow]) -> list[Label]:
    """Labels, those that differ in their number only as one, at the place of the first."""
    by_stem: dict[tuple[str, str], list[TableRow]] = {}
    for row in labels:
        stem = row.name.rstrip("0123456789")
        mark = stem[-1:] if stem[-1:] in ("-", "_", "#", " ") else ""
        numbered = len(stem) < len(row.name) and len(stem) > len(mark)
        by_stem.setdefault((stem.removesuffix(mark), mark) if numbered else (row.name, "\0"), []).append(row)
    families = []
    for (stem, mark), members in by_stem.items():
        if mark == "\0" or len(members) > 1:
            families.append(Label(stem if mark == "\0" else f"{stem}{mark}*", tuple(members)))
        else:
            families.append(Label(members[0].name, tuple(members)))
    return sorted(families, key=lambda family: family.rows[0].line)


def _phased(labels: Sequence[Label]) -> list[Label]:
    """Labels in the order in which they began, each inside the phase that began before it."""
    phases: list[tuple[Label | None, list[Label]]] = [(None, [])]
    for label in labels:
        phase = whole_phase(label.name)
        if phase is Phase.NONE:
            phases[-1][1].append(label)
        else:
            phases.append((replace(label, phase=phase), []))
    forest: list[Label] = []
    for head, inside in phases:
        nested = _by_names(_by_sums(inside), None if head is None else head.device_s)
        if head is None:
            forest += nested
        else:
            fits = sum(part.device_s for part in nested) <= head.device_s + ROUNDING_S * (1 + len(nested))
            if not fits or not nested:
                forest += [head, *nested]
            else:
                how = "they began after it and before the next phase, and fit into it"
                forest.append(replace(head, parts=tuple(nested), how=how))
    return _nested_optimizers(forest)


def _nested_optimizers(labels: Sequence[Label]) -> list[Label]:
    """Optimizer.step#Adam.step, which PyTorch marks itself, inside a user's label of the same phase that holds it."""
    filled: list[Label] = []
    outer = [label for label in labels if label.phase is Phase.OPTIMIZER and not label.name.startswith("Optimizer.")]
    nested: set[int] = set()
    for label in outer:
        inner = [
            other
            for other in labels
            if other.name.startswith("Optimizer.step")
            and other.calls == label.calls
            and 0.5 * label.device_s <= other.device_s <= label.device_s + ROUNDING_S
            and other.host_s <= label.host_s
            and id(other) not in nested
        ]
        nested |= {id(other) for other in inner[:1]}
        filled.append(replace(label, parts=tuple(inner[:1]), how="PyTorch marks it itself") if inner else label)
    kept = {id(label): new for label, new in zip(outer, filled, strict=True)}
    return [kept.get(id(label), label) for label in labels if id(label) not in nested]


def _fits_calls(parent: Label, child: Label) -> bool:
    """Whether a label can be inside another in every one of its calls; members of a family may differ."""
    return len(parent.rows) > 1 or child.calls % max(parent.calls, 1) == 0


def _by_sums(labels: Sequence[Label]) -> list[Label]:
    """Nests what directly follows a label in the table and fills its device time."""
    siblings: list[Label] = []  # of what comes after, already nested
    for label in reversed(labels):
        count, total = 0, 0.0
        room = label.device_s + ROUNDING_S * len(label.rows)
        for after in siblings:
            if total + after.device_s > room + ROUNDING_S * (count + 1) or not _fits_calls(label, after):
                break
            total += after.device_s
            count += 1
        if count and label.device_s > 0 and total >= FILLED * label.device_s:
            share = f"what follows it fills {100 * min(total / label.device_s, 1.0):.1f} % of its device time"
            label = replace(label, parts=tuple(siblings[:count]), how=share)
            siblings = siblings[count:]
        siblings.insert(0, label)
    return siblings


def _by_names(labels: Sequence[Label], room_s: float | None) -> list[Label]:
    """Nests labels whose names continue that of the label before them.

    They stay next to it where their sum shows that they are not inside it.
    """
    total = sum(label.device_s for label in labels)
    if room_s is not None and total >= room_s - ROUNDING_S * (1 + len(labels)):
        return list(labels)
    nested: list[Label] = []
    for label in labels:
        before = nested[-1] if nested else None
        if before is not None and _goes_on(before, label):
            nested[-1] = replace(
                before, parts=(*before.parts, label), how=before.how or "their names begin with its name"
            )
        else:
            nested.append(label)
    return nested


def _goes_on(parent: Label, child: Label) -> bool:
    begins = _plain(child.name).startswith(_plain(parent.name)) and _plain(child.name) != _plain(parent.name)
    return begins and _fits_calls(parent, child) and child.device_s <= parent.rest_s and child.host_s <= parent.host_s


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
