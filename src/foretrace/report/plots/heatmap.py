"""How busy the links of a network are: a map in colours as SVG, and a summary for the terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final, TextIO

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.basics.units import format_bytes, format_count, format_percent
from foretrace.readings.links import LinkLoad, LinkLoads
from foretrace.report.axis import FONT
from foretrace.report.plots.link_panels import NOT_IN_SERVICE, Panel, carrying, gathered, panels_of
from foretrace.report.table import table
from foretrace.report.terminal import Screen, Span, show

HOTTEST: Final = 5
_EIGHTHS = "▁▂▃▄▅▆▇█"
_BINS: Final = 10

_STOPS: Final = ((0.0, (242, 245, 248)), (0.35, (253, 224, 139)), (0.65, (244, 135, 59)), (1.0, (165, 15, 40)))
"""Shares of the scale and their colours: light where idle, dark where busy."""

_LEFT, _BLOCK, _GAP, _TOP = 130, 400, 60, 92
_SCALES: Final = (0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)


def described(load: LinkLoad) -> str:
    """A link with how busy it is and what with, and how many others are like it."""
    least = 1e-3 * sum(load.bytes_by_axis.values())
    parts = sorted(load.bytes_by_axis.items(), key=lambda part: -part[1])[:3]
    words = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts if size > least)
    like = "" if not load.others else f", as {format_count(load.others)} other{'' if load.others == 1 else 's'}"
    return f"{load.label}: {format_percent(load.utilisation)} ({words}){like}"


def print_heatmap(loads: LinkLoads, stream: TextIO | None = None) -> None:
    """The summary as a screen."""
    screen = Screen.of(stream or sys.stdout)
    show(screen, [[], *heatmap_lines(loads)])


def heatmap_lines(loads: LinkLoads) -> list[list[Span]]:
    """A row per tier with how its links' loads spread, and the hottest links by name."""
    share = loads.utilisation
    top = _scale(float(share.max(initial=0.0)))
    rows = []
    for panel in panels_of(loads.fabric):
        own = share[panel.link[panel.link >= 0]]
        idle = int((own == 0).sum())
        spread = _spread(own, top)
        mean, most = format_percent(float(own.mean())), format_percent(float(own.max()))
        rows.append([_name(panel), format_count(len(own)), format_count(idle), mean, most, spread])
    heads = ["links", "number", "idle", "mean", "busiest", f"0 to {100 * top:g} %"]
    lines = [[("  how busy the links are", "bold"), (" (of what they can carry, over the step)", "")], []]
    lines += table(heads, rows)
    hot = loads.hottest(HOTTEST)
    if hot:
        lines += [[], [("  the hottest", "bold")]]
        lines += [[(f"  {number}  {described(load)}", "")] for number, load in enumerate(hot, start=1)]
    return lines


def _name(panel: Panel) -> str:
    return f"{panel.tier}, {panel.way}" if panel.way else panel.tier


