"""The canvas of every picture: shapes, text and legends as SVG, and axes.

A plot makes a `Canvas`, draws on it from back to front, and returns `Canvas.svg()`. Coordinates are pixels from the
upper left corner. `PlotArea` is a framed rectangle with two axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from foretrace.basics.errors import printable
from foretrace.report.design import FRAME, GRID, TYPE_SIZES, Shade

LEGEND_ROW: Final = 20
"""Pixels from one entry of a legend to the next."""

_FONT: Final = "Helvetica, Arial, sans-serif"
_DASHES: Final = "6 4"
_TITLE_Y: Final = 30

Anchor = Literal["start", "middle", "end"]
Marker = Literal["dot", "box", "dashes"]


class Canvas:
    """A picture on a white page. `height` may be set after drawing, once it is known what was drawn."""

    def __init__(
        self, width: float, height: float, title: str, title_x: float = 24, font_size: int = TYPE_SIZES["small"]
    ) -> None:
        self.width = width
        self.height = height
        self._font_size = font_size
        self._parts: list[str] = []
        self.text(title_x, _TITLE_Y, title, font_size=TYPE_SIZES["h2"], font_weight="bold")

    def svg(self) -> str:
        """Returns the picture as a file."""
        size = _attributes({"width": round(self.width), "height": round(self.height)})
        box = f"0 0 {round(self.width)} {round(self.height)}"
        font = _attributes({"font_family": _FONT, "font_size": self._font_size})
        head = f'<svg xmlns="http://www.w3.org/2000/svg"{size} viewBox="{box}"{font}>'
        return "\n".join([head, f'<rect{size} fill="white"/>', *self._parts, "</svg>", ""])

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: str, **style: str | float) -> None:
        """Draws a straight line."""
        ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
        self._draw("line", {**ends, "stroke": colour, **style})

    def polyline(
        self, points: Iterable[tuple[float, float]], colour: str, width: float = 1.5, **style: str | float
    ) -> None:
        """Draws lines from each point to the next."""
        places = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._draw("polyline", {"points": places, "fill": "none", "stroke": colour, "stroke_width": width, **style})

    def rect(self, x: float, y: float, width: float, height: float, title: str = "", **style: str | float) -> None:
        """Draws a rectangle; `title` is shown where the mouse rests on it."""
        self._draw("rect", {"x": x, "y": y, "width": width, "height": height, **style}, title)

    def circle(self, x: float, y: float, radius: float, colour: str, title: str = "", **style: str | float) -> None:
        """Draws a filled circle; `title` is shown where the mouse rests on it."""
        self._draw("circle", {"cx": x, "cy": y, "r": radius, "fill": colour, **style}, title)

    def text(self, x: float, y: float, text: str, anchor: Anchor = "start", **style: str | float) -> None:
        """Writes a line of text with its baseline at y; `anchor` says which part of it is at x."""
        place: dict[str, str | float] = {"x": x, "y": y}
        if anchor != "start":
            place["text_anchor"] = anchor
        self._parts.append(f"<text{_attributes({**place, **style})}>{_escape(text)}</text>")

    @contextmanager
    def group(self, **style: str | float) -> Iterator[None]:
        """Gives a style to all that is drawn inside a `with` statement."""
        self._parts.append(f"<g{_attributes(style)}>")
        yield
        self._parts.append("</g>")

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str | Shade]], marker: Marker = "dot") -> float:
        """Draws a marker and a name for each entry, below each other from y on; returns the y of the next entry.

        Args:
            x: The middle of the markers.
            y: The baseline of the first name.
            entries: Names and their colours.
            marker: The shape of the markers.
        """
        for name, colour in entries:
            shade = colour if isinstance(colour, Shade) else Shade(colour)
            if marker == "dot":
                self._draw("circle", {"cx": x, "cy": y - 4, "r": 5, **shade.fill})
            elif marker == "box":
                self._draw("rect", {"x": x - 6, "y": y - 10, "width": 12, "height": 12, **shade.fill})
            else:
                self.line((x - 7, y - 4), (x + 7, y - 4), shade.colour, stroke_width=1.5, stroke_dasharray=_DASHES)
            self.text(x + 14, y, name)
            y += LEGEND_ROW
        return y

    def _draw(self, name: str, attributes: dict[str, str | float], title: str = "") -> None:
        inner = f"><title>{_escape(title)}</title></{name}>" if title else "/>"
        self._parts.append(f"<{name}{_attributes(attributes)}{inner}")


def _attributes(values: dict[str, str | float]) -> str:
    """Returns attributes as they follow the name of an element; an underscore stands for a hyphen."""
    return "".join(
        f' {name.replace("_", "-")}="{_escape(value) if isinstance(value, str) else _number(value)}"'
        for name, value in values.items()
    )


def _number(value: float) -> str:
    """Returns a length, rounded to hundredths of a pixel."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _escape(text: str) -> str:
    """Returns a text that XML can hold: names of kernels and ranges may contain control characters."""
    return escape(printable(text))


