"""Where the training steps of a trace begin and end, and which of them each kernel belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Ints, Longs, Mask
from foretrace.inputs.profiler_trace.format.arguments import whole
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE, EventCategory, RankProfile
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.inputs.torch_ops.ranges import ENGINE, OPTIMIZER_STEP, PROFILER_STEP

WHOLE_TRACE: Final = "whole trace"
"""How steps were found where nothing marks any: the trace is taken as one."""
_STEP_WORD: Final = re.compile(r"(?<![a-z])(train(ing)?[_ -]?)?(step|iter|iteration|batch)(?![a-z])", re.IGNORECASE)
_PART_WORD: Final = re.compile(r"optim|sched|zero_grad|load|nccl|forward|backward|wait", re.IGNORECASE)
MISSING_MARKS: Final = "those steps are told by the kernels that repeat, if they do"
PHASE: Final = 0.05
"""The share of a step by which the launches between two marks may differ from those of the others."""

_MIN_KERNELS: Final = 8
"""The least number of kernels of a step: fewer that repeat are more likely a loop within one."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The recorded steps, in order. A step reaches from its start on the host to the start of the next; the last to its
    own end. Work on a device belongs to the step in which it was launched."""

    how: str
    """"ProfilerStep", "annotation X", "first kernel of each forward", "repeating kernels" or "whole trace"."""
    names: tuple[str, ...]
    start_s: Floats
    end_s: Floats
    whole: Mask
    """False where the trace begins or ends within the step, or where nothing of the step reached a device."""
    of_event: Ints
    """For each event the step it was issued in, -1 outside of all."""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Boundaries of steps; `closed` where the ranges hold whole steps, else only their starts say something."""

    how: str
    names: tuple[str, ...]
    start_s: Floats
    own_end_s: Floats
    closed: bool


def find_steps(trace: RankProfile, links: EventLinks | None = None) -> Steps:
    """Finds the steps of a trace.

    They are told by ProfilerStep, else by an annotation that repeats, else by where backwards turn into forwards, else
    by kernels that repeat; else the whole trace is one step.
    """
    links = links or EventLinks(trace)
    cut = (
        _by_profiler_step(trace, links)
        or _by_annotation(trace, links)
        or _by_forward(trace, links)
        or _by_kernels(trace, links)
        or _whole_trace(trace)
    )
    return _placed(trace, links, cut)


def _by_profiler_step(trace: RankProfile, links: EventLinks) -> _Cut | None:
    events = trace.events
    marks = trace.named(lambda name: name.startswith(PROFILER_STEP))
    on_host = np.isin(events.category, (EventCategory.ANNOTATION, EventCategory.CPU_OP)) & (events.thread >= 0)
    marked = np.flatnonzero(marks & on_host)
    if not len(marked):
        return None
    names, start_s, end_s = tuple(trace.names(marked)), events.start_s[marked], events.end_s[marked]
    return _with_missing_marks(
        trace, links, step_numbers(trace, marked), _Cut(PROFILER_STEP, names, start_s, end_s, closed=True)
    )


def step_numbers(trace: RankProfile, marks: Longs) -> Longs:
    """Returns the number of each of these marks, -1 where it has none."""
    numbers = [whole(name.removeprefix(PROFILER_STEP).lstrip("#")) for name in trace.names(marks)]
    return np.array(numbers, dtype=np.int64)


def _with_missing_marks(trace: RankProfile, links: EventLinks, numbers: Longs, cut: _Cut) -> _Cut:
    """Returns a cut with the steps between marks whose numbers do not follow each other, where the kernels repeat."""
    gaps = np.diff(numbers)
    if not (gaps > 1).any():
        return cut
    device = in_launch_order(trace, links)
    issued_s = links.issued_s[device]
    period, _ = kernel_period(trace.events.name[device])
    first = np.searchsorted(issued_s, cut.start_s)
    rows = [(cut.names[0], float(cut.start_s[0]), float(cut.own_end_s[0]))]
    for at, gap in enumerate(gaps.tolist(), start=1):
        apart = int(first[at] - first[at - 1])
        if gap > 1 and period and abs(apart - gap * period) <= PHASE * period:
            starts = issued_s[first[at - 1] + period * np.arange(1, gap)].tolist()
            ends = [*starts[1:], float(cut.start_s[at])]
            names = [f"{PROFILER_STEP}#{numbers[at - 1] + turn}" for turn in range(1, gap)]
            rows += zip(names, starts, ends, strict=True)
        rows.append((cut.names[at], float(cut.start_s[at]), float(cut.own_end_s[at])))
    labels, start_s, end_s = zip(*rows, strict=True)
    return _Cut(cut.how, labels, np.array(start_s), np.array(end_s), closed=True)


