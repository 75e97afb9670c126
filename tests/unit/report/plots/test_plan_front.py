"""The picture of plans by time and memory."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from foretrace.report.design import ORANGE
from foretrace.report.plots.plan_front import plan_front_svg
from plan_searches import BEST, SMALL, search

SVG = "{http://www.w3.org/2000/svg}"


def test_every_plan_is_drawn_and_the_unclear_ones_are_marked() -> None:
    root = ElementTree.fromstring(plan_front_svg(search(), "a < b"))
    circles = [circle for circle in root.iter(f"{SVG}circle") if circle.find(f"{SVG}title") is not None]
    places = {(circle.attrib["cx"], circle.attrib["cy"]) for circle in circles}
    marked = {(circle.attrib["cx"], circle.attrib["cy"]) for circle in circles if circle.attrib.get("stroke") == ORANGE}
    assert len(places) == 4 and len(marked) == 3
    (stairs,) = root.iter(f"{SVG}polyline")
    assert len(stairs.attrib["points"].split()) == 5  # three plans, a step between two of them


def test_plans_that_are_far_slower_are_counted_only() -> None:
    slow = replace(SMALL, step_time_s=40.0, plan=replace(SMALL.plan, mbs=8))
    root = ElementTree.fromstring(plan_front_svg(search(front=(*search().front, slow)), "a"))
    assert any("1 slower" in (text.text or "") and "40.00 s" in (text.text or "") for text in root.iter(f"{SVG}text"))
    (stairs,) = root.iter(f"{SVG}polyline")
    assert len(stairs.attrib["points"].split()) == 5


def test_a_single_plan_has_axes_too() -> None:
    alone = search(plans=(BEST,), front=(BEST,), indistinguishable=(), measure_first=())
    root = ElementTree.fromstring(plan_front_svg(alone, "one"))
    places = [float(circle.attrib["cx"]) for circle in root.iter(f"{SVG}circle")]
    assert all(0 < place < 1000 for place in places)
    assert not list(root.iter(f"{SVG}polyline"))
