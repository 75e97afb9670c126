"""Reads the fields of Hugging Face's `config.json` with their lines; `foretrace.models.from_hf` knows their meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.basics.documents import Document
from foretrace.basics.errors import InputError, of_field
from foretrace.basics.files import AnyFile, InputFile, given_path, input_file
from foretrace.basics.records import refuse_printed_answer
from foretrace.basics.units import parse_whole

if TYPE_CHECKING:
    import yaml

_EXPECTED = "expected the config.json of a language model, as Hugging Face writes it"
_EXAMPLE = '{"model_type": "llama", "hidden_size": 4096, …}'
_MAX_WIDTH = 10**7
"""Of a width; a context may be longer."""


_FIELDS = (b'"model_type"', b'"num_hidden_layers"', b'"architectures"')


def begins_as_configuration(head: bytes) -> bool:
    """Returns whether the first bytes of a file hold a field that only the configuration of a model has."""
    return any(field in head for field in _FIELDS)


@dataclass(frozen=True, slots=True)
class HfConfig:
    """The fields of a configuration, each checked when it is taken; one that is null counts as absent."""

    document: Document
    node: yaml.Node
    fields: dict[str, yaml.Node]
    model_type: str
    name: str
    """What the file says it is called (`_name_or_path`); empty where it does not."""

    def __contains__(self, field: str) -> bool:
        """Whether the field is given and not null."""
        return field in self.fields

    def where(self, field: str) -> str:
        """The file and line of a field, or of what does not have it."""
        return self.document.where(self.fields.get(field, self.node))

    def count(self, *names: str, default: int | None = None, least: int = 1, most: int = _MAX_WIDTH) -> int:
        """A whole number under the first of the names that is given; without a default it must be."""
        field = next((name for name in names if name in self), None)
        if field is None:
            if default is None:
                known = f" (or {' or '.join(names[1:])})" if len(names) > 1 else ""
                raise InputError(
                    "missing-field",
                    f"field {names[0]} is missing{known}",
                    where=self.where(names[0]),
                    hint=f"a configuration of type {self.model_type} has it",
                )
            return default
        text = self.document.text(self.fields[field], f"{field}: a whole number")
        with of_field(field):
            value = parse_whole(text, where=self.where(field))
        if not least <= value <= most:
            hint = f"expected {least:,} to {most:,}"
            raise InputError("out-of-range", f"{field} {value:,} cannot be meant", where=self.where(field), hint=hint)
        return value

    def flag(self, field: str, default: bool) -> bool:
        """True or false."""
        if field not in self:
            return default
        text = self.document.text(self.fields[field], f"{field}: true or false").lower()
        if text not in ("true", "false"):
            raise InputError("bad-value", f'{field} "{text}" is neither true nor false', where=self.where(field))
        return text == "true"

    def text(self, field: str, default: str) -> str:
        """A word."""
        return self.document.text(self.fields[field], f"{field}: text") if field in self else default

    def texts(self, field: str) -> list[str]:
        """A list of words or numbers; empty where it is absent."""
        import yaml

        if field not in self:
            return []
        node = self.fields[field]
        if not isinstance(node, yaml.SequenceNode):
            raise self.document.wrong(node, f"{field}: a list")
        return [self.document.text(item, f"{field}: text") for item in node.value]

    def inner(self, field: str) -> HfConfig | None:
        """A configuration within this one, such as `text_config`."""
        import yaml

        node = self.fields.get(field)
        if not isinstance(node, yaml.MappingNode):
            return None
        return _config(self.document, node, self.model_type, self.name)

    def given(self, names: Sequence[str]) -> list[str]:
        """Which of the names are given, and neither false, zero nor empty."""
        import yaml

        def says_something(node: yaml.Node) -> bool:
            return not isinstance(node, yaml.ScalarNode) or node.value not in ("false", "0", "0.0", "", "1.0")

        return [name for name in names if name in self and says_something(self.fields[name])]


def read_hf_config(path: AnyFile) -> HfConfig:
    """Reads the configuration in a file, or in the `config.json` of a folder."""
    file = InputFile(Path(path) / "config.json") if given_path(path).is_folder else input_file(path)
    document = Document(str(file), "model configuration", _EXPECTED, _EXAMPLE, source=file)
    return _config(document, document.compose(document.read()), "", "")


def _config(document: Document, node: yaml.Node, model_type: str, name: str) -> HfConfig:
    import yaml

    fields = {
        key: value
        for key, (_, value) in document.entries(node, "an object").items()
        if not (isinstance(value, yaml.ScalarNode) and value.style is None and value.value in ("null", "~", ""))
    }
    config = HfConfig(document, node, fields, model_type, name)
    model_type = config.text("model_type", model_type)
    if not model_type:
        refuse_printed_answer({"schema": config.text("schema", "")}, document.path)
        raise InputError("missing-field", "field model_type is missing", where=document.where(node), hint=_EXPECTED)
    called = config.text("_name_or_path", "").rstrip("/").rpartition("/")[2]
    return HfConfig(document, node, fields, model_type, called if len(called.strip(".")) > 1 else name)
