"""Pauses Python's cycle collector while a program is built or run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the cycle collector.

    Building and running make thousands of small objects and no cycles. The collector would repeatedly look through all
    objects of the process and find nothing to free.
    """
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            gc.enable()
