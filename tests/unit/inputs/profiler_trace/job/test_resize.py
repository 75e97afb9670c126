"""From a trace to a job on another mesh: axes of groups, bytes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.inputs.profiler_trace.format import read_traces
from foretrace.inputs.profiler_trace.format.records import ON_DEVICE
from foretrace.inputs.profiler_trace.job.axes import axes_of
from foretrace.inputs.profiler_trace.job.communication import ProcessGroup
from foretrace.inputs.profiler_trace.job.ranks import Meetings
from foretrace.inputs.profiler_trace.job.resize import communicate
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions
from foretrace.inputs.profiler_trace.rank.links import EventLinks
from foretrace.program.columns import Collective
from opened import program_of
from rank_traces import COMM, Work, all_reduce, step, write_ranks

RANKS = tuple(range(8))


def _call(name: str, inner: int, outer: int, **said: Any) -> Work:
    """A communication of fp32 over all ranks, with these elements in and out."""
    one = all_reduce(name, 1000.0, RANKS, after=("gemm_a",))
    arguments = {
        **one.arguments, "Collective name": name, "In msg nelems": inner, "Out msg nelems": outer, "dtype": "Float",
    }  # fmt: skip
    return replace(one, arguments=arguments | said)


def _resized(folder: Path, work: list[Work], options: ProfilerTraceOptions) -> Meetings:
    paths, _ = write_ranks(folder, [Work("gemm_a", [1000.0]), *work], RANKS, only=[3])
    traces = read_traces(paths)
    links = [EventLinks(trace) for trace in traces]
    return communicate(traces, links, [trace.events.of(*ON_DEVICE) for trace in traces], options)


@pytest.mark.parametrize(
    ("name", "inner", "outer", "bytes_"),
    [
        ("allreduce", 1024, 1024, 4096),
        ("_reduce_scatter_base", 8192, 1024, 32768),  # the whole stays, shards shrink
        ("_allgather_base", 1024, 8192, 32768),
        ("all_gather", 1024, -1, 32768),  # only the shard was recorded
        ("all_to_allv", 1024, 999, 4096),  # what a rank gives away stays
        ("broadcast", 1024, 1024, 4096),
    ],
)
def test_bytes_on_more_ranks(tmp_path: Path, name: str, inner: int, outer: int, bytes_: int) -> None:
    met = _resized(tmp_path, [_call(name, inner, outer)], ProfilerTraceOptions(mesh="dp=64"))
    [first, *_] = met.calls[0].values()
    assert first.bytes == bytes_ and np.isnan(first.duration_s)
    assert met.mesh.dp == 64 and met.ranks == (tuple(range(64)),)


def test_tokens_gathered_over_experts_grow_with_them(tmp_path: Path) -> None:
    work = _call("_allgather_base", 1024, 8192, **{"Process Group Description": "EXPERT_MODEL_PARALLEL_GROUP"})
    met = _resized(tmp_path, [work], ProfilerTraceOptions(mesh="dp=16,ep=16"))
    assert next(iter(met.calls[0].values())).bytes == 65536
    assert any("2 times the experts" in note.message for note in met.notes)


def test_a_cluster_prices_the_recorded_mesh(tmp_path: Path) -> None:
    met = _resized(tmp_path, [_call("allreduce", 1024, 1024)], ProfilerTraceOptions(priced=True))
    assert met.mesh == Mesh(dp=8) and np.isnan(next(iter(met.calls[0].values())).duration_s)


def test_without_a_cluster_the_recorded_time_stays(tmp_path: Path) -> None:
    met = _resized(tmp_path, [_call("allreduce", 1024, 1024)], ProfilerTraceOptions())
    assert met.mesh.world == 1 and next(iter(met.calls[0].values())).duration_s == pytest.approx(1e-3, rel=1e-3)


def test_what_has_no_partners_left_takes_no_time(tmp_path: Path) -> None:
    met = _resized(tmp_path, [_call("allreduce", 1024, 1024)], ProfilerTraceOptions(mesh="dp=1"))
    assert next(iter(met.calls[0].values())).duration_s == 0.0


@pytest.mark.parametrize(("mesh", "why"), [("tp=2", "product"), ("pp=2", "layers"), ("cp=2", "attention")])
def test_axes_that_change_computation_are_refused(tmp_path: Path, mesh: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        _resized(tmp_path, [_call("allreduce", 1024, 1024)], ProfilerTraceOptions(mesh=mesh))


def test_experts_need_a_dispatch(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _resized(tmp_path, [_call("allreduce", 1024, 1024)], ProfilerTraceOptions(mesh="dp=64,ep=8"))
    assert caught.value.code == "cannot-change"


def test_gpus_lengthen_dp(tmp_path: Path) -> None:
    assert _resized(tmp_path, [_call("allreduce", 1, 1)], ProfilerTraceOptions(gpus=32)).mesh == Mesh(dp=32)


def _part(description: str = "undefined") -> Work:
    """An all-reduce of two of eight ranks."""
    pair = all_reduce("pair", 100.0, (2, 3), group="5")
    return replace(pair, arguments={**pair.arguments, "Process Group Description": description})


def test_a_group_that_nothing_tells_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _resized(tmp_path, [_part()], ProfilerTraceOptions(mesh="dp=8"))
    assert caught.value.code == "unknown-mesh"
    assert "--set group.5=tp" in (caught.value.hint or "")
    met = _resized(tmp_path, [_part()], ProfilerTraceOptions(mesh="dp=8", sizes=(("group.5", "tp"),)))
    assert met.mesh == Mesh(tp=2, dp=8)
    met = _resized(tmp_path, [_part("mesh_tp")], ProfilerTraceOptions(mesh="dp=8"))
    assert met.mesh == Mesh(tp=2, dp=8)


def test_a_cluster_without_known_axes_leaves_times_as_recorded(tmp_path: Path) -> None:
    met = _resized(tmp_path, [_part()], ProfilerTraceOptions(priced=True))
    assert met.mesh.world == 1 and met.notes[0].code == "as-recorded"


@pytest.mark.parametrize(
    ("description", "axes"),
    [
        ("mesh_tp", ("tp",)),
        ("mesh_dp_shard", ("shard",)),
        ("mesh_dp_replicate", ("replicate",)),
        ("DATA_PARALLEL_GROUP", ("dp",)),
        ("DATA_PARALLEL_GROUP_WITH_CP", ("dp", "cp")),
        ("TENSOR_MODEL_PARALLEL_GROUP", ("tp",)),
        ("PIPELINE_MODEL_PARALLEL_GROUP", ("pp",)),
        ("CONTEXT_PARALLEL_GROUP", ("cp",)),
        ("EXPERT_MODEL_PARALLEL_GROUP", ("ep",)),
        ("EXPERT_DATA_PARALLEL_GROUP", ("edp",)),
        ("EXPERT_TENSOR_PARALLEL_GROUP", ("etp",)),
        ("EMBEDDING_GROUP", ("embd",)),
        ("default_pg", ("dp",)),
        ("tp", ("tp",)),
        ("undefined", None),
    ],
)
def test_axes_by_description(description: str, axes: tuple[str, ...] | None) -> None:
    assert axes_of(ProcessGroup("3", (), description, 2), Collective.ALL_REDUCE, 8) == axes


def test_an_axis_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _resized(tmp_path, [_part()], ProfilerTraceOptions(mesh="dp=8", sizes=(("group.5", "xp"),)))
    assert caught.value.code == "unknown-name"


def test_sizes_that_were_not_recorded_must_be_said(tmp_path: Path) -> None:
    bare = Work("ncclKernel_AllReduce_RING_LL_Sum_float", [500.0], COMM)
    paths, _ = write_ranks(tmp_path, [Work("gemm_a", [1000.0]), bare], RANKS, only=[3])
    with pytest.raises(InputError) as caught:
        program_of(paths, mesh="dp=16")
    assert caught.value.code == "not-recorded"
    assert "--set all_reduce.bytes=16MiB" in (caught.value.hint or "")
    program = program_of(paths, mesh="dp=16", sizes=(("all_reduce.bytes", "1MiB"),))
    assert program.world == 16 and (1 << 20) in program.templates.columns["bytes"].tolist()
    recorded = program_of(paths, priced=True)
    assert any("take as long as recorded" in note.message for note in recorded.diagnostics)


def test_traced_ranks_stand_for_those_at_their_place(tmp_path: Path) -> None:
    ranks = range(4)
    paths, _ = write_ranks(tmp_path, step(ranks, slow=2), ranks)
    program = program_of(paths, mesh="dp=8")
    assert program.world == 8 and len(program.roles) == 4
    assert program.role_of.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]  # the slow rank is slow twice
    smaller = program_of(paths, mesh="dp=2")
    assert smaller.world == 2 and len(smaller.roles) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "dp=8", "sizes": (("parms", "1e9"),)}, "did you mean params"),
        ({"sizes": (("params", "1e9"),)}, "communication is as recorded"),
        ({"mesh": "dp=16", "sizes": (("traced", "tp=9"),)}, "9 ranks, the trace says that there were 8"),
        ({"mesh": "dp=1000000000"}, "more than any cluster has"),
        ({"gpus": 100_000_000}, "more than any cluster has"),
    ],
)
def test_what_is_said_in_vain_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    paths, _ = write_ranks(tmp_path, step(RANKS), RANKS, only=[3])
    with pytest.raises(InputError, match=message):
        program_of(paths, **options)
