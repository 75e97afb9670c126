"""The plans of a search by step time and memory, as an SVG: the front, what cannot be told apart, what to measure.

`plan_front_svg` draws a search that has ended, `searched_plans_svg` one that runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from foretrace.basics.units import format_bytes, format_time
from foretrace.report.design import BLUE, CARD, FRAME, GREY, MUTED, ORANGE, VERMILLION
from foretrace.report.plan_words import pack_words, plan_text, plan_words, varying_fields
from foretrace.report.svg import LEGEND_ROW, Canvas, LinearAxis, PlotArea
from foretrace.search.planner.result import PlanSearch, RankedPlan
from foretrace.search.progress import SearchedPlan, SearchedPlans

_WIDTH, _LEFT = 620, 76
_GIB: Final = 1 << 30
_MARGIN: Final = 0.06
"""Room around the plans, as a share of what they span."""
MAX_SLOWER: Final = 1.5
"""Times the best step up to which plans of the front are drawn; slower ones are counted."""
_LEGEND_LETTERS: Final = 40
_LINE: Final = 15
_MARK_RADIUS: Final = 8
_MARK_DISTANCE: Final = 16
"""Pixels from a plan to the number that marks it, and from there to the next number."""


def plan_front_svg(search: PlanSearch, title: str) -> str:
    """Draws the plans that a search lists, with the front of time and memory.

    Args:
        search: The result of the search, with at least one plan.
        title: The heading.
    """
    plans = _drawn(search)
    capacity_bytes = max(each.needed_memory_bytes + each.headroom_bytes for each in plans)
    canvas, area = _area([*map(_coordinates, plans), (plans[0].step_time_s, capacity_bytes / _GIB)], title, _SIZE)
    y = area.y(capacity_bytes / _GIB)
    canvas.line((area.left, y), (area.right, y), VERMILLION, stroke_dasharray="6 4")
    words = f"memory of the GPU: {format_bytes(capacity_bytes)}"
    canvas.text(area.right - 6, y - 6, words, "end", fill=VERMILLION)
    front = [each for each in search.front if each in plans]
    _draw_plans(canvas, area, search, plans)
    _draw_front(canvas, area, front)
    _draw_plans(canvas, area, search, front)
    _draw_marks(canvas, area, search)
    _draw_frame(canvas, area)
    _draw_legend(canvas, area, search, len(search.front) - len(front))
    return canvas.svg()


def searched_plans_svg(plans: SearchedPlans, title: str) -> str:
    """Draws the plans that a running search has found so far, at least one.

    Args:
        plans: The plans.
        title: The heading.
    """
    canvas, area = _area([_coordinates(plan) for plan in (*plans.others, *plans.front)], title, _RUNNING_SIZE)
    _draw_front(canvas, area, plans.front)
    for group, radius, colour in ((plans.others, 3.5, GREY), (plans.front, 5, BLUE)):
        for plan in group:
            facts = f"{format_time(plan.step_time_s)}, {format_bytes(plan.needed_memory_bytes)}"
            title = f"{plan.options}: {facts}, {'simulated' if plan.is_simulated else 'estimated'}"
            fill = colour if plan.is_simulated else CARD
            canvas.circle(*_place(area, plan), radius, fill, title, stroke=colour, stroke_width=1.5)
    canvas.legend(area.right - 190, area.top + 18, [("simulated", BLUE)])
    canvas.circle(area.right - 95, area.top + 14, 5, CARD, stroke=BLUE, stroke_width=1.5)
    canvas.text(area.right - 84, area.top + 18, "estimated")
    _draw_frame(canvas, area)
    return canvas.svg()


class _Size(NamedTuple):
    """The height of the area of plans, the room above it, that to its right, and ticks of memory."""

    height: float
    top: float
    right: float
    ticks: int


_SIZE: Final = _Size(400, 56, 300, 8)
_RUNNING_SIZE: Final = _Size(300, 40, 40, 6)


def _area(places: Sequence[tuple[float, float]], title: str, size: _Size) -> tuple[Canvas, PlotArea]:
    """Returns a drawing with the axes of step time and memory for plans at these coordinates."""
    across, up = (_axis(min(values), max(values)) for values in zip(*places, strict=True))
    area = PlotArea(_LEFT, size.top, _WIDTH, size.height, across, up)
    canvas = Canvas(_LEFT + _WIDTH + size.right, size.top + size.height + 66, title, title_x=_LEFT, font_size=13)
    area.draw_ticks(canvas, across.ticks(7), up.ticks(size.ticks), format_time, lambda amount: f"{amount:g}")
    return canvas, area


def _draw_frame(canvas: Canvas, area: PlotArea) -> None:
    area.draw_frame(canvas, "predicted step time", "memory needed, GiB")


def _drawn(search: PlanSearch) -> list[RankedPlan]:
    """Returns every plan that the search lists, once, without those of the front that are far slower than all else."""
    listed = [*search.plans, *search.indistinguishable, *search.measure_first]
    limit_s = MAX_SLOWER * min(each.step_time_s for each in (*listed, *search.front))
    limit_s = max([limit_s, *(each.step_time_s for each in listed)])
    near = [each for each in search.front if each.step_time_s <= limit_s]
    return list({each.plan: each for each in (*listed, *near)}.values())


def _axis(low: float, high: float) -> LinearAxis:
    margin = _MARGIN * ((high - low) or high or 1.0)
    return LinearAxis(max(low - margin, 0.0), high + margin)


def _coordinates(plan: RankedPlan | SearchedPlan) -> tuple[float, float]:
    return plan.step_time_s, plan.needed_memory_bytes / _GIB


def _place(area: PlotArea, plan: RankedPlan | SearchedPlan) -> tuple[float, float]:
    step_time_s, needed_gib = _coordinates(plan)
    return area.x(step_time_s), area.y(needed_gib)


def _draw_front(canvas: Canvas, area: PlotArea, front: Sequence[RankedPlan | SearchedPlan]) -> None:
    """Draws the front as stairs: between two of its plans, none that is faster than the second needs less."""
    places = [_place(area, each) for each in front]
    stairs: list[tuple[float, float]] = []
    for x, y in places:
        stairs += [(x, stairs[-1][1]), (x, y)] if stairs else [(x, y)]
    if len(stairs) > 1:
        canvas.polyline(stairs, BLUE)


def _draw_plans(canvas: Canvas, area: PlotArea, search: PlanSearch, plans: Sequence[RankedPlan]) -> None:
    """Draws plans as dots: those of the front, those that cannot be told from the best, and the others."""
    varying = varying_fields([each.plan for each in plans])
    front = {each.plan for each in search.front}
    unclear = {each.plan for each in search.indistinguishable}
    for ranked in plans:
        x, y = _place(area, ranked)
        facts = f"{format_time(ranked.step_time_s)} {ranked.evidence}, {format_bytes(ranked.needed_memory_bytes)}"
        edge = {"stroke": ORANGE, "stroke_width": 1.5} if ranked.plan in unclear else {}
        fill = BLUE if ranked.plan in front else ORANGE if ranked.plan in unclear else GREY
        canvas.circle(x, y, 3.5, fill, f"{plan_text(ranked.plan, varying)}: {facts}", **edge)  # type: ignore[arg-type]


def _draw_marks(canvas: Canvas, area: PlotArea, search: PlanSearch) -> None:
    """Draws the best plan, and the numbers of those to measure first."""
    if search.best is not None:
        x, y = _place(area, search.best)
        canvas.circle(x, y, 5, VERMILLION, stroke=CARD)
    marks: list[tuple[float, float]] = []
    for number, ranked in enumerate(search.measure_first, 1):
        x, y = _free_place(area, _place(area, ranked), marks)
        marks.append((x, y))
        canvas.circle(x, y, _MARK_RADIUS, CARD, stroke=FRAME)
        canvas.text(x, y + 4, str(number), "middle", font_weight="bold", font_size=11)


def _free_place(area: PlotArea, plan: tuple[float, float], marks: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns a place near a plan, above it if possible, that is within the plot and covers no other mark."""
    x, y = plan
    reach = range(1, len(marks) + 2)
    for dx, dy in ((dx * step, dy * step) for step in reach for dx, dy in ((0, -1), (0, 1), (1, 0), (-1, 0))):
        mark = x + dx * _MARK_DISTANCE, y + dy * _MARK_DISTANCE
        across = area.left + _MARK_RADIUS <= mark[0] <= area.right - _MARK_RADIUS
        up = area.top + _MARK_RADIUS <= mark[1] <= area.bottom - _MARK_RADIUS
        if across and up and all(math.dist(mark, other) >= 2 * _MARK_RADIUS for other in marks):
            return mark
    return x, y - _MARK_DISTANCE


