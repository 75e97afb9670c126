"""Links and switches out of service: taken out of a fabric, so that traffic takes other ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.basics.arrays import Mask
from foretrace.basics.errors import InputError
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.hardware.fabric.names import links_named


def without_failed(fabric: Fabric, cluster: Cluster) -> Fabric:
    """The fabric without the links that failed, and without those of devices that failed."""
    if not cluster.topology.failed:
        return fabric
    kept = in_service(fabric, cluster)
    return replace(
        fabric,
        source=fabric.source[kept],
        target=fabric.target[kept],
        bytes_per_s=fabric.bytes_per_s[kept],
        latency_s=fabric.latency_s[kept],
        cables=None if fabric.cables is None else fabric.cables[kept],
    )


def in_service(fabric: Fabric, cluster: Cluster) -> Mask:
    """Of each link of a whole fabric, whether it works."""
    kept = np.ones(fabric.links, dtype=np.bool_)
    for name in cluster.topology.failed:
        _check_no_gpu(fabric, name, cluster.where)
        kept[links_named(fabric, name, cluster.where)] = False
    return kept


def _check_no_gpu(fabric: Fabric, name: str, where: str | None) -> None:
    """Raises an error for what cannot fail here: a GPU (the job needs it), or one direction of a link."""
    folded = " ".join(name.split()).casefold()
    if ">" in folded or folded in ("nodes", "uplinks"):
        raise InputError(
            "bad-value",
            f'"{name}" cannot fail',
            where=where,
            hint='name a switch, a NIC or a link: "leaf 3", "leaf 3 - spine 1"',
        )
    for number in np.flatnonzero(fabric.kind == Device.GPU):
        if fabric.labels[int(number)].casefold() == folded:
            hint = "leave its node out of the job; links and switches can fail"
            raise InputError("bad-value", f"{name} is a GPU, without which the job cannot run", where=where, hint=hint)
