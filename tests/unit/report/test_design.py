"""Colours: they mean the same everywhere, can be told apart, and follow the scheme of a page."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from itertools import combinations, pairwise
from pkgutil import iter_modules
from typing import Final
from xml.etree import ElementTree

import numpy as np
import pytest

from foretrace import Machine, load_cluster, network
from foretrace.hardware.fabric.fabric import Device, Fabric
from foretrace.program.columns import Category, Phase, label
from foretrace.readings.answer.memory_fit import MemoryFit, ProcessMemory, StageMemory
from foretrace.readings.links import LinkLoads
from foretrace.readings.memory import MemoryTrack
from foretrace.readings.roofline import RooflinePoint
from foretrace.report import plots
from foretrace.report.design import (
    HEAT,
    LONGER,
    MEMORY_COLOURS,
    SERIES,
    SHORTER,
    SURFACES,
    TONES,
    css_variables,
    heat_colour,
    part_colour,
    with_variables,
)
from foretrace.report.plots.curves import Axes, Curve, Dot, curves_svg
from foretrace.report.plots.heatmap import heatmap_svg
from foretrace.report.plots.memory_plot import memory_svg
from foretrace.report.plots.network_plot import network_svg
from foretrace.report.plots.plan_front import plan_front_svg, searched_plans_svg
from foretrace.report.plots.roofline_plot import roofline_svg
from foretrace.report.plots.scatter import Point, scatter_svg
from foretrace.report.plots.waterfall import waterfall_svg
from foretrace.search.progress import SearchedPlan, SearchedPlans
from plan_searches import search

MIN_LIGHTNESS: Final = 7
MIN_DISTANCE: Final = 7
"""The distance of colours that touch, by CIEDE2000."""
VISIONS: Final = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}
"""How people see linear RGB: Machado, Oliveira and Fernandes, IEEE TVCG 15 (2009), table 1, severity 1.0."""
TOUCHING: Final = (
    ("compute", "recompute", "optimizer", "pp exposed", "tp exposed", "ep exposed", "dp exposed", "bubble", "host"),
    ("forward", "backward"),
    ("backward", "backward_weight"),
    ("backward_input", "backward_weight"),
)
"""Parts in the order in which they are drawn next to each other."""
AXES: Final = ("tp", "pp", "dp", "ep", "cp", "edp")


def lightness(colour: str) -> float:
    """Returns the lightness L* of CIE 1976."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return float(116 * np.cbrt(0.2126 * red + 0.7152 * green + 0.0722 * blue) - 16)


