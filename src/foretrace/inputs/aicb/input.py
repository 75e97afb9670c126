"""A SimAI/AICB workload file as an input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from foretrace.basics.errors import UsageError, shown
from foretrace.basics.files import GivenPath
from foretrace.basics.numbers import NumberError, whole_number
from foretrace.inputs.aicb.format import Workload, read_workload
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.aicb.program import lower_workload
from foretrace.inputs.base import Input
from foretrace.inputs.option_texts import read_bytes, read_count, read_number_list, read_schedule, read_texts
from foretrace.inputs.option_values import parse_overlap

if TYPE_CHECKING:
    from foretrace.inputs.inventory import Inventory
    from foretrace.program.program import Program


class WorkloadInput(Input):
    """A workload file: rows of layers with their compute times and the bytes they communicate."""

    kind: ClassVar[str] = "aicb"
    noun: ClassVar[str] = "a workload file"
    Options: ClassVar[type[Any]] = WorkloadOptions

    def __init__(self, workload: Workload, options: WorkloadOptions | None = None) -> None:
        super().__init__((workload.path,), options or WorkloadOptions())
        self.workload = workload

    @classmethod
    def recognises(cls, paths: Sequence[GivenPath]) -> bool:
        """Takes any single file: it is asked last, and its reader says what is wrong with the file."""
        return len(paths) == 1 and not paths[0].is_many

    @classmethod
    def open(cls, paths: Sequence[GivenPath]) -> Self:
        """Reads the file."""
        return cls(read_workload(paths[0].files[0]))

    @classmethod
    def parse_options(cls, texts: dict[str, Any]) -> dict[str, Any]:
        """Reads the texts of options."""
        readers = {
            "gpus": read_count("gpus"),
            "microbatches": read_count("microbatches"),
            "schedule": read_schedule,
            "vpp": _vpp,
            "overlap": lambda text: parse_overlap(text, where="--overlap"),
            "pp_comm": read_bytes,
            "stage_layers": read_number_list("stage_layers", least=1),
        }
        options = read_texts(texts, readers)
        if "pp_comm" in options:
            options["pp_comm_bytes"] = options.pop("pp_comm")
        if options.pop("every_stage", False):
            options["ends"] = "every-stage"
        return options

    @property
    def size_place(self) -> str:
        """The first line, which holds the number of GPUs."""
        return f"{self.title}:1"

    def build_program(self) -> Program:
        """Writes the workload as a program, its communication not priced yet."""
        return lower_workload(self.workload, self.options)

    def inventory(self) -> Inventory:
        """Counts what the workload holds."""
        from foretrace.inputs.aicb.inventory import workload_inventory

        return workload_inventory(self.workload, self.title)

    def with_axis(self, axis: str, size: int) -> Self:
        """Changes dp through the number of GPUs; the layers are written for the other axes."""
        if axis != "dp":
            raise UsageError(
                "cannot-change",
                f"{axis}: the layers of {self.title} are written for its own {axis}",
                hint="vary gpus, dp or microbatches, or generate the workload again",
            )
        mesh = self.mesh()
        return self.with_options(gpus=mesh.world // mesh.dp * size)


def _vpp(text: str) -> int | Literal["auto", "layers", "chunks"]:
    match text:
        case "auto" | "layers" | "chunks":
            return text
    try:
        return whole_number(text, least=1, most=9999)
    except NumberError as error:
        problem = f'--vpp {shown(text)} {error}: expected "layers", "chunks" or a number of chunks'
        raise UsageError("bad-value", problem, hint="example: --vpp 2") from None
