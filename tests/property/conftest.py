"""What the laws over random jobs have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from foretrace.engine import shared_run


@pytest.fixture(scope="module", autouse=True)
def _jobs_that_do_not_settle_are_given_up_soon() -> Iterator[None]:
    """Those that settle do so within a few steps; of the others small ones would be run for hundreds, as `make fuzz`
    does."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("FORETRACE_FUZZ"):
            patch.setattr(shared_run, "EVENTS_WORTH", 0)
        yield
