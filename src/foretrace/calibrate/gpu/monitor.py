"""Records frequency and power of the GPU while kernels are measured, as nvidia-smi reports them."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Final

_EVERY_MS: Final = 50
_POWER_FIELDS: Final = ("power.draw.instant", "power.draw")
"""The first averages over milliseconds, but older drivers lack it; the second averages over a second on Hopper."""


def query(fields: Sequence[str], index: int = 0) -> list[str] | None:
    """Returns what nvidia-smi reports of one GPU, or None if it reports nothing."""
    try:
        done = subprocess.run(_command(fields, index), capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [part.strip() for part in done.stdout.strip().split(",")]


def _command(fields: Sequence[str], index: int) -> list[str]:
    return ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def number(text: str) -> float:
    """A figure of nvidia-smi; 0 where it has none ("[N/A]")."""
    try:
        return float(text)
    except ValueError:
        return 0.0


class Monitor:
    """Samples of clock and power, taken by a child process until it is closed."""

    def __init__(self, index: int = 0) -> None:
        self._samples: list[tuple[float, float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        power = next((field for field in _POWER_FIELDS if number((query([field], index) or [""])[0]) > 0), None)
        if power is None:
            return
        command = [*_command(["clocks.sm", power], index), f"--loop-ms={_EVERY_MS}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            clock, _, power = line.partition(",")
            self._samples.append((time.monotonic(), number(clock), number(power)))

    def mean(self, start: float, end: float) -> tuple[float, float]:
        """MHz and watts between two readings of `time.monotonic`; 0 and 0 where there was no sample."""
        inside = [(clock, power) for at, clock, power in tuple(self._samples) if start <= at <= end]
        if not inside:
            return 0.0, 0.0
        return sum(sample[0] for sample in inside) / len(inside), sum(sample[1] for sample in inside) / len(inside)

    def close(self) -> None:
        """Ends the child process."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=10)
