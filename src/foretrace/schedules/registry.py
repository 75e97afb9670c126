"""Lists the schedules by name, and makes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from foretrace.basics.cache import SizedCache
from foretrace.basics.errors import InputError, did_you_mean, shown_value
from foretrace.basics.limits import check_ops
from foretrace.basics.numbers import python_number
from foretrace.schedules.dualpipe import dualpipe, dualpipe_v
from foretrace.schedules.in_turn import gpipe, looped_bfs, one_forward_one_backward
from foretrace.schedules.interleaved import interleaved_1f1b, interleaved_zero_bubble
from foretrace.schedules.schedule import Schedule
from foretrace.schedules.zero_bubble import zb_h1, zb_v


@dataclass(frozen=True, slots=True)
class _FixedChunks:
    """A schedule whose number of chunks per stage is part of its design."""

    build: Callable[[int, int], Schedule]
    chunks: int
    description: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class _AnyChunks:
    """A schedule that takes the number of chunks per stage; 2 where none is given."""

    build: Callable[[int, int, int], Schedule]
    least: int
    description: str
    needs: str = ""


_WHOLE_GROUPS = "microbatches a multiple of stages"

_SCHEDULES: dict[str, _FixedChunks | _AnyChunks] = {
    "gpipe": _FixedChunks(gpipe, 1, "All forwards, then all backwards."),
    "1f1b": _FixedChunks(one_forward_one_backward, 1, "Forwards and backwards in turn, with a flush."),
    "interleaved-1f1b": _AnyChunks(
        interleaved_1f1b, 2, "1F1B over several chunks, as Megatron runs it.", _WHOLE_GROUPS
    ),
    "looped-bfs": _AnyChunks(looped_bfs, 1, "All microbatches of a chunk, then the next."),
    "zb-h1": _FixedChunks(zb_h1, 1, "1F1B, weight gradients delayed into idle time."),
    "zb-v": _FixedChunks(zb_v, 2, "Delayed weight gradients on a V of two chunks."),
    "interleaved-zb": _AnyChunks(
        interleaved_zero_bubble, 2, "Interleaved 1F1B, weight gradients as in zb-h1.", _WHOLE_GROUPS
    ),
    "dualpipe": _FixedChunks(
        dualpipe, 2, "Two opposite pipelines; weights are held twice.", "even stages, even microbatches ≥ 2 stages"
    ),
    "dualpipe-v": _FixedChunks(
        dualpipe_v, 2, "Half of DualPipe as a V; weights are held once.", "microbatches ≥ 2 stages"
    ),
}

# What other projects and papers call the same schedules.
_ALIASES = {
    "interleaved": "interleaved-1f1b",
    "virtual-pipeline": "interleaved-1f1b",
    "pipedream-flush": "1f1b",
    "bfs": "looped-bfs",
    "breadth-first": "looped-bfs",
    "zb1p": "zb-h1",
    "zbv-zero-bubble": "zb-v",
    "interleaved-zero-bubble": "interleaved-zb",
}

_DEFAULT_CHUNKS = 2


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """A schedule in words: what it does, and which pipelines it fits."""

    name: str
    description: str
    min_chunks: int
    """Chunks per stage at least."""
    max_chunks: int | None
    """Chunks per stage at most; None: any number."""
    needs: str
    """The rule for numbers of stages and microbatches; "": any."""
    aliases: tuple[str, ...]
    """Names that other projects and papers use."""


def schedule_facts(name: str) -> ScheduleFacts:
    """Describes the named schedule, in any spelling of its name."""
    name = resolve(name)
    entry = _SCHEDULES[name]
    least, most = (entry.chunks, entry.chunks) if isinstance(entry, _FixedChunks) else (entry.least, None)
    aliases = tuple(alias for alias, own in _ALIASES.items() if own == name)
    return ScheduleFacts(name, entry.description, least, most, entry.needs, aliases)


def names() -> tuple[str, ...]:
    """The names of all schedules."""
    return tuple(_SCHEDULES)


def make(name: str, stages: int, microbatches: int, chunks: int | None = None) -> Schedule:
    """Returns the named schedule for `stages` and `microbatches`.

    Case, dashes and underscores in the name do not matter. `chunks` per stage defaults to what the schedule needs: 1,
    or 2 where it interleaves or folds. A schedule is never edited, so the same one is given again.
    """
    name = resolve(name)
    stages, microbatches, chunks = map(python_number, (stages, microbatches, chunks))
    for word, value in (("stages", stages), ("microbatches", microbatches)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError("out-of-range", f"{name} needs at least 1 for {word}, not {shown_value(value)}")
    if not isinstance(chunks, int | None) or isinstance(chunks, bool):
        raise InputError("bad-value", f"{name} needs a whole number of chunks, not {shown_value(chunks)}")
    check_ops(2 * stages * microbatches * max(1, chunks or 1), stages, microbatches, name)
    return _MADE.get((name, stages, microbatches, chunks), lambda: _build(name, stages, microbatches, chunks))


_MADE: SizedCache[tuple[str, int, int, int | None], Schedule] = SizedCache(
    3_000_000, lambda schedule: sum(map(len, schedule.stage_actions))
)
"""Schedules by what they were asked for with, bounded by their actions.

A search goes over hundreds of schedules again and again, from a few actions to a million. An action takes about 100
bytes with the script that is kept with it, so this is 300 MB at most."""


def _build(name: str, stages: int, microbatches: int, chunks: int | None) -> Schedule:
    entry = _SCHEDULES[name]
    if isinstance(entry, _FixedChunks):
        _require_fixed_chunks(name, entry.chunks, chunks)
        return entry.build(stages, microbatches)
    chunks = _DEFAULT_CHUNKS if chunks is None else chunks
    if chunks < entry.least:
        raise InputError(
            "invalid-schedule",
            f"{name} needs {entry.least} or more chunks per stage, not {chunks}",
            hint=f"Use {entry.least} or more, or 1f1b or zb-h1, which have one." if entry.least > 1 else None,
        )
    return entry.build(stages, microbatches, chunks)


def _require_fixed_chunks(name: str, fixed: int, chunks: int | None) -> None:
    if chunks is None or chunks == fixed:
        return
    free = ", ".join(other for other, entry in _SCHEDULES.items() if isinstance(entry, _AnyChunks))
    raise InputError(
        "invalid-schedule",
        f"{name} has {fixed} chunk{'s' if fixed > 1 else ''} per stage, not {chunks}",
        hint=f"Leave the number of chunks out, or use a schedule that takes any: {free}.",
    )


def resolve(name: str) -> str:
    """The schedule's own name for whatever spelling of it."""
    known = {_plain(own): own for own in _SCHEDULES}
    known |= {_plain(alias): own for alias, own in _ALIASES.items()}
    plain = _plain(name)
    if plain in known:
        return known[plain]
    raise InputError(
        "unknown-name",
        f'schedule "{name}" is not known{did_you_mean(name, _SCHEDULES)}',
        hint=f"known: {', '.join(_SCHEDULES)}",
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
