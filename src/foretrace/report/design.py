"""Defines the look of every output once: colours, spacing and sizes of type, for terminal, SVG and HTML.

A colour has a name, a hex value for light pages, another for dark ones, and a style of the terminal. SVG files use the
light value. HTML uses the variable of the name (`var(--blue)`), which `css_variables` sets for both schemes. All other
modules name colours by what they mean: `part_colour`, `change_colour`, `MEMORY_COLOURS`, `heat_colour`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple


class Colour(NamedTuple):
    """A colour on light and on dark pages, and the nearest style of a terminal."""

    light: str
    dark: str
    style: str


SERIES: Final = {
    "blue": Colour("#0072b2", "#4da6e0", "blue"),
    "vermillion": Colour("#d55e00", "#e8713d", "red"),
    "green": Colour("#009e73", "#2fbf95", "green"),
    "purple": Colour("#cc79a7", "#efd0e0", "magenta"),
    "orange": Colour("#e69f00", "#f2b632", "yellow"),
    "sky": Colour("#56b4e9", "#74defa", "cyan"),
    "wine": Colour("#882255", "#b962a8", "bright_red"),
    "grey": Colour("#666666", "#6f7883", "bright_black"),
}
"""The colours of curves and groups, in the order in which they are used.

Readers with colour blindness can tell them apart: they are those of Okabe and Ito, Color Universal Design (2008). Their
yellow, which is too light for lines on white, is replaced by the wine of Paul Tol's schemes.
"""

SURFACES: Final = {
    "page": ("#f6f7f9", "#14171b"),
    "card": ("#ffffff", "#1d2126"),
    "raised": ("#eef1f5", "#272c33"),
    "ink": ("#1b1f24", "#e8ebee"),
    "muted": ("#555555", "#a9b1ba"),
    "line": ("#e6e6e6", "#363c44"),
    "frame": ("#444444", "#8b949e"),
    "accent": ("#005f95", "#6cb8ea"),
    "good": ("#00704f", "#43cfa6"),
    "bad": ("#a84300", "#ff9b66"),
}
"""Colours of pages and of text, on light and on dark pages. Text in `accent`, `good` or `bad` has a contrast of 4.5 and
more on all surfaces."""

BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, WINE, GREY = (colour.light for colour in SERIES.values())
COLOURS: Final = tuple(colour.light for colour in SERIES.values())
STYLES: Final = tuple(colour.style for colour in SERIES.values())
"""Styles of a terminal, in the order of `COLOURS`."""

GRID, FRAME, MUTED, CARD, INK = (SURFACES[name][0] for name in ("line", "frame", "muted", "card", "ink"))
"""The colours of grids, frames, remarks, of what lies behind them in pictures, and of text on that."""

SPACES: Final = (4, 8, 12, 16, 24, 40)
"""Distances in pixels, `--s1` to `--s6`."""

RADII: Final = {"control": 6, "card": 10}
"""Radii of corners in pixels, `--r-control` and `--r-card`."""

SHADOWS: Final = {"menu": "0 6px 20px rgb(0 0 0 / 18%)", "dialog": "0 16px 48px rgb(0 0 0 / 30%)"}
"""Shadows of what lies on top of a page, `--shadow-menu` and `--shadow-dialog`."""

TYPE_SIZES: Final = {"small": 12, "body": 14, "h2": 16, "h1": 20, "figure": 34}
"""Sizes of type in pixels, `--t-small` to `--t-figure`."""


def mix(first: str, second: str, share: float) -> str:
    """Returns the colour that is `share` of the way from the first to the second."""
    pairs = ((int(first[at : at + 2], 16), int(second[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(low + share * (high - low)):02x}" for low, high in pairs)


TONES: Final = {
    "forward": Colour("#007656", "#238f70", "green"),
    "backward-input": Colour("#f0c566", "#82661c", "yellow"),
    "axis-dp": Colour("#0b3350", "#cfe6f6", "blue"),
    "axis-ep": Colour("#4f3f9e", "#6f63d8", "blue"),
    "axis-tp": SERIES["blue"],
    "axis-cp": Colour("#3c8fa3", "#3f93a5", "blue"),
    "axis-edp": Colour("#9c93d6", "#b9b2f5", "blue"),
    "axis-pp": Colour("#b5d6ea", "#3d6582", "blue"),
    "axis-etp": Colour("#7d5fc6", "#9a7cf0", "blue"),
    "axis-embd": Colour("#8796a5", "#8796a5", "blue"),
}
"""Tones of the series where one colour stands for several things: communication on each axis, kinds of passes.

