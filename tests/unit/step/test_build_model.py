from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from foretrace.api import simulate
from foretrace.program.check import check
from foretrace.program.columns import Phase
from foretrace.program.program import Program
from foretrace.readings.answer.answer import Answer
from foretrace.step import build_step
from foretrace.step.units import sync_gap_s
from foretrace.workload.plan import Plan
from foretrace.workload.step_spec import ModelWorks, step_spec
from hand_written_work import (
    EXPERT_PARAMETERS,
    FORWARD,
    INPUT,
    PARAMETERS,
    RECOMPUTED,
    SAVED,
    SENT,
    WEIGHT,
    WORKSPACES,
    assembled,
    layer_work,
    setting_of,
    timed,
)

NS = 1e-9
LAYER_S = (FORWARD + INPUT + WEIGHT) * NS


def run(program: Program, **facts: Any) -> Answer:
    check(program)
    return simulate(timed(program, **facts), explain=False)


def bytes_of(program: Program, name: str) -> list[int]:
    """The bytes of the templates of this name."""
    columns = program.templates.columns
    number = program.strings.index(name) if name in program.strings else -1
    return [int(size) for size, at in zip(columns["bytes"], columns["name"], strict=True) if at == number]


def ops_of(program: Program, rank: int = 0) -> Counter[str]:
    return Counter(simulate(timed(program), explain=False).timeline.rank(rank).name)


def most_activations(answer: Answer) -> int:
    return int(answer.memory_tracks[0].by_category()["activations"].max())


def copies_of(program: Program) -> list[int]:
    """The templates that copy activations to the host or back."""
    lanes = [number for number, lane in enumerate(program.lanes) if lane.name.startswith("copy to")]
    return [row for row, lane in enumerate(program.templates.columns["lane"]) if lane in lanes]


def with_copies(program: Program, copy_s: float) -> Program:
    """The program with copies that take `copy_s`."""
    columns = program.templates.columns
    duration = columns["duration_s"].copy()
    duration[copies_of(program)] = copy_s
    return replace(program, templates=replace(program.templates, columns={**columns, "duration_s": duration}))


def test_a_lone_gpu_computes_and_updates() -> None:
    program = assembled(4, Plan(1))
    assert run(program).step_time_s == pytest.approx(4 * LAYER_S, rel=1e-12)
    assert set(ops_of(program)) == {"norm … down", "down input … up weight", "grad norm", "optimizer", "zero gradients"}
    assert program.tokens_per_step == 128


def test_tp_of_one_leaves_no_trace() -> None:
    program = assembled(4, Plan(4, pp=2, gbs=8))
    assert {communicator.axis for communicator in program.communicators} == {"pp", "dp"}


def test_a_hidden_collective_costs_what_sticks_out() -> None:
    # The scatter of the gradient, 300 ns, runs beside 200 ns of weight gradient; what the forward calls does not.
    took = run(assembled(1, Plan(2, tp=2)), call_s=300 * NS).step_time_s
    norm = 300
    assert took == pytest.approx((FORWARD + 2 * 300 + INPUT + WEIGHT + 100 + norm) * NS, rel=1e-9)


def test_tp_overlap_hides_behind_the_products() -> None:
    plan = Plan(2, tp=2)
    apart = run(assembled(3, plan), call_s=300 * NS).step_time_s
    hidden = run(assembled(3, Plan(2, tp=2, tp_overlap=True)), call_s=300 * NS).step_time_s
    assert apart - hidden == pytest.approx(3 * 2 * 300 * NS, rel=1e-9)


def test_recompute_runs_the_forward_again() -> None:
    program = assembled(4, Plan(1, recompute="full"), recompute=True)
    answer = run(program)
    assert answer.step_time_s == pytest.approx(4 * (LAYER_S + FORWARD * NS), rel=1e-9)
    assert answer.breakdown.mean_s["recompute"] == pytest.approx(4 * FORWARD * NS, rel=1e-9)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-v", "interleaved-1f1b", "dualpipe", "dualpipe-v"])
def test_every_schedule_runs_and_leaves_no_memory_behind(schedule: str) -> None:
    for buffers in (True, False):
        program = assembled(
            16, Plan(8, pp=4, gbs=16, schedule=schedule), ends=True, fused_gradient_accumulation=buffers
        )
        answer = run(program)
        assert answer.step_time_s > 8 * 4 * LAYER_S
        assert not [note for note in answer.diagnostics if "bytes" in note.message]


