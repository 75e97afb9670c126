"""Rings without an event loop: the closed form, late ranks, slow hops, and the same as the messages one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.engine.network.chunks import chain_times, pipeline_times, ring_times
from foretrace.engine.network.collectives import Sends, chain, ring, routed, tree, tree_parents
from foretrace.engine.network.flows import run_flows
from foretrace.engine.network.messages import NONE, repeated
from foretrace.hardware.fabric.fabric import Floats, Longs, Routes

RATE, LATENCY = 50e9, 500e-9


def own_links(source: Longs, target: Longs) -> Routes:
    """Every rank has a link of its own to the next."""
    del target
    return Routes(np.arange(len(source) + 1), source.copy(), np.ones(len(source)))


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_alike_ranks_take_the_closed_form(ranks: int) -> None:
    size = 2.0**20
    steps = 2 * (ranks - 1)
    done = ring_times(steps, 1, size / ranks, np.full(ranks, RATE), np.full(ranks, LATENCY), np.zeros(ranks))
    np.testing.assert_allclose(done, steps * (LATENCY + size / ranks / RATE), rtol=1e-12)


def test_eight_ranks_as_simgrid_has_them() -> None:
    """43.70 µs for 1 MiB at 50 GB/s and 500 ns, as measured with SimGrid (CM02, crosstraffic off)."""
    done = ring_times(14, 1, 2.0**20 / 8, np.full(8, RATE), np.full(8, LATENCY), np.zeros(8))
    assert done.max() == pytest.approx(43.70e-6, rel=1e-4)


def test_chunks_hide_latency_but_not_bytes() -> None:
    one, four = (
        ring_times(14, chunks, 2.0**20 / 8 / chunks, np.full(8, RATE), np.full(8, LATENCY), np.zeros(8)).max()
        for chunks in (1, 4)
    )
    assert 14 * 2.0**20 / 8 / RATE < four < one


def test_a_period_of_hops_is_as_good_as_all_of_them() -> None:
    rate = np.tile([RATE, RATE / 2, RATE], 4)
    folded = ring_times(22, 3, 1e5, rate, np.full(12, LATENCY), np.zeros(12))
    late = np.zeros(12)
    late[5] = 1e-300  # one rank that differs, by nothing
    np.testing.assert_array_equal(folded, ring_times(22, 3, 1e5, rate, np.full(12, LATENCY), late))


@pytest.mark.parametrize("chunks", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_messages_one_by_one_say_the_same(chunks: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    ranks = int(random.integers(2, 9))
    rate = RATE * random.uniform(0.2, 1.0, ranks)
    latency, arrival = random.uniform(0, 5e-6, ranks), random.uniform(0, 1e-4, ranks)
    steps, size = 2 * (ranks - 1), 3e6
    fast = ring_times(steps, chunks, size / ranks / chunks, rate, latency, arrival)
    sends = ring(np.arange(ranks)[None], size)
    hops = routed(sends, np.arange(ranks), own_links, latency, arrival)
    ran = run_flows(rate, repeated(hops, chunks, steps))
    np.testing.assert_allclose(fast, done_by_rank(sends, ran.end_s), rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_chains_one_by_one_say_the_same(seed: int) -> None:
    random = np.random.default_rng(seed)
    ranks, chunks, size = int(random.integers(2, 9)), int(random.integers(1, 9)), 3e6
    rate, latency = RATE * random.uniform(0.2, 1.0, ranks), random.uniform(0, 5e-6, ranks)
    arrival = random.uniform(0, 1e-4, ranks)
    fast = chain_times(chunks, size / chunks, rate[:-1], latency[:-1], arrival)
    sends = chain(np.arange(ranks)[None], size)
    hops = routed(sends, np.arange(ranks), own_links, latency, arrival)
    ran = run_flows(rate, repeated(hops, chunks))
    slow = np.maximum(done_by_rank(sends, ran.end_s), arrival)
    np.testing.assert_allclose(fast, slow, rtol=1e-9)


def test_in_turn_and_max_min_fair_are_the_same_with_one_chunk_only() -> None:
    """Chunks that share a hop fairly crawl side by side, and none is passed on early."""
    ranks, size = 6, 6e6
    times = {}
    for chunks in (1, 4):
        hops = routed(
            ring(np.arange(ranks)[None], size), np.arange(ranks), own_links, np.full(ranks, 2e-5), np.zeros(ranks)
        )
        messages = repeated(hops, chunks, 10)
        in_turn = run_flows(np.full(ranks, RATE), messages).time_s
        messages.ahead[:] = NONE
        times[chunks] = (in_turn, run_flows(np.full(ranks, RATE), messages).time_s)
    assert times[1][0] == pytest.approx(times[1][1], rel=1e-12)
    assert times[4][0] < 0.9 * times[4][1]
    assert times[4][1] == pytest.approx(times[1][1], rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_trees_one_by_one_say_the_same(seed: int) -> None:
    """Every edge has a link of its own, so that its rate never changes."""
    random = np.random.default_rng(seed)
    ranks, chunks = int(random.integers(2, 9)), int(random.integers(1, 6))
    sends = tree(tree_parents(np.arange(ranks)), 1e6)
    edges = len(sends)
    rate, latency = random.uniform(1e9, 5e10, edges), random.uniform(0, 1e-5, edges)
    hops = routed(sends, np.arange(ranks), own_links, np.zeros(ranks), random.uniform(0, 1e-3, ranks))
    apart = Routes(np.arange(edges + 1), np.arange(edges), np.ones(edges))
    hops = replace(hops, route=np.arange(edges), routes=apart, latency_s=latency)
    ran = run_flows(rate, repeated(hops, chunks))
    np.testing.assert_allclose(pipeline_times(hops, chunks, rate), ran.end_s[-edges:], rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_very_many_chunks_are_not_counted_one_by_one(seed: int) -> None:
    """What chunks say of which only the last is asked, and what they say of all of them one by one."""
    random = np.random.default_rng(seed)
    hops, chunks = int(random.integers(2, 9)), 1_000
    rate, latency = RATE * random.choice([0.2, 0.5, 0.5 + 1e-4, 1.0], hops), random.uniform(0, 5e-6, hops)
    arrival = random.uniform(0, 1e-2, hops + 1)
    end = np.full(hops, -np.inf)
    for _ in range(chunks):
        came = -np.inf
        for hop in range(hops):
            end[hop] = max(came + latency[hop], arrival[hop] + latency[hop], end[hop]) + 1e5 / rate[hop]
            came = end[hop]
    fast = chain_times(chunks, 1e5, rate, latency, arrival)
    np.testing.assert_allclose(fast[1:], np.maximum(end, np.append(end[1:], 0.0)).clip(arrival[1:]), rtol=1e-9)
    assert chain_times(10**12, 1e5, rate, latency, arrival)[-1] == pytest.approx(1e17 / rate.min(), rel=1e-3)


def done_by_rank(sends: Sends, end_s: Floats) -> Floats:
    """When each place has sent and received its last message, of messages repeated any number of times."""
    times = len(end_s) // len(sends)
    done = np.zeros(int(sends.source.max()) + 2)
    np.maximum.at(done, np.tile(sends.source, times), end_s)
    np.maximum.at(done, np.tile(sends.target, times), end_s)
    return done[: len(np.unique(np.concatenate([sends.source, sends.target])))]
