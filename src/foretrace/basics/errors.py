"""The one family of errors a user can meet, and the notes that accompany a result.

Every error and diagnostic has a `code` of `foretrace.basics.codes`, which programs and tests look at, and a message
for people that says what is wrong, where (a file and line, a field, a rank and op) and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Self

MAX_SHOWN = 60
"""Characters of a user's text that an error repeats at most."""

MAX_PER_CODE = 5
"""Diagnostics of one level and code that a broken or hostile file gets."""

MAX_NAME = 100
"""Characters of a name at most; longer words are not misspelt names and take long to compare."""

_MAX_MESSAGE = 1000
_MAX_WHERE = 300
"""Characters of an error that are shown at most, whatever a reader put into it."""
_MAX_WORD = 120
_MAX_PLAIN = 200
"""Characters up to which a message stays as it is: its author shortened the texts that it repeats."""
_REPEATED = re.compile(rf'"[^"]*"|\S{{{_MAX_WORD},}}')


def bounded(message: object) -> str:
    """Returns a message as one line of at most about 1,000 characters, in which long quoted texts and words are cut.

    Messages repeat names and values of files, which may be of any length and hold line breaks.
    """
    if not isinstance(message, str):  # whatever Python code passes on as a message
        return shown_value(message)
    if len(message) <= _MAX_PLAIN and message.isprintable():
        return message
    if len(message) > 2 * _MAX_MESSAGE:  # what it says of a long text is before it or after it
        message = f"{message[:_MAX_MESSAGE]}…{message[-_MAX_MESSAGE:]}"
    message = printable(one_line(message))
    if len(message) > _MAX_PLAIN:
        message = _REPEATED.sub(_shortened_match, message)
    return message if len(message) <= _MAX_MESSAGE else f"{message[: 2 * MAX_SHOWN]}…{message[-_MAX_PLAIN:]}"


def _shortened_match(match: re.Match[str]) -> str:
    text = match[0]
    if text[0] == text[-1] == '"':
        return f'"{shortened(text[1:-1])}"'
    return f"{text[: MAX_SHOWN // 2]}…{text[-MAX_SHOWN // 2 :]}"


def _bounded_where(where: str) -> str:
    """Returns a place of bearable length; its end is kept, because the line is there."""
    where = printable(one_line(where))
    return where if len(where) <= _MAX_WHERE else f"{where[:MAX_SHOWN]}…{where[MAX_SHOWN + 1 - _MAX_WHERE :]}"


