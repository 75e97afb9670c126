"""The options of rank traces of Megatron."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.basics.mesh import Mesh
from foretrace.inputs.option_values import (
    MAX_BYTES,
    Overlap,
    check_factor,
    check_layers,
    check_mesh,
    check_schedule,
    check_whole,
    read_overlap,
)
from foretrace.workload.check_plan import MAX_ROUTING


@dataclass(frozen=True, slots=True)
class MegatronTraceOptions:
    """How to build a job from rank traces; what is None is read off the traces.

    Attributes:
        mesh: The mesh of the job to predict; as text ("pp=8"), axes that it does not name stay as traced.
        traced: The mesh of the traces, where their names do not say it and `mesh` is another.
        gpus: Another number of GPUs; dp follows.
        schedule: The name of a pipeline schedule.
        vpp: Model chunks of each stage.
        microbatches: Microbatches of a step.
        pp_comm_bytes: What crosses a stage boundary per microbatch.
        routing: How many times the mean the busiest expert rank receives, 1 being balanced.
        overlap: Communication that runs next to computation, in addition to what Megatron always overlaps.
        stage_layers: Layers of every chunk in the order of the model; None: as many in each.
        priced: Whether communication that a real run recorded is left to a machine to price.
    """

    mesh: Mesh | str | None = None
    traced: Mesh | str | None = None
    gpus: int | None = None
    schedule: str | None = None
    vpp: int | None = None
    microbatches: int | None = None
    pp_comm_bytes: int | None = None
    routing: float | None = None
    overlap: frozenset[Overlap] = frozenset()
    stage_layers: tuple[int, ...] | None = None
    priced: bool = False

    def __post_init__(self) -> None:
        check_mesh("mesh", self.mesh)
        check_mesh("traced", self.traced)
        check_whole("gpus", self.gpus, 1)
        check_whole("vpp", self.vpp, 1)
        check_whole("microbatches", self.microbatches, 1)
        check_whole("pp_comm_bytes", self.pp_comm_bytes, 0, MAX_BYTES)
        check_schedule(self.schedule)
        object.__setattr__(self, "overlap", read_overlap(self.overlap))
        object.__setattr__(self, "stage_layers", check_layers(self.stage_layers))
        if self.routing is not None:
            hint = f"expected how uneven it is, from 1 (balanced) to {MAX_ROUTING:g}"
            check_factor("routing", self.routing, 1.0, MAX_ROUTING, hint)
