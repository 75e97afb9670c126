"""Parses NCCL_ALGO and NCCL_PROTO: what a user allows NCCL to choose.

`ring,tree` allows these and nothing else, `^tree` everything else. `allreduce:tree;allgather:ring` applies by
collective, and a first entry without a collective applies to all the others (NCCL, `graph/tuning.cc`, parseList). As in
NCCL since 2.24, ring is not a fallback: a call that nothing allowed can run is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from foretrace.basics.errors import InputError, did_you_mean, shortened
from foretrace.cost.network.nccl_log.names import (
    ALGORITHMS,
    FUNCTIONS,
    PROTOCOLS,
    algorithm_called,
    as_nccl_writes,
    function_called,
    protocol_called,
)
from foretrace.program.columns import Collective, label

Allowed = tuple[tuple[Collective, frozenset[str]], ...]
"""The allowed names, for each collective that is restricted."""

_RUNS_AS: Final = {Collective.BARRIER: Collective.ALL_REDUCE}
"""A barrier is an all-reduce of a word."""


@dataclass(frozen=True, slots=True)
class Forced:
    """The algorithms and protocols that may be used, by collective; NCCL chooses freely for those that are not
    listed."""

    algorithms: Allowed = ()
    protocols: Allowed = ()
    algorithm_text: str = ""
    """As the user wrote it, for messages."""
    protocol_text: str = ""

    @classmethod
    def of(cls, algorithms: str | None = None, protocols: str | None = None) -> Forced:
        """Parses the texts of NCCL_ALGO and NCCL_PROTO."""
        return cls(
            _parsed(algorithms, "NCCL_ALGO", ALGORITHMS, algorithm_called),
            _parsed(protocols, "NCCL_PROTO", PROTOCOLS, protocol_called),
            algorithms or "",
            protocols or "",
        )

    def __bool__(self) -> bool:
        return bool(self.algorithms or self.protocols)

    def touches(self, collective: Collective) -> bool:
        """Returns whether a collective is restricted."""
        what = _RUNS_AS.get(collective, collective)
        return what in dict(self.algorithms) or what in dict(self.protocols)

    def allows(self, collective: Collective, algorithm: str, protocol: str) -> bool:
        """Returns whether a call may run this way. Sends and receives, and collectives made of them, have no
        algorithms."""
        what = _RUNS_AS.get(collective, collective)
        algorithms, protocols = dict(self.algorithms).get(what), dict(self.protocols).get(what)
        return (algorithms is None or algorithm in algorithms) and (protocols is None or protocol in protocols)

    def insists_on(self, collective: Collective, protocol: str) -> bool:
        """Returns whether a protocol was requested, so that NCCL uses it where it would not by itself: LL128 over
        PCIe."""
        return protocol in dict(self.protocols).get(_RUNS_AS.get(collective, collective), frozenset())

    def nothing_left(self, collective: Collective, group: str, possible: Iterable[tuple[str, str]]) -> InputError:
        """The error of a call that cannot run: `group` says where, `possible` how it could, were it allowed."""
        settings = [f"{name}={text}" for name, text in self._texts() if text]
        ways: dict[str, list[str]] = {}
        for algorithm, protocol in possible:
            ways.setdefault(as_nccl_writes(algorithm), []).append(as_nccl_writes(protocol))
        could = "; ".join(f"{algorithm} ({', '.join(protocols)})" for algorithm, protocols in ways.items())
        what = label(collective).replace("_", "-")
        return InputError(
            "unknown-collective",
            f"{' and '.join(settings)} leaves no way to run the {what} of {group}",
            hint=f"NCCL would stop here too; it could use {could}" if could else "NCCL would stop here too",
        )

    def _texts(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return (("NCCL_ALGO", self.algorithm_text), ("NCCL_PROTO", self.protocol_text))


def _parsed(text: str | None, name: str, all_of: tuple[str, ...], called: Callable[[str], str | None]) -> Allowed:
    if text is None:
        return ()
    allowed: dict[Collective, frozenset[str]] = {}
    entries = [entry.strip() for entry in text.split(";")]
    entries = [entry for entry in entries if entry]
    if not entries:
        raise InputError("bad-value", f"{name} is empty", hint=_example(name, all_of))
    for index, entry in enumerate(entries):
        function, colon, words = entry.rpartition(":")
        if not colon and index > 0:
            problem = f'only the first entry may be for all collectives, "{shortened(entry)}" is not'
            raise InputError("bad-value", problem, where=name, hint="write allreduce:tree;allgather:ring")
        listed = _listed(words, name, all_of, called)
        for what in (_function(function, name),) if colon else FUNCTIONS.values():
            allowed[what] = listed
    return tuple(sorted(allowed.items()))


def _function(text: str, name: str) -> Collective:
    collective = function_called(text)
    if collective is None:
        known = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")
        problem = f'"{shortened(text)}" is no function with algorithms{did_you_mean(text, known)}'
        raise InputError("unknown-collective", problem, where=name, hint=f"known: {', '.join(known)}")
    return collective


def _listed(text: str, name: str, all_of: tuple[str, ...], called: Callable[[str], str | None]) -> frozenset[str]:
    """The names of a list, or all others after ^."""
    without = text.strip().startswith("^")
    names = set()
    for word in (word.strip() for word in text.strip().removeprefix("^").split(",")):
        known_name = None if word.isdecimal() else called(word)
        if known_name is None:
            known = [as_nccl_writes(each) for each in all_of]
            kind = "algorithm" if all_of is ALGORITHMS else "protocol"
            problem = f'"{shortened(word)}" is no {kind} of NCCL{did_you_mean(word, known)}'
            raise InputError(
                "unknown-name", problem, where=name, hint=f"known: {', '.join(known)}; ^ before the first means all but"
            )
        names.add(known_name)
    left = set(all_of) - names if without else names
    if not left:
        raise InputError(
            "bad-value", f'"{shortened(text)}" leaves nothing to choose from', where=name, hint=_example(name, all_of)
        )
    return frozenset(left)


def _example(name: str, all_of: tuple[str, ...]) -> str:
    return f"for example {name}={as_nccl_writes(all_of[1])} or {name}=^{as_nccl_writes(all_of[0])}"