def test_what_a_stage_sends() -> None:
    program = assembled(4, Plan(2, pp=2, gbs=4))
    assert set(bytes_of(program, "send forward")) == {SENT}


def test_gradients_are_scattered_and_parameters_gathered_under_zero_1() -> None:
    program = assembled(4, Plan(8))
    assert bytes_of(program, "reduce gradients") == [4 * PARAMETERS] * 4, "a layer fills a bucket of 40 M parameters"
    assert bytes_of(program, "gather parameters") == [2 * PARAMETERS] * 4


def test_other_stages_than_the_first_reduce_at_once() -> None:
    program = assembled(4, Plan(8, pp=2, gbs=8))
    assert sorted(bytes_of(program, "reduce gradients")) == [4 * PARAMETERS, 4 * PARAMETERS, 8 * PARAMETERS]


def test_zero_0_reduces_everywhere_and_gathers_nothing() -> None:
    program = assembled(4, Plan(8, zero=0))
    assert not bytes_of(program, "gather parameters")
    assert ops_of(program)["reduce gradients"] == 4


def test_overlapped_gradients_are_reduced_under_the_backward() -> None:
    def took(**overlap: Any) -> float:
        return run(assembled(4, Plan(8, **overlap)), call_s=100 * NS).step_time_s

    none = took(grad_overlap=False, param_overlap=False)
    grads = took(grad_overlap=True, param_overlap=False)
    both = took(grad_overlap=True, param_overlap=True)
    # Four reductions, of which the last sticks out; four gathers, of which the first does; the norm's call.
    assert none == pytest.approx(4 * LAYER_S + 9 * 100 * NS, rel=1e-9)
    assert grads == pytest.approx(4 * LAYER_S + 6 * 100 * NS, rel=1e-9)
    assert both == pytest.approx(4 * LAYER_S + 3 * 100 * NS, rel=1e-9)


def test_experts_are_reduced_over_their_own_group() -> None:
    program = assembled(2, Plan(8, ep=4, tp=1), experts=8)
    assert bytes_of(program, "reduce expert gradients") == [4 * EXPERT_PARAMETERS] * 2
    groups = {
        communicator.name: communicator.members(program.mesh)[0].shape[1] for communicator in program.communicators
    }
    assert (groups["dp"], groups["edp"], groups["ep"]) == (8, 2, 4)


def test_experts_that_no_other_rank_has_are_not_reduced() -> None:
    assert not bytes_of(assembled(2, Plan(8, ep=8), experts=8), "reduce expert gradients")


def test_moe_overlap_hides_all_to_alls_of_paired_microbatches() -> None:
    def gain(microbatches: int, **pipeline: Any) -> float:
        def took(overlap: bool) -> float:
            plan = Plan(**pipeline, ep=4, gbs=4 * microbatches, moe_overlap=overlap)
            return run(assembled(2, plan, experts=4), call_s=200 * NS).step_time_s

        return took(False) - took(True)

    # Four calls of each of two layers. The first forward and the last backward have none to run next to.
    each = 2 * 4 * 200 * NS
    assert [gain(count, gpus=4) for count in (1, 2, 5)] == pytest.approx([0, each, 4 * each], abs=1e-12)
    assert gain(8, gpus=8, pp=2, schedule="1f1b") > 0
    assert gain(8, gpus=8, pp=2, schedule="gpipe") == pytest.approx(0, abs=1e-12)


def test_a_tied_embedding_is_reduced_over_first_and_last_stage() -> None:
    program = assembled(4, Plan(4, pp=4, gbs=4), ends=True, tied=True)
    assert bytes_of(program, "reduce tied embedding") == [4 * 640 * 64] * 2
    assert ops_of(program, 0)["reduce tied embedding"] == 1
    assert ops_of(program, 1)["reduce tied embedding"] == 0
    assert not bytes_of(assembled(4, Plan(4), ends=True, tied=True), "reduce tied embedding")


