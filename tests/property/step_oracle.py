"""Runs a `StepSpec` without building a program: plain arithmetic on times, one action after the other.

Only for steps from a standstill whose calls and computations have seconds, with transfers next to computation, one role
a stage, and no ZeRO-3, launches or links into the next step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from foretrace.program.columns import Phase
from foretrace.schedules import Action, ActionKind
from foretrace.step.spec import Call, Compute, Cut, HostWork, Item, RoleSpec, StepSpec, Work

_OPENS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
_CLOSES = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
_SLACK = 1e-12


@dataclass
class _Stage:
    """The times of one stage: when its compute lane and its other lanes are free."""

    free: float = 0.0
    lanes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    reductions: list[float] = field(default_factory=list)
    unit_ends: dict[int, list[float]] = field(default_factory=dict)
    """When the units of each chunk's last backward are done."""

    def issue(self, call: Call, ready: float) -> float:
        """Runs a call on the lane of its axis, and returns its end."""
        self.lanes[call.axis] = max(ready, self.lanes[call.axis]) + call.seconds
        return self.lanes[call.axis]


def items_of(work: Work, kind: ActionKind) -> list[Item]:
    """What a work does in an action."""
    if kind == ActionKind.FORWARD:
        return list(work.forward)
    again = list(work.recompute) if kind in _OPENS else []
    if kind == ActionKind.BACKWARD:
        return [*again, *work.backward]
    weights = kind == ActionKind.BACKWARD_WEIGHT
    if work.weight_share is None:
        return [*again, *(item for item in work.backward if (item.phase == Phase.BACKWARD_WEIGHT) == weights)]
    share = work.weight_share if weights else 1 - work.weight_share
    return [
        *again,
        *(
            replace(item, seconds=share * item.seconds) if isinstance(item, Compute) else item
            for item in work.backward
            if isinstance(item, Compute) or not weights
        ),
    ]


class _Action:
    """One action on one stage."""

    def __init__(self, stage: _Stage, ready: float, cuts: list[Cut], total: float, computations: int) -> None:
        self.stage, self.cuts, self.total, self.left = stage, cuts, total, computations
        stage.free = max(stage.free, ready)
        self.done, self.begun = 0.0, stage.free
        self.waits: list[float] = []
        self.later: list[float] = []
        self.phase: list[float] = []

    def unit(self, items: list[Item]) -> float:
        """Runs the items of a unit, and returns when it is done."""
        self.waits, self.later, self.phase = [*self.waits, *self.later, *self.phase], [], []
        self.begun = max([self.stage.free, *self.waits])
        in_phase = False  # whether nothing has run on the compute lane since the last collective of a phase
        before = self.waits  # a unit begins after the calls that the one before it left open
        at = 0
        while at < len(items):
            item, at = items[at], at + 1
            if isinstance(item, Compute):
                self._compute(item)
                before, in_phase = [], False
                while at < len(items) and isinstance(call := items[at], Call) and call.concurrent == "previous":
                    self.waits = [*self.waits, self.stage.issue(call, self.begun)]
                    at += 1
                self._cut_here()
            elif isinstance(item, HostWork) or item.concurrent is None:
                self.begun = max([self.stage.free, *self.waits, *self.later])
                self.stage.free = self.begun + item.seconds
                self.waits, self.later, before, in_phase = [], [], [], False
            elif item.concurrent == "previous":
                self.waits = [*self.waits, self.stage.issue(item, self.begun)]
            elif item.concurrent == "phase":
                end = self.stage.issue(item, max([self.stage.free, *self.waits]))
                if not in_phase:
                    self.waits, self.phase, in_phase = [*self.waits, *self.phase], [], True
                self.phase.append(end)
            else:
                waited = before if item.concurrent == "step" else self.waits
                end = self.stage.issue(item, max([self.stage.free, *waited]))
                (self.stage.reductions if item.concurrent == "step" else self.later).append(end)
        return self.stage.free

    def _compute(self, item: Compute) -> None:
        while self.cuts and not self.done and self.cuts[0].share * self.total <= _SLACK * self.total:
            self._run_cut()
        self.begun = self.stage.free = max([self.stage.free, *self.waits])
        self.waits, self.later = self.later, []
        self.left -= 1
        end, slack = self.done + item.seconds, _SLACK * self.total
        while self.cuts and self.done + slack < self.cuts[0].share * self.total < end - slack:
            at = self.cuts[0].share * self.total
            self.stage.free += at - self.done
            self.done = at
            self._run_cut()
        self.stage.free += end - self.done
        self.done = end

    def _cut_here(self) -> None:
        reached = min(self.done, self.total * (1 - 2 * _SLACK)) + _SLACK * self.total
        while self.cuts and (not self.left or self.cuts[0].share * self.total <= reached):
            self._run_cut()

    def _run_cut(self) -> None:
        for item in self.cuts.pop(0).items:
            if isinstance(item, Call):
                self.stage.reductions.append(self.stage.issue(item, self.stage.free))
            else:
                self.stage.free += item.seconds

    def end(self) -> float:
        """When the next action may use its result."""
        self.stage.free = max([self.stage.free, *self.waits, *self.later, *self.phase])
        return self.stage.free


