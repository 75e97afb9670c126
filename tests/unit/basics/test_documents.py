"""Small documents: what is read, and that what is wrong is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics.documents import Document, Fields, presets_of
from foretrace.basics.errors import InputError
from foretrace.basics.units import format_bandwidth, parse_bandwidth


def document(path: str | Path = "note.yaml", *, shipped: bool = False) -> Document:
    return Document(str(path), "note", "expected a note", "rate: 5GB/s", shipped=shipped)


def fields(text: str, *known: str, required: tuple[str, ...] = ()) -> Fields:
    return document().fields(document().compose(text), known, required)


def refusal(call: object, *arguments: object) -> InputError:
    with pytest.raises(InputError) as refused:
        call(*arguments)  # type: ignore[operator]
    assert refused.value.hint
    return refused.value


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the note is empty"),
        (b"\xef\xbb\xbf \n", "the note is empty"),
        (b"\x89PNG\x00", "the note is not text"),
        (b"a: \xff", "the note is not text"),
        (b"a" * 1_000_001, "the note is larger than 1 MB"),
    ],
)
def test_files_that_are_no_documents(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "note.yaml"
    path.write_bytes(data)
    refused = refusal(document(path).read)
    assert problem in refused.message
    assert refused.where == str(path)


@pytest.mark.parametrize("text", ["{rate: 1,000}", "{rate: 1,000,000}", "{rate: 1,000GB/s}"])
def test_a_comma_within_a_number_of_a_flow_mapping(text: str) -> None:
    refused = refusal(fields, text, "rate")
    assert refused.code == "unknown-field" and "1000" in (refused.hint or "")


@pytest.mark.parametrize("text", ["-5GB/s", "0GB/s", "1e300GB/s"])
def test_a_quantity_out_of_range_names_the_range(text: str) -> None:
    rate = fields(f"rate: {text}", "rate")
    refused = refusal(rate.number, "rate", parse_bandwidth, 1e9, 2e9, format_bandwidth)
    assert (refused.code, refused.hint) == ("out-of-range", "expected 1.00 GB/s to 2.00 GB/s")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(document(tmp_path / "missing").read).code == "file-not-found"
    assert refusal(document(tmp_path).read).code == "folder-instead-of-file"
    assert refusal(document("a\0b").read).code == "unreadable-file"


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("a: [1", "note.yaml:1", "not valid YAML"),
        ("a: 1\nb: c: d\n", "note.yaml:2", "not valid YAML"),
        ("a: 1\nb: \x07\n", "note.yaml:2", "not valid YAML"),
        ("a: 1\n--- \nb: 2\n", "note.yaml:2", "not valid YAML"),
        ("a: *nowhere\n", "note.yaml:1", "not valid YAML"),
        ("{" * 5_000, "note.yaml", "nested too deep"),
        ("# only a remark\n", "note.yaml", "the note is empty"),
    ],
)
def test_text_that_is_no_yaml(text: str, where: str, problem: str) -> None:
    refused = refusal(document().compose, text)
    assert problem in refused.message
    assert refused.where == where


def test_a_json_file_must_be_json() -> None:
    refused = refusal(document("note.json").compose, '{"a": 1,\n"b": }')
    assert refused.where == "note.json:2"
    assert refused.code == "bad-syntax"


def test_json_with_tabs_and_escapes_reads_as_written() -> None:
    found = fields('{\n\t"title":\t"a \\ud83d\\ude80 b",\n\t"on": true}', "title", "on")
    assert found.text("title", "") == "a \N{ROCKET} b"
    assert found.flag("on", False)


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("name: a\nrte: 1\n", "note.yaml:2", 'field "rte" is not known; did you mean rate?'),
        ("name: a\nname: b\n", "note.yaml:2", "field name is given twice"),
        ("\n\nname: a\n", "note.yaml:3", "field rate is missing"),
        ("- name\n", "note.yaml:1", "expected a mapping with rate"),
        ("? [name]\n: a\n", "note.yaml:1", "expected a field name"),
        ("<<: {name: a}\n", "note.yaml:1", 'field "<<" is not known'),
        ("&again [*again]\n", "note.yaml:1", "an alias stands for what it is part of"),
    ],
)
def test_wrong_mappings(text: str, where: str, problem: str) -> None:
    refused = refusal(lambda: fields(text, "name", "rate", required=("rate",)))
    assert problem in refused.message
    assert refused.where == where


def test_an_unknown_field_lists_the_known() -> None:
    assert refusal(lambda: fields("x: 1\n", "name", "rate")).hint == "known: name rate"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("400 apples", 'has the unknown unit "apples"'),
        ("8GB", "did you mean GBps or GB/s?"),
        ("-1GB/s", "is negative"),
        ("0GB/s", "rate 0GB/s is 0 B/s, which cannot be meant"),
        ("9e15GB/s", "which cannot be meant"),
        ("9e30GB/s", "is too large"),
        (".nan", "does not start with a number"),
        ("[5GB/s]", "expected rate: a number"),
        ("", "expected rate: a number"),
    ],
)
def test_quantities_name_their_line(value: str, problem: str) -> None:
    found = fields(f"# remark\nrate: {value}\n", "rate")
    refused = refusal(lambda: found.number("rate", parse_bandwidth, 1.0, 1e15, format_bandwidth))
    assert problem in refused.message
    assert refused.where == "note.yaml:2"


def test_flags_and_texts() -> None:
    found = fields("on: Yes\nnotes:\n- one\n- >\n  two\n  lines\nalone: three\n", "on", "notes", "alone")
    assert found.flag("on", False)
    assert found.flag("off", True)
    assert found.texts("notes") == ("one", "two lines")
    assert found.texts("alone") == ("three",)
    assert found.texts("none") == ()
    assert refusal(lambda: fields("on: perhaps\n", "on").flag("on", False)).where == "note.yaml:1"


def test_text_that_would_play_with_a_terminal_is_refused() -> None:
    refused = refusal(lambda: fields('a: 1\nname: "\\e[31mred"\n', "a", "name").text("name", ""))
    assert refused.where == "note.yaml:2"
    assert "cannot be shown" in refused.message


def test_an_alias_is_what_it_points_to() -> None:
    assert fields("name: &one two\ntitle: *one\n", "name", "title").text("title", "") == "two"


@given(st.text(max_size=60))
def test_no_text_makes_the_reader_fail_but_by_its_own_error(text: str) -> None:
    try:
        found = fields(text, "name", "rate")
        found.text("name", "")
        if "rate" in found:
            found.number("rate", parse_bandwidth, 1.0, 1e15, format_bandwidth)
    except InputError as error:
        assert error.hint


def test_both_loaders_find_the_same_lines() -> None:
    text = "a: 1\n\nb:\n- c\n- {d: e}\n"
    slow, fast = (document(shipped=shipped).compose(text) for shipped in (False, True))
    lines = [
        [(key.value, key.start_mark.line, value.start_mark.line) for key, value in root.value] for root in (slow, fast)
    ]
    assert lines[0] == lines[1] == [("a", 0, 0), ("b", 2, 3)]


def test_an_entry_of_a_list_is_read_alone_and_keeps_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "things.yaml"
    path.write_text("# first\none:\n  size: 1\n\ntwo-2.5:\n  aliases: [deux, zwei]\n  size: 2\n")
    found = presets_of(Document(str(path), "list of things", "", "", shipped=True))
    assert [one.names for one in found.values()] == [("one",), ("two-2.5", "deux", "zwei")]
    assert found["two-2.5"].document.where(found["two-2.5"].node()) == f"{path}:6"
    assert "size: 1" not in found["two-2.5"].text


@pytest.mark.parametrize("text", ["[" + "1," * 300_001 + "1]", "- 1\n" * 300_001, "{" + "a: 1\n" * 300_001])
def test_more_values_than_any_document_has_are_not_composed(text: str) -> None:
    assert refusal(document().compose, text).code == "input-too-large"
