"""Reads the words of a shell script with their lines, without running it: assignments, arrays, quotes, `$VAR`.

Only text is followed. What a script computes (`$(...)`), reads from its environment, or decides (`if`) is not known. A
word that needs it keeps its `$`, and a diagnostic reports what is missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from foretrace.basics.errors import Diagnostic
from foretrace.basics.limits import check_limit
from foretrace.basics.numbers import MAX_WHOLE

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_REFERENCE: Final = re.compile(
    r"\$\(\((?P<sum>[^()]*)\)\)|\$\{(?P<braced>[A-Za-z_]\w*|[0-9]+)(?:\[[@*]\])?(?::?[-=](?P<default>[^{}]*))?\}"
    r"|\$(?P<plain>[A-Za-z_]\w*|[0-9])"
)
_SUM: Final = re.compile(r"([0-9]{1,12})(?:\s*([*+/-])\s*([0-9]{1,12}))*")
_PREFIXES: Final = ("export", "declare", "local", "readonly", "set", "-a", "-x", "then", "else", "do")
_MAX_DEPTH: Final = 20
_MAX_EXPANDED: Final = 1_000_000
"""Characters that variables stand for in a script: forty lines `A="$A $A"` would be a terabyte."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word and the line on which it begins; `split` says that white space in what it refers to parts words."""

    text: str
    line: int
    split: bool = True


Statement = list[Word]


@dataclass(slots=True)
class Script:
    """A script: its variables by name, each as words, and the words of its commands, references resolved."""

    path: str
    variables: dict[str, list[Word]] = field(default_factory=dict)
    commands: list[Statement] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    branches: int = 0
    """How many `if`s are open where the reading stands."""
    unset: set[str] = field(default_factory=set)
    """The variables that were used and not set, which is said once of each."""
    expanded: int = 0
    """Characters that variables have stood for so far."""

    def say(self, code: str, message: str, line: int) -> None:
        """Something that was guessed."""
        self.diagnostics.append(Diagnostic("note", code, message, f"{self.path}:{line}"))

    def words_of(self, name: str) -> list[Word]:
        """Returns the words of a variable.

        Raises:
            InputError: Variables that refer to each other stand for more text than any script has.
        """
        words = self.variables[name]
        self.expanded += sum(len(word.text) + 1 for word in words)
        check_limit(self.expanded, _MAX_EXPANDED, "characters that variables stand for", self.path)
        return words


def read_script(text: str, path: str) -> Script:
    """A script from its text, read from top to bottom; the last assignment of a variable before its use counts."""
    script = Script(path)
    lexer = _Lexer(text)
    for statement in lexer.run():
        _follow(script, statement)
    if lexer.unclosed_line:
        script.say("bad-syntax", "a quote or bracket is not closed: the rest is read as its text", lexer.unclosed_line)
    return script


def statements(text: str) -> list[Statement]:
    """Commands and assignments as words; an array is the word `NAME=(`, its elements, and `)`."""
    return _Lexer(text).run()


@dataclass(slots=True)
class _Lexer:
    text: str
    at: int = 0
    line: int = 1
    statements: list[Statement] = field(default_factory=list)
    current: Statement = field(default_factory=list)
    in_array: bool = False
    unclosed_line: int = 0
    """The line of a quote or bracket that is not closed; 0 where there is none."""

    def run(self) -> list[Statement]:
        while self.at < len(self.text):
            self._step()
        self._end()
        return self.statements

    def _step(self) -> None:
        char = self.text[self.at]
        if self.text.startswith("\\\n", self.at) or self.text.startswith("\\\r\n", self.at):
            self.at = self.text.index("\n", self.at) + 1
            self.line += 1
        elif char == "\\" and self.text[self.at + 1 : self.at + 2] in ("", "\r"):
            self.at += 1  # continues nothing: a script that was cut off ends like this
        elif char == "\n":
            if not self.in_array:
                self._end()
            self.line += 1
            self.at += 1
        elif char.isspace():
            self.at += 1
        elif char == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif char == ")" and self.in_array:
            self.current.append(Word(")", self.line))
            self.in_array = False
            self.at += 1
        elif char in ";&|()<>":
            if not self.in_array:
                self._end()
            self.at += 1
        else:
            self._word()

    def _end(self) -> None:
        if self.current:
            self.statements.append(self.current)
        self.current, self.in_array = [], False

    def _word(self) -> None:
        start, parts, split = self.line, [], True
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "\"'":
                part = self._quoted(char)
                # What stands in quotes stays one word, except an array's elements.
                split = split and (not part or "[@]" in part)
                parts.append(part)
            elif self.text.startswith("$(", self.at):
                parts.append(self._substitution())
            elif char == "\\" and self.at + 1 < len(self.text) and self.text[self.at + 1] not in "\r\n":
                parts.append(self.text[self.at + 1])
                self.at += 2
            elif char == "(" and parts and parts[-1].endswith("="):
                self.at += 1
                self.in_array = True
                parts.append("(")
                break
            elif char.isspace() or char in "\\;&|()<>":
                break
            else:
                parts.append(char)
                self.at += 1
        self.current.append(Word("".join(parts), start, split))

    def _quoted(self, quote: str) -> str:
        """The inside of a string; a line that continues keeps its break, so that words know their lines."""
        end = self.at + 1
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if self.text[end] == "\\" and quote == '"' else 1
        if end >= len(self.text):
            self.unclosed_line = self.unclosed_line or self.line
        inside = self.text[self.at + 1 : end]
        self.line += inside.count("\n")
        self.at = end + 1
        if quote == "'":
            return inside.replace("$", "\0")  # no references within
        return re.sub(r'\\(["$`\\])', r"\1", re.sub(r"\\\r?\n", "\n", inside))

    def _substitution(self) -> str:
        """`$(...)` or `$((...))` as it stands, to its closing bracket."""
        depth, end = 0, self.at + 1
        while end < len(self.text):
            depth += (self.text[end] == "(") - (self.text[end] == ")")
            end += 1
            if depth == 0:
                break
        if depth:
            self.unclosed_line = self.unclosed_line or self.line
        inside = self.text[self.at : end]
        self.line += inside.count("\n")
        self.at = end
        return inside


