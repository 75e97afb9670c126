"""Turns answers into views: the sections of a page, without any HTML.

Each module makes the views of a few classes of answers from the blocks of `report/page/blocks.py`, and lists them in
its `KINDS`. `kind_of` finds the module; a new class of answers is a module and a line in `VIEWS`. Read
`answer` first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from foretrace.basics.errors import InputError

if TYPE_CHECKING:
    from foretrace.report.page.blocks import View


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """A class of answers, and how they are shown.

    Attributes:
        cls: The class.
        view: Makes the page of an answer.
        to_json: Makes the JSON of an answer.
        main_table: The key of the table that `to_frame()` returns; keys of keys are joined by dots.
        notebook_sections: The keys of the sections that a notebook shows; `plot()` shows the others.
        records: The dataclasses whose fields are keys of the JSON. They tell which keys hold tables where a table is
            empty.
    """

    cls: type
    view: Callable[[Any], View]
    to_json: Callable[[Any], dict[str, Any]]
    main_table: str = ""
    notebook_sections: tuple[str, ...] = ("step", "notes")
    records: tuple[type, ...] = ()


VIEWS: Final = {
    "Answer": "answer",
    "Comparison": "comparison",
    "PlanSearch": "plan_search",
    "Explanation": "explanation",
    "ExplainedTables": "profiler_table",
    "ProfilerTrace": "profiler_trace",
    "TraceDiff": "profiler_trace",
    "NetworkAnswer": "network_answer",
    "NetworkTable": "network_answer",
    "Sweep": "sweep_curve",
    "Validation": "validation_errors",
    "CalibratedValidation": "validation_errors",
    "Inventory": "inventory",
    "Cluster": "inventory",
    "Node": "inventory",
    "Gpu": "inventory",
    "Nic": "inventory",
    "Calibration": "calibration",
    "SimaiComparison": "simai",
}
"""The module of this folder that shows a class of answers. It is imported when such an answer is shown."""


def kind_of(answer: object) -> AnswerKind:
    """Returns how answers of this class are shown. Raises InputError where no module shows them."""
    for cls in type(answer).__mro__:
        if cls.__name__ in VIEWS:
            kinds: tuple[AnswerKind, ...] = import_module(f"{__name__}.{VIEWS[cls.__name__]}").KINDS
            for kind in kinds:
                if kind.cls is cls:
                    return kind
    problem = f"no page shows objects of the class {type(answer).__name__}"
    raise InputError("bad-value", problem, hint="docs/extending.md says how to add a view of a new kind of answer")


def view_of(answer: object) -> View:
    """Returns the view of an answer of any kind."""
    return kind_of(answer).view(answer)
