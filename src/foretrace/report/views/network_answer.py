"""The views of what a collective takes: one answer, and a table over sizes or ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.units import format_bandwidth, format_count, format_difference, format_percent, format_time
from foretrace.report.answer_words import band_text, with_band
from foretrace.report.network import (
    CollectiveRecord,
    bound_text,
    candidates_table,
    limit_text,
    links_text,
    network_json,
    points_table,
    source_list,
    table_json,
    table_notes,
    table_titles,
    title_text,
    way_text,
    what_text,
    where_text,
)
from foretrace.report.page.blocks import Bar, Bars, Block, FactList, KeyFigure, KeyFigures, Picture, Section, Text, View
from foretrace.report.plots.heatmap import heatmap_svg, tiers_table
from foretrace.report.plots.network_plot import network_svg, over_of, size_text
from foretrace.report.views import AnswerKind
from foretrace.report.views.text_table import change_tone, notes_section, page_table
from foretrace.simulation.network.network import NetworkAnswer, NetworkTable

MAX_HOT: Final = 12
"""Links that are listed as the busiest."""


def network_view(answer: NetworkAnswer) -> View:
    """Makes the view of one collective."""
    sections = [_step(answer), *_candidates(answer), *_links(answer), *notes_section(answer.diagnostics)]
    return View(what_text(answer), "collective", sections, where_text(answer))


def _step(answer: NetworkAnswer) -> Section:
    figures = [KeyFigure("Time", format_time(answer.time_s), band_text(answer.time_s, *answer.band_s))]
    if answer.unchanged_time_s is not None:
        by = format_difference(answer.time_s, answer.unchanged_time_s)
        remark = f"on {format_time(answer.unchanged_time_s)} without"
        figures.append(KeyFigure("Change", by, remark, change_tone(answer.time_s, answer.unchanged_time_s)))
    facts = []
    if answer.busbw_bytes_per_s is not None and answer.algbw_bytes_per_s is not None:
        rates = f"{format_bandwidth(answer.algbw_bytes_per_s)} algorithm"
        rates += f", {format_bandwidth(answer.nic_bytes_per_s)} per NIC" if answer.nic_bytes_per_s else ""
        figures.append(KeyFigure("Bus bandwidth", format_bandwidth(answer.busbw_bytes_per_s), rates))
        if answer.bound_share is not None:
            share = format_percent(answer.bound_share)
            figures.append(KeyFigure("Of the bound", share, f"{format_time(answer.bound_s)}", share=answer.bound_share))
        facts.append(("bound", f"{format_time(answer.bound_s)}{bound_text(answer)}"))
    if answer.ranks > 1:
        facts += [("runs as", way_text(answer)), ("limit", limit_text(answer))]
    facts.append(("price", with_band(answer.source, *answer.source_band)))
    return Section("step", "The answer", (KeyFigures(figures), FactList(facts)))


def _candidates(answer: NetworkAnswer) -> Iterator[Section]:
    if len(answer.candidates) > 1:
        remark = "NCCL takes the one that it estimates to be the fastest"
        yield Section("ways", "How NCCL could run it", (page_table(candidates_table(answer), shown=20),), remark)


def _links(answer: NetworkAnswer) -> Iterator[Section]:
    run = answer.links
    if run is None:
        return
    loads = run.loads
    bars = [
        Bar(load.label, load.utilisation, format_percent(load.utilisation), "vermillion", _others(load.others))
        for load in loads.hottest(MAX_HOT)
    ]
    alt = f"how busy each of {format_count(loads.fabric.links)} links of {loads.fabric.name} is"
    blocks: list[Block] = [
        Text(f"On links {links_text(run)}; {format_count(run.messages)} messages."),
        Bars(bars, ("the hottest links", "of what they carry", "")),
        Picture(heatmap_svg(loads, title_text(answer)), alt),
        page_table(tiers_table(loads), summary="the links of each tier"),
    ]
    yield Section("links", "Links", blocks)


def _others(count: int) -> str:
    return f"and {format_count(count)} as busy" if count else ""


def network_table_view(results: NetworkTable) -> View:
    """Makes the view of a collective over sizes, ranks or both."""
    notes = table_notes(results)
    if results.interrupted:
        text = f"interrupted: {len(results.answers)} rows are finished"
        notes = (*notes, Diagnostic("warning", "interrupted", text))
    if not results.answers:
        return View("a collective", "collective", [Section("step", "The answer", (Text("No row is finished."),))])
    what, where = table_titles(results)
    sections = [
        _range(results),
        *_curve(results),
        Section("points", "All points", (page_table(points_table(results), shown=40),)),
        *_last_links(results),
        Section("prices", "Where the estimates come from", [Text(text) for text in source_list(results)]),
        *notes_section(notes),
    ]
    return View(what, "collective", sections, where)


def _range(results: NetworkTable) -> Section:
    """Returns the largest rate, and the shortest and the longest time."""
    answers, over = results.answers, over_of(results.answers)

    def at(answer: NetworkAnswer) -> str:
        size, ranks = size_text(answer.size_bytes), f"{format_count(answer.ranks)} ranks"
        return {"size": f"at {size}", "ranks": f"with {ranks}", "both": f"at {size} with {ranks}"}[over]

    fastest = max(answers, key=lambda answer: answer.busbw_bytes_per_s or 0.0)
    first, last = (select(answers, key=lambda answer: answer.time_s) for select in (min, max))
    figures = []
    if fastest.busbw_bytes_per_s is not None:
        figures.append(KeyFigure("Highest bus bandwidth", format_bandwidth(fastest.busbw_bytes_per_s), at(fastest)))
    figures.append(KeyFigure("Shortest time", format_time(first.time_s), at(first)))
    figures.append(KeyFigure("Longest time", format_time(last.time_s), at(last)))
    return Section("step", "The answer", (KeyFigures(figures),))


def _curve(results: NetworkTable) -> Iterator[Section]:
    if len(results.answers) > 1 and any(answer.busbw_bytes_per_s for answer in results.answers):
        over = "ranks" if over_of(results.answers) == "ranks" else "size"
        alt = f"bus bandwidth over {over}, with the bound at line rates"
        picture = Picture(network_svg(results.answers), alt)
        yield Section("curve", "Bus bandwidth", (picture,), f"over {over}, both logarithmic")


def _last_links(results: NetworkTable) -> Iterator[Section]:
    last = results.answers[-1]
    for section in _links(last):
        yield Section(section.key, section.title, section.blocks, f"under {title_text(last)}")


KINDS: Final = (
    AnswerKind(
        NetworkAnswer,
        network_view,
        network_json,
        main_table="candidates",
        notebook_sections=("step", "ways", "notes"),
        records=(CollectiveRecord,),
    ),
    AnswerKind(
        NetworkTable,
        network_table_view,
        table_json,
        main_table="points",
        notebook_sections=("step", "curve", "points", "notes"),
    ),
)
