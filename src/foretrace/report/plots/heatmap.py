"""How busy the links of a network are: a map in colours as SVG, and a summary for the terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final, TextIO

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.units import format_bytes, format_count, format_percent
from foretrace.readings.links import LinkLoad, LinkLoads
from foretrace.report.design import CARD, HEAT, INK, MUTED, heat_colour
from foretrace.report.plots.link_panels import NOT_IN_SERVICE, Panel, carrying, gathered, panels_of
from foretrace.report.svg import Canvas
from foretrace.report.table import TextTable, table
from foretrace.report.terminal import Screen, Span, show

HOTTEST: Final = 5
_EIGHTHS = "▁▂▃▄▅▆▇█"
_BINS: Final = 10

_LEFT, _BLOCK, _GAP, _TOP, _MARGIN = 130, 400, 60, 92, 24
_LEGEND_WIDTH = 240
_SCALES: Final = (0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)


def described(load: LinkLoad) -> str:
    """Returns a link with its load, what the load is made of, and how many other links are as busy."""
    least = 1e-3 * sum(load.bytes_by_axis.values())
    parts = sorted(load.bytes_by_axis.items(), key=lambda part: -part[1])[:3]
    words = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts if size > least)
    like = "" if not load.others else f", as {format_count(load.others)} other{'' if load.others == 1 else 's'}"
    return f"{load.label}: {format_percent(load.utilisation)} ({words}){like}"


def print_heatmap(loads: LinkLoads, stream: TextIO | None = None) -> None:
    """Prints the summary as a screen."""
    screen = Screen.of(stream or sys.stdout)
    show(screen, [[], *heatmap_lines(loads)])


def heatmap_lines(loads: LinkLoads) -> list[list[Span]]:
    """Returns a row per tier with the distribution of its loads, and the hottest links by name."""
    share = loads.utilisation
    top = _scale(float(share.max(initial=0.0)))
    tiers = tiers_table(loads)
    spreads = [_spread(share[panel.link[panel.link >= 0]], top) for panel in panels_of(loads.fabric)]
    lines = [[("  how busy the links are", "bold"), (" (of what they can carry, over the step)", "")], []]
    lines += table(
        [*tiers.heads, f"0 to {100 * top:g} %"],
        [[*row, spread] for row, spread in zip(tiers.rows, spreads, strict=True)],
    )
    hot = loads.hottest(HOTTEST)
    if hot:
        lines += [[], [("  the hottest", "bold")]]
        lines += [[(f"  {number}  {described(load)}", "")] for number, load in enumerate(hot, start=1)]
    return lines


def tiers_table(loads: LinkLoads) -> TextTable:
    """Returns for the links of each tier and direction how many they are, and how busy."""
    share, rows = loads.utilisation, []
    for panel in panels_of(loads.fabric):
        shares = share[panel.link[panel.link >= 0]]
        idle = int((shares == 0).sum())
        mean, most = format_percent(float(shares.mean())), format_percent(float(shares.max()))
        rows.append([_name(panel), format_count(len(shares)), format_count(idle), mean, most])
    return TextTable(["links", "number", "idle", "mean", "busiest"], rows)


def _name(panel: Panel) -> str:
    return f"{panel.tier}, {panel.way}" if panel.way else panel.tier


def _spread(share: Floats, top: float) -> str:
    """Returns a histogram of the shares over tenths of the scale, as blocks; idle links do not count."""
    count, _ = np.histogram(share[share > 0], bins=_BINS, range=(0.0, top))
    most = int(count.max(initial=0))
    return "".join(" " if not links else _EIGHTHS[min(-(-8 * links // most), 8) - 1] for links in count.tolist())


def _scale(most: float) -> float:
    """Returns a round share that is not less than that of the busiest link."""
    return next((scale for scale in _SCALES if most <= scale), 1.0)


def heatmap_svg(loads: LinkLoads, title: str) -> str:
    """Draws the map: for each tier what goes out on the left and what comes in on the right."""
    share = loads.utilisation
    top = _scale(float(share.max(initial=0.0)))
    hot = loads.hottest(HOTTEST)
    canvas = Canvas(_LEFT + 2 * _BLOCK + _GAP + _MARGIN, 0, title, title_x=_MARGIN)
    _draw_scale(canvas, top)
    for number, load in enumerate(hot, start=1):
        canvas.text(_MARGIN, _TOP - 16 + 18 * number, str(number))
        canvas.text(_MARGIN + 18, _TOP - 16 + 18 * number, described(load))
    y = _TOP + 18.0 * len(hot) + (14 if hot else 0)
    tiers: dict[str, list[Panel]] = {}
    for panel in panels_of(loads.fabric):
        tiers.setdefault(panel.tier, []).append(panel)
    for tier, every in tiers.items():
        canvas.text(_MARGIN, y, tier, font_size=14, font_weight="bold")
        panels, idle = carrying(every, share)
        if idle:
            rest = "all idle" if not panels[0].rows else f"{idle:,} idle row{'s' if idle > 1 else ''} left out"
            canvas.text(_LEFT + _BLOCK + _GAP, y, rest, fill=MUTED)
        height = 0.0
        for number, panel in enumerate(panels if panels[0].rows else ()):
            block = _Block(panel, _LEFT + number * (_BLOCK + _GAP), y + 24)
            block.draw(canvas, share, top, labelled=not number)
            block.draw_frames(canvas, [load.link for load in hot])
            height = max(height, block.height)
        y += height + (60 if height else 32)
    canvas.height = y
    return canvas.svg()


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """A panel on the page, its upper left corner at x, y."""

    panel: Panel
    x: float
    y: float

    @property
    def cell(self) -> tuple[float, float]:
        """Width and height of one link."""
        columns, rows = self.panel.link.shape[1], len(self.panel.rows)
        return min(48.0, _BLOCK / columns), 18.0 if rows <= 16 else 12.0 if rows <= 32 else 8.0

    @property
    def rows(self) -> int:
        """How many rows are drawn."""
        return len(gathered(self.panel, np.zeros(int(self.panel.link.max()) + 1))[0])

    @property
    def height(self) -> float:
        """Height of all rows."""
        return self.cell[1] * self.rows

    def draw(self, canvas: Canvas, share: Floats, top: float, labelled: bool) -> None:
        """Draws a cell for each link in the colour of its share, and the names of rows where `labelled`."""
        names, grid = gathered(self.panel, share)
        wide, high = self.cell
        ways = {"out": "away from the GPUs", "in": "towards the GPUs", "": "by the switch they leave"}
        missing = self._not_in_service(len(names))
        remark = f"{ways[self.panel.way]}, a column per port{', × where no link is in service' if missing else ''}"
        canvas.text(self.x, self.y - 6, remark, fill=MUTED)
        for row, column in missing:
            x, y = self.x + (column + 0.5) * wide, self.y + row * high + high / 2 + 4
            canvas.text(x, y, "×", "middle", font_size=11, fill=MUTED)
        with canvas.group(stroke=CARD, stroke_width=0.5):
            for row, column in np.argwhere(~np.isnan(grid)).tolist():
                value = float(grid[row, column])
                x, y = self.x + column * wide, self.y + row * high
                title = f"{names[row]}, port {column}: {format_percent(value)}"
                canvas.rect(x, y, wide, high, title, fill=heat_colour(value / top))
        every = max(1, -(-12 // int(high)))
        for row in range(0, len(names) if labelled else 0, every):
            canvas.text(self.x - 8, self.y + row * high + high / 2 + 4, names[row], "end", font_size=11)

    def _not_in_service(self, rows: int) -> list[tuple[int, int]]:
        """Returns the row and column of each place without a link; none where rows are drawn together."""
        if rows != len(self.panel.rows):
            return []
        return [(row, column) for row, column in np.argwhere(self.panel.link == NOT_IN_SERVICE).tolist()]

    def draw_frames(self, canvas: Canvas, hot: list[int]) -> None:
        """Draws numbered frames around the links of `hot`."""
        wide, high = self.cell
        together = -(-len(self.panel.rows) // self.rows)
        for number, link in enumerate(hot, start=1):
            for row, column in np.argwhere(self.panel.link == link).tolist():
                x, y = self.x + column * wide, self.y + row // together * high
                canvas.rect(x, y, wide, high, fill="none", stroke=INK, stroke_width=1.5)
                with canvas.group(font_size=11, font_weight="bold", fill=INK, stroke=CARD, stroke_width=2.5):
                    if wide >= 10 and high >= 10:
                        canvas.text(x + wide / 2, y + high / 2 + 4, str(number), "middle", paint_order="stroke")
                    else:
                        canvas.text(x + wide + 3, y + high / 2 + 4, str(number), paint_order="stroke")


def _draw_scale(canvas: Canvas, top: float) -> None:
    """Draws the scale of colours with its ends and middle in words."""
    x, wide = canvas.width - _MARGIN - _LEGEND_WIDTH, _LEGEND_WIDTH / len(HEAT)
    with canvas.group(shape_rendering="crispEdges"):
        for step in range(len(HEAT)):
            canvas.rect(x + wide * step, 40, wide + 0.5, 12, fill=heat_colour(step / (len(HEAT) - 1)))
    canvas.text(x, 66, "0 %", font_size=11)
    canvas.text(x + _LEGEND_WIDTH / 2, 66, f"{50 * top:g} %", "middle", font_size=11)
    canvas.text(x + _LEGEND_WIDTH, 66, f"{100 * top:g} %", "end", font_size=11)
    canvas.text(x - 10, 51, "share of what a link carries", "end", fill=MUTED)
