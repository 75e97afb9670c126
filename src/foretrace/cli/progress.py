"""A line on the terminal for work that takes more than a second."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType


class Progress:
    """Says what is being done, and for how long already; silent where stderr is no terminal."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        started = time.monotonic()
        shown = False
        while not self._done.wait(1.0):
            shown = True
            print(f"\r{self.text} … {time.monotonic() - started:.0f} s", end="", file=sys.stderr, flush=True)
        if shown:
            print(f"\r{' ' * (len(self.text) + 12)}\r", end="", file=sys.stderr, flush=True)
