"""How fluently a page pans and zooms the pipeline of a step, in Chromium: `python benchmarks/gantt.py [--seconds 3]`.

Two charts are opened from disk: (a) a job of 16 pipeline stages with 512 microbatches, (b) its 16 rows of compute
repeated to 100,000 bars, the most that a page is given. Each is panned at half of its length and at 1/32, and zoomed,
by a wheel event in every frame. Frames per second are limited to 60 by the browser; Chromium runs without a GPU, as on
a machine that has none. Needs Playwright for Python, and Chromium: `$CHROMIUM`, `/usr/bin/chromium`, or Playwright's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from foretrace import Machine, Plan, model, simulate
from foretrace.report.page.document import report_script, style_sheet
from foretrace.report.page.gantt_bars import MAX_BARS, GanttBars
from foretrace.report.page.gantt_chart import GanttChart, gantt_chart
from foretrace.report.page.markup import script_json

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ui.chromium import CHROMIUM, CHROMIUM_OPTIONS

VIEWPORT = (1280, 900)

MOVE = """
async ([mode, seconds]) => {
  const canvas = document.querySelector("canvas");
  const place = { bubbles: true, cancelable: true, clientX: 640, clientY: 300 };
  const frame = () => new Promise(requestAnimationFrame);
  const wheel = (facts) => canvas.dispatchEvent(new WheelEvent("wheel", { ...place, ...facts }));
  await frame();
  const times = [await frame()];
  for (let i = 0; times.at(-1) - times[0] < 1000 * seconds; i++) {
    const back = i % 60 < 30 ? 1 : -1;
    if (mode === "zoom") wheel({ deltaY: -back * 20, ctrlKey: true });
    else wheel({ deltaY: back * 12, shiftKey: true });
    times.push(await frame());
  }
  const lengths = times.slice(1).map((time, i) => time - times[i]);
  const total = times.at(-1) - times[0];
  return { rate: (1000 * lengths.length) / total, longest: Math.max(...lengths) };
}
"""
"""Wheel events in every frame; returns frames per second and the longest frame in milliseconds."""


def pipeline() -> GanttChart:
    """The chart of 16 stages with 512 microbatches."""
    plan = Plan(gpus=128, tp=8, pp=16, gbs=512)
    chart = gantt_chart(simulate(model("llama3-70b", plan), Machine("h100-dgx")))
    assert chart is not None
    return chart


def full(chart: GanttChart) -> GanttChart:
    """The chart's 16 rows of compute with as many bars as a chart may have: its bars repeated, on a longer axis."""
    computes = np.array([row.kind == "compute" for row in chart.rows])
    bars = _chosen(chart.bars, computes[chart.bars.row])
    times = -(-MAX_BARS // len(bars))
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(bars, field.name)] * times) for field in fields(GanttBars)
    }
    moved = np.repeat(np.arange(times), len(bars)) * (chart.span_s[1] - chart.span_s[0])
    columns["start_s"], columns["end_s"] = columns["start_s"] + moved, columns["end_s"] + moved
    columns["row"] = np.searchsorted(np.flatnonzero(computes), columns["row"])
    order = np.lexsort((columns["start_s"], columns["row"]))
    kept = order[np.sort(np.argsort(columns["start_s"][order], kind="stable")[:MAX_BARS])]
    bars = _chosen(GanttBars(**columns), kept)
    rows = tuple(row for row in chart.rows if row.kind == "compute")
    step_s = float(bars.end_s.max())
    return replace(chart, rows=rows, bars=bars, step_time_s=step_s, begin_s=0.0, span_s=(0.0, step_s))


def page(chart: GanttChart) -> str:
    """A page that holds nothing but the chart."""
    facts = f'<script type="application/json">{script_json(chart.to_json())}</script>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>pipeline</title>'
        f'<style>{style_sheet()}</style></head><body><div class="gantt" data-gantt>{facts}</div>'
        f'<script type="module">{report_script()}</script></body></html>'
    )


def _chosen(bars: GanttBars, which: Any) -> GanttBars:
    return GanttBars(*(getattr(bars, field.name)[which] for field in fields(GanttBars)))


def _chromium(playwright: Any) -> Any:
    path = str(CHROMIUM) if CHROMIUM.exists() else None
    return playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_OPTIONS))


def main() -> None:
    """Prints frames per second and the longest frame of every chart and movement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each movement lasts")
    seconds = parser.parse_args().seconds
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        print("skipped: Playwright for Python is not installed")
        return
    stages = pipeline()
    charts = {"16 stages × 512 microbatches": stages, "full chart": full(stages)}
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        try:
            browser = _chromium(playwright)
        except Error as error:
            print(f"skipped: Chromium does not start: {str(error).splitlines()[0]}")
            return
        print(f"  {'':<30}{'bars':>9}{'size':>9}   {'moved':<16}{'frames/s':>9}{'longest':>10}")
        for name, chart in charts.items():
            text = page(chart)
            path = Path(folder) / "page.html"
            path.write_text(text, encoding="utf-8")
            size_bytes = len(script_json(chart.to_json()))
            for number, (movement, mode, zoomed) in enumerate(
                (("panned, half", "pan", 1), ("panned, 1/32", "pan", 5), ("zoomed", "zoom", 0))
            ):
                opened = browser.new_page(viewport={"width": VIEWPORT[0], "height": VIEWPORT[1]})
                opened.goto(path.as_uri())
                opened.wait_for_selector("canvas")
                for _ in range(zoomed):
                    opened.get_by_title("Zoom in").click()
                rates = opened.evaluate(MOVE, [mode, seconds])
                opened.close()
                facts = f"{name:<30}{len(chart.bars):>9,}{size_bytes / 1e3:>6.0f} kB" if not number else f"{'':<48}"
                print(f"  {facts}   {movement:<16}{rates['rate']:>9.0f}{rates['longest']:>7.0f} ms")
        browser.close()


if __name__ == "__main__":
    main()
