"""The Perfetto trace, read back with Perfetto's own message classes."""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.cost.pricing import price
from foretrace.engine.fixed_run import FixedRun
from foretrace.export.perfetto import NamedTimeline, write_perfetto, write_timelines
from foretrace.export.protobuf import padded_varints, rows, varint, varint_width
from foretrace.program.build import ProgramBuilder
from foretrace.program.expand import expand
from foretrace.program.fold import fold, unfold
from foretrace.program.program import Program, Source
from foretrace.program.timeline import Timeline

Event = proto.TrackEvent


@dataclass
class Slice:
    """A slice or, if it has no length, an instant."""

    name: str
    category: str
    begin: int
    end: int
    facts: dict[str, Any]
    flows: tuple[int, ...]


@dataclass
class Read:
    """A trace as a person sees it: slices and counters by (process, track)."""

    trace: Any
    slices: dict[tuple[str, str], list[Slice]] = field(default_factory=lambda: defaultdict(list))
    counters: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    tracks: dict[int, Any] = field(default_factory=dict)

    def ops(self, rank: int) -> dict[str, list[Slice]]:
        """The slices of a rank by lane, waits left out."""
        mine = {lane: s for (process, lane), s in self.slices.items() if process.split()[:2] == ["rank", str(rank)]}
        return {lane: [s for s in line if s.category != "wait"] for lane, line in mine.items()}


def read(path: Path) -> Read:
    """Parses a trace; slices must be balanced, and times in order along every track."""
    data = path.read_bytes()
    trace = proto.Trace()
    trace.ParseFromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    result, last, open_slices = Read(trace), defaultdict(int), {}
    words = {}
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("interned_data"):
            assert packet.sequence_flags == proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED and not words
            words = interned(packet.interned_data)
        elif packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in result.tracks
            result.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        else:
            assert packet.sequence_flags == proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            event, place = packet.track_event, place_of(result.tracks, packet.track_event.track_uuid)
            assert packet.timestamp >= last[event.track_uuid]
            last[event.track_uuid] = packet.timestamp
            take(result, place, packet.timestamp, event, words, open_slices)
    assert not open_slices
    return result


def take(
    result: Read, place: tuple[str, str], time: int, event: Any, words: dict[str, Any], open_slices: dict[int, Slice]
) -> None:
    """Adds one event to what was read."""
    if event.type == Event.TYPE_COUNTER:
        result.counters[place].append((time, event.counter_value))
    elif event.type == Event.TYPE_SLICE_END:
        open_slices.pop(event.track_uuid).end = time
    else:
        facts = {
            words["facts"][a.name_iid]: words["values"].get(a.string_value_iid, a.int_value)
            for a in event.debug_annotations
        }
        category = words["categories"][event.category_iids[0]]
        one = Slice(words["names"][event.name_iid], category, time, time, facts, tuple(event.flow_ids))
        assert event.track_uuid not in open_slices, "slices overlap"
        result.slices[place].append(one)
        if event.type == Event.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid] = one


def interned(data: Any) -> dict[str, dict[int, str]]:
    return {
        "categories": {entry.iid: entry.name for entry in data.event_categories},
        "names": {entry.iid: entry.name for entry in data.event_names},
        "facts": {entry.iid: entry.name for entry in data.debug_annotation_names},
        "values": {entry.iid: entry.str.decode() for entry in data.debug_annotation_string_values},
    }


def place_of(tracks: dict[int, Any], uuid: int) -> tuple[str, str]:
    """(process, name) of a track."""
    track, process = tracks[uuid], tracks[uuid]
    while process.parent_uuid:
        process = tracks[process.parent_uuid]
    return process.process.process_name, track.thread.thread_name or track.name


