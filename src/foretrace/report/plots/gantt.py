"""The pipeline of a step as lines of letters: a row per role, time from left to right."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import Floats, distinct
from foretrace.program.columns import Kind, Phase
from foretrace.program.timeline import Timeline

MAX_ROWS = 16
_TIE = 1e-9

LETTERS = {
    Phase.NONE: "C",
    Phase.FORWARD: "F",
    Phase.BACKWARD: "B",
    Phase.BACKWARD_INPUT: "I",
    Phase.BACKWARD_WEIGHT: "W",
    Phase.RECOMPUTE: "R",
    Phase.OPTIMIZER: "O",
}
MEANINGS = {
    "C": "compute",
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "R": "recompute",
    "O": "optimizer",
}


_BACKWARD = (Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
"""Phases that count together where they are compared with others."""


def gantt(timeline: Timeline, width: int) -> list[tuple[str, str]]:
    """Returns (role, letters) of each role that computes; nothing if there are too many roles to read.

    A letter stands for the phase that fills most of its slice of the step, `.` for anything but computation.
    """
    graph = timeline.graph
    roles = graph.program.role_of[graph.classes.representative]
    shown = [(int(role), int(np.flatnonzero(roles == role)[0])) for role in distinct(roles)]
    if len(shown) > MAX_ROWS or timeline.step_time_s <= 0:
        return []
    rows = []
    for role, number in shown:
        shares = _shares(timeline, number, width)
        if shares.any():
            rows.append((graph.program.roles[role], _line(shares)))
    return rows


def legend(rows: list[tuple[str, str]]) -> str:
    """Returns what the letters in use mean."""
    used = set("".join(line for _, line in rows))
    words = [f"{letter} {meaning}" for letter, meaning in MEANINGS.items() if letter in used]
    return "   ".join([*words, ". waiting"] if "." in used else words)


def _line(shares: Floats) -> str:
    """Returns the letter of the phase that fills most of each slice.

    The phases of backward count together, as `B` unless one of them is more than half of their time.
    """
    together, backward = shares.copy(), shares[list(_BACKWARD)].sum(axis=0)
    together[list(_BACKWARD)] = 0.0
    together[Phase.BACKWARD] = backward
    letter, most = together.argmax(axis=0), together.max(axis=0)
    for part in _BACKWARD[1:]:
        letter = np.where((letter == Phase.BACKWARD) & (shares[part] > backward / 2 + _TIE), part, letter)
    # Computation wins a tie, which rounding must not decide.
    waiting = 1.0 - shares.sum(axis=0) > most + _TIE
    return "".join(np.array([*LETTERS.values(), "."])[np.where(waiting, len(LETTERS), letter)])


def _shares(timeline: Timeline, number: int, width: int) -> Floats:
    """Returns [phases, width]: the share of each slice of the step that a class computes in each phase."""
    graph, step = timeline.graph, timeline.step_time_s
    nodes = np.arange(graph.start[number], graph.start[number + 1])
    nodes = nodes[graph.ops.ints("kind")[graph.op[nodes]] == Kind.COMPUTE]
    phase = graph.ops.ints("phase")[graph.op[nodes]]
    shares = np.zeros((len(LETTERS), width))
    for number in range(len(LETTERS)):
        mine = nodes[phase == number]
        low, high = timeline.start_s[mine] / step * width, timeline.end_s[mine] / step * width
        filled = _filled(low, high, 2 * width)
        # Ops that run past the end of the step are drawn at the start of the next.
        shares[number] = filled[:width] + (filled[width:] if graph.program.repeats else 0.0)
    return shares


def _filled(low: Floats, high: Floats, width: int) -> Floats:
    """Returns how much of each unit cell the intervals cover, as differences of what they cover up to each edge."""
    edges = np.arange(width + 1)
    covered = np.zeros(width + 1)
    for sign, points in ((1.0, np.sort(low)), (-1.0, np.sort(high))):
        before = np.searchsorted(points, edges)
        sums = np.concatenate([[0.0], np.cumsum(points)])
        covered += sign * (before * edges - sums[before])
    return np.diff(covered)
