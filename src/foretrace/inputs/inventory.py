"""Defines `Inventory`: what is in an input, counted, in one shape for all kinds, with one screen and one JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from foretrace.basics.errors import Diagnostic
from foretrace.basics.plain import to_plain

SEPARATOR = " · "
"""Stands between the items of a fact; a screen breaks long lines after it."""


@dataclass(frozen=True, slots=True)
class InventoryTable:
    """A table of the screen: column heads and rows of text."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    """A line below the table."""
    text_columns: int = 1
    """How many of the first columns are aligned left; the others are numbers and are aligned right."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The contents of an input.

    Attributes:
        schema: The name and version of the JSON.
        kind: The kind of input, as in `Input.kind`.
        format: The format of its files in words: "SimAI/AICB workload".
        title: What the input is, in one line.
        world_size: Ranks of the job; None where it is not known.
        mesh: The mesh of the job as text; None where it is not known.
        contents: Everything that was counted, as dataclasses or plain values, by its key in the JSON.
        facts: Label and text of each line of the screen; a label that repeats is shown once.
        tables: Tables of the screen, below the facts.
        diagnostics: What is odd about the input.
        see: Commands that say more, for the last line of the screen.
    """

    schema: str
    kind: str
    format: str
    title: str
    world_size: int | None = None
    mesh: str | None = None
    contents: Mapping[str, Any] = field(default_factory=dict)
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[InventoryTable] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    see: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values: the keys that all inventories have, and those of this kind.

        A key of `contents` replaces the common one of that name: Megatron traces have a `kind` of their own.
        """
        return {
            "schema": self.schema,
            "kind": self.kind,
            "format": self.format,
            "title": self.title,
            "world_size": self.world_size,
            "mesh": self.mesh,
            **to_plain(self.contents),
            "diagnostics": to_plain(self.diagnostics),
        }


def contents_of(counted: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass by name, for `Inventory.contents`; not its diagnostics, which are common."""
    return {field.name: getattr(counted, field.name) for field in fields(counted) if field.name != "diagnostics"}


def mesh_text(mesh: str) -> str:
    """Returns a mesh as a screen shows it: "tp=8,pp=4" becomes "tp 8 · pp 4"."""
    return mesh.replace(",", SEPARATOR).replace("=", " ")


def some_of(texts: Sequence[str], most: int) -> str:
    """Joins the first `most` texts and counts the others: "a · b · 2 more"."""
    more = [f"{len(texts) - most:,} more"] if len(texts) > most else []
    return SEPARATOR.join([*texts[:most], *more])


def counted_text(count: int, noun: str, plural: str = "") -> str:
    """Returns "1 rank", "2 ranks"; `plural` is for nouns that do not end in s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