def _draw_legend(canvas: Canvas, area: PlotArea, search: PlanSearch, left_out: int) -> None:
    x, y = area.right + 24, area.top + 14
    entries = [("the best", VERMILLION), ("none is both faster and smaller", BLUE)]
    entries += [("cannot be told from the best", ORANGE)] if search.indistinguishable else []
    y = canvas.legend(x, y, [*entries, ("other plans", GREY)])
    if left_out:
        slowest = format_time(max(each.step_time_s for each in search.front))
        canvas.text(x - 6, y, f"{left_out} slower ones, up to {slowest}, are left out", fill=MUTED, font_size=11)
        y += LEGEND_ROW
    if not search.measure_first:
        return
    y += LEGEND_ROW / 2
    canvas.text(x - 6, y, "measure first", font_weight="bold", fill=FRAME)
    y += LEGEND_ROW
    varying = varying_fields([each.plan for each in search.measure_first])
    with canvas.group(font_size=11, fill=MUTED):
        for number, ranked in enumerate(search.measure_first, 1):
            canvas.text(x - 6, y, f"{number}.", font_weight="bold")
            for line in pack_words(plan_words(ranked.plan, varying), _LEGEND_LETTERS):
                canvas.text(x + 14, y, line)
                y += _LINE
            y += _LINE / 3
