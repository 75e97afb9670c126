"""The bars of the chart of a step: what they keep of the ops, and what they leave out."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from foretrace import Answer, Machine, Mesh, Plan, ProgramBuilder, Scenario, model, simulate
from foretrace.basics.arrays import Floats, Longs
from foretrace.program.columns import Phase, label
from foretrace.report.design import SERIES, TONES, part_colour
from foretrace.report.page import gantt_bars
from foretrace.report.page.gantt_chart import GanttChart, gantt_chart

TYPES = {"u8": "<u1", "i8": "<i1", "u16": "<u2", "i16": "<i2", "i32": "<i4"}
TIMES = (0.0, 1e-6, 0.003, 0.25, 1.0)


def _random_answer(seed: int) -> Answer:
    """A job of two or three stages whose ops have random lanes, phases, microbatches and durations."""
    random = np.random.default_rng(seed)
    stages = int(random.integers(2, 4))
    build = ProgramBuilder(Mesh(dp=2, pp=stages), repeats=bool(random.integers(2)))
    roles = [build.role(f"stage {stage}", [2 * stage, 2 * stage + 1]) for stage in range(stages)]
    everyone = build.groups("world", [range(2 * stages)], axis="dp")
    for microbatch in range(int(random.integers(1, 5))):
        for role in roles:
            for _ in range(int(random.integers(1, 8))):
                facts: dict[str, Any] = {"microbatch": microbatch, "lane": random.choice(["compute", "second"])}
                facts["phase"] = random.choice(["none", "forward", "backward", "recompute", "backward_weight"])
                role.compute(f"kernel {random.integers(3)}", float(random.choice(TIMES)), **facts)
            if random.integers(2):
                role.host("launch", float(random.choice(TIMES)))
        lane = random.choice(["compute", "network"])
        for role in roles:
            role.collective("all_reduce", everyone, float(random.choice(TIMES)), lane=lane, microbatch=microbatch)
    return simulate(build.program())


def _pipeline(**scenario: Any) -> Answer:
    plan = Plan(gpus=32, tp=2, pp=4, gbs=64)
    return simulate(model("llama3-8b", plan), Machine("h100-dgx"), Scenario(**scenario))


def _chart(answer: Answer) -> GanttChart:
    chart = gantt_chart(answer)
    assert chart is not None
    return chart


def _op_rows(answer: Answer, chart: GanttChart) -> Longs:
    """The row of each node of the answer's graph, -1 where its rank class is not shown."""
    graph = answer.timeline.graph
    lanes = [lane.name for lane in graph.program.lanes]
    numbers = np.full((len(graph.classes), len(lanes)), -1)
    for number, row in enumerate(chart.rows):
        numbers[graph.classes.of_rank[row.rank], lanes.index(row.lane)] = number
    return numbers[graph.rank_class, graph.ops.ints("lane")[graph.op]]


def _bar_of(chart: GanttChart, row: int, moment_s: float) -> int:
    """The bar of a row that a moment falls into."""
    bars = chart.bars
    in_row = np.flatnonzero(bars.row == row)
    slack_s = 1e-8 * chart.step_time_s
    inside = (bars.start_s[in_row] <= moment_s + slack_s) & (bars.end_s[in_row] >= moment_s - slack_s)
    assert inside.any()
    return int(in_row[np.argmax(inside)])


def _unpacked(column: dict[str, str]) -> Longs:
    return np.frombuffer(zlib.decompress(base64.b64decode(column["data"])), TYPES[column["type"]]).astype(np.int64)


def _starts(gap: Longs, duration: Longs, counts: Longs) -> Longs:
    """Ticks at which bars start, from the gaps between them, as a page decodes them."""
    starts = []
    at, place = 0, 0
    for count in counts.tolist():
        at = 0
        for bar in range(place, place + count):
            starts.append(at + int(gap[bar]))
            at = starts[-1] + int(duration[bar])
        place += count
    return np.array(starts)


ANSWERS = [*(pytest.param(lambda seed=seed: _random_answer(seed), id=f"random {seed}") for seed in range(12))]
ANSWERS.append(pytest.param(_pipeline, id="pipeline"))
ANSWERS.append(pytest.param(lambda: _pipeline(stragglers={5: 1.3}), id="straggler"))
each_answer = pytest.mark.parametrize("answer_of", ANSWERS)