def step_time(spec: StepSpec) -> float:
    """The makespan of one step."""
    schedule = spec.schedule
    stages = [_Stage() for _ in range(schedule.stages)]
    order = [[action for slot in schedule.actions(stage) for action in slot] for stage in range(schedule.stages)]
    finals = [_finals(actions) for actions in order]
    held, direction = schedule.piece.tolist(), schedule.chunk_direction.tolist()
    where = {(direction[c], held[s][c]): s for s in range(schedule.stages) for c in range(schedule.chunks)}
    done: dict[tuple[bool, int, int, int], float] = {}
    """When a piece's result is where it is needed, by forward, direction, piece and microbatch."""
    sent: dict[tuple[bool, int, int], float] = defaultdict(float)
    places = [0] * schedule.stages
    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(order):
            while places[stage] < len(actions):
                action = actions[places[stage]]
                way, piece = direction[action.chunk], held[stage][action.chunk]
                ready = _ready(schedule.pieces, done, action, way, piece)
                if ready is None:
                    break
                final = finals[stage].get(action.chunk) == places[stage]
                end = _run(spec, spec.roles[stage], stages[stage], action, ready, final)
                places[stage], moved = places[stage] + 1, True
                forward = action.kind == ActionKind.FORWARD
                if forward:
                    done[True, way, piece + schedule.pieces, action.microbatch] = end  # its own backward needs it
                following = piece + 1 if forward else piece - 1
                if action.kind == ActionKind.BACKWARD_WEIGHT or not 0 <= following < schedule.pieces:
                    continue
                if where[way, following] != stage:
                    channel = forward, stage, action.chunk
                    end = sent[channel] = max(end, sent[channel]) + spec.transfer.duration_s
                done[forward, way, following, action.microbatch] = end
    assert places == [len(actions) for actions in order], "deadlock"
    ends = [_end(role, stage) for role, stage in zip(spec.roles, stages, strict=True)]
    return max([*ends, *sent.values()])


def _finals(actions: list[Action]) -> dict[int, int]:
    """The number of the last backward of each chunk."""
    return {action.chunk: number for number, action in enumerate(actions) if action.kind in _CLOSES}


def _ready(
    pieces: int, done: dict[tuple[bool, int, int, int], float], action: Action, way: int, piece: int
) -> float | None:
    if action.kind == ActionKind.FORWARD:
        return 0.0 if piece == 0 else done.get((True, way, piece, action.microbatch))
    if action.kind == ActionKind.BACKWARD_WEIGHT:
        return 0.0
    last = piece == pieces - 1
    return done.get((True, way, piece + pieces, action.microbatch) if last else (False, way, piece, action.microbatch))


def _run(spec: StepSpec, role: RoleSpec, stage: _Stage, action: Action, ready: float, final: bool) -> float:
    chunk = role.chunks[action.chunk][spec.variants[action.microbatch % len(spec.variants)]]
    forward = action.kind == ActionKind.FORWARD
    units = chunk.units if forward else chunk.units[::-1]
    items = [items_of(unit.work, action.kind) for unit in units]
    computed = [item.seconds for each in items for item in each if isinstance(item, Compute)]
    cuts = sorted((cut for cut in role.cuts if cut.chunk == action.chunk), key=lambda cut: cut.share) if final else []
    run = _Action(stage, ready, cuts, sum(computed), len(computed))
    ends = [run.unit(each) for each in items]
    if final:
        stage.unit_ends[action.chunk] = ends[::-1]
    return run.end()


def _end(role: RoleSpec, stage: _Stage) -> float:
    ends: list[float] = []
    for end in role.end:
        ready = max([0.0, *(ends[number] for number in end.after)])
        if end.when is not None:
            ready = max(ready, stage.unit_ends[end.when[0]][end.when[1]])
        if end.after_reductions:
            ready = max([ready, *stage.reductions])
        if end.lane == "compute":
            stage.free = max(ready, stage.free) + end.item.seconds
            ends.append(stage.free)
        else:
            lane = end.lane or (end.item.axis if isinstance(end.item, Call) else "host")
            stage.lanes[lane] = max(ready, stage.lanes[lane]) + end.item.seconds
            ends.append(stage.lanes[lane])
    return max([stage.free, *stage.lanes.values(), *ends])
