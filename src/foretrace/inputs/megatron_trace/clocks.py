"""One clock for all hosts.

Timestamps count from the start of their host. Ranks whose traces overlap in time are on one host; hosts are brought
together by what ends for all its members at once: collectives, transfers, and last the barrier before the iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foretrace.basics.errors import Diagnostic
from foretrace.inputs.matching import Meeting, align_clocks


def hosts_of(spans: Mapping[int, tuple[float, float]]) -> dict[int, int]:
    """The host of each rank, from when its trace begins and ends on its own clock."""
    hosts: dict[int, int] = {}
    last_end, host = float("-inf"), -1
    for rank in sorted(spans, key=lambda span: spans[span][0]):
        begin, end = spans[rank]
        if begin > last_end:
            host += 1
            last_end = end
        last_end = max(last_end, end)
        hosts[rank] = host
    return hosts


def clock_offsets(
    spans: Mapping[int, tuple[float, float]], meetings: Sequence[Meeting]
) -> tuple[dict[int, float], list[Diagnostic]]:
    """Returns what to subtract from each rank's clock, in the clock's unit, so that all count from the first op."""
    hosts = hosts_of(spans)
    count = max(hosts.values(), default=-1) + 1
    begins = [min(spans[rank][0] for rank in spans if hosts[rank] == host) for host in range(count)]
    alignment = align_clocks(begins, [_by_host(meeting, hosts) for meeting in meetings])
    notes = [
        Diagnostic("note", "clocks-apart", f"host {host} meets no other: its clock is set by its first op")
        for host in alignment.apart
    ]
    if count > 1:
        notes.append(
            Diagnostic("note", "clocks-aligned", f"{count} hosts, whose clocks are set by what they end together")
        )
    offset = alignment.offset
    start = min((spans[rank][0] - offset[hosts[rank]] for rank in spans), default=0.0)
    return {rank: offset[host] + start for rank, host in hosts.items()}, notes


def _by_host(meeting: Meeting, hosts: Mapping[int, int]) -> Meeting:
    """Returns when a rendezvous ended on each host: when the last of its ranks did."""
    ends: dict[int, float] = {}
    for rank, end in meeting.items():
        ends[hosts[rank]] = max(end, ends.get(hosts[rank], float("-inf")))
    return ends