@each_answer
def test_bars_of_a_row_do_not_overlap(answer_of: Any) -> None:
    bars = _chart(answer_of()).bars
    assert (bars.end_s >= bars.start_s).all()
    same = np.diff(bars.row) == 0
    assert (np.diff(bars.row) >= 0).all()
    assert (bars.start_s[1:] >= bars.end_s[:-1])[same].all()


@each_answer
def test_bars_without_their_gaps_take_as_long_as_the_ops(answer_of: Any) -> None:
    answer = answer_of()
    chart = _chart(answer)
    rows, timeline, bars = _op_rows(answer, chart), answer.timeline, chart.bars
    shown = rows >= 0
    duration = (timeline.end_s - timeline.start_s)[shown]
    ops_s = np.bincount(rows[shown], duration, len(chart.rows))
    bars_s = np.bincount(bars.row, bars.end_s - bars.start_s - bars.gap_s, len(chart.rows))
    assert bars_s == pytest.approx(ops_s, abs=1e-6 * chart.step_time_s)
    assert bars.ops.sum() == shown.sum()


@each_answer
def test_ops_of_the_critical_path_are_in_marked_bars(answer_of: Any) -> None:
    answer = answer_of()
    chart = _chart(answer)
    rows, timeline = _op_rows(answer, chart), answer.timeline
    lasting = [node for node in answer.critical_path.node.tolist() if timeline.end_s[node] > timeline.start_s[node]]
    middle: Floats = (timeline.start_s + timeline.end_s) / 2
    assert all(rows[node] < 0 or chart.bars.critical[_bar_of(chart, rows[node], middle[node])] for node in lasting)
    assert chart.bars.critical.any()


@each_answer
def test_columns_are_packed_without_loss(answer_of: Any) -> None:
    chart = _chart(answer_of())
    packed = json.loads(json.dumps(chart.to_json(), allow_nan=False))
    columns = {name: _unpacked(column) for name, column in packed["bars"].items()}
    bars = chart.bars
    for name in ("colour", "name", "microbatch", "chunk", "ops", "critical", "pattern"):
        np.testing.assert_array_equal(columns[name], getattr(bars, name))
    counts = np.array([row["bars"] for row in packed["rows"]])
    start = _starts(columns["gap"], columns["duration"], counts) * packed["tick_s"] + packed["span_s"][0]
    end = start + columns["duration"] * packed["tick_s"]
    precision_s = 1e-7 * chart.step_time_s + packed["tick_s"]
    np.testing.assert_allclose(start, bars.start_s, atol=precision_s)
    np.testing.assert_allclose(end, bars.end_s, atol=precision_s)
    np.testing.assert_allclose(columns["wait"] * packed["tick_s"], bars.wait_s, atol=precision_s)
    np.testing.assert_allclose(columns["idle"] * packed["tick_s"], bars.gap_s, atol=precision_s)
    inner = {name: _unpacked(column) for name, column in packed["patterns"].items()}
    start = _starts(inner["gap"], inner["duration"], inner["ops"]) * packed["tick_s"]
    np.testing.assert_allclose(start, chart.patterns.start_s, atol=precision_s)


@each_answer
def test_patterns_hold_the_ops_of_their_bars(answer_of: Any) -> None:
    chart = _chart(answer_of())
    bars, patterns = chart.bars, chart.patterns
    held = np.flatnonzero(bars.pattern >= 0)
    np.testing.assert_array_equal(np.diff(patterns.first)[bars.pattern[held]], bars.ops[held])
    assert (bars.ops[held] > 1).all()
    lasts = np.maximum.reduceat(patterns.end_s, patterns.first[:-1]) if len(patterns.end_s) else np.empty(0)
    length_s = (bars.end_s - bars.start_s)[held]
    assert lasts[bars.pattern[held]] == pytest.approx(length_s, abs=1e-6 * chart.step_time_s)


