"""The network model's errors get no larger than they were when last recorded (benchmarks/truth/collective_errors.json).

`python benchmarks/collectives.py --write` records them: medians by data set, of groups that constants were fitted on
and of those that they were not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from foretrace.cost.network.nccl.machine import machine_of
from foretrace.cost.network.nccl.network import BAND
from foretrace.cost.silicon import installed
from shared_files import ROOT, shared

sys.path.append(str(ROOT / "benchmarks"))

SLACK = 0.01
"""How much larger a median may get: one percentage point."""

TARGETS = {"silicon": (0.10, 0.20), "published": (0.10, 0.30)}
"""Medians of all groups that were not fitted: from 1 MiB up, and below it."""

MISSED = {"a800_1x8 small", "a100_2x8 small"}
"""Data sets that alone are beyond. The four GPUs of the A800 take three times as long for a word as its two and its
eight: one launch cannot be right for all."""

SILICON = pytest.mark.skipif(not installed(), reason="the extra [silicon] is not installed")


@cache  # the same rows each time, so that each data set is fitted once
def measured(source: str) -> Sequence[Any]:
    """Rows of NVIDIA's tables or of others."""
    from collective_data import published, silicon

    if source == "published":
        shared("data", "collectives")
    return silicon() if source == "silicon" else published()


@pytest.mark.parametrize("source", [pytest.param("silicon", marks=SILICON), "published"])
def test_errors_are_as_recorded_or_smaller(source: str) -> None:
    from collectives import RECORD, record

    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    found = record(measured(source))
    assert found and found.keys() <= recorded.keys()
    worse = {
        f"{dataset} {part}": (error, recorded[dataset][part])
        for dataset, parts in found.items()
        for part, error in parts.items()
        if error > recorded[dataset][part] + SLACK
    }
    assert not worse


@pytest.mark.parametrize("source", [pytest.param("silicon", marks=SILICON), "published"])
def test_groups_that_were_not_fitted_meet_their_targets(source: str) -> None:
    from collectives import judged

    large, small = judged(measured(source))
    most_large, most_small = TARGETS[source]
    assert np.median(large) <= most_large
    assert np.median(small) <= most_small


def test_each_data_set_meets_them_too_but_for_those_named() -> None:
    from collectives import RECORD

    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    missed = {
        f"{dataset} {size}"
        for dataset, parts in recorded.items()
        for part, error in parts.items()
        for word, size in [part.split()]
        if word == "judged"
        and error > TARGETS["silicon" if dataset.startswith("silicon") else "published"][("large", "small").index(size)]
    }
    assert missed == MISSED


def test_the_band_holds_nine_in_ten_of_published_times() -> None:
    """The constant's origin: all-reduce times of 16 MiB and more, by the constants that are shipped."""
    rows = measured("published")
    ratios = [row.time_s / row.modelled_s(machine_of(row.cluster.gpu)) for row in rows]
    large = np.concatenate([one[row.size_bytes >= 16 << 20] for one, row in zip(ratios, rows, strict=True)])
    assert len(large) == 250
    assert 0.88 < np.mean((BAND[0] <= large) & (large <= BAND[1])) < 0.95
