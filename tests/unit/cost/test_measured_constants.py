"""Constants that were measured on a GPU are what the committed measurement says."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

from foretrace.cost.pricing import STREAM_SHARE
from foretrace.inputs.megatron_trace.whole_job.corrections import BURST_GAIN, PLACEHOLDER_GAIN
from shared_files import ROOT


@pytest.fixture(scope="module")
def h200() -> dict[str, Any]:
    path = ROOT / "benchmarks" / "gpu" / "placeholder_data_h200.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def test_streaming(h200: dict[str, Any]) -> None:
    """A buffer of 1 GB and more, scaled in place."""
    rates = [row["bytes_per_s"] for row in h200["streaming"] if row["bytes"] >= 2**30]
    assert median(rates) / h200["datasheet_bytes_per_s"] == pytest.approx(STREAM_SHARE, abs=0.005)


def test_bursts(h200: dict[str, Any]) -> None:
    normal = [row for row in h200["experts"] if row["fill"] == "normal"]
    slower = [row["sustained_s"] / row["burst_s"] for row in normal]
    assert median(slower) == pytest.approx(BURST_GAIN, abs=0.005)


def test_placeholder_data(h200: dict[str, Any]) -> None:
    """The published figure of an A100 lies among what experts of 2,048 tokens and more gain on an H200 in bursts."""
    taken = {(row["tokens"], row["fill"]): row["burst_s"] for row in h200["experts"]}
    gains = [taken[tokens, "normal"] / taken[tokens, "empty"] for tokens in (2048, 4037, 6535)]
    assert min(gains) == pytest.approx(PLACEHOLDER_GAIN, abs=0.005) and max(gains) < 1.2