def test_layers_of_a_microbatch_are_one_bar() -> None:
    """Blocking communication is part of the bar; another microbatch, another phase and a gap begin a bar."""
    build = ProgramBuilder(Mesh(tp=2), repeats=False)
    role = build.role("all", [0, 1])
    for microbatch in (0, 1):
        for _ in range(4):
            role.compute("layer", 1.0, phase="forward", microbatch=microbatch)
            role.collective(
                "all_reduce", build.communicator("tp"), 0.5, lane="compute", phase="forward", microbatch=microbatch
            )
    role.compute("layer", 2.0, phase="backward", microbatch=1)
    role.compute("layer", 2.0, phase="backward", microbatch=1, after=role.host("wait", 20.0))
    chart = _chart(simulate(build.program()))
    computing = np.flatnonzero([chart.rows[row].kind == "compute" for row in chart.bars.row])
    bars = chart.bars
    assert bars.ops[computing].tolist() == [8, 8, 1, 1]
    assert bars.start_s[computing].tolist() == [0.0, 6.0, 12.0, 20.0]
    assert [chart.colours[colour].sign for colour in bars.colour[computing]] == ["F", "F", "B", "B"]
    assert bars.microbatch[computing].tolist() == [0, 1, 1, 1]
    # Both forwards run alike, so they share a pattern.
    assert len(chart.patterns.first) == 2
    assert len(set(bars.pattern[computing[:2]].tolist())) == 1


def test_bars_that_differ_in_the_names_inside_share_no_pattern() -> None:
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("all", [0])
    for microbatch, name in enumerate(("short", "long", "short")):
        role.compute(name, 1.0, phase="forward", microbatch=microbatch)
        role.compute("rest", 1.0, phase="forward", microbatch=microbatch)
    chart = _chart(simulate(build.program()))
    first, second, third = chart.bars.pattern.tolist()
    assert first == third != second
    patterns = chart.patterns
    inside = [chart.names[name] for name in patterns.name[patterns.first[second] : patterns.first[second + 1]]]
    assert inside == ["long", "rest"]


@pytest.mark.parametrize(("layers", "signs"), [(1, "RBRB"), (8, "BB")])
def test_kinds_of_backward_that_alternate_in_a_block_are_one_bar(layers: int, signs: str) -> None:
    """With one layer, recomputation and backward follow each other once and are bars of their own."""
    build = ProgramBuilder(Mesh(), repeats=False)
    block = build.block("backward")
    for _ in range(layers):
        block.compute("again", 1.0, phase="recompute")
        block.compute("layer", 1.0, phase="backward")
    role = build.role("all", [0])
    for microbatch in (0, 1):
        role.place(block, microbatch=microbatch)
    chart = _chart(simulate(build.program()))
    assert "".join(chart.colours[colour].sign for colour in chart.bars.colour) == signs
    assert {chart.colours[colour].sign for colour in chart.patterns.colour} <= {"R", "B"}


def test_blocks_of_one_kind_of_backward_stay_apart() -> None:
    """Zero-bubble schedules compute gradients of inputs and of weights in blocks of their own, one after the other."""
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("all", [0])
    blocks = []
    for phase in ("backward_input", "backward_weight"):
        block = build.block(phase)
        for _ in range(8):
            block.compute("layer", 1.0, phase=phase)
        blocks.append(block)
    for _ in range(4):
        for block in blocks:
            role.place(block, microbatch=0)
    chart = _chart(simulate(build.program()))
    assert "".join(chart.colours[colour].sign for colour in chart.bars.colour) == "IWIWIWIW"


def test_each_stage_shows_a_rank_and_others_are_at_hand() -> None:
    """One slow rank makes several groups of ranks in every stage; the first of each stage stands for it."""
    chart = _chart(_pipeline(stragglers={5: 1.3}))
    mains = {(row.role, row.rank) for row in chart.rows if row.main}
    assert mains == {(f"stage {stage}", 8 * stage) for stage in range(4)}
    assert len({row.rank for row in chart.rows}) > 4
    assert sum({row.rank: row.ranks for row in chart.rows}.values()) == 32


def test_lanes_of_communication_name_the_axis_that_most_of_their_bars_meet_on() -> None:
    build = ProgramBuilder(Mesh(tp=2, dp=2), repeats=False)
    role = build.role("all", range(4))
    role.compute("layer", 1.0, phase="forward")
    for axis, lane, times in (("tp", "mixed", 1), ("dp", "mixed", 2), ("tp", "own", 1), ("tp", "compute", 1)):
        for _ in range(times):
            role.collective("all_reduce", build.communicator(axis), 0.5, lane=lane, after=role.host("wait", 1.0))
    chart = _chart(simulate(build.program()))
    axes = {row.lane: row.axis for row in chart.rows}
    assert axes == {"compute": "", "mixed": "dp", "own": "tp", "host": ""}


