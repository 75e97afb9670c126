"""Places ranks: the host of every rank and its GPU there.

Ranks fill hosts in order unless a file says otherwise. Three kinds of file are read, recognised by content:

- YAML or JSON: ``hosts: [{name: n0, ranks: 0-7}, {name: n1, ranks: [8, 9, 12-15]}]``
- an MPI hostfile: ``n0 slots=8`` on each line; ranks fill the slots in order
- an MPI rankfile: ``rank 0=n0 slot=0`` on each line
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretrace.basics.arguments import check_fields, checked, checked_methods
from foretrace.basics.arrays import Ints, Longs
from foretrace.basics.documents import Document
from foretrace.basics.errors import InputError, did_you_mean
from foretrace.basics.limits import check_gpus

if TYPE_CHECKING:
    import yaml

_HOSTFILE_FORM = "node0 slots=8"
_RANKFILE_FORM = "rank 0=node0 slot=0"
_YAML_FORM = "hosts: [{name: node0, ranks: 0-7}]"
_EXPECTED = f'expected "{_YAML_FORM}", or lines such as "{_HOSTFILE_FORM}" or "{_RANKFILE_FORM}"'

_LIMIT = 1 << 31
MAX_BYTES = 100_000_000
"""The largest file: a line for each of a million ranks is a third of it."""


@checked_methods
@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The host of every rank, numbered from 0, and its slot (local GPU) there; both [world], read-only."""

    host: Ints
    slot: Ints
    names: tuple[str, ...] = ()
    """Host names where a file gave them, by host number."""

    def __post_init__(self) -> None:
        for field in ("host", "slot"):
            given = getattr(self, field)
            if isinstance(given, list | tuple):
                with suppress(ValueError):  # lists of different lengths, which the check of fields refuses
                    object.__setattr__(self, field, np.array(given, dtype=None if len(given) else np.int32))
            if isinstance(given, np.ndarray) and given.dtype.kind not in "iu":
                raise _bad_numbers(field)
        check_fields(self)
        if self.host.ndim != 1 or self.host.shape != self.slot.shape:
            shapes = f"{self.host.shape} and {self.slot.shape}"
            raise InputError(
                "bad-placement", f"host and slot have shapes {shapes}", hint="expected one of each per rank"
            )
        for field in ("host", "slot"):
            given = getattr(self, field)
            if len(given) and not 0 <= int(given.min()) <= int(given.max()) < _LIMIT:
                raise _bad_numbers(field)
            array = np.array(given, dtype=np.int32)
            array.setflags(write=False)
            object.__setattr__(self, field, array)
        if not len(self.host):
            raise InputError("bad-placement", "there are no ranks", where="Placement", hint="place one at least")

    @classmethod
    @checked
    def packed(cls, world: int, gpus_per_host: int, host_numbers: Longs | None = None) -> Placement:
        """Ranks in order, each host filled before the next.

        Args:
            world: Number of ranks.
            gpus_per_host: Ranks that fill a host.
            host_numbers: The number of each host in turn, where some hosts stay idle; None counts from 0.
        """
        if host_numbers is not None and host_numbers.ndim != 1:
            raise InputError("bad-placement", "host numbers are not a list of whole numbers", where="Placement.packed")
        if world < 1 or gpus_per_host < 1:
            raise InputError(
                "out-of-range",
                f"cannot place {world} ranks on hosts of {gpus_per_host} GPUs",
                hint="both must be at least 1",
            )
        check_gpus(max(world, gpus_per_host), "placement")
        hosts = -(-world // gpus_per_host)
        if host_numbers is not None and len(host_numbers) < hosts:
            problem = f"{len(host_numbers)} host numbers are given for {hosts} hosts"
            raise InputError("bad-placement", problem, where="Placement.packed", hint="name each host")
        host, slot = np.divmod(np.arange(world, dtype=np.int32), np.int32(gpus_per_host))
        return cls(host if host_numbers is None else host_numbers[host].astype(np.int32), slot)

    @classmethod
    def load(cls, path: str | Path, world: int) -> Placement:
        """The placement of ``world`` ranks that a file gives; see the module for the kinds of file."""
        if world < 1:
            raise InputError("out-of-range", f"cannot place {world} ranks", hint="a world has at least 1")
        check_gpus(world, "placement")
        document = Document(str(path), "placement", _EXPECTED, _YAML_FORM)
        return _placed(_seats(document, world), document.path, world)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.host)

    @property
    def hosts(self) -> int:
        """Number of hosts up to the last that has a rank; those between may be idle."""
        return int(self.host.max()) + 1

    def ranks_per_host(self) -> Longs:
        """Number of ranks on every host, [hosts], 0 on idle ones."""
        return np.bincount(self.host)


