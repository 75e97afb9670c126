"""Small YAML and JSON documents that people write: read with their lines, so that every error can name one.

A `Document` is the file an error speaks of; `Fields` are those of one mapping in it, each checked when it is taken.
Nothing is constructed from YAML but text: values get their meaning from `foretrace.basics.units`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from foretrace.basics.errors import Diagnostic, InputError, did_you_mean, of_field, shortened
from foretrace.basics.files import InputFile, read_up_to, unreadable
from foretrace.basics.limits import limited, too_large

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1_000_000
"""The largest document: what a person writes is a thousand times smaller."""

MAX_NODES = 300_000
"""Values of a document, those that aliases repeat included: as many as a megabyte can write out."""

Number = TypeVar("Number", int, float)
NumberOut = TypeVar("NumberOut", int, float, covariant=True)


class Parser(Protocol[NumberOut]):
    """A `parse_*` of `foretrace.basics.units`."""

    def __call__(self, value: str | float, *, where: str | None = None) -> NumberOut:
        """The quantity in SI units."""
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """A file as its errors show it: its path, what it is ("placement"), what it should look like, an example line."""

    path: str
    noun: str
    expected: str
    example: str
    shipped: bool = False
    """Whether the file came with the package, so that the fast reader is safe."""
    source: InputFile | None = field(default=None, compare=False, repr=False)
    """The file to read the text from, where it may be open already; else it is opened by its path."""
    remarks: list[Diagnostic] = field(default_factory=list, compare=False, repr=False)
    """Collects what is odd about values while they are read."""

    def read(self, max_bytes: int = MAX_BYTES) -> str:
        """The text of the file."""
        try:
            with (self.source or InputFile(self.path)).take() as file:
                data = read_up_to(file, limited(max_bytes) + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                unreadable(error),
                f"cannot read the {self.noun}: {reason}",
                where=self.path,
                hint="expected a text file",
            ) from None
        if len(data) > limited(max_bytes):
            raise too_large(f"the {self.noun} is larger than {limited(max_bytes) / 1e6:g} MB", self.path, self.expected)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise InputError("not-text", f"the {self.noun} is not text", where=self.path, hint=self.expected)
        if not text.strip():
            raise InputError("empty-file", f"the {self.noun} is empty", where=self.path, hint=self.expected)
        return text

    def compose(self, text: str) -> yaml.Node:
        """The YAML nodes of the text, which know their lines; JSON is read as the YAML that it is."""
        import yaml

        if not self.shipped:
            self._check_length(text)
        source = text
        if text.lstrip()[:1] in ("{", "[") and self._is_json(text):
            # A raw tab in JSON is always white space, which YAML does not allow everywhere.
            source = text.replace("\t", " ")
        # The loader in C is ten times as fast, but dies of deep nesting, where the one in Python raises.
        fast = self.shipped and hasattr(yaml, "CSafeLoader")
        loader = yaml.CSafeLoader if fast else yaml.SafeLoader
        hint = f"expected e.g. {self.example}"
        try:
            node: yaml.Node | None = yaml.compose(source, Loader=loader)
        except yaml.MarkedYAMLError as error:
            where = f"{self.path}:{error.problem_mark.line + 1}" if error.problem_mark else self.path
            raise InputError("bad-syntax", f"not valid YAML: {error.problem}", where=where, hint=hint) from None
        except yaml.reader.ReaderError as error:
            where = f"{self.path}:{source.count(chr(10), 0, error.position) + 1}"
            raise InputError(
                "bad-syntax", "not valid YAML: a character that text does not have", where=where, hint=hint
            ) from None
        except RecursionError:
            raise InputError(
                "too-deep", "lists and mappings are nested too deep to be read", where=self.path, hint=hint
            ) from None
        except yaml.YAMLError:
            raise InputError("bad-syntax", "not valid YAML", where=self.path, hint=hint) from None
        if node is None:
            raise InputError("empty-file", f"the {self.noun} is empty", where=self.path, hint=self.expected)
        if not self.shipped:
            self._check_tree(node)
        return node

    def _check_length(self, text: str) -> None:
        """Raises an error where the text writes out more values than any document has: composing them takes long."""
        if max(map(text.count, (",", "- ", ": "))) > limited(MAX_NODES):
            raise too_large(f"the {self.noun} writes out more than {limited(MAX_NODES):,} values", self.path)

    def _check_tree(self, root: yaml.Node) -> None:
        """Raises an error where aliases make a node hold itself, or stand for more nodes than any document has."""
        import yaml

        sizes: dict[int, int] = {}  # nodes below each, 0 while they are counted
        stack: list[tuple[yaml.Node, list[yaml.Node] | None]] = [(root, None)]
        while stack:
            node, below = stack.pop()
            if below is not None:
                sizes[id(node)] = total = 1 + sum(sizes[id(child)] for child in below)
                if total > limited(MAX_NODES):
                    raise too_large(
                        f"the {self.noun} stands for more than {limited(MAX_NODES):,} values", self.where(node)
                    )
            elif sizes.get(id(node)) == 0:
                raise InputError(
                    "bad-syntax", "an alias stands for what it is part of", where=self.where(node), hint=self.expected
                )
            elif id(node) not in sizes:
                children = list(node.value) if isinstance(node, yaml.SequenceNode) else []
                if isinstance(node, yaml.MappingNode):
                    children = [part for pair in node.value for part in pair]
                sizes[id(node)] = 0 if children else 1
                if children:
                    stack.append((node, children))
                    stack += [(child, None) for child in children]

    def where(self, node: yaml.Node) -> str:
        """The file and line of a node."""
        return f"{self.path}:{node.start_mark.line + 1}"

    def wrong(self, node: yaml.Node, expected: str) -> InputError:
        """The error for a node that is something else than expected."""
        return InputError(
            "bad-value", f"expected {expected}", where=self.where(node), hint=f"for example {self.example}"
        )

    def entries(self, node: yaml.Node, expected: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """The key and value nodes of a mapping by name, each name once."""
        import yaml

        if not isinstance(node, yaml.MappingNode):
            raise self.wrong(node, expected)
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = self.text(key, "a field name")
            is_blank = isinstance(value, yaml.ScalarNode) and value.value == "" and value.style is None
            if node.flow_style and name[:1].isdecimal() and is_blank:  # the 000 of {gbs: 1,000}
                problem = f'field "{shortened(name)}" is not known: a comma separates fields within {{…}}'
                hint = "write numbers there without commas: 1000"
                raise InputError("unknown-field", problem, where=self.where(key), hint=hint)
            if name in entries:
                raise InputError(
                    "duplicate-name",
                    f"field {shortened(name)} is given twice",
                    where=self.where(key),
                    hint="give it once",
                )
            entries[name] = (key, value)
        return entries

    def fields(
        self, node: yaml.Node, known: tuple[str, ...], required: Iterable[str] | None = None, expected: str = ""
    ) -> Fields:
        """The fields of a mapping: known ones only, and all that are required (without saying which: all known)."""
        needed = known if required is None else tuple(required)
        entries = self.entries(node, expected or f"a mapping with {' and '.join(needed)}")
        for name, (key, _) in entries.items():
            if name not in known:
                raise InputError(
                    "unknown-field",
                    f'field "{shortened(name)}" is not known{did_you_mean(name, known)}',
                    where=self.where(key),
                    hint=f"known: {' '.join(known)}",
                )
        for name in needed:
            if name not in entries:
                raise InputError(
                    "missing-field",
                    f"field {name} is missing",
                    where=self.where(node),
                    hint=f"expected e.g. {self.example}",
                )
        return Fields(self, node, {name: value for name, (_, value) in entries.items()})

    def items(self, node: yaml.Node, expected: str) -> list[yaml.Node]:
        """The nodes of a list that is not empty."""
        import yaml

        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise self.wrong(node, expected)
        items: list[yaml.Node] = node.value
        return items

    def text(self, node: yaml.Node, expected: str) -> str:
        """The text of a node, which is neither empty nor a list or mapping."""
        import yaml

        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self.wrong(node, expected)
        text = str(node.value)
        if not text.isascii():
            # JSON writes characters beyond the first 65,536 as two escapes, which the YAML reader leaves apart.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if not " ".join(text.split()).isprintable():
            problem = f"{expected} holds a character that cannot be shown"
            raise InputError("bad-value", problem, where=self.where(node), hint=f"for example {self.example}")
        return text

    def _is_json(self, text: str) -> bool:
        """Whether the text is JSON; a file that is named so must be."""
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            if Path(self.path).suffix.lower() != ".json":
                return False
            where = f"{self.path}:{error.lineno}"
            raise InputError("bad-syntax", f"not valid JSON: {error.msg}", where=where, hint=self.expected) from None
        except (RecursionError, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one mapping of a document."""

    document: Document
    node: yaml.Node
    values: dict[str, yaml.Node]

    def __contains__(self, name: str) -> bool:
        """Whether the mapping has the field."""
        return name in self.values

    def __getitem__(self, name: str) -> yaml.Node:
        """The value of a field, as a node."""
        return self.values[name]

    def where(self, name: str) -> str:
        """The file and line of a field's value, or of the mapping that does not have it."""
        return self.document.where(self.values.get(name, self.node))

    def text(self, name: str, default: str) -> str:
        """A line of text."""
        if name not in self:
            return default
        return " ".join(self.document.text(self[name], f"{name}: text").split())

    def texts(self, name: str) -> tuple[str, ...]:
        """Lines of text: a list of them, or one alone."""
        import yaml

        if name not in self:
            return ()
        node = self[name]
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        return tuple(" ".join(self.document.text(node, f"{name}: text").split()) for node in nodes)

    def flag(self, name: str, default: bool) -> bool:
        """Yes or no."""
        if name not in self:
            return default
        text = self.document.text(self[name], f"{name}: yes or no").lower()
        if text not in ("yes", "true", "on", "no", "false", "off"):
            raise InputError(
                "bad-value",
                f'{name} "{shortened(text)}" is neither yes nor no',
                where=self.where(name),
                hint="write yes or no",
            )
        return text in ("yes", "true", "on")

    def number(
        self, name: str, parse: Parser[Number], least: Number, most: Number, show: Callable[[Number], str]
    ) -> Number:
        """A quantity within what can be meant; `show` says the bounds as a person would."""
        text, bounds = self.document.text(self[name], f"{name}: a number"), f"expected {show(least)} to {show(most)}"
        try:
            with of_field(name):
                value = parse(text, where=self.where(name))
        except InputError as error:
            if error.code != "out-of-range":
                raise
            raise InputError(error.code, error.message, where=error.where, hint=bounds) from None
        if not least <= value <= most:
            given, meant = shortened(text.strip()), show(value)
            amount = given if given == meant.replace(",", "") else f"{given} is {meant}, which"
            raise InputError(
                "out-of-range",
                f"{name} {amount} cannot be meant",
                where=self.where(name),
                hint=bounds,
            )
        return value


@dataclass(frozen=True, slots=True)
class Preset:
    """An entry of a list that came with the package, unread but for its names: a job needs one of many."""

    document: Document
    name: str
    text: str
    aliases: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and what else it is called."""
        return self.name, *self.aliases

    def node(self) -> yaml.Node:
        """Its mapping."""
        return self.document.entries(self.document.compose(self.text), "a mapping")[self.name][1]


def presets_of(document: Document) -> dict[str, Preset]:
    """The entries of a list that came with the package, by name, in the order of the file."""
    text = document.read()
    starts = [*re.finditer(r"^([a-z0-9.-]+):$", text, re.MULTILINE)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    presets = {}
    for start, end in zip(starts, ends, strict=True):
        entry = text[start.start() : end]
        listed = re.search(r"^  aliases: \[(.*)\]$", entry, re.MULTILINE)
        aliases = tuple(listed[1].split(", ")) if listed else ()
        # Empty lines in place of what stands before keep the numbers of lines true.
        own = "\n" * text.count("\n", 0, start.start()) + entry
        presets[start[1]] = Preset(document, start[1], own, aliases)
    return presets