Those of axes lie between teal, blue and violet, and the common ones differ by ten and more in lightness (CIE L*) on
both pages, so that readers with colour blindness can tell them apart. Forward is darker than the green of compute for
the same reason: a pipeline shows it next to orange.
"""

COLOUR_OF: Final = {
    "compute": "green",
    "recompute": "wine",
    "optimizer": "sky",
    "bubble": "vermillion",
    "imbalance": "purple",
    "straggler": "purple",
    "host": "grey",
    "idle": "grey",
    "none": "green",
    "forward": "forward",
    "backward": "orange",
    "backward_input": "backward-input",
    "backward_weight": "vermillion",
}
"""The colour of each part of a breakdown and of each phase of compute; that of communication depends on its axis."""

LONGER, SHORTER = "vermillion", "green"
"""The colours of changes that make a step longer and shorter."""

MEMORY_COLOURS: Final = {
    "weights": "blue",
    "optimizer": "sky",
    "gradients": "purple",
    "buffers": "grey",
    "activations": "green",
    "temporaries": "orange",
}
"""The colour of each kind of memory."""

_HEAT_LIGHT: Final = ((0.0, "#f2f5f8"), (0.35, "#fde08b"), (0.65, "#f4873b"), (1.0, "#a50f28"))
_HEAT_DARK: Final = ((0.0, "#2b3138"), (0.35, "#6b2f4f"), (0.65, "#d9603b"), (1.0, "#fde08b"))
_HEAT_STEPS: Final = 24


def _between(stops: Sequence[tuple[float, str]], share: float) -> str:
    """Returns the colour at a share of a scale, between the two stops around it."""
    for (low, first), (high, second) in pairwise(stops):
        if share <= high:
            return mix(first, second, (share - low) / (high - low))
    return stops[-1][1]


HEAT: Final = tuple(
    (_between(_HEAT_LIGHT, step / _HEAT_STEPS), _between(_HEAT_DARK, step / _HEAT_STEPS))
    for step in range(_HEAT_STEPS + 1)
)
"""The scale of how busy something is, on light and on dark pages: idle is close to the page, busy far from it."""


def heat_colour(share: float) -> str:
    """Returns the colour of a share of the scale, on light pages."""
    return HEAT[round(min(max(share, 0.0), 1.0) * _HEAT_STEPS)][0]


class Shade(NamedTuple):
    """A colour of a picture, and how opaque it is: several shades of one colour stay in both schemes."""

    colour: str
    opacity: float = 1.0

    @property
    def fill(self) -> dict[str, str | float]:
        """The attributes of what is filled with it."""
        return {"fill": self.colour} if self.opacity == 1.0 else {"fill": self.colour, "fill_opacity": self.opacity}


_HEX: Final = re.compile(r'(?<=")#[0-9a-f]{6}(?=")')
_NAMED: Final = {
    **{f"heat-{step}": pair for step, pair in enumerate(HEAT)},
    **{name: tone[:2] for name, tone in TONES.items()},
    **{name: SURFACES[name] for name in ("line", "frame", "muted", "card", "ink")},
    **{name: colour[:2] for name, colour in SERIES.items()},
}
_VARIABLES: Final = {light: f"var(--{name})" for name, (light, _) in _NAMED.items()}


def part_colour(part: str) -> str:
    """Returns the name of the colour of a part of a breakdown or of a critical path.

    Communication on an axis (`tp`, `tp exposed`) has the tone of the axis; that on an axis without a tone is blue.
    """
    axis = f"axis-{part.partition(' ')[0]}"
    return COLOUR_OF.get(part) or (axis if axis in TONES else "blue")


def part_style(part: str) -> str:
    """Returns the style of a part on a terminal."""
    name = part_colour(part)
    return (TONES[name] if name in TONES else SERIES[name]).style


def change_colour(change: float) -> str:
    """Returns the name of the colour of a change of time."""
    return LONGER if change > 0 else SHORTER


def css_variables(element: str = ":root") -> str:
    """Returns the style sheet that sets the variables of the design on an element, for both schemes and for paper."""
    pairs = {**SURFACES, **_NAMED}
    light, dark = ([f"--{name}: {pair[scheme]};" for name, pair in pairs.items()] for scheme in (0, 1))
    sizes = [f"--s{number}: {size}px;" for number, size in enumerate(SPACES, 1)]
    sizes += [f"--t-{name}: {size}px;" for name, size in TYPE_SIZES.items()]
    sizes += [f"--r-{name}: {radius}px;" for name, radius in RADII.items()]
    sizes += [f"--shadow-{name}: {shadow};" for name, shadow in SHADOWS.items()]
    values, dark_values = " ".join(light + sizes), " ".join(dark)
    return "\n".join(
        [
            f"{element} {{ color-scheme: light dark; {values} }}",
            "@media screen and (prefers-color-scheme: dark) "
            f"{{ {element}:not([data-theme=light]) {{ {dark_values} }} }}",
            f"@media screen {{ {element}[data-theme=dark] {{ color-scheme: dark; {dark_values} }} }}",
            f"{element}[data-theme=light] {{ color-scheme: light; }}",
            "",
        ]
    )


def with_variables(svg: str) -> str:
    """Returns a picture whose colours are the variables of the design, so that they follow the page's scheme."""
    return _HEX.sub(lambda match: _VARIABLES.get(match.group(), match.group()), svg)