def _follow(script: Script, statement: Statement) -> None:
    script.branches += (statement[0].text == "if") - (statement[0].text == "fi")
    at = 0
    while at < len(statement) and statement[at].text in _PREFIXES:
        at += 1
    while at < len(statement) and (match := _ASSIGNMENT.fullmatch(statement[at].text)):
        name, added, value = match.groups()
        line = statement[at].line
        at += 1
        if value == "(":
            end = next((n for n in range(at, len(statement)) if statement[n].text == ")"), len(statement))
            words, at = resolved(script, statement[at:end]), end + 1
        else:
            words = _split(resolved(script, [Word(value, line, False)]))
        _assign(script, name, words, line, adds=bool(added))
    if at < len(statement):
        script.commands.append(resolved(script, statement[at:]))


def _assign(script: Script, name: str, words: list[Word], line: int, *, adds: bool) -> None:
    before = script.variables.get(name)
    if script.branches:
        script.say("guessed", f"{name} is set within an if, which is not evaluated: taken as if it ran", line)
    elif before is not None and not adds and [word.text for word in before] != [word.text for word in words]:
        script.say("duplicate-name", f"{name} is given more than once: the last one counts", line)
    if adds and before is not None:
        before += words
    else:
        script.variables[name] = words


def _split(words: list[Word]) -> list[Word]:
    """Words parted at white space, each with its own line."""
    parted: list[Word] = []
    for word in words:
        line, at = word.line, 0
        for match in re.finditer(r"\S+", word.text):
            line += word.text.count("\n", at, match.start())
            at = match.start()
            parted.append(Word(match[0], line))
    return parted


def resolved(script: Script, words: list[Word], depth: int = 0) -> list[Word]:
    """Returns the words with references replaced; an unknown one keeps its `$` and is reported once."""
    result: list[Word] = []
    for word in words:
        whole = _REFERENCE.fullmatch(word.text)
        name = whole and (whole["braced"] or whole["plain"])
        if name and name in script.variables and word.split:
            result += script.words_of(name)
            continue
        text = _REFERENCE.sub(lambda match, at=word: _value(script, match, at, depth), word.text)  # type: ignore[misc]
        text = text.replace("\0", "$")
        if text.strip() or not word.split:
            result.append(Word(text, word.line, word.split))
    return result


def _value(script: Script, match: re.Match[str], word: Word, depth: int) -> str:
    if match["sum"] is not None:
        inside = re.sub(r"\b[A-Za-z_]\w*\b", lambda name: "$" + name[0], match["sum"].replace("$", "").strip())
        resolved_text = _REFERENCE.sub(lambda reference: _value(script, reference, word, depth + 1), inside)
        value = _calculated(resolved_text)
        return match[0] if value is None else str(value)
    name = match["braced"] or match["plain"]
    if name in script.variables:
        return "\n".join(variable.text for variable in script.words_of(name))
    if match["default"] is not None and depth < _MAX_DEPTH:
        return _REFERENCE.sub(lambda reference: _value(script, reference, word, depth + 1), match["default"])
    warning = Diagnostic("warning", "unset-variable", f"${name} is not set in this file", f"{script.path}:{word.line}")
    if name not in script.unset:
        script.unset.add(name)
        script.diagnostics.append(warning)
    return match[0]


def _calculated(text: str) -> int | None:
    """Whole numbers with * / + -, from left to right; None where it is more than that."""
    if not _SUM.fullmatch(text) or (re.search(r"[*/]", text) and re.search(r"[+-]", text)):
        return None
    if re.search(r"\b0[0-9]", text):  # a shell reads 010 as 8
        return None
    first, *rest = re.findall(r"[0-9]+|[*+/-]", text)
    value = int(first)
    for sign, number in zip(rest[::2], map(int, rest[1::2]), strict=True):
        if sign == "/" and not number:
            return None
        if abs(value) > MAX_WHOLE:  # a shell counts in 64 bits
            return None
        value = {"*": value * number, "+": value + number, "-": value - number, "/": value // (number or 1)}[sign]
    return value if abs(value) <= MAX_WHOLE else None
