"""The machine that is measured: its name, its monitor, and what is said where there is no GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foretrace.calibrate.gpu.monitor import Monitor, number
from foretrace.hardware.device_names import preset_of
from foretrace.hardware.presets import names
from shared_files import ROOT

SOURCE = ROOT / "src"
NEEDS_NOTHING = """
import sys
sys.modules.update({name: None for name in ("numpy", "typer", "rich", "yaml")})
import foretrace.calibrate.gpu.measure, foretrace.calibrate.gpu.machine, foretrace.calibrate.gpu.__main__
"""


@pytest.mark.parametrize(
    ("driver", "preset"),
    [
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80g-pcie"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
    ],
)
def test_names_of_drivers_become_presets(driver: str, preset: str) -> None:
    assert preset_of(driver) == preset
    assert preset in names("gpu")


def test_an_unknown_gpu_keeps_its_name() -> None:
    assert preset_of("NVIDIA RTX 9090 Ti") == "nvidia-rtx-9090-ti"


def test_figures_that_nvidia_smi_lacks_are_0() -> None:
    assert number("[N/A]") == 0
    assert number(" 690.12 ") == 690.12


def test_a_monitor_without_samples_says_0() -> None:
    monitor = Monitor(index=4096)  # no machine has so many: nvidia-smi, where there is one, refuses
    try:
        assert monitor.mean(0, 1e12) == (0, 0)
    finally:
        monitor.close()


def test_measuring_needs_no_package_but_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NEEDS_NOTHING], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
