"""A training script as an input: it runs with simulated GPUs, and what it issues becomes a program."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from foretrace.basics.errors import Diagnostic, InputError, UsageError, shortened
from foretrace.basics.files import GivenPath, is_restricted, read_whole
from foretrace.inputs.base import Input
from foretrace.inputs.option_texts import read_count, read_texts
from foretrace.inputs.script.options import DEFAULT_STEP, ScriptOptions, read_ranks, read_recorded_steps

if TYPE_CHECKING:
    from foretrace.inputs.inventory import Inventory
    from foretrace.inputs.script.recording import RankRecording
    from foretrace.inputs.script.roles import TracedJob
    from foretrace.inputs.script.tracing import TraceRequest
    from foretrace.program.program import Program
    from foretrace.workload.stack import HostPace

ENDING: Final = ".py"
GPUS_PER_NODE: Final = 8
"""GPUs of a node, where no cluster says it."""
MAX_BYTES: Final = 16 << 20
"""The largest script that is read."""


class ScriptInput(Input):
    """A script that trains with PyTorch.

    The script runs in processes of its own, and only if its program is asked for and the number of GPUs is given.
    Copies by `with_options` share what was traced.
    """

    kind: ClassVar[str] = "script"
    noun: ClassVar[str] = "a training script"
    Options: ClassVar[type[Any]] = ScriptOptions
    runs_code: ClassVar[bool] = True

    def __init__(self, path: str, options: ScriptOptions | None = None) -> None:
        super().__init__((path,), options or ScriptOptions())
        self._gpus_per_node = GPUS_PER_NODE
        self._pace = 1.0
        self._traced: dict[TraceRequest, tuple[TracedJob, tuple[Diagnostic, ...]]] = {}

    @classmethod
    def recognises(cls, paths: Sequence[GivenPath]) -> bool:
        """Recognises files that end in `.py`, unless a pattern or a folder selects them."""
        return paths[0].path.suffix == ENDING and not paths[0].is_many

    @classmethod
    def open(cls, paths: Sequence[GivenPath]) -> Self:
        """Reads the script without running it."""
        script, *others = paths
        if is_restricted():
            raise InputError("script-not-run", "scripts of others are not run here", where=script.text, hint=_LOCAL)
        if others:
            problem = f"{script.text} is {cls.noun}, which is not read together with {shortened(others[0].text)}"
            hint = f"arguments of the script follow after --: {script.text} -- {others[0].text}"
            raise UsageError("several-inputs", problem, hint=hint)
        read_whole(script.files[0], cls.noun.removeprefix("a "), "a file of Python", MAX_BYTES)
        return cls(script.text)

    @classmethod
    def parse_options(cls, texts: dict[str, Any]) -> dict[str, Any]:
        """Reads the texts of options."""
        readers = {
            "world": read_count("world"),
            "gpus": read_count("gpus"),
            "trace_ranks": read_ranks,
            "steps": read_recorded_steps,
            "unknown": _read_number,
            "arguments": _read_arguments,
        }
        options = read_texts(texts, readers)
        if "gpus" in options:
            if options.get("world", options["gpus"]) != options["gpus"]:
                raise UsageError("conflicting-options", "--world and --gpus differ, and both are the job's GPUs")
            options["world"] = options.pop("gpus")
        return options

    @property
    def title(self) -> str:
        """The script with its arguments."""
        return " ".join([self.paths[0], *([shlex.join(self.options.arguments)] if self.options.arguments else [])])

    @property
    def is_untimed(self) -> bool:
        """Whether only a machine can tell how long it takes: always, since no GPU has run it."""
        return True

    def on_host(self, pace: HostPace) -> Self:
        """Returns the script on a host that launches kernels at another pace."""
        changed = copy(self)
        changed._pace = pace.factor if pace.torch_factor is None else pace.torch_factor
        changed._program = None
        return changed

    def on_nodes(self, gpus: int) -> Self:
        """Returns the script on nodes of this many GPUs, which decide its local ranks."""
        changed = copy(self)
        changed._gpus_per_node = gpus
        changed._program = None
        return changed

    def traced(self) -> TracedJob:
        """Returns what the traced ranks issued; the script runs when this is first asked for.

        Raises:
            UsageError: The number of GPUs is not given.
            InputError: The script fails, cannot be traced, or does not pass the checks.
        """
        return self._checked()[0]

    def warnings(self) -> tuple[Diagnostic, ...]:
        """Returns the warnings of the checks that every trace must pass."""
        return self._checked()[1]

    def build_program(self) -> Program:
        """Writes what the traced ranks issued as a program of all ranks."""
        from foretrace.inputs.script.program import program_of

        traced, warnings = self._checked()
        program = program_of(traced.recordings, traced.stands_for, title=self.title, pace=self._pace)
        return replace(program, diagnostics=(*traced.diagnostics, *program.diagnostics, *warnings))

    def inventory(self) -> Inventory:
        """Counts what the script issues."""
        from foretrace.inputs.script.inventory import script_inventory

        job, options = self.traced(), self.options
        arguments = f" -- {shlex.join(options.arguments)}" if options.arguments else ""
        see = f"foretrace simulate {shlex.quote(self.paths[0])} --world {options.world} --cluster h100-dgx{arguments}"
        return script_inventory(job, self.program(), self.title, see)

    def schedulable(self) -> None:
        """Returns nothing: the script settles everything."""

    def _checked(self) -> tuple[TracedJob, tuple[Diagnostic, ...]]:
        from foretrace.inputs.script.checks import check_recordings
        from foretrace.inputs.script.tracing import trace_script

        request = self._request()
        if request not in self._traced:
            job = trace_script(request)
            for recording in job.recordings:
                self._check_steps(recording)
            warnings = [*self._step_notes(job.recordings[0]), *check_recordings(job.recordings)]
            self._traced[request] = job, tuple(warnings)
        return self._traced[request]

    def _check_steps(self, recording: RankRecording) -> None:
        """Raises an error if a script runs fewer steps than the options name. Without them its last step counts."""
        if self.options.steps is None:
            return
        first, last = self.options.steps
        count = len(recording.steps)
        if count and (recording.first_step, count) != (first, last - first + 1):
            problem = (
                f"step {last} is to be recorded, and rank {recording.rank} makes {recording.first_step + count} steps"
            )
            hint = "steps count from 0; a step ends where the optimizer has stepped"
            raise InputError("no-such-rank", problem, where=self.title, hint=hint)

    def _step_notes(self, recording: RankRecording) -> list[Diagnostic]:
        """Returns a warning where the script ended before its second step, so that its first one is recorded."""
        if self.options.steps is not None or recording.first_step >= DEFAULT_STEP:
            return []
        text = (
            "the script made one step, and a first step differs from later ones: it makes the states of the optimizer "
            "and other buckets of gradients; let it make two"
        )
        return [Diagnostic("warning", "first-step-recorded", text, self.title)]

    def refuse_option(self, name: str) -> UsageError:
        """Returns the error of an option that scripts do not have, or that is meant for the script itself."""
        error = super().refuse_option(name)
        return UsageError(
            error.code, error.message, where=error.where, hint="arguments of the script itself follow after --"
        )

    def _request(self) -> TraceRequest:
        from foretrace.inputs.script.routing import parse_routing
        from foretrace.inputs.script.tracing import TraceRequest

        options: ScriptOptions = self.options
        if options.world is None:
            raise UsageError(
                "missing-argument", f"on how many GPUs does {self.paths[0]} run?", hint="for example --world 64"
            )
        ranks = tuple(range(options.world)) if options.trace_ranks == "all" else options.trace_ranks
        return TraceRequest(
            self.paths[0],
            options.arguments,
            options.world,
            self._gpus_per_node,
            ranks,
            options.steps or (DEFAULT_STEP, DEFAULT_STEP),
            options.unknown,
            parse_routing(options.routing),
        )


_LOCAL: Final = "trace it where it may run: foretrace trace SCRIPT --world N -o job.foretrace, and give the program"


def _read_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError("bad-value", f"--unknown {shortened(text)} is not a number") from None


def _read_arguments(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError("bad-value", f"--args {shortened(text)}: {error}", hint="quote it as a shell does") from None
