"""Where ranks sit: the host of every rank and its GPU there.

Ranks fill hosts in order unless a file says otherwise. Three kinds of file are read, told apart by content:

- YAML or JSON: ``hosts: [{name: n0, ranks: 0-7}, {name: n1, ranks: [8, 9, 12-15]}]``
- an MPI hostfile: ``n0 slots=8`` on each line; ranks fill the slots in order
- an MPI rankfile: ``rank 0=n0 slot=0`` on each line
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from foretrace.errors import InputError, did_you_mean
from foretrace.mesh import RankArray

if TYPE_CHECKING:
    import yaml

_HOSTFILE_FORM = "node0 slots=8"
_RANKFILE_FORM = "rank 0=node0 slot=0"
_YAML_FORM = "hosts: [{name: node0, ranks: 0-7}]"


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The host of every rank, numbered from 0, and its slot (local GPU) there; both [world], read-only."""

    host: RankArray
    slot: RankArray
    names: tuple[str, ...] = ()
    """Host names where a file gave them, by host number."""

    def __post_init__(self) -> None:
        if self.host.ndim != 1 or self.host.shape != self.slot.shape:
            shapes = f"{self.host.shape} and {self.slot.shape}"
            raise InputError(f"host and slot have shapes {shapes}", hint="expected one of each per rank")
        for field in ("host", "slot"):
            array = np.array(getattr(self, field), dtype=np.int32)
            array.setflags(write=False)
            object.__setattr__(self, field, array)

    @classmethod
    def packed(cls, world: int, gpus_per_host: int) -> Placement:
        """Ranks in order, each host filled before the next."""
        if world < 1 or gpus_per_host < 1:
            raise InputError(
                f"cannot place {world} ranks on hosts of {gpus_per_host} GPUs", hint="both must be at least 1"
            )
        host, slot = np.divmod(np.arange(world, dtype=np.int32), np.int32(gpus_per_host))
        return cls(host, slot)

    @classmethod
    def load(cls, path: str | Path, world: int) -> Placement:
        """The placement of ``world`` ranks that a file gives; see the module for the kinds of file."""
        if world < 1:
            raise InputError(f"cannot place {world} ranks", hint="a world has at least 1")
        text = _read_text(Path(path))
        seats = _seats(text, str(path), world)
        return _placed(seats, str(path), world)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.host)

    @property
    def hosts(self) -> int:
        """Number of hosts that have a rank."""
        return int(self.host.max()) + 1

    def hosts_of(self, ranks: npt.ArrayLike) -> RankArray:
        """The hosts these ranks sit on, ascending, each once."""
        return np.unique(self.host[np.asarray(ranks)])

    def is_within_host(self, groups: RankArray) -> npt.NDArray[np.bool_]:
        """Whether all ranks of a group sit on one host, for every row of [groups, size]."""
        host = self.host[groups]
        return np.asarray((host == host[:, :1]).all(axis=1))

    def host_ranks(self) -> list[list[int]]:
        """The ranks of each host: what `ProgramBuilder.resource(shared_by=...)` takes for a NIC of a host."""
        order = np.argsort(self.host, kind="stable")
        bounds = np.cumsum(np.bincount(self.host))[:-1]
        return [ranks.tolist() for ranks in np.split(order, bounds)]

    def ranks_per_host(self) -> npt.NDArray[np.int64]:
        """Number of ranks on every host, [hosts]."""
        return np.bincount(self.host)


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
                f"rank {seat.rank} is not in a world of {world}",
                where=where,
                hint=f"expected 0 to {world - 1}",
            )
        first = by_rank.setdefault(seat.rank, seat)
        if first is not seat:
            places = f"on {first.host} (line {first.line}) and on {seat.host}"
            raise InputError(f"rank {seat.rank} is placed twice, {places}", where=where, hint="name it once")
        first = by_slot.setdefault((seat.host, seat.slot), seat)
        if first is not seat:
            ranks = f"rank {first.rank} (line {first.line}) and rank {seat.rank}"
            raise InputError(
                f"{ranks} share slot {seat.slot} of {seat.host}", where=where, hint="give each its own slot"
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


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the placement: {error.strerror}", where=str(path), hint="expected a text file"
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InputError("the placement is not text", where=str(path), hint=_expected())
    if not text.strip():
        raise InputError("the placement is empty", where=str(path), hint=_expected())
    return text


def _expected() -> str:
    return f'expected "{_YAML_FORM}", or lines such as "{_HOSTFILE_FORM}" or "{_RANKFILE_FORM}"'


def _seats(text: str, path: str, world: int) -> Iterator[_Seat]:
    lines = [
        (number, content)
        for number, line in enumerate(text.splitlines(), start=1)
        if (content := line.partition("#")[0].strip())
    ]
    if not lines:
        raise InputError("the placement has only comments", where=path, hint=_expected())
    first = lines[0][1]
    if re.match(r"rank\s", first):
        return _rankfile_seats(lines, path)
    if first[0] in "{[-" or re.match(r"[\"'\w]+\s*:(\s|$)", first) or _is_yaml_name(path):
        return _yaml_seats(text, path, world)
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
            f"the hosts have {rank} slots for {world} ranks", where=path, hint=f"list at least {world} slots"
        )