def linear_of(colour: str) -> np.ndarray:
    """Returns the linear RGB of a colour."""
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab_of(linear: np.ndarray) -> np.ndarray:
    """Returns the CIE L*a*b* of linear RGB under D65."""
    matrix = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    white = np.array([0.95047, 1, 1.08883])
    share = np.array(matrix) @ np.clip(linear, 0, 1) / white
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the CIEDE2000 distance: Sharma, Wu and Dalal, Color Research and Application 30 (2005)."""
    (l1, a1, b1), (l2, a2, b2) = first, second
    chroma = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    grey = 0.5 * (1 - np.sqrt(chroma**7 / (chroma**7 + 25**7)))
    c1, c2 = np.hypot(a1 * (1 + grey), b1), np.hypot(a2 * (1 + grey), b2)
    h1, h2 = (np.degrees(np.arctan2(b, a * (1 + grey))) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180
    hue = (h1 + turn / 2) % 360
    light, mean = (l1 + l2) / 2, (c1 + c2) / 2
    waves = (1, -0.17, -30), (2, 0.24, 0), (3, 0.32, 6), (4, -0.2, -63)
    weight = 1 + sum(size * np.cos(np.radians(times * hue + shift)) for times, size, shift in waves)
    by_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2))
    by_chroma = (c2 - c1) / (1 + 0.045 * mean)
    by_hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * mean * weight)
    turned = -2 * np.sqrt(mean**7 / (mean**7 + 25**7)) * np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    return float(np.sqrt(by_light**2 + by_chroma**2 + by_hue**2 + turned * by_chroma * by_hue))


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_parts_that_touch_can_be_told_apart(scheme: str, vision: str) -> None:
    named = {**SERIES, **TONES}
    orders = [*([part_colour(part) for part in parts] for parts in TOUCHING), list(MEMORY_COLOURS.values())]
    for order in orders:
        for names in pairwise(order):
            first, second = (lab_of(VISIONS[vision] @ linear_of(getattr(named[name], scheme))) for name in names)
            assert distance(first, second) > MIN_DISTANCE, names


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "muted", "accent", "good", "bad"])
def test_text_contrasts_with_what_it_lies_on(name: str, scheme: int) -> None:
    for surface in ("page", "card", "raised"):
        weights = np.array([0.2126, 0.7152, 0.0722])
        low, high = sorted(float(weights @ linear_of(SURFACES[key][scheme])) for key in (name, surface))
        assert (high + 0.05) / (low + 0.05) >= 4.5, surface


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axes_differ_in_lightness(scheme: str) -> None:
    tones = {axis: lightness(getattr(TONES[part_colour(axis)], scheme)) for axis in AXES}
    for first, second in combinations(AXES, 2):
        assert abs(tones[first] - tones[second]) > MIN_LIGHTNESS, (first, second)


def test_a_part_has_one_colour_in_breakdowns_pipelines_and_paths() -> None:
    for axis in AXES:
        assert part_colour(axis) == part_colour(f"{axis} exposed") == f"axis-{axis}"
    assert part_colour("an axis of a user exposed") == "blue"
    assert part_colour("backward") != part_colour("forward")
    assert {part_colour(label(phase)) for phase in Phase} <= {*SERIES, *TONES}
    assert MEMORY_COLOURS["optimizer"] == part_colour("optimizer")
    assert LONGER != SHORTER


def test_the_scale_of_heat_goes_from_the_page_away() -> None:
    light, dark = ([lightness(pair[scheme]) for pair in HEAT] for scheme in (0, 1))
    assert light == sorted(light, reverse=True)
    assert dark == sorted(dark)
    assert [heat_colour(share) for share in (-1, 0, 1, 2)] == [HEAT[0][0], HEAT[0][0], HEAT[-1][0], HEAT[-1][0]]


def _curves() -> str:
    dots = tuple(Dot(2.0**n, 10.0**n, f"group {n % 2}") for n in range(4))
    axes = Axes("x", "y", str, str)
    several = [Curve(f"curve {number}", dots) for number in range(20)]
    return curves_svg([*several, Curve("bound", dots, limit=True)], axes, "") + curves_svg(
        [Curve("one", dots)], axes, ""
    )


def _heatmap() -> str:
    labels = ("leaf 0", "leaf 1", "spine 0", "spine 1")
    source, target = np.array([(0, 2), (0, 3), (1, 2), (2, 0), (3, 0), (2, 1)], dtype=np.int64).T
    kind = np.array([Device.LEAF, Device.LEAF, Device.SPINE, Device.SPINE], dtype=np.int8)
    rate = np.full(len(source), 100.0)
    fabric = Fabric("two levels", 0, 1, kind, labels, source, target, rate, np.zeros(len(source)))
    return heatmap_svg(LinkLoads(fabric, ("dp",), np.linspace(0.0, 100.0, len(source))[None, :], 1.0), "")


def _memory() -> str:
    held = np.full((3, len(Category)), 2**30, dtype=np.int64)
    held[1] *= 2
    track = MemoryTrack(0, np.array([0.0, 1.0, 2.0]), held, 0, 0)
    stage = StageMemory("stage 0", 8, track.peak_bytes, track.at_peak(), (0, 2**30, 2**31), track)
    return memory_svg(MemoryFit((stage,), ProcessMemory(2**36)), stage, 3.0, "")


def _roofline() -> str:
    points = [
        RooflinePoint(f"op {number}", "", 1.0 / (1 + number), 1e12, 1e9, 1e-2, "bf16" if number % 2 else "")
        for number in range(14)
    ]
    return roofline_svg(points, load_cluster("h100-dgx").gpu, "")


def _scatter() -> str:
    return scatter_svg([Point("a", "first", 1.0, 1.1, (0.9, 1.2)), Point("b", "second", 2.0, 2.0)], "")


def _waterfall() -> str:
    return waterfall_svg(("A", 1.0), ("B", 1.1), [("compute", 0.3), ("bubble", -0.2)], "")


def _network() -> str:
    return network_svg(
        [network("all-reduce", size, Machine("h100-dgx", prices="model"), ranks=8) for size in (2**20, 2**24)]
    )


PLOTS: Final[dict[str, Callable[[], str]]] = {
    "curves_svg": _curves,
    "heatmap_svg": _heatmap,
    "memory_svg": _memory,
    "network_svg": _network,
    "plan_front_svg": lambda: plan_front_svg(search(), ""),
    "roofline_svg": _roofline,
    "scatter_svg": _scatter,
    "searched_plans_svg": lambda: searched_plans_svg(
        SearchedPlans(
            3,
            2,
            [SearchedPlan("--tp 2", 1.0, 9 << 30, True), SearchedPlan("--tp 4", 2.0, 8 << 30, True)],
            [SearchedPlan("--tp 8", 3.0, 8 << 30, False)],
        ),
        "",
    ),
    "waterfall_svg": _waterfall,
}


def test_every_plot_is_listed() -> None:
    modules = [import_module(f"{plots.__name__}.{module.name}") for module in iter_modules(plots.__path__)]
    drawing = {name for module in modules for name, value in vars(module).items() if name.endswith("_svg") and value}
    assert {name for name in drawing if not name.startswith("_")} == set(PLOTS)


@pytest.mark.parametrize("name", PLOTS)
def test_all_colours_of_a_plot_follow_the_scheme(name: str) -> None:
    defined = set(re.findall(r"--([\w-]+):", css_variables()))
    for svg in PLOTS[name]().split("</svg>")[:-1]:
        page, *parts = list(ElementTree.fromstring(with_variables(f"{svg}</svg>")).iter())[1:]
        assert page.attrib["fill"] == "white"  # the page of a file, which a page leaves out
        for part in parts:
            for colour in (part.attrib.get("fill", "none"), part.attrib.get("stroke", "none")):
                variable = re.fullmatch(r"var\(--([\w-]+)\)", colour)
                assert colour == "none" or (variable and variable[1] in defined), ElementTree.tostring(part)
