"""Rank traces of Megatron as an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from foretrace.basics.files import GivenPath
from foretrace.basics.mesh import Mesh, parse_axes
from foretrace.inputs.base import Baseline, Input
from foretrace.inputs.megatron_trace.format.sniff import looks_like_trace
from foretrace.inputs.megatron_trace.options import MegatronTraceOptions
from foretrace.inputs.option_texts import (
    read_bytes,
    read_count,
    read_number_list,
    read_routing,
    read_schedule,
    read_texts,
)
from foretrace.inputs.option_values import changed_options, parse_overlap

if TYPE_CHECKING:
    from foretrace.inputs.inventory import Inventory
    from foretrace.inputs.megatron_trace.format import Run
    from foretrace.program.program import Program
    from foretrace.program.timeline import Timeline


class MegatronTraceInput(Input):
    """Rank traces: a real run, or campaigns that one GPU traced as each rank (ex situ)."""

    kind: ClassVar[str] = "megatron-trace"
    noun: ClassVar[str] = "a set of Megatron rank traces"
    Options: ClassVar[type[Any]] = MegatronTraceOptions

    def __init__(
        self, runs: Sequence[Run], options: MegatronTraceOptions | None = None, paths: Sequence[str] = ()
    ) -> None:
        super().__init__(tuple(paths) or tuple(run.path for run in runs), options or MegatronTraceOptions())
        self.runs = tuple(runs)

    @classmethod
    def recognises(cls, paths: Sequence[GivenPath]) -> bool:
        """Takes folders, patterns and files that hold rank traces; folders and patterns of nothing else known too."""
        return all(looks_like_trace(path) or path.is_many for path in paths)

    @classmethod
    def open(cls, paths: Sequence[GivenPath]) -> Self:
        """Reads every rank's file."""
        from foretrace.inputs.megatron_trace.format import read_runs

        return cls(read_runs(paths), paths=[path.text for path in paths])

    @classmethod
    def parse_options(cls, texts: dict[str, Any]) -> dict[str, Any]:
        """Reads the texts of options."""
        readers = {
            "gpus": read_count("gpus"),
            "microbatches": read_count("microbatches"),
            "vpp": read_count("vpp"),
            "schedule": read_schedule,
            "routing": read_routing,
            "pp_comm": read_bytes,
            "overlap": lambda text: parse_overlap(text, where="--overlap"),
            "stage_layers": read_number_list("stage_layers", least=1),
        }
        options = read_texts(texts, readers)
        if isinstance(options.get("mesh"), str):
            parse_axes(options["mesh"], where="--mesh")
        if "pp_comm" in options:
            options["pp_comm_bytes"] = options.pop("pp_comm")
        return options

    @property
    def is_ex_situ(self) -> bool:
        """Whether one GPU was traced as each rank."""
        from foretrace.inputs.megatron_trace.format import is_ex_situ

        return is_ex_situ(self.runs)

    def build_program(self) -> Program:
        """Writes a real run as it was, or the whole job that ex-situ campaigns predict."""
        from foretrace.inputs.megatron_trace.program import lower_runs

        return lower_runs(self.runs, self.options)

    def inventory(self) -> Inventory:
        """Counts what the traces hold."""
        from foretrace.inputs.megatron_trace.inventory import runs_inventory

        return runs_inventory(self.runs, self.options.mesh, self.title)

    def priced(self) -> Self:
        """Leaves what a real run communicated to a machine to price."""
        return self.with_options(priced=True)

    def with_axis(self, axis: str, size: int) -> Self:
        """Builds the job for another size of one axis."""
        traced = self.options.mesh if self.options.traced is None else self.options.traced
        changed = Mesh.parse(f"{axis}={size}", where="--over", base=self.mesh())
        return self.with_options(mesh=changed, traced=traced, gpus=None)

    def schedulable(self) -> Self:
        """Returns a real run as a job that is built again, so that it can be changed."""
        return self if self.is_ex_situ else self.with_options(schedule="1f1b")

    @property
    def is_measured(self) -> bool:
        """Whether these are traces of a real run."""
        return not self.is_ex_situ

    def recorded(self) -> Timeline | None:
        """Returns the times of a real run; None for traces taken ex situ."""
        from foretrace.inputs.megatron_trace.program import recorded_timeline, recording_of

        recording = recording_of(self.runs, self.options)
        return None if recording is None else recorded_timeline(recording)

    @property
    def measured_microbatches(self) -> int | None:
        """Microbatches of a step of a real run; None for traces taken ex situ."""
        from foretrace.inputs.megatron_trace.layout import last_iteration

        if self.is_ex_situ:
            return None
        traces = (trace for run in self.runs for trace in run.ranks.values())
        return max((sum(op.op == "forward_step" for op in last_iteration(trace)) for trace in traces), default=1) or 1

    def baseline(self) -> Baseline | None:
        """Returns the job on its own mesh, schedule and routing."""
        options = self.options
        if not {"mesh", "gpus", "routing", "schedule", "overlap", "stage_layers"} & changed_options(options):
            return None
        traced = options.mesh if options.traced is None else options.traced
        # A real run is built again as well, not replayed: what building leaves out is left out on both sides.
        schedule = None if self.is_ex_situ else "1f1b"
        as_traced = replace(
            options,
            mesh=None,
            traced=traced,
            gpus=None,
            routing=None,
            vpp=None,
            overlap=frozenset(),
            stage_layers=None,
            schedule=schedule,
            microbatches=options.microbatches if schedule is None else None,
        )
        if as_traced == options:
            return None
        before = type(self)(self.runs, as_traced, self.paths)
        mesh = self.mesh()
        changes = [f"mesh {mesh}"] if mesh != before.mesh() else []
        changes += [f"routing {options.routing:g}×"] if options.routing is not None else []
        changes += [options.schedule] if options.schedule is not None else []
        changes += [f"{','.join(sorted(options.overlap))} overlapped"] if options.overlap else []
        changes += [f"layers {','.join(map(str, options.stage_layers))}"] if options.stage_layers is not None else []
        return Baseline(before, tuple(changes)) if changes else None
