"""A saved answer as an input: what was run before, with its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from foretrace.basics.files import GivenPath, InputFile
from foretrace.basics.records import Record
from foretrace.basics.units import format_time
from foretrace.inputs.base import Input, NoOptions

if TYPE_CHECKING:
    from foretrace.inputs.inventory import Inventory
    from foretrace.program.program import Program
    from foretrace.program.timeline import Timeline

ENDING: Final = ".answer"
"""How the names of saved answers end."""


class AnswerInput(Input):
    """A saved answer. Its program can be run again on another machine; `file` is where the answer is read from."""

    kind: ClassVar[str] = "answer"
    noun: ClassVar[str] = "a saved answer"

    def __init__(self, path: str, file: InputFile) -> None:
        super().__init__((path,), NoOptions())
        self.file = file
        self._read: tuple[Timeline, Any] | None = None

    @classmethod
    def recognises(cls, paths: Sequence[GivenPath]) -> bool:
        """Takes files called `.answer`."""
        return len(paths) == 1 and not paths[0].is_many and paths[0].path.suffix == ENDING

    @classmethod
    def open(cls, paths: Sequence[GivenPath]) -> Self:
        """Names the file; the answer is read when it is asked for."""
        return cls(paths[0].text, paths[0].files[0])

    @property
    def answer_file(self) -> InputFile:
        """The file that the answer is read from."""
        return self.file

    @property
    def cluster(self) -> str | None:
        """The preset that the answer is of; None where it was a cluster of the user's own, or none."""
        answer = self._answer()
        if "cluster" not in answer or "where" in answer.record("cluster"):
            return None
        return answer.record("cluster").text("name")

    def _saved(self) -> tuple[Timeline, Any]:
        if self._read is None:
            from foretrace.program.file import load_timeline

            self._read = load_timeline(self.file)
        return self._read

    def _answer(self) -> Record:
        """Returns the fields of the answer, as they were saved."""
        return Record(self._saved()[1], str(self.file)).record("answer")

    def build_program(self) -> Program:
        """Reads the program of the answer."""
        return self._saved()[0].graph.program

    def inventory(self) -> Inventory:
        """Counts what the program of the answer holds."""
        from foretrace.inputs.program_file.inventory import program_inventory

        inventory = program_inventory(self.program(), None, self.title)
        answer = self._answer()
        cluster = answer.record("cluster").text("name") if "cluster" in answer else "no cluster"
        step_s, executor = self._saved()[0].step_time_s, answer.text("executor")
        result = ("answer", f"{format_time(step_s)} on {cluster}, run by the {executor} executor")
        return replace(
            inventory,
            kind=self.kind,
            format="saved answer",
            facts=(result, *inventory.facts),
            contents={**inventory.contents, "step_time_s": step_s, "cluster": cluster},
            diagnostics=tuple(note for note in inventory.diagnostics if note.code != "unpriced-op"),
        )

    def schedulable(self) -> None:
        """Returns nothing: everything is settled."""
