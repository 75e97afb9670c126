"""The laws of messages on links, over random networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretrace.engine import jit
from foretrace.engine.network import loop
from foretrace.engine.network.chunks import ring_times
from foretrace.engine.network.flows import fair_rates, make_world, run_flows
from foretrace.engine.network.messages import NONE, Messages, bytes_by_link, uses_of
from foretrace.hardware.fabric.fabric import Floats, Routes

laws = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def _plain_loops_afterwards() -> Iterator[None]:
    yield
    jit.use(None)


class Traffic(NamedTuple):
    """Links and messages on them."""

    capacity: Floats
    messages: Messages


@st.composite
def traffic(draw: st.DrawFn, *, independent: bool = False) -> Traffic:
    """Random links, routes with whole and divided bytes, and messages that wait for earlier ones, some in turn."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    links, ways, count = (int(draw(st.integers(1, most))) for most in (6, 8, 80))
    rows = [random.choice(links, random.integers(1, links + 1), replace=False) for _ in range(ways)]
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    share = random.choice([1.0, 1.0, 0.5, 0.25], int(start[-1]))
    few = draw(st.booleans())
    sizes = random.choice([1e6, 2e6], count) if few else random.uniform(1e5, 1e7, count)
    sizes[random.random(count) < 0.05] = 0.0
    waits = [
        []
        if independent or random.random() < 0.5
        else random.choice(number, min(number, int(random.integers(1, 3))), replace=False)
        for number in range(count)
    ]
    turns = [] if independent else [number for number in range(1, count) if random.random() < 0.3]
    ahead = np.full(count, NONE)
    for number in turns:
        ahead[number] = number - 1
    messages = Messages(
        bytes=sizes,
        latency_s=np.full(count, 1e-4) if independent else random.choice([0.0, 1e-4, 3e-4], count),
        release_s=np.zeros(count) if independent else random.choice([0.0, 1e-3], count),
        route=random.integers(0, ways, count),
        routes=Routes(start, np.concatenate(rows).astype(np.int64), share),
        after_start=np.concatenate([[0], np.cumsum([len(row) for row in waits])]).astype(np.int64),
        after=np.array([one for row in waits for one in row], dtype=np.int64),
        ahead=ahead,
        step=np.zeros(count, dtype=np.int64),
    )
    return Traffic(random.choice([1e9, 2e9, 5e9], links), messages)


def assert_max_min(capacity: Floats, messages: Messages, running: list[int], rates: Floats) -> None:
    """No link is overdrawn, and every message crosses a used-up link on which none is faster."""
    start, link, share = uses_of(messages)
    used, fastest = np.zeros(len(capacity)), np.zeros(len(capacity))
    for message, rate in zip(running, rates, strict=True):
        for use in range(start[message], start[message + 1]):
            used[link[use]] += share[use] * rate
            fastest[link[use]] = max(fastest[link[use]], rate)
    assert (used <= capacity * (1 + 1e-9)).all(), "a link is overdrawn"
    for message, rate in zip(running, rates, strict=True):
        own = link[start[message] : start[message + 1]]
        assert ((used[own] >= capacity[own] * (1 - 1e-9)) & (rate >= fastest[own] * (1 - 1e-9))).any(), message


@laws
@given(traffic())
def test_rates_of_all_at_once_are_max_min_fair(case: Traffic) -> None:
    fair, alone = fair_rates(case.capacity, case.messages)
    assert (fair <= alone * (1 + 1e-12)).all()
    assert_max_min(case.capacity, case.messages, list(range(len(case.messages))), fair)


@laws
@given(traffic())
def test_every_byte_is_carried_and_rates_are_fair_at_every_moment(case: Traffic) -> None:
    jit.use(False)
    moments: list[tuple[float, list[int], Floats]] = []
    refill = loop.refill

    def watch(w: loop.MessageState, heap: Any, now: float) -> None:
        refill(w, heap, now)
        running = sorted({w.use_message[use] for first in w.running for use in following(w, first)})
        rates = np.array([w.speed[message] for message in running])
        assert_max_min(case.capacity, case.messages, running, rates)
        moments.append((now, running, rates))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "refill", watch)
        loop.simulate(make_world(case.messages, case.capacity, False), 0.0, np.empty((0, 5)), 10**9)
    carried = np.zeros(len(case.messages))
    for (now, running, rates), (then, _, _) in pairwise(moments):
        carried[running] += rates * (then - now)
    np.testing.assert_allclose(carried, case.messages.bytes, rtol=1e-9, atol=1e-3)
    ran = run_flows(case.capacity, case.messages)
    np.testing.assert_allclose(ran.link_bytes, bytes_by_link(case.messages, len(case.capacity)))
    assert (ran.link_bytes <= case.capacity * ran.link_busy_s * (1 + 1e-9)).all()


