"""Defines `Input`, the base class of all kinds of input.

An input is a job as the user gave it: files that were read once, or a model with a plan, and the options that decide
what these leave open. A kind of input is a subclass in a folder of its own, named in `registry.KINDS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from foretrace.basics.arguments import checked_methods
from foretrace.basics.errors import (
    Diagnostic,
    ForetraceError,
    UsageError,
    did_you_mean,
    located,
    usage_errors,
)
from foretrace.basics.files import GivenPath, InputFile
from foretrace.basics.numbers import python_number

if TYPE_CHECKING:
    from foretrace.basics.mesh import Mesh
    from foretrace.inputs.inventory import Inventory
    from foretrace.program.program import Program
    from foretrace.program.timeline import Timeline
    from foretrace.workload.setting import Setting
    from foretrace.workload.stack import HostPace

_PROGRAM_ERRORS = (
    *("invalid-program", "rendezvous-mismatch", "deadlock", "unknown-collective", "duplicate-name"),
    *("too-large", "input-too-large", "unpriced-op"),
)
"""Codes of errors that are about a program, whoever finds them."""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """The options of an input that leaves nothing open."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The job as it was recorded, where options change it; `changes` says how, in words."""

    job: Input
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unprofiled:
    """A profiled step without what profiling cost its host.

    `program` is None where the host of the job does not run as profiled anyway. `host_spread` and `device_spread` are
    how far the times of host and device may be off, as shares; the host's is None where the host sets no pace.
    """

    program: Program | None
    host_spread: float | None
    device_spread: float


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Computation rescaled to `batch` times the samples, and to another GPU (None: the same)."""

    batch: float = 1.0
    gpu: str | None = None


@checked_methods
class Input(ABC):
    """A job as the user gave it.

    Inputs are immutable: `with_options` returns another that shares what was read.

    Attributes:
        kind: The name of this kind of input, as JSON and messages have it.
        noun: What one is called in messages: "a workload file".
        Options: A frozen dataclass of what this kind of input leaves open.
        is_profile: Whether it holds a profiler's view of a run, which is explained as it was recorded.
        runs_code: Whether it runs code of the user to make its program. A server never does that.
        paths: The paths as they were given; empty where nothing was read.
        options: The options of this input.
    """

    kind: ClassVar[str]
    noun: ClassVar[str]
    Options: ClassVar[type[Any]] = NoOptions
    is_profile: ClassVar[bool] = False
    runs_code: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        checked_methods(cls)

    def __init__(self, paths: tuple[str, ...], options: Any) -> None:
        self.paths = paths
        self.options = options
        self._program: Program | None = None

    @classmethod
    @abstractmethod
    def recognises(cls, paths: Sequence[GivenPath]) -> bool:
        """Returns whether these paths are of this kind, by names and first bytes. Never raises an error."""

    @classmethod
    @abstractmethod
    def open(cls, paths: Sequence[GivenPath]) -> Self:
        """Reads the files; nothing else does."""

    @abstractmethod
    def build_program(self) -> Program:
        """Writes the job as a program, as its options have it."""

    @abstractmethod
    def inventory(self) -> Inventory:
        """Returns what is in the input, counted."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.title}>"

    def program(self) -> Program:
        """Returns the job as a program; it is built once."""
        if self._program is None:
            try:
                self._program = self.build_program()
            except ForetraceError as error:
                raise self.located(error) from None
        return self._program

    def located(self, error: ForetraceError) -> ForetraceError:
        """Returns an error of the input's program with the input's paths, where it names no place of its own."""
        if error.where is None and self.paths and error.code in _PROGRAM_ERRORS:
            return located(error, self.paths[0] if len(self.paths) == 1 else f"{self.paths[0]} …")
        return error

    @property
    def title(self) -> str:
        """The name of the input in messages."""
        return " ".join(self.paths)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Notes and warnings from reading that the program does not carry itself."""
        return ()

    @property
    def cluster(self) -> str | None:
        """The cluster that the input itself names."""
        return None

    @property
    def size_place(self) -> str:
        """The place that an error about the number of GPUs names."""
        return self.title

    def with_options(self, **changes: Any) -> Self:
        """Returns the same input with other options."""
        known = {field.name for field in fields(self.Options)}
        for name in changes:
            if name not in known:
                raise self.refuse_option(name)
        changed = copy(self)
        changed.options = replace(self.options, **{name: python_number(value) for name, value in changes.items()})
        changed._program = None
        return changed

    @classmethod
    def has_option(cls, name: str) -> bool:
        """Returns whether this kind of input has an option."""
        return any(field.name == name for field in fields(cls.Options))

    @classmethod
    def takes_option(cls, name: str, text: Any) -> bool:
        """Returns whether this kind of input has an option that a command line gives as `text`."""
        return all(cls.has_option(field) for field in cls.parse_options({name: text}))

    def read_options(self, texts: Mapping[str, Any]) -> Self:
        """Returns the same input with options as a command line gives them: texts, and True for flags.

        An option that this kind of input does not have is a usage error, raised here and nowhere else.
        """
        if not texts:
            return self
        with usage_errors():
            return self.with_options(**self.parse_options(dict(texts)))

    @classmethod
    def parse_options(cls, texts: dict[str, Any]) -> dict[str, Any]:
        """Returns fields of `Options` from the texts of options; names that are not known are kept."""
        return texts

    def refuse_option(self, name: str) -> UsageError:
        """Returns the error of an option that this input does not have."""
        from foretrace.inputs.option_texts import INPUT_OPTIONS, flag_of, flags_of

        known = flags_of(self.Options)
        hint = f"its options: {' '.join(known)}" if known else "everything is settled in it"
        meant = "" if name in INPUT_OPTIONS else did_you_mean(name, [field.name for field in fields(self.Options)])
        problem = f"{self.title} is {self.noun}, which has no such option{meant}"
        return UsageError("option-not-for-input", problem, where=flag_of(name), hint=hint)

    def with_axis(self, axis: str, size: int) -> Self:
        """Returns the input with another size of one axis of its mesh; others stay as they are."""
        del size
        raise self.refuse_option(axis)

    def priced(self) -> Self:
        """Returns the input with its recorded communication left to a machine to price."""
        return self

    def on_host(self, pace: HostPace) -> Self:
        """Returns the input with a host that launches kernels at another pace, where launches are not recorded."""
        del pace
        return self

    def on_nodes(self, gpus: int) -> Self:
        """Returns the input on nodes of this many GPUs, if its program depends on that."""
        del gpus
        return self

    @property
    def is_untimed(self) -> bool:
        """Whether it has no times of its own, so that a simulation needs a machine."""
        return False

    @property
    def rebuild(self) -> Rebuild | None:
        """How the computation of the program is to be rescaled; None where it stays as it is."""
        return None

    def schedulable(self) -> Self | None:
        """Returns a job whose options can be tried out one by one; None where everything is settled."""
        return self

    def recorded(self) -> Timeline | None:
        """Returns the measured timeline; None where nothing was measured."""
        return None

    def baseline(self) -> Baseline | None:
        """Returns the job as it was recorded, where options change it; None where they do not."""
        return None

    def unprofiled(self) -> Unprofiled | None:
        """Returns the step without what a profiler cost it; None where no profiler recorded it."""
        return None

    @property
    def recorded_step_s(self) -> float | None:
        """The recorded step that a replay of the input should take; None where there is none."""
        return None

    @property
    def recorded_gpu(self) -> str | None:
        """The name of the GPU that the input's computation was recorded on; None where it is not known."""
        return None

    @property
    def traced_ranks(self) -> int | None:
        """Ranks that were recorded, each of which may stand for many; None where the input does not tell."""
        return None

    @property
    def is_ex_situ(self) -> bool:
        """Whether its times were taken on another job than its own, so that there is nothing to compare with."""
        return False

    @property
    def is_measured(self) -> bool:
        """Whether the input holds a measured step of its own job: `recorded` then returns it."""
        return False

    @property
    def measured_microbatches(self) -> int | None:
        """Microbatches of a measured step; None where nothing was measured or the input does not tell."""
        return None

    @property
    def answer_file(self) -> InputFile | None:
        """The file of a saved answer, where the input is one."""
        return None

    def setting(self) -> Setting | None:
        """Returns the model and its settled plan; None for inputs that are not a model."""
        return None

    def mesh(self) -> Mesh:
        """Returns the mesh of the job."""
        return self.program().mesh
