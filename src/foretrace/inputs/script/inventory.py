"""Counts what a traced script issues in a step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from foretrace.basics.errors import Diagnostic, listed
from foretrace.basics.units import format_bytes, format_count
from foretrace.inputs.inventory import SEPARATOR, Inventory, InventoryTable, contents_of, counted_text, mesh_text
from foretrace.inputs.script.kernels import kernels_of_signature
from foretrace.inputs.script.memory import peak_by_category
from foretrace.inputs.script.recording import IssuedCall, KernelLaunch, RankRecording
from foretrace.inputs.script.roles import TracedJob
from foretrace.inputs.script.window import StepWindow, window_of
from foretrace.program.columns import label
from foretrace.program.program import Program

SCHEMA: Final = "foretrace.script/1"
MAX_ROWS: Final = 16
MAX_LISTED: Final = 4


@dataclass(frozen=True, slots=True)
class CollectiveCount:
    """The calls of one kind that a rank makes in a group, with their bytes as the rank counts them."""

    axis: str
    group_size: int
    collective: str
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TracedRole:
    """What a traced rank issues in a step.

    Attributes:
        rank: The rank that was traced.
        ranks: How many ranks it stands for, itself included.
        launches: Ops that run kernels.
        flops: Operations of products and attention.
        parameters: Elements of its parameters.
        peak_bytes: The most that its allocator holds.
        peak_by_category: What that is for.
        collectives: Its calls by group and kind.
    """

    rank: int
    ranks: int
    launches: int
    flops: float
    parameters: int
    peak_bytes: int
    peak_by_category: dict[str, int]
    collectives: tuple[CollectiveCount, ...]


@dataclass(frozen=True, slots=True)
class ScriptInventory:
    """What was traced; `steps` are the first and the last recorded step, from 0."""

    title: str
    world_size: int
    mesh: str
    torch_version: str
    steps: tuple[int, int]
    step_count: int
    """How many steps of the script a step of the program has: more than 1 if they differ."""
    tokens_per_step: float | None
    ops: int
    roles: tuple[TracedRole, ...]
    diagnostics: tuple[Diagnostic, ...]


def script_inventory(job: TracedJob, program: Program, title: str, see: str) -> Inventory:
    """Counts what the traced ranks issue, and what the program of all ranks holds.

    Args:
        job: What was traced.
        program: The program of all ranks.
        title: The script with its arguments.
        see: The command that simulates the script.
    """
    counted = count_script(job, program, title)
    tokens = (
        "" if counted.tokens_per_step is None else f"{SEPARATOR}{format_count(round(counted.tokens_per_step))} tokens"
    )
    first, last = counted.steps
    facts = [
        ("ranks", f"{format_count(counted.world_size)}{SEPARATOR}{mesh_text(counted.mesh)}"),
        ("traced", _traced_text(counted.roles)),
        ("step", f"{f'step {first}' if first == last else f'steps {first} to {last}'} of the script{tokens}"),
        ("ops", f"{format_count(counted.ops)} in a step over all ranks"),
        ("PyTorch", counted.torch_version),
    ]
    return Inventory(
        SCHEMA,
        kind="script",
        format="training script",
        title=title,
        world_size=counted.world_size,
        mesh=counted.mesh,
        contents=contents_of(counted),
        facts=facts,
        tables=(_role_table(counted.roles), *_collective_tables(counted.roles), *_memory_tables(counted.roles)),
        diagnostics=counted.diagnostics,
        see=(see,),
    )


def count_script(job: TracedJob, program: Program, title: str) -> ScriptInventory:
    """Counts what the traced ranks issue, as a dataclass."""
    first = job.recordings[0]
    window = window_of(first)
    return ScriptInventory(
        title=title,
        world_size=first.world,
        mesh=str(program.mesh),
        torch_version=first.torch_version,
        steps=(first.first_step, first.first_step + len(first.steps) - 1),
        step_count=window.steps,
        tokens_per_step=program.tokens_per_step,
        ops=program.op_count,
        roles=tuple(
            _role(recording, len(ranks)) for recording, ranks in zip(job.recordings, job.stands_for, strict=True)
        ),
        diagnostics=program.diagnostics,
    )


def _role(recording: RankRecording, ranks: int) -> TracedRole:
    window = window_of(recording)
    own = [sum(count * kernel.flops for count, kernel in kernels_of_signature(each)) for each in recording.signatures]
    launches = [event for event in recording.events[window.first : window.end] if isinstance(event, KernelLaunch)]
    peak = peak_by_category(recording)
    return TracedRole(
        recording.rank,
        ranks,
        len(launches),
        sum(own[launch.signature] for launch in launches),
        recording.parameters,
        sum(peak.values()),
        {label(category): size for category, size in peak.items()},
        tuple(_collectives(recording, window)),
    )


def _collectives(recording: RankRecording, window: StepWindow) -> Iterator[CollectiveCount]:
    """Yields the calls of the step by group and kind; groups of one rank move nothing."""
    counts: dict[tuple[str, int, str], tuple[int, int]] = {}
    for event in recording.events[window.first : window.end]:
        if not isinstance(event, IssuedCall) or len(recording.groups[event.group].ranks) == 1:
            continue
        group = recording.groups[event.group]
        key = group.axis, len(group.ranks), label(event.collective)
        calls, size = counts.get(key, (0, 0))
        counts[key] = calls + 1, size + event.bytes
    for (axis, ranks, name), (calls, size) in counts.items():
        yield CollectiveCount(axis, ranks, name, calls, size)


def _traced_text(roles: Sequence[TracedRole]) -> str:
    others = sum(role.ranks for role in roles) - len(roles)
    stand = "stands" if len(roles) == 1 else "stand"
    return f"{_ranks_text(roles)}, which {stand} for {counted_text(others, 'other')}" if others else _ranks_text(roles)


def _role_table(roles: Sequence[TracedRole]) -> InventoryTable:
    counts = any(role.parameters for role in roles)

    def row(role: TracedRole) -> tuple[str, ...]:
        return (
            f"{role.launches:,}",
            f"{sum(each.calls for each in role.collectives):,}",
            f"{role.flops:.3g}",
            *((f"{role.parameters:,}",) if counts else ()),
            format_bytes(role.peak_bytes),
        )

    rows = [
        (_ranks_text(same_roles), f"{sum(role.ranks for role in same_roles):,}", *row(same_roles[0]))
        for same_roles in _grouped(roles, row)
    ]
    heads = ("traced", "ranks", "ops", "calls", "FLOP", *(("parameters",) if counts else ()), "peak memory")
    return InventoryTable(heads, rows[:MAX_ROWS], _more(len(rows)) or "a step of one rank")


def _collective_tables(roles: Sequence[TracedRole]) -> Iterator[InventoryTable]:
    rows = [
        (
            _ranks_text(same_roles),
            each.axis,
            each.collective,
            f"{each.group_size:,}",
            f"{each.calls:,}",
            format_bytes(each.bytes),
        )
        for same_roles in _grouped(roles, lambda role: role.collectives)
        for each in same_roles[0].collectives
    ]
    if rows:
        heads = ("traced", "group", "collective", "ranks", "calls", "bytes")
        note = _more(len(rows)) or "whole buffers, as a rank issues them in a step"
        yield InventoryTable(heads, rows[:MAX_ROWS], note, text_columns=3)


def _memory_tables(roles: Sequence[TracedRole]) -> Iterator[InventoryTable]:
    names = list(dict.fromkeys(name for role in roles for name in role.peak_by_category))
    if not names:
        return

    def row(role: TracedRole) -> tuple[str, ...]:
        return tuple(format_bytes(role.peak_by_category.get(name, 0)) for name in names)

    rows = [(_ranks_text(same_roles), *row(same_roles[0])) for same_roles in _grouped(roles, row)]
    yield InventoryTable(("at its peak", *names), rows[:MAX_ROWS], _more(len(rows)))


def _grouped(roles: Sequence[TracedRole], shown: Callable[[TracedRole], Hashable]) -> list[list[TracedRole]]:
    """Returns roles that a table shows identically together, in the order of their first ranks."""
    groups: dict[Hashable, list[TracedRole]] = {}
    for role in roles:
        groups.setdefault(shown(role), []).append(role)
    return list(groups.values())


def _ranks_text(roles: Sequence[TracedRole]) -> str:
    """Returns ranks by their numbers: "rank 0", "ranks 0-7, 16"."""
    runs: list[list[int]] = []
    for role in roles:
        if runs and role.rank == runs[-1][-1] + 1:
            runs[-1].append(role.rank)
        else:
            runs.append([role.rank])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{'rank' if len(roles) == 1 else 'ranks'} {listed(words, MAX_LISTED)}"


def _more(rows: int) -> str:
    return f"{rows - MAX_ROWS:,} more in --json" if rows > MAX_ROWS else ""
