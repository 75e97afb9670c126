"""Writes answers: a screen or JSON on stdout, files next to it, remarks on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from foretrace.basics.errors import ForetraceError
from foretrace.basics.origin import origin_of_command
from foretrace.basics.outputs import write_text
from foretrace.report.json import write_json
from foretrace.report.wrap import fit_text

if TYPE_CHECKING:
    from foretrace.cli.groups import OutputOptions, TimelineOptions
    from foretrace.readings.answer.answer import Answer
    from foretrace.report.page.blocks import View


def emit(
    result: Callable[[], dict[str, Any]],
    screen: Callable[[], object],
    output: OutputOptions,
    view: Callable[[], View] | None = None,
) -> None:
    """Writes the JSON and the page to files where they are named, and prints the JSON or the screen.

    Args:
        result: Makes the JSON.
        screen: Prints the screen.
        output: What is asked for.
        view: Makes the page; None for what has none.
    """
    if output.html is not None:
        assert view is not None, "a command with --html makes pages"
        write_page([view()], output.html)
    if output.file is not None or output.as_json:
        values = result()
        if output.file is not None:
            write_json(values, output.file)
        if output.as_json:
            print(json.dumps(values, allow_nan=False))
            return
    screen()


def write_page(views: Sequence[View], path: Path) -> None:
    """Writes a page of some answers, with the command and the files that they were made from."""
    from foretrace.report.page.document import report_html
    from foretrace.report.page.origin import with_origin

    write_text(path, report_html(with_origin(views, origin_of_command())), "page")
    wrote(path, " and ".join(dict.fromkeys(view.kind for view in views)))


def fail_after_answer(error: ForetraceError, output: OutputOptions) -> NoReturn:
    """Ends a command whose answer is printed with an error: as lines on stderr, even where stdout holds JSON."""
    if not output.as_json:
        raise error
    print(fit_text(f"error: {error}", sys.stderr), file=sys.stderr)
    raise typer.Exit(error.exit_code)


def wrote(path: Path, what: object) -> None:
    """Says on stderr what was written."""
    print(fit_text(f"{path}: {what}", sys.stderr), file=sys.stderr)


def write_picture(path: Path | None, svg: Callable[[], str], what: str) -> None:
    """Writes a picture where one is asked for."""
    if path is not None:
        write_text(path, svg(), "picture")
        wrote(path, what)


def write_files(answer: Answer, files: TimelineOptions) -> Callable[[], None]:
    """Writes the files that a timeline was asked for in; returns what prints their part of the screen."""
    if files.perfetto is not None:
        from foretrace.export.perfetto import write_perfetto

        summary = write_perfetto(answer.timeline, files.perfetto, ranks=files.ranks, memory=answer.memory_by_rank())
        wrote(files.perfetto, summary)
    if files.traces is not None:
        write_traces(answer, files.traces, files.ranks)
    if files.save is not None:
        answer.save(files.save)
        wrote(files.save, f"a step on {answer.world_size:,} ranks")
    return _draw_links(answer, files.heatmap)


def write_traces(answer: Answer, folder: Path, ranks: list[int] | None) -> None:
    """Writes the timeline as rank traces, and says what was written and left out."""
    from foretrace.export.megatron_trace import timeline_facts, timeline_traces
    from foretrace.inputs.megatron_trace.format import write_runs

    traces = timeline_traces(answer.timeline, ranks)
    written = write_runs(traces, folder, timeline_facts(answer.timeline))
    wrote(folder, f"{len(written.paths)} traces of {answer.world_size:,} ranks")
    notes = (*written.diagnostics, *(note for trace in traces for note in trace.diagnostics))
    for text in dict.fromkeys(note.message for note in notes):
        print(fit_text(f"note: {text}", sys.stderr), file=sys.stderr)


def _draw_links(answer: Answer, heatmap: Path | None) -> Callable[[], None]:
    if heatmap is None:
        return lambda: None
    from foretrace.basics.units import format_time
    from foretrace.readings.links import link_loads
    from foretrace.report.plots.heatmap import heatmap_svg, print_heatmap

    loads = link_loads(answer)
    title = f"a step of {format_time(answer.step_time_s)} on {answer.world_size:,} GPUs of {loads.fabric.name}"
    write_picture(heatmap, lambda: heatmap_svg(loads, title), f"{loads.fabric.links:,} links")
    return lambda: print_heatmap(loads)
