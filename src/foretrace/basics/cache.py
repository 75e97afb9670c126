"""Keeps what was asked for last, as much as fits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SizedCache(Generic[Key, Value]):
    """Values by key, bounded by the sum of their sizes and not by their number; the one used last is always kept."""

    def __init__(self, max_size: int, size_of: Callable[[Value], int]) -> None:
        self.max_size = max_size
        self._size_of = size_of
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._size = 0
        self._lock = RLock()  # a signal handler may ask for a value while its own thread holds the lock

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Returns the value of a key, which is made if it is not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = make()
        size = self._size_of(value)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = value
                self._size += size
            value = self._kept[key]
            while self._size > self.max_size and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._size -= self._size_of(oldest)
            return value
