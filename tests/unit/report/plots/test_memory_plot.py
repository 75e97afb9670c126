"""The picture of a stage's memory over the step."""

from __future__ import annotations

import re

import numpy as np
import pytest

from foretrace.program.columns import Category
from foretrace.readings.answer.memory_fit import MemoryFit, MemoryPart, ProcessMemory, StageMemory
from foretrace.readings.memory import MemoryTrack
from foretrace.report.plots.memory_plot import memory_svg

GIB = 2**30


@pytest.mark.parametrize("capacity_gib", [0.01, 1.0, 35.0, 44.0, 60.0, 71.0, 4000.0])
def test_words_next_to_the_plot_do_not_cover_each_other(capacity_gib: float) -> None:
    held = np.full((3, len(Category)), 10 * GIB, dtype=np.int64)
    held[1] += GIB
    track = MemoryTrack(0, np.array([0.0, 1.0, 2.0]), held, 0, 0)
    stage = StageMemory("stage 0", 8, track.peak_bytes, track.at_peak(), (0, 2 * GIB, 4 * GIB), track)
    process = ProcessMemory(int(capacity_gib * GIB), (MemoryPart("context", GIB // 200, "test"),))
    page = memory_svg(MemoryFit((stage,), process), stage, 3.0, "a title")
    places = [tuple(map(float, place)) for place in re.findall(r'<text x="([\d.]+)" y="([\d.]+)"', page)]
    beside = sorted(y for x, y in places if x > 756)
    assert len(beside) == 3 + 1 + len(Category)
    assert min(np.diff(beside)) >= 12
