"""Reduces a step to what an AICB file can express, one change at a time.

The difference between the step before and after a reduction is what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from foretrace.program.dispatch import COPIES
from foretrace.step.spec import Call, ChunkSpec, Compute, EndItem, HostWork, Item, RoleSpec, StepSpec, Unit, Work
from foretrace.step.units import sync_gap_s

SimplerStep = tuple[str, StepSpec]
"""A change in words, and the step after it."""


def reductions(spec: StepSpec, file: StepSpec, pieces: Sequence[int], *, exposed_only: bool) -> Iterator[SimplerStep]:
    """Yields the changes that a step needs to become that of a file, in order.

    Args:
        spec: The step of the plan.
        file: The step that the file expresses.
        pieces: The piece of the model whose layers the file lists, for each chunk of a stage.
        exposed_only: Whether the file leaves out collectives that run next to gradients.
    """
    next_to = "left out" if exposed_only else "take their time"
    changes: list[tuple[str, Callable[[StepSpec], StepSpec]]] = [
        ("no launches of the host", _drop_launches),
        (
            f"collectives next to computation {next_to}",
            lambda step: _change_items(step, _drop_hidden_calls if exposed_only else _expose_calls),
        ),
        ("tokens sent evenly by NCCL's all-to-all", lambda step: _change_items(step, _use_even_all_to_alls)),
        ("stages wait for their transfers", lambda step: replace(step, pp_overlap=False) if step.pp_overlap else step),
        ("gradients and parameters not overlapped", lambda step: _change_ends(step, _serialize_end)),
        ("one gradient bucket for each group", lambda step: _change_ends(step, _join_buckets)),
        ("gradient norm over tp, no tied embedding's gradient", lambda step: _change_ends(step, _narrow_norm)),
        ("every stage as the slowest, parameters of the first", lambda step: _equal_stages(step, pieces)),
    ]
    for name, change in changes:
        changed = change(spec)
        if changed is not spec:
            yield name, changed
        spec = changed
    yield "rows of whole nanoseconds", file


def _drop_launches(spec: StepSpec) -> StepSpec:
    """Leaves out launches; the gap after the host has waited for the GPU stays."""
    launches = spec.launches
    if launches is None:
        return spec
    gap = HostWork("sync", sync_gap_s(launches.seconds), launches.source)

    def items(listed: tuple[Item, ...]) -> tuple[Item, ...]:
        if not any(isinstance(item, Compute) and item.syncs_host for item in listed):
            return listed
        both = [(item, gap) if isinstance(item, Compute) and item.syncs_host else (item,) for item in listed]
        return tuple(item for pair in both for item in pair)

    def end(listed: tuple[EndItem, ...]) -> tuple[EndItem, ...]:
        return _select(listed, lambda entry: not (isinstance(entry.item, HostWork) and entry.item.name == "launch"))

    return replace(_change_ends(_change_items(spec, items), end), launches=None)


def _drop_hidden_calls(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Drops collectives that the software always runs next to gradients; others that overlap take their time."""
    kept = tuple(item for item in items if not _is_hidden(item))
    return _expose_calls(kept if len(kept) < len(items) else items)


def _is_hidden(item: Item) -> bool:
    return isinstance(item, Call) and item.concurrent == "next" and item.way != COPIES


def _expose_calls(items: tuple[Item, ...]) -> tuple[Item, ...]:
    if not any(isinstance(item, Call) and item.concurrent is not None for item in items):
        return items
    return tuple(
        replace(item, concurrent=None, way=None if item.axis == "tp" else item.way) if isinstance(item, Call) else item
        for item in items
    )


def _use_even_all_to_alls(items: tuple[Item, ...]) -> tuple[Item, ...]:
    if not any(isinstance(item, Call) and (item.way or item.sends) for item in items):
        return items
    return tuple(replace(item, way=None, sends=None) if isinstance(item, Call) else item for item in items)


def _serialize_end(end: tuple[EndItem, ...]) -> tuple[EndItem, ...]:
    if not any(entry.when or entry.before for entry in end):
        return end
    # Items that overlap run in their turn on the compute lane; the order of the list is the order of the step.
    return tuple(replace(entry, lane=entry.lane or "compute", when=None, before=None) for entry in end)


def _join_buckets(end: tuple[EndItem, ...]) -> tuple[EndItem, ...]:
    """Joins the calls of one group for the same purpose."""
    total: dict[str, int] = {}
    for entry in end:
        if isinstance(entry.item, Call):
            total[entry.item.name] = total.get(entry.item.name, 0) + entry.item.bytes
    seen: set[str] = set()

    def first(entry: EndItem) -> bool:
        known = isinstance(entry.item, Call) and entry.item.name in seen
        seen.add(entry.item.name)
        return not known

    kept = _select(end, first)
    if len(kept) == len(end):
        return end
    return tuple(
        replace(entry, item=replace(entry.item, bytes=total[entry.item.name]))
        if isinstance(entry.item, Call)
        else entry
        for entry in kept
    )


