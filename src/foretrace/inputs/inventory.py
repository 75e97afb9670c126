"""What is in an input, counted: one shape for all kinds, one screen, one JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretrace.errors import Diagnostic
from foretrace.plain import to_plain


@dataclass(frozen=True, slots=True)
class InventoryTable:
    """A table of the screen: column heads and rows of text. The first column is text, others are aligned right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    """A line below the table."""


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
        facts: Label and text of each line of the screen.
        tables: Tables of the screen, below the facts.
        diagnostics: What is odd about the input.
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

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values: the keys that all inventories have, and those of this kind."""
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
