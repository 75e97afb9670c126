"""A trace of the PyTorch profiler: Kineto's JSON, plain or gzip, into records."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretrace.basics.arrays import Floats, Ints, Longs, Mask
from foretrace.basics.errors import Diagnostic, InputError, printable, shortened
from foretrace.basics.files import AnyFile
from foretrace.basics.limits import MAX_GPUS
from foretrace.basics.records import refuse_printed_answer
from foretrace.inputs.profiler_trace.format.arguments import count, listed, whole
from foretrace.inputs.profiler_trace.format.columns import NO_TIME, Columns
from foretrace.inputs.profiler_trace.format.kineto_json import NO_PROFILE, KinetoJson
from foretrace.inputs.profiler_trace.format.names import rank_in_name
from foretrace.inputs.profiler_trace.format.records import (
    EventCategory,
    Events,
    RankProfile,
    Thread,
    TracedDevice,
    usable_times,
)
from foretrace.inputs.profiler_trace.format.text import PIECE_BYTES, TextFile

_NO_STREAM: Final = (1 << 32) - 1
"""CUPTI's word for no stream or event, as some versions write it."""

_OF_MODELS: Final = {"model_type", "architectures", "num_hidden_layers"}
"""Keys of Hugging Face's config.json, which is JSON too."""

_MAX_NAME: Final = 1 << 14
"""Characters of a name; those of C++ templates have up to a few thousand."""


def read_kineto(path: AnyFile, piece_bytes: int = PIECE_BYTES) -> RankProfile:
    """Reads the trace in a file, whose text is read in pieces of `piece_bytes`."""
    where = str(path)
    source = TextFile(path, piece_bytes)
    pieces = source.pieces()
    written = KinetoJson(pieces, where)
    columns = Columns()
    try:
        with closing(pieces), _no_garbage_collection():
            for block in written.blocks():
                columns.add(block)
    except InputError as error:
        told = written.counted or not written.events
        message = error.message if told else f"{error.message}, after {written.events:,} events"
        raise InputError(error.code, message, where=error.where or where, hint=error.hint) from None
    if not written.has_list:
        raise _no_events(written.others, where)
    if not columns.count and (bad := columns.odd + columns.untimed + written.unreadable):
        text = f"none of {bad:,} events can be read: fields are missing or of the wrong type"
        raise InputError("bad-value", text, where=where, hint=NO_PROFILE)
    if not columns.count:
        raise InputError("empty-file", "the trace has no events", where=where, hint="was anything run while profiling?")
    notes = [*_source_notes(source, written, where), *_column_notes(columns, where)]
    events, origin_ns = _events(columns, notes, where)
    return _trace(where, written.others, columns, events, origin_ns, notes)


def _no_events(others: Mapping[str, Any], where: str) -> InputError:
    """Returns the error of a JSON object without events."""
    refuse_printed_answer(others, where)
    if _OF_MODELS & others.keys():
        hint = f"give a trace, or predict a step of the model: foretrace predict {where} --gpus 8 --cluster h100-dgx"
        return InputError("wrong-format", "this is a model's configuration, not a trace", where=where, hint=hint)
    return InputError("wrong-format", "there are no traceEvents in this JSON", where=where, hint=NO_PROFILE)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pauses garbage collection while blocks of events are decoded.

    They are millions of objects without cycles, and looking for cycles takes a seventh of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _trace(
    where: str, others: dict[str, Any], columns: Columns, events: Events, origin_ns: int, notes: list[Diagnostic]
) -> RankProfile:
    distributed = others.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    groups, descriptions = _groups(distributed, notes, where)
    calls = tuple(columns.calls.distinct)
    for call in calls:
        if call.group and call.ranks:
            groups.setdefault(call.group, call.ranks)
        if call.group and call.description:
            descriptions.setdefault(call.group, call.description)
    names = columns.thread_names
    threads = tuple(
        Thread(whole(process), whole(thread), _name(names.get((str(process), str(thread)), "")))
        for process, thread in columns.threads
    )
    return RankProfile(
        path=where,
        producer="kineto",
        rank=_rank(distributed, where, notes),
        world=_ranks(distributed, "world_size", notes, where),
        devices=_devices(others.get("deviceProperties")),
        groups=groups,
        facts=_facts(others, distributed, columns, events),
        strings=tuple(name[:_MAX_NAME] for name in columns.names),
        threads=threads,
        inputs=tuple(columns.inputs.distinct),
        calls=calls,
        events=events,
        diagnostics=tuple(notes),
        origin_ns=origin_ns + max(count(others.get("baseTimeNanoseconds")), 0),
        descriptions=descriptions,
    )


