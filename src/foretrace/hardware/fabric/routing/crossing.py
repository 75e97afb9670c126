"""Finds the paths through the network between classes of GPUs: the exits they use, and the links between these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.hardware.fabric.csr import items_of, starts_of, summed
from foretrace.hardware.fabric.routing.attachment import DEPTH, Attachment
from foretrace.hardware.fabric.routing.switching import FAR, Switching

_MAX_DEVICES: Final = 1 << 31
"""More than the links of a GPU's tree or the switches of a network."""


@dataclass(frozen=True, slots=True, eq=False)
class Combinations:
    """Pairs of exits that flows between two classes use, class pair by class pair; exits counted within a GPU's own."""

    start: Longs
    out: Longs
    into: Longs
    source: Longs
    """The switch at the sender's exit, by its number among the switches."""
    target: Longs
    share: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """For each pair of classes, links of a GPU's tree (counted within it) or of the network, and the share on each."""

    start: Longs
    item: Longs
    share: Floats


class Crossing:
    """Finds the links between GPUs of two classes, once for each pair of classes."""

    def __init__(self, attachment: Attachment, switching: Switching) -> None:
        self._attachment = attachment
        self._switching = switching
        counts = np.diff(attachment.exit_start)[attachment.one_of]
        at, _ = items_of(attachment.exit_start, attachment.one_of)
        self._start = starts_of(counts)
        self._switch = switching.of_device[attachment.exit_switch[at]]
        self._tree = attachment.exit_tree[at]
        component = switching.components()
        parts = np.unique(np.repeat(np.arange(len(counts)), counts) * (1 << 32) + component[self._switch])
        self._parts = parts
        self._part_start = starts_of(np.bincount(parts >> 32, minlength=len(counts)))

    def reaches(self, source: Longs, target: Longs) -> Mask:
        """Returns whether there is a path between GPUs of these classes: both have exits to one connected part."""
        key, which = _unique_pairs(source, target, len(self._start))
        at, counts = items_of(self._part_start, key[:, 0])
        owner = np.repeat(np.arange(len(key)), counts)
        sought = (key[owner, 1] << 32) + (self._parts[at] & 0xFFFFFFFF)
        place = np.minimum(np.searchsorted(self._parts, sought), max(0, len(self._parts) - 1))
        there = np.zeros(len(key), dtype=np.bool_)
        there[owner[self._parts[place] == sought]] = True
        return there[which]

    def combinations(self, source: Longs, target: Longs) -> Combinations:
        """The nearest exits for each pair of classes, equally used."""
        left, left_counts = items_of(self._start, source)
        pair = np.repeat(np.arange(len(source)), left_counts)
        right, right_counts = items_of(self._start, target[pair])
        left, pair = np.repeat(left, right_counts), np.repeat(pair, right_counts)
        hops = self._switching.distance(self._switch[left], self._switch[right])
        nearest = np.full(len(source), FAR)
        np.minimum.at(nearest, pair, hops)
        used = (hops == nearest[pair]) & (hops < FAR)
        pair, left, right = pair[used], left[used], right[used]
        number = np.bincount(pair, minlength=len(source))
        return Combinations(
            start=starts_of(number),
            out=left - self._start[source[pair]],
            into=right - self._start[target[pair]],
            source=self._switch[left],
            target=self._switch[right],
            share=1.0 / number[pair],
        )

    def trees(self, classes: Longs, start: Longs, exits: Longs, share: Floats, inwards: bool = False) -> Shares:
        """The shares on the links of a GPU's tree, for each pair: of the exits used, counted within the GPU's own;
        nearest to the GPU first, or last on the way inwards."""
        pair = np.repeat(np.arange(len(classes)), np.diff(start))
        tree = self._tree[self._start[classes[pair]] + exits]
        valid = tree >= 0
        place = _MAX_DEVICES - tree[valid] if inwards else tree[valid]
        key = np.repeat(pair, DEPTH).reshape(-1, DEPTH)[valid] * (1 << 32) + place
        used, which = np.unique(key, return_inverse=True)
        total = summed(which, np.repeat(share, DEPTH).reshape(-1, DEPTH)[valid], len(used))
        item = used & 0xFFFFFFFF
        start = starts_of(np.bincount(used >> 32, minlength=len(classes)))
        return Shares(start, _MAX_DEVICES - item if inwards else item, total)

    def between(self, combinations: Combinations) -> Shares:
        """Returns for each pair of classes the links between their exits, with the share of its traffic on each."""
        pairs = len(combinations.start) - 1
        key, which = _unique_pairs(combinations.source, combinations.target, _MAX_DEVICES)
        paths = self._switching.spread(key[:, 0], key[:, 1])
        at, counts = items_of(paths.start, which)
        pair = np.repeat(np.repeat(np.arange(pairs), np.diff(combinations.start)), counts)
        link, share = paths.link[at], paths.share[at] * np.repeat(combinations.share, counts)
        if len(combinations.source) > pairs:  # several combinations may share a link
            merged, where = np.unique(pair * (1 << 32) + link, return_inverse=True)
            pair, link = merged >> 32, merged & 0xFFFFFFFF
            share = summed(where, share, len(merged))
        return Shares(starts_of(np.bincount(pair, minlength=pairs)), link, share)


def _unique_pairs(first: Longs, second: Longs, most: int) -> tuple[Longs, Longs]:
    """The different pairs, [pairs, 2], and which of them each is."""
    used, which = np.unique(first * most + second, return_inverse=True)
    return np.stack((used // most, used % most), axis=1), which
