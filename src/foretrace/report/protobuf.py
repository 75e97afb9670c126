"""The protobuf wire format, as far as a writer needs it: single fields as bytes, and columns of varints as arrays.

Fields are written by number; see https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

VARINT = 0
FIXED64 = 1
LENGTH_DELIMITED = 2


def varint(value: int) -> bytes:
    """A whole number of zero or more, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def tag(field: int, wire_type: int) -> bytes:
    """What precedes the value of a field."""
    return varint(field << 3 | wire_type)


def number(field: int, value: int) -> bytes:
    """A field that holds a whole number of zero or more, a boolean or a member of an enum."""
    return tag(field, VARINT) + varint(value)


def text(field: int, value: str) -> bytes:
    """A field that holds a string."""
    return message(field, value.encode())


def message(field: int, *parts: bytes) -> bytes:
    """A field that holds a message made of these fields."""
    body = b"".join(parts)
    return tag(field, LENGTH_DELIMITED) + varint(len(body)) + body


def varint_width(most: int) -> int:
    """How many bytes a varint needs for values of zero to `most`."""
    return max(1, -(-most.bit_length() // 7))


def padded_varints(values: NDArray[np.integer], width: int) -> NDArray[np.uint8]:
    """Each value as a varint of exactly `width` bytes, [values, width].

    Leading zeros are legal in a varint; Perfetto's own writer pads its length fields so (`WriteRedundantVarInt` in
    protozero's proto_utils.h). Columns of one width are what makes a million events quick to encode.
    """
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    groups = (values.astype(np.uint64)[:, np.newaxis] >> shifts) & np.uint64(0x7F)
    groups[:, :-1] |= np.uint64(0x80)
    return groups.astype(np.uint8)


def fixed64s(values: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Each value as eight bytes, the lowest first, [values, 8]."""
    return np.ascontiguousarray(values.astype("<u8")).view(np.uint8).reshape(-1, 8)


def columns(count: int, *parts: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of bytes, [count, width], from constants that all rows share and from blocks of columns."""
    widths = [len(part) if isinstance(part, bytes) else part.shape[1] for part in parts]
    table = np.empty((count, sum(widths)), dtype=np.uint8)
    at = 0
    for part, width in zip(parts, widths, strict=True):
        table[:, at : at + width] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        at += width
    return table


def rows(table: NDArray[np.uint8]) -> list[bytes]:
    """Each row of a table of bytes on its own."""
    whole: list[bytes] = np.ascontiguousarray(table).view(f"V{table.shape[1]}").ravel().tolist()
    return whole
