"""Mutates files by their structure: trees of JSON, YAML and pickle, rows and schemas of SQLite, arrays of programs.

The results are well formed, often with right checksums, so that they reach the code behind the parser.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from fuzz.mutators import NUMBERS, TEXT, WORDS, mutate_by

VALUES: Final = (
    *(None, True, False, 0, -1, 1, 1.5, -2.5, 1e308, 1e-308, 5e-324, 2**31, 2**63, 2**64, 10**30, 10**400),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "1", "-1", "nan", "1e400", [], {}, [[]], [1], {"a": 1}),
    *([1, [2, [3]]], ["x"], [None], {"": None}, 10**12, 0.1, -0.0, 3, 7),
)
"""Values of every type that JSON has, in place of whatever a field should be."""
LARGE: Final = ("9" * 5000, "x" * 20_000, [0] * 1000, [[0] * 100] * 20, {str(number): 0 for number in range(500)})
"""Values that take long to read; they come rarely."""


def any_value(random: Random) -> Any:
    """Returns a value of any type; lists and dictionaries are new ones."""
    value = random.choice(LARGE if random.random() < 0.02 else VALUES)
    return json.loads(json.dumps(value)) if isinstance(value, list | dict) else value


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Lists every container of a tree with each of its keys."""
    places: list[tuple[Any, Any]] = []
    open_: list[Any] = [tree]
    while open_:
        node = open_.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            places.append((node, key))
            open_.append(node[key])
    return places


def _scaled(value: Any, random: Random) -> Any:
    """Returns a number of another size, or of the other sign."""
    factor = random.choice((-1, 0, 1e-12, 1e-3, 1e3, 1e6, 1e12, 2, 10, 0.1))
    return type(value)(value * factor) if isinstance(value, float) or abs(value) < 1e15 else -value


def change_tree(tree: Any, random: Random) -> Any:
    """Changes one to four places of a tree of dictionaries and lists."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        places = _places(tree)
        if not places or random.random() < 0.01:
            return any_value(random)
        node, key = random.choice(places)
        kind = random.randrange(10)
        if kind < 4:
            node[key] = any_value(random)
        elif kind == 4:
            number = isinstance(node[key], int | float) and not isinstance(node[key], bool)
            node[key] = _scaled(node[key], random) if number else random.choice((*WORDS, *NUMBERS))
        elif kind == 5:
            del node[key]
        elif kind == 6:
            other, place = random.choice(places)
            if _depth(node[key]) < 20:
                other[place] = json.loads(json.dumps(node[key]))
        elif kind == 7 and isinstance(node, list):
            node[key:key] = [node[key]] * random.choice((1, 1, 1, 2, 2, 100))
        elif kind == 8 and isinstance(node, dict):
            node[random.choice((*WORDS[:20], str(key).upper(), f"{key} "))] = node.pop(key)
        else:
            deep: Any = node[key]
            for _ in range(random.choice((1, 1, 1, 1, 2, 2, 2, 200))):
                deep = [deep] if random.random() < 0.5 else {"a": deep}
            node[key] = deep
    return tree


def _depth(tree: Any) -> int:
    depth, level = 0, [tree]
    while level and depth < 50:
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        ]
        depth += 1
    return depth


def _dump(tree: Any, random: Random) -> bytes:
    """Writes JSON, now and then with a key that comes twice."""
    text = json.dumps(tree, indent=1 if random.random() < 0.2 else None)
    if random.random() < 0.05 and text.startswith("{") and len(text) > 2:
        text = "{" + text[1:-1] + "," + text[1:]
    return text.encode("utf-8", "surrogatepass")


def change_json(data: bytes, random: Random) -> bytes:
    """Changes the tree of a JSON file."""
    return _dump(change_tree(json.loads(data), random), random)


def change_json_lines(data: bytes, random: Random) -> bytes:
    """Changes one line of a file with a JSON object a line."""
    lines = data.splitlines()
    at = random.randrange(len(lines))
    lines[at] = json.dumps(change_tree(json.loads(lines[at]), random)).encode()
    return b"\n".join(lines) + b"\n"


def change_packed_json(data: bytes, random: Random) -> bytes:
    """Changes the tree or the text of packed JSON; now and then it unpacks to much more."""
    text = gzip.decompress(data)
    text = change_json(text, random) if random.random() < 0.6 else mutate_by(TEXT, text, random)
    if random.random() < 0.02:
        text = text[:-1] + b" " * 50_000_000 + text[-1:]
    packed = gzip.compress(text, 1, mtime=0)
    return packed + random.choice((b"", b"", b"", packed, b"\x00\x00", b"rest"))


def change_yaml(data: bytes, random: Random) -> bytes:
    """Changes the tree of a YAML file and writes it in flow or block style, now and then with an alias or a tag."""
    import yaml

    tree = change_tree(yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), random)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(
        tree, Dumper=dumper, default_flow_style=random.choice((True, False, None)), width=10_000, sort_keys=False
    )
    if random.random() < 0.1:
        text = mutate_by(TEXT, text.encode(), random).decode("utf-8", "replace")
    if random.random() < 0.05:
        text += random.choice(
            ("\n---\nx: 1\n", "\na: &a [1]\nb: *a\n", "\n!!python/name:os.system\n", "\n<<: {a: 1}\n")
        )
    return text.encode("utf-8", "replace")


def change_pickle(data: bytes, random: Random) -> bytes:
    """Changes the tree of a pickle that holds plain values."""
    return pickle.dumps(change_tree(_Plain(io.BytesIO(data)).load(), random), random.choice((0, 2, 4, 5)))


class _Plain(pickle.Unpickler):
    """Reads pickles that name no class: a mutated one must not run anything."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Refuses every class."""
        raise ValueError(f"{module_name}.{global_name}")