def _rankfile_seats(lines: list[tuple[int, str]], path: str) -> Iterator[_Seat]:
    for line, content in lines:
        match = re.fullmatch(r"rank\s+([0-9]{1,9})\s*=\s*(\S+)\s+slots?\s*=\s*([0-9]{1,9})", content)
        if match is None:
            raise InputError(
                f'"{content}" is not a rank, its host and its slot',
                where=f"{path}:{line}",
                hint=f'expected e.g. "{_RANKFILE_FORM}", the slot a GPU number',
            )
        yield _Seat(int(match[1]), match[2], int(match[3]), line)


def _yaml_seats(text: str, path: str, world: int) -> Iterator[_Seat]:
    seen: dict[str, int] = {}
    for node in _host_nodes(_composed(text, path), path):
        line = node.start_mark.line + 1
        fields = _fields(node, path, ("name", "ranks"))
        host = _scalar(fields["name"], path, "a host name")
        _check_new_host(host, seen, path, line)
        slot = 0
        for ranks, rank_line in _rank_ranges(fields["ranks"], path, world):
            for rank in ranks:
                yield _Seat(rank, host, slot, rank_line)
                slot += 1
        if slot == 0:
            raise InputError(f"host {host} has no ranks", where=f"{path}:{line}", hint="leave out hosts without ranks")


def _composed(text: str, path: str) -> yaml.Node:
    """The YAML nodes of the text, which know their lines; JSON is read as the YAML that it is."""
    import yaml

    source = text
    if text.lstrip()[0] in "{[" and _is_json(text, path):
        # A raw tab in JSON is always white space, which YAML does not allow everywhere.
        source = text.replace("\t", " ")
    try:
        # The loader in C dies of deep nesting; the one in Python raises.
        node: yaml.Node | None = yaml.compose(source, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(
            f"not valid YAML: {error.problem}", where=f"{path}{line}", hint=f"expected e.g. {_YAML_FORM}"
        ) from None
    except (yaml.YAMLError, RecursionError):
        raise InputError("not valid YAML", where=path, hint=f"expected e.g. {_YAML_FORM}") from None
    if node is None:
        raise InputError("the placement is empty", where=path, hint=_expected())
    return node


def _is_json(text: str, path: str) -> bool:
    """Whether the text is JSON; a file that is named so must be."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if Path(path).suffix.lower() != ".json":
            return False
        raise InputError(f"not valid JSON: {error.msg}", where=f"{path}:{error.lineno}", hint=_expected()) from None
    except (RecursionError, ValueError):
        return False
    return True


def _host_nodes(root: yaml.Node, path: str) -> list[yaml.Node]:
    import yaml

    hosts = root if isinstance(root, yaml.SequenceNode) else _fields(root, path, ("hosts",))["hosts"]
    if not isinstance(hosts, yaml.SequenceNode) or not hosts.value:
        raise _wrong_node(hosts, path, "a list of hosts")
    nodes: list[yaml.Node] = hosts.value
    return nodes


def _fields(node: yaml.Node, path: str, known: tuple[str, ...]) -> dict[str, yaml.Node]:
    """The fields of a mapping: exactly the known ones, each once."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        raise _wrong_node(node, path, f"a mapping with {' and '.join(known)}")
    fields: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = _scalar(key, path, "a field name")
        where = f"{path}:{key.start_mark.line + 1}"
        if name not in known:
            raise InputError(
                f'field "{name}" is not known{did_you_mean(name, known)}',
                where=where,
                hint=f"known: {' '.join(known)}",
            )
        if name in fields:
            raise InputError(f"field {name} is given twice", where=where, hint="give it once")
        fields[name] = value
    for name in known:
        if name not in fields:
            raise InputError(
                f"field {name} is missing",
                where=f"{path}:{node.start_mark.line + 1}",
                hint=f"expected e.g. {_YAML_FORM}",
            )
    return fields


def _rank_ranges(node: yaml.Node, path: str, world: int) -> Iterator[tuple[range, int]]:
    """The ranges a node names with their lines: a rank, "0-7", or a list of these."""
    import yaml

    for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        text = _scalar(item, path, 'a rank or a range such as "0-7"')
        line = item.start_mark.line + 1
        match = re.fullmatch(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?", text.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise InputError(
                f'"{text}" is not a rank or a range of ranks',
                where=f"{path}:{line}",
                hint="expected 5 or 0-7",
            )
        # One rank beyond the world is enough to say so; a billion would only take memory.
        yield range(first, min(last, max(first, world)) + 1), line


def _scalar(node: yaml.Node, path: str, expected: str) -> str:
    import yaml

    if not isinstance(node, yaml.ScalarNode) or not node.value:
        raise _wrong_node(node, path, expected)
    return str(node.value)


def _wrong_node(node: yaml.Node, path: str, expected: str) -> InputError:
    return InputError(
        f"expected {expected}", where=f"{path}:{node.start_mark.line + 1}", hint=f"for example {_YAML_FORM}"
    )


def _check_new_host(host: str, seen: dict[str, int], path: str, line: int) -> None:
    if host in seen:
        raise InputError(
            f"host {host} is listed twice, first on line {seen[host]}",
            where=f"{path}:{line}",
            hint="list every host once",
        )
    seen[host] = line
