"""Reads and checks what a page asks: `WebQuestion`, the names and texts that it may hold, and where its files are.

A question is JSON that anybody may have written. Its structure is checked here, strictly: types, keys, lengths, and
names of models, clusters and GPUs, which are those of presets and never paths. The texts of options are read where they
are read for the command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from foretrace.basics.errors import InputError, did_you_mean, shown_value
from foretrace.basics.files import restrict_inputs
from foretrace.basics.units import parse_time
from foretrace.hardware.presets import PRESETS
from foretrace.inputs.option_texts import INPUT_OPTIONS, OptionText
from foretrace.models import presets as model_presets
from foretrace.server.examples import example_of
from foretrace.server.form_fields import MACHINE, SCENARIO, SEARCH, FormField

Ask = Literal["step", "plan", "explain", "compare"]
"""The task: predict a step, search for a plan, explain a step, or compare two answers."""


@dataclass(frozen=True, slots=True)
class AskKind:
    """How a task is worked on.

    Attributes:
        command: The command that does it for files; empty where none does.
        model_command: The command that does it for a model.
        first_task: What a worker does first: a part of the answer (`quick`), or all of it.
        then: What a worker does afterwards; None where the first is all.
        is_stored: Whether the answer is kept under an id.
        is_of_step: Whether the answer is about one step, so that it can be compared with another.
        runs_unwatched: Whether it goes on when no page follows it any more, or its page asks something else.
    """

    command: str
    model_command: str
    first_task: Literal["quick", "full", "plan", "compare"]
    then: Literal["full"] | None = None
    is_stored: bool = True
    is_of_step: bool = True
    runs_unwatched: bool = False


ASKS: Final[Mapping[Ask, AskKind]] = {
    "step": AskKind("simulate", "predict", "quick", then="full"),
    "plan": AskKind("plan", "plan", "plan", is_of_step=False, runs_unwatched=True),
    "explain": AskKind("explain", "explain", "full"),
    "compare": AskKind("", "", "compare", is_stored=False, is_of_step=False),
}
"""The tasks by name."""

MAX_TEXT: Final = 500
MAX_LIST: Final = 32
MAX_SEARCH_S: Final = 600.0
SEARCH_S: Final = float(SEARCH["time_s"].default)
"""Seconds that a search may simulate, where a question does not say."""

ID_LENGTH: Final = 22
"""Characters of an id: 128 random bits in base64."""

Value = str | bool | tuple[str, ...]
Pairs = tuple[tuple[str, Value], ...]

_QUESTION: Final = ("ask", "input", "options", "machine", "scenario", "search", "answers")


@dataclass(frozen=True, slots=True)
class WebQuestion:
    """A question as a page asks it, checked.

    Attributes:
        ask: What is asked.
        source: What kind of input it is about: `model`, `example`, `upload`, or `answers` of a comparison.
        names: The name or id of the input; the ids of both answers of a comparison.
        options: Options of the input by their names in `INPUT_OPTIONS`: texts, or whether a flag is set.
        machine: Options of the machine by name.
        scenario: Options of the scenario by name.
        axes: Texts of the axes of a search.
        objective: The objective of a search, such as `step` or `cost`.
        search_s: Seconds that a search may take.
    """

    ask: Ask
    source: Literal["model", "example", "upload", "answers"]
    names: tuple[str, ...]
    options: Pairs = ()
    machine: Pairs = ()
    scenario: Pairs = ()
    axes: tuple[tuple[str, str], ...] = ()
    objective: str = SEARCH["objective"].default
    search_s: float = SEARCH_S

    @classmethod
    def read(cls, values: object) -> WebQuestion:
        """Reads a question from JSON. Raises InputError where it is not one."""
        fields = read_object(values, "the question", _QUESTION)
        ask = _choice(fields.get("ask", "step"), "ask", tuple(ASKS))
        if ask == "compare":
            return cls("compare", "answers", _answers(fields))
        if "answers" in fields:
            raise InputError("unknown-field", "only a comparison names answers", where="answers")
        source, name = _input(fields.get("input"))
        if ask == "plan" and source != "model":
            raise InputError("bad-value", "only a model has a plan to search for", where="ask", hint="name a model")
        search = read_object(fields.get("search", {}), "search", (*SEARCH, "axes"))
        if search and ask != "plan":
            raise InputError("unknown-field", "only a plan is searched for", where="search")
        scenario = _scenario(fields.get("scenario", {}))
        if scenario and ask == "plan":
            problem = "a search tries plans without a scenario"
            raise InputError("unknown-field", problem, where="scenario", hint="leave it out, or ask for a step")
        return cls(
            ask,  # type: ignore[arg-type]
            source,
            (name,),
            _options(fields.get("options", {})),
            _fields(fields.get("machine", {}), "machine", MACHINE),
            scenario,
            _axes(search.get("axes", {})),
            str(_field(search.get("objective", SEARCH["objective"].default), "search", SEARCH["objective"])),
            _seconds(search.get("time_s", SEARCH_S)),
        )

    @property
    def kind(self) -> AskKind:
        """How it is worked on."""
        return ASKS[self.ask]

    def to_dict(self) -> dict[str, Any]:
        """Returns the question as JSON has it; `read` reads it again."""
        if self.ask == "compare":
            return {"ask": "compare", "answers": list(self.names)}
        question: dict[str, Any] = {"ask": self.ask, "input": {self.source: self.names[0]}}
        for name, pairs in (("options", self.options), ("machine", self.machine), ("scenario", self.scenario)):
            if pairs:
                question[name] = {key: list(value) if isinstance(value, tuple) else value for key, value in pairs}
        if self.ask == "plan":
            question["search"] = {"objective": self.objective, "axes": dict(self.axes), "time_s": self.search_s}
        return question

    @property
    def text(self) -> str:
        """The question as one line of JSON: two questions are the same if their lines are."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where the files of a question are.

    Attributes:
        folder: The folder that a worker goes to; empty for its own, where there are no files.
        names: The paths of the files from there.
        shown_names: The names that the user gave them; empty where no command line shows them.
        readable: The only folder below that can be read; empty for the folder itself.
    """

    folder: str = ""
    names: tuple[str, ...] = ()
    shown_names: tuple[str, ...] = ()
    readable: str = ""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> FilePlace:
        """Reads a place from the JSON of `to_dict`."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """Returns the place as JSON has it."""
        return asdict(self)

    def enter(self) -> None:
        """Makes the folder the current one of this process, and the only one that it can read inputs from.

        Raises InputError where it is not there any more.
        """
        folder = Path(self.folder)
        try:
            os.chdir(folder)
        except OSError:
            problem = "the uploaded files are not there any more"
            raise InputError("unknown-id", problem, hint="upload them again") from None
        restrict_inputs([folder / self.readable])


def read_json(body: bytes) -> Any:
    """Returns the JSON of a request. Raises InputError where it is not JSON."""
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        hint = '{"ask": "step", "input": …}'
        raise InputError("bad-syntax", "the body is not JSON", where="the request", hint=hint) from None


def _refuse_constant(word: str) -> float:
    raise ValueError(word)


def read_object(values: object, place: str, known: Iterable[str]) -> dict[str, Any]:
    """Returns a JSON object whose keys are all known. Raises InputError where it is something else."""
    names = tuple(known)
    if not isinstance(values, Mapping):
        raise InputError("bad-value", f"expected a JSON object, not {shown_value(values)}", where=place)
    for name in values:
        if name not in names:
            near = did_you_mean(str(name), names)
            hint = f"known: {', '.join(names[:MAX_LIST])}"
            raise InputError("unknown-field", f"{shown_value(name)} is not known{near}", where=place, hint=hint)
    return dict(values)


def read_text(value: object, place: str) -> str:
    """Returns a text of bearable length. Raises InputError where it is something else."""
    if not isinstance(value, str):
        raise InputError("bad-value", f"expected a text, not {shown_value(value)}", where=place)
    if len(value) > MAX_TEXT:
        raise InputError("bad-value", f"the text is longer than {MAX_TEXT} characters", where=place)
    if "\0" in value:
        raise InputError("bad-value", "the text holds a NUL character", where=place)
    return value


def read_texts(values: object, place: str) -> tuple[str, ...]:
    """Returns a list of texts. Raises InputError where it is something else."""
    if not isinstance(values, list) or len(values) > MAX_LIST:
        raise InputError("bad-value", f"expected a list of up to {MAX_LIST} texts", where=place)
    return tuple(read_text(value, place) for value in values)


def read_id(value: object, place: str) -> str:
    """Returns the id of an answer or upload. Raises InputError where it cannot be one."""
    text = read_text(value, place)
    if not is_id(text):
        raise InputError("bad-value", f"{shown_value(text)} is not an id", where=place)
    return text


def is_id(text: str) -> bool:
    """Returns whether a text has the form of an id."""
    return len(text) == ID_LENGTH and all(sign.isascii() and (sign.isalnum() or sign in "-_") for sign in text)


def _choice(value: object, place: str, known: tuple[str, ...]) -> str:
    text = read_text(value, place)
    if text not in known:
        problem = f"{shown_value(text)} is not known{did_you_mean(text, known)}"
        raise InputError("unknown-name", problem, where=place, hint=f"known: {', '.join(known)}")
    return text


def _flag(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise InputError("bad-value", f"expected true or false, not {shown_value(value)}", where=place)
    return value


def _answers(fields: Mapping[str, Any]) -> tuple[str, ...]:
    read_object(fields, "the question", ("ask", "answers"))
    answers = read_texts(fields.get("answers"), "answers")
    if len(answers) != 2:
        raise InputError("bad-value", f"{len(answers)} answers are named, not two", where="answers")
    return tuple(read_id(name, "answers") for name in answers)


def _input(value: object) -> tuple[Literal["model", "example", "upload"], str]:
    if value is None:
        raise InputError("missing-field", "the question names no input", where="input", hint='{"model": "llama3-70b"}')
    fields = read_object(value, "input", ("model", "example", "upload"))
    if len(fields) != 1:
        raise InputError("bad-value", "expected one of model, example and upload", where="input")
    if "model" in fields:
        return "model", model_presets.model(read_text(fields["model"], "input.model"), where="input.model").name
    if "example" in fields:
        return "example", example_of(read_text(fields["example"], "input.example")).id
    return "upload", read_id(fields["upload"], "input.upload")


def _options(values: object) -> Pairs:
    options = read_object(values, "options", INPUT_OPTIONS)
    return tuple(sorted((name, _option(name, INPUT_OPTIONS[name], value)) for name, value in options.items()))


def _option(name: str, option: OptionText, value: object) -> Value:
    place = f"options.{name}"
    if not option.metavar:
        return _flag(value, place)
    return read_texts(value, place) if option.repeated else read_text(value, place)


def _fields(values: object, place: str, known: Mapping[str, FormField]) -> Pairs:
    """Reads the options of a part of a question; null and empty lists are options that are not given."""
    options = read_object(values, place, known)
    pairs = {
        name: _field(value, place, known[name]) for name, value in options.items() if value is not None and value != []
    }
    return tuple(sorted(pairs.items()))


def _field(value: object, part: str, field: FormField) -> Value:
    place = f"{part}.{field.name}"
    if field.kind == "flag":
        return _flag(value, place)
    if field.kind == "list":
        return read_texts(value, place)
    if field.choices is not None:
        return _choice(value, place, field.choices)
    text = read_text(value, place)
    return PRESETS.cluster(text, where=place).name if field.name == "cluster" else text


def _scenario(values: object) -> Pairs:
    pairs = _fields(values, "scenario", SCENARIO)
    for text in dict(pairs).get("what_if", ()):  # type: ignore[union-attr]
        _check_what_if(text)
    return pairs


def _check_what_if(text: str) -> None:
    """Raises an error where a what-if names a cluster or GPU that is not a preset, such as a file."""
    what, _, value = (part.strip() for part in text.partition("="))
    if what == "cluster":
        PRESETS.cluster(value, where="scenario.what_if")
    elif what == "gpu":
        PRESETS.gpu(value, where="scenario.what_if")


def _axes(values: object) -> tuple[tuple[str, str], ...]:
    axes = read_object(values, "search.axes", INPUT_OPTIONS)
    return tuple(sorted((name, read_text(text, f"search.axes.{name}")) for name, text in axes.items()))


def _seconds(value: object) -> float:
    """Reads the time of a search: seconds as a number, or a text such as `90`, `90s` or `2min`."""
    place = "search.time_s"
    if isinstance(value, str):
        text = read_text(value, place).strip()
        value = parse_time(f"{text}s" if text[-1:].isdecimal() else text, where=place)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SEARCH_S:
        problem = f"{shown_value(value)} is not a time of a search"
        raise InputError("out-of-range", problem, where=place, hint=f"up to {MAX_SEARCH_S:g} seconds")
    return float(value)
