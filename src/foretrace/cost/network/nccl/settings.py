"""Holds what a user states about NCCL: what it may choose, and the files that it wrote on the machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from foretrace.basics.arguments import check_fields, checked_methods
from foretrace.basics.errors import Diagnostic
from foretrace.cost.network.nccl.environment import Forced
from foretrace.cost.network.nccl_log.observations import Observed
from foretrace.hardware.cluster import Cluster


@checked_methods
@dataclass(frozen=True)
class NcclSettings:
    """Texts as NCCL_ALGO and NCCL_PROTO take them, and files: logs of NCCL_DEBUG=INFO, dumps of its graphs and
    topology."""

    algorithms: str | None = None
    protocols: str | None = None
    files: tuple[str | Path, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)

    def __bool__(self) -> bool:
        return bool(self.algorithms is not None or self.protocols is not None or self.files)

    @cached_property
    def observed(self) -> Observed | None:
        """Returns what the files report; None where there are none."""
        if not self.files:
            return None
        from foretrace.cost.network.nccl_log.reader import observe  # most jobs do without, and start faster

        return observe(self.files)

    @cached_property
    def forced(self) -> Forced:
        """Returns what may be chosen: as stated here, else as the machine was set."""
        if self.algorithms is not None or self.protocols is not None or self.observed is None:
            return Forced.of(self.algorithms, self.protocols)
        return self.observed.forced

    def on(self, cluster: Cluster) -> tuple[Cluster, tuple[Diagnostic, ...]]:
        """A cluster as the machine's NCCL sees it, and what a reader of its prices should know."""
        if self.observed is None:
            return cluster, ()
        changed, notes = self.observed.on(cluster)
        return changed, (*self.observed.notes, *notes)
