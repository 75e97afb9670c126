"""Reads the fitted constants of a GPU's software stack: four constants and a launch.

`data/machines.yaml` holds them, written by benchmarks/fit_collectives.py, with the group sizes they were fitted on and
the error on the others. A GPU without measurements has those of its architecture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from foretrace.cost.network.nccl.tuning_tables import row_of
from foretrace.hardware.cluster import Gpu

DATA: Final = Path(__file__).parent / "data" / "machines.yaml"


@dataclass(frozen=True, slots=True)
class NcclMachine:
    """The constants of a GPU and the NCCL that runs on it."""

    launch_s: float
    """From a call to its first byte, and from the last to the end of its kernel."""
    step_scale: float
    """The latency of a hop relative to NCCL's table, for LL and LL128 and over NICs."""
    simple_step_s: float
    """A hop of Simple over links: a slice, a fence and a flag."""
    link_share: float
    """The share of the links' datasheet rate that Simple moves."""
    network_share: float
    """The share of the NICs' line rate that Simple moves."""
    like: str = ""
    """The GPU that they were found on."""
    clock: float = 1.0
    """The clock of the SMs that copy, as a share of that under which the constants were found."""

    def slowed(self, factor: float) -> NcclMachine:
        """Returns the same machine with SMs that run `factor` times slower. SMs do the copying, so hops and channels
        slow down with them; NICs do not."""
        if factor == 1.0:
            return self
        return replace(
            self,
            launch_s=self.launch_s * factor,
            step_scale=self.step_scale * factor,
            simple_step_s=self.simple_step_s * factor,
            clock=self.clock / factor,
        )


def machine_of(gpu: Gpu) -> NcclMachine:
    """The constants of a GPU: its own, those of the preset that it changes, or those of one of its architecture."""
    document = _document()
    machines: dict[str, Any] = document["machines"]
    of_architecture = str(document["architectures"][row_of(gpu.architecture)])
    like = next((name for name in (gpu.name, gpu.base) if name in machines), of_architecture)
    values: dict[str, Any] = document["machines"][like]
    return NcclMachine(
        launch_s=1e-6 * float(values["launch_us"]),
        step_scale=float(values["step_scale"]),
        simple_step_s=1e-6 * float(values["simple_step_us"]),
        link_share=float(values["link_share"]),
        network_share=float(values["network_share"]),
        like=like,
    )


@cache
def _document() -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: dict[str, Any] = yaml.load(DATA.read_text(encoding="utf-8"), Loader=loader)
    return document
