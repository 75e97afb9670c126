"""The picture of plans by time and memory."""

from __future__ import annotations

from xml.etree import ElementTree

from foretrace.report.plots.plan_front import plan_front_svg
from foretrace.report.svg import ORANGE
from plan_searches import BEST, search

SVG = "{http://www.w3.org/2000/svg}"


def test_every_plan_is_drawn_once_and_the_unclear_ones_are_marked() -> None:
    root = ElementTree.fromstring(plan_front_svg(search(), "a < b"))
    circles = list(root.iter(f"{SVG}circle"))
    titled = [circle for circle in circles if circle.find(f"{SVG}title") is not None]
    rings = [circle for circle in circles if circle.attrib.get("stroke") == ORANGE]
    assert len(titled) == 4 + 1  # and the best again, on top
    assert len(rings) == 3 + 1  # and one in the legend
    (stairs,) = root.iter(f"{SVG}polyline")
    assert len(stairs.attrib["points"].split()) == 5  # three plans, a step between two of them


def test_a_single_plan_has_axes_too() -> None:
    alone = search(plans=(BEST,), front=(BEST,), indistinguishable=(), measure_first=())
    root = ElementTree.fromstring(plan_front_svg(alone, "one"))
    places = [float(circle.attrib["cx"]) for circle in root.iter(f"{SVG}circle")]
    assert all(0 < place < 1000 for place in places)
    assert not list(root.iter(f"{SVG}polyline"))