class ForetraceError(Exception):
    """A mistake in what the user gave; shown as one line, never as a traceback."""

    exit_code = 3

    def __init__(self, code: str, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.code = code
        self.message = bounded(message)
        self.where = where if where is None else _bounded_where(str(where))
        self.hint = hint if hint is None else bounded(hint)
        super().__init__(code, self.message)  # pickling passes these to a copy in another process

    def at(self, where: str | None) -> Self:
        """Returns the error with a place, where it has none."""
        self.where = self.where or where
        return self

    def to_dict(self) -> dict[str, str | None]:
        """Returns the error as JSON has it."""
        return {"code": self.code, "message": self.message, "where": self.where, "hint": self.hint}

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        text += f"  [{self.code}]"
        return f"{text}\n       {self.hint}" if self.hint else text


class UsageError(ForetraceError):
    """The command line itself is wrong."""

    exit_code = 2

    @classmethod
    def of(cls, error: ForetraceError) -> UsageError:
        """Returns an error in the value of an option as one of the command line."""
        return cls(error.code, error.message, where=error.where, hint=error.hint)


class InputError(ForetraceError):
    """A file, a field or an argument cannot mean anything."""

    exit_code = 3


class InfeasibleError(ForetraceError):
    """Nothing satisfies what was asked."""

    exit_code = 4


class DeadlockError(ForetraceError):
    """Ranks wait for each other; the message names the cycle."""

    exit_code = 5


class DefectError(ForetraceError):
    """Foretrace failed in a way that nothing expected (`foretrace.basics.last_resort`)."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h


def located(error: ForetraceError, place: str) -> ForetraceError:
    """Returns the same error with a place, such as a file, before its own."""
    where = f"{place}: {error.where}" if error.where else place
    return type(error)(error.code, error.message, where=where, hint=error.hint)


@contextmanager
def of_field(name: str) -> Iterator[None]:
    """Names the field or option whose value an error within the block is about."""
    try:
        yield
    except ForetraceError as error:
        raise type(error)(error.code, f"{name}: {error.message}", where=error.where, hint=error.hint) from None


@contextmanager
def usage_errors(place: str = "") -> Iterator[None]:
    """Makes an `InputError` within the block a `UsageError`: it is about the value of an option.

    Args:
        place: How the place of such an error begins, such as `--`; others stay as they are.
    """
    try:
        yield
    except InputError as error:
        if not (error.where or "").startswith(place):
            raise
        raise UsageError.of(error) from None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Something seen, guessed or left out that a reader of the result should know."""

    level: Literal["note", "warning"]
    code: str
    message: str
    where: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", bounded(self.message))


def collected(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Returns diagnostics with at most `MAX_PER_CODE` of one level and code; the last of these says how many more."""
    kinds: dict[tuple[str, str], list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        kinds.setdefault((diagnostic.level, diagnostic.code), []).append(diagnostic)
    kept: list[Diagnostic] = []
    for same in kinds.values():
        left = len(same) - MAX_PER_CODE
        kept += same[:MAX_PER_CODE]
        if left > 0:
            kept[-1] = replace(kept[-1], message=f"{kept[-1].message} (and {left:,} more such cases)")
    return tuple(kept)


def shortened(text: str) -> str:
    """Returns a text as an error shows it: only the beginning of a long one."""
    return _cut(text, MAX_SHOWN - 3) if len(text) > MAX_SHOWN else text


def one_line(text: str) -> str:
    """Returns a text without line breaks: a name from a file is not a line of its own."""
    return text if "\n" not in text and "\r" not in text else " ".join(text.splitlines())


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def shown_value(value: object) -> str:
    """Returns any value as an error shows it: a text in quotes, a number, or the type of something larger."""
    if isinstance(value, str | bytes):
        return quoted(value)
    if isinstance(value, float | bool | None) or (isinstance(value, int) and value.bit_length() <= 256):
        return repr(value)
    return f"a {type(value).__name__}" if not isinstance(value, int) else "a number of many digits"


def printable(text: str) -> str:
    """Returns a text as a terminal may show it.

    Characters that would move the cursor, change colours or turn the reading direction become `\ufffd`.
    """
    return text if text.isascii() and text.isprintable() else "".join(_shown(character) for character in text)


def shown(text: str | bytes) -> str:
    """Returns a word of a file as an error shows it: printable, in one line, and only the beginning of a long one."""
    word = text[: 4 * MAX_SHOWN].decode("utf-8", "replace") if isinstance(text, bytes) else text
    return printable(shortened(word)).replace("\n", "\N{REPLACEMENT CHARACTER}")


def quoted(text: str | bytes) -> str:
    """Returns a word of a file in quotes, as `shown` shows it."""
    return f'"{shown(text)}"'


def listed(words: Sequence[str], most: int = 8) -> str:
    """Returns the first `most` words of a file as an error lists them."""
    return ", ".join(map(shown, words[:most])) + (", …" if len(words) > most else "")


def _shown(character: str) -> str:
    import unicodedata  # only such texts need it

    if character == "\n" or character.isprintable():
        return character
    return " " if character == "\t" or unicodedata.category(character) == "Zs" else "\N{REPLACEMENT CHARACTER}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean X?` for the known name that is nearest to a wrong one, or nothing."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def nearest(name: str, known: Iterable[str], likeness: float = 0.5) -> str | None:
    """Returns the known name nearest to a wrong one in any case; None below a similarity of `likeness` (0 to 1)."""
    import difflib  # only mistakes need it

    if len(name) > MAX_NAME:
        return None
    spelled = {str(word).casefold(): str(word) for word in known}
    near = difflib.get_close_matches(name.casefold(), spelled, n=1, cutoff=likeness)
    return spelled[near[0]] if near else None
