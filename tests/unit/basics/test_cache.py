"""A cache that is bounded by size."""

from __future__ import annotations

from foretrace.basics.cache import SizedCache


def test_values_are_kept_up_to_a_size_and_the_oldest_go_first() -> None:
    cache: SizedCache[int, list[int]] = SizedCache(10, len)
    small = [cache.get(number, lambda: [0, 0]) for number in range(5)]
    assert all(cache.get(number, list) is small[number] for number in range(5))
    cache.get(0, list)
    cache.get(9, lambda: [0])
    assert cache.get(0, list) is small[0]
    assert cache.get(1, lambda: [1]) == [1]


def test_a_value_that_is_too_large_is_kept_alone() -> None:
    cache: SizedCache[str, list[int]] = SizedCache(3, len)
    cache.get("small", lambda: [1])
    large = cache.get("large", lambda: [0] * 5)
    assert cache.get("large", list) is large
    assert cache.get("small", lambda: [2]) == [2]


def test_a_value_may_be_asked_for_while_another_is_being_kept() -> None:
    # A signal handler runs in the thread that holds the lock.
    cache: SizedCache[str, list[int]] = SizedCache(3, len)
    with cache._lock:
        assert cache.get("small", lambda: [1]) == [1]
