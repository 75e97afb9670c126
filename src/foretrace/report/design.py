"""Defines the look of every output once: colours, spacing and sizes of type, for terminal, SVG and HTML.

A colour has a name, a hex value for light pages, another for dark ones, and a style of the terminal. SVG files use the
light value. HTML uses the variable of the name (`var(--blue)`), which `css_variables` sets for both schemes.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Colour(NamedTuple):
    """A colour on light and on dark pages, and the nearest style of a terminal."""

    light: str
    dark: str
    style: str


SERIES: Final = {
    "blue": Colour("#0072b2", "#4da6e0", "blue"),
    "vermillion": Colour("#d55e00", "#ff8a4c", "red"),
    "green": Colour("#009e73", "#2fbf95", "green"),
    "purple": Colour("#cc79a7", "#e29cc2", "magenta"),
    "orange": Colour("#e69f00", "#f2b632", "yellow"),
    "sky": Colour("#56b4e9", "#86cbf3", "cyan"),
    "wine": Colour("#882255", "#d0759f", "bright_red"),
    "grey": Colour("#666666", "#9aa3ad", "bright_black"),
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

GRID, FRAME, MUTED, CARD = (SURFACES[name][0] for name in ("line", "frame", "muted", "card"))
"""The colours of grids, frames, remarks and of what lies behind them in pictures."""

SPACES: Final = (4, 8, 12, 16, 24, 40)
"""Distances in pixels, `--s1` to `--s6`."""

TYPE_SIZES: Final = {"small": 12, "body": 14, "h2": 16, "h1": 20, "figure": 34}
"""Sizes of type in pixels, `--t-small` to `--t-figure`."""

PART_COLOURS: Final = {
    "compute": "green",
    "recompute": "wine",
    "optimizer": "sky",
    "bubble": "vermillion",
    "imbalance": "purple",
    "straggler": "purple",
    "host": "grey",
    "idle": "grey",
}
"""The colour of each part of a breakdown; exposed communication, of any axis, is blue."""

PHASE_COLOURS: Final = {
    "none": "green",
    "forward": "green",
    "backward": "orange",
    "backward_input": "orange",
    "backward_weight": "vermillion",
    "recompute": "wine",
    "optimizer": "sky",
}
"""The colour of each phase where compute is divided by phase; communication, of any axis, is blue, the host grey."""

_HEX: Final = re.compile(r'(?<=")#[0-9a-f]{6}(?=")')
_VARIABLES: Final = {
    **{colour.light: f"var(--{name})" for name, colour in SERIES.items()},
    **{light: f"var(--{name})" for name, (light, _) in SURFACES.items() if name in ("line", "frame", "muted", "card")},
}


def part_colour(part: str) -> str:
    """Returns the name of the colour of a part of a breakdown."""
    return PART_COLOURS.get(part, "blue")


def css_variables(element: str = ":root") -> str:
    """Returns the style sheet that sets the variables of the design on an element, for both schemes and for paper."""
    light = [f"--{name}: {colour.light};" for name, colour in SERIES.items()]
    light += [f"--{name}: {pair[0]};" for name, pair in SURFACES.items()]
    dark = [f"--{name}: {colour.dark};" for name, colour in SERIES.items()]
    dark += [f"--{name}: {pair[1]};" for name, pair in SURFACES.items()]
    sizes = [f"--s{number}: {size}px;" for number, size in enumerate(SPACES, 1)]
    sizes += [f"--t-{name}: {size}px;" for name, size in TYPE_SIZES.items()]
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
