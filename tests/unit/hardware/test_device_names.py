"""The names of GPUs as drivers, logs and people write them."""

from __future__ import annotations

import pytest

from foretrace.hardware import presets
from foretrace.hardware.device_names import chip_of, preset_of, sameness


@pytest.mark.parametrize(
    ("device", "gpu", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm", "same"),
        ("H100-SXM", "h100-sxm", "same"),
        ("2x8 H100 80GB HBM3", "h100-sxm", "same"),
        ("NVIDIA H100 PCIe", "h100-sxm", "other"),
        ("NVIDIA H200", "h200-sxm", "same"),
        ("NVIDIA H200", "h100-sxm", "other"),
        ("NVIDIA GH200 480GB", "h200-sxm", "other"),
        ("8xB200 P6-B200 NVLink5", "b200", "same"),
        ("NVIDIA B200", "gb200", "other"),
        ("GB200 NVL72", "gb200", "same"),
        ("A100-SXM4-40GB", "a100-80g-sxm", "other memory"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g-sxm", "same"),
        ("NVIDIA A100 80GB PCIe", "a100-80g-sxm", "other"),
        ("NVIDIA A800-SXM4-80GB", "a100-80g-sxm", "other"),
        ("NVIDIA GeForce RTX 4090", "h100-sxm", "other"),
        ("AMD Instinct MI300X", "mi300x", "same"),
        ("H800 NVLink160GB/s + CX7 400Gb IB", "h800-sxm", "same"),
        ("NVIDIA Graphics Device", "h100-sxm", "unknown"),
        ("", "h100-sxm", "unknown"),
        ("A100 and H100", "h100-sxm", "unknown"),
        ("NVIDIA H100", "a-chip-of-my-own", "unknown"),
    ],
)
def test_two_names_mean_the_same_gpu_or_not(device: str, gpu: str, expected: str) -> None:
    assert sameness(device, gpu) == expected


@pytest.mark.parametrize("name", presets.names("gpu"))
def test_every_preset_names_a_chip_and_is_itself(name: str) -> None:
    assert chip_of(name) is not None
    assert sameness(name, name) == "same"
    assert sameness(presets.gpu(name).title, name) in ("same", "other memory")


def test_a_superchip_is_not_the_gpu_whose_name_it_contains() -> None:
    assert preset_of("NVIDIA GH200 480GB") == "nvidia-gh200-480gb"