def test_the_optimizer_moves_every_byte_once() -> None:
    program = assembled(2, Plan(4))
    owned = 2 * PARAMETERS // 4
    moved = dict(
        zip((program.strings[i] for i in program.templates.columns["name"]), program.templates.columns["moved_bytes"],
            strict=True)
    )  # fmt: skip
    clipped = 4 + 4
    assert moved["optimizer"] == owned * (clipped + 16 + 12 + 4 + 2), "Adam on fp32 state, then bf16 parameters"
    assert moved["grad norm"] == owned * 4
    assert moved["zero gradients"] == 2 * PARAMETERS * 4


@pytest.mark.parametrize(("clips", "scales", "passes"), [(False, False, 0), (True, False, 1), (True, True, 2)])
def test_clipping_and_a_loss_scale_are_passes_over_the_gradients(clips: bool, scales: bool, passes: int) -> None:
    program = assembled(2, Plan(4), clips_gradients=clips, loss_scaling=scales)
    columns, updates = program.templates.columns, program.strings.index("optimizer")
    moved = columns["moved_bytes"][columns["name"] == updates]
    assert moved.tolist() == [2 * PARAMETERS // 4 * (passes * (4 + 4) + 16 + 12 + 4 + 2)]


def test_an_optimizer_on_the_host_keeps_the_gpu_waiting() -> None:
    program = assembled(2, Plan(1, offload_optimizer=True))
    names = ops_of(program)
    assert names["gradients to host"] == names["parameters to gpu"] == 1
    assert run(program).step_time_s > 2 * PARAMETERS * 30 / 100e9


def test_all_ranks_meet_for_the_norm_where_gradients_are_clipped() -> None:
    assert ops_of(assembled(2, Plan(4)))["reduce grad norm"] == 1
    assert ops_of(assembled(2, Plan(4), clips_gradients=False))["reduce grad norm"] == 0


class TestMemory:
    """What is held, in bytes."""

    def test_megatron_holds_6_bytes_and_12_over_dp_of_each_parameter(self) -> None:
        peak = run(assembled(2, Plan(4))).peak_memory
        assert peak is not None
        parameters = 2 * PARAMETERS
        assert peak.by_category["weights"] == 2 * parameters
        assert peak.by_category["gradients"] == 4 * parameters
        assert peak.by_category["optimizer"] == 12 * parameters // 4

    def test_zero_2_holds_a_part_of_gradients_and_two_buffers(self) -> None:
        peak = run(assembled(6, Plan(4, zero=2))).peak_memory
        assert peak is not None
        assert peak.by_category["weights"] == 2 * 6 * PARAMETERS
        assert peak.by_category["gradients"] == 4 * 6 * PARAMETERS // 4
        assert peak.by_category["buffers"] == 2 * 4 * PARAMETERS + WORKSPACES, "whole gradients of two layers"

    def test_zero_2_of_two_layers_needs_no_more_than_zero_1(self) -> None:
        held = [assembled(2, Plan(4, zero=zero)).resident.bytes.sum() for zero in (1, 2)]  # type: ignore[arg-type]
        assert held[1] == held[0]

    def test_gradients_are_copied_to_fp32_from_their_norm_to_the_end_of_the_update(self) -> None:
        answer = run(assembled(2, Plan(4, grad_dtype="bf16")))
        gradients = answer.memory_tracks[0].by_category()["gradients"]
        parameters = 2 * PARAMETERS
        assert (int(gradients.min()), int(gradients.max())) == (2 * parameters, 2 * parameters + 4 * parameters // 4)
        assert not [note for note in answer.diagnostics if "bytes" in note.message]

    def test_activations_of_all_microbatches_in_flight(self) -> None:
        answer = run(assembled(8, Plan(4, pp=4, gbs=8)))
        peaks = [int(track.by_category()["activations"].max()) for track in answer.memory_tracks]
        assert peaks == [2 * SAVED * (4 - stage) for stage in range(4)], "1F1B: p, p − 1, …, 1 microbatches"

    def test_what_recompute_brings_back_lives_while_its_layer_does(self) -> None:
        answer = run(assembled(4, Plan(1, recompute="full"), recompute=True))
        assert int(answer.memory_tracks[0].by_category()["activations"].max()) == 4 * SAVED + RECOMPUTED

    def test_fsdp_holds_its_part_and_two_layers(self) -> None:
        answer = run(assembled(6, Plan(8, zero=3), parameter_dtype="fp32", master_weights=False), call_s=NS)
        held = answer.memory_tracks[0].by_category()
        assert int(held["weights"].max()) == 6 * PARAMETERS * 4 // 8
        assert int(held["optimizer"].max()) == 6 * PARAMETERS * 8 // 8
        forward = held["buffers"][answer.memory_tracks[0].time_s < 6 * FORWARD * NS]
        assert int(forward.max()) == 2 * 2 * PARAMETERS + WORKSPACES, (
            "the layer that runs and the one prefetched, in bf16"
        )

    def test_gradients_without_a_buffer_appear_in_the_first_backward_and_go_with_the_update(self) -> None:
        answer = run(assembled(4, Plan(1, gbs=3), fused_gradient_accumulation=False, master_weights=False))
        gradients = answer.memory_tracks[0].by_category()["gradients"]
        assert (int(gradients.min()), int(gradients.max())) == (0, 4 * PARAMETERS * 2), "in the parameters' dtype"
        assert not [note for note in answer.diagnostics if "bytes" in note.message]

    def test_activations_copied_to_the_host_come_back(self) -> None:
        kept = run(assembled(6, Plan(1)))
        program = assembled(6, Plan(1, offload_layers=4))
        moved = run(program)
        assert not [note for note in moved.diagnostics if "bytes" in note.message]
        most = [int(one.memory_tracks[0].by_category()["activations"].max()) for one in (kept, moved)]
        assert most[1] < most[0]
        assert ops_of(program)["activations to host"] == ops_of(program)["activations to gpu"] == 4

    def test_offloading_more_layers_never_needs_more_memory(self) -> None:
        """The last layer's activations leave before they are fetched again, however slow the link is."""
        programs = [timed(assembled(6, Plan(1, gbs=2, offload_layers=count))) for count in range(7)]
        slow = [with_copies(program, 9000 * NS) for program in programs]
        peaks = [most_activations(simulate(program, explain=False)) for program in slow]
        assert peaks == sorted(peaks, reverse=True)
        assert peaks[6] == 2 * SAVED, "the layer that runs, and the one before or after it"

    def test_slow_copies_take_time_not_memory(self) -> None:
        """The compute lane waits for a copy before memory is free, so that memory does not depend on the link."""
        program = timed(assembled(6, Plan(1, offload_layers=6)))
        quick, slow = (simulate(with_copies(program, copy_s), explain=False) for copy_s in (1 * NS, 9000 * NS))
        assert most_activations(quick) == most_activations(slow) == 2 * SAVED
        assert quick.step_time_s == pytest.approx(6 * LAYER_S + 2 * NS, rel=1e-9), (
            "the last one out, the first one back"
        )
        assert slow.step_time_s > 6 * 2 * 9000 * NS

    def test_a_part_of_the_activations_leaves(self) -> None:
        works = ModelWorks((replace(layer_work(), offloaded_bytes=SAVED // 4),) * 6)
        program = build_step(step_spec(setting_of(6, Plan(1)), works))
        assert most_activations(simulate(timed(program), explain=False)) == (6 * 3 + 2) * SAVED // 4
        assert {int(program.templates.columns["moved_bytes"][row]) for row in copies_of(program)} == {SAVED // 4}


class TestScatteredGradients:
    """ZeRO-2 of software that holds whole parameters: every backward scatters its gradients."""

    def test_each_layer_is_scattered_in_each_microbatch_and_gathered_once_a_step(self) -> None:
        program = assembled(4, Plan(8, zero=2, gbs=16), ends=True)
        names = ops_of(program)
        assert names["reduce layer"] == 2 * 4 and names["reduce head"] == names["reduce embedding"] == 2
        assert names["reduce gradients"] == names["gather layer"] == 0
        assert (
            names["gather parameters"] == ops_of(assembled(4, Plan(8, zero=1, gbs=16), ends=True))["gather parameters"]
        )
        assert set(bytes_of(program, "reduce layer")) == {4 * PARAMETERS}

    def test_experts_are_scattered_over_their_own_group(self) -> None:
        program = assembled(2, Plan(8, zero=2, ep=4), experts=4)
        assert sorted(set(bytes_of(program, "reduce layer"))) == [4 * PARAMETERS, 4 * EXPERT_PARAMETERS]

    def test_alone_nothing_differs(self) -> None:
        alone = [run(assembled(2, Plan(1, zero=zero))).step_time_s for zero in (1, 2)]  # type: ignore[arg-type]
        assert alone[0] == alone[1]
        assert ops_of(assembled(2, Plan(1, zero=2)))["reduce layer"] == 0

    def test_scatters_hide_behind_the_backward_unless_they_may_not(self) -> None:
        hidden, waited = (run(assembled(4, Plan(8, zero=2, grad_overlap=on)), call_s=100 * NS) for on in (True, False))
        # Of the scatters the last sticks out, then the norm's call and the gather of the first bucket.
        assert hidden.step_time_s < waited.step_time_s
        assert waited.step_time_s - hidden.step_time_s == pytest.approx(3 * 100 * NS, rel=1e-6)

    def test_a_backward_waits_for_a_free_buffer(self) -> None:
        slow_s = 10 * LAYER_S
        took = run(assembled(4, Plan(8, zero=2)), call_s=slow_s).step_time_s
        assert took >= 4 * slow_s

    def test_fsdp_gathers_for_the_forward_and_keeps_until_the_backward(self) -> None:
        plan = Plan(8, zero=2, gbs=16)
        names = ops_of(assembled(4, plan, zero2_splits="parameters"))
        assert names["gather layer"] == names["reduce layer"] == 2 * 4
        kept = run(assembled(4, plan, zero2_splits="parameters")).memory_tracks[0].by_category()
        without = run(assembled(4, Plan(8, zero=3, reshard=False, gbs=16))).memory_tracks[0].by_category()
        assert int(kept["weights"].max()) == 2 * 4 * PARAMETERS // 8
        assert int(kept["buffers"].max()) == int(without["buffers"].max())

    def test_microbatches_on_their_way_share_what_fsdp_has_gathered(self) -> None:
        answer = run(assembled(8, Plan(16, zero=2, pp=2, gbs=64), zero2_splits="parameters"))
        buffers = [int(track.by_category()["buffers"].max()) for track in answer.memory_tracks]
        # Parameters of four layers; whole gradients of one in bf16, and their copy in fp32; what stages receive.
        assert set(buffers) == {(2 * 4 + 2 + 4) * PARAMETERS + 2 * SENT + WORKSPACES}


class TestSharded:
    """ZeRO-3: parameters gathered, gradients scattered."""

    def test_each_layer_is_gathered_for_each_pass_and_scattered_once(self) -> None:
        names = ops_of(assembled(4, Plan(8, zero=3, gbs=16), ends=True))
        assert names["gather layer"] == 2 * 2 * 4
        assert names["gather embedding"] == names["gather head"] == 2, "ends are kept from forward to backward"
        assert names["reduce layer"] == 2 * 4

    def test_without_reshard_parameters_are_gathered_once(self) -> None:
        assert ops_of(assembled(4, Plan(8, zero=3, reshard=False)))["gather layer"] == 4

    def test_gathers_hide_behind_the_layer_before(self) -> None:
        took = run(assembled(4, Plan(8, zero=3)), call_s=100 * NS).step_time_s
        # What sticks out: the first gather of either pass, the last scatter, the norm's call.
        assert took == pytest.approx(4 * LAYER_S + 4 * 100 * NS, rel=1e-9)

    def test_without_prefetch_every_gather_is_waited_for(self) -> None:
        took = run(assembled(4, Plan(8, zero=3, prefetch=0)), call_s=100 * NS).step_time_s
        assert took >= 4 * LAYER_S + (8 + 2) * 100 * NS * (1 - 1e-9)

    def test_gathers_that_come_after_the_gradients_are_waited_for(self) -> None:
        took = run(assembled(4, Plan(8, zero=3), backward_prefetch=False), call_s=100 * NS).step_time_s
        # In the backward every gather sticks out, and but for the first the reduction before it on their lane.
        assert took == pytest.approx(4 * LAYER_S + (1 + 4 + 3 + 1 + 1) * 100 * NS, rel=1e-9)

    def test_fsdp2_copies_what_it_gathers_and_what_it_reduces(self) -> None:
        program = assembled(4, Plan(8, zero=3), copies_gathered=True)
        plain = run(assembled(4, Plan(8, zero=3))).step_time_s
        # In bf16 read and written, before either pass; gradients from bf16 to fp32 after the backward.
        copied = 4 * PARAMETERS * (2 * (2 + 2) + (2 + 4))
        assert run(program).step_time_s - plain == pytest.approx(copied * NS, rel=1e-9)

    def test_a_lone_gpu_copies_nothing(self) -> None:
        assert not [name for name in ops_of(assembled(4, Plan(1, zero=3), copies_gathered=True)) if "copy" in name]

    def test_replicas_reduce_their_part(self) -> None:
        program = assembled(4, Plan(16, zero=3, shard=4))
        assert bytes_of(program, "replicate layer")[0] == 4 * PARAMETERS // 4
        groups = {one.name: one.members(program.mesh)[0].shape[1] for one in program.communicators}
        assert (groups["shard"], groups["replicate"]) == (4, 4)


class TestHost:
    """Launches."""

    def test_a_slow_host_sets_the_pace(self) -> None:
        program = assembled(4, Plan(1), launch_s=10e-6)
        kernels = 4 * (3 + 4)  # of layers; the optimizer's own are few
        took = run(program).step_time_s
        assert kernels * 10e-6 < took < 1.5 * (kernels * 10e-6 + 4 * LAYER_S) + 200e-6

    def test_a_fast_host_is_not_seen(self) -> None:
        quick = run(assembled(4, Plan(1, gbs=4), launch_s=1e-12)).step_time_s
        assert quick == pytest.approx(run(assembled(4, Plan(1, gbs=4))).step_time_s, rel=1e-3)

    def test_a_cuda_graph_needs_no_host(self) -> None:
        names = ops_of(assembled(4, Plan(1, cuda_graphs="full"), launch_s=10e-6))
        assert not [name for name in names if name.startswith("launch")]

    def test_waiting_for_the_gpu_leaves_a_gap(self) -> None:
        plan = Plan(1)
        apart = run(assembled(4, plan, launch_s=1e-9, syncs=True)).step_time_s
        together = run(assembled(4, plan, launch_s=1e-9)).step_time_s
        assert sync_gap_s(1e-9) == pytest.approx(1.4e-9)
        assert apart - together == pytest.approx(4 * 1.4e-9, rel=1e-6)


@pytest.mark.parametrize(
    ("plan", "facts"),
    [
        (Plan(8, tp=2, pp=2, gbs=8), {"recompute": True, "ends": True}),
        (Plan(8, tp=2, zero=3), {"ends": True}),
        (Plan(8, tp=2, tp_overlap=True, ep=2, gbs=16), {"experts": 4, "syncs": True}),
        (Plan(4, pp=4, gbs=8, schedule="zb-h1"), {"ends": True}),
    ],
)
@pytest.mark.parametrize("launch_s", [0.0, 50e-9, 5e-6])
def test_kernel_by_kernel_takes_as_long_as_segment_by_segment(
    plan: Plan, facts: dict[str, Any], launch_s: float
) -> None:
    segments = assembled(4, plan, launch_s=launch_s, **facts)
    kernels = assembled(4, plan, launch_s=launch_s, detail="kernel", **facts)
    assert kernels.op_count > segments.op_count
    once, again = run(segments, call_s=150 * NS), run(kernels, call_s=150 * NS)
    assert once.step_time_s == pytest.approx(again.step_time_s, rel=1e-9)
    assert once.peak_memory is not None and again.peak_memory is not None
    assert once.peak_memory.bytes >= again.peak_memory.bytes


def test_stages_that_do_the_same_share_their_blocks() -> None:
    few = assembled(16, Plan(4, pp=4, gbs=8), ends=True)
    many = assembled(64, Plan(16, pp=16, gbs=32), ends=True)
    count = [sum(block.name in ("forward", "backward") for block in program.blocks) for program in (few, many)]
    assert count == [6, 6], "first, middle and last, each way"


def test_the_optimizer_is_of_its_own_phase() -> None:
    columns = assembled(2, Plan(4)).templates.columns
    assert (columns["phase"] == Phase.OPTIMIZER).sum() >= 4
