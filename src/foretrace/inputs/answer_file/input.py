"""A saved answer as an input: what was run before, with its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from foretrace.files import GivenPath, InputFile
from foretrace.inputs.base import Input, NoOptions

if TYPE_CHECKING:
    from foretrace.inputs.inventory import Inventory
    from foretrace.program.program import Program

ENDING = ".answer"


class AnswerInput(Input):
    """A saved answer. Its program can be run again on another machine; `file` is where the answer is read from."""

    kind: ClassVar[str] = "answer"
    noun: ClassVar[str] = "a saved answer"

    def __init__(self, path: str, file: InputFile) -> None:
        super().__init__((path,), NoOptions())
        self.file = file

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

    def build_program(self) -> Program:
        """Reads the program of the answer."""
        from foretrace.program.file import load_timeline

        return load_timeline(self.file)[0].graph.program

    def inventory(self) -> Inventory:
        """Counts what the program of the answer holds."""
        from foretrace.inputs.program_file.inventory import program_inventory

        return program_inventory(self.program(), None, self.title)

    def schedulable(self) -> None:
        """Returns nothing: everything is settled."""
