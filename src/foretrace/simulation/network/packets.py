"""Runs a collective packet by packet with ns-3, for what flows leave open: queues, losses, congestion control.

It needs `pip install 'foretrace[packets]'`. ns-3's wheel speaks TCP, not RDMA. Each pair of neighbours keeps one
connection for all it sends, and no rank waits for what it is to pass on; so latencies of steps are not in these times.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.errors import InputError, UsageError, shown
from foretrace.basics.limits import limit_factor
from foretrace.basics.numbers import real_number
from foretrace.basics.processes import run_python
from foretrace.engine.network.collectives import Sends, chain, ring, ring_orders, tree, tree_parents
from foretrace.engine.network.messages import bytes_by_link, independent
from foretrace.program.columns import Collective
from foretrace.simulation.network import packets_ns3
from foretrace.simulation.network.flow_network import FlowNetwork
from foretrace.simulation.network.flows import pair_sends, ring_steps, runs_as

MAX_PACKETS: Final = 5_000_000
"""Packets times links that are run; ns-3 takes some minutes for as many."""

MAX_DEVICES: Final = 2_000
POLLS: Final = 200
"""How often is looked whether a flow has ended, over the time the busiest link needs; later as often over the time so
far."""

GIVE_UP: Final = 50
MAX_SECONDS: Final = 1800.0
"""Longer than ns-3 takes for `MAX_PACKETS`."""
_INSTEAD: Final = "--network flow needs no ns-3"
NOTE: Final = (
    "packets are TCP's, as ns-3 has no RDMA; each pair keeps one connection, and no rank waits for what it passes on"
)


@dataclass(frozen=True, slots=True, eq=False)
class PacketAnswer:
    """The time of a collective as packets, and the bytes that each link of the fabric carries."""

    time_s: float
    flows: int
    link_bytes: Floats
    note: str = NOTE


def packet_time(
    collective: Collective,
    size_bytes: float,
    groups: Longs,
    network: FlowNetwork,
    *,
    algorithm: Literal["ring", "tree"] = "ring",
) -> PacketAnswer:
    """Runs a collective of nccl-tests' size in groups of GPUs, [groups, ranks], all at once, packet by packet."""
    check_installed()
    source, target, size = _flows(collective, size_bytes, np.atleast_2d(groups), network, algorithm)
    if not len(size):
        return PacketAnswer(0.0, 0, np.zeros(network.fabric.links))
    routes = network.routing(source, target)
    link_bytes = bytes_by_link(independent(size, routes, np.zeros(len(size))), network.fabric.links)
    packets = float(link_bytes.sum()) / packets_ns3.SEGMENT_BYTES
    if packets > MAX_PACKETS or network.fabric.devices > MAX_DEVICES:
        limits = f"at most {MAX_PACKETS:,} packets times links and {MAX_DEVICES:,} devices"
        raise InputError(
            "too-large",
            f"{packets:,.0f} packets over {network.fabric.devices:,} devices are too many to run one by one",
            hint=f"{limits}; --network flow has no such limit",
        )
    cables, cable_of, side_of = _cables(network)
    entering = np.flatnonzero(network.fabric.target[routes.link] == np.repeat(target, np.diff(routes.start)))
    last = routes.link[entering[np.searchsorted(entering, routes.start[:-1])]]
    columns = {
        "source": source,
        "target": target,
        "bytes": np.ceil(size),
        "link": cable_of[last],
        "side": side_of[last],
    }
    flows = [{name: int(column[flow]) for name, column in columns.items()} for flow in range(len(size))]
    busiest_s = float((link_bytes / network.capacity).max())
    case = {
        "devices": network.fabric.devices,
        "links": cables,
        "flows": flows,
        "poll_s": busiest_s / POLLS,
        "polls": POLLS,
    }
    ends = _run({**case, "give_up_s": GIVE_UP * busiest_s + 1.0})
    return PacketAnswer(max(ends), len(flows), link_bytes)


