"""The laws of workloads made into programs: nothing is lost, nothing is done twice, and overlap only helps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.inputs.aicb.format import Pass, Workload, WorkloadRow, split_collective
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.option_values import Overlap
from foretrace.schedules import Schedule, make
from unit.inputs.aicb.workloads import Op, listed, lowered, row, run, workload

laws = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
few = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))

ONE_WAY = ("1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "looped-bfs", "zb-v", "interleaved-zb")
PASSES = ("forward", "input_grad", "weight_grad")
START_UP_S = 40e-6
"""More than the start-up of any collective over four GPUs of a node: NCCL's tables have 29 µs at most."""


@dataclass(frozen=True)
class Job:
    """A workload file as lines and header, and how it is run."""

    step: list[str]
    microbatches: list[tuple[list[str], list[list[str]], list[str]]]
    """Rows of the embedding, of each layer, of the head."""
    optimizer: list[str]
    header: dict[str, int]
    options: WorkloadOptions = field(default_factory=WorkloadOptions)

    @property
    def rows(self) -> list[str]:
        body = [line for ends, layers, head in self.microbatches for part in (ends, *layers, head) for line in part]
        return [*self.step, *body, *self.optimizer]

    @property
    def count(self) -> int:
        """How many microbatches run."""
        return self.options.microbatches or len(self.microbatches)

    @property
    def schedule(self) -> Schedule:
        vpp = self.options.vpp if isinstance(self.options.vpp, int) else 1
        name = self.options.schedule or "1f1b"
        return make(name, self.header["pp"], self.count, vpp if vpp > 1 else None)

    def read(self) -> Workload:
        return workload(self.rows, **self.header)


def chosen(job: Job, **changes: object) -> Job:
    """The job with other options."""
    return replace(job, options=replace(job.options, **changes))  # type: ignore[arg-type]


words = st.sampled_from(["NONE", "NONE", "ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL"])
suffixes = st.sampled_from(["", "", "_EP", "_DP_EP"])
sizes = st.one_of(st.just(0), st.integers(1_000, 10_000), st.integers(1 << 20, 1 << 28))
times = st.one_of(st.just(0), st.integers(1, 5_000_000))
parts = st.tuples(
    times, st.tuples(words, suffixes).map(lambda two: two[0] + (two[1] if two[0] != "NONE" else "")), sizes
)


@st.composite
def lines(draw: st.DrawFn, name: str) -> str:
    return row(name, draw(parts), draw(parts), draw(parts))


@st.composite
def jobs(draw: st.DrawFn, schedules: tuple[str, ...] = ONE_WAY) -> Job:
    tp, pp, dp = draw(st.sampled_from([(1, 1, 2), (2, 1, 1), (2, 1, 2), (1, 2, 2), (2, 2, 1), (2, 2, 2), (1, 4, 1)]))
    layers = draw(st.integers(2, 4))
    pattern = [draw(lines("attention_column")), *(draw(lines("mlp_row")) for _ in range(draw(st.integers(0, 1))))]
    embedding, head = [draw(lines("embedding_layer"))], [draw(lines("final_column"))]
    same = embedding, [pattern] * layers, head
    microbatches = [same] * draw(st.integers(1, 3))
    if draw(st.booleans()):
        short = draw(st.integers(1, layers))
        microbatches.append((embedding, [[draw(lines("attention_column"))] for _ in range(short)], head))
    step = [row("grad_param_compute", 0, draw(times), 0)]
    for name, word in (("grad_gather", "ALLGATHER"), ("grad_param_comm", "REDUCESCATTER")):
        if draw(st.booleans()):
            step.append(row(name, 0, 0, (draw(times), word, draw(sizes))))
    if draw(st.booleans()):
        step.append(row("embedding_grads", 1, (draw(times), "ALLREDUCE", draw(sizes)), 1))
    optimizer = [draw(lines(f"optimizer{number + 1}")) for number in range(draw(st.integers(0, 2)))]
    header = {"tp": tp, "pp": pp, "ep": draw(st.sampled_from(sorted({1, dp}))), "ga": len(microbatches)}
    header |= {"all_gpus": tp * pp * dp, "pp_comm": draw(st.integers(1, 1 << 26))}
    name = draw(st.sampled_from(schedules))
    most = min(len(one[1]) for one in microbatches)
    chunks = 2 if name in ("interleaved-1f1b", "looped-bfs", "interleaved-zb") and most > 1 else 1
    options = WorkloadOptions(
        gpus=draw(st.sampled_from([None, 2 * tp * pp * dp])) if tp * pp * dp < 8 else None,
        schedule=name,
        vpp=chunks if chunks > 1 else "auto",
        overlap=frozenset(draw(st.sets(st.sampled_from(list(Overlap))))),
        microbatches=draw(st.sampled_from([None, 4, 8])),
        ends=draw(st.sampled_from(["first-last", "every-stage"]))
        if name in ("1f1b", "gpipe", "zb-h1")
        else "first-last",
    )
    job = Job(step, microbatches, optimizer, header, options)
    try:
        needed = job.schedule.chunks
    except InputError:
        assume(False)
    assume(needed <= most and (chunks > 1 or name not in ("interleaved-1f1b", "interleaved-zb")))
    return job


