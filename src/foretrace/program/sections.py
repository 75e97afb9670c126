"""A container of named columns, written in frames that are checked one by one.

    magic (12 bytes) · format version · header · frame · frame · … · end

The header is text of the caller's choosing, deflated. A frame holds at most `FRAME_ROWS` rows of one section:
its name, dtype, coding, number of rows, length and checksum, then its bytes. A section is one frame or more,
all full but the last. The end counts the frames, so that a file cut short is always noticed; every byte is
under a checksum or compared, so that a damaged one is too. Numbers are little-endian.

Frames are coded whichever way is smallest: one value for all rows, the values as they are, the differences
between neighbours, a table of the distinct values, or whole multiples of a power of ten. All but the first are
laid out by significance (all lowest bytes, then all second-lowest, …): deflate likes long runs of like bytes.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.errors import InputError, shown
from foretrace.basics.files import AnyFile, input_file, may_open, unreadable
from foretrace.basics.limits import limited, too_large
from foretrace.basics.outputs import write_whole

MAGIC: Final = b"\x93FORETRACE\r\n"
VERSION: Final = 1
FRAME_ROWS: Final = 1 << 18

Column = NDArray[Any]
"""A one-dimensional array of whole numbers or of float64."""

_HEADER = struct.Struct("<III")
_FRAME = struct.Struct("<3scII")
_NUMBER = struct.Struct("<I")
_MAX_BYTES_PER_ROW = 24
MAX_HEADER_BYTES: Final = 32 << 20
"""Names and small tables; the largest of real programs have a few MiB."""
MAX_COLUMN_BYTES: Final = 512 << 20
"""All columns together: seven million ops that are written out. A frame of 50 bytes can hold 2 MiB."""
_POWERS_OF_TEN = (0, 3, 6, 9, 12)
"""Whole bytes and flops; milliseconds, microseconds, nanoseconds and picoseconds in seconds."""
_LARGEST_WHOLE = 2.0**50
_NAN_BITS = np.array(np.nan).view(np.uint64)
_REWRITE = "write or copy the file again"


def write_file(path: Path, header: bytes, sections: Mapping[str, Column]) -> None:
    """Writes the file in one go: whoever opens `path` sees the old content or all of the new one."""
    write_whole(path, _parts(header, sections), "program")


def read_file(path: AnyFile, dtypes: Mapping[str, np.dtype[Any]]) -> tuple[bytes, dict[str, Column]]:
    """The header and the sections, which must be exactly those named, each of its dtype."""
    hint = "give the name of a program file, such as job.foretrace"
    try:
        file = input_file(path)
        if may_open(file.path) and file.path.exists() and not file.path.is_file():
            raise InputError(
                "folder-instead-of-file", "this is a folder or a device, not a file", where=str(path), hint=hint
            )
        with file.take() as stream:
            reader = _Reader(stream, os.fstat(stream.fileno()).st_size, str(path))
            return reader.header(), reader.sections(dtypes)
    except OSError as error:
        raise InputError(
            unreadable(error), f"the program cannot be read: {error.strerror}", where=str(path), hint=hint
        ) from error


def _parts(header: bytes, sections: Mapping[str, Column]) -> Iterator[bytes]:
    packed = _deflate(header)
    yield MAGIC + _NUMBER.pack(VERSION)
    yield _HEADER.pack(len(header), len(packed), zlib.crc32(packed)) + packed
    frames = 0
    for name, values in sections.items():
        for first in range(0, max(len(values), 1), FRAME_ROWS):
            yield _frame(name, values[first : first + FRAME_ROWS])
            frames += 1
    yield _end(frames)


def _frame(name: str, values: Column) -> bytes:
    coding, payload = _encode(values)
    title = bytes([len(name)]) + name.encode("ascii")
    dtype = values.dtype.newbyteorder("<").str.encode("ascii")
    head = title + _FRAME.pack(dtype, coding, len(values), len(payload))
    return head + _NUMBER.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def _end(frames: int) -> bytes:
    """An empty name, where a frame would have one, and the number of frames."""
    head = b"\0" + _NUMBER.pack(frames)
    return head + _NUMBER.pack(zlib.crc32(head))


class _Reader:
    """Takes a file apart from its first byte to its last; errors name the byte at which the part begins."""

    def __init__(self, stream: BinaryIO, size: int, path: str) -> None:
        self.stream = stream
        self.size = size
        self.path = path
        self.begin = 0
        self.at = 0

    def fail(self, code: str, message: str, hint: str = _REWRITE) -> NoReturn:
        raise InputError(code, message, where=f"{self.path}, byte {self.begin}", hint=hint)

    def take(self, count: int, what: str) -> bytes:
        left = self.size - self.at
        data = self.stream.read(min(count, left))
        if len(data) < count:
            self.fail("truncated-file", f"the file is cut short: {what} needs {count} bytes, {len(data)} are left")
        self.at += count
        return data

    def number(self, what: str) -> int:
        number: int = _NUMBER.unpack(self.take(_NUMBER.size, what))[0]
        return number

    def header(self) -> bytes:
        self.check_magic()
        self.begin = self.at
        version = self.number("the format version")
        if version > VERSION:
            self.fail(
                "unknown-version",
                f"written by a newer Foretrace (format {version}); this one reads up to {VERSION}",
                "upgrade Foretrace",
            )
        if version < 1:
            self.fail("unknown-version", f"there is no format {version}")
        self.begin = self.at
        length, packed_length, crc = _HEADER.unpack(self.take(_HEADER.size, "the header"))
        packed = self.take(packed_length, "the header")
        if zlib.crc32(packed) != crc:
            self.fail("damaged-file", "the header is damaged: its checksum is wrong")
        if length > limited(MAX_HEADER_BYTES):
            raise too_large(f"the header claims {length:,} bytes", self.path)
        header = _inflate(packed, length)
        if header is None or len(header) != length:
            self.fail("damaged-file", f"the header does not hold the {length} bytes it claims")
        return header

    def check_magic(self) -> None:
        if not self.size:
            self.fail("empty-file", "the file is empty", "expected a program file written by Foretrace")
        start = self.stream.read(len(MAGIC))
        if not start.startswith(MAGIC[: max(len(start), 1)]):
            packed = start.startswith(b"\x1f\x8b")
            self.fail(
                "wrong-format",
                "this is not a Foretrace program file",
                "it is gzipped: unpack it first" if packed else "expected a file written by Foretrace",
            )
        if start != MAGIC:
            self.fail("truncated-file", "the file is cut short within its first bytes")
        self.at = len(MAGIC)

    def sections(self, dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Column]:
        parts: dict[str, list[Column]] = {}
        frames, latest, left = 0, "", limited(MAX_COLUMN_BYTES)
        while name_length := self.next_part():
            name, values = self.frame(name_length, dtypes)
            if name in parts and (name != latest or len(parts[name][-1]) < FRAME_ROWS):
                self.fail("duplicate-name", f'section "{name}" comes twice')
            left -= values.nbytes
            if left < 0:
                raise too_large(f"the columns have more than {limited(MAX_COLUMN_BYTES):,} bytes", self.path)
            parts.setdefault(name, []).append(values)
            frames, latest = frames + 1, name
        self.check_end(frames)
        for name in dtypes:
            if name not in parts:
                self.fail("missing-field", f'section "{name}" is missing')
        return {name: np.concatenate(parts[name]) if len(parts[name]) > 1 else parts[name][0] for name in dtypes}

    def next_part(self) -> int:
        self.begin = self.at
        return self.take(1, "the next frame")[0]

    def frame(self, name_length: int, dtypes: Mapping[str, np.dtype[Any]]) -> tuple[str, Column]:
        title = self.take(name_length, "a frame's name")
        fields = self.take(_FRAME.size, "a frame's fields")
        code, coding, rows, length = _FRAME.unpack(fields)
        crc = self.number("a frame's checksum")
        if length > (FRAME_ROWS + 1) * _MAX_BYTES_PER_ROW:
            self.fail("damaged-file", f"a frame claims {length} bytes, more than any frame has")
        name = shown(title.decode("ascii", "replace"))
        payload = self.take(length, f'section "{name}"')
        head = bytes([name_length]) + title + fields
        if zlib.crc32(payload, zlib.crc32(head)) != crc:
            self.fail("damaged-file", f'section "{name}" is damaged: its checksum is wrong')
        if name not in dtypes:
            self.fail("unknown-field", f'there is no section "{name}"', f"known: {', '.join(dtypes)}")
        dtype = dtypes[name].newbyteorder("<")
        if code != dtype.str.encode("ascii"):
            self.fail(
                "bad-value", f'section "{name}" has dtype {code.decode("ascii", "replace")}', f"expected {dtype.str}"
            )
        if rows > FRAME_ROWS:
            self.fail(
                "damaged-file", f'section "{name}": a frame claims {rows} rows', f"a frame has at most {FRAME_ROWS}"
            )
        values = _decode(coding, payload, dtype, rows)
        if values is None:
            self.fail("damaged-file", f'section "{name}" does not hold the {rows} rows it claims')
        return name, values.astype(dtypes[name], copy=False)

    def check_end(self, frames: int) -> None:
        count, crc = self.number("the end"), self.number("the end")
        if zlib.crc32(b"\0" + _NUMBER.pack(count)) != crc:
            self.fail("damaged-file", "the end is damaged: its checksum is wrong")
        if count != frames:
            self.fail("damaged-file", f"{frames} frames are in the file, {count} were written")
        if self.at != self.size:
            self.begin = self.at
            self.fail("damaged-file", f"{self.size - self.at} bytes follow the end of the program")


@dataclass(frozen=True, slots=True)
class _Coding:
    """A column as bytes, None where this way does not apply, and back, None where the bytes are wrong."""

    encode: Callable[[Column], bytes | None]
    decode: Callable[[bytes, np.dtype[Any], int], Column | None]


def _encode(values: Column) -> tuple[bytes, bytes]:
    """The coding that comes out smallest, and the bytes."""
    values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    bits = values.view(_unsigned(values.dtype))
    if not len(bits) or (bits == bits[0]).all():
        return b"c", values[:1].tobytes()
    coded = ((name, coding.encode(values)) for name, coding in _CODINGS.items())
    packed = [(name, _deflate(data)) for name, data in coded if data is not None]
    return min(packed, key=lambda item: len(item[1]))


def _decode(coding: bytes, payload: bytes, dtype: np.dtype[Any], rows: int) -> Column | None:
    if coding == b"c":
        if len(payload) != (dtype.itemsize if rows else 0):
            return None
        return np.frombuffer(payload, dtype).repeat(rows)
    if coding not in _CODINGS or not rows:
        return None
    data = _inflate(payload, rows * _MAX_BYTES_PER_ROW)
    return None if data is None else _CODINGS[coding].decode(data, dtype, rows)


def _encode_plain(values: Column) -> bytes:
    return _by_significance(values)


def _decode_plain(data: bytes, dtype: np.dtype[Any], rows: int) -> Column | None:
    if len(data) != rows * dtype.itemsize:
        return None
    planes = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, rows)
    return np.array(planes.T, order="C").view(dtype).reshape(rows)


def _encode_delta(values: Column) -> bytes | None:
    if values.dtype.kind == "f":
        return None
    bits = values.view(_unsigned(values.dtype))
    delta = bits.copy()
    delta[1:] -= bits[:-1]
    return _by_significance(_zigzag(delta))


def _decode_delta(data: bytes, dtype: np.dtype[Any], rows: int) -> Column | None:
    folded = _decode_plain(data, _unsigned(dtype), rows)
    if folded is None:
        return None
    return np.cumsum(_unzigzag(folded), dtype=folded.dtype).view(dtype)


def _encode_distinct(values: Column) -> bytes | None:
    if values.dtype.itemsize == 1:
        return None
    distinct, index = np.unique(values.view(_unsigned(values.dtype)), return_inverse=True)
    if len(distinct) > min(1 << 16, len(values) // 2):
        return None
    index = index.astype(_index_dtype(len(distinct)))
    return _NUMBER.pack(len(distinct)) + _by_significance(distinct) + _by_significance(index)


def _decode_distinct(data: bytes, dtype: np.dtype[Any], rows: int) -> Column | None:
    if len(data) < _NUMBER.size:
        return None
    (count,) = _NUMBER.unpack_from(data)
    middle = _NUMBER.size + count * dtype.itemsize
    distinct = _decode_plain(data[_NUMBER.size : middle], dtype, count)
    index = _decode_plain(data[middle:], _index_dtype(count), rows)
    if distinct is None or index is None or int(index.max()) >= count:
        return None
    return distinct[index]


def _encode_decimal(values: Column) -> bytes | None:
    """Whole multiples of a power of ten, and by how many last places each value is off its multiple."""
    if values.dtype.kind != "f":
        return None
    real = np.isfinite(values)
    if (values.view(np.uint64)[~real] != _NAN_BITS).any() or (np.signbit(values) & (values == 0)).any():
        return None  # whole multiples have no minus zero
    finite = np.where(real, values, 0.0)
    for power in _POWERS_OF_TEN:
        scaled = finite * float(10**power)
        if np.abs(scaled).max() > _LARGEST_WHOLE:
            return None
        whole = np.rint(scaled)
        # Division gives the double nearest to the decimal; products such as 17 * 1e-9 may be one off.
        apart = finite.view(np.int64) - (whole / float(10**power)).view(np.int64)
        if np.abs(apart).max() < 128:
            folded = np.where(real, _zigzag(whole.astype(np.int64)) + np.uint64(1), np.uint64(0))
            return bytes([power]) + _by_significance(folded) + apart.astype(np.int8).tobytes()
    return None


def _decode_decimal(data: bytes, dtype: np.dtype[Any], rows: int) -> Column | None:
    if dtype.kind != "f" or len(data) != 1 + 9 * rows or data[0] not in _POWERS_OF_TEN:
        return None
    folded = _decode_plain(data[1 : 1 + 8 * rows], np.dtype("<u8"), rows)
    if folded is None:
        return None
    apart = np.frombuffer(data, np.int8, offset=1 + 8 * rows).astype(np.int64)
    whole = _unzigzag(folded - np.uint64(1)).view(np.int64).astype(np.float64)
    values = ((whole / float(10 ** data[0])).view(np.int64) + apart).view(np.float64)
    values[folded == 0] = np.nan
    return values.astype(dtype, copy=False)


_CODINGS: Final[dict[bytes, _Coding]] = {
    b"p": _Coding(_encode_plain, _decode_plain),
    b"d": _Coding(_encode_delta, _decode_delta),
    b"i": _Coding(_encode_distinct, _decode_distinct),
    b"n": _Coding(_encode_decimal, _decode_decimal),
}


def _by_significance(values: Column) -> bytes:
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(len(little), -1).T.tobytes()


def _zigzag(values: Column) -> Column:
    """0, -1, 1, -2, … as 0, 1, 2, 3, …, so that small differences of either sign have small bytes."""
    signed = values.view(np.dtype(f"<i{values.dtype.itemsize}"))
    return ((signed << 1) ^ (signed >> (8 * values.dtype.itemsize - 1))).view(_unsigned(values.dtype))


def _unzigzag(folded: Column) -> Column:
    unit = folded.dtype.type(1)
    unfolded: Column = (folded >> unit) ^ (~(folded & unit) + unit)
    return unfolded


def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"<u{dtype.itemsize}")


def _index_dtype(count: int) -> np.dtype[Any]:
    return np.dtype("<u1" if count <= 1 << 8 else "<u2")


def _deflate(data: bytes) -> bytes:
    return zlib.compress(data, 6, wbits=-zlib.MAX_WBITS)


def _inflate(packed: bytes, most: int) -> bytes | None:
    """The data, None if it is damaged or longer than `most` bytes, which it never grows beyond."""
    inflater = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        data = inflater.decompress(packed, most + 1)
    except zlib.error:
        return None
    return data if inflater.eof and not inflater.unused_data and len(data) <= most else None
