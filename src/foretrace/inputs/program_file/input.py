"""A program as an input: from a file, or built in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Self

from foretrace.basics.files import GivenPath
from foretrace.inputs.base import Input, NoOptions

if TYPE_CHECKING:
    from foretrace.inputs.inventory import Inventory
    from foretrace.program.program import Program

MAGIC: Final = b"\x93FOR"
"""How a program file begins."""


class ProgramInput(Input):
    """A program, in which everything is settled."""

    kind: ClassVar[str] = "program"
    noun: ClassVar[str] = "a program"

    def __init__(self, program: Program, path: str = "", file_bytes: int | None = None) -> None:
        super().__init__((path,) if path else (), NoOptions())
        self._program = self._given = program
        self._file_bytes = file_bytes

    @classmethod
    def recognises(cls, paths: Sequence[GivenPath]) -> bool:
        """Takes files called `.foretrace`, and those that begin as one."""
        if len(paths) != 1 or paths[0].is_many:
            return False
        return paths[0].path.suffix == ".foretrace" or paths[0].files[0].head(len(MAGIC)) == MAGIC

    @classmethod
    def open(cls, paths: Sequence[GivenPath]) -> Self:
        """Reads the file."""
        from foretrace.program.file import load

        program = load(paths[0].files[0])
        return cls(program, paths[0].text, paths[0].path.stat().st_size)

    @property
    def title(self) -> str:
        """The path, or the title of the program."""
        return " ".join(self.paths) or self.program().title or "a program"

    def build_program(self) -> Program:
        """Returns the program as it is."""
        return self._given

    def inventory(self) -> Inventory:
        """Counts what the program holds."""
        from foretrace.inputs.program_file.inventory import program_inventory

        return program_inventory(self.program(), self._file_bytes, self.title)

    def schedulable(self) -> None:
        """Returns nothing: everything is settled."""