def ops_by_stage(job: Job) -> list[list[Op]]:
    program = lowered(job.rows, job.options, **job.header)
    return [listed(program, stage) for stage in range(job.header["pp"])]


def where_ends_are(job: Job) -> tuple[set[int], set[int]]:
    """The stages that have the embedding, and those that have the head."""
    every = set(range(job.header["pp"]))
    if job.options.ends == "every-stage":
        return every, every
    stages = job.schedule.route(0)[0].tolist()
    return {stages[0]}, {stages[-1]}


def rows_of_stage(job: Job, stage: int) -> dict[tuple[str, int], list[WorkloadRow]]:
    """Per kind of row and microbatch, what the file says that a stage runs."""
    read = {}
    first, last = where_ends_are(job)
    parsed = iter(job.read().rows[len(job.step) :])
    for number, (ends, layers, head) in enumerate(job.microbatches):
        read["embedding_layer", number] = [next(parsed) for _ in ends]
        read["layers", number] = [next(parsed) for layer in layers for _ in layer]
        read["final_column", number] = [next(parsed) for _ in head]
    found = {}
    for number in range(job.count):
        for kind, here in (("embedding_layer", stage in first), ("layers", True), ("final_column", stage in last)):
            found[kind, number] = read[kind, number % len(job.microbatches)] if here else []
    return found


def kind_of(op: Op) -> str:
    name = op.name.split()[0]
    return name if name in ("embedding_layer", "final_column") else "layers"


@laws
@given(jobs())
def test_every_row_runs_once_in_each_pass(job: Job) -> None:
    """Nanoseconds of computation per stage, microbatch, kind of row and direction; and those of the step's end."""
    for stage, ops in enumerate(ops_by_stage(job)):
        done: Counter[tuple[str, int, bool]] = Counter()
        once = 0
        for op in ops:
            if op.microbatch >= 0:
                done[kind_of(op), op.microbatch, op.phase == "forward"] += round(op.seconds * 1e9)
            else:
                once += round(op.seconds * 1e9)
        expected: Counter[tuple[str, int, bool]] = Counter()
        for (kind, number), rows in rows_of_stage(job, stage).items():
            for one in rows:
                expected[kind, number, True] += one.forward.compute_ns
                expected[kind, number, False] += one.input_grad.compute_ns + one.weight_grad.compute_ns
        assert +done == +expected
        everywhere = stage == 0 or job.options.ends == "every-stage"
        rows = [*job.read().rows[: len(job.step)], *job.read().rows[-len(job.optimizer) :][: len(job.optimizer)]]
        assert once == sum(
            getattr(one, which).compute_ns
            for one in rows
            for which in PASSES
            if everywhere or one.name != "embedding_grads"
        )


def call_of(part: Pass, which: str, size_of: dict[str, int]) -> tuple[str, int] | None:
    """The axis and bytes of a collective, None where nothing is sent."""
    name, suffix = split_collective(part.collective)
    axis = {"_EP": "ep", "_DP_EP": "edp", "": "dp" if which == "weight_grad" else "tp"}[suffix]
    return None if name == "NONE" or not part.size_bytes or size_of[axis] == 1 else (axis, int(part.size_bytes))


