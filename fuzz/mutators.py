"""Mutates bytes and text: flips, cuts, encodings, hostile numbers and words in place of those of a sample.

Every function takes the content and a `random.Random`; equal seeds make equal inputs. `mutate` chooses by the structure
of a file, and hands JSON, YAML, SQLite and program files to `structures`.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final

MAX_BYTES: Final = 64 << 20
"""The size to which lines are repeated."""
_NUMBERS: Final = """
0 -1 1 -0 0.5 -0.001 1e308 -1e308 1e-308 5e-324 1e400 -1e400 1e-400 nan NaN inf -inf Infinity -Infinity
101010101010101010 2147483647 2147483648 4294967296 9223372036854775807 9223372036854775808 18446744073709551616
-9223372036854775809 1,000 1_000 0x10 1e3 1.5.2 +5 .5 5. 1e --1 ٣ １２ 1000000 100000000 1000000000000 1e15 3.7
1e-9 true null
"""
NUMBERS: Final = (*_NUMBERS.split(), "", "1 000", "1" + "0" * 400, "9" * 5000)
"""Numbers that overflow, underflow, are not finite, negative, absurdly large, or written as no format writes them."""

WORDS: Final = (
    *(
        "",
        " ",
        "\t",
        "\x00",
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07",
        "\u202egnp.exe",
        "\u200b",
        "\x85",
        "\x9b2J",
        "\ud7ff",
    ),
    *(
        "{}",
        "{0}",
        "%s",
        "%n",
        "{name!r}",
        "[bold]x[/bold]",
        "[/]",
        "<script>alert(1)</script>",
        "<b>&amp;",
        "]]>",
        "'\"`",
    ),
    *("../../../etc/passwd", "/dev/null", "/dev/zero", "~", "$HOME", "$(id)", "`id`", "C:\\x", "nul", ".", "..", "a/b"),
    *("!!python/object/apply:os.system [id]", "&a [*a]", "*a", "? x", "- - -", "<<: *x", "=cmd|' /C calc'!A0", "None"),
    *(
        "x" * 300,
        "é" * 200,
        "a\nb",
        "a\r\nb",
        "NaN",
        "-",
        "--",
        "-1",
        "0",
        "1e999",
        "tp",
        "dp",
        "all",
        "none",
        "true",
        "\ufeff",
    ),
)
"""Words that a terminal, a format string, a shell, HTML, YAML or a file system would take for something else."""

LONG: Final = (
    "x" * 100_000,
    "-" * 60_000,
    "(" * 20_000,
    "[" * 100_000,
    "a," * 30_000,
    "9" * 100_000,
    " " * 100_000,
    "\\",
)

_NUMBER: Final = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD: Final = re.compile(rb"[A-Za-z_][A-Za-z_0-9]{1,40}")

Mutation = Callable[[bytes, Random], bytes]


def _position(data: bytes, random: Random) -> int:
    return random.randrange(len(data) + 1)


def flip_bits(data: bytes, random: Random) -> bytes:
    """Flips one to eight bits."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def set_bytes(data: bytes, random: Random) -> bytes:
    """Sets one to four bytes to special values."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        if changed:
            changed[random.randrange(len(changed))] = random.choice(b"\x00\xff\x7f\x80\n\r\t \"'\\,:;[]{}()=#<>&%$-0")
    return bytes(changed)


def insert_bytes(data: bytes, random: Random) -> bytes:
    """Inserts a few bytes."""
    at = _position(data, random)
    return (
        data[:at] + random.choice((random.randbytes(random.randint(1, 8)), b"\x00", b"\n\n", b"\\", b'"')) + data[at:]
    )


def truncate(data: bytes, random: Random) -> bytes:
    """Cuts the end or the beginning off."""
    at = _position(data, random)
    return data[:at] if random.random() < 0.8 else data[at:]


def delete_chunk(data: bytes, random: Random) -> bytes:
    """Deletes a part of up to a tenth."""
    at = _position(data, random)
    return data[:at] + data[at + random.randint(1, max(len(data) // 10, 1)) :]


def duplicate_chunk(data: bytes, random: Random) -> bytes:
    """Repeats a part, now and then many times."""
    at = _position(data, random)
    chunk = data[at : at + random.randint(1, max(len(data) // 5, 1))]
    times = random.choice((1, 1, 2, 10, max(20_000 // max(len(chunk), 1), 1)))
    return data[:at] + chunk * times + data[at:]


def swap_chunks(data: bytes, random: Random) -> bytes:
    """Swaps two neighbouring parts."""
    first, second, third = sorted(_position(data, random) for _ in range(3))
    return data[:first] + data[second:third] + data[first:second] + data[third:]


def reencode(data: bytes, random: Random) -> bytes:
    """Writes the text in another encoding, with other line ends, or with a mark at its beginning."""
    text = data.decode("utf-8", "replace")
    return random.choice(
        (
            lambda: b"\xef\xbb\xbf" + data,
            lambda: data.replace(b"\n", b"\r\n"),
            lambda: data.replace(b"\n", b"\r"),
            lambda: text.encode("utf-16"),
            lambda: text.encode("utf-16-le"),
            lambda: text.encode("utf-32"),
            lambda: text.encode("utf-7"),
            lambda: data.replace(b"\n", b" "),
            lambda: data.replace(b" ", b"\xc2\xa0"),
            lambda: data + b"\x00" * 100,
            lambda: data.replace(b"a", "а".encode()),
            lambda: gzip.compress(data, 1, mtime=0),
        )
    )()


def whole_file(data: bytes, random: Random) -> bytes:
    """Replaces the file: nothing, twice itself, blanks, one long line."""
    return random.choice(
        (b"", data + data, b"\n" * 1000, b" ", b"\x00" * 64, b"x" * 100_000, data[::-1], b"{}", b"[]", b"\\")
    )


def change_lines(data: bytes, random: Random) -> bytes:
    """Deletes, repeats, swaps, reverses or joins lines."""
    lines = data.splitlines(keepends=True) or [b""]
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(7)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        times = random.choice((1, 1, 2, 50, 2000))
        lines[at:at] = [lines[at]] * min(times, MAX_BYTES // max(len(lines[at]), 1))
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines.reverse()
    elif kind == 4:
        lines[at] = lines[at].rstrip(b"\r\n")
    elif kind == 5:
        random.shuffle(lines)
    else:
        lines = lines[: at + 1]
    return b"".join(lines)


def change_cells(data: bytes, random: Random) -> bytes:
    """Deletes, repeats, empties or replaces a cell of a line, at whatever separates its cells."""
    lines = data.splitlines(keepends=True) or [b""]
    at = random.randrange(len(lines))
    separators = [mark for mark in (b"\t", b",", b"  ", b" ", b"=", b":", b";") if mark in lines[at]]
    if not separators:
        return data
    separator = random.choice(separators[:2])
    cells = lines[at].split(separator)
    where = random.randrange(len(cells))
    value = random.choice((random.choice(NUMBERS), random.choice(WORDS))).encode("utf-8", "replace")
    cells[where : where + 1] = random.choice(([], [b""], [cells[where]] * 2, [value], [value], [cells[where]] * 200))
    lines[at] = separator.join(cells)
    return b"".join(lines)


def _replace(data: bytes, pattern: re.Pattern[bytes], values: Sequence[str], random: Random) -> bytes:
    places = [match.span() for match in pattern.finditer(data)]
    if not places:
        return data
    chosen = random.sample(places, min(len(places), random.choice((1, 1, 1, 2, 5))))
    for start, end in sorted(chosen, reverse=True):
        data = data[:start] + random.choice(values).encode("utf-8", "replace") + data[end:]
    return data


def change_numbers(data: bytes, random: Random) -> bytes:
    """Replaces numbers by hostile ones, or shifts them by a few orders of magnitude."""
    if random.random() < 0.3:
        return _replace(data, _NUMBER, [f"{random.choice('-123456789')}{10 ** random.randint(0, 12)}"], random)
    return _replace(data, _NUMBER, NUMBERS, random)


def change_words(data: bytes, random: Random) -> bytes:
    """Replaces words by hostile ones, or by other words of the same file."""
    if random.random() < 0.4:
        words = [match.group().decode("ascii") for match in _WORD.finditer(data)]
        return _replace(data, _WORD, words or WORDS, random)
    return _replace(data, _WORD, LONG if random.random() < 0.03 else WORDS, random)


BYTES: Final[tuple[Mutation, ...]] = (
    *(flip_bits, set_bytes, insert_bytes, truncate, delete_chunk, duplicate_chunk, swap_chunks, whole_file),
)
TEXT: Final[tuple[Mutation, ...]] = (
    *(change_numbers, change_numbers, change_numbers, change_words, change_words, change_cells, change_cells),
    *(change_lines, change_lines, reencode, *BYTES),
)
"""Mutations of text; numbers, words and cells come more often than bytes, which most readers refuse at once."""


def mutate_by(mutations: Sequence[Mutation], data: bytes, random: Random) -> bytes:
    """Applies one to four mutations."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        data = random.choice(mutations)(data, random)
    return data


def structure_of(name: str) -> str:
    """Returns the structure of a file by its name: `text`, `json`, `json.gz`, `yaml`, …"""
    for suffix, structure in _STRUCTURES.items():
        if name.endswith(suffix):
            return structure
    return "text"


_STRUCTURES: Final = {
    ".json.gz": "json.gz",
    ".json": "json",
    ".jsonl": "jsonl",
    ".yaml": "yaml",
    ".sqlite": "sqlite",
    ".foretrace": "program",
    ".answer": "program",
    ".pickle": "pickle",
    ".sh": "shell",
    ".toml": "shell",
    ".xml": "xml",
}


def mutate(name: str, data: bytes, random: Random) -> bytes:
    """Returns a mutated file; its name says how it is built."""
    from fuzz.structures import MUTATORS

    structure = structure_of(name)
    if structure in MUTATORS and random.random() < (0.5 if structure in ("shell", "xml") else 0.7):
        with suppress(Exception):  # an input kept for its coverage may not have its structure any more
            return MUTATORS[structure](data, random)
    return mutate_by(BYTES if structure in ("sqlite", "program", "pickle", "json.gz") else TEXT, data, random)