SQL_VALUES: Final = (
    None,
    0,
    -1,
    1,
    -5,
    2**31,
    2**62,
    2**63 - 1,
    -(2**63),
    1.5,
    1e308,
    float("inf"),
    "",
    "x",
    b"\xff\x00",
    "1e5",
)


def change_sqlite(data: bytes, random: Random) -> bytes:
    """Changes rows, columns and tables of a database."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        Path(file.name).write_bytes(data)
        connection = sqlite3.connect(file.name, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=OFF")
            connection.execute("PRAGMA synchronous=OFF")
            for _ in range(random.choice((1, 1, 1, 2, 3))):
                _change_table(connection, random)
        except sqlite3.Error:
            pass  # what was changed before stays changed
        finally:
            connection.close()
        return Path(file.name).read_bytes()


def _change_table(connection: sqlite3.Connection, random: Random) -> None:
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")]
    table = random.choice(tables)
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info([{table}])")]
    column = random.choice(columns)
    rows = [row[0] for row in connection.execute(f"SELECT rowid FROM [{table}]")]
    kind = random.randrange(10)
    if kind < 5 and rows:
        values = (random.choice(SQL_VALUES), random.choice(rows))
        connection.execute(f"UPDATE [{table}] SET [{column}] = ? WHERE rowid = ?", values)
    elif kind == 5 and rows:
        connection.execute(f"UPDATE [{table}] SET [{column}] = [{column}] * ?", (random.choice((-1, 0, 1000, 1e12)),))
    elif kind == 6 and rows:
        connection.execute(f"DELETE FROM [{table}] WHERE rowid = ?", (random.choice(rows),))
    elif kind == 7:
        connection.execute(f"INSERT INTO [{table}] SELECT * FROM [{table}]")
    elif kind == 8:
        connection.execute(f"ALTER TABLE [{table}] DROP COLUMN [{column}]")
    else:
        statement = random.choice(
            (
                f"DROP TABLE [{table}]",
                f"ALTER TABLE [{table}] RENAME COLUMN [{column}] TO [other]",
                f"ALTER TABLE [{table}] RENAME TO [renamed]",
                f"DELETE FROM [{table}]",
                f"CREATE VIEW [v] AS SELECT * FROM [{table}]",
                f"UPDATE [{table}] SET [{column}] = NULL",
            )
        )
        connection.execute(statement)


ARRAY_VALUES: Final = (0, -1, 1, 2, 3, 7, 100, 255, 2**15, 2**31 - 1, -(2**31), 2**62, 1e9, 1e-300, 1e300, -1.5)


def change_program(data: bytes, random: Random) -> bytes:
    """Changes the header or arrays of a program file, which is written again with right checksums."""
    import numpy as np

    from foretrace.program import sections

    header, arrays = _program_parts(data)
    with tempfile.NamedTemporaryFile(suffix=".foretrace") as file:
        for _ in range(random.choice((1, 1, 2, 3))):
            if random.random() < 0.4:
                header = json.dumps(change_tree(json.loads(header), random)).encode()
                continue
            name = random.choice([name for name, values in arrays.items() if len(values)] or list(arrays))
            values = arrays[name].copy()
            arrays[name] = values
            kind = random.randrange(8)
            if kind < 5 and len(values):
                with np.errstate(all="ignore"):
                    near = [values[random.randrange(len(values))] + step for step in (-1, 1)]
                    value = random.choice((*ARRAY_VALUES, *near))
                    if values.dtype.kind == "f":
                        value = random.choice((value, np.nan, np.inf, -np.inf))
                    values[random.randrange(len(values))] = np.array(value).astype(values.dtype)
            elif kind == 5:
                arrays[name] = values[: random.randrange(len(values) + 1)]
            elif kind == 6:
                arrays[name] = np.concatenate([values, values])
            else:
                arrays[name] = values[::-1].copy()
        sections.write_file(Path(file.name), header, arrays)
        return Path(file.name).read_bytes()


def _program_parts(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """Returns the header and every section of a program file, whichever it has."""
    from foretrace.program.file import SECTIONS, TIMELINE_SECTIONS
    from foretrace.program.sections import read_file

    with tempfile.NamedTemporaryFile(suffix=".foretrace") as file:
        Path(file.name).write_bytes(data)
        try:
            return read_file(file.name, SECTIONS)
        except Exception:
            try:
                return read_file(file.name, SECTIONS | TIMELINE_SECTIONS)
            except Exception as error:
                raise ValueError("this is not a program file") from error


SHELL: Final = (
    *(
        "\\",
        "\\\n",
        "\\\r",
        "$",
        "${",
        "$((",
        "$(",
        "`",
        "'",
        '"',
        "(",
        ")",
        "&",
        "|",
        ";",
        "#",
        "<<EOF\n",
        "$v ",
        "${v}",
    ),
    *(
        "${v:-$w}",
        "${v:-${v}}",
        "${v[@]}",
        "${#v}",
        "$((1+",
        "$((9**9**9))",
        "$((1/0))",
        "$((8*$N))",
        "{1..99999999}",
        "v=$v$v\n",
    ),
    *(
        "a=x\n" + "a=$a$a\n" * 40,
        "$v " * 3000,
        "set --\n",
        "if x; then\n",
        "\n)\n",
        "X=(\n",
        "$'\\x41'",
        "--",
        "=",
        "+=",
        "@x",
    ),
    *(
        '--moe-layer-freq "([0]*99999999)" ',
        '--moe-layer-freq "([1]+[0])*3" ',
        "--num-layers $((4*1000000)) ",
        "--tp-comm-overlap ",
    ),
    *(
        "--pipeline-model-parallel-layout 't*999999999|' ",
        "--micro-batch-size 0 ",
        "--world-size=-1 ",
        "model.x={a:[1,{}]} ",
        "[[x]]\n",
    ),
)
XML: Final = (
    *(
        "<",
        ">",
        "</graph>",
        "<graph>",
        "&lt;",
        "&x;",
        "&#0;",
        "&#x1b;",
        "<![CDATA[x]]>",
        "<!-- x -->",
        "<?x y?>",
        '<gpu dev="0"/>' * 500,
    ),
    *(
        '<!DOCTYPE x [<!ENTITY x "y">]>',
        "<a>" * 300,
        "<a " + " ".join(f'b{i}="1"' for i in range(300)) + "/>",
        '<net dev="-1"/>',
    ),
)
"""Fragments of shell scripts and of XML that change how the rest is read, or grow when they are expanded."""


def _with_fragments(fragments: tuple[str, ...]) -> Callable[[bytes, Random], bytes]:
    def change(data: bytes, random: Random) -> bytes:
        for _ in range(random.choice((1, 1, 2, 3))):
            at = random.choice([0, len(data), *(place for place, byte in enumerate(data) if byte in b" \n\"'=<>")])
            data = data[:at] + random.choice(fragments).encode() + data[at + random.choice((0, 0, 1, 5)) :]
        return mutate_by(TEXT, data, random) if random.random() < 0.3 else data

    return change


MUTATORS: Final[dict[str, Callable[[bytes, Random], bytes]]] = {
    "json": change_json,
    "jsonl": change_json_lines,
    "json.gz": change_packed_json,
    "yaml": change_yaml,
    "pickle": change_pickle,
    "sqlite": change_sqlite,
    "program": change_program,
    "shell": _with_fragments(SHELL),
    "xml": _with_fragments(XML),
}
"""The mutator of each structure; files without one are mutated as text."""
