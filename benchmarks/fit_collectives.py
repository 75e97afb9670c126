"""Fits the constants of the network model to measured collectives and prints how far it is off.

    python benchmarks/fit_collectives.py [--write] [--shared]

For each GPU of NVIDIA's tables (the extra `[silicon]`): launch, scale of hops, step of Simple and share of the links,
on groups of 2 and 8 GPUs; groups of 4 are not looked at. Likewise for data sets of others, on two of their group sizes.
`--write` rewrites src/foretrace/cost/network/nccl/data/machines.yaml; the same inputs give the same file, to the byte.

`--shared` searches the constants that all machines share (ring.py, nvls.py, pairs.py) in turn with those of
each, on groups of 2 and 8 GPUs of all four tables and, with a seventh of the weight, published results of 8 GPUs from
256 MiB up; it prints them and takes minutes. They were rounded by hand; the last receive of an all-reduce was set to
0.2, between the search (0.3 to 0.36) and what published 8 GiB among 4 to 8 GPUs show (0.1).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Any

import numpy as np

from collective_data import SILICON, Measured, published, silicon
from foretrace.cost.network.nccl.algorithms import nvls, pairs, ring
from foretrace.cost.network.nccl.machine import DATA, NcclMachine, machine_of
from foretrace.hardware import presets

MIB = 2.0**20
NETWORK_PAYLOAD = 4096 / (4096 + 82)
"""Payload of a RoCEv2 packet of 4 KiB over all it takes on the wire: Ethernet, IP, UDP and transport headers,
checksums, preamble and gap."""
CONSTANTS = ("launch_s", "step_scale", "simple_step_s", "link_share")
START = NcclMachine(launch_s=9e-6, step_scale=1.4, simple_step_s=12e-6, link_share=0.75, network_share=NETWORK_PAYLOAD)


@dataclass(frozen=True, slots=True)
class Fit:
    """What is fitted to a data set: which constants, and on which numbers of GPUs."""

    gpus: tuple[int, ...]
    fields: tuple[str, ...] = CONSTANTS
    like: str = ""
    """The GPU whose constants hold for what is not fitted."""


SHIPPED = {**{gpu: f"silicon {gpu}" for gpu in SILICON}, "a100-40g-sxm": "a100_40g_ib_1to256"}
"""Where the constants of each GPU in machines.yaml come from."""

HEADER = """\
# Constants of the network model by GPU: written by benchmarks/fit_collectives.py; not to be edited. Medians of errors
# are of all collectives of the data set. What each constant means is said in machine.py.
# network_share: 4096/4178, the payload of RoCEv2 packets. A share that was fitted stays its data set's: errors of
#   a100_40g_ib_1to256 (NetX-lab/Echo's logs of NCCL 2.10 on Azure's ND A100 v4) are with the {share:.2f} found there.
#   Of that data set a100-40g-sxm has the hops and the links; its launch is that of the A100 in NVIDIA's tables.
"""

FOOTER = """
# GPUs that are not above, by the row of NCCL's tables that they are in: of H20, H800, Volta and Infinity Fabric there
# are no measurements here, and B300, GB200 and GB300 repeat the B200 within a few percent in NVIDIA's tables.
architectures: {volta: a100-80g-sxm, ampere: a100-80g-sxm, hopper: h100-sxm, blackwell: b200}
"""

PUBLISHED = ("A100 8 (published)", "H200 (published)", "B200 (published)")

SHARED = (
    (ring, "CORNER"),
    (ring, "RAMP_S"),
    (ring, "RAMP_BYTES"),
    (nvls, "START_S"),
    (nvls, "CHUNKS_S"),
    (nvls, "CHUNKS_BYTES"),
    (ring, "LAST_RECEIVE_STEPS"),
    (ring, "OWN_PART_STEPS"),
    (pairs, "OWN"),
    (pairs, "PER_PEER_S"),
)
"""What all machines have in common."""

FITS = {
    **{f"silicon {gpu}": Fit((2, 8)) for gpu in SILICON},
    "a100_40g_ib_1to256": Fit((8, 32), (*CONSTANTS, "network_share")),
    "a100_2x8": Fit((8, 16), ("launch_s", "simple_step_s", "link_share", "network_share"), "a100-80g-sxm"),
    "a800_1x8": Fit((2, 8), ("launch_s", "simple_step_s", "link_share"), "a100-80g-sxm"),
    "A100 8 (published)": Fit((8,), ("launch_s",), "a100-80g-sxm"),
    "H200 (published)": Fit((8,), ("launch_s",), "h200-sxm"),
    "B200 (published)": Fit((8,), ("launch_s",), "b200"),
}
"""At most four constants of a machine and a launch for each data set, on two group sizes; of published single results
the launch alone, with the constants of their GPU from NVIDIA's tables. What is not here is not fitted at all."""


@cache  # the scoreboard and its tests ask for the same fits again
def fit_of(dataset: str, rows: tuple[Measured, ...]) -> NcclMachine:
    """The machine of a data set: fitted, or that of its GPU."""
    fit = FITS.get(dataset)
    if fit is None:
        return machine_of(rows[0].cluster.gpu)
    start = machine_of(presets.gpu(fit.like)) if fit.like else START
    return fitted([row for row in rows if row.gpus in fit.gpus], start, fit.fields)


def fitted(rows: Sequence[Measured], start: NcclMachine, fields: Sequence[str]) -> NcclMachine:
    """The machine whose mean error over these rows, as a logarithm, is least; small and large sizes weigh alike."""

    def loss(values: Sequence[float]) -> float:
        machine = _with(start, fields, values)
        if max(machine.link_share, machine.network_share) > 1:
            return inf
        return float(np.mean([part for row in rows for part in _parts(row, machine)]))

    best = searched(loss, [getattr(start, name) for name in fields])
    return _with(start, fields, best)


