"""Keeps answers and uploads in the state folder of a server: a SQLite database, next to the uploaded files.

An answer is on the disk before anybody is told of it. Methods are called from one thread at a time (`StateThread`).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, ParamSpec, TypeVar

from foretrace.basics.errors import InputError
from foretrace.server.errors import unknown_id, unwritable_state

MAX_LISTED: Final = 200
"""Answers of a history."""
MAX_STORED_BYTES: Final = 2 << 30
"""The limit of all stored answers. Beyond it, the owner with the most bytes loses their oldest answers."""
FILLED_SHARE: Final = 0.95
"""After the limit was exceeded, answers are dropped down to this share of it."""

_LISTED: Final = ("title", "step_text", "kind")
"""The parts of a headline that a history shows."""
_VERSION: Final = 2
_KEY_BYTES: Final = 32
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, question TEXT NOT NULL, summary TEXT NOT NULL,
  command TEXT NOT NULL, downloads TEXT NOT NULL, upload TEXT, bytes INTEGER NOT NULL, html BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS answers_by_owner ON answers (owner, created, bytes);
CREATE UNIQUE INDEX IF NOT EXISTS answers_by_question ON answers (owner, question);
CREATE INDEX IF NOT EXISTS answers_by_upload ON answers (upload);
CREATE TABLE IF NOT EXISTS files (
  answer TEXT NOT NULL REFERENCES answers ON DELETE CASCADE, format TEXT NOT NULL, content BLOB NOT NULL,
  PRIMARY KEY (answer, format)
) STRICT;
CREATE TABLE IF NOT EXISTS uploads (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, names TEXT NOT NULL, shown_names TEXT NOT NULL
) STRICT;
"""

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def new_id() -> str:
    """Returns 128 random bits as text that can be part of an address."""
    return secrets.token_urlsafe(16)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A finished answer.

    Attributes:
        id: 128 random bits; whoever has them may read the answer.
        owner: Whose history it is in.
        created_s: When it was finished, in seconds since 1970.
        question: The question, as JSON.
        summary: The headline, as JSON.
        command: The command that asks the same.
        downloads: The formats in which it can be downloaded.
        html: The answer as a fragment of a page.
    """

    id: str
    owner: str
    created_s: float
    question: dict[str, Any]
    summary: dict[str, Any]
    command: str
    downloads: tuple[str, ...]
    html: str


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """Uploaded files: their names on the disk, in the folder of the upload, and as the user gave them."""

    id: str
    owner: str
    created_s: float
    names: tuple[str, ...]
    shown_names: tuple[str, ...]


class Store:
    """The database of a state folder, which one server uses at a time.

    Args:
        folder: The state folder; it is made where it does not exist.
        max_answers: Answers of an owner beyond which the oldest are dropped.
        max_bytes: The size of all answers beyond which some are dropped.

    Raises:
        InputError: The folder cannot be written, or another server uses it (`state-in-use`).
    """

    def __init__(self, folder: Path, max_answers: int, max_bytes: int = MAX_STORED_BYTES) -> None:
        self.folder, self._max_answers, self._max_bytes = folder, max_answers, max_bytes
        try:
            with ExitStack() as opened:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                opened.enter_context(_locked(folder))
                self._key = _key(folder / "key")
                self._database = opened.enter_context(closing(_connected(folder / "foretrace.db")))
                # An upper bound: answers that are deleted are not subtracted until there is no room.
                (self._max_stored_bytes,) = self._database.execute("SELECT TOTAL(bytes) FROM answers").fetchone()
                self._opened = opened.pop_all()
        except (OSError, sqlite3.Error) as error:
            raise unwritable_state(error, folder) from None

    @property
    def key(self) -> bytes:
        """The key that signs the cookies of owners: random bytes, made with the folder."""
        return self._key

    def close(self) -> None:
        """Closes the database, and leaves the folder to other servers."""
        self._opened.close()

    @contextmanager
    def _written(self) -> Iterator[sqlite3.Connection]:
        """Yields the database within a transaction, which is on the disk when the block has ended."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise unwritable_state(error) from None

    def add_answer(self, answer: StoredAnswer, files: Mapping[str, str] | None = None) -> str:
        """Writes an answer in the place of the owner's earlier one to the same question, and drops old answers.

        Args:
            answer: The answer.
            files: The downloads that are kept with it, by format.

        Returns:
            The id of the answer: that of the earlier one where there is one, since links may hold it.
        """
        question = json.dumps(answer.question, sort_keys=True)
        html = _packed(answer.html)
        contents = {name: _packed(content) for name, content in (files or {}).items()}
        size_bytes = len(question) + len(html) + sum(map(len, contents.values()))
        with self._written() as database:
            rows = database.execute(
                "SELECT id FROM answers WHERE owner = ? AND question = ?", (answer.owner, question)
            ).fetchall()
            name = rows[0][0] if rows else answer.id
            database.execute("DELETE FROM answers WHERE id = ?", (name,))
            row = (
                *(name, answer.owner, answer.created_s, question, json.dumps(answer.summary), answer.command),
                *(json.dumps(answer.downloads), answer.question.get("input", {}).get("upload"), size_bytes, html),
            )
            database.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            for kind, content in contents.items():
                database.execute("INSERT INTO files VALUES (?, ?, ?)", (name, kind, content))
            database.execute(
                "DELETE FROM answers WHERE id IN"
                " (SELECT id FROM answers WHERE owner = ? ORDER BY created DESC LIMIT -1 OFFSET ?)",
                (answer.owner, self._max_answers),
            )
            self._max_stored_bytes += size_bytes
            if self._max_stored_bytes > self._max_bytes:
                self._max_stored_bytes = self._limited_bytes(database, name)
        return str(name)

    def _limited_bytes(self, database: sqlite3.Connection, last: str) -> int:
        """Drops the oldest answers of the owners who have the most bytes, until there is room again.

        Args:
            database: The database, within a transaction.
            last: The answer that was written last, which stays.

        Returns:
            The bytes of all answers that are left.
        """
        sizes = dict(database.execute("SELECT owner, SUM(bytes) FROM answers GROUP BY owner").fetchall())
        oldest = "SELECT id FROM answers WHERE owner = ? AND id != ? ORDER BY created LIMIT 1"
        last_bytes = 0
        while sizes and last_bytes + sum(sizes.values()) > FILLED_SHARE * self._max_bytes:
            owner = max(sizes, key=lambda name: sizes[name])
            rows = database.execute(
                f"DELETE FROM answers WHERE id = ({oldest}) RETURNING bytes", (owner, last)
            ).fetchall()
            if rows:
                sizes[owner] -= rows[0][0]
            else:  # they have only the answer that was written last
                last_bytes += sizes.pop(owner)
        return last_bytes + sum(sizes.values())

    def answer(self, name: str) -> StoredAnswer:
        """Returns an answer. Raises InputError where there is none of this id."""
        rows = self._database.execute(
            "SELECT owner, created, question, summary, command, downloads, html FROM answers WHERE id = ?", (name,)
        ).fetchall()
        if not rows:
            raise unknown_id("answer", name)
        owner, created_s, question, summary, command, downloads, html = rows[0]
        return StoredAnswer(
            name,
            owner,
            created_s,
            json.loads(question),
            json.loads(summary),
            command,
            tuple(json.loads(downloads)),
            zlib.decompress(html).decode(),
        )

    def file(self, name: str, kind: str) -> str | None:
        """Returns a download that was kept with an answer; None where it has to be made again."""
        rows = self._database.execute(
            "SELECT content FROM files WHERE answer = ? AND format = ?", (name, kind)
        ).fetchall()
        return zlib.decompress(rows[0][0]).decode() if rows else None

    def history(self, owner: str) -> list[dict[str, Any]]:
        """Returns the answers of an owner as a page lists them, the newest first."""
        rows = self._database.execute(
            "SELECT id, created, question, summary, downloads FROM answers WHERE owner = ?"
            " ORDER BY created DESC LIMIT ?",
            (owner, MAX_LISTED),
        ).fetchall()
        listed = []
        for name, created_s, question, summary, downloads in rows:
            headline = {key: value for key, value in json.loads(summary).items() if key in _LISTED}
            listed.append(
                {
                    "answer": name,
                    "at": created_s,
                    "question": json.loads(question),
                    **headline,
                    "downloads": json.loads(downloads),
                }
            )
        return listed

    def delete_answer(self, name: str, owner: str) -> None:
        """Deletes an answer of an owner. Raises InputError where there is none of this id."""
        with self._written() as database:
            if database.execute("DELETE FROM answers WHERE id = ? AND owner = ?", (name, owner)).rowcount == 0:
                raise unknown_id("answer", name)

    def add_upload(self, upload: StoredUpload) -> None:
        """Writes what an upload consists of."""
        row = (upload.id, upload.owner, upload.created_s, json.dumps(upload.names), json.dumps(upload.shown_names))
        with self._written() as database:
            database.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, ?)", row)

    def uploads(self) -> list[StoredUpload]:
        """Returns all uploads."""
        rows: Sequence[tuple[Any, ...]] = self._database.execute("SELECT * FROM uploads").fetchall()
        return [
            StoredUpload(name, owner, created_s, tuple(json.loads(names)), tuple(json.loads(shown_names)))
            for name, owner, created_s, names, shown_names in rows
        ]

    def delete_upload(self, name: str) -> None:
        """Deletes what an upload consists of."""
        with self._written() as database:
            database.execute("DELETE FROM uploads WHERE id = ?", (name,))

    def delete_uploads_before(self, moment_s: float, used: Collection[str] = ()) -> list[str]:
        """Deletes uploads from before a moment that no answer is about and that are not used; returns their ids."""
        unused = "created < ? AND id NOT IN (SELECT upload FROM answers WHERE upload IS NOT NULL)"
        rows = self._database.execute(f"SELECT id FROM uploads WHERE {unused}", (moment_s,)).fetchall()
        names = [name for (name,) in rows if name not in used]
        if names:
            with self._written() as database:
                database.executemany("DELETE FROM uploads WHERE id = ?", [(name,) for name in names])
        return names


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode(), 3)


