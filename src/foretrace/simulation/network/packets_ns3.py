"""Runs TCP flows packet by packet with ns-3: a case as JSON on standard input, the end of each flow on standard output.

It is a process of its own (`python -m`), since ns-3 takes 13 s to import and keeps one simulation per process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from foretrace.basics.processes import end_with

SEGMENT_BYTES = 8900
"""Payload of a packet in a frame of 9,000 bytes."""

BUFFER_BYTES = 1 << 28
SETTINGS = {
    "ns3::TcpSocket::SegmentSize": SEGMENT_BYTES,
    "ns3::TcpSocket::SndBufSize": BUFFER_BYTES,
    "ns3::TcpSocket::RcvBufSize": BUFFER_BYTES,
    "ns3::TcpSocket::InitialCwnd": 64,
    "ns3::TcpSocket::DelAckCount": 1,
}
FIRST_PORT = 10_000


def run(case: dict[str, Any]) -> list[float]:
    """When each flow has arrived, in seconds, to within the polling period."""
    from ns import ns

    for name, value in SETTINGS.items():
        ns.Config.SetDefault(name, ns.UintegerValue(value))
    nodes = ns.NodeContainer()
    nodes.Create(case["devices"])
    ns.InternetStackHelper().Install(nodes)
    addresses = [_join(ns, nodes, number, link) for number, link in enumerate(case["links"])]
    ns.Ipv4GlobalRoutingHelper.PopulateRoutingTables()
    sinks = [_send(ns, nodes, addresses, number, flow) for number, flow in enumerate(case["flows"])]
    ends = [0.0] * len(sinks)
    left, now = set(range(len(sinks))), 0.0
    while left and now < case["give_up_s"]:
        ns.Simulator.Stop(ns.Seconds(max(case["poll_s"], now / case["polls"])))
        ns.Simulator.Run()
        now = ns.Simulator.Now().GetSeconds()
        for number in [flow for flow in left if sinks[flow].GetTotalRx() >= case["flows"][flow]["bytes"]]:
            ends[number] = now
            left.discard(number)
    ns.Simulator.Destroy()
    return [] if left else ends


def _join(ns: Any, nodes: Any, number: int, link: dict[str, Any]) -> list[Any]:
    """One cable, each way at its own rate; the addresses of its two ends."""
    cable = ns.PointToPointHelper()
    cable.SetChannelAttribute("Delay", ns.TimeValue(ns.Seconds(link["latency_s"])))
    cable.SetDeviceAttribute("Mtu", ns.UintegerValue(9000))
    devices = cable.Install(nodes.Get(link["ends"][0]), nodes.Get(link["ends"][1]))
    for side in (0, 1):
        rate = ns.DataRate(int(8 * link["bytes_per_s"][side]))
        devices.Get(side).SetAttribute("DataRate", ns.DataRateValue(rate))
    base = ns.Ipv4Address(f"10.{number >> 14 & 255}.{number >> 6 & 255}.{number << 2 & 255}")
    helper = ns.Ipv4AddressHelper()
    helper.SetBase(base, ns.Ipv4Mask("255.255.255.252"))
    interfaces = helper.Assign(devices)
    return [interfaces.GetAddress(0), interfaces.GetAddress(1)]


def _send(ns: Any, nodes: Any, addresses: list[list[Any]], number: int, flow: dict[str, Any]) -> Any:
    """Adds a sender and a receiver of the flow's bytes; returns the receiver."""
    where = ns.InetSocketAddress(addresses[flow["link"]][flow["side"]], FIRST_PORT + number).ConvertTo()
    receiver = ns.PacketSinkHelper("ns3::TcpSocketFactory", where).Install(nodes.Get(flow["target"]))
    sender = ns.BulkSendHelper("ns3::TcpSocketFactory", where)
    sender.SetAttribute("MaxBytes", ns.UintegerValue(flow["bytes"]))
    sender.SetAttribute("SendSize", ns.UintegerValue(SEGMENT_BYTES))
    sender.Install(nodes.Get(flow["source"])).Start(ns.Seconds(0.0))
    receiver.Start(ns.Seconds(0.0))
    return receiver.Get(0)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    json.dump(run(json.load(sys.stdin)), sys.stdout)
