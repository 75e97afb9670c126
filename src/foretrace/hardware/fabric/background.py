"""Traffic that is not the job's: what it takes of the links' rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from foretrace.basics.errors import InputError
from foretrace.basics.units import format_bandwidth
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.fabric.fabric import Fabric
from foretrace.hardware.fabric.failures import in_service
from foretrace.hardware.fabric.names import links_named

MIN_SHARE: Final = 0.01
"""Of a link's rate that is always left: fair queues starve nobody, and a job on a link of no rate would never end."""


def with_background(fabric: Fabric, cluster: Cluster) -> Fabric:
    """The whole fabric with what others' traffic leaves of its links; what is on one link adds up."""
    background = cluster.topology.background
    if not background:
        return fabric
    background_bytes_per_s, working = np.zeros(fabric.links), in_service(fabric, cluster)
    for name, bytes_per_s in background:
        links = links_named(fabric, name, cluster.where)
        if len(links) and not working[links].any():
            raise InputError(
                "conflicting-values",
                f'"{name}" is out of service and carries no background traffic',
                where=cluster.where,
                hint="take it out of background, or out of failed",
            )
        background_bytes_per_s[links] += bytes_per_s
        over = links[background_bytes_per_s[links] > fabric.bytes_per_s[links]]
        if len(over):
            rate = format_bandwidth(float(fabric.bytes_per_s[over[0]]))
            raise InputError(
                "out-of-range",
                f"background traffic of {format_bandwidth(float(background_bytes_per_s[over[0]]))} is more than "
                f"{fabric.link_label(int(over[0]))} carries ({rate})",
                where=cluster.where,
                hint="give what others send over this link, one way",
            )
    left = np.maximum(fabric.bytes_per_s - background_bytes_per_s, MIN_SHARE * fabric.bytes_per_s)
    return replace(fabric, bytes_per_s=left)
