"""Parallel axes, the order in which they number the ranks, and the groups they form.

A mesh numbers the same ranks in two ways: the dense decomposition tp·cp·dp·pp for all but the experts, and
the expert decomposition etp·ep·edp·pp for them. Both follow one order string, as in Megatron-core's
``parallel_state.RankGenerator``: the expert one reads tp as etp and dp as edp, and has no cp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from foretrace.basics.arguments import checked_methods
from foretrace.basics.arrays import Ints
from foretrace.basics.errors import InputError, did_you_mean, shortened, shown_value
from foretrace.basics.numbers import python_number

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
"""Megatron-core's default, fastest axis first."""

_MAX_WORLD = 2**31 - 1
_CACHED_ARRAYS = 16
"""Enough for every group of one mesh; at a million ranks such an array is 4 MB."""


class Axis(StrEnum):
    """One dimension of parallelism; ``shard`` and ``replicate`` are the two parts of ``dp`` (HSDP).

    ``embd`` names the embedding group, the first and last stage of a pipeline; it is not a dimension.
    """

    TP = "tp"
    CP = "cp"
    EP = "ep"
    DP = "dp"
    PP = "pp"
    ETP = "etp"
    EDP = "edp"
    SHARD = "shard"
    REPLICATE = "replicate"
    EMBD = "embd"


_DENSE_ONLY = frozenset({Axis.TP, Axis.CP, Axis.DP, Axis.SHARD, Axis.REPLICATE})
_EXPERT_ONLY = frozenset({Axis.ETP, Axis.EP, Axis.EDP})

_Dims: TypeAlias = tuple[tuple[Axis, int], ...]
"""The axes of one decomposition with their sizes, fastest first."""