def _events(columns: Columns, notes: list[Diagnostic], where: str) -> tuple[Events, int]:
    """Returns the events in order, and the time of the first, in nanoseconds as the file counts."""
    start = columns.column("start_ns")
    duration = columns.column("duration_ns")
    kept = _kept(start, duration, notes, where)
    if not kept.any():
        raise InputError("nothing-to-do", "no event of the trace has a time and a duration", where=where)
    start, duration = start[kept], duration[kept]
    origin_ns = int(start.min())
    order = np.lexsort((-duration, start))
    at = np.flatnonzero(kept)[order]
    events = Events(
        category=columns.column("category")[at],
        name=columns.column("name")[at],
        start_s=(start - origin_ns)[order] * 1e-9,
        duration_s=duration[order] * 1e-9,
        thread=columns.column("thread")[at],
        device=_small(columns.column("device")[at]),
        stream=_small(columns.column("stream")[at]),
        correlation=columns.column("correlation")[at],
        external=columns.column("external")[at],
        sequence=columns.column("sequence")[at],
        bytes=columns.column("bytes")[at],
        inputs=columns.column("inputs")[at],
        call=columns.column("call")[at],
        waits_stream=_small(columns.column("waits_stream")[at]),
        waits_correlation=np.where((waited := columns.column("waits_correlation")[at]) == _NO_STREAM, -1, waited),
        bytes_per_s=columns.column("bytes_per_s")[at],
        blocks_per_sm=columns.column("blocks_per_sm")[at],
    )
    _copied_bytes(events)
    return events, origin_ns


def _kept(start: Longs, duration: Floats, notes: list[Diagnostic], where: str) -> Mask:
    timed = (start != NO_TIME) & np.isfinite(duration)
    kept, more = usable_times(start, np.where(timed, duration, 0.0), timed, where)
    if not timed.all():
        text = f"{int((~timed).sum()):,} events have a time or duration that is not a number: left out"
        notes.append(Diagnostic("warning", "rows-skipped", text, where))
    notes += more
    return kept


def _small(values: Longs) -> Ints:
    """Returns numbers in 32 bits: larger ones, such as addresses of streams, are numbered after the others."""
    limit = np.iinfo(np.int32).max
    values = np.where(values == _NO_STREAM, -1, values)
    large = (values > limit) | (values < -1)
    if large.any():
        _, number = np.unique(values[large], return_inverse=True)
        values[large] = min(int(values[~large].max(initial=0)), limit - len(number) - 1) + 1 + number
    return values.astype(np.int32)


def _copied_bytes(events: Events) -> None:
    """Fills in, in place, the bytes of copies that only their call states (ROCm)."""
    bare = np.flatnonzero((events.category == EventCategory.MEMCPY) & (events.bytes < 0) & (events.correlation >= 0))
    stating = np.flatnonzero((events.category == EventCategory.RUNTIME) & (events.bytes >= 0))
    if len(bare) and len(stating):
        known = dict(zip(events.correlation[stating].tolist(), events.bytes[stating].tolist(), strict=True))
        events.bytes[bare] = [known.get(number, -1) for number in events.correlation[bare].tolist()]


def _rank(distributed: Mapping[str, Any], where: str, notes: list[Diagnostic]) -> int | None:
    rank = _ranks(distributed, "rank", notes, where)
    if rank is not None:
        return rank
    rank = rank_in_name(Path(where).name)
    world = count(distributed.get("world_size"))
    if rank is None or 0 <= world <= rank:
        return None
    notes.append(Diagnostic("note", "guessed", f"rank {rank} by the name of the file: the trace does not say", where))
    return rank


def _ranks(distributed: Mapping[str, Any], key: str, notes: list[Diagnostic], where: str) -> int | None:
    """Returns a rank or a number of ranks; None where the trace states none that a cluster can have."""
    if distributed.get(key) is None:
        return None
    number = count(distributed[key])
    if 0 <= number <= MAX_GPUS:
        return number
    text = f"{key} of distributedInfo is not a number of ranks: left out"
    notes.append(Diagnostic("warning", "bad-value", text, where))
    return None


def _name(text: object) -> str:
    """Returns the name of a device, thread or group as one line without control characters."""
    name = text if isinstance(text, str) else str(text)
    return printable(name[:_MAX_NAME]).replace("\n", " ")


