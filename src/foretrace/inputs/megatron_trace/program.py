"""Turns traces of ranks into a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

import numpy as np

from foretrace.basics.collector import collector_paused
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.limits import check_gpus, check_ops
from foretrace.basics.mesh import Mesh
from foretrace.inputs.megatron_trace.calls import (
    GRADIENT_OPS,
    comm_of,
    gradient_call,
    group_of,
    group_size,
    tensor_bytes,
)
from foretrace.inputs.megatron_trace.format import RankTrace, Run, TraceOp
from foretrace.inputs.megatron_trace.layout import TraceJob, find_job, last_iteration, mesh_of
from foretrace.inputs.megatron_trace.options import MegatronTraceOptions
from foretrace.inputs.megatron_trace.plausible import odd_rates, odd_times
from foretrace.inputs.megatron_trace.recording import Recording, make_recording
from foretrace.inputs.megatron_trace.replay import recorded_times, replay
from foretrace.inputs.megatron_trace.whole_job.corrections import HOST_GAP_S
from foretrace.inputs.megatron_trace.whole_job.pools import AIM
from foretrace.inputs.megatron_trace.whole_job.resize import resized
from foretrace.inputs.megatron_trace.whole_job.whole_job import WholeJob, whole_job_spec
from foretrace.inputs.megatron_trace.whole_job.work import RankWork, Stones, Stretch, read_stones
from foretrace.inputs.option_values import Overlap, changed_options, check_parts
from foretrace.program.columns import UNPRICED, Collective
from foretrace.program.expand import expand
from foretrace.program.fold import fold
from foretrace.program.program import Program
from foretrace.program.timeline import Timeline
from foretrace.schedules.pipeline import Transfer
from foretrace.schedules.registry import make, resolve
from foretrace.schedules.schedule import Schedule
from foretrace.step import build_step
from foretrace.step.spec import Call

REBUILT_BY = ("microbatches", "schedule", "vpp", "gpus", "routing", "pp_comm_bytes", "overlap", "stage_layers")
"""MegatronTraceOptions for which a real run is not replayed but built anew of what its ops take."""


def lower_runs(runs: Sequence[Run], options: MegatronTraceOptions) -> Program:
    """Builds the program of rank traces: a real run as it was, or the whole job that ex-situ campaigns predict.

    Options that change a real run build it again from what its ops took.
    """
    with collector_paused():
        job = trace_job(runs, options)
        target = _target(job, options)
        if not job.ex_situ and options.microbatches == _microbatches(job):
            options = replace(options, microbatches=None)  # as it was
        changed = changed_options(options) & set(REBUILT_BY)
        if job.alone and not job.ex_situ and changed:
            raise InputError(
                "cannot-change",
                f"{', '.join(sorted(changed))}: one rank alone cannot be built anew: give --mesh",
                where=job.runs[0].path,
            )
        if job.ex_situ or changed or target != job.mesh:
            return _whole(job, options, target)
        recording = make_recording(job)
        notes = [*run_notes(job), *recording.notes, *odd_rates(recording)]
        if job.alone:
            text = "one rank alone: what it waited for others cannot be told from what communication took"
            notes.append(Diagnostic("warning", "uncertain", text, job.runs[0].path))
        if options.priced:
            text = "communication of the real run is priced anew on the cluster"
            notes.append(Diagnostic("note", "repriced", text))
        return replay(recording, notes, priced=options.priced)


def recording_of(runs: Sequence[Run], options: MegatronTraceOptions) -> Recording | None:
    """Returns what was recorded, where the traces are of a real run."""
    with collector_paused():
        job = trace_job(runs, options)
        if job.ex_situ:
            return None
        if _target(job, options) != job.mesh:
            raise InputError(
                "cannot-change",
                f"the run was recorded on {job.mesh}",
                where=job.runs[0].path,
                hint="foretrace simulate builds it anew for another mesh",
            )
        return make_recording(job)


def recorded_timeline(recording: Recording) -> Timeline:
    """Returns the recorded times of every op; the step is the makespan of the aligned ranks."""
    with collector_paused():
        notes = [*run_notes(recording.job), *recording.notes, *odd_rates(recording)]
        program = replay(recording, notes)
        graph = fold(expand(program))
        ready, start, end = recorded_times(recording, graph.classes.representative.tolist())
        return Timeline(graph, ready, start, end, np.zeros(len(end)), float(end.max()), steps_run=0)


def trace_job(runs: Sequence[Run], options: MegatronTraceOptions) -> TraceJob:
    """Returns the job that rank traces are of."""
    return find_job(runs, options.mesh if options.traced is None else options.traced)


def run_notes(job: TraceJob) -> list[Diagnostic]:
    """Returns the notes from reading the files; a note that many files share comes once."""
    of_files = {
        replace(note, where=None): note
        for run in job.runs
        for trace in run.ranks.values()
        for note in trace.diagnostics
    }
    return [*(note for run in job.runs for note in run.diagnostics), *of_files.values(), *job.notes, *odd_times(job)]


def _target(job: TraceJob, options: MegatronTraceOptions) -> Mesh:
    """The mesh of the job to build."""
    target = job.mesh if options.mesh is None else mesh_of(options.mesh, job.mesh)
    if options.gpus is None:
        return target
    if job.alone:
        raise InputError(
            "unknown-mesh",
            "how many GPUs one rank alone is of is not known",
            hint="give the mesh: --mesh pp=2,ep=8,dp=8",
        )
    inner = target.tp * target.cp * target.pp
    if options.gpus % (inner * target.ep):
        raise InputError(
            "not-divisible",
            f"{options.gpus:,} GPUs do not divide into {target}",
            hint=f"ask for a multiple of {inner * target.ep:,}",
        )
    return replace(target, dp=options.gpus // inner)


def _whole(job: TraceJob, options: MegatronTraceOptions, target: Mesh) -> Program:
    stones = read_stones(job)
    schedule = _schedule(job, target, options)
    stage_layers = _stage_layers(schedule, options)
    recording = None if job.ex_situ else make_recording(job)
    recorded = {} if recording is None or options.priced else _recorded_calls(recording, target)
    if target != job.mesh or options.routing is not None or stage_layers is not None:
        stones = resized(job, stones, target, options.routing, stage_layers)
    if recording is not None and not options.priced:
        _check_recorded(stones, recorded, job)
        stones = Stones({key: _timed(work, recorded) for key, work in stones.work.items()}, stones.pools, stones.notes)
    notes = [*run_notes(job), *stones.notes]
    gap = HOST_GAP_S if recording is None else _mean_gap(recording)
    whole = _whole_job(job, target, options, schedule, recorded, gap, notes)
    if options.priced or job.ex_situ:
        text = (
            "computation takes what the traces say, on the GPU they were taken on; a cluster prices communication only"
        )
        notes.append(Diagnostic("note", "as-recorded", text))
    if job.ex_situ:
        notes.append(_repeats(stones, len(job.runs)))
    else:
        notes.append(
            Diagnostic("note", "changed-as-asked", "built anew of what the ops of the real run took, not replayed")
        )
    if job.alone:
        text = (
            "one rank alone: its computation is what it took, but communication takes no time here, because whom it "
            "communicates with is not known, and there are no other ranks to wait for"
        )
        notes.append(Diagnostic("warning", "not-modelled", text, job.runs[0].path))
    return build_step(whole_job_spec(stones, whole, notes))


def _check_recorded(stones: Stones, recorded: _Recorded, job: TraceJob) -> None:
    """Raises an error where a change makes calls that the run did not."""
    for work in stones.work.values():
        calls = [stretch.call for stretch in (*work.forward, *work.loss, *work.backward) if stretch.call]
        for call in (*calls, *work.gradients):
            if (call.collective, call.axis, call.bytes) not in recorded:
                raise InputError(
                    "needs-cluster",
                    f"the recording does not say what {call.name} takes after this change",
                    where=job.runs[0].path,
                    hint="price it on a cluster, as in --cluster a100-dgx",
                )


def _repeats(stones: Stones, campaigns: int) -> Diagnostic:
    needed = stones.pools.campaigns_for()
    what = f"{campaigns} campaign{'' if campaigns == 1 else 's'}"
    low, high = stones.pools.spread(lambda _: True)
    spread = f"their timings alone leave −{100 * (1 - low):.1f} to +{100 * (high - 1):.1f} % of computation open"
    if needed <= campaigns:
        return Diagnostic("note", "uncertain", f"{what}: {spread}")
    return Diagnostic("note", "uncertain", f"{what}: {spread}; for ± {100 * AIM:.0f} % take about {needed} campaigns")


_Recorded = dict[tuple[Collective, str, int], float]


def _mean_gap(recording: Recording) -> float:
    """Returns the mean time of the host between two ops of a real run."""
    gaps = [item.taken_s for items in recording.traced.values() for item in items if item.name == "gap"]
    return sum(gaps) / len(gaps) if gaps else 0.0


def _recorded_calls(recording: Recording, target: Mesh) -> _Recorded:
    """Returns what calls of a real run take without waiting, where the sizes of their groups stay."""
    job = recording.job
    call_times: dict[tuple[Collective, str, int], list[float]] = {}
    for items in recording.traced.values():
        for item in items:
            call, net_s = item.call, item.net_s
            if call is None and item.op.op in GRADIENT_OPS and item.kind == "compute":
                call, net_s = gradient_call(item.op, job.runs[0].path), item.taken_s
            if call is not None and (
                call.axis == "pp" or group_size(job.mesh, call.axis) == group_size(target, call.axis)
            ):
                call_times.setdefault((call.collective, call.axis, call.bytes), []).append(net_s)
    return {key: median(times) for key, times in call_times.items()}


def _timed(work: RankWork, recorded: _Recorded) -> RankWork:
    def call_of(call: Call) -> Call:
        return replace(call, seconds=recorded.get((call.collective, call.axis, call.bytes), UNPRICED))

    def works(each: Iterable[Stretch]) -> tuple[Stretch, ...]:
        return tuple(
            stretch if stretch.call is None else replace(stretch, call=call_of(stretch.call)) for stretch in each
        )

    return replace(
        work,
        forward=works(work.forward),
        loss=works(work.loss),
        backward=works(work.backward),
        gradients=tuple(call_of(call) for call in work.gradients),
    )


def _whole_job(
    job: TraceJob,
    target: Mesh,
    options: MegatronTraceOptions,
    schedule: Schedule,
    recorded: _Recorded,
    gap_s: float,
    notes: list[Diagnostic],
) -> WholeJob:
    count = schedule.microbatches
    if job.ex_situ and options.microbatches is None:
        text = "1 microbatch a step taken: the traces do not say (choose with --microbatches)"
        notes.append(Diagnostic("warning", "assumed", text))
    if options.schedule is None and target.pp > 1:
        text = f"no schedule in the traces: {schedule.name} taken (choose with --schedule)"
        notes.append(Diagnostic("note", "assumed", text))
    if options.overlap:
        text = f"{', '.join(sorted(options.overlap))} overlapped with computation, as asked"
        notes.append(Diagnostic("note", "changed-as-asked", text))
    if Overlap.PARAM in options.overlap:
        text = "no parameters are gathered in the traces: --overlap param has no effect"
        notes.append(Diagnostic("note", "not-recorded", text))
    size, tokens = _activation(job, target, options, notes)
    chunks = f", {schedule.chunks} chunks" if schedule.chunks > 1 else ""
    transfer_s = recorded.get((Collective.TRANSFER, "pp", size), UNPRICED)
    return WholeJob(
        title=f"{job.name} · {schedule.name}, {count} microbatch{'' if count == 1 else 'es'}{chunks}",
        mesh=target,
        schedule=schedule,
        transfer=Transfer(size, transfer_s),
        tokens_per_step=None if tokens is None else float(tokens * count * target.dp),
        ex_situ=job.ex_situ,
        gap_s=gap_s,
        alone=job.alone,
        overlap=options.overlap,
        stage_layers=options.stage_layers,
    )


def _schedule(job: TraceJob, target: Mesh, options: MegatronTraceOptions) -> Schedule:
    count = options.microbatches or _microbatches(job)
    _check_size(job, target, count)
    usual = "interleaved-1f1b" if (options.vpp or 1) > 1 else "1f1b"
    return make(resolve(options.schedule or usual), target.pp, count, options.vpp)


def _stage_layers(schedule: Schedule, options: MegatronTraceOptions) -> list[int] | None:
    """Returns the layers of every stage, if they are asked for by chunk."""
    if options.stage_layers is None:
        return None
    check_parts(options.stage_layers, schedule.pieces)
    return [sum(options.stage_layers[piece] for piece in pieces) for pieces in schedule.piece.tolist()]


def _check_size(job: TraceJob, target: Mesh, microbatches: int) -> None:
    check_gpus(target.world, job.runs[0].path)
    longest = max(sum(1 + 2 * len(op.subs) for op in trace.ops) for run in job.runs for trace in run.ranks.values())
    check_ops(target.pp * target.ep * microbatches * longest, target.pp, microbatches, job.runs[0].path)


def _microbatches(job: TraceJob) -> int:
    """How often a rank of a real run goes forward; 1 for ex-situ traces."""
    if job.ex_situ:
        return 1
    trace = next(iter(job.runs[0].ranks.values()))
    return max(sum(op.op == "forward_step" for op in last_iteration(trace)), 1)


def _activation(
    job: TraceJob, target: Mesh, options: MegatronTraceOptions, notes: list[Diagnostic]
) -> tuple[int, int | None]:
    """Returns the bytes across a stage boundary for a microbatch, and its tokens where they are known."""
    facts = job.facts
    tokens = facts.sequence * (facts.micro_batch or 1) if facts.sequence else None
    if facts.sequence and facts.micro_batch is None:
        notes.append(Diagnostic("note", "assumed", "the names do not say the micro batch: 1 taken"))
    if options.pp_comm_bytes is not None or target.pp == 1:
        return options.pp_comm_bytes or 0, tokens
    for trace, op in _ops(job):
        if op.op in ("send_forward", "recv_forward") and op.shape:
            return tensor_bytes(op.shape, op.dtype, trace.at(op.line)), tokens
    guess = _from_sub_ops(job)
    if guess is None:
        text = (
            "what crosses a stage boundary is not in the traces, nor the sequence length in their names: transfers "
            "take their latency only (say it with --pp-comm, as in --pp-comm 8MiB)"
        )
        notes.append(Diagnostic("warning", "not-recorded", text, job.runs[0].path))
        return 0, tokens
    size, why, level = guess
    text = f"no transfers in ex-situ traces: {size / 2**20:g} MiB cross a stage boundary for a microbatch, {why}"
    notes.append(Diagnostic(level, "guessed", text))
    return size, tokens


TOP_K = 2
"""Experts a token goes to, where nothing tells: Megatron's default (--moe-router-topk)."""


