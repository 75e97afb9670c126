"""Chooses the values that a search tries on each axis: those that a performance engineer would.

* tp within a link domain, in powers of two: across domains its collectives cannot be hidden. pp and ep by divisors of
  the GPUs and of the experts. cp in powers of two, as long as each rank keeps `MIN_CONTEXT` tokens.
* vpp so that chunks have different sizes and stages are as even as without chunks.
* The schedules, dispatchers and ZeRO stages of the stack's launcher. Sharded parameters (ZeRO-3) of Megatron are an
  alternative to stages, so they are searched without them.
* Microbatches of a few sequences. No recomputation; parts of a layer that save memory in this model; whole layers, all
  of a stage or half of it.
* Overlap of tensor-parallel and expert collectives, on and off. Gradients and parameters are overlapped as the stack
  does by default: off is rarely better.
* Experts are not split over tensor-parallel ranks: Megatron-core's guide to experts prefers ep to etp.
* The optimizer on the host, on and off. Offloaded activations, other values of etp, other rank orders, HSDP on
  Megatron and counted ends are searched where asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from foretrace.models.model import Model
from foretrace.schedules.registry import schedule_facts
from foretrace.search.planner.space import Outer, SpaceAxis
from foretrace.simulation.relief import MODULE_SETS
from foretrace.workload.layers import dropped_share
from foretrace.workload.nearest_plans import divisors
from foretrace.workload.plan import Plan
from foretrace.workload.rules.launchers import Launcher, launcher_of, runs_megatron
from foretrace.workload.rules.sizes import ModelSizes
from foretrace.workload.settle import MIN_DROPPED, settle
from foretrace.workload.stack import Stack

MIN_CONTEXT: Final = 4096
"""Tokens of a sequence that each context-parallel rank keeps: sequences of up to 8,192 are trained without it, or with
two ranks (Llama 3's report: cp 1 at 8,192 tokens, 16 at 131,072)."""
MAX_MBS: Final = 16
MAX_MICROBATCH_TOKENS: Final = 32_768
"""Tokens of a microbatch: matrix products with 8,192 rows fill any GPU; more only take memory and lengthen the
pipeline's bubble."""
NODE_GPUS: Final = 8
"""GPUs of the link domains that DeepEP is written for."""
RECOMPUTED_SHARES: Final = (2,)
"""Parts of a stage's layers that are recomputed, besides all: a half."""
MAX_MODULE_SETS: Final = 3
"""Sets of parts of a layer that are recomputed: the cheapest, one in between, and the one that saves most."""

RECOMPUTE_FIELDS: Final = ("recompute", "recompute_modules", "recompute_layers")


class DefaultAxes:
    """The default choices of every axis for a model on some GPUs.

    Args:
        model: The model.
        base: The plan with the GPUs, the batch and what is not searched.
        stack: The software.
        domain_gpus: GPUs of a link domain.
        schedules: The schedules that are asked for; None: those of the launcher.
    """

    def __init__(
        self, model: Model, base: Plan, stack: Stack, domain_gpus: int, schedules: Sequence[str | None] | None = None
    ) -> None:
        self._model = model
        self._base = base
        self._stack = stack
        self._launcher: Final[Launcher] = launcher_of(stack)
        self._domain = domain_gpus
        self._facts = ModelSizes.of(model)
        self._chunks: dict[int, tuple[int, ...]] = {}
        self._asked_schedules = schedules

    def axes(self) -> Iterator[SpaceAxis]:
        """Yields all axes in the order in which plans are listed."""
        yield self._sizes("tp", [size for size in self._powers(self._domain) if self._base.gpus % size == 0])
        yield self._sizes("pp", [size for size in divisors(self._base.gpus) if size <= len(self._model.layers)])
        yield self._sizes("cp", self._contexts())
        yield self._sizes("ep", self._expert_groups())
        yield self._axis("sequence_parallel", (False, True), self._splits_sequences)
        yield self._axis(
            "cp_comm",
            ("p2p", "all_gather", "a2a"),
            lambda value, outer: outer["cp"] > 1 or value == self._first("cp_comm", "p2p"),
        )
        yield SpaceAxis.of("etp", (1,))
        chunks = sorted({count for stages in divisors(self._base.gpus) for count in self.chunks(stages)})
        yield self._axis("vpp", chunks, lambda value, outer: value in self.chunks(outer["pp"]))
        yield schedule_axis(self._schedules())
        for name in ("account_for", "layout", "first_stage_layers", "last_stage_layers"):
            yield SpaceAxis.of(name, (getattr(self._base, name),))
        yield self._axis("zero", (0, 1, 3) if self._stack.zero < 3 else (3,), self._sharded)
        yield SpaceAxis.of("shard", self._shards())
        yield SpaceAxis.of("mbs", self._microbatches())
        yield self._recompute()
        yield self._axis("tp_overlap", (False, True), lambda value, outer: outer["tp"] > 1 or not value)
        yield self._axis(
            "moe_overlap",
            (False, True) if self._facts.experts else (False,),
            lambda value, outer: outer["ep"] > 1 or not value,
        )
        yield self._axis(
            "dispatcher",
            self._dispatchers(),
            lambda value, outer: outer["ep"] > 1 or value == "alltoall",
        )
        for name in ("grad_overlap", "param_overlap"):
            yield SpaceAxis.of(name, (getattr(self._base, name),))
        yield SpaceAxis.of("pp_overlap", (False,))
        yield self._axis("offload_optimizer", (False, True))
        yield SpaceAxis.of("offload_layers", (0,))
        yield SpaceAxis.of("offload_modules", ((),))
        yield SpaceAxis.of("rank_order", (self._base.rank_order,))

    def _axis(self, name: str, values: Any, within: Callable[[Any, Outer], bool] | None = None) -> SpaceAxis:
        """Returns an axis with those of some values that the launcher has."""
        offered = [value for value in values if self._launcher.offers(name, value)]
        if not offered:
            offered = [self._first(name, next(iter(values)))]
        if len(offered) == 1 or within is None:
            return SpaceAxis.of(name, offered)
        return SpaceAxis.of(name, offered, lambda choice, outer: within(choice[0], outer))

    def _first(self, name: str, usual: Any) -> Any:
        """Returns the first value of a field that the launcher has."""
        return usual if self._launcher.offers(name, usual) else self._launcher.values[name][0]

    def _sizes(self, name: str, values: list[int]) -> SpaceAxis:
        return SpaceAxis.of(name, [value for value in values if self._launcher.offers(name, value)] or [1])

    def _powers(self, most: int) -> list[int]:
        return [2**power for power in range(max(most, 1).bit_length())]

    def _contexts(self) -> list[int]:
        seq_len = self._base.seq_len or self._model.seq_len
        return [size for size in self._powers(seq_len // MIN_CONTEXT) if self._base.gpus % size == 0]

    def _expert_groups(self) -> list[int]:
        counts = [experts.count for experts in self._facts.experts]
        return [size for size in divisors(math.gcd(*counts)) if size <= self._base.gpus] if counts else [1]

    def _splits_sequences(self, value: bool, outer: Outer) -> bool:
        """Searches both under tp, unless the launcher asks for sequence parallelism there."""
        if outer["tp"] == 1:
            return not value
        always = self._launcher.splits_sequences or (runs_megatron(self._stack) and self._facts.experts)
        return value or not always

    def chunks(self, stages: int) -> tuple[int, ...]:
        """Returns the numbers of chunks of a stage: one for each size of a chunk, with stages as even as without."""
        if stages not in self._chunks:
            self._chunks[stages] = self._chunk_counts(stages)
        return self._chunks[stages]

    def _chunk_counts(self, stages: int) -> tuple[int, ...]:
        layers = len(self._model.layers)
        longest = -(-layers // stages)
        counts: dict[int, int] = {}
        for count in range(1, longest + 1) if stages > 1 else (1,):
            chunk = -(-layers // (stages * count))
            if chunk * count == longest:
                counts.setdefault(chunk, count)
        fixed = {schedule_facts(name).max_chunks or 1 for name in self._schedules() if name is not None}
        return tuple(sorted({*counts.values(), *(fixed if stages > 1 else ())}))

    def _schedules(self) -> tuple[str | None, ...]:
        """Returns the schedules: of two that follow from vpp, neither needs a name."""
        if self._asked_schedules is not None:
            return tuple(self._asked_schedules)
        offered = self._launcher.values.get("schedule", ("1f1b", "interleaved-1f1b"))
        return (None,) if set(offered) == {"1f1b", "interleaved-1f1b"} else offered

    def _dispatchers(self) -> tuple[str, ...]:
        """Returns NCCL's, and the one for the domain: DeepEP is for nodes of 8, HybridEP for racks (Megatron-core)."""
        if not self._facts.experts:
            return ("alltoall",)
        return ("alltoall", "deepep" if self._domain <= NODE_GPUS else "hybridep")

    def _sharded(self, value: int, outer: Outer) -> bool:
        return value < 3 or outer["pp"] == 1 or self._stack.zero == 3

    def _shards(self) -> tuple[int | None, ...]:
        """Returns all ranks, and those of a link domain where parameters are sharded by default (HSDP)."""
        return (None, self._domain) if self._stack.zero == 3 and self._base.gpus > self._domain else (None,)

    def _microbatches(self) -> list[int]:
        seq_len = self._base.seq_len or self._model.seq_len
        most = max(min(MAX_MBS, MAX_MICROBATCH_TOKENS // seq_len), 1)
        return self._powers(most)

    def _recompute(self) -> SpaceAxis:
        """Returns what is recomputed: nothing, useful parts of a layer, or layers of a stage."""
        choices: list[tuple[Any, ...]] = [("none", None, None)]
        choices += [("selective", modules, None) for modules in self._useful_modules()]
        layers = {part for stages in divisors(self._base.gpus) for part in self._recomputed(stages)}
        if self._launcher.offers("recompute_layers", 1):
            choices += [("full", None, count) for count in sorted(layers)]
        choices.append(("full", None, None))

        def within(choice: tuple[Any, ...], outer: Outer) -> bool:
            return choice[2] is None or choice[2] in self._recomputed(outer["pp"])

        return SpaceAxis("recompute", RECOMPUTE_FIELDS, tuple(choices), within)

    def _recomputed(self, stages: int) -> set[int]:
        longest = -(-len(self._model.layers) // stages)
        return {longest // share for share in RECOMPUTED_SHARES} - {0, longest}

    def _useful_modules(self) -> list[tuple[str, ...] | None]:
        """Returns sets of parts whose recomputation saves memory in this model; None is the stack's own choice."""
        single: dict[str, Any] = dict.fromkeys(("tp", "cp", "pp", "vpp", "ep", "etp", "mbs", "gpus"), 1)
        plan = replace(self._base, **single, gbs=None, shard=None, layout=None, stage_layers=None, account_for=None)
        plan = replace(plan, first_stage_layers=None, last_stage_layers=None, schedule=None, recompute="selective")
        plan = replace(plan, recompute_layers=None, recompute_modules=None, rank_order=Plan(1).rank_order)
        if not self._stack.recompute_modules:
            return [None]
        saved = {}
        for module in self._stack.recompute_modules:
            setting = settle(self._model, replace(plan, recompute_modules=(module,)), self._stack)
            saved[module] = dropped_share(setting, module) >= MIN_DROPPED
        sets = [tuple(module for module in modules if saved.get(module)) for modules in MODULE_SETS]
        if saved.get("core_attn"):
            sets.insert(0, ("core_attn",))
        distinct = list(dict.fromkeys(modules for modules in sets if modules))
        if len(distinct) <= MAX_MODULE_SETS:
            return list(distinct)
        return [distinct[0], distinct[len(distinct) // 2], distinct[-1]]


def schedule_axis(schedules: Sequence[str | None]) -> SpaceAxis:
    """Returns the axis of schedules; a plan without stages has none."""
    if all(name is None for name in schedules):
        return SpaceAxis.of("schedule", (None,))
    return SpaceAxis.of(
        "schedule", (None, *schedules), lambda choice, outer: (choice[0] is None) == (outer.get("pp", 2) == 1)
    )
