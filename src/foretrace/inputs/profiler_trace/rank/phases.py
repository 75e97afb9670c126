"""Which part of a step each call and kernel belongs to: forward, backward or optimizer."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory, RankProfile
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.torch_ops.ranges import ENGINE, phase_within
from foretrace.program.columns import Phase

_DEEPEST: Final = 64
"""Ranges within ranges that are looked through."""


def phases(trace: RankProfile, links: EventLinks) -> NDArray[np.uint8]:
    """Returns, for each event, the phase (as `Phase`) of the innermost range around its launch that names one.

    Work that no range names comes before a backward (then it is forward) or before an optimizer (then it is part of
    that: gradients are clipped there). Work that nothing follows is left open.
    """
    phase = _by_ranges(trace, links)
    events = trace.events
    asked = np.flatnonzero((events.category == EventCategory.RUNTIME) | np.isin(events.category, ON_DEVICE))
    asked = asked[~np.isnan(links.issued_s[asked])]
    order = asked[np.argsort(links.issued_s[asked], kind="stable")]
    named = np.flatnonzero(phase[order] != Phase.NONE)
    open_ = np.flatnonzero(phase[order] == Phase.NONE)
    if len(named) and len(open_):
        after = np.searchsorted(named, open_)
        known = after < len(named)
        following = phase[order[named[np.minimum(after, len(named) - 1)]]]
        turned = np.where(following == Phase.BACKWARD, np.uint8(Phase.FORWARD), following)
        phase[order[open_[known]]] = turned[known]
    return phase


def _by_ranges(trace: RankProfile, links: EventLinks) -> NDArray[np.uint8]:
    """Finds phases by the innermost op of autograd's engine, else by the innermost annotation that names one."""
    events = trace.events
    engine = trace.named(lambda name: name.startswith(ENGINE))
    words = np.array([int(phase_within(name)) for name in trace.strings] or [0], dtype=np.uint8)
    phase = np.zeros(len(events), dtype=np.uint8)
    at = links.op.copy()
    for _ in range(_DEEPEST):
        inside = at >= 0
        if not inside.any():
            break
        phase[inside & engine[at]] = Phase.BACKWARD
        at = np.where(inside, links.op[at], -1)
    at = links.annotation.copy()
    for _ in range(_DEEPEST):
        inside = (at >= 0) & (phase == Phase.NONE)
        if not inside.any():
            break
        phase = np.where(inside, words[events.name[at]], phase)
        at = np.where(at >= 0, links.annotation[at], -1)
    return phase