def pipeline(tp: int = 1, dp: int = 1, pp: int = 2, microbatches: int = 2) -> Program:
    """A forward pass: each stage computes, reduces over tp, sends on; at the end gradients are reduced over dp."""
    build = ProgramBuilder(Mesh(tp=tp, dp=dp, pp=pp), title="a job", repeats=False)
    tp_group, dp_group = build.communicator("tp"), build.communicator("dp")
    layer = build.block("layer")
    load = layer.host("load", 1e-5)
    computed = layer.compute("matmul", 2e-3, phase="forward", layer=4, source=Source("a table"), after=load)
    reduced = layer.collective("all_reduce", tp_group, 1e-3, bytes=4096, after=computed, phase="forward")
    layer.compute("marker", 0.0, after=reduced)
    layer.port("check", layer.compute("check", 1e-3))
    layer.port("out", reduced)
    for stage in range(pp):
        role = build.role(f"part {stage}", build.mesh.where(pp=stage).tolist())
        for microbatch in range(microbatches):
            came: Any = ()
            if stage:
                came = role.transfer("recv", build.pair("pp", stage - 1, stage), 5e-4, microbatch=microbatch, bytes=64)
            off = {"check": {"enabled": 0}} if microbatch else None
            out = role.place(layer, microbatch=microbatch, after=came, override=off)["out"]
            if stage < pp - 1:
                pair = build.pair("pp", stage, stage + 1)
                role.transfer("send", pair, 5e-4, to=1, after=out, microbatch=microbatch, bytes=64)
        role.collective("all_reduce", dp_group, 1e-3, name="gradients", after=out, bytes=1 << 40)
    return build.program()


def run(program: Program, *, folded: bool = True, slow: int | None = None) -> Timeline:
    ops = expand(program)
    prices = price(ops) if slow is None else price(ops).slowed([slow], 3.0)
    graph = fold(ops, prices.profile_of) if folded else unfold(ops)
    return FixedRun(graph).timeline(prices.durations(graph))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "step.pftrace"


def test_every_op_that_happens_is_one_slice_at_its_time(path: Path) -> None:
    program = pipeline()
    timeline = run(program, folded=False)
    summary = write_perfetto(timeline, path)
    trace = read(path)
    ops, graph = expand(program), timeline.graph
    shown = [s for rank in range(2) for line in trace.ops(rank).values() for s in line]
    happen = ops.column("enabled")[graph.op] == 1
    expected = sorted(
        (ops.names[op], round(start * 1e9), round(end * 1e9))
        for op, start, end in zip(graph.op[happen], timeline.start_s[happen], timeline.end_s[happen], strict=True)
    )
    assert sorted((s.name, s.begin, s.end) for s in shown) == expected
    assert (summary.slices, summary.size_bytes) == (len(expected), path.stat().st_size)
    assert summary.ranks == (0, 1)


def test_disabled_ops_are_left_out_and_empty_ones_are_instants(path: Path) -> None:
    write_perfetto(run(pipeline()), path)
    names = [s.name for s in read(path).ops(0)["compute"]]
    assert names == ["matmul", "marker", "check", "matmul", "marker"]
    markers = [s for s in read(path).ops(0)["compute"] if s.name == "marker"]
    assert all(s.begin == s.end for s in markers)


def test_ranks_are_processes_and_lanes_their_threads_in_order(path: Path) -> None:
    write_perfetto(run(pipeline()), path)
    tracks = read(path).tracks.values()
    root = next(track for track in tracks if track.uuid == 0)
    assert root.process_ordering == proto.TrackDescriptor.PROCESS_ORDERING_EXPLICIT
    processes = [track for track in tracks if track.HasField("process")]
    assert [p.process.process_name for p in processes] == ["rank 0 · stage 0 (part 0)", "rank 1 · stage 1 (part 1)"]
    assert [p.sibling_order_rank for p in processes] == [0, 1]
    threads = [t for t in tracks if t.parent_uuid == processes[0].uuid]
    threads.sort(key=lambda track: track.sibling_order_rank)
    assert [t.thread.thread_name for t in threads] == ["compute", "tp", "pp 0-1", "dp", "host"]
    numbers = [t.thread.tid for t in threads]
    assert numbers == sorted(numbers)
    assert numbers[0] == processes[0].process.pid > 0
    everyone = [t.thread.tid for t in tracks if t.HasField("thread")]
    assert len(set(everyone)) == len(everyone)


