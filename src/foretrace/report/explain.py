"""An explanation as one screen and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from foretrace.basics.units import format_bandwidth, format_bytes, format_count, format_percent, format_time
from foretrace.inputs.inventory import mesh_text
from foretrace.readings.account import PerMicrobatch
from foretrace.readings.explain import Explanation
from foretrace.readings.explain.communication import CallKind, WorstCall
from foretrace.readings.explain.path import LongOp
from foretrace.readings.explain.pipeline import Stage
from foretrace.readings.explain.rows import OpPlace
from foretrace.readings.explain.stragglers import RankLateness
from foretrace.readings.explain.variation import Variation
from foretrace.report.answer_words import signed_percent
from foretrace.report.json import to_json
from foretrace.report.table import TextTable
from foretrace.report.terminal import Screen, Span, diagnostic_lines, show

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

EXPLANATION_SCHEMA = "foretrace.explanation/1"
MAX_CALLS = 5
MAX_STAGES = 4
MAX_RANKS = 3
MAX_NOTES = 3
MAX_LOADS = 16


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """Returns all of an explanation, in SI units."""
    simulation, path, experts = explanation.answer, explanation.critical_path, explanation.experts
    line, slowest = explanation.pipeline, explanation.pipeline.slowest
    return to_json(
        EXPLANATION_SCHEMA,
        {
            "title": simulation.title,
            "world_size": simulation.world_size,
            "mesh": simulation.mesh,
            "cluster": None if simulation.cluster is None else simulation.cluster.name,
            "recorded": explanation.recorded,
            "step_time_s": simulation.step_time_s,
            "step_time_is": "steady period" if simulation.repeats else "makespan of one step",
            "replay_step_s": explanation.replay_step_s,
            "replay_error": explanation.replay_error,
            "breakdown_s": simulation.breakdown.mean_s,
            "advice": [row_json(remark) for remark in explanation.advice],
            "remedies": [row_json(remedy) | {"change": remedy.change} for remedy in explanation.remedies],
            "calls": [row_json(call) for call in explanation.calls],
            "worst_calls": [row_json(call) for call in explanation.worst_calls],
            "pipeline": {
                **row_json(line),
                "stages": [row_json(stage) | {"waits_s": stage.waits_s} for stage in line.stages],
                "slowest_stage": None if slowest is None else slowest.stage,
            },
            "ranks": [row_json(rank) for rank in explanation.ranks],
            "stragglers": [straggler.rank for straggler in explanation.stragglers],
            "experts": None if experts is None else row_json(experts),
            "variation": [row_json(row) for row in explanation.variation],
            "critical_path": {
                **row_json(path),
                "by_stage_s": [{"stage": stage, "seconds": seconds} for stage, seconds in path.by_stage_s.items()],
                "by_rank_s": [{"rank": rank, "seconds": seconds} for rank, seconds in path.by_rank_s.items()],
            },
            "host": row_json(explanation.host),
            "diagnostics": (*explanation.notes, *simulation.diagnostics),
        },
    )


def row_json(row: DataclassInstance) -> dict[str, Any]:
    """Returns a row and what it holds by name; the count of identical ranks has the key `alike`."""
    return asdict(
        row, dict_factory=lambda items: {"alike" if key == "identical" else key: value for key, value in items}
    )


def print_explanation(explanation: Explanation, stream: TextIO | None = None) -> None:
    """Prints one screen: the step and what made it long first, then the figures behind it."""
    screen = Screen.of(stream or sys.stdout)
    lines: list[list[Span]] = [[], *_headline(explanation)]
    lines += _advice(explanation) + remedies_table(explanation).spaced_lines()
    lines += calls_table(explanation.calls).first(MAX_CALLS).spaced_lines()
    lines += [[(f"  {text}", "")] for text in longest_waits(explanation.worst_calls)]
    lines += _slowest_stages(explanation).spaced_lines() + _latest_ranks(explanation).spaced_lines()
    lines += [[], *([(f"  {word:<8} {text}", "")] for word, text in fact_texts(explanation))]
    lines += diagnostic_lines((*explanation.notes, *explanation.answer.diagnostics), MAX_NOTES)
    lines.append(
        [("  see      --json: every rank, stage and call · --perfetto out.pftrace: the timeline", "bright_black")]
    )
    show(screen, lines)


def _headline(explanation: Explanation) -> list[list[Span]]:
    simulation, job = explanation.answer, run_size_text(explanation)
    kind = kind_text(explanation)
    lines: list[list[Span]] = [
        [("  Step   ", ""), (format_time(simulation.step_time_s), "bold"), (f"  {kind}     {job}", "")]
    ]
    texts = [text for text in (simulation.title, replay_text(explanation)) if text]
    if texts:
        lines.append([(f"  Job    {'; '.join(texts)}", "")])
    step = simulation.step_time_s
    parts = sorted(simulation.breakdown.mean_s.items(), key=lambda part: -part[1])
    shown = [f"{name} {format_time(seconds)} {format_percent(seconds / step)}" for name, seconds in parts if step > 0]
    lines += _wrapped("Parts", shown or ["nothing in this job takes time"])
    return lines


def kind_text(explanation: Explanation) -> str:
    """Returns whether the step was recorded or predicted."""
    return "recorded" if explanation.recorded else "predicted, not recorded"


def run_size_text(explanation: Explanation) -> str:
    """Returns how many ranks a run has, its axes and its microbatches."""
    answer, count = explanation.answer, explanation.pipeline.microbatches
    many = f" · {count} microbatch{'' if count == 1 else 'es'}" if count else ""
    ranks = f"{format_count(answer.world_size)} rank{'' if answer.world_size == 1 else 's'}"
    return f"{ranks} · {mesh_text(answer.mesh)}{many}"


def replay_text(explanation: Explanation) -> str:
    """Returns what the engine makes of the ops of a recorded run; empty where it was not run again."""
    error = explanation.replay_error
    if explanation.replay_step_s is None or error is None:
        return ""
    return f"run again from its ops {format_time(explanation.replay_step_s)}, {signed_percent(error)}"


def _wrapped(word: str, items: Sequence[str], width: int = 112) -> list[list[Span]]:
    """Wraps items after a word, as many to a line as fit; none is broken."""
    rows: list[str] = []
    for item in items:
        if rows and len(rows[-1]) + len(item) + 3 <= width:
            rows[-1] += f" · {item}"
        else:
            rows.append(item)
    return [[(f"  {word if number == 0 else '':<6} {row}", "")] for number, row in enumerate(rows)]


def _advice(explanation: Explanation) -> list[list[Span]]:
    if not explanation.advice:
        return []
    lines: list[list[Span]] = [[], [("  causes", "bold"), (" (means over ranks; they may overlap)", "")]]
    for number, remark in enumerate(explanation.advice, 1):
        lines.append([(f"  {number}. {remark.text}", "")])
    return lines


def remedies_table(explanation: Explanation) -> TextTable:
    """Returns the changes that were tried, each with its step."""
    rows = [
        (remedy.option, format_time(remedy.after_s), signed_percent(remedy.change)) for remedy in explanation.remedies
    ]
    before = format_time(explanation.remedies[0].before_s if rows else explanation.step_s)
    built = "built anew of what its ops take" if explanation.recorded else "as predicted"
    return TextTable(("possible changes", "step", "a microbatch"), rows, f"against {before}, {built}")


def calls_table(calls: Sequence[CallKind]) -> TextTable:
    """Returns the kinds of communication, the most expensive first."""
    rows = [
        (
            f"{call.axis} {call.collective}",
            format_count(call.calls),
            format_bytes(call.bytes / call.calls) if call.bytes else "",
            format_time(call.transfer_s),
            format_time(call.held_s),
            format_time(call.transfer.median_s),
            format_time(call.transfer.max_s),
            format_time(call.held.max_s),
            "" if call.bytes_per_s is None else format_bandwidth(call.bytes_per_s),
        )
        for call in calls
    ]
    heads = (
        "communication",
        "calls",
        "a call",
        "transfer",
        "waiting",
        "median",
        "longest",
        "longest wait",
        "bandwidth",
    )
    return TextTable(heads, rows)


def longest_waits(worst: Sequence[WorstCall]) -> list[str]:
    """Returns a sentence on the longest wait of each axis."""
    first: dict[str, WorstCall] = {}
    for call in worst:
        first.setdefault(call.axis, call)
    texts = []
    for call in first.values():
        late = call.waited_for
        if late is not None:  # a wait for nobody is what clocks are off by
            whom = f"rank {late.rank}, busy with {_op(late)}"
            waited = f"{_where(call.place, named=False)} waited {format_time(call.held_s)} for {whom}"
            texts.append(f"longest {call.axis} wait: {waited}")
    return texts


def _slowest_stages(explanation: Explanation) -> TextTable:
    """Returns the slowest stage and those that wait longest."""
    line = explanation.pipeline
    ordered = sorted(line.stages, key=lambda stage: (stage is not line.slowest, -stage.waits_s))
    return stages_table(explanation, ordered[:MAX_STAGES])


def stages_table(explanation: Explanation, chosen: Sequence[Stage]) -> TextTable:
    """Returns some stages of the pipeline in their order; none where there is only one, or no time passes."""
    line = explanation.pipeline
    if len(line.stages) == 1 or explanation.answer.step_time_s <= 0:
        chosen = ()
    rows = [
        (
            f"stage {stage.stage}{' (slowest)' if stage is line.slowest else ''}",
            _pass(stage.forward),
            _pass(stage.backward),
            format_time(stage.bubble_s),
            format_time(stage.embd_wait_s + stage.idle_s),
            format_percent(stage.waits_s / explanation.answer.step_time_s),
        )
        for stage in sorted(chosen, key=lambda stage: stage.stage)
    ]
    heads = ("pipeline", "forward", "backward", "bubble", "waits at the end", "of step")
    ideal = "" if line.ideal_bubble is None else f"; equal stages: {format_percent(line.ideal_bubble)}"
    note = f"compute of a microbatch; all stages wait {format_percent(line.waits_share)} of the step{ideal}"
    return TextTable(heads, rows, note, hidden=len(line.stages) - len(rows))


def _pass(passes: PerMicrobatch | None) -> str:
    return "" if passes is None else format_time(passes.mean_s)


def _latest_ranks(explanation: Explanation) -> TextTable:
    """Returns the ranks that others wait for longest."""
    shown = [rank for rank in ranks_by_lateness(explanation) if rank.held_others_s > 0 or rank.flags]
    return ranks_table(explanation, shown[:MAX_RANKS])


def ranks_by_lateness(explanation: Explanation) -> list[RankLateness]:
    """Returns the ranks, those that are flagged and that others wait for longest first."""
    return sorted(explanation.ranks, key=lambda rank: (not rank.flags, -rank.held_others_s))


def ranks_table(explanation: Explanation, shown: Sequence[RankLateness]) -> TextTable:
    """Returns for some ranks how long others waited for them."""
    rows = [
        (
            f"rank {rank.rank}"
            + (f" and {rank.identical - 1:,} alike" if rank.identical > 1 else "")
            + f", stage {rank.stage}",
            f"{rank.times_last:,} of {rank.meetings:,}",
            format_time(rank.held_others_s),
            format_time(rank.held_up_s),
            "" if rank.compute_ratio is None else f"{rank.compute_ratio:.2f}×",
            ", ".join(rank.flags),
        )
        for rank in shown
    ]
    heads = ("ranks that others wait for", "came last", "others lost, in sum", "lost itself", "compute / stage's", "")
    return TextTable(heads, rows, hidden=len(explanation.ranks) - len(rows))


def fact_texts(explanation: Explanation) -> list[tuple[str, str]]:
    """Returns a name and a text each for experts, variation, the critical path and the host."""
    path, host, step = explanation.critical_path, explanation.host, explanation.answer.step_time_s
    texts = [("experts", _experts(explanation)), ("jitter", _variation(explanation))]
    if path.by_part_s and step > 0:
        gaps = {"gaps": path.gaps_s} if path.gaps_s > 1e-9 * step else {}
        parts = [f"{name} {format_time(seconds)}" for name, seconds in list((path.by_part_s | gaps).items())[:6]]
        ranks = [f"rank {rank} {format_time(seconds)}" for rank, seconds in list(path.by_rank_s.items())[:3]]
        texts.append(("path", f"{' · '.join(parts)} (critical path, {format_count(path.ops)} ops)"))
        longest = f"; longest op {_long(path.longest[0])}" if path.longest else ""
        texts.append(("", f"most on {', '.join(ranks)}{longest}"))
    if host.longest:
        share = format_percent(host.share)
        texts.append(
            (
                "host",
                f"{format_time(host.total_s)}, {share} of the step; longest gap {_long(host.longest[0], host=True)}",
            )
        )
    return [(word, text) for word, text in texts if text]


def _experts(explanation: Explanation) -> str:
    experts = explanation.experts
    if experts is None:
        return ""
    stage = experts.busiest.stage
    loads = [f"{load.load:.2f}" for load in experts.loads if load.stage == stage]
    more = f" … ({len(loads)} in all)" if len(loads) > MAX_LOADS else ""
    return (
        f"tokens × the mean, by ep rank of stage {stage}: {' '.join(loads[:MAX_LOADS])}{more}; a microbatch's expert "
        f"compute: busiest {format_time(experts.busiest_compute_s)}, mean {format_time(experts.mean_compute_s)}"
    )


def _variation(explanation: Explanation) -> str:
    worst: dict[str, Variation] = {}
    for row in explanation.variation:
        if row.of_ops > 0 and (row.phase not in worst or row.of_passes > worst[row.phase].of_passes):
            worst[row.phase] = row
    texts = [
        f"{phase} ± {format_percent(row.of_passes)} a pass, ± {format_percent(row.of_ops)} an op (stage {row.stage})"
        for phase, row in worst.items()
    ]
    return f"{' · '.join(texts)}: median deviation between microbatches" if texts else ""


def _long(op: LongOp, host: bool = False) -> str:
    name = _where(op.place, named=not host)
    where = f"{name}, at {op.place.block}" if host else name
    return f"{format_time(op.seconds)} ({where})"


def _where(place: OpPlace, named: bool = True) -> str:
    """Returns a place in words: `rank 7 (stage 0, microbatch 7, layer 2)`."""
    others = f" and {place.identical - 1:,} alike" if place.identical > 1 else ""
    facts = [f"stage {place.stage}"]
    facts += [f"microbatch {place.microbatch}"] if place.microbatch is not None else []
    facts += [f"layer {place.layer}"] if place.layer is not None else []
    name = f"{place.op}, " if named else ""
    return f"{name}rank {place.rank}{others}, {', '.join(facts)}"


def _op(place: OpPlace) -> str:
    """Returns an op in words: `forward_step of microbatch 3`."""
    return place.op if place.microbatch is None else f"{place.op} of microbatch {place.microbatch}"