def _with(machine: NcclMachine, fields: Sequence[str], values: Sequence[float]) -> NcclMachine:
    changed: dict[str, Any] = dict(zip(fields, values, strict=True))
    return replace(machine, **changed)


def _parts(row: Measured, machine: NcclMachine) -> list[float]:
    """Mean errors as logarithms, below 1 MiB and from there up."""
    errors, large = np.abs(np.log(row.modelled_s(machine) / row.time_s)), row.size_bytes >= MIB
    return [float(np.mean(errors[chosen])) if chosen.any() else 0.0 for chosen in (~large, large)]


def searched(loss: Callable[[Sequence[float]], float], start: Sequence[float]) -> list[float]:
    """Least loss by steps up and down each value in turn, ever smaller: slow, simple, and always the same."""
    values, best = list(start), loss(start)
    factor = 1.3
    while factor > 1.004:
        moved = False
        for at in range(len(values)):
            for by in (factor, 1 / factor):
                tried = [*values[:at], values[at] * by, *values[at + 1 :]]
                tried_loss = loss(tried)
                if tried_loss < best - 1e-12:
                    values, best, moved = tried, tried_loss, True
        factor = factor if moved else factor**0.5
    return values


def median_errors(rows: Sequence[Measured], machine: NcclMachine) -> tuple[float, float]:
    """Median error from 1 MiB up, and below."""
    errors = np.concatenate([np.abs(row.modelled_s(machine) / row.time_s - 1) for row in rows])
    large = np.concatenate([row.size_bytes >= MIB for row in rows])
    return float(np.median(errors[large])), float(np.median(errors[~large]))


def search_shared(
    rows: Sequence[Measured], rounds: int = 2, gpus: Sequence[str] = tuple(SILICON), guess: Sequence[float] = ()
) -> dict[str, float]:
    """Constants that all machines share, and those of each, one after the other; the former are then set."""
    own = {gpu: [row for row in rows if row.dataset == f"silicon {gpu}" and row.gpus in (2, 8)] for gpu in gpus}
    like = {FITS[name].like: name for name in PUBLISHED}
    large = {gpu: [row for row in rows if row.dataset == like.get(gpu) and row.gpus == 8] for gpu in gpus}
    machines = dict.fromkeys(gpus, START)

    def loss(gpu: str, machine: NcclMachine) -> float:
        parts = [part for row in own[gpu] for part in _parts(row, machine)]
        far = [np.abs(np.log(row.modelled_s(machine) / row.time_s))[row.size_bytes >= 256 * MIB] for row in large[gpu]]
        return float(np.mean(parts)) + (0.15 * float(np.mean(np.concatenate(far))) if far else 0.0)

    def total(values: Sequence[float]) -> float:
        set_shared(values)
        return float(np.mean([loss(gpu, machine) for gpu, machine in machines.items()]))

    values = list(guess) or shared_values()
    set_shared(values)
    for _ in range(rounds):
        for gpu, start in machines.items():
            best = searched(
                lambda tried, gpu=gpu, start=start: loss(gpu, _with(start, CONSTANTS, tried)),  # type: ignore[misc]
                [getattr(start, name) for name in CONSTANTS],
            )
            machines[gpu] = _with(start, CONSTANTS, best)
        values = searched(total, values)
        set_shared(values)
    return {name: value for (_, name), value in zip(SHARED, values, strict=True)}


def shared_values() -> list[float]:
    """The constants of `SHARED` as they are."""
    return [float(getattr(module, name)) for module, name in SHARED]


def set_shared(values: Sequence[float]) -> None:
    """Sets the constants of `SHARED`."""
    for (module, name), value in zip(SHARED, values, strict=True):
        setattr(module, name, value)


def main() -> None:
    """Fits the machines that are shipped, prints their errors, and writes the file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--shared", action="store_true")
    asked = parser.parse_args()
    rows = [*silicon(), *published()]
    if asked.shared:
        print("\n".join(f"{name} {value:.4g}" for name, value in search_shared(rows).items()))
        return
    lines: list[str] = []
    launches: dict[str, float] = {}
    for gpu, dataset in SHIPPED.items():
        own = [row for row in rows if row.dataset == dataset]
        fit, machine = FITS[dataset], fit_of(dataset, tuple(own))
        on, off = ([row for row in own if (row.gpus in fit.gpus) == part] for part in (True, False))
        words = ["{:.1%} from 1 MiB up, {:.1%} below".format(*median_errors(part, machine)) for part in (on, off)]
        judged = ", ".join(str(size) for size in sorted({row.gpus for row in off}))
        # A launch is a data set's: of a GPU without tables, that of the same chip.
        launches[gpu] = launch_s = machine.launch_s if gpu in SILICON else launches["a100-80g-sxm"]
        lines += [
            f"  # {dataset}: {' and '.join(map(str, fit.gpus))} GPUs fitted, {words[0]};",
            f"  #   {judged} GPUs judged, {words[1]}.",
            f"  {gpu}: {{launch_us: {1e6 * launch_s:.2f}, step_scale: {machine.step_scale:.3f}, "
            f"simple_step_us: {1e6 * machine.simple_step_s:.2f}, link_share: {machine.link_share:.4f}, "
            f"network_share: {NETWORK_PAYLOAD:.4f}}}",
        ]
    text = HEADER.format(share=machine.network_share) + "\n".join(["machines:", *lines]) + FOOTER
    print(text)
    if asked.write:
        DATA.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
