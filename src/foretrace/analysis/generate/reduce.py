"""What an AICB file cannot say, as changes of a step: each one applied in turn leads from the plan to the file.

The difference between the step before and after a reduction is what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from foretrace.program.dispatch import COPIES
from foretrace.step.spec import Call, ChunkSpec, Compute, EndItem, HostWork, Item, RoleSpec, StepSpec, Work
from foretrace.step.units import SYNC_LAUNCHES

Reduction = tuple[str, StepSpec]
"""What is left out or changed, in words, and the step without it."""


def reductions(spec: StepSpec, file: StepSpec, *, exposed_only: bool) -> Iterator[Reduction]:
    """Yields the reductions that change a step, in order; the last gives the step of the file.

    Args:
        spec: The step of the plan.
        file: The step that the file expresses.
        exposed_only: Whether the file leaves out collectives that run next to computation.
    """
    left_out = "collectives next to computation left out"
    changes: list[tuple[str, Callable[[StepSpec], StepSpec]]] = [
        ("no launches of the host", _without_launches),
        (
            left_out if exposed_only else "collectives next to computation take their time",
            lambda one: _with_items(one, _left_out if exposed_only else _exposed),
        ),
        ("tokens sent evenly by NCCL's all-to-all", lambda one: _with_items(one, _plain)),
        ("gradients and parameters not overlapped", lambda one: _with_ends(one, _in_turn)),
        ("one gradient bucket for each group", lambda one: _with_ends(one, _one_bucket)),
        ("gradient norm over tp, no tied embedding's gradient", lambda one: _with_ends(one, _narrow)),
        ("every stage as the slowest, parameters of the first", lambda one: _with_equal_stages(one, file)),
    ]
    for name, change in changes:
        changed = change(spec)
        if changed is not spec:
            yield name, changed
        spec = changed
    yield "rows of whole nanoseconds", file


def _without_launches(spec: StepSpec) -> StepSpec:
    """Leaves out launches; the gap after the host has waited for the GPU stays."""
    launches = spec.launches
    if launches is None:
        return spec
    gap = HostWork("sync", SYNC_LAUNCHES * launches.seconds, launches.source)

    def items(listed: tuple[Item, ...]) -> tuple[Item, ...]:
        if not any(isinstance(item, Compute) and item.syncs_host for item in listed):
            return listed
        both = [(item, gap) if isinstance(item, Compute) and item.syncs_host else (item,) for item in listed]
        return tuple(one for pair in both for one in pair)

    def end(listed: tuple[EndItem, ...]) -> tuple[EndItem, ...]:
        return _kept(listed, lambda one: not (isinstance(one.item, HostWork) and one.item.name == "launch"))

    return replace(_with_ends(_with_items(spec, items), end), launches=None)


def _left_out(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Drops what the software always runs next to gradients; what the plan overlaps besides takes its time."""
    kept = tuple(item for item in items if not _is_hidden(item))
    return _exposed(kept if len(kept) < len(items) else items)


def _is_hidden(item: Item) -> bool:
    return isinstance(item, Call) and item.concurrent == "next" and item.way != COPIES


def _exposed(items: tuple[Item, ...]) -> tuple[Item, ...]:
    if not any(isinstance(item, Call) and item.concurrent is not None for item in items):
        return items
    return tuple(
        replace(item, concurrent=None, way=None if item.axis == "tp" else item.way) if isinstance(item, Call) else item
        for item in items
    )


def _plain(items: tuple[Item, ...]) -> tuple[Item, ...]:
    if not any(isinstance(item, Call) and (item.way or item.sends) for item in items):
        return items
    return tuple(replace(item, way=None, sends=None) if isinstance(item, Call) else item for item in items)


def _in_turn(end: tuple[EndItem, ...]) -> tuple[EndItem, ...]:
    if not any(one.when or one.before for one in end):
        return end
    # Items that overlap run in their turn on the compute lane; the order of the list is the order of the step.
    return tuple(replace(one, lane=one.lane or "compute", when=None, before=None) for one in end)