def _by_annotation(trace: RankProfile, links: EventLinks) -> _Cut | None:
    """Cuts at ranges that look like steps by their name, else at those that repeat once a step."""
    events = trace.events
    launches = np.sort(links.issued_s[in_launch_order(trace, links)])
    families = {name: ranges for name, ranges in _families(trace).items() if _disjoint(trace, ranges)}
    named = {k: v for k, v in families.items() if _STEP_WORD.search(k) and not _PART_WORD.search(k)}
    covered = {name: _held(trace, ranges, launches) for name, ranges in families.items()}
    best = max(named, key=lambda name: covered[name], default=None)
    if best is not None and covered[best] > 0.5:
        ranges = families[best]
        names = tuple(trace.names(ranges))
        if len(set(names)) < len(names):
            names = tuple(f"{name} {number}" for number, name in enumerate(names))
        return _Cut(f"annotation {best}", names, events.start_s[ranges], events.end_s[ranges], closed=True)
    repeated = {name: ranges for name, ranges in families.items() if len(ranges) > 1}
    if not repeated:
        return None
    # A step ends with an optimizer: several forwards to one of those are microbatches.
    optimizers = [len(ranges) for name, ranges in repeated.items() if name.startswith(OPTIMIZER_STEP)]
    most = max(repeated, key=lambda name: covered[name])
    if covered[most] < 0.05 and not optimizers:
        return None
    count = min(optimizers, default=len(repeated[most]))
    candidates = [name for name, ranges in repeated.items() if len(ranges) == count]
    first = min(candidates, key=lambda name: events.start_s[repeated[name][0]])
    ranges = repeated[first]
    return _Cut(
        f"annotation {first}",
        tuple(f"step {number}" for number in range(count)),
        events.start_s[ranges],
        np.append(events.start_s[ranges][1:], np.inf),
        closed=False,
    )


def _by_forward(trace: RankProfile, links: EventLinks) -> _Cut | None:
    """Cuts where work launched by autograd's engine is followed by work that is not and leads to a backward again."""
    marks = trace.named(lambda name: name.startswith(ENGINE))
    device = in_launch_order(trace, links)
    if not len(device) or not marks.any():
        return None
    # A backward's op is nested a few deep under the engine's.
    under = links.op[device]
    backward = np.zeros(len(device), dtype=bool)
    for _ in range(16):
        known = under >= 0
        backward |= known & marks[under]
        under = np.where(known, links.op[under], -1)
    turns = np.flatnonzero(~backward[1:] & backward[:-1]) + 1
    turns = np.array([0, *turns.tolist()] if not backward[0] else turns, dtype=np.int64)
    turns = turns[[bool(backward[at:].any()) for at in turns]]  # what follows the last backward is an optimizer
    if len(turns) < 2:
        return None
    start_s = links.issued_s[device[turns]]
    names = tuple(f"step {number}" for number in range(len(turns)))
    return _Cut("first kernel of each forward", names, start_s, np.append(start_s[1:], np.inf), closed=False)


def _by_kernels(trace: RankProfile, links: EventLinks) -> _Cut | None:
    """Cuts where a kernel repeats after the same number of others, as in a trace of kernels alone."""
    device = in_launch_order(trace, links)
    period, at = kernel_period(trace.events.name[device])
    if not period:
        return None
    starts = np.arange(at, len(device), period)
    start_s = links.issued_s[device[starts]]
    labels = tuple(f"step {number}" for number in range(len(starts)))
    return _Cut("repeating kernels", labels, start_s, np.append(start_s[1:], np.inf), closed=False)


