"""Op families: the sets of ops a person asks about, by the words they use.

compute  communication  host          what an op is
forward  backward  optimizer  …       which phase it belongs to
tp  dp  pp  ep  …                     the axis it communicates over
all_reduce  all_to_all  …             what it does there
name:attention*   lane:dp             its name or lane, with * and ?
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import InputError, did_you_mean
from foretrace.program.columns import Collective, Kind, Phase, label
from foretrace.program.expand import Ops

Mask = NDArray[np.bool_]

_BACKWARD = (Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True)
class Family:
    """A word and the ops it means."""

    name: str
    ops: Mask


def families(ops: Ops) -> list[Family]:
    """Every family that has ops in this program, broad ones first; one word for each set of ops."""
    found: dict[bytes, Family] = {}
    for name, mask in _words(ops).items():
        if mask.any() and name != "communication":
            found.setdefault(mask.tobytes(), Family(name, mask))
    return list(found.values())


def select(ops: Ops, text: str) -> Mask:
    """The ops a word or a pattern means; an error with the known words if it means none."""
    text = text.strip()
    words = _words(ops)
    if ":" in text:
        kind, pattern = text.split(":", 1)
        mask = _by_pattern(ops, kind, pattern)
    elif text in words:
        mask = words[text]
    else:
        known = [name for name, members in words.items() if members.any()]
        raise InputError(
            f'"{text}" names no ops of this job{did_you_mean(text, known)}',
            hint=f"known: {', '.join(known)}, name:…, lane:…",
        )
    if not mask.any():
        raise InputError(f'"{text}" names no ops of this job')
    return mask


def _words(ops: Ops) -> dict[str, Mask]:
    kind, phase, collective = ops.ints("kind"), ops.ints("phase"), ops.ints("collective")
    communicator = ops.ints("communicator")
    enabled = ops.column("enabled").astype(bool)
    words = {
        "compute": kind == Kind.COMPUTE,
        "communication": (kind == Kind.COLLECTIVE) | (kind == Kind.TRANSFER),
        "host": kind == Kind.HOST,
    }
    for number, one in enumerate(ops.program.communicators):
        words[one.axis] = words.get(one.axis, np.zeros(len(ops), dtype=bool)) | (communicator == number)
    computes = kind == Kind.COMPUTE
    words["forward"] = computes & (phase == Phase.FORWARD)
    words["backward"] = computes & np.isin(phase, _BACKWARD)
    for one_phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.RECOMPUTE, Phase.OPTIMIZER):
        words[label(one_phase)] = computes & (phase == one_phase)
    for what in Collective:
        if what != Collective.NONE:
            words[label(what)] = collective == what
    return {name: mask & enabled for name, mask in words.items()}


def _by_pattern(ops: Ops, kind: str, pattern: str) -> Mask:
    tables = {"name": ops.program.strings, "lane": tuple(lane.name for lane in ops.program.lanes)}
    if kind not in tables:
        raise InputError(f'ops are chosen by name: or lane:, not by "{kind}:"')
    matches = np.array([fnmatchcase(text, pattern) for text in tables[kind]], dtype=bool)
    return np.asarray(matches[ops.ints(kind)] & ops.column("enabled").astype(bool))