def _one_bucket(end: tuple[EndItem, ...]) -> tuple[EndItem, ...]:
    """Joins the calls of one group for the same purpose."""
    total: dict[str, int] = {}
    for one in end:
        if isinstance(one.item, Call):
            total[one.item.name] = total.get(one.item.name, 0) + one.item.bytes
    seen: set[str] = set()

    def first(one: EndItem) -> bool:
        known = isinstance(one.item, Call) and one.item.name in seen
        seen.add(one.item.name)
        return not known

    kept = _kept(end, first)
    if len(kept) == len(end):
        return end
    return tuple(
        replace(one, item=replace(one.item, bytes=total[one.item.name])) if isinstance(one.item, Call) else one
        for one in kept
    )


def _narrow(end: tuple[EndItem, ...]) -> tuple[EndItem, ...]:
    """Takes the norm over tp instead of all ranks, and drops what only first and last stage reduce."""
    if not any(isinstance(one.item, Call) and one.item.axis in ("world", "embd") for one in end):
        return end
    kept = _kept(end, lambda one: not (isinstance(one.item, Call) and one.item.axis == "embd"))
    return tuple(
        replace(one, item=replace(one.item, axis="tp"))
        if isinstance(one.item, Call) and one.item.axis == "world"
        else one
        for one in kept
    )


def _with_equal_stages(spec: StepSpec, file: StepSpec) -> StepSpec:
    """Gives every stage as many layers as the file does, and the end of the first stage."""
    counts = [_layers(chunk) for role in spec.roles for (chunk,) in role.chunks]
    wanted = [_layers(chunk) for role in file.roles for (chunk,) in role.chunks]
    ends = {id(role.end) for role in spec.roles}
    if counts == wanted and len(ends) == 1:
        return spec
    longest: dict[int, ChunkSpec] = {}
    for role in spec.roles:
        for number, (chunk,) in enumerate(role.chunks):
            if number not in longest or _layers(chunk) > _layers(longest[number]):
                longest[number] = chunk
    made: dict[tuple[int, int], ChunkSpec] = {}
    roles = []
    for role in spec.roles:
        held = []
        for number, (chunk,) in enumerate(role.chunks):
            key = id(chunk), number
            if key not in made:
                made[key] = chunk if _layers(chunk) == _layers(longest[number]) else _lengthened(chunk, longest[number])
            held.append((made[key],))
        roles.append(replace(role, chunks=tuple(held), end=spec.roles[0].end))
    return replace(spec, roles=tuple(roles))


def _layers(chunk: ChunkSpec) -> int:
    return sum(_is_layer(unit.work, unit.layer) for unit in chunk.units)


def _is_layer(work: Work, layer: int) -> bool:
    return layer >= 0 and work.name != "mtp"


def _lengthened(chunk: ChunkSpec, longest: ChunkSpec) -> ChunkSpec:
    """Returns the ends of a chunk with the layers of another between them."""
    body = [unit for unit in longest.units if _is_layer(unit.work, unit.layer)]
    at = next((n for n, unit in enumerate(chunk.units) if _is_layer(unit.work, unit.layer)), len(chunk.units))
    ends = [unit for unit in chunk.units if not _is_layer(unit.work, unit.layer)]
    return ChunkSpec((*ends[:at], *body, *ends[at:]))


def _with_items(spec: StepSpec, change: Callable[[tuple[Item, ...]], tuple[Item, ...]]) -> StepSpec:
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


def _with_ends(spec: StepSpec, change: Callable[[tuple[EndItem, ...]], tuple[EndItem, ...]]) -> StepSpec:
    """Returns a step with other ends; ends that were one object stay one."""
    ends = {id(role.end): change(role.end) for role in spec.roles}
    if all(ends[id(role.end)] is role.end for role in spec.roles):
        return spec
    return replace(spec, roles=tuple(replace(role, end=ends[id(role.end)]) for role in spec.roles))


def _kept(end: Sequence[EndItem], keep: Callable[[EndItem], bool]) -> tuple[EndItem, ...]:
    """Returns some of the end items, which wait for those among them that they waited for."""
    numbers: dict[int, int] = {}
    kept: list[EndItem] = []
    for number, one in enumerate(end):
        if keep(one):
            numbers[number] = len(kept)
            kept.append(replace(one, after=tuple(numbers[before] for before in one.after if before in numbers)))
    return tuple(kept)
