"""Runs flows on links with SimGrid, by a Python that has it: a case as JSON in, the end of each flow as JSON out.

CM02 without cross traffic is max-min fair sharing after a latency; the window of TCP is so wide that it never limits.
All routes have the same latency, on a link of their own, since SimGrid weighs flows by theirs.
"""

from __future__ import annotations

import json
import sys

OPTIONS = ("network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:1e18")
WIDE = 1e18


def run(case: dict) -> list[float]:
    """Ends of the flows in seconds."""
    from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone, this_actor

    engine = Engine(["oracle", *(f"--cfg={option}" for option in OPTIONS), "--log=root.thres:error"])
    zone = NetZone.create_full_zone("zone")
    links = [
        LinkInRoute(zone.create_link(f"link{number}", rate).set_latency(0).seal())
        for number, rate in enumerate(case["capacity"])
    ]
    ends = [0.0] * len(case["flows"])

    def send(number: int, start_s: float, size: int) -> None:
        this_actor.sleep_for(start_s)
        Mailbox.by_name(str(number)).put("bytes", size)

    def receive(number: int) -> None:
        Mailbox.by_name(str(number)).get()
        ends[number] = Engine.clock

    for number, flow in enumerate(case["flows"]):
        hosts = [zone.create_host(f"{side}{number}", 1e9).seal() for side in ("from", "to")]
        own = LinkInRoute(zone.create_link(f"own{number}", WIDE).set_latency(case["latency_s"]).seal())
        way = [own, *(links[link] for link in flow["links"])]
        zone.add_route(hosts[0].netpoint, hosts[1].netpoint, None, None, way, False)
        Actor.create(f"send{number}", hosts[0], send, number, flow["start_s"], flow["bytes"])
        Actor.create(f"receive{number}", hosts[1], receive, number)
    zone.seal()
    engine.run()
    return ends


if __name__ == "__main__":
    json.dump(run(json.load(sys.stdin)), sys.stdout)