def test_waiting_for_partners_is_a_slice_before_the_transfer(path: Path) -> None:
    summary = write_perfetto(run(pipeline()), path)
    first, second = (s for s in read(path).slices["rank 1 · stage 1 (part 1)", "pp 0-1"][:2])
    assert (first.name, first.category, first.begin) == ("wait: recv", "wait", 0)
    assert (second.name, second.category, second.begin) == ("recv", "transfer", first.end)
    assert first.end == 3_010_000
    assert summary.waits == sum(s.category == "wait" for line in read(path).slices.values() for s in line)


def test_slices_say_what_is_known_of_their_ops(path: Path) -> None:
    write_perfetto(run(pipeline()), path)
    lanes = read(path).ops(1)
    assert lanes["compute"][0].facts == {
        "phase": "forward",
        "layer": 4,
        "duration source": "a table",
        "microbatch": 0,
    }
    assert lanes["pp 0-1"][1].facts == {
        "bytes": 64,
        "collective": "transfer",
        "communicator": "pp 0-1",
        "axis": "pp",
        "duration source": "as written in the program",
        "microbatch": 1,
    }
    assert lanes["dp"][0].facts["bytes"] == 1 << 40
    assert lanes["dp"][0].category == "collective"


def members(trace: Read) -> dict[int, list[tuple[str, str]]]:
    """(process, name of slice) of the slices that each flow joins."""
    joined: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for (process, _), line in trace.slices.items():
        for one in line:
            for flow in one.flows:
                joined[flow].append((process.split(" ·")[0], one.name))
    return joined


@pytest.mark.parametrize("folded", [True, False])
def test_flows_join_the_members_of_a_rendezvous_and_no_others(path: Path, folded: bool) -> None:
    program = pipeline(tp=2, dp=2, pp=2, microbatches=1)
    summary = write_perfetto(run(program, folded=folded), path)
    trace = read(path)
    joined = members(trace)
    expected = [
        *([(f"rank {rank}", "all_reduce") for rank in group] for group in program.mesh.groups("tp")),
        *([(f"rank {rank}", "gradients") for rank in group] for group in program.mesh.groups("dp")),
        *([(f"rank {a}", "send"), (f"rank {b}", "recv")] for a, b in program.mesh.pairs("pp", 0, 1)),
    ]
    assert sorted(joined.values()) == sorted(expected)
    assert summary.flows == len(joined)
    begins = defaultdict(set)
    for line in trace.slices.values():
        for one in line:
            for flow in one.flows:
                begins[flow].add(one.begin)
    assert all(len(times) == 1 for times in begins.values())


def test_flows_join_only_ranks_that_are_shown(path: Path) -> None:
    program = pipeline(tp=2, dp=2, pp=2)
    write_perfetto(run(program), path, ranks=[0, 1, 6])
    assert {tuple(name for name, _ in group) for group in members(read(path)).values()} == {("rank 0", "rank 1")}


def test_a_folded_job_shows_the_same_as_the_unfolded_one(tmp_path: Path) -> None:
    program = pipeline(tp=2, dp=4, pp=2)
    shown = []
    for folded in (True, False):
        timeline = run(program, folded=folded, slow=5)
        assert (len(timeline.graph.classes) < 16) is folded
        write_perfetto(timeline, tmp_path / f"{folded}.pftrace")
        trace = read(tmp_path / f"{folded}.pftrace")
        shown.append((dict(trace.slices), list(trace.tracks)))
    assert shown[0] == shown[1]


def test_the_step_has_a_track_of_its_own(path: Path) -> None:
    build = ProgramBuilder(repeats=True)
    role = build.role("worker", [0])
    role.compute("work", 2e-3)
    role.host("log", 2e-3, after=role.compute("last", 1e-3))
    timeline = run(build.program())
    write_perfetto(timeline, path)
    (step,) = read(path).slices["", "step"]
    assert (step.begin, step.end, step.facts) == (0, 3_000_000, {"ranks shown": "1 of 1"})
    (log,) = read(path).slices["rank 0 (worker)", "host"]
    assert log.end == 5_000_000, "what runs on into the next step is shown where it runs"