_MIN_TICKS: Final = 3
"""Ticks of an axis that let a reader tell its scale."""


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A logarithmic axis from `low` to `high`, in any unit."""

    low: float
    high: float

    def of(self, value: float) -> float:
        """Returns the place of a value: 0 at the low end and below, 1 at the high end and above."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return min(max(share, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Returns the powers of ten, on a short axis also 2 and 5 times these, on a shorter one round numbers."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1,) if last - first > 4 else (1, 2, 5)
        values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        ticks = [value for value in values if self.low <= value <= self.high]
        return ticks if len(ticks) >= _MIN_TICKS else LinearAxis(self.low, self.high).ticks(2 * _MIN_TICKS)

    def binary_ticks(self, max_ticks: int = 10) -> list[float]:
        """Returns powers of two at equal distances, `max_ticks` of them at most."""
        first, last = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
        step = max(1, -(-(last - first + 1) // max_ticks))
        return [2.0**power for power in range(first, last + 1, step)]


@dataclass(frozen=True, slots=True)
class LinearAxis:
    """An axis from `low` to `high` on which equal distances are equal differences."""

    low: float
    high: float

    def of(self, value: float) -> float:
        """Returns the place of a value: 0 at the low end and below, 1 at the high end and above."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self, max_ticks: int) -> list[float]:
        """Returns round numbers at equal distances, at most `max_ticks` after the first; none on an empty axis."""
        length = self.high - self.low
        if length <= 0:
            return []
        power = 10.0 ** math.floor(math.log10(length / max_ticks))
        step = next(times * power for times in (1, 2, 5, 10) if length / (times * power) <= max_ticks)
        first, last = math.ceil(self.low / step * (1 - 1e-9)), math.floor(self.high / step * (1 + 1e-9))
        return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class PlotArea:
    """A frame on a canvas with an axis in each direction.

    `inset` is the room in pixels that the x axis leaves at both ends, so that the first and the last dot are whole.
    """

    left: float
    top: float
    width: float
    height: float
    across: LogAxis | LinearAxis
    up: LogAxis | LinearAxis
    inset: float = 0

    @property
    def right(self) -> float:
        """The x of the right side."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """The y of the lower side."""
        return self.top + self.height

    def x(self, value: float) -> float:
        """Returns where a value of the x axis is on the canvas."""
        return self.left + self.inset + self.across.of(value) * (self.width - 2 * self.inset)

    def y(self, value: float) -> float:
        """Returns where a value of the y axis is on the canvas."""
        return self.top + (1 - self.up.of(value)) * self.height

    def draw_ticks(
        self,
        canvas: Canvas,
        x_ticks: Sequence[float],
        y_ticks: Sequence[float],
        x_text: Callable[[float], str],
        y_text: Callable[[float], str],
    ) -> None:
        """Draws the lines of the grid, and below and left of them the values in words."""
        for tick in x_ticks:
            x = self.x(tick)
            canvas.line((x, self.top), (x, self.bottom), GRID)
            canvas.text(x, self.bottom + 20, x_text(tick), "middle")
        for tick in y_ticks:
            y = self.y(tick)
            canvas.line((self.left, y), (self.right, y), GRID)
            canvas.text(self.left - 8, y + 4, y_text(tick), "end")

    def draw_frame(self, canvas: Canvas, x_title: str, y_title: str) -> None:
        """Draws the frame and the titles of the axes."""
        canvas.rect(self.left, self.top, self.width, self.height, fill="none", stroke=FRAME)
        canvas.text(self.left + self.width / 2, self.bottom + 47, x_title, "middle")
        middle = self.top + self.height / 2
        canvas.text(19, middle, y_title, "middle", transform=f"rotate(-90 19 {_number(middle)})")