def test_colours_are_those_of_the_breakdown_and_differ_in_tone_where_they_are_the_same() -> None:
    build = ProgramBuilder(Mesh(tp=2, dp=2), repeats=False)
    role = build.role("all", range(4))
    for phase in map(label, Phase):
        role.compute(phase, 1.0, phase=phase)
    for axis in ("tp", "dp", "own", "other"):
        role.collective("all_reduce", build.groups(axis, [range(4)], axis=axis), 1.0)
    role.host("launch", 1.0)
    colours = _chart(simulate(build.program())).colours
    assert len({(colour.variable, colour.tone) for colour in colours}) == len(colours)
    assert {colour.variable.removeprefix("--") for colour in colours} <= {*SERIES, *TONES}
    variables = {colour.sign: colour.variable.removeprefix("--") for colour in colours}
    for sign, part in (("F", "forward"), ("B", "backward"), ("O", "optimizer"), ("H", "host")):
        assert variables[sign] == part_colour(part)
    for axis in ("tp", "dp", "own", "other"):
        assert variables[axis] == part_colour(f"{axis} exposed")


def test_where_bars_do_not_fit_more_is_merged_and_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coarser bars come first, then fewer ranks, then fewer bars: each keeps the limit and says what is missing."""
    answer = _pipeline(stragglers={5: 1.3})
    every = _chart(answer)
    assert every.notes == ()
    notes = []
    for limit in (len(every.bars) - 1, len(every.bars) // 4, 50, 7):
        monkeypatch.setattr(gantt_bars, "MAX_BARS", limit)
        chart = _chart(answer)
        assert 0 < len(chart.bars) <= limit
        assert (np.diff(chart.bars.row) >= 0).all()
        notes.append(len(chart.notes))
    assert notes[0] == 1
    assert notes == sorted(notes)
    assert {row.role for row in chart.rows} <= {row.role for row in every.rows}


def test_patterns_that_do_not_fit_are_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt_bars, "MAX_INNER_OPS", 100)
    chart = _chart(_pipeline())
    assert len(chart.patterns.name) <= 100
    assert ((chart.bars.pattern < 0) & (chart.bars.ops > 1)).any()
    assert len(chart.notes) == 1


def test_rows_are_summed_up_for_readers_without_a_canvas() -> None:
    build = ProgramBuilder(Mesh(), repeats=False)
    role = build.role("stage 0", [0])
    role.compute("a", 1.0)
    role.compute("b", 1.0, after=role.host("wait", 3.0))
    compute, host = _chart(simulate(build.program())).summary_rows()
    assert [cell.text for cell in compute] == ["stage 0 · rank 0 · compute", "50.0 %", "0 s", "4.00 s"]
    assert [cell.sort for cell in host[1:]] == pytest.approx([0.75, 0.0, 3.0])


def test_a_job_that_does_nothing_has_no_chart() -> None:
    build = ProgramBuilder(Mesh(), repeats=False)
    build.role("stage 0", [0]).compute("nothing", 0.0)
    assert gantt_chart(simulate(build.program())) is None


@pytest.mark.parametrize("seed", range(4))
def test_recorded_ops_that_overlap_are_one_bar(seed: int) -> None:
    """Ops of a lane that a profiler saw may overlap, which bars of a row never do."""
    answer = _random_answer(seed)
    timeline = answer.timeline
    answer.critical_path  # noqa: B018 (read off before the times change)
    later = timeline.end_s + 0.3 * np.random.default_rng(seed).random(len(timeline.end_s))
    object.__setattr__(answer, "timeline", replace(timeline, end_s=later))
    chart = _chart(answer)
    bars = chart.bars
    same = np.diff(bars.row) == 0
    assert (bars.start_s[1:] >= bars.end_s[:-1])[same].all()
    assert bars.ops.sum() == len(timeline.graph)
    assert (bars.ops > 1).any()
    rows = _op_rows(answer, chart)
    last_s = np.full(len(chart.rows), -np.inf)
    np.maximum.at(last_s, rows, later)
    assert bars.end_s[np.append(~same, True)] == pytest.approx(last_s)