def _from_sub_ops(job: TraceJob) -> tuple[int, str, Literal["note", "warning"]] | None:
    """The bytes of an activation as communication in the forward shows them, and how; a guess is a warning."""
    sequence, batch = job.facts.sequence, job.facts.micro_batch or 1
    for trace, op in _ops(job):
        for sub in op.subs if op.op == "forward_step" else ():
            where = trace.at(op.line)
            if (group_of(sub), comm_of(sub), sub.name) == ("tp", "allreduce", "linear_fwd"):
                return tensor_bytes(sub.shape, sub.dtype, where), "as a layer's tp all-reduce has", "note"
            if comm_of(sub) == "all_to_all" and sub.shape and len(sub.shape) == 2:
                rows = sequence * batch if sequence else sub.shape[0] // TOP_K
                size = tensor_bytes((rows, sub.shape[1]), sub.dtype, where)
                shared = any((group_of(sub), comm_of(sub)) == ("tp", "reduce_scatter") for sub in op.subs)
                size = size // job.mesh.tp if shared else size
                if sequence:
                    return size, "by the sequence length and hidden size", "note"
                return (
                    size,
                    f"if tokens go to {TOP_K} experts each (the names do not say the sequence length)",
                    "warning",
                )
    return None


def _ops(job: TraceJob) -> Iterator[tuple[RankTrace, TraceOp]]:
    return ((trace, op) for run in job.runs for trace in run.ranks.values() for op in trace.ops)
