"""The pipeline of a step as lines of signs: a row per role, time from left to right.

The signs are the parts of the breakdown: letters where a rank computes, `-` where it waits for a transfer of its own,
`.` where it waits for anything else. A cell that is one thing shows it. Cells that are many times longer than their ops
would all show the one thing that takes most, so a row carries what a cell could not show to the next one (error
diffusion along the row, after Floyd and Steinberg, 1976): over any part of the row, a sign has as many cells as it
takes of the time, at any width.
"""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Floats, Longs, distinct
from foretrace.program.columns import Phase, label
from foretrace.readings.answer.answer import Answer
from foretrace.readings.breakdown import EXPOSED, Stretches

MAX_ROWS = 16
_TIE = 1e-9
_TRACE = 0.02
"""The share of a cell below which a sign is left out: such a cell is purely another."""
_PURE = 0.75
"""The share of the backward of a cell above which a part of it is named."""

LETTERS = {
    Phase.NONE: "C",
    Phase.FORWARD: "F",
    Phase.BACKWARD: "B",
    Phase.BACKWARD_INPUT: "I",
    Phase.BACKWARD_WEIGHT: "W",
    Phase.RECOMPUTE: "R",
    Phase.OPTIMIZER: "O",
}
COMMUNICATION, WAITING = "-", "."
SIGNS = (*LETTERS.values(), COMMUNICATION, WAITING)
MEANINGS = {
    "C": "compute",
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "R": "recompute",
    "O": "optimizer",
    COMMUNICATION: "communication",
    WAITING: "waiting",
}


_BACKWARD = [Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT]
"""Phases that count together where they are compared with others."""


def gantt(answer: Answer, width: int) -> list[tuple[str, str]]:
    """Returns (role, signs) of each role that computes; nothing if there are too many roles to read."""
    timeline = answer.timeline
    graph = timeline.graph
    roles = graph.program.role_of[graph.classes.representative]
    shown = [(int(role), int(np.flatnonzero(roles == role)[0])) for role in distinct(roles)]
    if len(shown) > MAX_ROWS or timeline.step_time_s <= 0:
        return []
    shares = _shares(answer.stretches(tuple(number for _, number in shown)), timeline.step_time_s, width)
    lines = np.array(SIGNS)[_signs(shares)]
    computes = shares[:, : len(LETTERS)].sum(axis=(1, 2)) > 0
    return [
        (graph.program.roles[role], "".join(line))
        for (role, _), line, drawn in zip(shown, lines, computes, strict=True)
        if drawn
    ]


def legend(rows: list[tuple[str, str]]) -> str:
    """Returns the meaning of the signs in use."""
    used = set("".join(line for _, line in rows))
    return "   ".join(f"{sign} {meaning}" for sign, meaning in MEANINGS.items() if sign in used)


def _signs(shares: Floats) -> Longs:
    """Returns [rows, width]: the sign of each cell.

    A cell shows the sign that is furthest behind its share of the row up to there, among those that the cell holds.
    The phases of backward count together, as `B` unless the cell holds nearly nothing but one of them.
    """
    together, backward = shares.copy(), shares[:, _BACKWARD].sum(axis=1)
    together[:, _BACKWARD] = 0.0
    together[:, Phase.BACKWARD] = backward
    together[together < _TRACE] = 0.0
    together /= np.maximum(together.sum(axis=1, keepdims=True), _TIE)
    rows = np.arange(len(shares))
    signs, behind = np.zeros((len(shares), shares.shape[2]), dtype=np.int64), np.zeros(shares.shape[:2])
    for cell in range(shares.shape[2]):
        behind += together[:, :, cell]
        held = np.where(together[:, :, cell] > 0, behind, -np.inf)
        # Computation wins a tie, which rounding must not decide.
        signs[:, cell] = (held >= held.max(axis=1, keepdims=True) - _TIE).argmax(axis=1)
        behind[rows, signs[:, cell]] -= 1.0
    for part in _BACKWARD[1:]:
        signs[(signs == Phase.BACKWARD) & (shares[:, part] > _PURE * backward)] = part
    return signs


def _shares(stretches: Stretches, step_s: float, width: int) -> Floats:
    """Returns [rows, signs, width]: the share of each cell of the step that a class spends on each sign."""
    sign_of = np.array([_sign(part) for part in stretches.parts])
    row = stretches.owner * len(SIGNS) + sign_of[stretches.part]
    shares = np.zeros((len(stretches.classes) * len(SIGNS), width))
    # A stretch that reaches over an end of the step belongs to the other end too.
    moved = np.floor(stretches.low_s / step_s) * step_s
    low, high = ((edge - moved) / step_s * width for edge in (stretches.low_s, stretches.high_s))
    for number in distinct(row).tolist():
        mine = row == number
        filled = _filled(low[mine], high[mine], 2 * width)
        shares[number] = filled[:width] + filled[width:]
    return np.clip(shares, 0.0, 1.0).reshape(len(stretches.classes), len(SIGNS), width)


def _sign(part: str) -> int:
    phases = {label(phase): int(phase) for phase in Phase}
    return phases.get(part, SIGNS.index(COMMUNICATION if part.endswith(EXPOSED) else WAITING))


def _filled(low: Floats, high: Floats, width: int) -> Floats:
    """Returns how much of each unit cell the intervals cover, as differences of what they cover up to each edge."""
    edges = np.arange(width + 1)
    covered = np.zeros(width + 1)
    for sign, points in ((1.0, np.sort(low)), (-1.0, np.sort(high))):
        before = np.searchsorted(points, edges)
        sums = np.concatenate([[0.0], np.cumsum(points)])
        covered += sign * (before * edges - sums[before])
    return np.diff(covered)