def test_memory_is_shown_as_counters_of_the_rank(path: Path) -> None:
    times = np.array([0.0, 1e-3, 2e-3, 3e-3])
    held = {"weights": np.array([100, 100, 100, 100]), "activations": np.array([0, 1 << 36, 7, 0])}
    write_perfetto(run(pipeline()), path, memory={1: (times, held), 7: (times, held)})
    trace = read(path)
    rank = "rank 1 · stage 1 (part 1)"
    assert dict(trace.counters) == {
        (rank, "memory total"): [(0, 100), (1_000_000, 100 + (1 << 36)), (2_000_000, 107), (3_000_000, 100)],
        (rank, "memory weights"): [(0, 100)],
        (rank, "memory activations"): [(0, 0), (1_000_000, 1 << 36), (2_000_000, 7), (3_000_000, 0)],
    }
    counters = [track for track in trace.tracks.values() if track.HasField("counter")]
    assert {track.counter.unit for track in counters} == {proto.CounterDescriptor.UNIT_SIZE_BYTES}
    assert [track.sibling_order_rank for track in counters] == [0, 1, 2]


def test_a_large_job_is_sampled_by_class_then_by_pipeline(path: Path) -> None:
    program = pipeline(tp=4, dp=8, pp=4, microbatches=1)
    folded = write_perfetto(run(program, slow=77), path)
    assert len(folded.ranks) == 64
    assert {0, 32, 64, 96, 77} <= set(folded.ranks)
    ranks = write_perfetto(run(program, folded=False), path).ranks
    whole = [pipeline for pipeline in program.mesh.groups("pp").tolist() if set(pipeline) <= set(ranks)]
    assert len(whole) == 16
    assert folded.world == 128
    (step,) = read(path).slices["", "step"]
    assert step.facts == {"job": "a job", "ranks shown": "64 of 128"}


def test_ranks_may_be_named(path: Path) -> None:
    timeline = run(pipeline(tp=2))
    assert write_perfetto(timeline, path, ranks=[3, 1, 3]).ranks == (1, 3)
    assert {process.split(" ·")[0] for process, _ in read(path).slices} == {"", "rank 1", "rank 3"}
    with pytest.raises(InputError) as caught:
        write_perfetto(timeline, path, ranks=[4])
    assert caught.value.code == "no-such-rank"
    with pytest.raises(InputError) as caught:
        write_perfetto(timeline, path, ranks=[])
    assert caught.value.code == "nothing-to-do"


def test_the_same_timeline_gives_the_same_bytes(tmp_path: Path) -> None:
    for suffix in ("pftrace", "pftrace.gz"):
        one, other = tmp_path / f"one.{suffix}", tmp_path / f"other.{suffix}"
        write_perfetto(run(pipeline(tp=2)), one)
        write_perfetto(run(pipeline(tp=2)), other)
        assert one.read_bytes() == other.read_bytes()
    assert read(tmp_path / "one.pftrace.gz").slices == read(tmp_path / "one.pftrace").slices


def test_a_file_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    timeline = run(pipeline())
    (tmp_path / "file").write_text("kept")
    for bad in ("missing/step.pftrace", "file/step.pftrace", "."):
        with pytest.raises(InputError) as caught:
            write_perfetto(timeline, tmp_path / bad)
        assert caught.value.code == "unwritable-file"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_packets_encoded_in_parts_are_the_same_trace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_perfetto(run(pipeline()), path)
    whole = read(path).slices
    monkeypatch.setattr("foretrace.export.perfetto.EVENTS_AT_ONCE", 3)
    write_perfetto(run(pipeline()), path)
    assert read(path).slices == whole


