"""`foretrace explain` of a profiler's traces: one screen, one question's screen, a drawing, or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.errors import UsageError

if TYPE_CHECKING:
    from foretrace.analysis.trace import ProfilerTrace


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to say of traces, and where."""

    view: str | None
    op: str
    hta_steps: bool
    as_json: bool
    output: Path | None
    plot: Path | None


def explain_traces(paths: Sequence[Path], wanted: Wanted, useless: Mapping[str, object]) -> None:
    """Reads traces and says what is asked."""
    from foretrace.cli.options import check_svg

    given = [name for name, value in useless.items() if value is not None]
    if given:
        raise UsageError(
            f"{' and '.join(given)}: a profiler's trace is explained as it was recorded",
            hint="what else it could be: foretrace simulate; the trace itself opens in ui.perfetto.dev",
        )
    check_svg(wanted.plot)
    if wanted.op and wanted.view != "sequences":
        raise UsageError("--op is about sequences of kernels", hint="add --view sequences")
    if wanted.view == "diff":
        _explain_diff(paths, wanted)
        return
    trace = _read(paths, wanted)
    if wanted.plot is not None:
        _plot(trace, wanted)

    def shown() -> None:
        from foretrace.report.trace_summary import print_summary
        from foretrace.report.trace_views import print_view

        if wanted.view is None:
            print_summary(trace)
        else:
            print_view(trace, wanted.view, wanted.op)

    def answer() -> dict[str, Any]:
        from foretrace.report.trace_json import trace_json

        return trace_json(trace, wanted.view, wanted.op)

    _say(wanted, answer, shown)


def _explain_diff(paths: Sequence[Path], wanted: Wanted) -> None:
    if len(paths) != 2 or wanted.plot is not None:
        what = "--plot" if wanted.plot is not None else f"{len(paths)} path{'' if len(paths) == 1 else 's'}"
        raise UsageError(f"{what}: --view diff compares two traces", hint="foretrace explain BEFORE AFTER --view diff")
    found = _read(paths[:1], wanted).diff(_read(paths[1:], wanted))

    def shown() -> None:
        from foretrace.report.trace_views import print_diff

        print_diff(found)

    def answer() -> dict[str, Any]:
        from foretrace.report.trace_json import diff_json

        return diff_json(found)

    _say(wanted, answer, shown)


def _read(paths: Sequence[Path], wanted: Wanted) -> ProfilerTrace:
    from foretrace.analysis.trace import ProfilerTrace
    from foretrace.cli.progress import Progress

    name = str(paths[0]) if len(paths) == 1 else f"{len(paths)} traces"
    with Progress(f"reading {name}"):
        return ProfilerTrace.load(paths, hta_steps=wanted.hta_steps)


def _plot(trace: ProfilerTrace, wanted: Wanted) -> None:
    import sys

    from foretrace.files import write_text
    from foretrace.report.trace_plot import trace_svg

    assert wanted.plot is not None
    write_text(wanted.plot, trace_svg(trace, wanted.view))
    print(f"{wanted.plot}: {wanted.view or 'the step'}", file=sys.stderr)


def _say(wanted: Wanted, answer: Any, shown: Any) -> None:
    import json

    from foretrace.report.json import write_json

    if wanted.output is not None:
        write_json(answer(), wanted.output)
    if wanted.as_json:
        print(json.dumps(answer(), allow_nan=False))
    else:
        shown()