def _bad_numbers(field: str) -> InputError:
    hint = "expected whole numbers, 0 or more"
    return InputError("bad-placement", f"a {field} cannot be meant", where="Placement", hint=hint)


@dataclass(frozen=True, slots=True)
class _Seat:
    """One rank at one place, as a line of a file says."""

    rank: int
    host: str
    slot: int
    line: int


def _placed(seats: Iterable[_Seat], path: str, world: int) -> Placement:
    """The placement of exactly the ranks 0..world−1, hosts numbered as they first appear."""
    number: dict[str, int] = {}
    by_rank: dict[int, _Seat] = {}
    by_slot: dict[tuple[str, int], _Seat] = {}
    for seat in seats:
        where = f"{path}:{seat.line}"
        if seat.rank >= world:
            raise InputError(
                "no-such-rank",
                f"rank {seat.rank} is not in a world of {world}",
                where=where,
                hint=f"expected 0 to {world - 1}",
            )
        first = by_rank.setdefault(seat.rank, seat)
        if first is not seat:
            places = f"on {first.host} (line {first.line}) and on {seat.host}"
            raise InputError(
                "bad-placement", f"rank {seat.rank} is placed twice, {places}", where=where, hint="name it once"
            )
        first = by_slot.setdefault((seat.host, seat.slot), seat)
        if first is not seat:
            ranks = f"rank {first.rank} (line {first.line}) and rank {seat.rank}"
            raise InputError(
                "bad-placement",
                f"{ranks} share slot {seat.slot} of {seat.host}",
                where=where,
                hint="give each its own slot",
            )
        number.setdefault(seat.host, len(number))
    _check_complete(by_rank, path, world)
    placed = [by_rank[rank] for rank in range(world)]
    host = np.fromiter((number[seat.host] for seat in placed), dtype=np.int32, count=world)
    slot = np.fromiter((seat.slot for seat in placed), dtype=np.int32, count=world)
    return Placement(host, slot, tuple(number))


def _check_complete(by_rank: Container[int], path: str, world: int) -> None:
    missing = [rank for rank in range(world) if rank not in by_rank]
    if missing:
        raise InputError(
            "bad-placement",
            f"{len(missing)} of {world} ranks have no host: {_ranges(missing)}",
            where=path,
            hint=f"place every rank from 0 to {world - 1} once",
        )


