"""A profiler table as an input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from foretrace.basics.files import GivenPath
from foretrace.basics.mesh import Mesh, parse_axes
from foretrace.inputs.base import Input
from foretrace.inputs.option_texts import read_sizes
from foretrace.inputs.option_values import parse_overlap
from foretrace.inputs.profiler_table.options import ProfilerTableOptions

if TYPE_CHECKING:
    from foretrace.inputs.inventory import Inventory
    from foretrace.inputs.profiler_table.format import ProfilerTable
    from foretrace.program.program import Program


class ProfilerTableInput(Input):
    """A table of averages: what one GPU computed in a step, without its order."""

    kind: ClassVar[str] = "profiler-table"
    noun: ClassVar[str] = "a profiler table"
    Options: ClassVar[type[Any]] = ProfilerTableOptions
    is_profile: ClassVar[bool] = True

    def __init__(self, tables: Sequence[ProfilerTable], path: str, options: ProfilerTableOptions | None = None) -> None:
        super().__init__((path,), options or ProfilerTableOptions())
        self.tables = tuple(tables)

    @classmethod
    def recognises(cls, paths: Sequence[GivenPath]) -> bool:
        """Takes a file with the headings of a table near its beginning."""
        if len(paths) != 1 or not paths[0].is_file:
            return False
        head = paths[0].files[0].head()
        if not (b"-----  ---" in head or b"CPU total" in head or head[:2] in (b"\xff\xfe", b"\xfe\xff")):
            return False
        from foretrace.inputs.profiler_table.format import looks_like_table

        return looks_like_table(paths[0].files[0])

    @classmethod
    def open(cls, paths: Sequence[GivenPath]) -> Self:
        """Reads every table of the file."""
        from foretrace.inputs.profiler_table.format import read_tables

        return cls(read_tables(paths[0].files[0]), paths[0].text)

    @classmethod
    def parse_options(cls, texts: dict[str, Any]) -> dict[str, Any]:
        """Reads the texts of options."""
        if isinstance(texts.get("mesh"), str):
            parse_axes(texts["mesh"], where="--mesh")
        if isinstance(texts.get("overlap"), str):
            texts["overlap"] = parse_overlap(texts["overlap"], where="--overlap")
        if "sizes" in texts:
            texts["sizes"] = read_sizes(texts["sizes"])
        return texts

    def build_program(self) -> Program:
        """Writes the table's step: computation as recorded, communication for the mesh that is asked for."""
        from foretrace.inputs.profiler_table.program import lower_tables

        return lower_tables(self.tables, self.options, self.title)

    def inventory(self) -> Inventory:
        """Counts what the tables hold."""
        from foretrace.inputs.profiler_table.inventory import tables_inventory

        return tables_inventory(self.tables, self.title)

    def with_axis(self, axis: str, size: int) -> Self:
        """Builds the job for another size of one axis."""
        return self.with_options(mesh=Mesh.parse(f"{axis}={size}", where="--over", base=self.mesh()))

    def schedulable(self) -> None:
        """Returns nothing: a table has no schedule to change."""
