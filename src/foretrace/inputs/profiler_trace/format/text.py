"""The text of a file that may be compressed and larger than memory, piece by piece."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Generator, Iterator
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.files import AnyFile, head_bytes, input_file, open_binary
from foretrace.basics.limits import limited, too_large

PIECE_BYTES: Final = 1 << 19

MAX_TEXT_BYTES: Final = 64 << 30
"""Bytes of one trace, unpacked; the largest in use have a few GiB."""

_MAX_RATIO: Final = 100
_FREE_BYTES: Final = 64 << 20
"""Traces unpack to 10 to 30 times their size. Above `_FREE_BYTES`, more than `_MAX_RATIO` times is not a trace."""

_GZIP = b"\x1f\x8b"
_OTHERS: Final = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"\xfd7zXZ": ("xz", "xz -d"),
    b"BZh": ("bzip2", "bzip2 -d"),
    b"PK\x03\x04": ("zip", "unzip"),
}


class TextFile:
    """Reads a file's text: plain or gzip, whatever its name says. Bytes that are no UTF-8 are replaced and counted."""

    def __init__(self, path: AnyFile, piece_bytes: int = PIECE_BYTES) -> None:
        self.file = input_file(path)
        self.path = self.file.path
        self.piece_bytes = piece_bytes
        self.replaced = False
        """Whether some bytes were no UTF-8."""
        self.misnamed = False
        """Whether the name says gz and the bytes do not."""

    def pieces(self) -> Generator[str, None, None]:
        """Yields the text in pieces; raises an error where the file cannot be read to its end."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        size, most = 0, limited(MAX_TEXT_BYTES)
        for data in self._bytes():
            size += len(data)
            if size > most:
                raise too_large(f"the trace has more than {most >> 30:,} GiB of text", str(self.path))
            try:
                text = decoder.decode(data)
            except UnicodeDecodeError:
                self.replaced = True
                state = decoder.getstate()
                decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
                decoder.setstate(state)
                text = decoder.decode(data)
            if text:
                yield text
        try:
            rest = decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            self.replaced, rest = True, "\ufffd"
        if rest:
            yield rest

    def _bytes(self) -> Iterator[bytes]:
        with open_binary(self.file, "profiler trace") as stream:
            head = stream.peek(8)[:8]
            self._check(head)
            if not head.startswith(_GZIP):
                yield from _plain(stream, self.piece_bytes, str(self.path))
                return
            yield from self._unzipped(stream)

    def _check(self, head: bytes) -> None:
        if not head:
            raise InputError(
                "empty-file", "the file is empty", where=str(self.path), hint="was the profiler's export interrupted?"
            )
        for magic, (name, command) in _OTHERS.items():
            if head.startswith(magic):
                raise InputError(
                    "bad-compression",
                    f"the file is compressed with {name}",
                    where=str(self.path),
                    hint=f"unpack it first: {command}",
                )
        self.misnamed = self.path.suffix == ".gz" and not head.startswith(_GZIP)
        if self.misnamed and head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
            raise InputError("bad-compression", "the file is called .gz and is no gzip file", where=str(self.path))

    def _unzipped(self, stream: io.BufferedReader) -> Iterator[bytes]:
        done = 0
        free, ratio = limited(_FREE_BYTES), limited(_MAX_RATIO)
        try:
            with gzip.GzipFile(fileobj=stream) as unzipped:
                while data := unzipped.read(self.piece_bytes):
                    done += len(data)
                    if done > free and done > ratio * _position(stream):
                        raise too_large(f"the gzip file unpacks to more than {ratio} times its size", str(self.path))
                    yield data
        except (EOFError, OSError, zlib.error) as error:
            code, what = (
                ("truncated-file", "the gzip file is cut off")
                if isinstance(error, EOFError)
                else ("bad-compression", "the gzip file is damaged")
            )
            raise InputError(
                code, f"{what} {done:,} bytes into its content", where=str(self.path), hint="copy or export it again"
            ) from None


def _position(stream: io.BufferedReader) -> float:
    """Returns how many bytes of a file were read; of a pipe that is not known."""
    try:
        return stream.tell()
    except OSError:
        return float("inf")


def _plain(stream: io.BufferedReader, piece_bytes: int, where: str) -> Iterator[bytes]:
    try:
        while data := stream.read(piece_bytes):
            yield data
    except OSError as error:
        raise InputError(
            "unreadable-file", f"the profiler trace cannot be read: {error.strerror}", where=where
        ) from None


def head_of(path: AnyFile, most_bytes: int) -> bytes:
    """Returns the first bytes of what a file holds, unpacked; as much as can be had. An `InputFile` stays open."""
    return unpacked(head_bytes(path, most_bytes), most_bytes)


def unpacked(head: bytes, most_bytes: int) -> bytes:
    """Returns the content of the first bytes of a file, gzip or not; nothing where they are damaged."""
    if not head.startswith(_GZIP):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, most_bytes)
    except zlib.error:
        return b""
