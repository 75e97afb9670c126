"""Defines `Constraint`: a rule of the software about plans, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foretrace.workload.rules.sizes import Flag, JobSizes, PlanSizes

Words = Callable[[PlanSizes], str]
"""Returns in words how a plan breaks a rule."""
Problem = Callable[[PlanSizes], str | None]
"""Returns in words what is wrong with sizes; None: nothing."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule of the software about plans.

    Attributes:
        name: What the rule is about, in a few words; no other rule has the same name.
        code: The code of the error where a plan breaks it.
        fields: The fields of the plan that may be changed to satisfy it.
        holds: Whether the rule holds, for one plan or for columns of plans.
        words: How a plan breaks the rule; only asked for plans that do.
        why: Why the software has the rule, where that is not plain.
    """

    name: str
    code: str
    fields: tuple[str, ...]
    holds: Callable[[JobSizes], Flag]
    words: Words
    why: str = ""

    @classmethod
    def worded(
        cls, name: str, code: str, fields: tuple[str, ...], problem: Problem, reads: tuple[str, ...], why: str = ""
    ) -> Constraint:
        """Returns a rule about words and lists: a function of one plan, called once for each of their combinations.

        Args:
            name: As the attribute.
            code: As the attribute.
            fields: As the attribute.
            problem: Returns what is wrong, in words; None where the rule holds.
            reads: All fields of the plan that `problem` reads, those that name the software included.
            why: As the attribute.
        """
        return cls(
            name,
            code,
            fields,
            lambda sizes: sizes.each(lambda plan_sizes: problem(plan_sizes) is None, *reads),
            lambda sizes: problem(sizes) or "",
            why,
        )

    def problem(self, sizes: PlanSizes) -> str | None:
        """Returns in words how a plan breaks the rule; None where it does not."""
        return None if self.holds(sizes) else self.words(sizes)
