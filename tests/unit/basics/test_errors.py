"""Errors and diagnostics stay short and on one line, whatever they repeat."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import Diagnostic, InputError


@pytest.mark.parametrize("text", ["a" * 100_000, "a b " * 25_000, '"' * 100_000, "a\n" * 50_000, "é" * 100_000])
def test_messages_are_one_bounded_line(text: str) -> None:
    error = InputError("bad-value", f'"{text}" is not known', where=f"{text}:3", hint=f"known: {text}")
    assert len(str(error)) < 3000
    assert str(error).count("\n") == 1
    assert str(error).partition(": ")[0].endswith(":3")
    assert len(Diagnostic("note", "guessed", text).message) < 1100


def test_only_the_repeated_text_is_cut() -> None:
    words = "is not a value that can be meant by anybody who reads this sentence to its very end, not even by chance"
    error = InputError("bad-value", f'"{"a" * 500}" and "b" {words}')
    assert error.message.endswith(f'"b" {words}')
    assert error.message.count("a") < 80


def test_ordinary_messages_stay() -> None:
    known = ", ".join(f"name{number}" for number in range(60))
    assert InputError("unknown-name", "x", hint=known).hint == known