def kernel_period(names: Ints) -> tuple[int, int]:
    """Returns after how many kernels the sequence repeats, and where the first whole turn begins; (0, 0) if it does
    not."""
    order = np.argsort(names, kind="stable")
    starts = np.flatnonzero(np.diff(names[order], prepend=-1))
    for group in np.split(order, starts[1:]):
        apart = np.diff(group)
        if len(group) < 2 or apart[0] < _MIN_KERNELS or (apart != apart[0]).any():
            continue
        period = int(apart[0])
        same = float(np.mean(names[period:] == names[:-period]))
        if same > 0.95:
            return period, int(group[0]) % period
    return 0, 0


def _whole_trace(trace: RankProfile) -> _Cut:
    events = trace.events
    kept = np.flatnonzero(
        ~np.isin(events.category, (EventCategory.OTHER, EventCategory.OVERHEAD, EventCategory.PYTHON))
    )
    first, last = (events.start_s[kept].min(), events.end_s[kept].max()) if len(kept) else (0.0, 0.0)
    return _Cut(WHOLE_TRACE, (WHOLE_TRACE,), np.array([first]), np.array([last]), closed=True)


def _placed(trace: RankProfile, links: EventLinks, cut: _Cut) -> Steps:
    """Finds the step in which each event was issued, and the steps that are whole."""
    events = trace.events
    end_s = np.append(cut.start_s[1:], cut.own_end_s[-1:])
    issued = links.issued_s
    known = ~np.isnan(issued)
    at = np.searchsorted(cut.start_s, np.where(known, issued, -np.inf), side="right") - 1
    step = np.where((at >= 0) & (issued < end_s[at]), at, -1).astype(np.int32)
    device = events.of(*ON_DEVICE)
    held = np.bincount(step[device][step[device] >= 0], minlength=len(cut.names))
    whole = held > 0
    if cut.closed:
        whole[1:] &= held[:-1] > 0  # after a step whose work was not recorded the device seems idle
    if len(held) > 1:
        if not cut.closed and held[-1] != np.median(held[:-1]):
            whole[-1] = False
        if cut.closed and _between(step[device], issued[device], cut) > 0.01 * held[:-1].sum():
            whole[-1] = False  # what the others do between two ranges lies behind the end of the last
    last_s = float(events.end_s.max()) if len(events) else 0.0
    return Steps(cut.how, cut.names, cut.start_s, np.minimum(end_s, last_s), whole, step.astype(np.int32))


def _between(step: NDArray[np.integer[Any]], issued: Floats, cut: _Cut) -> int:
    """Returns how much work was launched after the end of a range and before the next."""
    inner = (step >= 0) & (step < len(cut.names) - 1)
    return int(np.count_nonzero(issued[inner] >= cut.own_end_s[step[inner]]))


def _families(trace: RankProfile) -> dict[str, Longs]:
    """Returns annotations by their name without numbers."""
    events = trace.events
    ranges = events.of(EventCategory.ANNOTATION)
    ranges = ranges[events.thread[ranges] >= 0]
    families: dict[str, list[int]] = {}
    for number, name in zip(ranges.tolist(), trace.names(ranges), strict=True):
        families.setdefault(re.sub(r"\d+", "N", name), []).append(number)
    return {name: np.array(numbers, dtype=np.int64) for name, numbers in families.items()}


def _disjoint(trace: RankProfile, ranges: Longs) -> bool:
    events = trace.events
    one_thread = len(set(events.thread[ranges].tolist())) == 1
    return one_thread and bool((events.end_s[ranges][:-1] <= events.start_s[ranges][1:] + 1e-9).all())


def _held(trace: RankProfile, ranges: Longs, launches_s: Floats) -> float:
    """Returns the share of the launches that lies in these ranges."""
    if not len(launches_s):
        return 0.0
    events = trace.events
    inside = np.searchsorted(launches_s, events.end_s[ranges]) - np.searchsorted(launches_s, events.start_s[ranges])
    return float(inside.sum()) / len(launches_s)


def in_launch_order(trace: RankProfile, links: EventLinks) -> Longs:
    """Returns device events by when they were launched, where that is known."""
    device = trace.events.of(*ON_DEVICE)
    known = device[~np.isnan(links.issued_s[device])]
    return known[np.argsort(links.issued_s[known], kind="stable")]