def _ranges(ranks: list[int], shown: int = 5) -> str:
    """Ascending ranks in short: "3, 8-15 and more"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:shown]]
    return ", ".join(texts) + (" and more" if len(runs) > shown else "")


def _seats(document: Document, world: int) -> Iterator[_Seat]:
    text, path = document.read(MAX_BYTES), document.path
    lines = [
        (number, content)
        for number, line in enumerate(text.splitlines(), start=1)
        if (content := line.partition("#")[0].strip())
    ]
    if not lines:
        raise InputError("empty-file", "the placement has only comments", where=path, hint=document.expected)
    first = lines[0][1]
    if re.match(r"rank\s", first):
        return _rankfile_seats(lines, path)
    if first[0] in "{[-" or re.match(r"[\"'\w]+\s*:(\s|$)", first) or _is_yaml_name(path):
        return _yaml_seats(document, text, world)
    return _hostfile_seats(lines, path, world)


def _is_yaml_name(path: str) -> bool:
    return Path(path).suffix.lower() in (".yaml", ".yml", ".json")


def _hostfile_seats(lines: list[tuple[int, str]], path: str, world: int) -> Iterator[_Seat]:
    """Ranks in order over the slots of the hosts; hosts left over stay unused, as under mpirun."""
    seen: dict[str, int] = {}
    rank = 0
    for line, content in lines:
        match = re.fullmatch(r"(\S+)\s+(\w+)\s*=\s*([0-9]{1,9})", content)
        if match is None or match[2] != "slots" or int(match[3]) < 1:
            near = did_you_mean(match[2], ["slots"]) if match and match[2] != "slots" else ""
            raise InputError(
                "bad-syntax",
                f'"{content}" is not a host and its slots{near}',
                where=f"{path}:{line}",
                hint=f'expected e.g. "{_HOSTFILE_FORM}"',
            )
        host, slots = match[1], int(match[3])
        _check_new_host(host, seen, path, line)
        for slot in range(min(slots, world - rank)):
            yield _Seat(rank, host, slot, line)
            rank += 1
    if rank < world:
        raise InputError(
            "bad-placement",
            f"the hosts have {rank} slots for {world} ranks",
            where=path,
            hint=f"list at least {world} slots",
        )


def _rankfile_seats(lines: list[tuple[int, str]], path: str) -> Iterator[_Seat]:
    for line, content in lines:
        match = re.fullmatch(r"rank\s+([0-9]{1,9})\s*=\s*(\S+)\s+slots?\s*=\s*([0-9]{1,9})", content)
        if match is None:
            raise InputError(
                "bad-syntax",
                f'"{content}" is not a rank, its host and its slot',
                where=f"{path}:{line}",
                hint=f'expected e.g. "{_RANKFILE_FORM}", the slot a GPU number',
            )
        yield _Seat(int(match[1]), match[2], int(match[3]), line)


def _yaml_seats(document: Document, text: str, world: int) -> Iterator[_Seat]:
    seen: dict[str, int] = {}
    for node in _host_nodes(document, document.compose(text)):
        line = node.start_mark.line + 1
        fields = document.fields(node, ("name", "ranks"))
        host = document.text(fields["name"], "a host name")
        _check_new_host(host, seen, document.path, line)
        slot = 0
        for ranks, rank_line in _rank_ranges(document, fields["ranks"], world):
            for rank in ranks:
                yield _Seat(rank, host, slot, rank_line)
                slot += 1
        if slot == 0:
            raise InputError(
                "bad-placement",
                f"host {host} has no ranks",
                where=document.where(node),
                hint="leave out hosts without ranks",
            )


def _host_nodes(document: Document, root: yaml.Node) -> list[yaml.Node]:
    import yaml

    hosts = root if isinstance(root, yaml.SequenceNode) else document.fields(root, ("hosts",))["hosts"]
    return document.items(hosts, "a list of hosts")


def _rank_ranges(document: Document, node: yaml.Node, world: int) -> Iterator[tuple[range, int]]:
    """The ranges a node names with their lines: a rank, "0-7", or a list of these."""
    import yaml

    for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        text = document.text(item, 'a rank or a range such as "0-7"')
        match = re.fullmatch(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?", text.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise InputError(
                "bad-value",
                f'"{text}" is not a rank or a range of ranks',
                where=document.where(item),
                hint="expected 5 or 0-7",
            )
        # One rank beyond the world is enough to say so; a billion would only take memory.
        yield range(first, min(last, max(first, world)) + 1), item.start_mark.line + 1


def _check_new_host(host: str, seen: dict[str, int], path: str, line: int) -> None:
    if host in seen:
        raise InputError(
            "duplicate-name",
            f"host {host} is listed twice, first on line {seen[host]}",
            where=f"{path}:{line}",
            hint="list every host once",
        )
    seen[host] = line
