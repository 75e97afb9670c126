"""Messages that are sent again and again: the steps of a ring, the chunks of anything."""

from __future__ import annotations

import numpy as np

from foretrace.engine.network.messages import NONE, Messages


def repeated(hops: Messages, chunks: int, steps: int | None = None) -> Messages:
    """Each message cut into chunks, which go in turn; a chunk comes after that chunk of what its message comes after.

    With `steps` the whole is done so many times, as in a ring: what a message comes after is then of the step before.
    The messages are numbered by step, by chunk, then as they were.
    """
    count, rounds = len(hops), (steps or 1) * chunks
    start, after = hops.after_start, hops.after
    waits, back = np.tile(np.diff(start), rounds), 0
    if steps is not None:
        waits[: chunks * count] = 0
        back = chunks
    first = np.arange(back, rounds) - back
    turn = np.repeat(np.arange(rounds), count)
    number = np.arange(rounds * count)
    return Messages(
        bytes=np.tile(hops.bytes / chunks, rounds),
        latency_s=np.tile(hops.latency_s, rounds),
        release_s=np.tile(hops.release_s, rounds),
        route=np.tile(hops.route, rounds),
        routes=hops.routes,
        after_start=np.concatenate([[0], np.cumsum(waits)]),
        after=(first[:, None] * count + after).ravel(),
        ahead=np.where(turn > 0, number - count, NONE),
        step=np.tile(hops.step, rounds) + (turn if steps is None else turn // chunks),
    )