def following(w: loop.MessageState, use: int) -> Iterator[int]:
    """The uses of a link's messages under way."""
    while use >= 0:
        yield use
        use = w.following[use]


@laws
@given(traffic())
def test_folded_compiled_and_plain_runs_agree(case: Traffic) -> None:
    jit.use(False)
    plain = run_flows(case.capacity, case.messages, folded=False)
    folded = run_flows(case.capacity, case.messages)
    np.testing.assert_allclose(folded.end_s, plain.end_s, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(folded.link_busy_s, plain.link_busy_s, rtol=1e-9, atol=1e-12)
    if jit.installed():
        jit.use(True)
        compiled = run_flows(case.capacity, case.messages, folded=False)
        assert compiled.end_s.tobytes() == plain.end_s.tobytes()
    jit.use(None)


@laws
@given(traffic())
def test_nothing_starts_before_its_time_or_beats_its_own_links(case: Traffic) -> None:
    messages = case.messages
    ran = run_flows(case.capacity, messages)
    _, alone = fair_rates(case.capacity, messages)
    assert (ran.start_s >= messages.release_s).all()
    assert (ran.end_s >= ran.start_s + messages.latency_s + messages.bytes / alone * (1 - 1e-9)).all()
    waiter = np.repeat(np.arange(len(messages)), np.diff(messages.after_start))
    assert (ran.start_s[waiter] >= ran.end_s[messages.after]).all()
    in_turn = np.flatnonzero(messages.ahead >= 0)
    assert (ran.end_s[in_turn] >= ran.end_s[messages.ahead[in_turn]]).all()


@laws
@given(traffic(independent=True), st.floats(1.0, 10.0))
def test_more_bandwidth_on_all_links_never_slows(case: Traffic, factor: float) -> None:
    """Independent messages that begin together: with all links wider, all bytes take so much less."""
    before = run_flows(case.capacity, case.messages).end_s
    after = run_flows(case.capacity * factor, case.messages).end_s
    np.testing.assert_allclose(after - 1e-4, (before - 1e-4) / factor, rtol=1e-6, atol=1e-12)


@laws
@given(traffic(independent=True), st.floats(1e-6, 1e-3))
def test_taking_ends_together_delays_each_by_no_more_than_the_windows(case: Traffic, window_s: float) -> None:
    exact, rough = (run_flows(case.capacity, case.messages, window_s=window) for window in (0.0, window_s))
    assert rough.time_s <= exact.time_s + window_s * (len(case.messages) + 1)
    assert (rough.link_bytes == exact.link_bytes).all()
    assert (rough.link_bytes <= case.capacity * rough.link_busy_s * (1 + 1e-9)).all()


@laws
@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_late_ranks_slow_hops_and_latency_only_delay_a_ring(ranks: int, chunks: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rate, latency = random.uniform(1e9, 5e10, ranks), random.uniform(0, 1e-5, ranks)
    arrival, late = random.uniform(0, 1e-3, ranks), random.uniform(0, 1e-3, ranks)
    steps = 2 * (ranks - 1)
    done = ring_times(steps, chunks, 1e5, rate, latency, arrival)
    assert (ring_times(steps, chunks, 1e5, rate, latency, arrival + late) >= done).all()
    assert (ring_times(steps, chunks, 1e5, rate * random.uniform(0.3, 1, ranks), latency, arrival) >= done).all()
    assert (ring_times(steps, chunks, 1e5, rate, latency * 2, arrival) >= done).all()
    bound = steps * chunks * 1e5 / rate.min()
    assert (done >= bound).any()
    assert done.max() <= arrival.max() + steps * (latency.max() + chunks * 1e5 / rate.min()) * (1 + 1e-9)


def test_links_of_an_idle_network_are_not_busy() -> None:
    case = Traffic(np.array([1e9, 1e9]), _one_message())
    ran = run_flows(case.capacity, replace(case.messages, bytes=np.zeros(1)))
    assert ran.link_busy_s.tolist() == [0.0, 0.0]
    assert ran.time_s == pytest.approx(1e-4)


def _one_message() -> Messages:
    return Messages(
        bytes=np.array([1e6]),
        latency_s=np.array([1e-4]),
        release_s=np.zeros(1),
        route=np.zeros(1, dtype=np.int64),
        routes=Routes(np.array([0, 1]), np.array([0]), np.ones(1)),
        after_start=np.zeros(2, dtype=np.int64),
        after=np.zeros(0, dtype=np.int64),
        ahead=np.full(1, NONE),
        step=np.zeros(1, dtype=np.int64),
    )