def test_times_that_rounding_put_out_of_order_do_not_make_slices_overlap(path: Path) -> None:
    timeline = run(pipeline())
    late = replace(
        timeline,
        ready_s=timeline.ready_s + 3e-9,
        end_s=timeline.end_s + np.where(timeline.end_s > timeline.start_s, 2e-9, 0.0),
    )
    write_perfetto(late, path)
    read(path)


def test_varints_of_any_width_are_read_alike() -> None:
    assert [varint(value) for value in (0, 127, 128, 300)] == [b"\x00", b"\x7f", b"\x80\x01", b"\xac\x02"]
    assert [varint_width(most) for most in (0, 127, 128, (1 << 35) - 1, 1 << 35)] == [1, 1, 2, 5, 6]
    assert rows(padded_varints(np.array([1, 300]), 3)) == [b"\x81\x80\x00", b"\xac\x82\x00"]


def test_several_timelines_share_one_trace(path: Path) -> None:
    program = pipeline(tp=2, microbatches=1)
    one, other = run(program), run(program, slow=2)
    alone = {}
    for timeline in (one, other):
        write_perfetto(timeline, path)
        alone[id(timeline)] = read(path)
    summary = write_timelines([NamedTimeline("predicted", one), NamedTimeline("measured", other)], path)
    trace = read(path)
    for name, timeline in (("predicted", one), ("measured", other)):
        slices = {(process, lane): unjoined(line) for (process, lane), line in alone[id(timeline)].slices.items()}
        mine = {}
        for (process, lane), line in trace.slices.items():
            if name in (process.split(" · ")[0], lane.split(" · ")[0]):
                mine[process.removeprefix(f"{name} · "), lane.removeprefix(f"{name} · ")] = unjoined(line)
        assert mine == slices, name
    assert summary.slices == 2 * len(
        [s for rank in range(4) for line in alone[id(one)].ops(rank).values() for s in line]
    )
    assert (summary.ranks, summary.world) == ((0, 1, 2, 3), 4)


def unjoined(line: list[Slice]) -> list[Slice]:
    return [replace(one, flows=()) for one in line]


def test_processes_of_a_rank_stand_together_and_flows_stay_within_a_timeline(path: Path) -> None:
    timeline = run(pipeline(tp=2, microbatches=1))
    summary = write_timelines([NamedTimeline("predicted", timeline), NamedTimeline("measured", timeline)], path)
    trace = read(path)
    processes = sorted(
        (track for track in trace.tracks.values() if track.HasField("process")), key=lambda t: t.sibling_order_rank
    )
    names = [" · ".join(track.process.process_name.split(" · ")[:2]) for track in processes]
    assert names == [f"{side} · rank {rank}" for rank in range(4) for side in ("predicted", "measured")]
    pids = [track.process.pid for track in processes]
    assert pids == sorted(set(pids)) and pids[0] > 0
    threads = [track.thread.tid for track in trace.tracks.values() if track.HasField("thread")]
    assert len(set(threads)) == len(threads)
    joined: dict[int, set[str]] = defaultdict(set)
    for (process, _), line in trace.slices.items():
        for one in line:
            for flow in one.flows:
                joined[flow].add(process.split(" · ")[0])
    assert summary.flows == len(joined) and all(len(sides) == 1 for sides in joined.values())


def test_timelines_of_other_sizes_show_the_ranks_they_have(path: Path) -> None:
    small, large = run(pipeline()), run(pipeline(tp=2))
    summary = write_timelines([NamedTimeline("small", small), NamedTimeline("large", large)], path)
    assert (summary.ranks, summary.world) == ((0, 1, 2, 3), 4)
    sides = [process.split(" · ")[0] for process in {process for process, _ in read(path).slices} if process]
    assert sorted(sides) == ["large"] * 4 + ["small"] * 2
    with pytest.raises(InputError) as caught:
        write_timelines([NamedTimeline("large", large), NamedTimeline("small", small)], path, ranks=[3])
    assert caught.value.code == "no-such-rank"
