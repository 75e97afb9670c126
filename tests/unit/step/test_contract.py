"""Which units are contracted, and which are joined to one op."""

from __future__ import annotations

import pytest

from foretrace.basics.mesh import Mesh
from foretrace.program.columns import Collective, Phase
from foretrace.schedules import ActionKind, make
from foretrace.step.contract import Contraction, ends_alone, join_units
from foretrace.step.segments import Segment, UnitPart
from foretrace.step.spec import Call, ChunkSpec, Compute, Concurrent, Item, RoleSpec, StepSpec, Unit, Work


def compute(seconds: float = 1.0) -> Compute:
    return Compute("compute", Phase.FORWARD, seconds=seconds)


def call(concurrent: Concurrent | None) -> Call:
    return Call("call", Phase.FORWARD, Collective.ALL_REDUCE, "tp", 1, concurrent)


@pytest.mark.parametrize(
    ("items", "alone"),
    [
        ([compute(), call(None)], True),
        ([call("next"), compute()], False),
        ([call("next"), compute(), compute()], True),
        ([call("next"), compute(), call(None)], True),
        ([compute(), call("previous")], False),
        ([compute(), call("previous"), compute()], True),
        ([compute(), call("previous"), call("next"), compute()], False),
        ([call("phase"), compute()], False),
        ([compute(), call("phase"), compute(), compute(), call(None)], False),
        ([compute(), call("step"), compute()], False),
    ],
)
def test_a_unit_ends_alone_if_its_calls_have_been_waited_for(items: list[Item], alone: bool) -> None:
    assert ends_alone(items) is alone


class Second:
    """Every work takes a second."""

    def seconds(self, _work: Work, _kind: ActionKind) -> float:
        return 1.0


@pytest.mark.parametrize(("other", "expected"), [("next", 1.0), ("step", None)])
def test_calls_that_may_be_held_up_by_those_of_other_units_are_not_contracted(
    other: Concurrent, expected: float | None
) -> None:
    """Both calls run on the lane of their axis, in order."""
    work = Work("hides", (compute(), call("next"), compute(), compute()), (), ())
    before = Work("before", (compute(), call(other), compute(), compute()), (), ())
    role = RoleSpec(0, "stage 0", range(2), ((ChunkSpec((Unit(before), Unit(work))),),))
    contraction = Contraction(StepSpec("step", Mesh(tp=2), make("gpipe", 1, 1), (role,)), Second())
    assert contraction.work_s(work, ActionKind.FORWARD) == expected


def one(seconds: float) -> list[UnitPart]:
    return [Segment((compute(seconds),))]


def seconds_of(parts: list[UnitPart]) -> float:
    (part,) = parts
    assert isinstance(part, Segment)
    return part.items[0].seconds


@pytest.mark.parametrize(
    ("kind", "tied", "expected"),
    [
        (ActionKind.FORWARD, set(), {0: 7.0, 4: 16.0}),
        # A unit that waits for something begins an op; in a backward one that something waits for ends it.
        (ActionKind.FORWARD, {1}, {0: 1.0, 1: 6.0, 4: 16.0}),
        (ActionKind.BACKWARD, {1}, {0: 3.0, 2: 4.0, 4: 16.0}),
        # So does one that is not there, with the next one that is.
        (ActionKind.FORWARD, {5}, {0: 7.0, 4: 16.0}),
    ],
)
def test_neighbours_are_joined(kind: ActionKind, tied: set[int], expected: dict[int, float]) -> None:
    parts = [one(1.0), one(2.0), one(4.0), None, one(16.0), []]
    contracted = join_units(parts, [True] * 5 + [False], tied, kind)
    assert {at: seconds_of(own) for at, own in contracted.parts.items()} == expected
    assert contracted.joined == {0, 1, 2, 4} - set(expected)


def test_a_unit_that_is_not_there_keeps_what_follows_apart() -> None:
    contracted = join_units([one(1.0), [], one(4.0)], [True, False, True], {1}, ActionKind.FORWARD)
    assert {at: seconds_of(own) for at, own in contracted.parts.items()} == {0: 1.0, 2: 4.0}
