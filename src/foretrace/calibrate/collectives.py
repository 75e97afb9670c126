"""Collectives that traces recorded, as measurements by size.

A recorded call lasts from where this rank arrived to the end; where it came before others, it waited for them. Of the
calls of one kind and size the shortest counts, over all ranks that were traced: somebody came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foretrace.basics.errors import Diagnostic
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.records import Measurement, Measurements
from foretrace.inputs.profiler_trace.format.records import RankProfile
from foretrace.inputs.profiler_trace.job.communication import RecordedCommunication, communications
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.program.columns import Collective

USUAL_NODE: Final = 8
"""GPUs of a node, where no cluster says."""

MIN_CALLS: Final = 3
"""Calls of which the shortest counts: of fewer, each may have waited."""

_LEFT_OUT: Final = (Collective.NONE, Collective.BARRIER, Collective.EXCHANGE)


def recorded_collectives(traces: Sequence[RankProfile], node_gpus: int | None) -> Measurements | None:
    """What collectives of these traces took; None where they have none of known size in a known group."""
    shortest: dict[tuple[Collective, int, int, int], list[float]] = {}
    for trace in traces:
        for event, call in communications(trace, EventLinks(trace)).items():
            if call.collective in _LEFT_OUT or call.bytes <= 0 or call.group.size < 2:
                continue
            key = (call.collective, call.group.size, _nodes(call, node_gpus or USUAL_NODE), call.bytes)
            shortest.setdefault(key, []).append(float(trace.events.duration_s[event]))
    name = traces[0].path if traces else ""
    kept = {key: min(times) for key, times in shortest.items() if len(times) >= MIN_CALLS and min(times) > 0}
    rows = [Measurement(*key, time_s, name, 1) for key, time_s in sorted(kept.items())]
    if not rows:
        return None
    notes = [
        Diagnostic(
            "note", "price-source", "of recorded collectives the shortest call of each size counts: others waited", name
        )
    ]
    if node_gpus is None:
        text = f"nodes of {USUAL_NODE} GPUs are assumed for recorded collectives (say --cluster)"
        notes.append(Diagnostic("note", "assumed", text, name))
    return measurements_of(rows, notes, name)


def _nodes(call: RecordedCommunication, node_gpus: int) -> int:
    """On how many nodes a group sits, if ranks fill them in order."""
    ranks = call.group.ranks or tuple(range(call.group.size))
    return len({rank // node_gpus for rank in ranks})
