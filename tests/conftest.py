"""What holds for all tests: the same examples of random laws every time, and screens as wide as they like.

The same code gets the same verdict; `make fuzz` draws new examples. Workers of pytest-xdist set COLUMNS, at which
screens would be folded.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("new", deadline=None)
settings.load_profile("new" if os.environ.get("FORETRACE_FUZZ") else "same")

os.environ.pop("COLUMNS", None)
