"""Shows the plans that a search has simulated so far: their steps and memory, and which of them form the front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foretrace.basics.units import format_bytes, format_time
from foretrace.inputs.inventory import counted_text
from foretrace.report.design import BLUE, GREY
from foretrace.report.page.blocks import Cell, Picture, Row, Section, Table, View
from foretrace.report.svg import Canvas, LinearAxis, PlotArea
from foretrace.search.progress import SearchedPlan

_WIDTH, _HEIGHT, _LEFT, _TOP = 620, 300, 76, 40
_GIB: Final = 1 << 30
_MARGIN: Final = 0.06
"""Room around the plans, as a share of what they span."""


def front_view(plans: Sequence[SearchedPlan], model: str) -> View:
    """Makes the view of the plans that a search of a model has simulated so far."""
    fitting = sorted((plan for plan in plans if plan.fits), key=lambda plan: plan.step_time_s)
    front = _front(fitting)
    title = f"{counted_text(len(plans), 'plan')} simulated so far"
    blocks: list[Picture | Table] = []
    if fitting:
        blocks.append(Picture(_drawn(fitting, front, title), "Step time and memory of the plans simulated so far."))
        blocks.append(_table(fitting, front))
    return View(f"{model}: {title}", "plan search", (Section("front", "The front so far", blocks),))


def _front(plans: Sequence[SearchedPlan]) -> list[SearchedPlan]:
    """Returns the plans, sorted by step, of which none is both faster and smaller."""
    front: list[SearchedPlan] = []
    for plan in plans:
        if not front or plan.needed_memory_bytes < front[-1].needed_memory_bytes:
            front.append(plan)
    return front


def _table(plans: Sequence[SearchedPlan], front: Sequence[SearchedPlan]) -> Table:
    rows: list[Row] = [
        (
            Cell(plan.options, options=plan.options),
            Cell(format_time(plan.step_time_s), plan.step_time_s),
            Cell(format_bytes(plan.needed_memory_bytes), plan.needed_memory_bytes),
            "on the front" if plan in front else "",
        )
        for plan in plans
    ]
    return Table(("options", "step", "memory needed", ""), rows, right=(1, 2))


def _drawn(plans: Sequence[SearchedPlan], front: Sequence[SearchedPlan], title: str) -> str:
    across = _axis([plan.step_time_s for plan in plans])
    up = _axis([plan.needed_memory_bytes / _GIB for plan in plans])
    area = PlotArea(_LEFT, _TOP, _WIDTH, _HEIGHT, across, up)
    canvas = Canvas(_LEFT + _WIDTH + 40, _TOP + _HEIGHT + 66, title, title_x=_LEFT, font_size=13)
    area.draw_ticks(canvas, across.ticks(7), up.ticks(6), format_time, lambda size: f"{size:g}")
    places = {id(plan): (area.x(plan.step_time_s), area.y(plan.needed_memory_bytes / _GIB)) for plan in plans}
    if len(front) > 1:
        canvas.polyline([places[id(plan)] for plan in front], BLUE)
    for plan in plans:
        on_front = plan in front
        words = f"{plan.options}: {format_time(plan.step_time_s)}, {format_bytes(plan.needed_memory_bytes)}"
        canvas.circle(*places[id(plan)], 5 if on_front else 3.5, BLUE if on_front else GREY, words)
    area.draw_frame(canvas, "predicted step time", "memory needed, GiB")
    return canvas.svg()


def _axis(values: Sequence[float]) -> LinearAxis:
    room = _MARGIN * (max(values) - min(values)) or _MARGIN * max(values)
    return LinearAxis(min(values) - room, max(values) + room)
