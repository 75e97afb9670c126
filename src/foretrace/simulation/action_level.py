"""Runs a step at the level of actions: its time without overlap cost, and nothing else, as fast as possible."""

from __future__ import annotations

from collections.abc import Mapping

from foretrace.basics.arrays import Floats
from foretrace.basics.collector import collector_paused
from foretrace.cost.machine import Machine
from foretrace.engine.fixed_run import FixedRun
from foretrace.program.block import BlockBuilder
from foretrace.program.build import ProgramBuilder
from foretrace.program.fold import fold
from foretrace.program.program import Program
from foretrace.schedules import ActionKind
from foretrace.step.build import build_step
from foretrace.step.contract import UnitSeconds, contractible, ends_alone
from foretrace.step.groups import Groups
from foretrace.step.memory_rules import Memory
from foretrace.step.segments import PHASES, items_of, parts_of
from foretrace.step.spec import StepSpec, Work
from foretrace.step.units import UnitWriter


def action_step_s(spec: StepSpec, machine: Machine, seconds: UnitSeconds | None = None) -> float:
    """Returns the time of a step in which no op slows another.

    It is the step time of `simulate` on `machine` without overlap cost, in `analytic` mode, up to rounding: the program
    is contracted (`step.contract`), priced, folded and run as usual. A contracted collective must begin for all its
    members at once, so all ranks of a stage have to behave identically. Where a stage has several roles, or its ranks
    pay different prices, the whole program is run instead.

    Args:
        spec: The step.
        machine: Prices all ops that are not contracted. Its overlap cost is left out.
        seconds: The seconds of contracted units; None: those of the same machine.
    """
    with collector_paused():
        if contractible(spec):
            program = build_step(spec, seconds=MachineUnits(spec, machine) if seconds is None else seconds)
            step_s, classes = _run(program, machine)
            if classes == len(spec.roles):
                return step_s
        return _run(build_step(spec), machine)[0]


def _run(program: Program, machine: Machine) -> tuple[float, int]:
    """Returns the step time of a program, and the number of its rank classes."""
    priced = machine.price(program)
    graph = fold(priced.ops, priced.prices.kinds_of_ranks(False))
    step_s = FixedRun(graph).step_times(priced.prices.durations(graph)[:, None])
    return float(step_s[0]), len(graph.classes)


class MachineUnits:
    """The seconds of all works of a step on a machine: `step.contract.UnitSeconds`."""

    def __init__(self, spec: StepSpec, machine: Machine) -> None:
        chunks = {id(chunk): chunk for role in spec.roles for variants in role.chunks for chunk in variants}
        works = {id(unit.work): unit.work for chunk in chunks.values() for unit in chunk.units}
        self._works = tuple(works.values())
        """Held, so that no other work has the id of one of them."""
        self._seconds = self._price(spec, machine, works)

    def seconds(self, work: Work, kind: ActionKind) -> float | None:
        """Returns how long a work's items take in an action."""
        return self._seconds.get((id(work), kind))

    @staticmethod
    def _price(spec: StepSpec, machine: Machine, works: Mapping[int, Work]) -> dict[tuple[int, ActionKind], float]:
        build = ProgramBuilder(spec.mesh, repeats=False)
        groups, role = Groups(build), build.role("units", range(spec.mesh.world))
        kinds = {ActionKind(kind) for rows in spec.schedule.stage_actions for kind in set(rows.kind.tolist())}
        blocks: dict[tuple[int, ActionKind], BlockBuilder] = {}
        seconds: dict[tuple[int, ActionKind], float] = {}
        for number, work in works.items():
            for kind in sorted(kinds):
                items = items_of(work, kind)
                if not items:
                    seconds[number, kind] = 0.0
                elif ends_alone(items):
                    block = blocks[number, kind] = build.block(work.name)
                    UnitWriter(block, groups, None, "segment", {}).write(parts_of(items), Memory(), PHASES[kind])
                    role.place(block)
        durations = machine.price(build.program(checked=False)).prices.duration_s
        first = 0
        for key, block in blocks.items():
            own = durations[:, first : first + len(block.rows)]
            first += len(block.rows)
            if (own == own[0]).all():  # else ranks pay differently
                seconds[key] = _longest_path_s(block, own[0])
        return seconds


def _longest_path_s(block: BlockBuilder, durations: Floats) -> float:
    """Returns how long a block takes alone."""
    awaited: dict[int, list[int]] = {}
    for source, target in block.deps:
        awaited.setdefault(target, []).append(source)
    end: list[float] = []
    lane_end: dict[float, float] = {}
    for op, (row, duration) in enumerate(zip(block.rows, durations.tolist(), strict=True)):
        start = max([lane_end.get(row["lane"], 0.0), *(end[source] for source in awaited.get(op, ()))])
        lane_end[row["lane"]] = start + duration
        end.append(start + duration)
    return max(end)
