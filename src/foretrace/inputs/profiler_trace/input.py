"""Profiler traces as an input: PyTorch's or Nsight Systems', of one or many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from foretrace.basics.errors import InputError
from foretrace.basics.files import GivenPath, InputFile
from foretrace.basics.mesh import Mesh, parse_axes
from foretrace.basics.units import parse_marked_factor
from foretrace.inputs.base import Baseline, Input, Rebuild, Unprofiled
from foretrace.inputs.option_texts import read_count, read_sizes, read_steps, read_texts
from foretrace.inputs.option_values import HostMode
from foretrace.inputs.profiler_trace.format.sniff import ENDINGS, REPORTS, begins_as_profile
from foretrace.inputs.profiler_trace.format.text import unpacked
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions

if TYPE_CHECKING:
    from foretrace.inputs.inventory import Inventory
    from foretrace.inputs.profiler_trace.format.execution_trace import ExecutionTrace
    from foretrace.inputs.profiler_trace.format.records import RankProfile
    from foretrace.inputs.profiler_trace.program import JobProfile
    from foretrace.program.program import Program
    from foretrace.program.timeline import Timeline

DEVICE_SPREAD: Final = 0.03
"""How far a step bound by its device may be off without the profiler, as a share (docs/profiling-cost.md)."""

GRAPH_SPREAD: Final = 0.06
"""The same for a step as one CUDA graph."""

_AS_RECORDED: Final = {
    field.name: field.default for field in fields(ProfilerTraceOptions) if field.name not in ("steps", "sizes")
}
"""The options that change what was recorded, at their defaults."""
_HEAD_BYTES: Final = 1 << 16
_JSON_OR_PACKED: Final = (b"{", b"[", b"\x1f\x8b", b"SQLite format 3")
_HOST_WORDS: Final[dict[HostMode, str]] = {"none": "no host gaps", "graphs": "the step as one CUDA graph"}


class ProfilerTraceInput(Input):
    """Profiler traces of one step or several, and what PyTorch's execution traces of the same run add to them."""

    kind: ClassVar[str] = "profiler-trace"
    noun: ClassVar[str] = "a profiler trace"
    Options: ClassVar[type[Any]] = ProfilerTraceOptions
    is_profile: ClassVar[bool] = True

    def __init__(
        self,
        traces: Sequence[RankProfile],
        executions: Sequence[ExecutionTrace] = (),
        paths: Sequence[str] = (),
        options: ProfilerTraceOptions | None = None,
    ) -> None:
        super().__init__(tuple(paths) or tuple(trace.path for trace in traces), options or ProfilerTraceOptions())
        self.traces = tuple(traces)
        self.executions = tuple(executions)
        self._profiles: dict[ProfilerTraceOptions, JobProfile] = {}

    @classmethod
    def recognises(cls, paths: Sequence[GivenPath]) -> bool:
        """Takes traces and execution traces, alone or together, and folders of traces."""
        return all(_is_profile(path) for path in paths)

    @classmethod
    def open(cls, paths: Sequence[GivenPath]) -> Self:
        """Reads the traces, joined with the execution traces of the same processes."""
        from foretrace.inputs.profiler_trace.execution_join import read_joined_traces

        traces, executions = read_joined_traces(paths)
        return cls(traces, executions, [path.text for path in paths])

    @classmethod
    def parse_options(cls, texts: dict[str, Any]) -> dict[str, Any]:
        """Reads the texts of options."""
        readers = {
            "gpus": read_count("gpus"),
            "steps": read_steps,
            "batch": lambda text: parse_marked_factor(text, where=f"--what-if batch={text}"),
        }
        options = read_texts(texts, readers)
        if isinstance(options.get("mesh"), str):
            parse_axes(options["mesh"], where="--mesh")
        if "sizes" in options:
            options["sizes"] = read_sizes(options["sizes"])
        return options

    def build_program(self) -> Program:
        """Writes a steady step with its host as the options have it."""
        return self._profile().program(self.options.host)

    def _profile(self) -> JobProfile:
        """Returns the traces understood, once for all hosts, batches and GPUs."""
        from foretrace.inputs.profiler_trace.program import profile_of

        if not self.traces:
            raise InputError(
                "cannot-simulate",
                "an execution trace has no times",
                where=self.title,
                hint="give the profiler's trace of the same run before it: foretrace simulate TRACE EXECUTION_TRACE",
            )
        key = replace(self.options, host="profiled", batch=1.0, gpu=None)
        if key not in self._profiles:
            self._profiles[key] = profile_of(self.traces, key)
        return self._profiles[key]

    def inventory(self) -> Inventory:
        """Counts what the traces hold."""
        from foretrace.inputs.profiler_trace.inventory import traces_inventory

        return traces_inventory(self.traces, self.executions, self.title)

    @property
    def is_measured(self) -> bool:
        """Every profiler trace holds measured steps."""
        return True

    def recorded(self) -> Timeline:
        """Returns the times of the median recorded step."""
        from foretrace.inputs.profiler_trace.recorded import recorded_timeline

        return recorded_timeline(self.with_options(**_AS_RECORDED)._profile())

    @property
    def median_step(self) -> str:
        """The name of the step whose times `recorded` returns."""
        from foretrace.inputs.profiler_trace.recorded import median_step

        return median_step(self.with_options(**_AS_RECORDED)._profile().ranks)

    def priced(self) -> Self:
        """Leaves recorded communication to a machine to price."""
        return self.with_options(priced=True)

    def with_axis(self, axis: str, size: int) -> Self:
        """Builds the job for another size of one axis."""
        traced = self.options.mesh if self.options.traced is None else self.options.traced
        changed = Mesh.parse(f"{axis}={size}", where="--over", base=self.mesh())
        return self.with_options(mesh=changed, traced=traced, gpus=None)

    def schedulable(self) -> None:
        """Returns nothing: a recorded step has no schedule to change."""

    @property
    def rebuild(self) -> Rebuild | None:
        """How many times the samples, and which GPU."""
        batch, gpu = self.options.batch, self.options.gpu
        return None if batch == 1 and gpu is None else Rebuild(batch, gpu)

    @property
    def recorded_step_s(self) -> float | None:
        """The longest recorded step of its ranks; None where options or a machine change it."""
        changed = replace(self.options, steps=None, sizes=()) != ProfilerTraceOptions()
        return None if changed else self._profile().recorded_s

    @property
    def recorded_gpu(self) -> str | None:
        """The GPU that the trace names."""
        from foretrace.inputs.torch_ops.recorded_gpu import recorded_gpu

        return recorded_gpu(self.program())

    @property
    def traced_ranks(self) -> int:
        """Ranks that have a trace."""
        return len(self._profile().ranks)

    def baseline(self) -> Baseline | None:
        """Returns the step as recorded, where its host, batch or GPU is changed."""
        options = self.options
        changes = [_HOST_WORDS[options.host]] if options.host in _HOST_WORDS else []
        changes += [f"a batch {options.batch:g}× as large"] if options.batch != 1 else []
        changes += [f"on a {options.gpu}"] if options.gpu is not None else []
        if not changes:
            return None
        host = "profiled" if options.host == "profiled" else "unprofiled"
        return Baseline(self.with_options(host=host, batch=1.0, gpu=None), tuple(changes))

    def unprofiled(self) -> Unprofiled:
        """Returns the step without what the profiler cost its host."""
        from foretrace.inputs.profiler_trace.profiling_cost import HOST_SPREAD

        host = self.options.host
        if host not in ("profiled", "unprofiled"):
            return Unprofiled(None, None, GRAPH_SPREAD if host == "graphs" else DEVICE_SPREAD)
        program = self._profile().program("unprofiled") if host == "profiled" else None
        return Unprofiled(program, HOST_SPREAD, DEVICE_SPREAD)


def _is_profile(path: GivenPath) -> bool:
    """Returns whether a path is a profiler trace, an execution trace, or a folder or pattern of traces."""
    if path.is_many:
        return any(begins_as_profile(_head(file)) for file in path.first_files if file.name.endswith(ENDINGS))
    file = path.files[0]
    if file.path.suffix in REPORTS:
        return True  # it cannot be read, but an error says how to export it
    head = file.head(_HEAD_BYTES)
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(_JSON_OR_PACKED):
        from foretrace.inputs.profiler_trace.format.execution_trace import begins_as_execution_trace

        text = unpacked(head, _HEAD_BYTES)
        if begins_as_profile(text) or begins_as_execution_trace(text):
            return True
    if not file.name.endswith(ENDINGS):
        return False
    from foretrace.models.hf_config import begins_as_configuration

    # A file with the name of a profile is refused as a profile, unless it is a model's configuration.
    return not begins_as_configuration(head)


def _head(file: InputFile) -> bytes:
    return unpacked(file.head(_HEAD_BYTES), _HEAD_BYTES)
