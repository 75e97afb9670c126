"""Colours: they mean the same everywhere, can be told apart, and follow the scheme of a page."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from itertools import combinations
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
AXES: Final = ("tp", "pp", "dp", "ep", "cp", "edp")


def lightness(colour: str) -> float:
    """Returns the lightness L* of CIE 1976."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return float(116 * np.cbrt(0.2126 * red + 0.7152 * green + 0.0722 * blue) - 16)


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