def _groups(
    distributed: Mapping[str, Any], notes: list[Diagnostic], where: str
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    groups: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    configured = distributed.get("pg_config")
    for group in configured if isinstance(configured, list) else []:
        if not isinstance(group, dict) or "pg_name" not in group:
            continue
        name, ranks = _name(group["pg_name"]), group.get("ranks")
        if isinstance(ranks, list) and ranks:
            numbers, complete = listed(ranks)
            if complete and max(numbers) < MAX_GPUS:
                groups[name] = numbers
            else:
                text = f'the ranks of process group "{shortened(name)}" are not ranks: left out'
                notes.append(Diagnostic("warning", "bad-value", text, f"{where}: distributedInfo.pg_config"))
        if group.get("pg_desc"):
            descriptions[name] = _name(group["pg_desc"])
    return groups, descriptions


def _devices(written: object) -> tuple[TracedDevice, ...]:
    return tuple(
        TracedDevice(
            number=whole(device.get("id", number)),
            name=_name(device.get("name", "")),
            sms=max(whole(device.get("numSms", 0)), 0),
            memory_bytes=max(whole(device.get("totalGlobalMem", 0)), 0),
        )
        for number, device in enumerate(written if isinstance(written, list) else [])
        if isinstance(device, dict)
    )


def _facts(
    others: Mapping[str, Any], distributed: Mapping[str, Any], columns: Columns, events: Events
) -> dict[str, str]:
    """Returns what the file states about itself in a word, and how it was recorded as far as that is visible."""
    facts = {
        _name(key): _name(value)
        for part in (others, distributed)
        for key, value in part.items()
        if isinstance(value, str | int | float) and key not in ("rank", "world_size")
    }
    seen = {
        "record_shapes": bool(columns.inputs.distinct),
        "with_stack": bool((events.category == EventCategory.PYTHON).any()) or columns.stacks,
        "profile_memory": columns.unread["memory"] > 0,
    }
    return facts | {key: "1" for key, true in seen.items() if true and key not in facts}


def _source_notes(source: TextFile, written: KinetoJson, where: str) -> list[Diagnostic]:
    notes = []
    if source.misnamed:
        notes.append(Diagnostic("note", "odd-input", "called .gz and not compressed: read as it is", where))
    if source.replaced:
        notes.append(Diagnostic("note", "not-text", "some names hold bytes that are no UTF-8: shown as \ufffd", where))
    if written.mended:
        text = f"{written.mended:,} events are invalid JSON (unescaped characters, as older profilers write): mended"
        notes.append(Diagnostic("note", "repaired-input", text, where))
    if written.unreadable:
        notes.append(
            Diagnostic("warning", "rows-skipped", f"{written.unreadable:,} events are no JSON: left out", where)
        )
    return notes


def _column_notes(columns: Columns, where: str) -> list[Diagnostic]:
    notes = []
    if columns.unknown:
        shown = ", ".join(f'{number:,} "{shortened(name)}"' for name, number in columns.unknown.most_common(5))
        notes.append(
            Diagnostic("note", "unknown-name", f"categories that are not known, kept as other events: {shown}", where)
        )
    if columns.untimed:
        notes.append(
            Diagnostic(
                "warning", "rows-skipped", f"{columns.untimed:,} events have no time or duration: left out", where
            )
        )
    for odd, what in (
        (columns.odd, f'events have fields of the wrong type: left out, first "{shortened(columns.first_odd)}"'),
        (columns.mistyped, "events have a name, process, thread or arguments of the wrong type: these are left out"),
        (columns.inputs.odd, "ops have inputs that cannot be read: their shapes are left out"),
        (columns.calls.odd, "collectives have arguments that cannot be read: these are left out"),
    ):
        if odd:
            notes.append(Diagnostic("warning", "rows-skipped", f"{odd:,} {what}", where))
    memory = columns.unread.pop("memory", 0)
    if columns.unread:
        shown = ", ".join(f"{number:,} {shortened(what)}" for what, number in columns.unread.most_common(5))
        notes.append(Diagnostic("note", "rows-skipped", f"entries that are no spans of time, not read: {shown}", where))
    if memory:
        columns.unread["memory"] = memory
        notes.append(Diagnostic("note", "field-ignored", f"{memory:,} records of memory are not read", where))
    if columns.calls.elided:
        text = f"{columns.calls.elided} kinds of collectives do not list all ranks or splits: left open"
        notes.append(Diagnostic("note", "not-recorded", text, where))
    return notes
