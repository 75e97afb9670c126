"""Reads Megatron-LM's arguments out of a launch script or a file of arguments: names, values and lines.

`foretrace.workload.launch.megatron` knows what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.files import read_whole
from foretrace.basics.units import parse_count
from foretrace.workload.launch.shell_words import Statement, Word, read_script

_HINT = "expected a launch script or a file of arguments: --num-layers 32 --hidden-size 4096 …"
_SILENT = ("echo", "printf", "exit", "cat", "grep", "mkdir", "sbatch", "#SBATCH", "cd", "source")
"""Commands whose options are not Megatron's."""
_MAX_BYTES = 1_000_000
MAX_COUNT = 10**9


@dataclass(frozen=True, slots=True)
class Argument:
    """The values after an option, and its line."""

    values: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class MegatronArgs:
    """Options by name, as typed after the dashes but with `-` for `_`; the last one of a name counts."""

    path: str
    options: dict[str, Argument]
    diagnostics: tuple[Diagnostic, ...]

    def __contains__(self, name: str) -> bool:
        """Whether the option is given, and with values that are known."""
        return name in self.options and not any("$" in value for value in self.options[name].values)

    def where(self, name: str) -> str:
        """The file, and the line of the option where it is given."""
        return f"{self.path}:{self.options[name].line}" if name in self.options else self.path

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_COUNT) -> int:
        """A whole number; without a default it must be given."""
        if name not in self:
            if default is not None:
                return default
            unknown = name in self.options
            code, problem = (
                ("unset-variable", f"the value of --{name} is not in this file")
                if unknown
                else ("missing-field", f"--{name} is missing")
            )
            raise InputError(code, problem, where=self.where(name), hint=_HINT)
        value = parse_count(self.text(name, ""), where=self.where(name))
        if not least <= value <= most:
            hint = f"expected {least:,} to {most:,}"
            raise InputError("out-of-range", f"--{name} {value:,} cannot be meant", where=self.where(name), hint=hint)
        return value

    def text(self, name: str, default: str) -> str:
        """One value."""
        if name not in self:
            return default
        values = self.options[name].values
        if not values:
            raise InputError("missing-field", f"--{name} needs a value", where=self.where(name))
        return values[0]


def read_megatron_args(path: str | Path) -> MegatronArgs:
    """The arguments of a script: those of its commands, or, where it has none, those in its variables."""
    data = read_whole(path, "launch script", _HINT)
    text = data[:_MAX_BYTES].decode("utf-8-sig", "replace").replace("\r\n", "\n")
    if len(data) > _MAX_BYTES or "\0" in text:
        raise InputError("wrong-format", "this is no launch script", where=str(path), hint=_HINT)
    script = read_script(text, str(path))
    options: dict[str, Argument] = {}
    for words in script.commands:
        if words and words[0].text not in _SILENT:
            options |= _options(words)
    if "num-layers" not in options:
        for words in script.variables.values():
            options |= _options(words)
    if not options:
        raise InputError("wrong-format", "no arguments are found", where=str(path), hint=_HINT)
    return MegatronArgs(str(path), options, tuple(script.diagnostics))


def _options(words: Statement) -> dict[str, Argument]:
    options: dict[str, Argument] = {}
    name: str | None = None
    line, values = 0, [""]
    for word in [*_parted(words), Word("--", 0)]:
        if word.text.startswith("--") or (word.text.startswith("-") and word.text[1:2].isalpha()):
            if name:
                options[name] = Argument(tuple(values), line)
            typed, equals, value = word.text.lstrip("-").partition("=")
            name, line, values = typed.replace("_", "-"), word.line, [value] if equals else []
        elif name:
            values.append(word.text)
    return options


def _parted(words: Statement) -> Statement:
    """A quoted word of several options, as `bash -c "..."` has, is what it holds."""
    parted: Statement = []
    for word in words:
        several = word.text.split()
        inside = len(several) > 1 and any(text.startswith("--") for text in several)
        parted += [Word(text, word.line) for text in several] if inside else [word]
    return parted
