"""Reports what `foretrace trace` found in a script, and which checks it passed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretrace.inputs.inventory import Inventory
from foretrace.inputs.script.checks import CHECKS
from foretrace.report.inventory import print_inventory

TRACE_SCHEMA = "foretrace.trace/1"


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What was traced, the codes of the checks that gave warnings, and where the program was written."""

    inventory: Inventory
    warned: tuple[str, ...]
    path: Path | None

    @property
    def passed(self) -> tuple[str, ...]:
        """The codes of the checks that were passed; a check that fails is an error."""
        return tuple(code for code in CHECKS if code not in self.warned)

    def to_dict(self) -> dict[str, Any]:
        """Returns the inventory as JSON has it, with the checks and the file."""
        checks = [{"code": code, "passed": code in self.passed} for code in CHECKS]
        file = None if self.path is None else str(self.path)
        return {**self.inventory.to_dict(), "schema": TRACE_SCHEMA, "checks": checks, "path": file}


def print_trace(report: TraceReport) -> None:
    """Prints the inventory, the checks, and the next command."""
    shown = report.inventory
    facts = [("passed" if code in report.passed else "warned", text) for code, text in CHECKS.items()]
    facts.sort(key=lambda fact: fact[0])
    if report.path is not None:
        facts.append(("file", str(report.path)))
        shown = replace(shown, see=(f"foretrace simulate {report.path} --cluster h100-dgx",))
    print_inventory(replace(shown, facts=(*shown.facts, *facts)))