def check_installed() -> None:
    """Raises an error where ns-3 is not installed."""
    if importlib.util.find_spec("ns") is None:
        raise UsageError(
            "missing-package",
            "packets are run by ns-3, which is not installed",
            hint="pip install 'foretrace[packets]'",
        )


def _flows(
    collective: Collective, size_bytes: float, groups: Longs, network: FlowNetwork, algorithm: Literal["ring", "tree"]
) -> tuple[Longs, Longs, Floats]:
    """From which GPU to which, and how many bytes in all."""
    sends: list[Sends] = []
    for gpus in groups:
        nodes, n = network.nodes_of(gpus), len(gpus)
        if n == 1:
            continue
        way = runs_as(collective, algorithm)
        if way == "ring":
            sends.append(ring(ring_orders(nodes), size_bytes * ring_steps(collective, n)))
        elif way == "tree":
            sends.append(tree(tree_parents(nodes), size_bytes))
        elif way == "chain":
            turn = -1 if collective is Collective.REDUCE else 1
            sends.append(chain(ring_orders(nodes)[:, ::turn], size_bytes))
        else:
            sends.append(pair_sends(collective, size_bytes, n))
    if not sends:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    rows = list(zip(sends, groups, strict=True))
    return (
        np.concatenate([gpus[send.source] for send, gpus in rows]),
        np.concatenate([gpus[send.target] for send, gpus in rows]),
        np.concatenate([send.bytes for send in sends]),
    )


def _cables(network: FlowNetwork) -> tuple[list[dict[str, Any]], Longs, Longs]:
    """Returns links in pairs, one each way.

    Returns the description of each pair for ns-3, and for each link its pair and the side that it enters.
    """
    fabric = network.fabric
    waiting: dict[tuple[int, int], list[int]] = {}
    cables: list[dict[str, Any]] = []
    cable_of, side_of = np.zeros(fabric.links, dtype=np.int64), np.zeros(fabric.links, dtype=np.int64)
    for link, (a, b) in enumerate(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)):
        back = waiting.get((b, a))
        if not back:
            waiting.setdefault((a, b), []).append(link)
            continue
        other = back.pop(0)
        cable_of[[other, link]], side_of[[other, link]] = len(cables), [1, 0]
        rates = [float(network.capacity[other]), float(network.capacity[link])]
        latency = float(max(fabric.latency_s[other], fabric.latency_s[link]))
        cables.append({"ends": [b, a], "bytes_per_s": rates, "latency_s": latency})
    return cables, cable_of, side_of


def _run(case: dict[str, Any]) -> list[float]:
    """Ends of the flows in seconds, by ns-3 in a process of its own."""
    import subprocess

    seconds = MAX_SECONDS * limit_factor()
    try:
        printed = run_python(packets_ns3.__name__, json.dumps(case), seconds)
    except subprocess.TimeoutExpired:
        raise InputError("gave-up", f"ns-3 took more than {seconds:g} s", hint=_INSTEAD) from None
    except subprocess.CalledProcessError as error:
        last = str(error.stderr).strip().splitlines()[-1:] or ["it reported nothing"]
        raise InputError("tool-failed", f"ns-3 failed: {shown(last[0])}", hint=_INSTEAD) from None
    return _ends(printed, len(case["flows"]))


def _ends(printed: str, flows: int) -> list[float]:
    """Reads the last line that ns-3's process printed: the end of each flow in seconds, or none."""
    try:
        ends = json.loads((printed.strip().splitlines() or [""])[-1])
        seconds = [real_number(end) for end in ends] if isinstance(ends, list) else None
    except (ValueError, RecursionError):
        seconds = None
    if seconds is None or len(seconds) not in (0, flows):
        raise InputError("tool-failed", "ns-3 did not print when flows end", hint=_INSTEAD)
    if not seconds:
        problem = "ns-3 lost packets for so long that nothing ended"
        raise InputError("tool-failed", problem, hint="--network flow loses none")
    return seconds
