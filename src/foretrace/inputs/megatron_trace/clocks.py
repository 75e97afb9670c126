"""One clock for all hosts.

Timestamps count from the start of their host. Ranks whose traces overlap in time are on one host; hosts are brought
together by what ends for all its members at once: collectives, transfers, and last the barrier before the iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from foretrace.basics.errors import Diagnostic

Meeting = Mapping[int, float]
"""When a rendezvous ended, by rank, each on its own clock."""


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
    """What to take off each rank's clock, in the clock's unit, so that all count from the start of the first op."""
    hosts = hosts_of(spans)
    count = max(hosts.values(), default=-1) + 1
    ahead: dict[tuple[int, int], list[float]] = {}
    for meeting in meetings:
        first: dict[int, float] = {}
        for rank, end in meeting.items():
            first[hosts[rank]] = max(end, first.get(hosts[rank], float("-inf")))
        reference = min(first)
        for host, end in first.items():
            if host != reference:
                ahead.setdefault((reference, host), []).append(end - first[reference])
    begins = [min(spans[rank][0] for rank in spans if hosts[rank] == host) for host in range(count)]
    offset: dict[int, float] = {0: begins[0]} if count else {}
    notes: list[Diagnostic] = []
    while len(offset) < count:
        known = [(pair, values) for pair, values in ahead.items() if (pair[0] in offset) != (pair[1] in offset)]
        if known:
            (low, high), values = max(known, key=lambda one: len(one[1]))
            by = median(values)
            if low in offset:
                offset[high] = offset[low] + by
            else:
                offset[low] = offset[high] - by
        else:
            host = min(set(range(count)) - set(offset))
            offset[host] = begins[host]
            notes.append(
                Diagnostic("note", "clocks-apart", f"host {host} meets no other: its clock is set by its first op")
            )
    if count > 1:
        notes.append(
            Diagnostic("note", "clocks-aligned", f"{count} hosts, whose clocks are set by what they end together")
        )
    start = min((spans[rank][0] - offset[hosts[rank]] for rank in spans), default=0.0)
    return {rank: offset[host] + start for rank, host in hosts.items()}, notes