def _connected(path: Path) -> sqlite3.Connection:
    """Opens the database, which only its user can read, and makes its tables where they are not there."""
    os.close(_private(path))  # SQLite gives its other files the mode of the database
    database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("PRAGMA journal_mode = WAL")
        # FULL: an answer that was reported survives the loss of power, too.
        database.execute("PRAGMA synchronous = FULL")
        _check_version(database, path.parent)
        database.executescript(_SCHEMA)
    except BaseException:
        database.close()
        raise
    return database


def _check_version(database: sqlite3.Connection, folder: Path) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, _VERSION):
        problem = f"the state folder is of another version of Foretrace ({version})"
        raise InputError("unknown-version", problem, where=str(folder), hint="name another: --state FOLDER")
    database.execute(f"PRAGMA user_version = {_VERSION}")


def _private(path: Path) -> int:
    """Opens a file, which is made where it does not exist, and makes it private to its user."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    path.chmod(0o600)
    return descriptor


def _key(path: Path) -> bytes:
    """Returns the random bytes of a private file, which is made where it has none."""
    with os.fdopen(_private(path), "r+b") as stream:
        key = stream.read()
        if len(key) != _KEY_BYTES:
            key = secrets.token_bytes(_KEY_BYTES)
            stream.seek(0)
            stream.truncate()
            stream.write(key)
            stream.flush()
            os.fsync(stream.fileno())
    return key


def _locked(folder: Path) -> IO[str]:
    """Returns the lock file of a state folder, locked. Raises InputError where another server has locked it."""
    stream = os.fdopen(_private(folder / "lock"), "w")
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            hint = "name another for this one: --state FOLDER"
            problem = "another server uses this state folder"
            raise InputError("state-in-use", problem, where=str(folder), hint=hint) from None
    return stream


class StateThread:
    """Runs the methods of a store in a thread of their own, one after the other, for an event loop that must not wait.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._thread = ThreadPoolExecutor(1, "store")

    async def call(
        self, method: Callable[Arguments, Returned], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Returned:
        """Runs a method of the store and returns its result. Raises InputError where the database cannot be used."""

        def run() -> Returned:
            try:
                return method(*arguments, **options)
            except sqlite3.Error as error:
                raise unwritable_state(error) from None

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def close(self) -> None:
        """Waits for what is being written, and closes the store."""
        self._thread.shutdown(wait=True)
        self.store.close()


def now_s() -> float:
    """Returns the seconds since 1970."""
    return time.time()
