"""How fast messages on links are run, against the targets, the least that must be done, and ASTRA-sim.

    python benchmarks/network.py [--json]

All figures are CPU seconds (best of several runs) of this process; "core" is the core install, "fast" adds numba,
once its code is compiled. The bound of a ring is one addition and one comparison for each of its messages, at the
speed numpy adds arrays of a ring's ranks with. ASTRA-sim's seconds are those recorded for the same messages (1,024
NPUs, 4 chunks, without and with its congestion-aware network); it has no skew and no slow link."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np

from foretrace import load_cluster
from foretrace.engine import jit
from foretrace.engine.network.chunks import ring_times
from foretrace.engine.network.collectives import pairs, ring, routed
from foretrace.engine.network.flows import run_flows
from foretrace.engine.network.messages import concatenated, repeated
from foretrace.hardware.fabric.topology import Topology
from foretrace.program.columns import Collective
from foretrace.simulation.network.flow_network import FlowNetwork, flow_network
from foretrace.simulation.network.flows import flow_time
from speed import Row, cpu_seconds, show

ASTRA_SIM = {"unaware": (12.5, 18.8), "aware": (27.9, 28.8)}
"""CPU seconds, least and most of several runs, for a ring all-reduce of 1 MiB among 1,024."""

RANKS, CHUNKS, SIZE, RATE, LATENCY = 1024, 4, 2.0**20, 50e9, 500e-9
STEPS = 2 * (RANKS - 1)
MESSAGES = STEPS * CHUNKS * RANKS


def rings() -> list[Row]:
    """1,024 ranks, all 8.4 million messages: alike, and with skew and a slow hop."""
    random = np.random.default_rng(0)
    even, slow = np.full(RANKS, RATE), np.full(RANKS, RATE)
    slow[RANKS // 3] /= 5
    late = random.uniform(0, 1e-3, RANKS)
    a, b = np.zeros(RANKS), np.ones(RANKS)
    bound = 2 * STEPS * CHUNKS * cpu_seconds(lambda: [np.add(a, b, out=a) for _ in range(1000)]) / 1000

    def run(rate: np.ndarray, arrival: np.ndarray) -> Callable[[], object]:
        part = SIZE / RANKS / CHUNKS
        return lambda: ring_times(STEPS, CHUNKS, part, rate, np.full(RANKS, LATENCY), arrival)

    rows = []
    for what, work, target in (
        ("alike", run(even, np.zeros(RANKS)), 0.1),
        ("random skew and a slow link", run(slow, late), 1.0),
    ):
        seconds = cpu_seconds(work)
        detail = f"{MESSAGES / 1e6:.1f} M messages, {MESSAGES / seconds / 1e6:,.0f} M/s, "
        detail += f"{seconds / bound:.1f}× the {1e3 * bound:.0f} ms bound; ASTRA-sim takes "
        detail += " and ".join(f"{low / seconds:,.0f}–{high / seconds:,.0f}×" for low, high in ASTRA_SIM.values())
        rows.append(Row(f"ring all-reduce of 1,024, {what}, core", seconds, "s", target, detail=detail))
    return rows


def fat_tree(gpus: int, oversubscription: float = 2.0) -> FlowNetwork:
    """DGX H100 nodes under an oversubscribed fat-tree."""
    cluster = load_cluster("h100-dgx")
    topology = Topology(kind="fat-tree", oversubscription=oversubscription)
    return flow_network(replace(cluster, nodes=None, topology=topology), gpus // cluster.node.gpus)


def all_to_alls() -> list[Row]:
    """An even all-to-all on a 2:1 oversubscribed fat-tree, by kinds of sources, network and routing included."""
    rows, first = [], 0.0
    for gpus in (1024, 2048, 4096, 8192, 16384):

        def run(gpus: int = gpus) -> float:
            return flow_time(Collective.ALL_TO_ALL, 2.0**30, np.arange(gpus), fat_tree(gpus)).time_s

        seconds = cpu_seconds(run, 2)
        first = first or seconds
        detail = f"{gpus * (gpus - 1) / 1e6:,.0f} M messages, {seconds / first:.1f}× that of 1,024"
        rows.append(Row(f"all-to-all of {gpus:,}, fat-tree 2:1, core", seconds, "s", 5.0, detail=detail))
    return rows


def routed_rings() -> list[Row]:
    """A ring all-reduce of 1 GiB with a channel for each NIC, network and routing included: alike hops once."""
    rows = []
    for gpus in (64, 1024, 16384):

        def run(gpus: int = gpus) -> float:
            return flow_time(Collective.ALL_REDUCE, 2.0**30, np.arange(gpus), fat_tree(gpus)).time_s

        detail = f"{2 * (gpus - 1) * gpus * 8 / 1e6:,.1f} M messages"
        rows.append(Row(f"ring all-reduce of {gpus:,}, fat-tree 2:1, core", cpu_seconds(run, 1), "s", detail=detail))
    return rows


def one_by_one() -> list[Row]:
    """The same messages routed and run one by one, folded by what they turn out to be."""
    rows = []
    network = fat_tree(1024)
    gpus = np.arange(1024)
    for name, fast in (("core", False), ("fast", True)):
        jit.use(fast)

        def run() -> float:
            sends = pairs(np.full((1024, 1024), 2.0**20))
            messages = routed(sends, gpus, network.routing, network.fabric.latency_s, np.zeros(1024))
            return run_flows(network.capacity, messages).time_s

        run()
        rows.append(Row(f"all-to-all of 1,024, each message routed, {name}", cpu_seconds(run, 1), "s", 5.0))
        rows.append(events(name))
    jit.use(False)
    return rows


def events(name: str) -> Row:
    """Events per second of messages that are all different: eight rings over 16 nodes, each rank late by its own
    time."""
    network = fat_tree(128)
    groups = np.arange(128).reshape(16, 8).T
    random = np.random.default_rng(0)
    parts = [
        routed(
            ring(np.arange(16)[None], random.uniform(1e7, 2e7)),
            gpus,
            network.routing,
            network.fabric.latency_s,
            random.uniform(0, 1e-4, 16),
        )
        for gpus in groups
    ]
    messages = repeated(concatenated(parts), 2, 30)
    ran = run_flows(network.capacity, messages)
    seconds = cpu_seconds(lambda: run_flows(network.capacity, messages), 2)
    detail = f"{ran.events:,} events, {len(messages):,} messages, {ran.kinds:,} kinds"
    return Row(f"messages that are all different, {name}", ran.events / seconds, "events/s", detail=detail)


def main() -> None:
    """Measures everything and prints a table, or JSON."""
    jit.use(False)
    rows: list[Row] = []
    for measure in (rings, routed_rings, all_to_alls, one_by_one):
        print(f"measuring {measure.__name__} …", file=sys.stderr)
        rows += measure()
    if "--json" in sys.argv:
        print(
            json.dumps(
                {"schema": "foretrace.speed/1", "rows": [asdict(row) | {"met": row.within_target} for row in rows]}
            )
        )
        return
    show(rows)


if __name__ == "__main__":
    main()
