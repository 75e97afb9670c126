"""Counts the calls of Python functions of a script and of PyTorch, by which a host's time is estimated.

What the tracer itself calls, and what PyTorch calls to work out sizes, is not counted: on a GPU it does not happen.
"""

from __future__ import annotations

import sys
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from foretrace.inputs.script.tracer.dispatch import Recorder

_TORCH: Final = Path(torch.__file__).parent
_DISPATCH: Final = "_compile.py _dynamo/eval_frame.py _library/simple_registry.py compiler/__init__.py _jit_internal.py"
_NOT_COUNTED: Final = frozenset(
    [
        *(str(path) for path in Path(__file__).parent.glob("*.py")),
        *(str(_TORCH / name) for name in _DISPATCH.split()),
        "<frozen abc>",
    ]
)
"""Files of the tracer, and those through which PyTorch calls a dispatch mode."""


class CallTally:
    """Counts calls of functions from `start` to `stop`, between the events of a recorder's log."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._log = recorder, recorder.log
        self._running = False

    def start(self) -> None:
        """Starts to count, unless something else follows the calls of this thread."""
        if not self._running and sys.getprofile() is None:
            self._running = True
            sys.setprofile(self._count)

    def stop(self) -> None:
        """Stops counting."""
        if self._running:
            self._running = False
            sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self._recorder.inside:
            return
        code = frame.f_code
        # Going on with a generator is a call to Python, too, and takes next to nothing.
        if code.co_filename not in _NOT_COUNTED and not code.co_flags & CO_GENERATOR:
            self._log.calls += 1
