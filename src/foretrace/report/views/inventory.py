"""The views of what `foretrace inspect` shows: the contents of an input, and an item of hardware."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foretrace.basics.units import format_bandwidth, format_bytes, format_count, format_flops
from foretrace.hardware.cluster import Cluster, Gpu, Nic, Node
from foretrace.inputs.inventory import SEPARATOR, Inventory, mesh_text
from foretrace.report.catalogue.hardware import item_facts, show_json
from foretrace.report.inventory import inventory_table
from foretrace.report.page.blocks import FactList, KeyFigure, KeyFigures, Section, Text, View
from foretrace.report.views import AnswerKind
from foretrace.report.views.text_table import notes_section, page_table

_TEXTS: Final = ("note", "source")
"""Names of facts whose values are sentences."""


def inventory_view(inventory: Inventory) -> View:
    """Makes the view of the contents of an input."""
    sections = [_contents(inventory)]
    tables = [page_table(inventory_table(table), shown=24) for table in inventory.tables]
    if tables:
        sections.append(Section("contents", "What is in it", tables))
    sections += notes_section(inventory.diagnostics, "What is odd about it")
    if inventory.see:
        sections.append(Section("see", "What to look at next", (Text(SEPARATOR.join(inventory.see)),)))
    return View(inventory.title, "contents", sections, inventory.format)


def _contents(inventory: Inventory) -> Section:
    figures = []
    if inventory.world_size is not None:
        axes = "" if inventory.mesh is None else mesh_text(inventory.mesh)
        figures.append(KeyFigure("Ranks", format_count(inventory.world_size), axes))
    facts = FactList([(name, " ".join(text.split())) for name, text in inventory.facts])
    return Section("step", "What it is", [*([KeyFigures(figures)] if figures else []), facts])


def hardware_view(item: Cluster | Node | Gpu | Nic) -> View:
    """Makes the view of a cluster, node, GPU or NIC with all it contains, and where its figures come from."""
    facts = item_facts(item)
    figures = [fact for fact in facts if fact[0] not in _TEXTS]
    sections = [
        Section("step", "What it is", (KeyFigures(list(_figures(item))), FactList(figures))),
        *_sources([fact for fact in facts if fact[0] in _TEXTS]),
        *notes_section(item.remarks if isinstance(item, Cluster) else ()),
    ]
    title = "" if item.title == item.name else item.title
    return View(item.name, type(item).__name__.lower(), sections, title)


def _figures(item: Cluster | Node | Gpu | Nic) -> Iterator[KeyFigure]:
    node = item.node if isinstance(item, Cluster) else item if isinstance(item, Node) else None
    gpu = item if isinstance(item, Gpu) else None if node is None else node.gpu
    if isinstance(item, Cluster) and item.gpus is not None:
        yield KeyFigure("GPUs", format_count(item.gpus), f"{format_count(item.nodes or 0)} nodes")
    if node is not None:
        yield KeyFigure("GPUs of a node", f"{node.gpus} × {node.gpu.name}")
    if gpu is not None:
        yield KeyFigure("Memory", format_bytes(gpu.memory_bytes), f"at {format_bandwidth(gpu.memory_bytes_per_s)}")
        if "bf16" in gpu.peak_flops:
            yield KeyFigure("Dense peak, bf16", format_flops(gpu.peak_flops["bf16"]))
    if isinstance(item, Nic):
        yield KeyFigure("Rate one way", format_bandwidth(item.bytes_per_s))


def _sources(facts: list[tuple[str, str]]) -> Iterator[Section]:
    if facts:
        yield Section("sources", "Notes and sources", (FactList(facts),))


KINDS: Final = (
    AnswerKind(Inventory, inventory_view, Inventory.to_dict, notebook_sections=("step", "contents", "notes")),
    *(AnswerKind(cls, hardware_view, show_json) for cls in (Cluster, Node, Gpu, Nic)),
)
