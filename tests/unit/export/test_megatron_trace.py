"""A timeline as rank traces: lines, spans and words agree with what was simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace import Answer, Machine, Mesh, ProgramBuilder, Timeline, Transfer, pipeline, schedule, simulate
from foretrace.basics.errors import InputError
from foretrace.export.megatron_trace import ORIGIN_MS, timeline_facts, timeline_traces
from foretrace.inputs.megatron_trace.format import Facts, RankTrace, TraceOp, read_runs, write_runs
from foretrace.inputs.registry import open_input
from foretrace.program.block import BlockBuilder
from foretrace.program.columns import Collective
from foretrace.readings.account import account
from foretrace.readings.answer.recorded import recorded_answer
from foretrace.readings.explain.rows import OpRows
from foretrace.schedules import Action, ActionKind
from shared_files import ROOT, shared
from unit.inputs.megatron_trace.rank_files import Rank, all_to_all, answer, sub, write

FORWARD_S, BACKWARD_S, REDUCE_S, TRANSFER_S = 4e-3, 8e-3, 1e-3, 0.5e-3
GRADIENTS_S, OPTIMIZER_S, EMBEDDING_S = 3e-3, 2e-3, 0.25e-3
NS_IN_MS = 1e-6


def job(stages: int = 3, microbatches: int = 4, name: str = "1f1b", transfers: str = "batched") -> Timeline:
    mesh = Mesh(tp=2, pp=stages, dp=2)
    plan = schedule(name, stages, microbatches)
    build = ProgramBuilder(mesh, title="small", repeats=False)
    tp, dp, embd = (
        build.communicator("tp"),
        build.communicator("dp"),
        build.pair("pp", 0, stages - 1, name="embd", axis="embd"),
    )
    blocks: dict[ActionKind, BlockBuilder] = {}

    def block(_stage: int, action: Action) -> BlockBuilder:
        if action.kind not in blocks:
            made = blocks[action.kind] = build.block(action.kind.name.lower())
            phase = action.kind.name.lower()
            made.compute("layer", FORWARD_S if phase == "forward" else BACKWARD_S, phase=phase)
            made.collective("all_gather", tp, REDUCE_S, bytes=4096, lane="compute", phase=phase, dtype="bfloat16")
        return blocks[action.kind]

    placed = pipeline(build, plan, block, Transfer(bytes=512, duration_s=TRANSFER_S), transfers=transfers)  # type: ignore[arg-type]
    for stage, role in enumerate(placed.stages):
        last = [action for slot in plan.actions(stage) for action in slot][-1]
        grads = role.collective("reduce_scatter", dp, GRADIENTS_S, bytes=64, after=placed.placed[stage, last]["out"])
        if stage in (0, stages - 1):
            grads = role.collective("all_reduce", embd, EMBEDDING_S, bytes=32, after=grads, name="tied weights")
        role.compute("adam", OPTIMIZER_S, phase="optimizer", after=grads)
    return simulate(build.program(), explain=False).timeline


def words(ops: tuple[TraceOp, ...], *names: str) -> list[tuple[str, int | None, str | None]]:
    return [(op.op, op.batch, op.state) for op in ops if op.op in names]


def test_lines_of_a_middle_stage_are_those_of_megatron() -> None:
    timeline = job()
    rank = timeline.graph.program.mesh.rank(pp=1, tp=0, dp=0)
    (trace,) = timeline_traces(timeline, [rank])
    assert {op.stage for op in trace.ops} == {1}
    assert [(op.op, op.batch, op.state) for op in trace.ops] == [
        ("recv_forward", 0, "warmup"),
        ("forward_step", 0, "warmup"),
        ("send_forward", 0, "warmup"),
        ("recv_forward", 1, "help"),
        ("forward_step", 1, "steady"),
        ("send_forward", 1, "steady"),
        ("recv_backward", 0, "steady"),
        ("backward_step", 0, "steady"),
        ("send_backward", 0, "steady"),
        ("recv_forward", 2, "steady"),
        ("forward_step", 2, "steady"),
        ("send_forward", 2, "steady"),
        ("recv_backward", 1, "steady"),
        ("backward_step", 1, "steady"),
        ("send_backward", 1, "steady"),
        ("recv_forward", 3, "steady"),
        ("forward_step", 3, "steady"),
        ("send_forward", 3, "steady"),
        ("recv_backward", 2, "steady"),
        ("backward_step", 2, "steady"),
        ("send_backward", 2, "steady"),
        ("recv_backward", 3, "cooldown"),
        ("backward_step", 3, "cooldown"),
        ("send_backward", 3, "cooldown"),
        ("dp_allreduce", 0, "finalize"),
        ("optimizer_step", 0, "finalize"),
    ]
    assert trace.ops[-2].description == "reduce_scatter"
    assert (trace.ops[-2].group, trace.ops[-2].shape, trace.ops[-2].dtype) == ("dp", (64,), "torch.uint8")


def test_both_lines_of_an_exchange_have_the_same_span() -> None:
    trace = timeline_traces(job())[4]
    fused = [
        (one, two) for one, two in zip(trace.ops, trace.ops[1:], strict=False) if one.timestamp_ms == two.timestamp_ms
    ]
    assert len(fused) == 5
    for one, two in fused:
        assert (one.op[:4], two.op[:4]) == ("send", "recv")
        assert one.duration_ms == two.duration_ms


def test_spans_agree_with_the_timeline() -> None:
    timeline = job()
    for trace in timeline_traces(timeline):
        rank = timeline.rank(trace.rank)
        layers = [i for i, name in enumerate(rank.name) if name == "layer"]
        steps = [op for op in trace.ops if op.op in ("forward_step", "backward_step")]
        assert len(layers) == len(steps) == 8
        for i, op in zip(layers, steps, strict=True):
            assert op.start_ms == pytest.approx(ORIGIN_MS + rank.start_s[i] * 1e3, abs=2 * NS_IN_MS)
            assert op.timestamp_ms == pytest.approx(ORIGIN_MS + rank.end_s[i + 1] * 1e3, abs=2 * NS_IN_MS)
            (sub,) = op.subs
            assert sub.duration_ms == pytest.approx(REDUCE_S * 1e3, abs=NS_IN_MS)
            assert sub.timestamp_ms == op.timestamp_ms
            assert (sub.comm, sub.group, sub.source, sub.overlaps) == ("allgather", "tp", "allgather", False)
            # What this rank gives to an all-gather of 4096 bytes among two, in bfloat16.
            assert (sub.shape, sub.dtype) == ((1024,), "torch.bfloat16")


def test_a_transfer_includes_what_it_waits() -> None:
    timeline = job()
    (trace,) = timeline_traces(timeline, [timeline.graph.program.mesh.rank(pp=1, tp=0, dp=0)])
    first = trace.ops[0]
    assert first.start_ms == ORIGIN_MS
    assert first.duration_ms == pytest.approx((FORWARD_S + REDUCE_S + TRANSFER_S) * 1e3, abs=NS_IN_MS)


def assert_one_at_a_time(trace: RankTrace) -> None:
    """No line begins before the one before it ends, but the second of an exchange, which has the span of the first."""
    ends, before = ORIGIN_MS, (0.0, 0.0)
    for op in trace.ops:
        assert op.start_ms is not None
        assert op.timestamp_ms is not None
        assert op.start_ms >= ends - NS_IN_MS or (op.start_ms, op.timestamp_ms) == before
        ends, before = op.timestamp_ms, (op.start_ms, op.timestamp_ms)


@pytest.mark.parametrize("transfers", ["batched", "async"])
def test_lines_of_a_rank_do_not_overlap(transfers: str) -> None:
    timeline = job(transfers=transfers)
    for trace in timeline_traces(timeline):
        assert_one_at_a_time(trace)
        # Ends are kept: what runs beside something that ends sooner begins later.
        last = ORIGIN_MS + timeline.rank(trace.rank).end_s.max() * 1e3
        assert trace.ops[-1].timestamp_ms == pytest.approx(last, abs=NS_IN_MS)


def test_the_embedding_group_is_called_ep() -> None:
    first, middle = (timeline_traces(job(), [rank])[0] for rank in (0, 4))
    (tied,) = [op for op in first.ops if op.op == "ep_allreduce"]
    assert (tied.group, tied.state, tied.description) == ("ep", "finalize", "tied weights: all_reduce")
    assert not [op for op in middle.ops if op.op == "ep_allreduce"]


def test_one_microbatch_has_no_steady_part_before_the_last_stage() -> None:
    first, last = timeline_traces(job(2, 1), [0, 4])
    assert words(first.ops, "forward_step", "backward_step") == [
        ("forward_step", 0, "warmup"),
        ("backward_step", 0, "cooldown"),
    ]
    assert words(last.ops, "forward_step", "backward_step") == [
        ("forward_step", 0, "steady"),
        ("backward_step", 0, "steady"),
    ]


def test_all_forwards_first_is_all_warmup() -> None:
    first = timeline_traces(job(3, 4, "gpipe"), [0])[0]
    assert {state for op, _, state in words(first.ops, "forward_step")} == {"warmup"}
    assert {state for op, _, state in words(first.ops, "backward_step")} == {"cooldown"}


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v"])
def test_any_schedule_is_written_and_read_back(tmp_path: Path, name: str) -> None:
    timeline = job(2, 4, name, "async")
    traces = timeline_traces(timeline)
    assert [trace.rank for trace in traces] == list(range(8))
    written = write_runs(traces, tmp_path, timeline_facts(timeline))
    (run,) = read_runs([tmp_path])
    assert [Path(trace.path).name for trace in run.ranks.values()] == [path.name for path in written.paths]
    assert {rank: trace.ops for rank, trace in run.ranks.items()} == {trace.rank: trace.ops for trace in traces}
    assert (run.facts.world, run.facts.tp, run.facts.pp) == (8, 2, 2)
    # Batch ids tell iterations apart, so none may repeat.
    assert not [trace.diagnostics for trace in run.ranks.values() if trace.diagnostics]


def test_a_collective_beside_computation_overlaps() -> None:
    build = ProgramBuilder(Mesh(tp=2, dp=2), repeats=False)
    block = build.block("backward")
    ep = build.communicator("tp")
    first = block.compute("a", 1e-3, phase="backward")
    block.collective("all_reduce", ep, 0.5e-3, after=first, phase="backward", name="hidden, all=of it")
    second = block.compute("b", 2e-3, phase="backward")
    block.collective("all_reduce", ep, 0.5e-3, after=second, phase="backward", name="seen")
    build.role("all", range(4)).place(block, microbatch=0)
    (trace,) = timeline_traces(simulate(build.program(), explain=False).timeline, [3])
    (op,) = trace.ops
    assert [(sub.name, sub.source, sub.overlaps) for sub in op.subs] == [
        ("hidden_ all_of it", "allreduce_async", True),
        ("seen", "allreduce", False),
    ]
    assert op.duration_ms == pytest.approx(3.5)


def test_collectives_within_the_optimizer_are_part_of_it() -> None:
    build = ProgramBuilder(Mesh(tp=2, dp=2), repeats=False)
    block = build.block("step end")
    tp, dp = build.communicator("tp"), build.communicator("dp")
    block.collective("all_reduce", dp, 1e-3, bytes=8, lane="compute")
    block.collective("all_reduce", tp, 1e-3, bytes=8, lane="compute", name="before")
    block.compute("norm", 1e-3, phase="optimizer")
    block.collective("all_reduce", tp, 1e-3, bytes=8, lane="compute", name="within")
    block.compute("adam", 1e-3, phase="optimizer")
    build.role("all", range(4)).place(block)
    (trace,) = timeline_traces(simulate(build.program(), explain=False).timeline, [0])
    assert [(op.op, op.duration_ms, [sub.name for sub in op.subs]) for op in trace.ops] == [
        ("dp_allreduce", 1.0, []),
        ("tp_allreduce", 1.0, []),
        ("optimizer_step", 3.0, ["within"]),
    ]


def test_ranks_must_exist() -> None:
    with pytest.raises(InputError) as caught:
        timeline_traces(job(), [12])
    assert caught.value.code == "no-such-rank"


def test_an_example_workload(tmp_path: Path) -> None:
    example = ROOT / "examples" / "llama405b_1024gpu.txt"
    timeline = simulate(example, Machine("h100-dgx"), explain=False).timeline
    traces = timeline_traces(timeline, [0, 8])
    write_runs(traces, tmp_path, timeline_facts(timeline))
    (run,) = read_runs([tmp_path])
    assert {rank: trace.ops for rank, trace in run.ranks.items()} == {trace.rank: trace.ops for trace in traces}
    for trace in traces:
        rank = timeline.rank(trace.rank)
        assert len(words(trace.ops, "forward_step")) == len(words(trace.ops, "backward_step")) == 16
        assert trace.ops[-1].timestamp_ms == pytest.approx(ORIGIN_MS + rank.end_s.max() * 1e3, abs=NS_IN_MS)
        subs = sum(len(op.subs) for op in trace.ops)
        outside = sum(op.op.endswith("_allreduce") for op in trace.ops)
        lanes = [name for name in rank.name if name.endswith(("all_reduce", "all_gather", "reduce_scatter"))]
        assert subs + outside == len(lanes)
        assert {op.group for op in trace.ops} == {None, "pp", "dp", "tp"}


def assert_survives(run: Answer, folder: Path, ops: int) -> tuple[Answer, Answer]:
    """Written down and read back, a run is the same: its step, passes and microbatches; as recorded, and run again."""
    traces = timeline_traces(run.timeline)
    for trace in traces:
        assert_one_at_a_time(trace)
    write_runs(traces, folder, timeline_facts(run.timeline))
    written = open_input([folder])
    recorded = recorded_answer(written)
    assert recorded is not None
    both = recorded, simulate(written, explain=False)
    # Every op is rounded once, to a nanosecond.
    rounding_s = 2e-9 * ops
    spent = account(run)
    for again in both:
        found = account(again)
        assert again.step_time_s == pytest.approx(run.step_time_s, rel=1e-6, abs=rounding_s)
        assert found.microbatches == spent.microbatches
        assert found.stages.keys() == spent.stages.keys()
        for key, one in spent.stages.items():
            assert found.stages[key].mean_s == pytest.approx(one.mean_s, abs=rounding_s), key
    return both


def by_axis(run: Answer) -> dict[str, float]:
    """Seconds that communication over each axis ran, means over ranks."""
    rows = OpRows.of(run)
    return {axis: rows.mean_over_ranks(rows.running_s, rows.axis == axis) for axis in set(rows.axis.tolist()) - {""}}


def all_to_all_bytes(run: Answer) -> dict[int, int]:
    """What each rank gives to all-to-alls over ep in all."""
    given = dict[int, int]()
    rows = OpRows.of(run)
    for owner, collective, axis, size in zip(
        rows.owner.tolist(), rows.collective.tolist(), rows.axis.tolist(), rows.bytes.tolist(), strict=True
    ):
        if collective == Collective.ALL_TO_ALL and axis == "ep":
            given[owner] = given.get(owner, 0) + size
    classes = run.timeline.graph.classes.of_rank
    return {rank: given.get(int(owner), 0) for rank, owner in enumerate(classes.tolist())}


def optimizer_s(run: Answer) -> float:
    return account(run).kinds["optimizer"].running_s


def campaign(folder: Path) -> Path:
    """Ex-situ traces of two stages of two experts each, replicated twice; the last stage reduces its loss over dp."""
    ranks = []
    for rank in range(8):
        stage, expert = rank // 4, rank % 2
        one = Rank(rank, stage, ex_situ=True).op("get_batch", 0.2)
        for name, ms in (("forward_step", 4.0), ("backward_step", 7.0)):
            subs = [all_to_all(1.0, 512), all_to_all(2.0 + expert, 300 if expert else 724)]
            one.op(name, ms + expert, subs=subs)
            if stage == 1 and name == "forward_step":
                one.op("loss_func", 0.5, subs=[sub(0.3, 0.0, group="dp", shape=[1], dtype="torch.float32")])
        one.reduction(elements=10**6).reduction("exp_dp_allreduce", elements=10**6)
        ranks.append(one.op("optimizer_step", 3.0))
    return write(folder, ranks, Facts(world=8, tp=1, pp=2, ep=2, dp=4, experts=2, micro_batch=1))


def test_an_ex_situ_prediction_survives_being_written_down(tmp_path: Path) -> None:
    run = answer(campaign(tmp_path / "campaign"), microbatches=4, pp_comm_bytes=1 << 20)
    ops = len(run.timeline.start_s)
    for again in assert_survives(run, tmp_path / "written", ops):
        assert by_axis(again) == pytest.approx(by_axis(run), abs=2e-9 * ops)
        assert all_to_all_bytes(again) == all_to_all_bytes(run)
        assert len(set(all_to_all_bytes(run).values())) == 2
        assert optimizer_s(again) == pytest.approx(optimizer_s(run), abs=2e-9 * ops)
        found, spent = (account(one).kinds for one in (again, run))
        assert found["host"].running_s == pytest.approx(spent["host"].running_s, abs=2e-9 * ops)


def test_a_loss_reduced_over_dp_is_part_of_its_microbatch(tmp_path: Path) -> None:
    run = answer(campaign(tmp_path), microbatches=3, pp_comm_bytes=1 << 20)
    last = timeline_traces(run.timeline, [7])[0]
    names = [op.op for op in last.ops if op.op not in ("send_backward", "recv_forward")]
    steps = ["get_batch", "forward_step", "loss_func", "backward_step"] * 3
    ends = ["scale_dp_allreduce", "dp_allreduce", "scale_exp_dp_allreduce", "exp_dp_allreduce", "optimizer_step"]
    assert names == [*steps, *ends]
    for op in last.ops:
        assert [one.group for one in op.subs] == {
            "loss_func": ["dp"],
            "forward_step": ["exp", "exp"],
            "backward_step": ["exp", "exp"],
        }.get(op.op, [])


def test_a_real_run_survives_being_written_down(tmp_path: Path) -> None:
    folder = shared("data", "traces", "moe16", "pp4_tp1_ep4_expn16_dp4_nl8_hs4096_sl1024", "real")
    run = simulate(folder, explain=False)
    ops = len(run.timeline.start_s) // 16
    for again in assert_survives(run, tmp_path, ops):
        assert by_axis(again) == pytest.approx(by_axis(run), abs=2e-9 * ops)
        assert all_to_all_bytes(again) == all_to_all_bytes(run)
        assert optimizer_s(again) == pytest.approx(optimizer_s(run), abs=2e-9 * ops)
    lines = [[op.op for run in read_runs([path]) for op in run.ranks[13].ops] for path in (folder, tmp_path)]
    assert lines[0] == lines[1]


def test_a_workload_survives_being_written_down(tmp_path: Path) -> None:
    run = simulate(ROOT / "examples" / "moe_128gpu.txt", Machine("h100-dgx"), explain=False)
    ops = len(run.timeline.start_s) // 4
    for again in assert_survives(run, tmp_path, ops):
        assert by_axis(again) == pytest.approx(by_axis(run), abs=2e-9 * ops)
        assert all_to_all_bytes(again) == all_to_all_bytes(run)
        assert optimizer_s(again) == pytest.approx(optimizer_s(run), abs=2e-9 * ops)


def test_buckets_beside_the_backward_do_not_take_its_time() -> None:
    build = ProgramBuilder(Mesh(dp=2), repeats=False)
    dp = build.communicator("dp")
    block = build.block("backward")
    first = block.compute("a", 1e-3, phase="backward")
    block.collective("all_reduce", dp, 1e-3, bytes=8, after=first, phase="backward", name="hidden")
    second = block.compute("b", 3e-3, phase="backward")
    block.collective("all_reduce", dp, 2e-3, bytes=8, after=second, phase="backward", name="seen")
    build.role("all", range(2)).place(block, microbatch=0)
    (trace,) = timeline_traces(simulate(build.program(), explain=False).timeline, [0])
    assert [(op.op, op.description, op.duration_ms) for op in trace.ops] == [
        ("backward_step", None, 4.0),
        ("dp_allreduce", "hidden: all_reduce", 0.0),
        ("dp_allreduce", "seen: all_reduce", 2.0),
    ]
    assert any("no two lines overlap" in one.message for one in trace.diagnostics)


@pytest.mark.parametrize(("dtype", "experts", "shape"), [("int64", 16, (16,)), (None, None, (1, 128))])
def test_experts_are_named_where_ranks_count_tokens(
    dtype: str | None, experts: int | None, shape: tuple[int, ...]
) -> None:
    build = ProgramBuilder(Mesh(dp=4, ep=4), repeats=False)
    block = build.block("forward")
    block.compute("router", 1e-3, phase="forward")
    ep = build.communicator("ep")
    block.collective("all_gather", ep, 1e-3, bytes=512, lane="compute", phase="forward", dtype=dtype)
    build.role("all", range(4)).place(block, microbatch=0)
    timeline = simulate(build.program(), explain=False).timeline
    assert timeline_facts(timeline).experts == experts
    (trace,) = timeline_traces(timeline, [0])
    assert trace.ops[0].subs[0].shape == shape
