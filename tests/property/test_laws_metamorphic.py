"""Changes to an input that change nothing of its meaning change nothing of its answer, or what they must.

Files in another order or under other names, other spellings of the same JSON, other names of kernels, streams and
blocks, other clocks and other units of time: all of it through the functions that users call.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretrace
from foretrace.inputs.megatron_trace.format import Facts
from foretrace.program.check import check
from foretrace.program.file import save
from foretrace.program.program import Program
from property.programs import Job, jobs
from rank_traces import Work, all_reduce, write_ranks
from unit.inputs.aicb.workloads import CLUSTER, US, row, text
from unit.inputs.megatron_trace.rank_files import Rank, write

EXAMPLES = 200 if os.environ.get("FORETRACE_FUZZ") else 3

microseconds = st.integers(300, 5000).map(float)
seeds = st.randoms(use_true_random=False)


def step_of(*paths: Path | str) -> float:
    """Returns the step of files or of a folder, as `foretrace simulate` has it."""
    job = foretrace.open(list(paths))
    assert not isinstance(job, foretrace.Answer)
    return foretrace.simulate(job, explain=False).step_time_s


def recorded_step_of(*paths: Path | str) -> float:
    """Returns the step as it was measured."""
    job = foretrace.open(list(paths))
    assert not isinstance(job, foretrace.Answer)
    recorded = job.recorded()
    assert recorded is not None
    return recorded.step_time_s


def same(step_s: float, *, times: float = 1.0) -> Any:
    return pytest.approx(step_s * times, rel=1e-6)


@st.composite
def recorded_work(draw: st.DrawFn) -> tuple[list[Work], range]:
    """Draws a step of two to four ranks that meet twice, on two streams."""
    before = draw(st.lists(microseconds, min_size=2, max_size=4))
    ranks = range(len(before))
    return [
        Work("gemm_a", before),
        all_reduce("first", draw(microseconds), ranks, after=("gemm_a",)),
        Work("gemm_b", [draw(microseconds)]),
        all_reduce("second", draw(microseconds), ranks, after=("gemm_b",)),
        Work("adam", [draw(microseconds)], after=("ncclDevKernel_AllReduce second",)),
    ], ranks


def rewritten(path: Path, folder: Path, name: str, change: Callable[[Any], Any], style: int) -> Path:
    """Writes a JSON file again, changed, in another style: indented with CRLF, keys in another order, or packed."""
    value = change(json.loads(path.read_text()))
    content = json.dumps(value, indent=1 if style % 2 else None, sort_keys=style % 3 == 0)
    data = content.replace("\n", "\r\n").encode()
    target = folder / (f"{name}.gz" if style > 3 else name)
    target.write_bytes(gzip.compress(data) if style > 3 else data)
    return target


def unchanged(value: Any) -> Any:
    return value


def moved(value: Any, by_us: float = 0.0, times: float = 1.0) -> Any:
    """Returns a Kineto trace whose clock shows another time, or runs at another pace."""
    for event in value["traceEvents"]:
        if "ts" in event:
            event["ts"] = event["ts"] * times + by_us
        if "dur" in event:
            event["dur"] *= times
    return value


def renamed(value: Any) -> Any:
    """Returns a Kineto trace whose kernels and streams have other names and numbers."""
    for event in value["traceEvents"]:
        name = event.get("name", "")
        if name in ("gemm_a", "gemm_b"):
            event["name"] = f"other_{name}_kernel"
        arguments = event.get("args", {})
        if "stream" in arguments:
            arguments["stream"] += 100
        if event.get("cat") in ("kernel", "gpu_memcpy") and isinstance(event.get("tid"), int):
            event["tid"] += 100
    return value


@settings(max_examples=EXAMPLES, deadline=None)
@given(recorded_work(), seeds)
def test_profiler_traces_in_other_files_are_the_same_step(given_work: tuple[list[Work], range], rng: Any) -> None:
    work, ranks = given_work
    with tempfile.TemporaryDirectory() as folder:
        paths, _ = write_ranks(Path(folder), work, ranks)
        step_s = step_of(*paths)
        shuffled = rng.sample(paths, len(paths))
        assert step_of(*shuffled) == step_s
        assert step_of(folder) == step_s
        other = Path(folder, "other")
        other.mkdir()
        names = rng.sample(["a.json", "z.json", "m.json", "0.json"], len(paths))
        again = [
            rewritten(path, other, name, unchanged, rng.randrange(6)) for path, name in zip(paths, names, strict=True)
        ]
        assert step_of(*again) == step_s
        assert step_of(other) == step_s


@settings(max_examples=EXAMPLES, deadline=None)
@given(recorded_work(), st.integers(-(10**6), 10**9), st.sampled_from((0.5, 2.0, 4.0)))
def test_clocks_and_names_of_profiler_traces_do_not_matter(
    given_work: tuple[list[Work], range], by_us: int, times: float
) -> None:
    work, ranks = given_work
    changes: dict[str, tuple[Callable[[Any], Any], float]] = {
        "moved": (lambda value: moved(value, by_us=by_us), 1.0),
        "slower": (lambda value: moved(value, times=times), times),
        "renamed": (renamed, 1.0),
    }
    with tempfile.TemporaryDirectory() as folder:
        paths, _ = write_ranks(Path(folder), work, ranks)
        step_s, recorded_s = step_of(*paths), recorded_step_of(*paths)
        for name, (change, factor) in changes.items():
            target = Path(folder, name)
            target.mkdir()
            again = [rewritten(path, target, path.name, change, 0) for path in paths]
            assert recorded_step_of(*again) == pytest.approx(recorded_s * factor, rel=1e-6), name
            # A replay adds what a device needs between two kernels, a few microseconds whatever the pace.
            assert step_of(*again) == pytest.approx(step_s * factor, rel=1e-6 if factor == 1 else 0.02), name


def pipeline_ranks(work_ms: Sequence[float], times: float, origin_ms: float) -> list[Rank]:
    """Returns two stages with one microbatch, all their times times a factor."""
    forward, backward, transfer = (each * times for each in work_ms)
    gap = 0.5 * times
    first, last = Rank(0, 0), Rank(1, 1)
    start = first.now_ms
    sent = forward + gap + transfer
    first.op("forward_step", forward).gap(gap).transfer("send_forward", until_ms=sent)
    last.transfer("recv_forward", until_ms=sent).gap(gap).op("forward_step", forward).gap(gap)
    last.op("backward_step", backward).gap(gap)
    back = last.now_ms - start + transfer
    last.transfer("send_backward", until_ms=back)
    first.gap(gap).transfer("recv_backward", until_ms=back).gap(gap).op("backward_step", backward)
    for rank in (first, last):
        rank.ops = [replace(op, timestamp_ms=op.timestamp_ms + origin_ms) for op in rank.ops]
    return [first, last]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.tuples(*[st.integers(1, 50).map(float)] * 3), st.sampled_from((0.5, 2.0, 3.0)), st.integers(0, 10**6))
def test_megatron_traces_scale_with_time_and_do_not_depend_on_clocks(
    work_ms: tuple[float, ...], times: float, origin_ms: int
) -> None:
    facts = Facts(world=2, tp=1, pp=2, layers=2, micro_batch=1)
    with tempfile.TemporaryDirectory() as folder:
        step_s = step_of(write(Path(folder, "as it is"), pipeline_ranks(work_ms, 1.0, 0.0), facts))
        assert step_of(write(Path(folder, "slower"), pipeline_ranks(work_ms, times, 0.0), facts)) == same(
            step_s, times=times
        )
        later = write(Path(folder, "later"), pipeline_ranks(work_ms, 1.0, float(origin_ms)), facts)
        assert step_of(later) == same(step_s)
        for path in sorted(later.iterdir()):
            data = path.read_bytes()
            path.unlink()  # so that the folder lists it last
            path.write_bytes(data.replace(b"\n", b"\r\n"))
        assert step_of(later) == same(step_s)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.integers(10, 500), min_size=3, max_size=3), st.integers(1, 4))
def test_a_workload_is_the_same_however_it_is_written_and_saved(times_us: list[int], microbatches: int) -> None:
    one, two, three = (each * US for each in times_us)
    rows = [
        row("embedding_layer", one, 0, two),
        row("attention_layer", (two, "ALLREDUCE", 1 << 20), (three, "ALLREDUCE", 1 << 20), one),
        row("final_column", three, one, two),
    ] * microbatches
    plain = text(rows, tp=2, ep=1, pp=1, ga=microbatches, all_gpus=2)
    machine = foretrace.Machine(CLUSTER, prices="model")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.txt")
        path.write_text(plain)
        job = foretrace.open(path)
        assert not isinstance(job, foretrace.Answer)
        answer = foretrace.simulate(job, machine, explain=False)
        other = Path(folder, "another name")
        other.write_bytes(plain.replace("\n", "\r\n").encode())
        assert foretrace.simulate(foretrace.open(other), machine, explain=False).step_time_s == answer.step_time_s
        saved, kept = Path(folder, "job.foretrace"), Path(folder, "job.answer")
        save(job.program(), saved)
        again = foretrace.simulate(foretrace.open(saved), machine, explain=False)
        assert again.step_time_s == answer.step_time_s
        assert again.breakdown.mean_s == answer.breakdown.mean_s
        answer.save(kept)
        opened = foretrace.open(kept)
        assert isinstance(opened, foretrace.Answer)
        assert opened.to_dict() == answer.to_dict()


def with_columns(program: Program, **changes: Callable[[Any], Any]) -> Program:
    """Returns a program with some columns of its ops changed, in templates and overrides."""
    columns = {name: changes.get(name, unchanged)(values) for name, values in program.templates.columns.items()}
    instances = program.instances
    values = [
        float(changes.get(name, unchanged)(np.array(value)))
        for name, value in zip(instances.override_column, instances.override_value.tolist(), strict=True)
    ]
    return replace(
        program,
        templates=replace(program.templates, columns=columns),
        instances=replace(instances, override_value=np.array(values, dtype=np.float64)),
    )


@settings(max_examples=10 * EXAMPLES)
@given(jobs(slow=False), st.sampled_from((0.25, 2.0, 4.0)))
def test_a_program_scales_with_its_times(job: Job, times: float) -> None:
    slower = with_columns(job.program, duration_s=lambda values: values * times)
    step_s, other_s = (foretrace.simulate(program, explain=False).step_time_s for program in (job.program, slower))
    assert other_s == step_s * times  # to the bit: the factors are powers of two


@settings(max_examples=10 * EXAMPLES)
@given(jobs(slow=False))
def test_names_of_a_program_do_not_matter(job: Job) -> None:
    program = job.program
    other = replace(
        program,
        title="other",
        strings=tuple(f"op {number}" for number in range(len(program.strings))),
        roles=tuple(f"role {number}" for number in range(len(program.roles))),
        lanes=tuple(replace(lane, name=f"lane {number}") for number, lane in enumerate(program.lanes)),
        blocks=tuple(replace(block, name=f"block {number}") for number, block in enumerate(program.blocks)),
        communicators=tuple(
            replace(each, name=f"group {number}", axis=f"axis {number}")
            for number, each in enumerate(program.communicators)
        ),
    )
    check(other)
    assert (
        foretrace.simulate(other, explain=False).step_time_s == foretrace.simulate(program, explain=False).step_time_s
    )


def permuted(program: Program, order: Sequence[int]) -> Program:
    """Returns the program in which rank `order[r]` does what rank r did."""

    def moved_groups(rows_by_size: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(order[rank] for rank in group) for rows in rows_by_size for group in rows.tolist())

    role_of = program.role_of.copy()
    role_of[list(order)] = program.role_of
    resources = [
        resource
        if resource.instances is None
        else replace(resource, instances=tuple(tuple(order[rank] for rank in ranks) for ranks in resource.instances))
        for resource in program.resources
    ]
    return replace(
        program,
        role_of=role_of,
        communicators=tuple(
            replace(each, axes=(), pair=None, groups=moved_groups(each.members(program.mesh)))
            for each in program.communicators
        ),
        resources=tuple(resources),
    )


@settings(max_examples=10 * EXAMPLES)
@given(jobs(slow=False), seeds)
def test_numbers_of_ranks_do_not_matter(job: Job, rng: Any) -> None:
    program = job.program
    other = permuted(program, rng.sample(range(program.world), program.world))
    check(other)
    for executor in ("fixed", "shared"):
        step_s, other_s = (
            foretrace.simulate(each, explain=False, executor=executor).step_time_s for each in (program, other)
        )
        assert other_s == pytest.approx(step_s, rel=1e-9, abs=1e-15)