def _spread(share: Floats, top: float) -> str:
    """How many links lie in each tenth of the scale, as blocks; the first without those that are idle."""
    count, _ = np.histogram(share[share > 0], bins=_BINS, range=(0.0, top))
    most = int(count.max(initial=0))
    return "".join(" " if not one else _EIGHTHS[min(-(-8 * one // most), 8) - 1] for one in count.tolist())


def _scale(most: float) -> float:
    """A round share that holds the busiest link."""
    return next((scale for scale in _SCALES if most <= scale), 1.0)


def heatmap_svg(loads: LinkLoads, title: str) -> str:
    """The map: for each tier what goes out on the left and what comes in on the right."""
    share = loads.utilisation
    top = _scale(float(share.max(initial=0.0)))
    hot = loads.hottest(HOTTEST)
    y = _TOP + 18.0 * len(hot) + (14 if hot else 0)
    parts: list[str] = []
    tiers: dict[str, list[Panel]] = {}
    for panel in panels_of(loads.fabric):
        tiers.setdefault(panel.tier, []).append(panel)
    for tier, every in tiers.items():
        parts.append(f'<text x="24" y="{y:.1f}" font-size="14" font-weight="bold">{escape(tier)}</text>')
        panels, idle = carrying(every, share)
        if idle:
            rest = "all idle" if not panels[0].rows else f"{idle:,} idle row{'s' if idle > 1 else ''} left out"
            parts.append(f'<text x="{_LEFT + _BLOCK + _GAP}" y="{y:.1f}" fill="#555">{rest}</text>')
        height = 0.0
        for number, panel in enumerate(panels if panels[0].rows else ()):
            block = _Block(panel, _LEFT + number * (_BLOCK + _GAP), y + 24)
            parts += block.drawn(share, top, [load.link for load in hot], labelled=not number)
            height = max(height, block.height)
        y += height + (60 if height else 32)
    width = _LEFT + 2 * _BLOCK + _GAP + 24
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y:.0f}" viewBox="0 0 {width} {y:.0f}" '
        f'{FONT} font-size="12">',
        f'<rect width="{width}" height="{y:.0f}" fill="white"/>',
        f'<text x="24" y="30" font-size="17" font-weight="bold">{escape(title)}</text>',
        *_legend(top, width),
    ]
    for number, load in enumerate(hot, start=1):
        said = f"{number}   {described(load)}"
        head.append(f'<text x="24" y="{_TOP - 16 + 18 * number}" xml:space="preserve">{escape(said)}</text>')
    return "\n".join([*head, *parts, "</svg>", ""])


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
    def height(self) -> float:
        """Of all rows."""
        return self.cell[1] * len(gathered(self.panel, np.zeros(int(self.panel.link.max()) + 1))[0])

    def drawn(self, share: Floats, top: float, hot: list[int], labelled: bool) -> list[str]:
        """Cells in colour, names of rows, and frames around the hottest."""
        names, grid = gathered(self.panel, share)
        wide, high = self.cell
        ways = {"out": "away from the GPUs", "in": "towards the GPUs", "": "by the switch they leave"}
        lost = self._not_in_service(len(names))
        said = f"{ways[self.panel.way]}, a column per port{', × where no link is in service' if lost else ''}"
        parts = [f'<text x="{self.x}" y="{self.y - 6:.1f}" fill="#555">{said}</text>', *lost]
        for row, column in zip(*np.nonzero(~np.isnan(grid)), strict=True):
            value = float(grid[row, column])
            place = f'x="{self.x + column * wide:.1f}" y="{self.y + row * high:.1f}"'
            title = f"{names[row]}, port {column}: {format_percent(value)}"
            parts.append(
                f'<rect {place} width="{wide:.1f}" height="{high:.1f}" fill="{_colour(value / top)}" '
                f'stroke="white" stroke-width="0.5"><title>{escape(title)}</title></rect>'
            )
        every = max(1, -(-12 // int(high)))
        for row in range(0, len(names) if labelled else 0, every):
            place = f'x="{self.x - 8}" y="{self.y + row * high + high / 2 + 4:.1f}"'
            parts.append(f'<text {place} text-anchor="end" font-size="11">{escape(names[row])}</text>')
        return [*parts, *self._frames(hot, len(names))]

    def _not_in_service(self, rows: int) -> list[str]:
        """A cross in each place without a link, unless rows are drawn together."""
        wide, high = self.cell
        parts = []
        for row, column in np.argwhere(self.panel.link == NOT_IN_SERVICE) if rows == len(self.panel.rows) else ():
            place = f'x="{self.x + (column + 0.5) * wide:.1f}" y="{self.y + row * high + high / 2 + 4:.1f}"'
            parts.append(f'<text {place} text-anchor="middle" font-size="11" fill="#555">×</text>')
        return parts

    def _frames(self, hot: list[int], rows: int) -> list[str]:
        wide, high = self.cell
        together = -(-len(self.panel.rows) // rows)
        parts = []
        for number, link in enumerate(hot, start=1):
            for row, column in zip(*np.nonzero(self.panel.link == link), strict=True):
                x, y = self.x + column * wide, self.y + row // together * high
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="none" '
                    'stroke="black" stroke-width="1.5"/>'
                )
                inside = wide >= 10 and high >= 10
                place = f'x="{x + wide / 2:.1f}" text-anchor="middle"' if inside else f'x="{x + wide + 3:.1f}"'
                halo = 'stroke="white" stroke-width="2.5" paint-order="stroke"'
                words = f'y="{y + high / 2 + 4:.1f}" font-size="11" font-weight="bold" {halo}'
                parts.append(f"<text {place} {words}>{number}</text>")
        return parts


def _legend(top: float, width: int) -> list[str]:
    """The scale of colours with its ends and middle in words."""
    x, wide = width - 24 - 240, 240 / 48
    parts = [
        f'<rect x="{x + wide * step:.1f}" y="40" width="{wide + 0.5:.1f}" height="12" fill="{_colour(step / 47)}"/>'
        for step in range(48)
    ]
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        text = f"{100 * top * part:g} %"
        parts.append(f'<text x="{x + 240 * part:.1f}" y="66" font-size="11" text-anchor="{anchor}">{text}</text>')
    parts.append(f'<text x="{x - 10}" y="51" text-anchor="end" fill="#555">share of what a link carries</text>')
    return parts


def _colour(share: float) -> str:
    """The colour of a share of the scale."""
    share = min(max(share, 0.0), 1.0)
    for (low, first), (high, second) in pairwise(_STOPS):
        if share <= high:
            part = (share - low) / (high - low)
            mixed = (round(a + part * (b - a)) for a, b in zip(first, second, strict=True))
            return "#" + "".join(f"{one:02x}" for one in mixed)
    return "#a50f28"
