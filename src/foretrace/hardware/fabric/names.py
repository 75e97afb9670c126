"""Finds links and switches by the names that users write: "leaf 3", "leaf 3 - spine 1", "leaf 3 > spine 1"."""

from __future__ import annotations

import re

import numpy as np

from foretrace.basics.arrays import Longs
from foretrace.basics.errors import InputError, did_you_mean, shortened
from foretrace.hardware.fabric.fabric import Device, Fabric


def links_named(fabric: Fabric, name: str, where: str | None) -> Longs:
    """The links that a name means: of a device all, both ways; between two devices those between, both ways or, with
    `>`, one way; `nodes`: those of every NIC to the network; `uplinks`: all between switches."""
    text = " ".join(name.split())
    beyond = fabric.kind >= Device.LEAF
    if text.casefold() == "nodes":
        # Networks that are read from files may have GPUs on switches directly.
        outer = beyond[fabric.source] != beyond[fabric.target]
        return np.flatnonzero(outer)
    if text.casefold() == "uplinks":
        return np.flatnonzero(beyond[fabric.source] & beyond[fabric.target])
    ends = [part.strip() for part in re.split(r"\s[-–>]\s|\s->\s", text)]
    devices = [_device(fabric, end, where) for end in ends]
    if len(devices) == 1:
        return np.flatnonzero((fabric.source == devices[0]) | (fabric.target == devices[0]))
    if len(devices) == 2:
        first, second = devices
        forth = (fabric.source == first) & (fabric.target == second)
        back = (fabric.source == second) & (fabric.target == first)
        links = np.flatnonzero(forth if ">" in text else forth | back)
        if len(links):
            return links
        raise InputError(
            "unknown-name",
            f"no link joins {ends[0]} and {ends[1]} in {fabric.name}",
            where=where,
            hint=_neighbours(fabric, first),
        )
    raise InputError("bad-value", f'"{shortened(text)}" is no link', where=where, hint='for example "leaf 3 - spine 1"')


def _device(fabric: Fabric, name: str, where: str | None) -> int:
    """The device that is called so, whatever its case."""
    folded = name.casefold()
    for number, label in enumerate(fabric.labels):
        if label.casefold() == folded:
            return number
    kinds = {re.sub(r"[0-9]+", "0", label): label for label in reversed(fabric.labels)}
    shown = ", ".join(f'"{label}"' for label in reversed(list(kinds.values())))
    joined = re.search(r"[-–>]", name) is not None
    near = did_you_mean(name, fabric.labels) if fabric.devices < 10_000 and not joined else ""
    link = 'a link is written "leaf 0 - spine 0", with spaces; ' if joined else ""
    raise InputError(
        "unknown-name",
        f'{fabric.name} has no device called "{shortened(name)}"{near}',
        where=where,
        hint=f"{link}devices are called {shown}",
    )


def _neighbours(fabric: Fabric, device: int) -> str:
    """Returns the devices that a device is linked to, as a hint."""
    others = [fabric.labels[int(other)] for other in np.unique(fabric.target[fabric.source == device])]
    if not others:
        return f"{fabric.labels[device]} has no links"
    more = f" and {len(others) - 4} more" if len(others) > 4 else ""
    return f"{fabric.labels[device]} is joined to {', '.join(others[:4])}{more}"