@checked_methods
@dataclass(frozen=True, slots=True)
class Mesh:
    """Sizes of the parallel axes and the order in which they number the ranks.

    ``etp`` left None is tp, as Megatron-core's expert_tensor_parallel_size; ``shard`` left None is dp. Both
    stay None, so that they still follow after ``dataclasses.replace``; ``size`` gives what they come to.
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int | None = None
    shard: int | None = None
    """Ranks over which dp shards, neighbours within dp; the dp/shard replicas all-reduce (HSDP)."""
    order: str = DEFAULT_ORDER
    """The axes, fastest first."""

    def __post_init__(self) -> None:
        for name in ("tp", "cp", "dp", "pp", "ep", "etp", "shard"):
            object.__setattr__(self, name, _axis_size(name, getattr(self, name)))
        _check_order(self.order)
        if self.world > _MAX_WORLD:
            raise InputError("too-large", f"mesh {self} has {self.world} ranks; at most {_MAX_WORLD} are possible")
        self._check_divisors()
        self._dense_dims()
        # A dense model never asks for expert groups: an order that only those cannot follow is no mistake.
        if self.ep > 1 or self.size(Axis.ETP) != self.tp:
            self._expert_dims()

    @property
    def world(self) -> int:
        """Number of ranks: tp·cp·dp·pp."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Replicas of each expert: tp·cp·dp / (etp·ep)."""
        return self.tp * self.cp * self.dp // (self.size(Axis.ETP) * self.ep)

    @property
    def replicate(self) -> int:
        """Replicas of each dp shard group: dp / shard."""
        return self.dp // self.size(Axis.SHARD)

    def size(self, axis: str) -> int:
        """Number of ranks along the axis."""
        match _axis(axis):
            case Axis.ETP:
                return self.tp if self.etp is None else self.etp
            case Axis.SHARD:
                return self.dp if self.shard is None else self.shard
            case known:
                size: int = getattr(self, known)
                return size

    def coordinate(self, axis: str) -> Ints:
        """Coordinate of every rank on the axis, [world], read-only."""
        known = _axis(axis)
        # shard is the fast part of dp and directly below replicate, so dp counts on from it.
        fastest = Axis.SHARD if known is Axis.DP else known
        stride = _stride(self._dims_with({known}), fastest)
        return _coordinate(self.world, stride, self.size(known))

    def rank(self, **coordinates: int) -> int:
        """The one rank at these coordinates; every axis longer than one must be given."""
        given = self._check_coordinates(coordinates)
        dims = self._dims_with(given)
        if Axis.DP in given:
            if not given.keys().isdisjoint({Axis.SHARD, Axis.REPLICATE}):
                raise InputError("conflicting-values", "give dp or its parts shard and replicate, not both")
            given[Axis.REPLICATE], given[Axis.SHARD] = divmod(given.pop(Axis.DP), self.size(Axis.SHARD))
        missing = [axis for axis, size in dims if size > 1 and axis not in given]
        if missing:
            raise InputError(
                "bad-mesh",
                f"the coordinates name more than one rank: {' '.join(missing)} not given",
                hint="use where() for all ranks that match",
            )
        return sum(_stride(dims, axis) * given.get(axis, 0) for axis, _ in dims)

    def where(self, **coordinates: int) -> Ints:
        """The ranks at these coordinates, ascending; axes not given are free."""
        match = np.ones(self.world, dtype=np.bool_)
        for axis, value in self._check_coordinates(coordinates).items():
            match &= self.coordinate(axis) == value
        return np.flatnonzero(match).astype(np.int32)

    def stage_ranks(self) -> list[Ints]:
        """Returns the ranks of every pipeline stage, ascending."""
        order = np.argsort(self.coordinate(Axis.PP), kind="stable").astype(np.int32)
        return list(order.reshape(self.pp, -1))

    def group_of(self, *axes: str) -> Ints:
        """Group of every rank, [world], read-only, where these axes vary together and all others are fixed.

        Groups are numbered by their lowest rank. Dense and expert axes do not mix; pp goes with either.
        """
        return _group_of(*self._group_key(axes))

    def groups(self, *axes: str) -> Ints:
        """Ranks of every group, [groups, size], read-only; numbered as in ``group_of``.

        Members come in the order of their coordinates, the first named axis fastest.
        """
        return _groups(*self._group_key(axes))

    def pairs(self, axis: str, a: int, b: int) -> Ints:
        """Ranks at a and at b on the axis, all else equal, [pairs, 2]."""
        known = _axis(axis)
        for coordinate in (a, b):
            _check_coordinate(known, coordinate, self.size(known))
        return self.groups(known)[:, [a, b]]

    def embedding_groups(self) -> Ints:
        """First and last stage of every pipeline, [pipelines, 2]; one stage is alone, [pipelines, 1]."""
        return self.groups(Axis.PP) if self.pp == 1 else self.pairs(Axis.PP, 0, self.pp - 1)

    @classmethod
    def parse(cls, text: str, *, where: str | None = None, base: Mesh | None = None) -> Mesh:
        """A mesh from "tp=2,pp=4,dp=8,ep=8", with "etp=", "shard=" and "order=" where they matter. What the text does
        not name is as in `base`."""
        fields = parse_axes(text, where)
        try:
            return replace(base or cls(), **fields)
        except InputError as error:
            raise InputError(error.code, error.message, where=where, hint=error.hint) from None

    def __str__(self) -> str:
        """Returns text that ``parse`` reads: every axis longer than one, and what differs from its default."""
        sizes = {name: getattr(self, name) for name in ("tp", "cp", "dp", "pp", "ep")}
        parts = [f"{name}={size}" for name, size in sizes.items() if size != 1]
        parts += [f"{name}={size}" for name in ("etp", "shard") if (size := getattr(self, name)) is not None]
        parts += [f"order={self.order}"] if self.order != DEFAULT_ORDER else []
        return ",".join(parts) or "tp=1"

    def _check_divisors(self) -> None:
        _check_divides("shard", self.size(Axis.SHARD), self.dp, f"dp={self.dp}")
        dense, etp = self.tp * self.cp * self.dp, self.size(Axis.ETP)
        _check_divides("etp", etp, dense, f"tp·cp·dp={dense}")
        over_etp = f" over etp={etp}" if etp > 1 else ""
        as_tp = " (as tp, since not given)" if etp > 1 and self.etp is None else ""
        _check_divides("ep", self.ep, dense // etp, f"tp·cp·dp={dense}{over_etp}{as_tp}")

    def _dense_dims(self) -> _Dims:
        shard = (Axis.SHARD, self.size(Axis.SHARD))
        return _ordered(
            self.order,
            {
                Axis.TP: ((Axis.TP, self.tp),),
                Axis.CP: ((Axis.CP, self.cp),),
                Axis.DP: (shard, (Axis.REPLICATE, self.replicate)),
                Axis.PP: ((Axis.PP, self.pp),),
            },
        )

    def _expert_dims(self) -> _Dims:
        dims = _ordered(
            self.order,
            {
                Axis.TP: ((Axis.ETP, self.size(Axis.ETP)),),
                Axis.EP: ((Axis.EP, self.ep),),
                Axis.DP: ((Axis.EDP, self.edp),),
                Axis.PP: ((Axis.PP, self.pp),),
            },
        )
        # A rank has one stage, however it is numbered; Megatron-core's initialize_model_parallel asserts it.
        if self.pp > 1 and _stride(dims, Axis.PP) != _stride(self._dense_dims(), Axis.PP):
            raise InputError(
                "bad-mesh",
                f"order {self.order} puts a rank on different stages for dense and expert layers in {self}",
                hint=f"put pp last in the order, as in {DEFAULT_ORDER}",
            )
        return dims

    def _dims_with(self, axes: Iterable[Axis]) -> _Dims:
        """The decomposition in which these axes are; dense where either would do."""
        chosen = set(axes)
        dense, expert = sorted(chosen & _DENSE_ONLY), sorted(chosen & _EXPERT_ONLY)
        if dense and expert:
            raise InputError(
                "bad-mesh",
                f"{' '.join(dense)} and {' '.join(expert)} number the ranks differently; they cannot mix",
                hint="dense axes: tp cp dp shard replicate; expert axes: etp ep edp; pp goes with either",
            )
        return self._expert_dims() if expert else self._dense_dims()

    def _check_coordinates(self, coordinates: dict[str, int]) -> dict[Axis, int]:
        given = {_axis(name): value for name, value in coordinates.items()}
        for axis, value in given.items():
            _check_coordinate(axis, value, self.size(axis))
        return given

    def _group_key(self, axes: tuple[str, ...]) -> tuple[_Dims, tuple[Axis, ...]]:
        known = [_axis(axis) for axis in axes]
        split: list[Axis] = []
        for axis in known:
            split += (Axis.SHARD, Axis.REPLICATE) if axis is Axis.DP else (axis,)
        if len(set(split)) < len(split):
            raise InputError("bad-mesh", f"axes {' '.join(known)} name the same ranks twice; name each axis once")
        return self._dims_with(known), tuple(split)


def parse_axes(text: str, where: str | None = None) -> dict[str, Any]:
    """The axes that a text such as "tp=2,pp=4" names, with their sizes, whether or not they make a mesh."""
    fields: dict[str, Any] = {}
    for item in text.replace(",", " ").split():
        name, _, value = item.partition("=")
        _check_field(name, value, item, fields, where)
        fields[name] = value if name == "order" else int(value)
    if not fields:
        raise InputError("bad-mesh", "the mesh is empty", where=where, hint="expected axes such as tp=2,pp=4,dp=8")
    return fields


@lru_cache(maxsize=_CACHED_ARRAYS)
def _coordinate(world: int, stride: int, size: int) -> Ints:
    return _read_only(np.arange(world, dtype=np.int32) // np.int32(stride) % np.int32(size))


@lru_cache(maxsize=_CACHED_ARRAYS)
def _groups(dims: _Dims, axes: tuple[Axis, ...]) -> Ints:
    # numpy's last dimension is its fastest; with the fixed axes first, slowest first, rows come out in the
    # order of their lowest rank.
    slowest_first = [axis for axis, _ in reversed(dims)]
    size_of = dict(dims)
    world = math.prod(size_of.values())
    ranks = np.arange(world, dtype=np.int32).reshape([size_of[axis] for axis in slowest_first])
    fixed = [axis for axis in slowest_first if axis not in axes]
    order = [slowest_first.index(axis) for axis in (*fixed, *reversed(axes))]
    return _read_only(ranks.transpose(order).reshape(-1, math.prod(size_of[axis] for axis in axes)))


@lru_cache(maxsize=_CACHED_ARRAYS)
def _group_of(dims: _Dims, axes: tuple[Axis, ...]) -> Ints:
    groups = _groups(dims, axes)
    group_of = np.empty(groups.size, dtype=np.int32)
    group_of[groups] = np.arange(len(groups), dtype=np.int32)[:, np.newaxis]
    return _read_only(group_of)


def _read_only(array: Ints) -> Ints:
    array.setflags(write=False)
    return array


def _ordered(order: str, parts: dict[Axis, _Dims]) -> _Dims:
    """The parts, fastest first, in the order's sequence; parts it leaves out must be of size one."""
    named = [Axis(name) for name in order.split("-")]
    for axis, part in parts.items():
        size = math.prod(size for _, size in part)
        if axis not in named and size > 1:
            shown = part[0][0] if len(part) == 1 else axis
            raise InputError(
                "bad-mesh",
                f"order {order} leaves out {axis}, but {shown} is {size}",
                hint=f"expected e.g. {DEFAULT_ORDER}",
            )
    left_out = [axis for axis in parts if axis not in named]
    return tuple(dim for axis in (*named, *left_out) for dim in parts.get(axis, ()))


def _stride(dims: _Dims, axis: Axis) -> int:
    """How far apart in rank neighbours on the axis are."""
    stride = 1
    for name, size in dims:
        if name is axis:
            break
        stride *= size
    return stride


def _axis(name: str) -> Axis:
    try:
        axis = Axis(name)
    except ValueError:
        raise InputError(
            "unknown-name",
            f'axis "{shortened(name)}" is not known{did_you_mean(name, Axis)}',
            hint=f"known: {' '.join(Axis)}",
        ) from None
    if axis is Axis.EMBD:
        raise InputError("unknown-name", "embd is not a dimension of the mesh", hint="use embedding_groups()")
    return axis


def _axis_size(name: str, size: int | None) -> int | None:
    """Returns the size of an axis, a whole number of Python's."""
    size = python_number(size)
    if size is None and name in ("etp", "shard"):
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        problem = f"{name}={shown_value(size)} is not an axis size"
        raise InputError("bad-mesh", problem, hint="expected a whole number of at least 1")
    return size


def _check_divides(name: str, size: int, whole: int, shown: str) -> None:
    if whole % size == 0:
        return
    small = [n for n in range(1, math.isqrt(whole) + 1) if whole % n == 0]
    divisors = [*small, *(whole // n for n in small)]
    near = [max(n for n in divisors if n < size), min((n for n in divisors if n > size), default=1)]
    fitting = " and ".join(str(n) for n in sorted(set(near)))
    raise InputError("not-divisible", f"{name}={size} does not divide {shown}", hint=f"nearest that fit: {fitting}")


def _check_order(order: str) -> None:
    if not isinstance(order, str):
        raise InputError("bad-value", f"order is {shown_value(order)}", hint=f"expected e.g. {DEFAULT_ORDER}")
    names, shown = order.split("-"), shortened(order)
    allowed = DEFAULT_ORDER.split("-")
    for name in names:
        if name not in allowed:
            raise InputError(
                "unknown-name",
                f'order {shown}: "{shortened(name)}" is not an axis of the order{did_you_mean(name, allowed)}',
                hint=f"expected the axes {' '.join(allowed)}, fastest first, as in {DEFAULT_ORDER}",
            )
        if names.count(name) > 1:
            raise InputError(
                "duplicate-name", f"order {shown} names {name} twice", hint=f"expected e.g. {DEFAULT_ORDER}"
            )


def _check_coordinate(axis: Axis, coordinate: int, size: int) -> None:
    if not 0 <= coordinate < size:
        raise InputError(
            "out-of-range", f"{axis}={coordinate} is not on the mesh", hint=f"expected {axis} from 0 to {size - 1}"
        )


def _check_field(name: str, value: str, item: str, seen: Iterable[str], where: str | None) -> None:
    """One "name=value" of a mesh as text."""
    known = ("tp", "cp", "dp", "pp", "ep", "etp", "shard", "order")
    if name not in known:
        raise InputError(
            "unknown-name",
            f'"{shortened(item)}": "{shortened(name)}" is not known{did_you_mean(name, known)}',
            where=where,
            hint=f"known: {' '.join(known)}",
        )
    if name in seen:
        raise InputError("duplicate-name", f"{name} is given twice", where=where, hint=f"give {name} once")
    if name != "order" and re.fullmatch("[0-9]{1,10}", value) is None:
        raise InputError(
            "bad-value", f'"{shortened(item)}" is not an axis and its size', where=where, hint=f"expected e.g. {name}=8"
        )
