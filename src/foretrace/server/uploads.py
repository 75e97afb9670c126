"""Takes uploaded files: names that are safe on a disk, limits on their number and size, and who has them.

Each upload has a folder with a random name. Its files have the names that the user gave, without whatever is not a
letter, digit or a few harmless signs, because readers look at names (`rank3.json.gz`, `job.yaml`) and messages repeat
them.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
import unicodedata
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.units import format_bytes
from foretrace.server.errors import unknown_id, unwritable_state
from foretrace.server.questions import FilePlace
from foretrace.server.store import StateThread, StoredUpload, new_id, now_s

MAX_FILES: Final = 256
MAX_TOTAL_BYTES: Final = 4 << 30
MAX_OWNER_BYTES: Final = 2 << 30
"""The size of all uploads of one owner."""
MAX_NAME: Final = 100
MAX_DRAFTS: Final = 200
"""Uploads that were begun and not yet opened."""
MAX_DRAFTS_OF_OWNER: Final = 20
CHUNK_BYTES: Final = 1 << 20
STALL_S: Final = 30.0
"""Seconds without a byte after which an upload is given up."""
SLOW_S: Final = 60.0
"""Seconds after which an upload must have come at `MIN_BYTES_PER_S` on average."""
MIN_BYTES_PER_S: Final = 32 << 10
DRAFT_S: Final = 3600.0
"""Seconds after which an upload is deleted that was never opened."""
KEPT_S: Final = 86400.0
"""Seconds after which an upload is deleted that no answer is about."""

_HARMLESS: Final = " ._-+=@"
_SLASHES: Final = re.compile(r"[/\\]")


def shown_name(name: str) -> str:
    """Returns the base name of a file as it is shown: without folders, control characters and leading dots."""
    base = _SLASHES.split(unicodedata.normalize("NFC", name))[-1]
    base = "".join(sign for sign in base if sign.isprintable()).strip().lstrip(". ")
    if len(base) > MAX_NAME:
        stem, dot, ending = base.rpartition(".")
        kept = f"{dot}{ending}" if stem and len(ending) <= 16 else ""
        base = base[: MAX_NAME - len(kept)] + kept
    return base or "file"


def disk_names(names: Sequence[str]) -> tuple[str, ...]:
    """Returns names for files of these shown names: harmless on any disk and in any message, and each once."""
    used: set[str] = set()  # by their names in lower case: some disks do not tell cases apart
    numbers: dict[str, int] = {}
    disk: list[str] = []
    for name in names:
        plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in _HARMLESS) else "_" for sign in name)
        plain = f"_{plain[1:]}" if plain.startswith("-") else plain
        stem, dot, ending = plain.partition(".")
        first = plain.lower()
        while plain.lower() in used:
            numbers[first] = numbers.get(first, 1) + 1
            plain = f"{stem}-{numbers[first]}{dot}{ending}"
        used.add(plain.lower())
        disk.append(plain)
    return tuple(disk)


@dataclass(eq=False, slots=True)
class Upload:
    """Files that are being uploaded, or were."""

    id: str
    owner: str
    created_s: float
    names: tuple[str, ...]
    shown_names: tuple[str, ...]
    sizes_bytes: dict[int, int] = field(default_factory=dict)
    """The sizes of the files that are there, by number."""
    writing: dict[int, int] = field(default_factory=dict)
    """What has come of the files that are being written, in bytes, by number."""
    is_kept: bool = False
    """Whether it was opened, so that it is in the database."""

    @property
    def size_bytes(self) -> int:
        """The bytes that have come."""
        return sum(self.sizes_bytes.values()) + sum(self.writing.values())

    @property
    def is_complete(self) -> bool:
        """Whether all files are there."""
        return len(self.sizes_bytes) == len(self.names)


class Uploads:
    """The uploads of a server.

    Args:
        state: The database that lists those which were opened.
        folder: Their folder.
        max_bytes: The size of a file at most.
    """

    def __init__(self, state: StateThread, folder: Path, max_bytes: int) -> None:
        self._state, self._folder, self.max_bytes = state, folder, max_bytes
        self._uploads: dict[str, Upload] = {}

    def load(self) -> None:
        """Reads which uploads there are, and removes what is left of others. Called before the server starts."""
        store = self._state.store
        store.delete_uploads_before(now_s() - KEPT_S)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for stored in store.uploads():
                try:
                    sizes = [(self._folder / stored.id / name).stat().st_size for name in stored.names]
                except OSError:  # a file is gone: the others are of no use without it
                    store.delete_upload(stored.id)
                    continue
                self._uploads[stored.id] = Upload(
                    stored.id,
                    stored.owner,
                    stored.created_s,
                    stored.names,
                    stored.shown_names,
                    dict(enumerate(sizes)),
                    is_kept=True,
                )
            for folder in self._folder.iterdir():
                if folder.name not in self._uploads:
                    shutil.rmtree(folder, ignore_errors=True)
        except OSError as error:
            raise unwritable_state(error) from None

    def begin(self, owner: str, names: Sequence[str]) -> Upload:
        """Begins an upload of files of these names.

        Raises InputError where they are too many, or uploads that were begun are.
        """
        if not 1 <= len(names) <= MAX_FILES:
            hint = f"from 1 to {MAX_FILES} files"
            raise InputError("input-too-large", f"an upload cannot have {len(names):,} files", hint=hint)
        drafts = [upload.owner for upload in self._uploads.values() if not upload.is_kept]
        hint = "open them, or try again in an hour"
        if drafts.count(owner) >= MAX_DRAFTS_OF_OWNER:
            problem = f"{MAX_DRAFTS_OF_OWNER} uploads of yours were begun and not opened"
            raise InputError("too-many", problem, hint=hint)
        if len(drafts) >= MAX_DRAFTS:
            raise InputError("busy", f"{MAX_DRAFTS} uploads were begun and not opened", hint="try again later")
        shown = tuple(shown_name(name) for name in names)
        upload = Upload(new_id(), owner, now_s(), disk_names(shown), shown)
        try:
            (self._folder / upload.id).mkdir(mode=0o700)
        except OSError as error:
            raise unwritable_state(error) from None
        self._uploads[upload.id] = upload
        return upload

    async def write(self, name: str, owner: str, number: int, chunks: AsyncIterator[bytes], length: int | None) -> None:
        """Writes a file of an upload.

        Args:
            name: The id of the upload.
            owner: Who sends it.
            number: Which of its files.
            chunks: The bytes as they come.
            length: How many will come, where that is known: a file that is too large is refused before it comes.

        Raises:
            InputError: There is no such file, it is there already, it is too large, or the disk is full.
        """
        upload = self.of(name, owner)
        if upload.owner != owner or upload.is_kept or not 0 <= number < len(upload.names):
            raise unknown_id("file of an upload", f"{name}/{number}")
        if number in upload.sizes_bytes or number in upload.writing:
            raise InputError("duplicate-name", "this file was uploaded already", where=upload.shown_names[number])
        self._check_file(upload, number, length or 0)
        self._check_totals(upload, length or 0)
        path = self._folder / upload.id / upload.names[number]
        is_finished = False
        upload.writing[number] = 0
        try:
            with path.open("xb") as stream:
                buffer = bytearray()
                async for chunk in _in_time(chunks):
                    upload.writing[number] += len(chunk)
                    self._check_file(upload, number, upload.writing[number])
                    buffer += chunk
                    if len(buffer) >= CHUNK_BYTES:
                        self._check_totals(upload)
                        await asyncio.to_thread(stream.write, bytes(buffer))
                        buffer.clear()
                await asyncio.to_thread(stream.write, bytes(buffer))
            is_finished = True
        except OSError as error:
            raise unwritable_state(error) from None
        finally:
            written_bytes = upload.writing.pop(number)
            if is_finished:
                upload.sizes_bytes[number] = written_bytes
            else:
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def _check_file(self, upload: Upload, number: int, size_bytes: int) -> None:
        """Raises an error where a file is too large."""
        if size_bytes > self.max_bytes:
            problem = f"the file is larger than {format_bytes(self.max_bytes)}"
            hint = "ask for it at the command line, or start the server with a larger --max-upload"
            raise InputError("input-too-large", problem, where=upload.shown_names[number], hint=hint)

    def _check_totals(self, upload: Upload, added_bytes: int = 0) -> None:
        """Raises an error where all uploads, or those of one owner, are too large with some more bytes."""
        uploads = self._uploads.values()
        totals = (
            ("uploads of yours", MAX_OWNER_BYTES, [other for other in uploads if other.owner == upload.owner]),
            ("uploads", MAX_TOTAL_BYTES, uploads),
        )
        for noun, max_bytes, counted in totals:
            if sum(other.size_bytes for other in counted) + added_bytes > max_bytes:
                problem = f"all {noun} together would be larger than {format_bytes(max_bytes)}"
                hint = "delete answers about files that are no longer needed: these go a day after they came"
                raise InputError("input-too-large", problem, hint=hint)

    def of(self, name: str, owner: str) -> Upload:
        """Returns an upload: one that was opened for everybody who has its id, a draft for its owner.

        Raises InputError where there is none of this id.
        """
        upload = self._uploads.get(name)
        if upload is None or not (upload.is_kept or upload.owner == owner):
            raise unknown_id("upload", name)
        return upload

    def place(self, name: str, owner: str) -> FilePlace:
        """Returns where the files of an upload are, for a worker. Raises InputError where they are not all there."""
        upload = self.of(name, owner)
        if not upload.is_complete:
            problem = f"{len(upload.names) - len(upload.sizes_bytes)} of {len(upload.names)} files are not there yet"
            raise InputError("missing-field", problem, where="input.upload")
        return FilePlace(str(self._folder / upload.id), tuple(upload.names), tuple(upload.shown_names))

    async def keep(self, name: str, owner: str) -> None:
        """Writes an upload that could be opened into the database, so that it outlives the server."""
        upload = self.of(name, owner)
        if upload.is_kept:
            return
        upload.is_kept = True  # before anything else happens, so that nothing removes it
        stored = StoredUpload(upload.id, upload.owner, upload.created_s, upload.names, upload.shown_names)
        try:
            await asyncio.to_thread(_write_through, self._folder / upload.id, upload.names)
            await self._state.call(self._state.store.add_upload, stored)
        except OSError as error:
            upload.is_kept = False
            raise unwritable_state(error) from None
        except BaseException:
            upload.is_kept = False
            raise

    async def _remove(self, name: str) -> None:
        """Removes an upload with its files."""
        if self._uploads.pop(name, None) is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder / name, ignore_errors=True)

    async def remove_old(self) -> None:
        """Removes uploads that were begun an hour ago, never opened, and of which nothing is being written."""
        for upload in list(self._uploads.values()):
            if not upload.is_kept and not upload.writing and upload.created_s < now_s() - DRAFT_S:
                await self._remove(upload.id)

    async def remove_unused(self) -> None:
        """Removes uploads older than a day that no answer is about."""
        for name in await self._state.call(self._state.store.delete_uploads_before, now_s() - KEPT_S):
            await self._remove(name)


def _write_through(folder: Path, names: Sequence[str]) -> None:
    """Makes files and their folder survive the loss of power. Raises OSError where they cannot be written."""
    for path in (*(folder / name for name in names), *([folder] if os.name == "posix" else [])):
        descriptor = os.open(path, os.O_RDONLY if path == folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


async def _in_time(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields chunks. Raises InputError where one does not come in time, or all of them come too slowly."""
    began_s, size_bytes = time.monotonic(), 0
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise InputError("too-slow", f"no byte has come for {STALL_S:g} s", hint="upload it again") from None
        if chunk is None:
            return
        size_bytes += len(chunk)
        passed_s = time.monotonic() - began_s
        if passed_s > SLOW_S and size_bytes < MIN_BYTES_PER_S * passed_s:
            problem = f"the file has come at less than {format_bytes(MIN_BYTES_PER_S)} a second"
            raise InputError("too-slow", problem, hint="upload it again over a faster connection")
        yield chunk
