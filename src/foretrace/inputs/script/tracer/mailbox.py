"""Carries Python objects between the traced ranks of a job, through files in a folder.

A rank that waits for one that is not traced leaves a request to trace it, which `requested_ranks` returns.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from foretrace.inputs.script.tracer.unknown import CannotTrace

MAX_WAIT_S: Final = 120.0
"""Seconds that a rank waits for the objects of another."""

_POLL_S: Final = 0.01


class Mailbox:
    """The objects that a rank sends to others and receives from them. Without a folder it receives none."""

    def __init__(self, rank: int, folder: Path | None) -> None:
        self._rank, self._folder = rank, folder
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()

    def send(self, rank: int, objects: Any) -> None:
        """Leaves objects for a rank."""
        number = self._sent[rank]
        self._sent[rank] += 1
        if self._folder is not None:
            path = self._folder / f"{self._rank}-{rank}-{number}"
            unfinished = path.with_suffix(".part")
            unfinished.write_bytes(pickle.dumps(objects))
            unfinished.replace(path)

    def receive(self, rank: int) -> Any:
        """Waits for the next objects of a rank."""
        number = self._received[rank]
        self._received[rank] += 1
        if self._folder is None:
            raise CannotTrace(
                "needs-other-rank",
                f"rank {self._rank} waits for an object from rank {rank}, which is not traced with it",
                "use the command foretrace trace, which traces ranks that wait for each other together",
            )
        path = self._folder / f"{rank}-{self._rank}-{number}"
        (self._folder / f"want-{rank}").touch()
        end = time.monotonic() + MAX_WAIT_S
        while not path.exists():
            if (self._folder / f"failed-{rank}").exists() or time.monotonic() > end:
                raise CannotTrace("needs-other-rank", f"rank {rank} sent nothing to rank {self._rank}", "see its error")
            time.sleep(_POLL_S)
        return pickle.loads(path.read_bytes())


def requested_ranks(folder: Path) -> list[int]:
    """Returns the ranks for which others wait."""
    return sorted(int(path.name.removeprefix("want-")) for path in folder.glob("want-*"))
