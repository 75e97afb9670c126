"""Spaces of plans that benchmarks search, and how fast their plans are listed.

    python benchmarks/planner_spaces.py

Calculon (Isaev et al., SC '23; github.com/calculon-ai/calculon, `llm-optimal-execution`) searches GPT-3 175B on 4,096
GPUs with a batch of 3,072 over 238,568 executions, without offloading and overlap options. Eight of its combinations
differ only in the network tier of an axis, which follows from the rank order here, and some in options that Foretrace
does not have (`p2p_rs_ag`, all-gathers that are repeated). 16,392 are different plans.
"""

from __future__ import annotations

import time
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.cost.machine import Machine
from foretrace.models.presets import model as preset
from foretrace.search.planner.asked_axes import space_of
from foretrace.search.planner.space import Outer, Space, SpaceAxis
from foretrace.workload.nearest_plans import divisors
from foretrace.workload.plan import Plan

CALCULON_EXECUTIONS: Final = 238_568
"""Executions of Calculon's search, counted with its own code."""
CALCULON_PLANS: Final = 16_392
"""How many of them are different plans for Foretrace."""
GPUS: Final = 4096
BATCH: Final = 3072
MAX_MBS: Final = 1024
"""Calculon tries microbatches below this."""

SIZES: Final = (1, 2, 4, 8, 16, 32)
"""Calculon's tp and pp; tp is not bound to a node."""


def calculon_gpt3() -> Space:
    """Returns Calculon's space for GPT-3 175B on 4,096 GPUs, axis by axis.

    Where dp does not divide the batch, Calculon takes the largest smaller one that it divides.
    """
    model = preset("gpt3-175b")
    layers = len(model.layers)

    def dp(outer: Outer) -> int:
        return GPUS // int(outer["tp"] * outer["pp"])

    def batch(outer: Outer) -> int:
        return BATCH // dp(outer) * dp(outer)

    axes = (
        SpaceAxis.of("tp", SIZES),
        SpaceAxis.of("pp", SIZES),
        SpaceAxis.of(
            "gbs",
            [BATCH // ranks * ranks for ranks in divisors(GPUS) if ranks <= BATCH],
            lambda choice, outer: choice[0] == batch(outer),
        ),
        SpaceAxis.of(
            "vpp",
            divisors(layers),
            lambda choice, outer: choice[0] == 1 or (outer["pp"] > 1 and layers // outer["pp"] % choice[0] == 0),
        ),
        SpaceAxis.of(
            "mbs",
            sorted({size for ranks in divisors(GPUS) for size in divisors(BATCH // ranks or 1) if size < MAX_MBS}),
            lambda choice, outer: batch(outer) > 0 and batch(outer) // dp(outer) % choice[0] == 0,
        ),
        SpaceAxis.of("recompute", ("none", "selective", "full")),
        SpaceAxis.of("zero", (0, 1), lambda choice, outer: dp(outer) > 1 or choice[0] == 0),
        SpaceAxis.of("sequence_parallel", (False, True), lambda choice, outer: outer["tp"] > 1 or not choice[0]),
    )
    return Space(model, Plan(GPUS, stack="megatron-core"), axes)


def default_spaces() -> dict[str, Space]:
    """Returns the default spaces of the usual problems, and one of more than ten million combinations, by name."""
    cluster = Machine("h100-dgx").needed_cluster()
    problems = {
        "Llama-3-70B / 512": ("llama3-70b", Plan(512, gbs=1024, seq_len=8192), {}),
        "Llama-3.1-405B / 4,096": ("llama3-405b", Plan(4096, gbs=2048, seq_len=8192), {}),
        "DeepSeek-V3 / 2,048": ("deepseek-v3", Plan(2048, gbs=15360), {}),
        "DeepSeek-V3 / 2,048, any dispatcher": ("deepseek-v3", Plan(2048, gbs=15360), {"dispatcher": "all"}),
    }
    return {title: space_of(preset(name), plan, cluster, asked) for title, (name, plan, asked) in problems.items()}


def main() -> None:
    """Prints how many plans each space has, and how many combinations are checked in a CPU second."""
    print(f"{'space':38s} {'searched':>12s} {'launchable':>11s} {'distinct':>10s} {'CPU s':>6s} {'per CPU s':>12s}")
    for title, space in {"Calculon's, GPT-3 175B / 4,096": calculon_gpt3(), **default_spaces()}.items():
        start = time.process_time()
        try:
            result = space.enumerate()
        except InputError as error:
            print(f"{title:38s} {error.message}")
            continue
        spent = time.process_time() - start
        counts = f"{result.searched:12,d} {result.launchable:11,d} {result.distinct:10,d}"
        print(f"{title:38s} {counts} {spent:6.2f} {result.searched / spent:12,.0f}")


if __name__ == "__main__":
    main()
