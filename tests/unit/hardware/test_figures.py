"""Figures of users' hardware: impossible ones are errors, unusual ones warnings, hypothetical ones neither."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from foretrace.hardware.figures import FIGURES

_GPU = {
    "memory": "80GiB",
    "memory_bandwidth": "3.35TB/s",
    "bf16": "989TFLOPS",
    "links": "18",
    "link_bandwidth": "450GB/s",
}


def cluster(tmp_path: Path, **figures: str) -> Cluster:
    nic = figures.pop("nic", "400Gbps")
    gpu = ", ".join(f"{name}: {text}" for name, text in (_GPU | figures).items())
    path = tmp_path / "c.yaml"
    path.write_text(f"node:\n  gpus: 8\n  gpu: {{{gpu}}}\n  nic: {nic}\n")
    return presets.cluster(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("nic", text) for text in ("0Gbps", "5e-324Gbps", "400PB/s", "1e300Gbps", "-1Gbps", "nan")),
        *(("memory_bandwidth", text) for text in ("3.35GB/s", "0B/s", "3.35EB/s")),
        ("link_bandwidth", "900TB/s"),
        ("memory", "80kB"),
        ("memory", "80PB"),
        ("bf16", "989MFLOPS"),
        ("power_w", "700kW"),
    ],
)
def test_impossible_figures(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        cluster(tmp_path, **{name: text})
    assert (refused.value.where or "").startswith(str(tmp_path / "c.yaml:"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nic", "400GB/s"),
        ("nic", "50MB/s"),
        ("memory_bandwidth", "33.5GB/s"),
        ("memory", "40TB"),
        ("bf16", "989GFLOPS"),
    ],
)
def test_unusual_figures(name: str, text: str, tmp_path: Path) -> None:
    (remark,) = cluster(tmp_path, **{name: text}).remarks
    assert remark.code == "unusual-hardware"
    assert (remark.where or "").startswith(str(tmp_path / "c.yaml:"))


def test_bytes_for_bits_are_suggested_with_the_same_digits() -> None:
    assert "400 Gb/s" in (FIGURES["rate"].meant(400e9) or "")
    assert "50.0 GB/s" in (FIGURES["link_bandwidth"].meant(50e9 / 8) or "")


@pytest.mark.parametrize(
    ("name", "text"),
    [("nic", "1.6Tbps"), ("nic", "10Gbps"), ("memory_bandwidth", "20TB/s"), ("memory", "1TB"), ("bf16", "20PFLOPS")],
)
def test_hypothetical_hardware_is_nothing_odd(name: str, text: str, tmp_path: Path) -> None:
    assert not cluster(tmp_path, **{name: text}).remarks


def test_presets_are_usual() -> None:
    for name in presets.names("gpu"):
        gpu = presets.gpu(name)
        assert FIGURES["memory"].meant(gpu.memory_bytes) is None
        assert FIGURES["memory_bandwidth"].meant(gpu.memory_bytes_per_s) is None
        assert all(FIGURES["flops"].meant(flops) is None for flops in gpu.peak_flops.values())
    assert all(FIGURES["rate"].meant(presets.nic(name).bytes_per_s) is None for name in presets.names("nic"))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "50", None, 1e31])
def test_figures_from_python(value: object) -> None:
    with pytest.raises(InputError, match=r"\[(bad-value|out-of-range)\]"):
        replace(presets.nic("connectx-7"), bytes_per_s=value)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"\[(bad-value|out-of-range)\]"):
        replace(presets.gpu("h100-sxm"), memory_bytes_per_s=value)  # type: ignore[arg-type]
