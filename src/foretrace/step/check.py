"""Checks that the parts of a `StepSpec` fit together, so that mistakes are named before anything is built."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, isnan
from typing import get_args

from foretrace.basics.errors import InputError
from foretrace.program.columns import Phase
from foretrace.step.end import turns_of
from foretrace.step.spec import Call, Compute, Concurrent, Item, RoleSpec, StepSpec, Work

_CONCURRENT = (None, *get_args(Concurrent))


def check_spec(spec: StepSpec) -> None:
    """Raises an `InputError` for a step that cannot be built."""
    schedule = spec.schedule
    missing = set(range(schedule.stages)) - {role.stage for role in spec.roles}
    if missing:
        raise _mistake(f"the schedule has {schedule.stages} stages; no role is of stage {min(missing)}")
    variants = max(spec.variants, default=-1) + 1
    if min(spec.variants, default=-1) < 0:
        raise _mistake(f"variants are {spec.variants}", "give a number from 0 on for each microbatch in turn")
    for role in spec.roles:
        if not 0 <= role.stage < schedule.stages:
            raise _mistake(f'role "{role.name}" is of stage {role.stage} of {schedule.stages}')
        if len(role.chunks) != schedule.chunks or any(len(each) < variants for each in role.chunks):
            raise _mistake(
                f'role "{role.name}" has {len(role.chunks)} chunks of {min(map(len, role.chunks), default=0)} variants',
                f"{schedule.name} has {schedule.chunks} chunks a stage, and variants go to {variants - 1}",
            )
        if any(len(form.units) != len(chunk.units) for each in role.chunks for chunk in each for form in chunk.forms):
            raise _mistake(f'role "{role.name}" has a chunk whose unpaired form has other units')
        _check_end(spec, role)
    splits = schedule.splits_backward
    for work in _works(spec):
        _check_work(work, splits=splits)


def _works(spec: StepSpec) -> Iterator[Work]:
    """Yields every work once."""
    seen: set[int] = set()
    for role in spec.roles:
        for each in role.chunks:
            for form in (form for chunk in each for form in chunk.forms):
                if id(form) in seen:
                    continue
                seen.add(id(form))
                for unit in form.units:
                    if id(unit.work) not in seen:
                        seen.add(id(unit.work))
                        yield unit.work


def _check_work(work: Work, *, splits: bool) -> None:
    for item in (*work.forward, *work.recompute, *work.backward):
        _check_item(item)
    if splits and work.weight_share is None:
        whole = [item.name for item in work.backward if isinstance(item, Compute) and item.phase == Phase.BACKWARD]
        if whole:
            hint = "give its phase as backward_input or backward_weight, or the work a weight_share"
            raise _mistake(f"{work.name}: {whole[0]} does not tell input from weight gradients", hint)


def _check_item(item: Item) -> None:
    if not isnan(item.seconds) and not (isfinite(item.seconds) and item.seconds >= 0):
        raise _mistake(f"{item.name} takes {item.seconds} seconds")
    if isinstance(item, Compute):
        prices = [bool(item.kernels), not isnan(item.seconds), item.moved_bytes > 0]
        if sum(prices) > 1 and not (item.moved_bytes and prices[1]):
            raise _mistake(f"{item.name} has both kernels and seconds or bytes", "give one of them")
    elif isinstance(item, Call) and item.concurrent not in _CONCURRENT:
        known = ", ".join(str(word) for word in _CONCURRENT)
        raise _mistake(f'{item.name}: concurrent "{item.concurrent}" is not known', f"known: {known}")


def _check_end(spec: StepSpec, role: RoleSpec) -> None:
    turns = turns_of(spec.schedule)[role.stage]
    for number, end in enumerate(role.end):
        _check_item(end.item)
        for place, rows in ((end.when, turns.finals), (end.before, turns.firsts)):
            if place is not None:
                row = rows.get(place[0])
                variant = -1 if row is None else spec.variants[turns.rows.microbatch[row] % len(spec.variants)]
                _check_place(role, end.item.name, place, variant)
        if any(not 0 <= before < number for before in end.after):
            raise _mistake(f"{end.item.name} waits for end items {end.after}", f"those before it are 0 to {number - 1}")
        if end.before_item is not None and not 0 <= end.before_item < len(role.end):
            raise _mistake(f"{end.item.name} is before end item {end.before_item} of {len(role.end)}")
    for cut in role.cuts:
        if not 0 <= cut.chunk < spec.schedule.chunks or not isfinite(cut.share) or cut.share < 0:
            raise _mistake(f'role "{role.name}" has a cut after {cut.share} of chunk {cut.chunk}')
        for item in cut.items:
            _check_item(item)


def _check_place(role: RoleSpec, name: str, place: tuple[int, int], variant: int) -> None:
    """Raises an error unless the variant of a chunk that an end item is tied to has the unit."""
    chunk, unit = place
    if variant < 0 or not 0 <= unit < len(role.chunks[chunk][variant].units):
        raise _mistake(f'{name} is tied to unit {unit} of chunk {chunk}, which role "{role.name}" does not have')


def _mistake(text: str, hint: str | None = None) -> InputError:
    return InputError("invalid-program", text, hint=hint)
