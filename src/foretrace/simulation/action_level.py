"""Runs a step at the level of actions: its time without overlap cost, and nothing else, as fast as possible."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from foretrace.basics.arrays import Floats, Longs
from foretrace.basics.cache import SizedCache
from foretrace.basics.collector import collector_paused
from foretrace.cost.machine import Machine
from foretrace.cost.unit_costs import UnitPricer, UnitTimes
from foretrace.engine.chains import ChainPlayer
from foretrace.engine.fixed_run import FixedRun
from foretrace.engine.steady import until_settled
from foretrace.engine.tape import TapePlayer
from foretrace.program.build import ProgramBuilder
from foretrace.program.expand import expand
from foretrace.program.fold import fold
from foretrace.program.program import Program
from foretrace.step.build import build_step, end_op
from foretrace.step.contract import Contraction, UnitSeconds, contractible
from foretrace.step.groups import Groups
from foretrace.step.pattern import MessagePlace, PatternKey, StepPattern, build_pattern
from foretrace.step.spec import EndItem, StepSpec


def action_step_s(spec: StepSpec, machine: Machine, seconds: UnitSeconds | None = None) -> float:
    """Returns the time of a step in which no op slows another.

    It is the step time of `simulate` on `machine` without overlap cost, in `analytic` mode, up to rounding: the program
    is contracted (`step.contract`) and run by the same engine. A contracted collective must begin for all its members
    at once, so all ranks of a stage have to behave identically. Where a stage has several roles, its ranks pay
    different prices, or prices depend on the whole program (a calibration at the clocks of a step), the whole program
    is run instead.

    Args:
        spec: The step.
        machine: Prices all ops that are not contracted. Its overlap cost is left out.
        seconds: The seconds of contracted units; None: those of the same machine.
    """
    fit = machine.calibration
    with collector_paused():
        if not contractible(spec) or (fit is not None and fit.at_step_clocks):
            return _run(build_step(spec), machine)[0]
        units = MachineUnits(spec, machine) if seconds is None else seconds
        contraction = Contraction(spec, units)
        shape = PatternKey.of(spec, contraction)
        if shape is not None:
            pattern = _PATTERNS.get(shape.key, lambda: _PatternRun.of(spec, contraction, shape))
            durations = _PricedStep(spec, machine).durations(pattern.pattern, shape)
            return _run(build_step(spec), machine)[0] if durations is None else pattern.step_s(durations)
        step_s, classes = _run(build_step(spec, seconds=units), machine)
        return step_s if classes == len(spec.roles) else _run(build_step(spec), machine)[0]


def _run(program: Program, machine: Machine) -> tuple[float, int]:
    """Returns the step time of a program, and the number of its rank classes."""
    priced = machine.price(program)
    graph = fold(priced.ops, priced.prices.kinds_of_ranks(False))
    step_s = FixedRun(graph).step_times(priced.prices.durations(graph)[:, None])
    return float(step_s[0]), len(graph.classes)


@dataclass(frozen=True, slots=True, eq=False)
class _PatternRun:
    """A pattern made ready to be run with any durations of its templates."""

    pattern: StepPattern
    player: ChainPlayer | TapePlayer
    template: Longs
    """The template of each node."""
    repeats: bool

    @classmethod
    def of(cls, spec: StepSpec, contraction: Contraction, shape: PatternKey) -> _PatternRun:
        """Makes the pattern of a step ready."""
        program, pattern = build_pattern(spec, contraction, shape)
        ops = expand(program)
        graph = fold(ops)
        return cls(pattern, FixedRun(graph).player, ops.template[graph.op], program.repeats)

    def step_s(self, durations: Floats) -> float:
        """Returns the step time for the durations of the templates."""
        player, added = self.player, self.player.along(durations[self.template])
        if not self.repeats:
            return float(player.run(added, np.empty(0)).max())
        period, *_ = until_settled(lambda carried: player.carried(player.run(added, carried)), np.zeros(player.carries))
        return float(period)


_PATTERNS: SizedCache[Hashable, _PatternRun] = SizedCache(4_000_000, lambda run: len(run.template))
"""Patterns of steps, bounded by their nodes: a node takes about 40 bytes."""

_PRICES: WeakKeyDictionary[Machine, dict[Hashable, float | None]] = WeakKeyDictionary()
"""Seconds of ops outside of units on a machine, by the mesh and what they do; None where ranks pay differently."""

MAX_PRICES = 200_000
"""The most prices that are kept for a machine, about 50 MB."""


class _PricedStep:
    """Prices the transfers and the end of a step."""

    def __init__(self, spec: StepSpec, machine: Machine) -> None:
        self.spec, self.machine = spec, machine
        self.known = _PRICES.setdefault(machine, {})
        if len(self.known) > MAX_PRICES:
            self.known.clear()

    def durations(self, pattern: StepPattern, shape: PatternKey) -> Floats | None:
        """Returns the seconds of each template of a pattern; None where ranks pay differently."""
        mesh, known, transfer = self.spec.mesh, self.known, self.spec.transfer
        messages = {(mesh, transfer, message): message for message in pattern.messages}
        ends = [[(mesh, item.item) for item in end] for end in shape.ends]
        missing: dict[Hashable, MessagePlace | EndItem] = {
            key: message for key, message in messages.items() if key not in known
        }
        for end, keys in zip(shape.ends, ends, strict=True):
            missing |= {key: item for key, item in zip(keys, end, strict=True) if key not in known}
        if missing:
            self._price(missing)
        message_s = [known[key] for key in messages]
        end_s = [[known[key] for key in keys] for keys in ends]
        if None in message_s or any(None in of_end for of_end in end_s):
            return None
        launches = self.spec.launches
        return pattern.durations(shape, message_s, end_s, launches.seconds if launches else 0.0)  # type: ignore[arg-type]

    def _price(self, missing: Mapping[Hashable, MessagePlace | EndItem]) -> None:
        """Prices ops by a program in which every rank runs each of them once."""
        transfer = self.spec.transfer
        build = ProgramBuilder(self.spec.mesh, repeats=False)
        groups, block = Groups(build), build.block("step")
        build.role("all", range(self.spec.mesh.world)).place(block)
        for what in missing.values():
            if isinstance(what, EndItem):
                end_op(block, what, groups)
                continue
            pair = build.pair("pp", what.source, what.target)
            if what.exchanged:
                block.exchange("exchange", pair, transfer.duration_s, sends={0: transfer.bytes}, lane="pp")
            else:
                block.transfer("send", pair, transfer.duration_s, to=1, bytes=transfer.bytes, lane="pp")
        durations = self.machine.price(build.program(checked=False)).prices.duration_s
        same = (durations == durations[0]).all(axis=0).tolist()
        for key, seconds, is_same in zip(missing, durations[0].tolist(), same, strict=True):
            self.known[key] = seconds if is_same else None


class MachineUnits(UnitTimes):
    """The seconds of all works of a step on a machine, without overlap cost."""

    def __init__(self, spec: StepSpec, machine: Machine) -> None:
        alone = machine.with_(overlap_cost=False)
        super().__init__(UnitPricer(alone, spec.mesh.world).on(spec.mesh))
