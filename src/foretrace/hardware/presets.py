"""Resolves names to hardware: the presets of the package, and users' cluster files.

Names resolve the way people type them. Case, separators, the order of words and the names of vendors do not matter. A
name that is part of exactly one preset's name (b200 for b200-dgx) is that preset; an ambiguous name lists the choices.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from foretrace.basics.documents import Document, Preset, presets_of
from foretrace.basics.errors import InputError, did_you_mean, shortened
from foretrace.basics.files import AnyFile, input_file, may_open
from foretrace.hardware.cluster import Cluster, Gpu, Nic, Node
from foretrace.hardware.reader import Presets, read_cluster, read_gpu, read_nic, read_node

Kind = Literal["gpu", "nic", "node", "cluster"]
KINDS: tuple[Kind, ...] = ("gpu", "nic", "node", "cluster")

_DATA = Path(__file__).parent / "data"
_EXAMPLE = "based_on: h100-dgx and nodes: 128"
_SUFFIXES = (".yaml", ".yml", ".json")
_SAY_NOTHING = {
    *("nvidia", "amd", "mellanox", "instinct", "tesla", "tensor", "core", "gpu", "superchip", "oam", "ac"),
    *("hbm2", "hbm2e", "hbm3", "hbm3e", "infiniband", "server", "cluster", "node"),
}
"""Words that tell no two presets apart; drivers and shops write them."""


def gpu(name: str, *, where: str | None = None) -> Gpu:
    """The GPU that is called so; an error names `where`."""
    return _gpu(_resolved("gpu", name, where))


def nic(name: str, *, where: str | None = None) -> Nic:
    """The NIC that is called so."""
    return _nic(_resolved("nic", name, where))


def node(name: str, *, where: str | None = None) -> Node:
    """The node that is called so."""
    return _node(_resolved("node", name, where))


def cluster(name_or_path: str | Path, *, where: str | None = None) -> Cluster:
    """The cluster that is called so, or that a YAML or JSON file describes.

    A path has a separator or ends in .yaml, .yml or .json; another name is a file only if no preset is called so.
    """
    if isinstance(name_or_path, Path) or _looks_like_path(name_or_path):
        return load(name_or_path)
    try:
        return _preset_cluster(name_or_path, where=where)
    except InputError:
        if not _is_file(name_or_path):
            raise
    return load(name_or_path)


def _preset_cluster(name: str, *, where: str | None = None) -> Cluster:
    return _cluster(_resolved("cluster", name, where))


def load(path: AnyFile) -> Cluster:
    """Reads the cluster that a file describes."""
    expected = f"expected a cluster in YAML or JSON, e.g. {_EXAMPLE}"
    document = Document(str(path), "cluster", expected, _EXAMPLE, source=input_file(path))
    return read_cluster(document, document.compose(document.read()), PRESETS, name=Path(path).stem)


def names(kind: Kind) -> tuple[str, ...]:
    """The names of all presets of a kind, in the order of the file."""
    return tuple(_shelf(kind).presets)


def aliases(kind: Kind, name: str) -> tuple[str, ...]:
    """Returns the other names of a preset."""
    return _shelf(kind).presets[name].aliases


def anything(name_or_path: str) -> Cluster | Node | Gpu | Nic:
    """Returns what a name means, of any kind: a preset's own name before other spellings, a cluster before its GPU."""
    if _looks_like_path(name_or_path):
        return load(name_or_path)
    largest_first = KINDS[::-1]
    matches = {kind: _matches(_shelf(kind), name_or_path) for kind in largest_first}
    meant = [kind for kind in largest_first if len(matches[kind]) == 1]
    own_name = name_or_path.lower().replace("_", "-")
    meant.sort(key=lambda kind: own_name not in _shelf(kind).presets)
    if meant:
        return OF_KIND[meant[0]](name_or_path)
    if _is_file(name_or_path):
        return load(name_or_path)
    choices = [f"{kind}s {' '.join(matches[kind])}" for kind in largest_first if matches[kind]]
    if choices:
        raise InputError(
            "ambiguous-name", f'"{shortened(name_or_path)}" may be several things', hint=f"one of: {'; '.join(choices)}"
        )
    called = [name for kind in KINDS for name in _shelf(kind).presets]
    raise InputError(
        "unknown-name",
        f'nothing is called "{shortened(name_or_path)}"{did_you_mean(name_or_path, called)}',
        hint="see foretrace list clusters (or nodes, gpus, nics), or give a path to a cluster file",
    )


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The presets of one kind by name, and the name that each spelling means."""

    presets: dict[str, Preset]
    by_key: dict[str, str]


@cache
def _shelf(kind: Kind) -> _Shelf:
    document = Document(str(_DATA / f"{kind}s.yaml"), f"list of {kind}s", "", "", shipped=True)
    presets = presets_of(document)
    by_key = {
        key: preset.name
        for preset in presets.values()
        for called in (*preset.aliases, preset.name)
        for key in keys(called)
    }
    return _Shelf(presets, by_key)


@cache
def _gpu(name: str) -> Gpu:
    preset = _shelf("gpu").presets[name]
    return read_gpu(preset.document, preset.node(), PRESETS, name=name)


@cache
def _nic(name: str) -> Nic:
    preset = _shelf("nic").presets[name]
    return read_nic(preset.document, preset.node(), PRESETS, name=name)


@cache
def _node(name: str) -> Node:
    preset = _shelf("node").presets[name]
    return read_node(preset.document, preset.node(), PRESETS, name=name)


@cache
def _cluster(name: str) -> Cluster:
    preset = _shelf("cluster").presets[name]
    return read_cluster(preset.document, preset.node(), PRESETS, name=name)


def _resolved(kind: Kind, name: str, where: str | None) -> str:
    shelf = _shelf(kind)
    if name in shelf.presets:
        return name
    matches = _matches(shelf, name)
    if len(matches) == 1:
        return matches[0]
    what = "GPU" if kind == "gpu" else "NIC" if kind == "nic" else kind
    shown = shortened(name)
    if matches:
        raise InputError(
            "ambiguous-name",
            f'"{shown}" may be any of {len(matches)} {what}s',
            where=where,
            hint=f"one of: {' '.join(matches)}",
        )
    path = "; or a path to a file that describes one" if kind == "cluster" and where is None else ""
    raise InputError(
        "unknown-name",
        f'no {what} is called "{shown}"{did_you_mean(name, shelf.presets)}',
        where=where,
        hint=f"known: {' '.join(shelf.presets)}{path}",
    )


def _matches(shelf: _Shelf, name: str) -> list[str]:
    """The presets a name may mean: the one it is a spelling of, else those whose names have all of its words."""
    for key in keys(name):
        if key in shelf.by_key:
            return [shelf.by_key[key]]
    words = set(_words(name))
    # A word such as h100 or cx7 must be there: "pcie" or "80g" alone name nothing.
    if not any(re.match(r"[a-z]+[0-9]", word) for word in words):
        return []
    return [
        preset.name for preset in shelf.presets.values() if any(words <= set(_words(called)) for called in preset.names)
    ]


def keys(name: str) -> tuple[str, ...]:
    """Spellings under which a name is found: its words sorted, and run together as they stand."""
    words = _words(name)
    return ("-".join(sorted(words)), "".join(words)) if words else ()


def _words(name: str) -> list[str]:
    """The words of a name that say something: "NVIDIA A100-SXM4-80GB" is a100, sxm and 80g."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return [
        re.sub(r"^sxm[2-9]$", "sxm", re.sub(r"^([0-9]+)gi?b$", r"\1g", word))
        for word in words
        if word not in _SAY_NOTHING
    ]


def _looks_like_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.lower().endswith(_SUFFIXES)


def _is_file(text: str) -> bool:
    try:
        return bool(text) and may_open(text) and Path(text).is_file()
    except OSError:  # a name too long for a file
        return False


PRESETS = Presets(gpu, nic, node, _preset_cluster)

OF_KIND: dict[Kind, Callable[[str], Gpu | Nic | Node | Cluster]] = {
    "gpu": gpu,
    "nic": nic,
    "node": node,
    "cluster": cluster,
}
"""The function that finds a preset of each kind."""
