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
import sqlite3
import time
import unicodedata
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.basics.units import format_bytes
from foretrace.server.errors import unknown_id, unwritable_state
from foretrace.server.questions import FilePlace
from foretrace.server.store import StateThread, StoredUpload, new_id, now_s

SCRIPT_ENDING: Final = ".py"
"""The ending of scripts, which uploads refuse: Foretrace would have to run them."""
MAX_FILES: Final = 256
MAX_TOTAL_BYTES: Final = 4 << 30
MAX_OWNER_BYTES: Final = 2 << 30
"""The size of all uploads of one owner."""
MAX_NAME: Final = 100
MAX_DRAFTS: Final = 200
"""Uploads that were begun and not yet opened. Beyond it, the owner with the most loses their oldest."""
MAX_DRAFTS_OF_OWNER: Final = 20
"""The same of one owner."""
CHUNK_BYTES: Final = 1 << 20
STALL_S: Final = 30.0
"""Seconds without a byte after which an upload is given up."""
SLOW_S: Final = 60.0
"""Seconds after which an upload must have come at `MIN_BYTES_PER_S` on average."""
MIN_BYTES_PER_S: Final = 32 << 10
DRAFT_S: Final = 3600.0
"""Seconds after which an upload is deleted that was never opened."""
UNUSED_S: Final = 86400.0
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

    stored: StoredUpload
    """Its row in the database once it is kept."""
    sizes_bytes: dict[int, int] = field(default_factory=dict)
    """The sizes of the files that are there, by number."""
    writing: dict[int, int] = field(default_factory=dict)
    """What has come of the files that are being written, in bytes, by number."""
    is_kept: bool = False
    """Whether it was opened, so that it is in the database."""
    readers: int = 0
    """Jobs that are reading its files, or are about to."""

    @property
    def is_in_use(self) -> bool:
        """Whether one of its files is being written or read."""
        return bool(self.writing) or self.readers > 0

    @property
    def size_bytes(self) -> int:
        """The bytes that have come."""
        return sum(self.sizes_bytes.values()) + sum(self.writing.values())

    @property
    def is_complete(self) -> bool:
        """Whether all files are there."""
        return len(self.sizes_bytes) == len(self.stored.names)


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
        try:
            store.delete_uploads_before(now_s() - UNUSED_S)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for stored in store.uploads():
                try:
                    sizes = [(self._folder / stored.id / name).stat().st_size for name in stored.names]
                except OSError:  # a file is gone: the others are of no use without it
                    store.delete_upload(stored.id)
                    continue
                self._uploads[stored.id] = Upload(stored, dict(enumerate(sizes)), is_kept=True)
            for folder in self._folder.iterdir():
                if folder.name not in self._uploads:
                    shutil.rmtree(folder, ignore_errors=True)
        except (OSError, sqlite3.Error) as error:
            raise unwritable_state(error, self._folder) from None

    async def begin(self, owner: str, names: Sequence[str]) -> str:
        """Begins an upload of files of these names, and returns its id.

        An older upload that was never opened makes room for it, where there are too many of these. Raises InputError
        where there are too many files or a script, or no such upload can go.
        """
        if not 1 <= len(names) <= MAX_FILES:
            hint = f"from 1 to {MAX_FILES} files"
            raise InputError("input-too-large", f"an upload cannot have {len(names):,} files", hint=hint)
        script = next((name for name in names if Path(name).suffix.lower() == SCRIPT_ENDING), None)
        if script is not None:
            hint = "trace it yourself: foretrace trace SCRIPT --world N -o job.foretrace, and upload the program"
            raise InputError("script-not-run", "a server runs no scripts", where=shown_name(script), hint=hint)
        replaced = self._replaced_draft(owner)
        shown = tuple(shown_name(name) for name in names)
        stored = StoredUpload(new_id(), owner, now_s(), disk_names(shown), shown)
        try:
            (self._folder / stored.id).mkdir(mode=0o700)
        except OSError as error:
            raise unwritable_state(error) from None
        self._uploads[stored.id] = Upload(stored)
        if replaced is not None:
            await self._remove(replaced)
        return stored.id

    def _replaced_draft(self, owner: str) -> str | None:
        """Returns the draft that makes room for another one of an owner, if one has to.

        Raises InputError where all of them are being written or opened.
        """
        drafts = [upload for upload in self._uploads.values() if not upload.is_kept]
        counts = Counter(upload.stored.owner for upload in drafts)
        if counts[owner] >= MAX_DRAFTS_OF_OWNER:
            error = InputError("too-many", "too many uploads of yours are on their way", hint="let one of them end")
            drafts = [upload for upload in drafts if upload.stored.owner == owner]
        elif len(drafts) >= MAX_DRAFTS:
            error = InputError("busy", "too many uploads are on their way to this server", hint="try again in a moment")
        else:
            return None
        idle = [upload.stored for upload in drafts if not upload.is_in_use]
        if not idle:
            raise error
        return min(idle, key=lambda stored: (-counts[stored.owner], stored.created_s)).id

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
        names, shown = upload.stored.names, upload.stored.shown_names
        if upload.stored.owner != owner or upload.is_kept or not 0 <= number < len(names):
            raise unknown_id("file of an upload", f"{name}/{number}")
        if number in upload.sizes_bytes or number in upload.writing:
            raise InputError("duplicate-name", "this file was uploaded already", where=shown[number])
        self._check_file(upload, number, length or 0)
        self._check_totals(upload, length or 0)
        path = self._folder / name / names[number]
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
            raise InputError("input-too-large", problem, where=upload.stored.shown_names[number], hint=hint)

    def _check_totals(self, upload: Upload, added_bytes: int = 0) -> None:
        """Raises an error where all uploads, or those of one owner, are too large with some more bytes."""
        uploads = self._uploads.values()
        owner = upload.stored.owner
        totals = (
            ("your uploads", MAX_OWNER_BYTES, [other for other in uploads if other.stored.owner == owner]),
            ("all uploads to this server", MAX_TOTAL_BYTES, uploads),
        )
        for noun, max_bytes, counted in totals:
            if sum(other.size_bytes for other in counted) + added_bytes > max_bytes:
                problem = f"{noun} would exceed {format_bytes(max_bytes)}"
                hint = "delete answers about uploaded files in the history; files are removed a day after their upload"
                raise InputError("input-too-large", problem, hint=hint)

    def of(self, name: str, owner: str) -> Upload:
        """Returns an upload: one that was opened for everybody who has its id, a draft for its owner.

        Raises InputError where there is none of this id.
        """
        upload = self._uploads.get(name)
        if upload is None or not (upload.is_kept or upload.stored.owner == owner):
            raise unknown_id("upload", name)
        return upload

    def place(self, name: str, owner: str) -> FilePlace:
        """Returns where the files of an upload are, for a worker. Raises InputError where they are not all there."""
        upload = self.of(name, owner)
        if not upload.is_complete:
            count = len(upload.stored.names)
            problem = f"{count - len(upload.sizes_bytes)} of {count} files are not there yet"
            raise InputError("missing-field", problem, where="input.upload")
        stored = upload.stored
        return FilePlace(str(self._folder / name), tuple(stored.names), tuple(stored.shown_names))

    @contextmanager
    def reading(self, names: Iterable[str]) -> Iterator[None]:
        """Keeps these uploads from being removed while the block lasts."""
        uploads = [self._uploads[name] for name in names]
        for upload in uploads:
            upload.readers += 1
        try:
            yield
        finally:
            for upload in uploads:
                upload.readers -= 1

    async def keep(self, name: str, owner: str) -> None:
        """Writes an upload that could be opened into the database, so that it outlives the server."""
        upload = self.of(name, owner)
        if upload.is_kept:
            return
        upload.is_kept = True  # before anything else happens, so that nothing removes it
        try:
            await asyncio.to_thread(_write_through, self._folder / name, upload.stored.names)
            await self._state.call(self._state.store.add_upload, upload.stored)
        except OSError as error:
            upload.is_kept = False
            raise unwritable_state(error) from None
        except BaseException:
            upload.is_kept = False
            raise

    async def drop(self, name: str) -> None:
        """Removes a draft that cannot be opened, unless it is in use."""
        upload = self._uploads.get(name)
        if upload is not None and not upload.is_kept and not upload.is_in_use:
            await self._remove(name)

    async def _remove(self, name: str) -> None:
        """Removes an upload with its files."""
        if self._uploads.pop(name, None) is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder / name, ignore_errors=True)

    async def remove_old(self) -> None:
        """Removes uploads that were begun an hour ago, never opened, and are not in use."""
        for upload in list(self._uploads.values()):
            if upload.stored.created_s < now_s() - DRAFT_S:
                await self.drop(upload.stored.id)

    async def remove_unused(self) -> None:
        """Removes uploads older than a day that no answer is about and no job reads."""
        store, used = self._state.store, [name for name, upload in self._uploads.items() if upload.readers]
        for name in await self._state.call(store.delete_uploads_before, now_s() - UNUSED_S, used):
            upload = self._uploads.get(name)
            if upload is not None and upload.readers:  # a job has begun in the meantime
                await self._state.call(store.add_upload, upload.stored)
            else:
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
