"""Holds the options of a launch script or configuration file: names, values and lines.

The modules of frameworks know what the options mean. Words of a script are found by `shell_words`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from foretrace.basics.errors import Diagnostic, InputError, of_field, shortened
from foretrace.basics.units import parse_whole
from foretrace.workload.launch.shell_words import Script, Statement, Word, read_script

HINT = "expected a launch script or a file of arguments: --num-layers 32 --hidden-size 4096 …"
_SILENT = ("echo", "printf", "exit", "cat", "grep", "mkdir", "sbatch", "#SBATCH", "cd", "source")
"""Commands whose options are not a framework's."""
MAX_BYTES = 1_000_000
"""The largest script or configuration: people write thousandths of it."""
MAX_COUNT = 10**9
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Argument:
    """The values after an option, and its line; 0 where lines are not known."""

    values: tuple[str, ...]
    line: int
    spelled: str = ""
    """The option as the file has it, where that is not its name here."""
    repeated: bool = False
    """Whether the file gave the option another value before."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Options by name; the last one of a name counts.

    Names are those of a framework's option table. Megatron's are typed after the dashes, with `-` for `_`.
    """

    path: str
    options: dict[str, Argument]
    diagnostics: tuple[Diagnostic, ...] = ()
    prefix: str = "--"
    """Stands before a name where errors show it."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Names as errors show them, where they are spelled in another way."""
    decided: frozenset[str] | None = None
    """The options that the file decides, on or off, where others are as elsewhere; None: all."""

    def __contains__(self, name: str) -> bool:
        """Whether the option is given, and with values that are known."""
        return name in self.options and not any("$" in value for value in self.options[name].values)

    def where(self, name: str) -> str:
        """The file, and the line of the option where it is given."""
        line = self.options[name].line if name in self.options else 0
        return f"{self.path}:{line}" if line else self.path

    def shown(self, name: str) -> str:
        """The option as the file spells it."""
        given = self.options.get(name)
        return (given.spelled if given else "") or self.spellings.get(name) or f"{self.prefix}{name}"

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_COUNT) -> int:
        """A whole number; without a default it must be given."""
        if name not in self:
            if default is not None:
                return default
            unknown = name in self.options
            code, problem = (
                ("unset-variable", f"the value of {self.shown(name)} is not in this file")
                if unknown
                else ("missing-field", f"{self.shown(name)} is missing")
            )
            raise InputError(code, problem, where=self.where(name), hint=HINT)
        text = self.text(name, "")
        following = self.options[name].values[1:2]
        if following and is_parted_number(following[0]):
            problem = f"{self.shown(name)} {shortened(text)} is followed by another number, {shortened(following[0])}"
            raise InputError("bad-value", problem, where=self.where(name), hint="write 1024 without a blank")
        with of_field(self.shown(name)):
            value = parse_whole(text, where=self.where(name))
        if not least <= value <= most:
            hint = f"expected {least:,} to {most:,}"
            problem = f"{self.shown(name)} {value:,} cannot be meant"
            raise InputError("out-of-range", problem, where=self.where(name), hint=hint)
        return value

    def text(self, name: str, default: str) -> str:
        """One value."""
        if name not in self:
            return default
        values = self.options[name].values
        if not values:
            raise InputError("missing-field", f"{self.shown(name)} needs a value", where=self.where(name))
        return values[0]

    def flag(self, name: str, default: bool) -> bool:
        """Yes or no; an option without a value is a yes."""
        if name not in self:
            return default
        values = self.options[name].values
        if not values:
            return True
        if values[0].lower() not in _WORDS:
            problem = f'{self.shown(name)} "{shortened(values[0])}" is neither true nor false'
            raise InputError("bad-value", problem, where=self.where(name), hint="expected true or false")
        return _WORDS[values[0].lower()]


def is_parted_number(word: str) -> bool:
    """Returns whether a word after a number is its end ("1 024"), or another number; one digit may be that of 2>&1."""
    return len(word) > 1 and word.isdecimal()


def script_of(text: str, path: str) -> Script:
    """Reads the words of a launch script.

    Raises:
        InputError: The text is not text.
    """
    if "\0" in text:
        raise InputError("wrong-format", "this is not a launch script", where=path, hint=HINT)
    return read_script(text.replace("\r\n", "\n"), path)


def script_arguments(script: Script, expected: str = "num-layers") -> Arguments:
    """Returns the options of a script's commands, or, where these lack the `expected` one, those in its variables."""
    options: dict[str, Argument] = {}
    for words in commands(script):
        _add_options(options, words)
    if expected not in options:
        for words in script.variables.values():
            _add_options(options, words)
    if not options:
        unclosed = next((note for note in script.diagnostics if note.code == "bad-syntax"), None)
        if unclosed is not None:
            raise InputError("bad-syntax", unclosed.message, where=unclosed.where, hint=HINT)
        raise InputError("wrong-format", "no arguments are found", where=script.path, hint=HINT)
    return Arguments(script.path, options, tuple(script.diagnostics))


def commands(script: Script) -> Iterable[Statement]:
    """Yields the commands of a script that may start a framework."""
    return (words for words in script.commands if words and words[0].text not in _SILENT)


def _add_options(options: dict[str, Argument], words: Statement) -> None:
    """Adds the options of a command, which replace those of the same name."""
    name: str | None = None
    line, values = 0, [""]
    for word in [*_parted(words), Word("--", 0)]:
        if word.text.startswith("--") or (word.text.startswith("-") and word.text[1:2].isalpha()):
            if name:
                before = options.get(name)
                repeated = before is not None and (before.repeated or before.values != tuple(values))
                options[name] = Argument(tuple(values), line, repeated=repeated)
            typed, equals, value = word.text.lstrip("-").partition("=")
            name, line, values = typed.replace("_", "-"), word.line, [value] if equals else []
        elif name:
            values.append(word.text)


def _parted(words: Statement) -> Statement:
    """A quoted word of several options, as `bash -c "..."` has, is what it holds."""
    parted: Statement = []
    for word in words:
        several = word.text.split()
        inside = len(several) > 1 and any(text.startswith("--") for text in several)
        parted += [Word(text, word.line) for text in several] if inside else [word]
    return parted
