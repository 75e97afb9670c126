"""Understands the names of GPUs that drivers, logs and people write, and tells whether two mean the same GPU.

Measurements name their GPU in many ways: "NVIDIA A100-SXM4-40GB", "8xH200 NVLink4", "h100-dgx". The chip decides, and
the form (SXM, PCIe, NVL) where both names state one, since it decides on links and power. Memory sizes are variants.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Sameness = Literal["same", "other memory", "other", "unknown"]

_PRESETS: Final = (
    ("GB300", "gb300"),
    ("GB200", "gb200"),
    ("B300", "b300"),
    ("B200", "b200"),
    ("H200 NVL", "h200-nvl"),
    ("H200", "h200-sxm"),
    ("H100 PCIe", "h100-pcie"),
    ("H100 NVL", "h100-nvl"),
    ("H100", "h100-sxm"),
    ("H800", "h800-sxm"),
    ("H20", "h20"),
    ("A800-SXM", "a800-80g-sxm"),
    ("A100-PCIE-40GB", "a100-40g-pcie"),
    ("A100 80GB PCIe", "a100-80g-pcie"),
    ("A100-SXM4-40GB", "a100-40g-sxm"),
    ("A100", "a100-80g-sxm"),
    ("MI300X", "mi300x"),
)
"""Parts of the names that drivers give, more special ones first."""

_CHIPS: Final = frozenset(
    {"p100", "v100", "t4", "a2", "a10", "a16", "a30", "a40", "a100", "a800", "l4", "l20", "l40", "l40s"}
    | {"h20", "h100", "h200", "h800", "gh200", "b100", "b200", "b300", "gb200", "gb300"}
    | {"mi100", "mi210", "mi250", "mi250x", "mi300a", "mi300x", "mi308x", "mi325x", "mi350x", "mi355x"}
)
"""GPUs of data centres as their makers name them."""

_MAX_CHARACTERS: Final = 300
_WORD: Final = re.compile(r"[a-z0-9]+")
_COUNT: Final = re.compile(r"[0-9]{1,5}x")
_DESKTOP: Final = re.compile(r"\brtx[ -]?(?:pro[ -]?)?([0-9]{4})")
_MEMORY: Final = re.compile(r"(?<![a-z0-9])([0-9]{2,3}) ?gi?b?(?![a-z0-9/])")
_FORMS: Final = {"sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "pcie", "nvl"}


def preset_of(name: str) -> str:
    """Returns the preset of a GPU that a driver names; the name in lower case where there is no preset."""
    chip = chip_of(name)
    presets = (preset for part, preset in _PRESETS if part in name and chip_of(part) == chip)
    return next(presets, "-".join(name.lower().split()))


def chip_of(text: str) -> str | None:
    """Returns the chip that a text names, such as "h100"; None where it names none that is known, or several."""
    lowered = text[:_MAX_CHARACTERS].lower()
    chips = {f"rtx{number}" for number in _DESKTOP.findall(lowered)}
    for word in _WORD.findall(lowered):
        bare = _COUNT.sub("", word, count=1) if word[0].isdigit() else word
        if bare in _CHIPS:
            chips.add(bare)
    return chips.pop() if len(chips) == 1 else None


def sameness(device: str, gpu: str) -> Sameness:
    """Returns whether a text names the preset `gpu`; "unknown" where one of the two names no known chip."""
    chips = chip_of(device), chip_of(gpu)
    if None in chips:
        return "unknown"
    if chips[0] != chips[1] or _differ(_form(device), _form(gpu)):
        return "other"
    return "other memory" if _differ(_memory_gb(device), _memory_gb(gpu)) else "same"


def _differ(first: str | None, second: str | None) -> bool:
    return first is not None and second is not None and first != second


def _form(text: str) -> str | None:
    words = _WORD.findall(text[:_MAX_CHARACTERS].lower())
    return next((word.rstrip("23456") for word in words if word in _FORMS), None)


def _memory_gb(text: str) -> str | None:
    match = _MEMORY.search(text[:_MAX_CHARACTERS].lower())
    return match[1] if match else None
