"""A model with a plan as an input: a preset's name, a Hugging Face config.json, or a job file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from foretrace.basics.errors import Diagnostic, ForetraceError, UsageError, nearest
from foretrace.basics.files import GivenPath
from foretrace.inputs.base import Input
from foretrace.models.model import Model
from foretrace.workload.plan import Plan
from foretrace.workload.stack import HostPace

if TYPE_CHECKING:
    from foretrace.inputs.inventory import Inventory
    from foretrace.program.program import Program
    from foretrace.workload.setting import Setting

_YAML: Final = (".yaml", ".yml")
_FILES: Final = (".txt", ".json", ".gz", ".foretrace", ".answer", ".sqlite", ".csv", ".log", *_YAML)
"""Endings that names of models do not have."""
_LIKENESS: Final = 0.75
"""How similar a name must be to a model's to be taken for a misspelt one, of 1."""
_KNOWN: Final = frozenset(field.name for field in fields(Plan))


class ModelInput(Input):
    """A model and how it is parallelised and run.

    Its options are the fields of `Plan`. They are held one by one, since a plan needs a number of GPUs that may not be
    known yet: read them from `plan`; `options` is None.
    """

    kind: ClassVar[str] = "model"
    noun: ClassVar[str] = "a model"
    Options: ClassVar[type[Any]] = Plan

    def __init__(
        self,
        model: Model,
        plan: Plan | Mapping[str, Any],
        *,
        paths: tuple[str, ...] = (),
        cluster: str | None = None,
        diagnostics: tuple[Diagnostic, ...] = (),
    ) -> None:
        super().__init__(paths, None)
        self.model = model
        self._fields: dict[str, Any] = (
            dict(plan) if isinstance(plan, Mapping) else {name: getattr(plan, name) for name in _KNOWN}
        )
        self._cluster = cluster
        self._diagnostics = diagnostics
        self._pace: HostPace | None = None
        self._setting: Setting | None = None

    @classmethod
    def recognises(cls, paths: Sequence[GivenPath]) -> bool:
        """Takes job files, configurations, folders with a config.json, and names of models that no file has."""
        if len(paths) != 1 or paths[0].is_pattern:
            return False
        path = paths[0]
        if path.is_folder:
            return any(file.name == "config.json" for file in path.first_files)
        if path.is_file:
            name = path.path.name.lower()
            if name.endswith(_YAML):
                return True
            if not name.endswith(".json"):
                return False
            from foretrace.inputs.profiler_trace.format.sniff import begins_as_profile
            from foretrace.models.hf_config import begins_as_configuration

            head = path.files[0].head()
            return begins_as_configuration(head) and not begins_as_profile(head)  # a trace may say what model it is of
        from foretrace.models.presets import matches, names

        # A misspelt model is refused as one, with the name that was probably meant.
        misspelt = path.path.suffix.lower() not in _FILES and "/" not in path.text
        return bool(matches(path.text)) or (misspelt and nearest(path.text, names(), _LIKENESS) is not None)

    @classmethod
    def open(cls, paths: Sequence[GivenPath]) -> Self:
        """Finds the model that is named, or reads what a file describes."""
        path = paths[0]
        if path.path.name.lower().endswith(_YAML):
            from foretrace.workload.job_file import read_job

            job = read_job(path.files[0] if path.is_file else path.text)
            return cls(job.model, job.plan_fields, paths=(path.text,), cluster=job.cluster, diagnostics=job.diagnostics)
        from foretrace.models.load import read_model

        model, guesses = read_model(path.files[0] if path.is_file else path.text)
        return cls(model, {}, paths=(path.text,), diagnostics=guesses)

    @classmethod
    def parse_options(cls, texts: dict[str, Any]) -> dict[str, Any]:
        """Reads the texts of options."""
        from foretrace.inputs.model.options import plan_fields

        return plan_fields(texts)

    @property
    def title(self) -> str:
        """The name of the model."""
        return self.model.name

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Guesses made in reading the model."""
        return self._diagnostics

    @property
    def _job_file(self) -> str | None:
        """The file that describes the plan."""
        return next((path for path in self.paths if path.lower().endswith(_YAML)), None)

    @property
    def cluster(self) -> str | None:
        """The cluster that a job file names."""
        return self._cluster

    @property
    def plan(self) -> Plan:
        """The plan; an error where the number of GPUs is not given."""
        if "gpus" not in self._fields:
            raise UsageError("missing-argument", "on how many GPUs?", hint="for example --gpus 512")
        return Plan(**self._fields)

    def given(self, name: str) -> Any:
        """Returns a field of the plan as it was given; None where it was not."""
        return self._fields.get(name)

    def with_options(self, **changes: Any) -> Self:
        """Returns the same model with other fields of its plan."""
        for name in changes:
            if name not in _KNOWN:
                raise self.refuse_option(name)
        changed = copy(self)
        changed._fields = {**self._fields, **changes}
        changed._program = changed._setting = None
        return changed

    def read_options(self, texts: Mapping[str, Any]) -> Self:
        """Reads a file of routing first: what is wrong in it is not an error of the command line."""
        routing = texts.get("routing")
        if not isinstance(routing, str) or not GivenPath(routing).is_file:
            return super().read_options(texts)
        from foretrace.inputs.model.options import read_routing_file

        return super().read_options({**texts, "routing": read_routing_file(routing, len(self.model.layers))})

    def with_axis(self, axis: str, size: int) -> Self:
        """Changes an axis: dp through the number of GPUs, others through their field of the plan."""
        if axis != "dp":
            return self.with_options(**{axis: size})
        plan = self.plan
        return self.with_options(gpus=plan.tp * plan.cp * plan.pp * size)

    def on_host(self, pace: HostPace) -> Self:
        """Returns the model with a host that launches kernels at another pace."""
        changed = copy(self)
        changed._pace = pace
        changed._program = changed._setting = None
        return changed

    def setting(self) -> Setting:
        """Returns the plan with every choice made and checked."""
        if self._setting is None:
            from foretrace.workload.settle import settle

            try:
                setting = settle(self.model, self.plan)
            except ForetraceError as error:
                raise error.at(self._job_file) from None
            self._setting = setting if self._pace is None else setting.on_host(self._pace)
        return self._setting

    def build_program(self) -> Program:
        """Writes the step of the model under its plan."""
        from foretrace.step import build_step
        from foretrace.workload.step_spec import step_spec

        return build_step(step_spec(self.setting()))

    def inventory(self) -> Inventory:
        """Counts what the model and its plan hold."""
        from foretrace.inputs.model.inventory import model_inventory

        planned = "gpus" in self._fields
        setting = self.setting() if planned else self.with_options(gpus=1).setting()
        return model_inventory(setting, self.program() if planned else None, self.title)