@laws
@given(jobs())
def test_every_byte_is_sent_once(job: Job) -> None:
    """Per stage and axis, overlapped in parts or not; and what crosses stage boundaries."""
    world = job.options.gpus or job.header["all_gpus"]
    dp = world // job.header["tp"] // job.header["pp"]
    size_of = {"tp": job.header["tp"], "dp": dp, "ep": job.header["ep"], "edp": dp // job.header["ep"]}
    sends = 0
    for stage, ops in enumerate(ops_by_stage(job)):
        sent: Counter[str] = Counter()
        for op in ops:
            if op.axis not in (None, "pp"):
                sent[str(op.axis)] += op.bytes
            elif op.axis and op.name.startswith("send"):
                assert op.bytes == job.header["pp_comm"]
                sends += 1
        everywhere = stage == 0 or job.options.ends == "every-stage"
        parsed = job.read().rows
        rows = [one for found in rows_of_stage(job, stage).values() for one in found]
        rows += [one for one in parsed[: len(job.step)] if everywhere or one.name != "embedding_grads"]
        rows += parsed[len(parsed) - len(job.optimizer) :]
        expected: Counter[str] = Counter()
        for one in rows:
            for which in PASSES:
                call = call_of(getattr(one, which), which, size_of)
                if call:
                    expected[call[0]] += call[1]
        assert sent == expected
    crossings = np.count_nonzero(np.diff(job.schedule.route(0)[0]))
    assert sends == 2 * crossings * job.count


@few
@given(jobs((*ONE_WAY, "dualpipe", "dualpipe-v")))
def test_folded_step_times_equal_unfolded_ones_to_the_bit(job: Job) -> None:
    folded = run(job.rows, job.options, **job.header)
    unfolded = run(job.rows, job.options, **job.header, folded=False)
    assert folded.step_time_s == unfolded.step_time_s
    assert folded.breakdown.mean_s.keys() == unfolded.breakdown.mean_s.keys()


@laws
@given(jobs())
def test_no_step_is_shorter_than_the_computation_of_a_stage(job: Job) -> None:
    answer = run(job.rows, job.options, **job.header)
    busiest = max(sum(op.seconds for op in ops) for ops in ops_by_stage(job))
    assert answer.step_time_s >= busiest * (1 - 1e-9)


@few
@given(jobs())
def test_transfers_and_collectives_beside_computation_never_hurt(job: Job) -> None:
    """Overlap of tp and pp leaves every op as it is: the step is no longer."""
    kept = job.options.overlap - {Overlap.TP, Overlap.PP}
    without = run(job.rows, chosen(job, overlap=kept).options, **job.header).step_time_s
    for more in ({Overlap.TP}, {Overlap.PP}, {Overlap.TP, Overlap.PP}):
        beside = run(job.rows, chosen(job, overlap=kept | more).options, **job.header).step_time_s
        assert beside <= without * (1 + 1e-9)


@few
@given(jobs())
def test_gradients_and_parameters_beside_computation_cost_no_more_than_their_start_up(job: Job) -> None:
    """They go out layer by layer, and each part pays the start-up of a collective; but for that, the step is no
    longer."""
    kept = job.options.overlap - {Overlap.GRAD, Overlap.PARAM}
    without = run(job.rows, chosen(job, overlap=kept).options, **job.header)
    for more in ({Overlap.GRAD}, {Overlap.PARAM}, {Overlap.GRAD, Overlap.PARAM}):
        beside = run(job.rows, chosen(job, overlap=kept | more).options, **job.header)
        layers = max(len(one[1]) for one in job.microbatches)
        extra = len(job.step) * (layers - 1) * START_UP_S
        assert beside.step_time_s <= without.step_time_s * (1 + 1e-9) + extra


@few
@given(jobs(("1f1b", "gpipe", "zb-h1", "zb-v")), st.integers(1, 6))
def test_more_microbatches_never_shorten_the_step(job: Job, count: int) -> None:
    fewer = run(job.rows, chosen(job, microbatches=count).options, **job.header).step_time_s
    more = run(job.rows, chosen(job, microbatches=count + 1).options, **job.header).step_time_s
    assert more >= fewer * (1 - 1e-9)


@few
@given(jobs(), st.integers(2, 4))
def test_interleaved_groups_of_microbatches_never_shorten_the_step(job: Job, groups: int) -> None:
    stages = job.header["pp"]
    fewer = run(job.rows, chosen(job, microbatches=(groups - 1) * stages).options, **job.header).step_time_s
    more = run(job.rows, chosen(job, microbatches=groups * stages).options, **job.header).step_time_s
    assert more >= fewer * (1 - 1e-9)
