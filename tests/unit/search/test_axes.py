"""Axes of a sweep: how values and ranges are read."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import UsageError
from foretrace.search.axes import Value, parse_axis, points_of, read_axes


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("microbatches=8,16,32", (8, 16, 32)),
        ("microbatches=4:64:x2", (4, 8, 16, 32, 64)),
        ("gpus=16:1024:x4", (16, 64, 256, 1024)),
        ("gpus=64:1000:x2", (64, 128, 256, 512)),
        ("pp=1:4", (1, 2, 3, 4)),
        ("pp=1:8:+2", (1, 3, 5, 7)),
        ("zero=0:3", (0, 1, 2, 3)),
        ("gpus=8,64:256:x2", (8, 64, 128, 256)),
        ("dp=1:6:x1.5", (1, 2, 3, 5)),
        ("pp=2, 4", (2, 4)),
        ("ep=1e2", (100,)),
        ("dp=1x,2x", (1.0, 2.0)),
        ("tp=0.5x:4x:x2", (0.5, 1.0, 2.0, 4.0)),
        ("nic=1x:2x:+0.5x", (1.0, 1.5, 2.0)),
        ("name:attention*=2x", (2.0,)),
        ("compute=150%", (1.5,)),
        ("cluster=a100-dgx,mine.yaml", ("a100-dgx", "mine.yaml")),
        ("jitter=0,1%,0.03", (0, 0.01, 0.03)),
        ("jitter=1%:8%:x2", (0.01, 0.02, 0.04, 0.08)),
        ("routing=1,1.5", (1, 1.5)),
        ("straggler:5=1x,1.2x", (1.0, 1.2)),
        ("gpu=h100-sxm,b200", ("h100-sxm", "b200")),
        ("power=500W,700W", ("500W", "700W")),
        ("power=500W:700W:+100W", ("500W", "600W", "700W")),
        ("overlap=none,grad+param", ("none", "grad+param")),
        ("recompute=none,full", ("none", "full")),
        ("--tp=2,4", (2, 4)),
    ],
)
def test_values(text: str, values: tuple[Value, ...]) -> None:
    axis = parse_axis(text)
    assert tuple(point.value for point in axis.values) == values
    assert axis.name == text.partition("=")[0].removeprefix("--")


def test_values_as_options_take_them_and_as_people_write_them() -> None:
    points = [parse_axis(text).values[0] for text in ("gpus=16384", "jitter=3%", "compute=1.5x", "cluster=a")]
    assert [point.text for point in points] == ["16384", "3%", "1.5x", "a"]
    assert [point.label for point in points] == ["16,384", "3 %", "1.5×", "a"]
    assert [point.number for point in points] == [16384, 0.03, 1.5, None]
    assert parse_axis("power=500W").values[0].number == 500


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("microbatches", "missing-argument"),
        ("=4", "missing-argument"),
        ("microbatches=", "missing-argument"),
        ("microbatches=4,4", "repeated-option"),
        ("microbatches=4,1:8", "repeated-option"),
        ("microbatches=4,,8", "missing-argument"),
        ("cluster=a,,b", "missing-argument"),
        ("gpus=64:16", "out-of-range"),
        ("gpus=16:64:x1", "out-of-range"),
        ("gpus=16:64:+0", "out-of-range"),
        ("jitter=0%:8%:x2", "out-of-range"),
        ("gpus=16:64:2", "bad-value"),
        ("gpus=16:64:x2:x3", "bad-value"),
        ("nic=1x:4", "bad-value"),
        ("power=100W:500W:+1k", "bad-value"),
        ("gpus=16:4096", "too-large"),
        ("gpus=1:1e9:x1.001", "too-large"),
    ],
)
def test_what_cannot_be_meant(text: str, code: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_axis(text)
    assert refused.value.code == code and f"--over {text}" in str(refused.value)


def test_several_axes() -> None:
    axes = read_axes(["tp=2,4", "pp=1,2"])
    labels = [tuple(value.label for value in point) for point in points_of(axes)]
    assert labels == [("2", "1"), ("2", "2"), ("4", "1"), ("4", "2")]


@pytest.mark.parametrize(
    ("texts", "code"), [(["tp=2,4", "tp=8"], "repeated-option"), (["pp=1:100", "tp=1:100"], "too-large")]
)
def test_axes_that_do_not_go_together(texts: list[str], code: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_axes(texts)
    assert refused.value.code == code


def test_tokens_of_a_sequence_are_binary() -> None:
    assert [value.value for value in parse_axis("seq=8k,16k").values] == [8192, 16384]
    assert [value.value for value in parse_axis("gbs=2k").values] == [2000]


def test_units_are_kept() -> None:
    assert [value.unit for value in parse_axis("nic=400Gbps,1.6Tbps,2x").values] == ["Gbps", "Tbps", "x"]