def _narrow_norm(end: tuple[EndItem, ...]) -> tuple[EndItem, ...]:
    """Takes the norm over tp instead of all ranks, and drops what only first and last stage reduce."""
    if not any(isinstance(entry.item, Call) and entry.item.axis in ("world", "embd") for entry in end):
        return end
    kept = _select(end, lambda entry: not (isinstance(entry.item, Call) and entry.item.axis == "embd"))
    return tuple(
        replace(entry, item=replace(entry.item, axis="tp"))
        if isinstance(entry.item, Call) and entry.item.axis == "world"
        else entry
        for entry in kept
    )


def _equal_stages(spec: StepSpec, pieces: Sequence[int]) -> StepSpec:
    """Gives every stage the layers that the file lists, by piece of the model for each chunk, and the first's end."""
    holder = {
        piece: spec.roles[stage].chunks[number][0]
        for stage, held in enumerate(spec.schedule.piece.tolist())
        for number, piece in enumerate(held)
    }
    listed = [[unit for unit in holder[piece].units if _is_layer(unit)] for piece in pieces]
    chunks: dict[tuple[int, int], ChunkSpec] = {}
    same = len({id(role.end) for role in spec.roles}) == 1
    for role in spec.roles:
        for number, (chunk,) in enumerate(role.chunks):
            own = [unit.work for unit in chunk.units if _is_layer(unit)]
            if [id(work) for work in own] == [id(unit.work) for unit in listed[number]]:
                chunks[id(chunk), number] = chunk
                continue
            same = False
            ends = [unit for unit in chunk.units if not _is_layer(unit)]
            begin = [unit for unit in ends if unit.work.name == "embedding"]
            chunks[id(chunk), number] = ChunkSpec((*begin, *listed[number], *ends[len(begin) :]))
    if same:
        return spec
    roles = [
        replace(
            role,
            chunks=tuple((chunks[id(chunk), number],) for number, (chunk,) in enumerate(role.chunks)),
            end=spec.roles[0].end,
        )
        for role in spec.roles
    ]
    return replace(spec, roles=tuple(roles))


def _is_layer(unit: Unit) -> bool:
    return unit.layer >= 0 and unit.work.name != "mtp"


def _change_items(spec: StepSpec, change: Callable[[tuple[Item, ...]], tuple[Item, ...]]) -> StepSpec:
    """Returns a step whose works have other items; works and chunks that were one object stay one."""
    known: dict[int, Work] = {}
    works: dict[int, Work] = {}
    chunks: dict[int, ChunkSpec] = {}

    def work_of(work: Work) -> Work:
        if id(work) not in works:
            known[id(work)] = work
            before = (work.forward, work.recompute, work.backward)
            forward, recompute, backward = (change(items) for items in before)
            same = forward is before[0] and recompute is before[1] and backward is before[2]
            works[id(work)] = work if same else replace(work, forward=forward, recompute=recompute, backward=backward)
        return works[id(work)]

    def chunk_of(chunk: ChunkSpec) -> ChunkSpec:
        if id(chunk) not in chunks:
            chunks[id(chunk)] = ChunkSpec(tuple(replace(unit, work=work_of(unit.work)) for unit in chunk.units))
        return chunks[id(chunk)]

    def role_of(role: RoleSpec) -> RoleSpec:
        held = tuple(tuple(chunk_of(chunk) for chunk in variants) for variants in role.chunks)
        return replace(role, chunks=held)

    roles = tuple(role_of(role) for role in spec.roles)
    return spec if all(works[number] is work for number, work in known.items()) else replace(spec, roles=roles)


def _change_ends(spec: StepSpec, change: Callable[[tuple[EndItem, ...]], tuple[EndItem, ...]]) -> StepSpec:
    """Returns a step with other ends; ends that were one object stay one."""
    ends = {id(role.end): change(role.end) for role in spec.roles}
    if all(ends[id(role.end)] is role.end for role in spec.roles):
        return spec
    return replace(spec, roles=tuple(replace(role, end=ends[id(role.end)]) for role in spec.roles))


def _select(end: Sequence[EndItem], keep: Callable[[EndItem], bool]) -> tuple[EndItem, ...]:
    """Returns some of the end items, which wait for those among them that they waited for."""
    numbers: dict[int, int] = {}
    kept: list[EndItem] = []
    for number, entry in enumerate(end):
        if keep(entry):
            numbers[number] = len(kept)
            kept.append(replace(entry, after=tuple(numbers[before] for before in entry.after if before in numbers)))
    return tuple(kept)
