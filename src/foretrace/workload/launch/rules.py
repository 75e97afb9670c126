"""Declares how the fields of a plan and the options of a framework map to each other, in both directions.

A `Rule` writes the options of some fields of a plan and reads these fields from the options, so that a format has one
table for both. A `LaunchFormat` is the table of one framework. Every field of `Plan` is in one of its rules, or is
`fixed`: the framework has no option for it and always behaves in one way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from foretrace.basics.errors import Diagnostic, InputError, collected, shortened, shown
from foretrace.models.model import Model
from foretrace.schedules.pipeline import BATCHED
from foretrace.workload.constraints import broken
from foretrace.workload.job_file import PlanValue
from foretrace.workload.launch.arguments import MAX_COUNT, Arguments
from foretrace.workload.plan import Plan
from foretrace.workload.rules.launchers import asserted_problem
from foretrace.workload.rules.sizes import PlanSizes
from foretrace.workload.setting import Setting, settled_plan
from foretrace.workload.stacks import STACKS

OptionValue: TypeAlias = "int | str | bool | tuple[str, ...] | None"
"""True and False are flags; None is an option at its off state, which configurations with defaults must write."""
Options: TypeAlias = dict[str, OptionValue]

DIVISION: Final = ("stage_layers", "layout", "account_for", "first_stage_layers", "last_stage_layers")
"""Fields that divide the layers among parts of a pipeline: ways to say one thing."""
ESSENTIAL: Final = ("tp", "cp", "cp_comm", "pp", "vpp", "schedule", "ep", "etp", "zero", "shard")
"""Fields without which another job would run: it is not launched."""
_SIZES: Final = ("gpus", "mbs", "gbs", "seq_len", "sequence_parallel")
"""Fields that say together with the essential ones how large parts of the model are."""


_MAX_LISTED: Final = 200
"""Options that are listed as not used; no real script has as many."""


@dataclass(slots=True)
class Reading:
    """Arguments while they are read: which were asked for, and what is to be reported."""

    args: Arguments
    model: Model | None = None
    """The model, once it is known."""
    notes: list[Diagnostic] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    ignored: set[str] = field(default_factory=set)
    """Options that say nothing of a plan, which nobody has to be told."""
    plan_guesses: dict[str, str] = field(default_factory=dict)

    def say(self, code: str, message: str, name: str = "") -> None:
        """Reports a remark about an option."""
        self.notes.append(Diagnostic("note", code, message, self.args.where(name)))

    def has(self, *names: str) -> bool:
        """Returns whether any of the options is given."""
        self.asked.update(names)
        return any(name in self.args for name in names)

    def ignore(self, *names: str) -> None:
        """Leaves options out of those that are listed as not used."""
        self.ignored.update(names)

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_COUNT) -> int:
        """Returns a whole number."""
        self.asked.add(name)
        return self.args.count(name, default, least=least, most=most)

    def text(self, name: str, default: str) -> str:
        """Returns one value."""
        self.asked.add(name)
        return self.args.text(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns yes or no."""
        self.asked.add(name)
        return self.args.flag(name, default)

    def word(self, name: str, default: str, known: Iterable[str]) -> str:
        """Returns one of a few known words."""
        text = self.text(name, default)
        if text not in known:
            problem = f'{self.args.shown(name)} "{shortened(text)}" is not known'
            raise InputError("unknown-name", problem, where=self.args.where(name), hint=" ".join(known))
        return text

    def values(self, name: str) -> tuple[str, ...]:
        """Returns the values of an option that takes several."""
        return self.args.options[name].values if self.has(name) else ()

    @property
    def unused(self) -> list[str]:
        """The options of the file that nothing was read from, in its order."""
        known = self.asked | self.ignored
        return [shown(self.args.shown(name)) for name in self.args.options if name not in known]

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Reports what was guessed and left out: last, once, the options that nothing was read from."""
        unknown = [
            Diagnostic(
                "warning",
                "field-ignored",
                f"{self.args.shown(name)} has a value that is not in this file: left out",
                self.args.where(name),
            )
            for name in sorted(self.asked)
            if name in self.args.options and name not in self.args
        ]
        repeated = [
            Diagnostic(
                "warning",
                "duplicate-name",
                f"{self.args.shown(name)} is given more than once: the last one counts",
                self.args.where(name),
            )
            for name in sorted(self.asked)
            if name in self.args.options and self.args.options[name].repeated
        ]
        guesses = [diagnostic for diagnostic in self.args.diagnostics if diagnostic.level == "note"]
        unused = self.unused
        listed = " ".join(unused[:_MAX_LISTED]) + (" …" if len(unused) > _MAX_LISTED else "")
        rest = [Diagnostic("note", "unused-flags", f"not used: {listed}", self.args.path)] if unused else []
        return collected((*unknown, *repeated, *guesses, *self.notes, *rest))


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """A job as a launch script or a configuration describes it.

    A model, fields of `Plan` by name, which of these are guessed and why, and notes on what else was guessed or left
    out.
    """

    model: Model
    plan: dict[str, PlanValue]
    plan_guesses: dict[str, str]
    diagnostics: tuple[Diagnostic, ...]


def _no_lack(_setting: Setting) -> str | None:
    return None


def _no_options(_setting: Setting) -> Options:
    return {}


@dataclass(frozen=True, slots=True)
class Rule:
    """How some fields of a plan are options of a framework.

    Attributes:
        fields: The fields of `Plan` that the options express.
        write: Returns the options of a setting.
        read: Returns the fields that options give; none where they are as a plan has them by default.
        lack: Returns in words why a setting cannot be expressed; None where it can.
        nearest: Returns the options that are nearest to a setting that cannot be expressed.
    """

    fields: tuple[str, ...]
    write: Callable[[Setting], Options]
    read: Callable[[Reading], dict[str, PlanValue]]
    lack: Callable[[Setting], str | None] = _no_lack
    nearest: Callable[[Setting], Options] = _no_options


def count_rule(name: str, option: str, *, least: int = 1, off: int | None = None) -> Rule:
    """Returns the rule of a whole number; `off` is the number for which the option is left out."""

    def write(setting: Setting) -> Options:
        value = launch_value(setting, name)
        assert isinstance(value, int)
        return {option: None if value == off else value}

    return Rule((name,), write, lambda reading: _given(reading, name, option, least))


def _given(reading: Reading, name: str, option: str, least: int) -> dict[str, PlanValue]:
    return {name: reading.count(option, least=least)} if reading.has(option) else {}


def flag_rule(name: str, option: str, lack: Callable[[Setting], str | None] = _no_lack) -> Rule:
    """Returns the rule of a field that is off by default; the option is off where the field has no effect."""
    return Rule(
        (name,),
        lambda setting: {option: has_effect(setting, name) and bool(launch_value(setting, name))},
        lambda reading: {name: True} if reading.flag(option) else {},
        lack,
    )


def routing_rule(*options: str) -> Rule:
    """Returns the rule of how uneven tokens go to experts, which a router decides while it learns.

    A file may force balance, for benchmarks. That is read and never written: the model would learn nothing.

    Args:
        options: Flags that force balance.
    """

    def lack(setting: Setting) -> str | None:
        return None if setting.plan.routing is None else "the router decides that while it learns"

    def read(reading: Reading) -> dict[str, PlanValue]:
        flags = [reading.flag(option) for option in options]  # all of them, so that none is reported as not used
        return {"routing": 1.0} if any(flags) else {}

    return Rule(("routing",), _no_options, read, lack)


@dataclass(frozen=True, slots=True)
class Lack:
    """A field of a plan that a format cannot express."""

    field: str
    message: str

    @property
    def is_essential(self) -> bool:
        """Whether another job would run without the field."""
        return self.field in ESSENTIAL

    @property
    def diagnostic(self) -> Diagnostic:
        """The report of it."""
        return Diagnostic("warning", "not-expressible", self.message)


@dataclass(frozen=True, slots=True)
class LaunchFormat:
    """The options of a framework: how they express a plan.

    Attributes:
        name: The name by which it is asked for.
        title: The framework in words.
        stacks: The stacks for which it is the usual framework.
        reads_as: The stack that its files are read as.
        rules: How fields are options.
        fixed: The values of fields for which there is no option.
    """

    name: str
    title: str
    stacks: tuple[str, ...]
    reads_as: str
    rules: tuple[Rule, ...]
    fixed: Mapping[str, object]

    def options(self, setting: Setting) -> Options:
        """Returns the options of a setting; fields that cannot be expressed are left out, or as near as there is."""
        options: Options = {}
        for rule in self.rules:
            options |= rule.write(setting) if rule.lack(setting) is None else rule.nearest(setting)
        return options

    def lacks(self, setting: Setting) -> Iterator[Lack]:
        """Yields the fields of a setting that have an effect and cannot be expressed."""
        for rule in self.rules:
            reason = rule.lack(setting)
            for name in rule.fields if reason is not None else ():
                if has_effect(setting, name):
                    yield Lack(name, f"{_shown(setting, name)}: {reason}")
        for name, value in self.fixed.items():
            if has_effect(setting, name) and launch_value(setting, name) != value:
                usual = f"; it is always {_words(value)}" if isinstance(value, int | str) else ""
                yield Lack(name, f"{_shown(setting, name)}: {self.title} has no option for it{usual}")

    def problem(self, setting: Setting) -> str | None:
        """Returns in words why the framework cannot run a setting; None where it can."""
        missing = "; ".join(lack.message for lack in self.lacks(setting) if lack.is_essential)
        if missing:
            return f"{self.title} cannot run this plan: {missing}"
        if setting.stack.name in (self.reads_as, *self.stacks):
            refused = asserted_problem(PlanSizes.of(setting.model, setting.plan))
            return f"{self.title} cannot run this plan: {refused}" if refused else None
        # A plan of other software: this one may not divide heads or sequences in the same way.
        values = {name: launch_value(setting, name) for name in (*_SIZES, *ESSENTIAL)}
        plan = Plan(**values | {"stack": self.reads_as})  # type: ignore[arg-type]
        sizes = PlanSizes.of(setting.model, replace(plan, vpp=setting.plan.vpp, shard=setting.plan.shard))
        refused = next((constraint.problem(sizes) for constraint in broken(sizes)), None)
        return f"{self.title} cannot run this plan: {refused}" if refused else None

    def read(self, reading: Reading) -> dict[str, PlanValue]:
        """Returns the fields of a plan that the options of a file give."""
        plan: dict[str, PlanValue] = {}
        decided = reading.args.decided
        for rule in self.rules:
            asked, reading.asked = reading.asked, set()
            fields = rule.read(reading)
            if decided is None or not reading.asked or reading.asked & decided:
                plan |= fields
            reading.asked |= asked
        return plan


def stack_rule(name: str, stacks: Mapping[str, str]) -> Rule:
    """Returns the rule of the software: a plan of other `stacks` can be launched, which is reported.

    Args:
        name: The stack that a file of the framework is read as.
        stacks: The stacks that the framework runs, with their titles.
    """

    def lack(setting: Setting) -> str | None:
        stack = setting.stack
        if stack.name not in stacks:
            return f"what runs is {' or '.join(dict.fromkeys(stacks.values()))}"
        if stack.version != STACKS[stack.name].version:
            return f"what is installed decides; the file is read back as {STACKS[stack.name].version}"
        return None

    return Rule(("stack",), lambda _: {}, lambda _: {"stack": name}, lack)


def _shown(setting: Setting, name: str) -> str:
    value = launch_value(setting, name)
    if name in DIVISION:
        return f"{name} (the division {value})" if name != "layout" else f"layout is {value}"
    return f"{name} is {_words(value)}"


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def launch_value(setting: Setting, name: str) -> object:
    """Returns the value that a field has when all choices are made; divisions of layers are the layout."""
    if name in DIVISION:
        return setting.layout
    if name == "vpp":
        return setting.chunks_per_stage
    if name == "rank_order":
        return setting.mesh.order
    return settled_plan(setting)[name]


def has_effect(setting: Setting, name: str) -> bool:
    """Returns whether a field changes what the job does."""
    return _EFFECTS[name](setting) if name in _EFFECTS else True


def _replicates(setting: Setting) -> bool:
    return setting.dp * setting.plan.cp > 1


def _has_stages(setting: Setting) -> bool:
    return setting.plan.pp > 1


def _dispatches(setting: Setting) -> bool:
    return setting.model.has_experts and setting.plan.ep > 1


_EFFECTS: Final[dict[str, Callable[[Setting], bool]]] = {
    **dict.fromkeys(("sequence_parallel", "tp_overlap"), lambda setting: setting.plan.tp > 1),
    "cp_comm": lambda setting: setting.plan.cp > 1,
    "cuda_graphs": lambda setting: setting.plan.cuda_graphs != "router" or setting.model.has_experts,
    **dict.fromkeys(("vpp", "schedule", *DIVISION), _has_stages),
    "pp_overlap": lambda setting: _has_stages(setting) and setting.schedule in BATCHED,
    **dict.fromkeys(("ep", "etp"), lambda setting: setting.model.has_experts),
    **dict.fromkeys(("dispatcher", "moe_overlap", "routing"), _dispatches),
    "zero": _replicates,
    **dict.fromkeys(("shard", "reshard"), lambda setting: _replicates(setting) and setting.zero == 3),
    "grad_overlap": lambda setting: _replicates(setting) and not setting.splits_parameters,
    "param_overlap": lambda setting: _replicates(setting) and setting.zero in (1, 2) and not setting.splits_parameters,
    "prefetch": lambda setting: bool(
        setting.splits_parameters or setting.plan.offload_layers or setting.plan.offload_modules
    ),
    "recompute_layers": lambda setting: setting.plan.recompute == "full",
    "recompute_modules": lambda setting: setting.plan.recompute == "selective",
    "master_dtype": lambda setting: setting.stack.master_weights,
    "rank_order": lambda setting: _has_stages(setting) and _replicates(setting),
}
"""Where fields have an effect that have one in some jobs only."""
