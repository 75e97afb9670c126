"""Shows the plans that a search has simulated so far: their steps and memory, and which of them form the front."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from foretrace.basics.units import format_bytes, format_time
from foretrace.inputs.inventory import counted_text
from foretrace.report.design import BLUE, GREY
from foretrace.report.page.blocks import Cell, Picture, Row, Section, Table, View
from foretrace.report.svg import Canvas, LinearAxis, PlotArea
from foretrace.search.planner.robust import front_of
from foretrace.search.progress import SearchedPlan

_WIDTH, _HEIGHT, _LEFT, _TOP = 620, 300, 76, 40
_GIB: Final = 1 << 30
MAX_FRONT: Final = 100
MAX_OTHERS: Final = 100
_MARGIN: Final = 0.06
"""Room around the plans, as a share of what they span."""


def front_view(plans: Sequence[SearchedPlan], model: str) -> View:
    """Makes the view of the plans that a search of a model has simulated so far.

    It shows the front, up to `MAX_FRONT` plans of it, and the fastest others, up to `MAX_OTHERS`.
    """
    fitting = [plan for plan in plans if plan.fits]
    places = front_of([plan.step_time_s for plan in fitting], [plan.needed_memory_bytes for plan in fitting])
    on_front = set(places)
    front = [fitting[place] for place in places[:MAX_FRONT]]
    others = sorted(
        (plan for place, plan in enumerate(fitting) if place not in on_front), key=lambda plan: plan.step_time_s
    )[:MAX_OTHERS]
    title = f"{counted_text(len(plans), 'plan')} simulated so far"
    blocks: list[Picture | Table] = []
    if front:
        alternative = "Step time and memory of the front and the fastest other plans simulated so far."
        blocks.append(Picture(_drawn(front, others, title), alternative))
        blocks.append(_table(front, others))
    return View(f"{model}: {title}", "plan search", (Section("front", "The front so far", blocks),))


def _table(front: Sequence[SearchedPlan], others: Sequence[SearchedPlan]) -> Table:
    marked = [(plan, "on the front") for plan in front] + [(plan, "") for plan in others]
    rows: list[Row] = [
        (
            Cell(plan.options, options=plan.options),
            Cell(format_time(plan.step_time_s), plan.step_time_s),
            Cell(format_bytes(plan.needed_memory_bytes), plan.needed_memory_bytes),
            mark,
        )
        for plan, mark in sorted(marked, key=lambda row: row[0].step_time_s)
    ]
    return Table(("options", "step", "memory needed", ""), rows, right=(1, 2))


def _drawn(front: Sequence[SearchedPlan], others: Sequence[SearchedPlan], title: str) -> str:
    plans = [*others, *front]
    across = _axis([plan.step_time_s for plan in plans])
    up = _axis([plan.needed_memory_bytes / _GIB for plan in plans])
    area = PlotArea(_LEFT, _TOP, _WIDTH, _HEIGHT, across, up)
    canvas = Canvas(_LEFT + _WIDTH + 40, _TOP + _HEIGHT + 66, title, title_x=_LEFT, font_size=13)
    area.draw_ticks(canvas, across.ticks(7), up.ticks(6), format_time, lambda size: f"{size:g}")
    places = [(area.x(plan.step_time_s), area.y(plan.needed_memory_bytes / _GIB)) for plan in plans]
    # Stairs: between two plans of the front, none that is faster than the second needs less.
    corners = places[len(others) :]
    stairs = [corner for (_, y), (x, end_y) in pairwise(corners) for corner in ((x, y), (x, end_y))]
    if stairs:
        canvas.polyline([corners[0], *stairs], BLUE)
    for number, (plan, place) in enumerate(zip(plans, places, strict=True)):
        words = f"{plan.options}: {format_time(plan.step_time_s)}, {format_bytes(plan.needed_memory_bytes)}"
        is_on_front = number >= len(others)
        canvas.circle(*place, 5 if is_on_front else 3.5, BLUE if is_on_front else GREY, words)
    area.draw_frame(canvas, "predicted step time", "memory needed, GiB")
    return canvas.svg()


def _axis(values: Sequence[float]) -> LinearAxis:
    room = _MARGIN * (max(values) - min(values)) or _MARGIN * max(values)
    return LinearAxis(min(values) - room, max(values) + room)
