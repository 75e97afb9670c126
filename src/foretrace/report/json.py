"""Answers as JSON: one object, stable keys, SI units, numbers as numbers; `schema` says the version."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foretrace.analysis.answer import Simulation
from foretrace.errors import Diagnostic
from foretrace.files import write_text

SIMULATION_SCHEMA = "foretrace.simulation/1"


def simulation_json(simulation: Simulation) -> dict[str, Any]:
    """The whole answer."""
    peak = simulation.peak_memory
    path = simulation.critical_path
    return {
        "schema": SIMULATION_SCHEMA,
        "title": simulation.title,
        "world_size": simulation.world_size,
        "mesh": simulation.mesh,
        "cluster": None if simulation.cluster is None else simulation.cluster.name,
        "executor": simulation.executor,
        "scenario": {
            "what_if": simulation.scenario.what_if,
            "stragglers": {str(rank): factor for rank, factor in simulation.scenario.stragglers.items()},
            "jitter": simulation.scenario.jitter,
            "choices": list(simulation.scenario.choices),
            "slow_links": {f"{rank}:{axis}": one for (rank, axis), one in simulation.scenario.slow_links.items()},
        },
        "unchanged_step_time_s": simulation.unchanged_step_time_s,
        "step_time_s": simulation.step_time_s,
        "unchanged_step_time_unprofiled_s": simulation.unchanged_step_time_unprofiled_s,
        "step_time_unprofiled_s": simulation.step_time_unprofiled_s,
        "step_time_unprofiled_band_s": simulation.step_time_unprofiled_band_s
        and list(simulation.step_time_unprofiled_band_s),
        "step_time_band_s": simulation.step_time_band_s and list(simulation.step_time_band_s),
        "step_time_is": "steady period" if simulation.repeats else "makespan of one step",
        "until_optimizer_s": simulation.until_optimizer_s,
        "steps_run": simulation.steps_run,
        "tokens_per_s_per_gpu": simulation.tokens_per_s_per_gpu,
        "breakdown_s": simulation.breakdown.mean_s,
        "critical_path": {"length_s": path.length_s, "ops": len(path.node), "parts_s": path.parts_s},
        "bottlenecks": [
            {
                "name": one.name,
                "busy_s": one.busy_s,
                "gain_10_percent_s": one.gain_10_percent_s,
                "gain_if_free_s": one.gain_if_free_s,
            }
            for one in simulation.bottlenecks
        ],
        "peak_memory_bytes": None if peak is None else peak.bytes,
        "peak_memory": None
        if peak is None
        else {"rank": peak.rank, "role": peak.role, "by_category_bytes": peak.by_category},
        "lanes": [
            {"lane": one.lane, "ranks": one.ranks, "busy_share": one.busy, "waiting_share": one.waiting}
            for one in simulation.lanes
        ],
        "network": None if simulation.network is None else asdict(simulation.network),
        "overlap_cost_s": simulation.overlap_cost_s,
        "rank_classes": _rank_classes(simulation),
        "provenance": [
            {"source": one.source, "share": one.share, "band": [one.low, one.high]} for one in simulation.provenance
        ],
        "diagnostics": diagnostics_json(simulation.diagnostics),
    }


def write_json(result: dict[str, Any], path: Path) -> None:
    """Writes an answer to a file."""
    write_text(path, json.dumps(result, indent=1, allow_nan=False) + "\n")


def diagnostics_json(diagnostics: tuple[Diagnostic, ...]) -> list[dict[str, Any]]:
    """Notes and warnings."""
    return [{"level": one.level, "code": one.code, "message": one.message, "where": one.where} for one in diagnostics]


def _rank_classes(simulation: Simulation) -> list[dict[str, Any]]:
    graph, parts = simulation.timeline.graph, simulation.breakdown
    program, classes = graph.program, graph.classes
    rounding = 1e-12 * simulation.step_time_s
    return [
        {
            "role": program.roles[int(program.role_of[rank])],
            "ranks": int(classes.count[number]),
            "first_rank": int(rank),
            "breakdown_s": {
                part: float(seconds)
                for part, seconds in zip(parts.parts, parts.per_class_s[number], strict=True)
                if seconds > rounding
            },
        }
        for number, rank in enumerate(classes.representative)
    ]
