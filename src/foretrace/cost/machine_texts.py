"""Options of a machine as a command line and a page spell them, and how their values make a `Machine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

from foretrace.basics.errors import InputError, UsageError
from foretrace.cost.kernels.interface import PriceSource, PriceSources
from foretrace.cost.machine import Machine, NetworkMode
from foretrace.cost.network.nccl.settings import NcclSettings
from foretrace.hardware.presets import cluster as load_cluster
from foretrace.inputs.base import Input
from foretrace.inputs.option_texts import OptionText

MACHINE_OPTIONS: Final[dict[str, OptionText]] = {
    "cluster": OptionText("--cluster", "NAME|FILE", "What it runs on: see foretrace list clusters."),
    "placement": OptionText("--placement", "FILE", "Which rank sits where (hostfile, rankfile, YAML).", kind=Path),
    "domain_gpus": OptionText(
        "--domain-gpus", "N", "GPUs of each NVLink domain that the job uses, where it spans nodes (NVL72).", kind=int
    ),
    "prices": OptionText(
        "--prices",
        "",
        "Kernels and collectives: best source, fitted model only, or datasheet (kernels).",
        choices=get_args(PriceSource),
        default="best",
    ),
    "no_silicon": OptionText(
        "--no-silicon", "", "Leave NVIDIA's tables out, as where they are not installed.", default=False
    ),
    "collectives": OptionText(
        "--collectives", "DIR|FILE", "Measured collectives (nccl-tests) to price it with.", kind=Path
    ),
    "calibration": OptionText(
        "--calibration", "FILE", "Your own measurements (foretrace calibrate): the best source.", kind=Path
    ),
    "nccl_algo": OptionText("--nccl-algo", "ring,tree|^tree|…", "Algorithms NCCL may use, as NCCL_ALGO has them."),
    "nccl_proto": OptionText("--nccl-proto", "LL,Simple|^LL|…", "Protocols, as NCCL_PROTO has them."),
    "nccl": OptionText(
        "--nccl",
        "FILE",
        "What NCCL reported on your machine: a debug log, a graph or topology dump.",
        repeated=True,
        kind=Path,
    ),
    "network": OptionText(
        "--network",
        "",
        "Communications run alone, divide the links they meet on, or (foretrace network) as packets.",
        choices=get_args(NetworkMode),
        default="analytic",
    ),
    "no_overlap_cost": OptionText(
        "--no-overlap-cost", "", "Kernels next to a collective take as long as alone.", default=False
    ),
}
"""The options of a machine, by name."""


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The options of a machine, whose cluster the input may name."""

    cluster: str | None
    details: dict[str, Any]
    domain_gpus: int | None = None

    def machine(self, job: Input | None = None) -> Machine:
        """Makes the machine; its cluster is the one that was named, else the input's own."""
        named = self.cluster or (None if job is None else job.cluster)
        if named is None:
            self._check_needs_no_cluster()
        try:
            return self._on_cluster(named)
        except InputError as error:  # of the input, where that names the cluster
            raise error.at(None if self.cluster or job is None else ", ".join(job.paths) or None) from None

    def machine_of_clusters(self) -> Machine:
        """Makes a machine whose cluster others name, one after the other."""
        return self._on_cluster(self.cluster)

    def needed_machine(self) -> Machine:
        """Makes the machine; raises a usage error where no cluster is named."""
        machine = self._on_cluster(self.cluster)
        machine.needed_cluster()
        return machine

    def _on_cluster(self, named: str | None) -> Machine:
        if named is None or self.domain_gpus is None:
            return Machine(named, **self.details)
        return Machine(replace(load_cluster(named), domain_gpus=self.domain_gpus), **self.details)

    def _check_needs_no_cluster(self) -> None:
        needs = {
            "--collectives prices the network of a cluster": self.details["collectives"],
            "--placement says where ranks sit on a cluster": self.details["placement"],
            "--domain-gpus says which GPUs of a cluster are used": self.domain_gpus,
            "--calibration prices the GPUs of a cluster": self.details["calibration"],
            "--nccl, --nccl-algo and --nccl-proto are of a cluster": self.details["nccl"],
            "--network flow divides the links of a cluster": self.details["network"] != "analytic",
        }
        for text, given in needs.items():
            if given:
                raise UsageError("needs-cluster", text, hint="name it with --cluster")


def read_machine(given: Mapping[str, Any]) -> MachineOptions:
    """Reads the options of a machine by name; those that are not given are at their defaults."""
    values = {name: given.get(name, option.default) for name, option in MACHINE_OPTIONS.items()}
    domain_gpus = values["domain_gpus"]
    if domain_gpus is not None and values["placement"] is not None:
        problem = "--placement says which GPUs of a domain are used"
        raise UsageError("conflicting-options", problem, hint="leave out --domain-gpus")
    nccl = NcclSettings(values["nccl_algo"], values["nccl_proto"], tuple(values["nccl"] or ()))
    details = {
        "placement": values["placement"],
        "prices": PriceSources(values["prices"], False if values["no_silicon"] else None),
        "collectives": values["collectives"],
        "calibration": values["calibration"],
        "nccl": nccl or None,
        "network": values["network"],
        "overlap_cost": not values["no_overlap_cost"],
    }
    return MachineOptions(values["cluster"], details, domain_gpus)


MACHINE_DEFAULTS: Final = read_machine({})
"""The options of a machine where none is given."""
