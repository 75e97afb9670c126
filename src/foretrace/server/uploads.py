"""Takes uploaded files: names that are safe on a disk, limits on their number and size, and who has them.

Each upload has a folder with a random name. Its files have the names that the user gave, without whatever is not a
letter, digit or a few harmless signs, because readers look at names (`rank3.json.gz`, `job.yaml`) and messages repeat
them.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import unicodedata
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from foretrace.basics.errors import InputError
from foretrace.basics.units import format_bytes
from foretrace.server.errors import unknown_id, unwritable_state
from foretrace.server.store import StateThread, StoredUpload, new_id, now_s

MAX_FILES: Final = 256
MAX_TOTAL_BYTES: Final = 4 << 30
MAX_NAME: Final = 100
MAX_DRAFTS: Final = 200
"""Uploads that were begun and not yet opened."""
CHUNK_BYTES: Final = 1 << 20
STALL_S: Final = 30.0
"""Seconds without a byte after which an upload is given up."""
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
    used: list[str] = []
    for name in names:
        plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in _HARMLESS) else "_" for sign in name)
        plain = f"_{plain[1:]}" if plain.startswith("-") else plain
        stem, dot, ending = plain.partition(".")
        number = 1
        while plain.lower() in map(str.lower, used):
            number += 1
            plain = f"{stem}-{number}{dot}{ending}"
        used.append(plain)
    return tuple(used)


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
    writing: set[int] = field(default_factory=set)
    """The numbers of the files that are being written."""
    is_kept: bool = False
    """Whether it was opened, so that it is in the database."""

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
        self._total_bytes = 0

    def load(self) -> None:
        """Reads which uploads there are, and removes what is left of others. Called before the server starts."""
        store = self._state.store
        store.delete_uploads_before(now_s() - KEPT_S)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for stored in store.uploads():
                sizes = [(self._folder / stored.id / name).stat().st_size for name in stored.names]
                self._uploads[stored.id] = Upload(
                    stored.id,
                    stored.owner,
                    stored.created_s,
                    stored.names,
                    stored.shown_names,
                    dict(enumerate(sizes)),
                    is_kept=True,
                )
                self._total_bytes += sum(sizes)
            for left_over in self._folder.iterdir():
                if left_over.name not in self._uploads:
                    shutil.rmtree(left_over, ignore_errors=True)
        except OSError as error:
            raise unwritable_state(error) from None

    def begin(self, owner: str, names: Sequence[str]) -> Upload:
        """Begins an upload of files of these names. Raises InputError where they are too many, or uploads are."""
        if not 1 <= len(names) <= MAX_FILES:
            hint = f"from 1 to {MAX_FILES} files"
            raise InputError("input-too-large", f"an upload cannot have {len(names):,} files", hint=hint)
        self.remove_old()
        if sum(not upload.is_kept for upload in self._uploads.values()) >= MAX_DRAFTS:
            problem = f"{MAX_DRAFTS} uploads were begun and not finished"
            raise InputError("busy", problem, hint="try again later")
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
        if upload.is_kept or not 0 <= number < len(upload.names):
            raise unknown_id("file of an upload", f"{name}/{number}")
        if number in upload.sizes_bytes or number in upload.writing:
            raise InputError("duplicate-name", "this file was uploaded already", where=upload.shown_names[number])
        self._check_size(upload, number, length or 0)
        path = self._folder / upload.id / upload.names[number]
        written_bytes, is_finished = 0, False
        upload.writing.add(number)
        try:
            with path.open("xb") as stream:
                buffer = bytearray()
                async for chunk in _in_time(chunks):
                    self._check_size(upload, number, written_bytes + len(chunk), len(chunk))
                    written_bytes += len(chunk)
                    self._total_bytes += len(chunk)
                    buffer += chunk
                    if len(buffer) >= CHUNK_BYTES:
                        await asyncio.to_thread(stream.write, bytes(buffer))
                        buffer.clear()
                await asyncio.to_thread(stream.write, bytes(buffer))
            is_finished = True
        except OSError as error:
            raise unwritable_state(error) from None
        finally:
            upload.writing.discard(number)
            if is_finished:
                upload.sizes_bytes[number] = written_bytes
            else:
                self._total_bytes -= written_bytes
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def _check_size(self, upload: Upload, number: int, size_bytes: int, added_bytes: int | None = None) -> None:
        """Raises an error where a file, or all uploads with it, would be too large."""
        where = upload.shown_names[number]
        if size_bytes > self.max_bytes:
            problem = f"the file is larger than {format_bytes(self.max_bytes)}"
            hint = "ask for it at the command line, or start the server with a larger --max-upload"
            raise InputError("input-too-large", problem, where=where, hint=hint)
        if self._total_bytes + (size_bytes if added_bytes is None else added_bytes) > MAX_TOTAL_BYTES:
            problem = f"all uploads together would be larger than {format_bytes(MAX_TOTAL_BYTES)}"
            raise InputError("input-too-large", problem, where=where, hint="delete answers, or wait a day")

    def of(self, name: str, owner: str) -> Upload:
        """Returns an upload: one that was opened for everybody who has its id, a draft for its owner.

        Raises InputError where there is none of this id.
        """
        upload = self._uploads.get(name)
        if upload is None or not (upload.is_kept or upload.owner == owner):
            raise unknown_id("upload", name)
        return upload

    def place(self, name: str, owner: str) -> dict[str, Any]:
        """Returns where the files of an upload are, for a worker. Raises InputError where they are not all there."""
        upload = self.of(name, owner)
        if not upload.is_complete:
            problem = f"{len(upload.names) - len(upload.sizes_bytes)} of {len(upload.names)} files are not there yet"
            raise InputError("missing-field", problem, where="input.upload")
        folder = str(self._folder / upload.id)
        return {"folder": folder, "names": list(upload.names), "shown_names": list(upload.shown_names)}

    async def keep(self, name: str, owner: str) -> None:
        """Writes an upload that could be opened into the database, so that it outlives the server."""
        upload = self.of(name, owner)
        if not upload.is_kept:
            upload.is_kept = True
            stored = StoredUpload(upload.id, upload.owner, upload.created_s, upload.names, upload.shown_names)
            await self._state.call(self._state.store.add_upload, stored)

    def remove(self, name: str) -> None:
        """Removes an upload with its files."""
        upload = self._uploads.pop(name, None)
        if upload is not None:
            self._total_bytes -= sum(upload.sizes_bytes.values())
            shutil.rmtree(self._folder / upload.id, ignore_errors=True)

    def remove_old(self) -> None:
        """Removes uploads that were never opened and are older than an hour."""
        for upload in list(self._uploads.values()):
            if not upload.is_kept and upload.created_s < now_s() - KEPT_S / 24:
                self.remove(upload.id)

    async def remove_unused(self) -> None:
        """Removes uploads older than a day that no answer is about."""
        for name in await self._state.call(self._state.store.delete_uploads_before, now_s() - KEPT_S):
            self.remove(name)


async def _in_time(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields chunks. Raises InputError where one does not come in time."""
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise InputError("gave-up", f"no byte has come for {STALL_S:g} s", hint="upload it again") from None
        if chunk is None:
            return
        yield chunk
