"""Writes recordings of a script's ranks as a program of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.basics.errors import Diagnostic, InputError, collected
from foretrace.inputs.script.fuse import fused
from foretrace.inputs.script.groups import JobGroups, mesh_of, tokens_per_step
from foretrace.inputs.script.host_costs import HostCosts
from foretrace.inputs.script.kernels import kernel_texts, launch_counts, unknown_ops
from foretrace.inputs.script.recording import RankRecording
from foretrace.inputs.script.window import StepWindow, window_of
from foretrace.inputs.script.write_role import RecordedRole, RoleWriter
from foretrace.program.build import ProgramBuilder
from foretrace.program.program import Program


def program_of(
    recordings: Sequence[RankRecording],
    stands_for: Sequence[Sequence[int]],
    *,
    title: str,
    pace: float = 1.0,
    costs: HostCosts | None = None,
) -> Program:
    """Returns a program in which every rank of the world does what a recorded rank does.

    The last recorded step repeats, or all recorded steps together where they differ. Compiled regions are fused.

    Args:
        recordings: What one or more ranks issued.
        stands_for: The ranks that behave as each recorded rank, that one included; all ranks of the world together.
        title: The title of the program.
        pace: The factor on the seconds of the host.
        costs: The seconds of the host; None for the default values.

    Raises:
        InputError: Ranks are missing or listed twice, no step was recorded, or ranks that meet do not agree.
    """
    _check_ranks(recordings, stands_for)
    recordings = [fused(recording) for recording in recordings]
    windows = [window_of(recording) for recording in recordings]
    unknown = unknown_ops(recordings)
    notes = [note for recording in recordings for note in recording.diagnostics]
    notes += [*([unknown] if unknown else []), *_step_notes(recordings, windows)]
    mesh = mesh_of(recordings)
    tokens = tokens_per_step(recordings, mesh)
    build = ProgramBuilder(
        mesh,
        title=title,
        tokens_per_step=tokens and tokens * windows[0].steps,
        diagnostics=collected(dict.fromkeys(notes)),
    )
    groups = JobGroups(recordings, stands_for)
    for number, (recording, window) in enumerate(zip(recordings, windows, strict=True)):
        kernels, launches = kernel_texts(recording), launch_counts(recording)
        for ranks in groups.parts(number):
            rank = recording.rank if recording.rank in ranks else ranks[0]
            name = f"rank {rank}" if len(ranks) == 1 else f"ranks like {rank}"
            recorded = RecordedRole(number, rank, window, kernels, launches, costs or HostCosts(), pace)
            RoleWriter(recorded, groups).write(build.role(name, ranks), build.block(f"step of {name}"))
    return build.program()


def _check_ranks(recordings: Sequence[RankRecording], stands_for: Sequence[Sequence[int]]) -> None:
    """Raises an error where the recordings do not stand for each rank of the world once."""
    worlds = {recording.world for recording in recordings}
    if len(worlds) != 1 or len(recordings) != len(stands_for):
        raise InputError("conflicting-values", f"recordings are of {len(worlds)} different worlds")
    for recording, ranks in zip(recordings, stands_for, strict=True):
        if recording.rank not in ranks:
            raise InputError("no-such-rank", f"the recording of rank {recording.rank} does not stand for itself")
    world = worlds.pop()
    stated = sorted(rank for ranks in stands_for for rank in ranks)
    if stated != list(range(world)):
        problem = f"recordings stand for {len(set(stated)):,} different ranks of {world:,}, {len(stated):,} in all"
        raise InputError("missing-ranks", problem)


def _step_notes(recordings: Sequence[RankRecording], windows: Sequence[StepWindow]) -> list[Diagnostic]:
    """Returns a note where the program's step is several steps of the script."""
    joined = [window.steps for window in windows if window.steps > 1]
    if not joined:
        return []
    if len({window.steps for window in windows}) > 1:
        ranks = ", ".join(str(recording.rank) for recording in recordings)
        raise InputError("conflicting-values", f"recorded steps of ranks {ranks} differ on some of them only")
    text = f"the {joined[0]} recorded steps differ: times are those of all of them together"
    return [Diagnostic("warning", "steps-differ", text)]
