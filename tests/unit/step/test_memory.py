"""The peak of a stage, from the order of its schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from foretrace import load_model
from foretrace.schedules import ActionKind
from foretrace.step.memory import SchedulePlace, stage_peaks
from foretrace.step.spec import ChunkSpec, StepSpec
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import step_spec
from hand_written_work import PARAMETERS, RECOMPUTED, SAVED, SENT, WORKSPACES, setting_of, works

TEMPORARY = 77
"""What the last computation of a layer's forward needs while it runs."""
HELD = PARAMETERS * (2 + 4 + 12)
"""Weights, gradients and optimizer state of a layer that nobody else shares."""


def spec_of(layers: int, plan: Plan, **facts: object) -> StepSpec:
    how = {name: facts.pop(name) for name in ("recompute", "ends") if name in facts}
    return step_spec(setting_of(layers, plan, **facts), works(layers, **how))  # type: ignore[arg-type]


def test_1f1b_holds_a_microbatch_less_on_each_stage() -> None:
    peaks = stage_peaks(spec_of(8, Plan(4, pp=4, gbs=8)))
    # The last layer of the last forward before the first backward.
    expected = [2 * HELD + WORKSPACES + 2 * SENT + 2 * SAVED * (4 - stage) + TEMPORARY for stage in range(4)]
    assert [peak.peak_bytes for peak in peaks] == expected
    assert [peak.place for peak in peaks] == [
        SchedulePlace(ActionKind.FORWARD, 3 - stage, 0, 1, 1) for stage in range(4)
    ]
    assert all(peak.exact for peak in peaks)
    assert peaks[0].by_category == {
        "weights": 2 * 2 * PARAMETERS,
        "gradients": 2 * 4 * PARAMETERS,
        "optimizer": 2 * 12 * PARAMETERS,
        "activations": 8 * SAVED,
        "temporaries": TEMPORARY,
        "buffers": 2 * SENT + WORKSPACES,
    }


def test_recomputed_activations_are_at_the_peak_of_the_first_backward() -> None:
    (peak,) = stage_peaks(spec_of(4, Plan(1, recompute="full"), recompute=True))
    assert peak.by_category["activations"] == 4 * SAVED + RECOMPUTED
    assert peak.place == SchedulePlace(ActionKind.BACKWARD, 0, 0, 3, 3)


def test_gradients_without_a_buffer_add_up_in_the_first_backward() -> None:
    facts = {"fused_gradient_accumulation": False, "master_weights": False}
    (peak,) = stage_peaks(spec_of(4, Plan(1, gbs=3), **facts))
    assert peak.by_category["gradients"] == 4 * 2 * PARAMETERS
    # All gradients are there when the first microbatch is done, so that the second one is the first at the peak.
    assert peak.place == SchedulePlace(ActionKind.FORWARD, 1, 0, 3, 3)


def test_offloaded_layers_hold_two_of_them_at_a_time() -> None:
    peaks = [stage_peaks(spec_of(6, Plan(1, offload_layers=count)))[0] for count in range(7)]
    activations = [peak.by_category["activations"] for peak in peaks]
    assert activations == [SAVED * count for count in (6, 5, 4, 3, 2, 2, 2)]


def test_parameters_that_ranks_split_give_a_bound() -> None:
    (peak,) = stage_peaks(spec_of(6, Plan(8, zero=3)))
    assert not peak.exact
    # The layer that runs and its gradients in bf16, those of the one before it, and their copy in fp32 for the scatter.
    assert peak.by_category["buffers"] == (3 * 2 + 4) * PARAMETERS + WORKSPACES


@pytest.mark.parametrize(
    "plan",
    [
        Plan(8, pp=2, zero=3, schedule="gpipe"),
        Plan(8, pp=2, zero=3, schedule="gpipe", reshard=False),
    ],
)
def test_gathered_parameters_and_their_gradients_do_not_add_up_over_microbatches(plan: Plan) -> None:
    few, many = (stage_peaks(spec_of(12, replace(plan, gbs=4 * count), ends=True)) for count in (4, 16))
    assert [peak.by_category["buffers"] for peak in few] == [peak.by_category["buffers"] for peak in many]


def test_weight_gradients_of_a_divided_backward_need_no_memory_before_they_are_made() -> None:
    peaks = stage_peaks(spec_of(12, Plan(8, pp=2, zero=3, gbs=32, schedule="zb-h1")))
    # At most three layers have gradients in bf16 and their copy in fp32, and two have gathered parameters.
    most = (3 * (2 + 4) + 2 * 2) * PARAMETERS + WORKSPACES + 2 * SENT
    assert all(peak.by_category["buffers"] <= most for peak in peaks)


def test_roles_that_do_the_same_have_the_same_peak() -> None:
    spec = spec_of(2, Plan(2, gbs=4))
    (role,) = spec.roles
    twins = replace(spec, roles=(replace(role, name="one", ranks=[0]), replace(role, name="other", ranks=[1])))
    one, other = stage_peaks(twins)
    assert (one.role, other.role) == ("one", "other")
    assert replace(one, role="other") == other


def test_a_step_without_memory_has_no_place() -> None:
    spec = spec_of(2, Plan(1))
    empty = replace(spec.roles[0].chunks[0][0], units=())
    (peak,) = stage_peaks(replace(spec, roles=(replace(spec.roles[0], chunks=((empty,),), end=()),)))
    assert peak.place is None
    assert peak.peak_bytes == sum(spec.roles[0].resident.values())


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("changes", [{}, {"reshard": False}, {"offload_layers": 9}, {"pp": 2, "vpp": 2, "gbs": 32}])
@pytest.mark.parametrize(("name", "seq_len"), [("llama3-8b", 4096), ("llama3-8b", 16), ("deepseek-v2-lite", 16)])
def test_a_run_of_equal_layers_is_like_layers_that_happen_to_be_equal(
    zero: Literal[1, 3], prefetch: int, changes: dict[str, Any], name: str, seq_len: int
) -> None:
    model = load_model(name)
    # Without large ends and long sequences, the peak is where a run of layers ends.
    model = replace(model, layers=model.layers[:16], vocab=model.vocab if seq_len > 16 else 512)
    plan = Plan(gpus=8, tp=2, gbs=16, zero=zero, prefetch=prefetch, stack="fsdp", seq_len=seq_len)
    spec = step_spec(settle(model, replace(plan, **changes)))
    copies = {id(chunk): _with_own_works(chunk) for role in spec.roles for (chunk,) in role.chunks}
    roles = tuple(replace(role, chunks=tuple((copies[id(chunk)],) for (chunk,) in role.chunks)) for role in spec.roles)
    assert stage_peaks(replace(spec, roles=roles)) == stage_peaks(spec)


def _with_own_works(chunk: ChunkSpec) -> ChunkSpec:
    """Returns a chunk in which no two units share their work."""
    return ChunkSpec(tuple(replace(unit, work=replace(unit.work)) for unit in chunk.units))
