"""Reads the options of torchtitan from a command line or a TOML; `torchtitan` knows what they mean."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from foretrace.basics.errors import InputError, shortened
from foretrace.workload.launch.arguments import Argument, Arguments, script_arguments
from foretrace.workload.launch.shell_words import Script
from foretrace.workload.launch.torchtitan import CONFIG_FILE, SECTIONS

_MAX_DOTS = 100


def is_torchtitan(script: Script) -> bool:
    """Returns whether the words of a script are options of torchtitan."""
    return any(
        word.text.startswith(tuple(f"--{section}." for section in SECTIONS)) or word.text.startswith("torchtitan.")
        for words in script.commands
        for word in words
    )


def torchtitan_arguments(script: Script) -> Arguments:
    """Returns the options of a script, spelled with `_`; `--compile.no-enable` turns `compile.enable` off."""
    given = script_arguments(script)
    options: dict[str, Argument] = {}
    for name, argument in given.options.items():
        section, dot, key = name.partition(".")
        if not dot:
            options[name] = argument
            continue
        if key.startswith("no-"):
            key, argument = key.removeprefix("no-"), replace(argument, values=("false",))
        options[f"{section}.{key}".replace("-", "_") if name != CONFIG_FILE else name] = argument
    ranks = script.variables.get("NGPU")  # torchtitan/run_train.sh starts that many ranks on one node
    if ranks and "nproc-per-node" not in options:
        options |= {"nproc-per-node": Argument((ranks[0].text,), ranks[0].line), "nnodes": Argument(("1",), 0)}
    return replace(given, options=options, decided=frozenset(options))


def config_file(arguments: Arguments) -> str | None:
    """Returns the TOML that a command line names."""
    return arguments.text(CONFIG_FILE, "") or None


def toml_arguments(text: str, path: str) -> Arguments:
    """Returns the values of a TOML as options, by section and key.

    Raises:
        InputError: The text is not TOML, or a section is not a table.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.partition("=")[0].count(".") > _MAX_DOTS:  # tables within tables take the square of their number
            problem = f"a key has more than {_MAX_DOTS} dots"
            raise InputError("too-deep", problem, where=f"{path}:{number}")
    try:
        tree = tomllib.loads(text.replace("\r\n", "\n"))
    except RecursionError:
        raise InputError("too-deep", "arrays and tables are nested too deep to be read", where=path) from None
    except ValueError as error:
        if not isinstance(error, tomllib.TOMLDecodeError):  # Python's limit on the digits of a whole number
            raise InputError("out-of-range", "a number has thousands of digits", where=path) from None
        place = re.search(r"at line ([0-9]+)", str(error))
        where = f"{path}:{place[1]}" if place else path
        raise InputError("bad-syntax", f"not valid TOML: {shortened(str(error))}", where=where) from None
    lines = _lines(text)
    options = {name: Argument(values, lines.get(name, 0), name) for name, values in _flat(tree) if values is not None}
    if not any(name.startswith(tuple(f"{section}." for section in SECTIONS)) for name in options):
        hint = "expected a configuration of torchtitan: [parallelism], [training], …"
        raise InputError("wrong-format", "this TOML has no section of torchtitan", where=path, hint=hint)
    return Arguments(path, options, prefix="")


def _flat(tree: Mapping[str, object], above: str = "") -> Iterator[tuple[str, tuple[str, ...] | None]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and not above.count("."):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, list):
            yield f"{above}{name}", tuple(map(str, value))
        else:
            yield f"{above}{name}", (str(value).lower() if isinstance(value, bool) else str(value),)


def _lines(text: str) -> dict[str, int]:
    """Returns the line of every key that stands at the beginning of one."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            section = f"{match[1]}."
        elif match := re.match(r"\s*([\w.-]+)\s*=", line):
            lines.setdefault(f"{section}{match[1]}", number)
    return lines
