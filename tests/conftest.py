"""Random laws draw the same examples every time, so that the same code gets the same verdict; `make fuzz` draws new."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("new", deadline=None)
settings.load_profile("new" if os.environ.get("FORETRACE_FUZZ") else "same")
