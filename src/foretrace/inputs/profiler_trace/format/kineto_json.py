"""The JSON of a trace as blocks of events, without ever holding all of it.

A block of text that begins at an event and ends before another is one JSON array once brackets are put around it, and
is decoded in one call of the C decoder. Where a block should end is guessed from how the first two events are
separated. A wrong guess (in a string, in a nested object, behind the last event) leaves brackets or quotes open, so it
cannot be decoded into something else; such a block is decoded event by event.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from foretrace.basics.errors import InputError, shortened
from foretrace.basics.limits import Deadline, limited, too_large
from foretrace.basics.records import check_nesting

SAFE_US: Final = float(2**43)
"""Times from here on, in microseconds, are kept as text: a float would not hold nanoseconds."""

NO_PROFILE: Final = "a trace of the PyTorch profiler (export_chrome_trace) has a list traceEvents"
_SPACE = re.compile(r"[ \t\r\n]*")
_CLOSED = re.compile(r"[\]}]")
_UP_TO_EVENT = re.compile(r"[ \t\r\n,]*")
_BETWEEN = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_EVENT_END = re.compile(r"\}(?=[ \t\r\n]*(?:,[ \t\r\n]*\{|\]))")
_MAX_ENDS = 3
"""Places where a malformed event may end that are tried."""
_MAX_SINGLE = 4096
_MAX_VALUE: Final = 256 << 20
"""Characters of one event, or of one value next to the events; lists of groups of 100,000 ranks have a few million."""
_MAX_BLANKS: Final = 16 << 20
"""Blanks in a row."""
_MIN_SECONDS: Final = 20.0
_CHARACTERS_PER_S: Final = 1e6
"""A trace is read at 50 to 100 million characters per second, or one event after the other at a tenth of that."""
_ESCAPE: Final = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NO_NUMBER: Final = re.compile(r"(?<=: )(-?)(nan|inf)(?=[\s,}\]])")
_TEXT_BEGIN: Final = re.compile(r'"(?:name|Call stack|Module Hierarchy)"\s*:\s*"')
_TEXT_END: Final = re.compile(r'"\s*(?:,\s*"[\w .%()/-]+"\s*:|\})')
"""Strings that may hold a quote, up to the quote that a key or the end of an object follows."""
_QUOTE: Final = re.compile(r'(?<!\\)((?:\\\\)*)"')


class KinetoJson:
    """The events of a trace in blocks, and the other values in its file.

    `others` holds the values next to the events, whatever their order, once the blocks have been read.
    """

    def __init__(self, pieces: Iterator[str], where: str) -> None:
        self.others: dict[str, Any] = {}
        self.events = 0
        """Decoded so far."""
        self.mended = 0
        """Events of them that are no valid JSON as written."""
        self.unreadable = 0
        """Events that could not be read at all."""
        self.counted = False
        """Whether the error that ended the reading says how many events there were."""
        self.has_list = False
        self.where = where
        self._pieces = pieces
        self._text = ""
        self._at = 0
        self._ended = False
        self._separator = ""
        self._guess = True
        """Whether the end of a block is worth guessing: where it was wrong, not again in the same text."""
        self._exact = False
        self._decoder = json.JSONDecoder()
        self._decode_block = _block_decoder()
        self._deadline = Deadline(_MIN_SECONDS, "reading the trace", where)

    def blocks(self) -> Iterator[list[Any]]:
        """Yields the events, many at a time."""
        first = self._next()
        if first == "[":
            self._at += 1
            yield from self._list()
        elif first == "{":
            self._at += 1
            try:
                yield from self._object()
            except _Malformed as malformed:
                self._broken(malformed.why)
        else:
            self._fail("wrong-format", f"this is no JSON: it begins with {shortened(self._text[:20])!r}", NO_PROFILE)

    def _object(self) -> Iterator[list[Any]]:
        while (mark := self._next()) != "}":
            if mark == ",":
                self._at += 1
                continue
            if mark != '"':
                self._broken("a name in quotes should follow")
            key = self._value()
            if self._next() != ":":
                self._broken(f'a value of "{shortened(str(key))}" should follow')
            self._at += 1
            if key == "nodes" and "schema" in self.others:
                self._fail(
                    "wrong-format",
                    "this is a PyTorch execution trace (ExecutionTraceObserver): it has no times of a device",
                    "give the profiler's trace of the same steps (export_chrome_trace); foretrace inspect reads both",
                )
            if key == "traceEvents" and self._next() == "[":
                self._at += 1
                yield from self._list()
            else:
                self.others[key] = check_nesting(self._value(), self.where)
        self._at += 1

    def _list(self) -> Iterator[list[Any]]:
        """Yields the events up to the bracket that closes them."""
        self.has_list = True
        single: list[Any] = []
        while True:
            block = self._block()
            if block is not None:
                if single:
                    yield single
                    single = []
                yield block
                continue
            mark = self._next()
            if mark == "]":
                self._at += 1
                break
            if mark == ",":
                self._at += 1
            else:
                single += self._event()
            if len(single) == _MAX_SINGLE:
                yield single
                single = []
        if single:
            yield single

    def _block(self) -> list[Any] | None:
        """Returns the events of the text at hand except the last.

        None if the text does not end with an event, or if an event is malformed.
        """
        if not self._separator or not self._guess:
            return None
        self._at = _UP_TO_EVENT.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches nothing too
        end = self._text.rfind(self._separator, self._at) + 1
        if end <= self._at:
            return None
        text = f"[{self._text[self._at : end]}]"
        try:
            events: list[Any] = self._decode_block(text)
            if not self._exact and _too_coarse(events):
                self._keep_digits()
                events = self._decode_block(text)
        except (ValueError, RecursionError):
            self._guess = False
            return None
        self._at = end + len(self._separator) - 2
        self.events += len(events)
        self._more()
        return events

    def _event(self) -> list[Any]:
        """Returns the event that begins here, mended if it is malformed; nothing if it cannot be mended."""
        begin = self._at
        try:
            event = self._value()
            if not self._exact and _too_coarse([event]):
                self._keep_digits()
                self._at = begin
                event = self._value()
        except _Malformed as malformed:
            return self._mended(malformed)
        between = _BETWEEN.match(self._text, self._at)
        if between and self._text.startswith("{", between.end()):
            self._separator = f"}}{between.group()}{{"
        self.events += 1
        return [event]

    def _mended(self, malformed: _Malformed) -> list[Any]:
        """Makes an event of invalid JSON valid if that is possible; otherwise passes over it and counts it."""
        self._deadline.check()
        look = malformed.at
        broken_after = look - self._at
        ends: list[int] = []
        while len(ends) < _MAX_ENDS:
            end = _EVENT_END.search(self._text, look)
            if end is None:
                if ends or not self._more():
                    break
                look = broken_after
                continue
            look = end.end()
            ends.append(look)
            try:
                event = json.loads(_repaired(self._text[self._at : look]), strict=False)
            except (ValueError, RecursionError):
                continue
            self._at = look
            self.events += 1
            self.mended += 1
            return [event]
        if not ends or not self.events:
            self._fail(
                "bad-syntax", f"event {self.events + self.unreadable + 1:,} is no JSON: {malformed.why}", NO_PROFILE
            )
        self._at = ends[0]
        self.unreadable += 1
        return []

    def _keep_digits(self) -> None:
        self._exact = True
        self._decoder = json.JSONDecoder(parse_float=str)
        self._decode_block = self._decoder.decode

    def _value(self) -> Any:
        """Returns the whole value that begins here; raises `_Malformed` if there is none."""
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                at = getattr(error, "pos", self._at)
                why = getattr(error, "msg", "nested too deeply")
                # What is cut off at the end of this piece looks broken there; elsewhere it is.
                if ("Unterminated" in why or at + 16 >= len(self._text)) and self._more():
                    continue
                if "Unterminated" in why or not _CLOSED.search(self._text, at):
                    self._cut_off()
                raise _Malformed(why, at) from None
            if end < len(self._text) or not self._more():
                self._at = end
                return value

    def _next(self) -> str:
        """Moves to the next character that is not a space and returns it; raises an error at the end of the file."""
        blanks = 0
        while True:
            at = self._at
            self._at = _SPACE.match(self._text, at).end()  # type: ignore[union-attr]  # it matches nothing too
            if self._at < len(self._text):
                return self._text[self._at]
            blanks += self._at - at
            if blanks > limited(_MAX_BLANKS):
                raise too_large(f"there are more than {limited(_MAX_BLANKS):,} blanks in a row", self.where)
            if not self._more():
                self._cut_off()

    def _more(self) -> bool:
        """Reads on, at least doubling what is still to be decoded, so that long values are tried but a few times."""
        if self._ended:
            return False
        rest = self._text[self._at :]
        if len(rest) > limited(_MAX_VALUE):
            raise too_large(f"one value has more than {limited(_MAX_VALUE):,} characters", self.where)
        self._deadline.check()
        new: list[str] = []
        size = 0
        while size <= len(rest):
            piece = next(self._pieces, None)
            if piece is None:
                self._ended = True
                break
            new.append(piece)
            size += len(piece)
        self._deadline.extend(size / _CHARACTERS_PER_S)
        if new:
            self._text, self._at, self._guess = rest + "".join(new), 0, True
        return bool(new)

    def _cut_off(self) -> NoReturn:
        if not self.has_list and not self.others and not self._text.strip():
            self._fail("empty-file", "the file has no content", NO_PROFILE)
        self.counted = True
        self._fail(
            "truncated-file",
            f"the JSON is cut off, after {self.events:,} events",
            "was the export interrupted? export it again",
        )

    def _broken(self, why: str) -> NoReturn:
        text = shortened(self._text[self._at : self._at + 20])
        self.counted = True
        self._fail("bad-syntax", f"this is no JSON, after {self.events:,} events, at {text!r}: {why}", NO_PROFILE)

    def _fail(self, code: str, message: str, hint: str) -> NoReturn:
        raise InputError(code, message, where=self.where, hint=hint)


def _block_decoder() -> Callable[[str], Any]:
    """Returns the fastest decoder of valid JSON: orjson where it is installed, 1.4 times as fast for a whole trace.

    It refuses some of what Python's decoder takes; such a block is decoded by that, event by event.
    """
    try:
        from orjson import loads
    except ImportError:
        return json.loads
    decode: Callable[[str], Any] = loads
    return decode


class _Malformed(Exception):  # noqa: N818  # never seen outside
    def __init__(self, why: str, at: int) -> None:
        super().__init__(why)
        self.why = why
        self.at = at


def _repaired(event: str) -> str:
    """Returns the text of one event, which an older profiler wrote as invalid JSON, as Python's decoder takes it.

    Names of Python functions and paths of Windows were written as they are, with backslashes, quotes and control
    characters (pytorch#98432, #113001, #130622, kineto#336), and numbers that are none as C++ prints them. Backslashes
    and quotes are escaped here. Control characters stay: a decoder that is not strict takes them.
    """
    text = _NO_NUMBER.sub(lambda match: "NaN" if match[2] == "nan" else f"{match[1]}Infinity", event)
    text = _ESCAPE.sub(r"\\\\", text)
    ends = [end.start() for end in _TEXT_END.finditer(text)]
    parts: list[str] = []
    done = 0
    for begin in _TEXT_BEGIN.finditer(text):
        at = bisect_left(ends, begin.end())
        if begin.start() >= done and at < len(ends):
            parts += text[done : begin.end()], _QUOTE.sub(r'\1\\"', text[begin.end() : ends[at]])
            done = ends[at]
    return "".join((*parts, text[done:]))


def _too_coarse(events: list[Any]) -> bool:
    """Returns whether the times of these events lose nanoseconds as floats.

    The last event stands for all, because a file has one clock.
    """
    last = events[-1] if events else None
    ts = last.get("ts") if isinstance(last, dict) else None
    return isinstance(ts, float) and abs(ts) >= SAFE_US
