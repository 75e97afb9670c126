"""`foretrace report`: each answer under the name of its file, how it was made, and the differences."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

import foretrace
from foretrace import Answer
from foretrace.program.file import load_timeline, save_timeline
from output_jobs import write_inputs
from page_elements import PageElements, check_page
from unit.cli.command_line import call

ON = ("--cluster", "h100-dgx", "--no-silicon")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, microbatches in (("one", "1"), ("two", "2")):
        assert call("simulate", "job.txt", *ON, "--microbatches", microbatches, "--save", f"{name}.answer") == 0
    assert call("explain", "run", "--save", "measured.answer") == 0
    return tmp_path


def report(*names: str) -> PageElements:
    assert call("report", *names, "-o", "page.html") == 0
    return check_page(Path("page.html").read_text(encoding="utf-8"))


def articles(page: PageElements) -> list[str]:
    """The texts of the articles, which begin with what kind of answer they are."""
    return re.split(r"(?:recorded step|simulation|comparison) (?=\S+\.answer)", page.text)[1:]


def links() -> list[str]:
    nav = re.search(r"<nav .*?</nav>", Path("page.html").read_text(encoding="utf-8"), re.DOTALL)
    assert nav is not None
    return re.findall(r">([^<]+)</a>", nav[0])


@pytest.mark.usefixtures("place")
def test_each_answer_has_the_name_of_its_file() -> None:
    report("one.answer", "two.answer")
    difference, first, second = links()
    assert first.startswith("one.answer: ") and second.startswith("two.answer: ")
    assert difference == "two.answer compared with one.answer"


def test_answers_of_one_name_have_their_folders(place: Path) -> None:
    (place / "new").mkdir()
    (place / "two.answer").rename(place / "new" / "one.answer")
    report("one.answer", "new/one.answer")
    assert [name.partition(":")[0] for name in links()[1:]] == ["one.answer", "new/one.answer"]


@pytest.mark.usefixtures("place")
def test_sides_of_a_difference_are_called_by_their_files() -> None:
    difference, *_ = articles(report("one.answer", "two.answer"))
    assert "one.answer" in difference and "of one.answer" in difference
    assert not re.search(r"\b[AB]\b", difference.partition("How to reproduce it")[0])


@pytest.mark.usefixtures("place")
def test_the_json_of_a_comparison_keeps_its_keys() -> None:
    from foretrace.readings.compare import compare
    from foretrace.report.compare import comparison_json

    one, two, measured = (foretrace.open(f"{name}.answer") for name in ("one", "two", "measured"))
    assert isinstance(one, Answer) and isinstance(two, Answer) and isinstance(measured, Answer)
    assert {"a", "b"} <= set(comparison_json(compare(two, one, names=("two", "one"))))
    named = comparison_json(compare(one, measured, names=("one", "measured")))
    assert {"predicted", "measured"} <= set(named)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("names", [("measured.answer", "one.answer"), ("one.answer", "measured.answer")])
def test_a_prediction_is_compared_with_the_measured_step(names: tuple[str, str]) -> None:
    difference, *_ = articles(report(*names))
    assert links()[0] == "one.answer compared with measured.answer"
    assert "one.answer (predicted)" in difference and "measured.answer (measured)" in difference
    assert "Error" in difference


def test_each_answer_says_how_it_was_made(place: Path) -> None:
    difference, first, second = articles(report("one.answer", "two.answer"))
    for text, microbatches, name in ((first, 1, "one"), (second, 2, "two")):
        options = f"--cluster h100-dgx --no-silicon --microbatches {microbatches} --save {name}.answer"
        assert f"How to reproduce it foretrace simulate job.txt {options} " in text
        assert f"foretrace {foretrace.__version__}" in text
        assert hashlib.sha256((place / "job.txt").read_bytes()).hexdigest() in text
    assert "foretrace report one.answer two.answer -o page.html" in difference
    for name in ("one", "two"):
        assert hashlib.sha256((place / f"{name}.answer").read_bytes()).hexdigest() in difference


def test_the_page_of_one_answer_says_how_both_were_made(place: Path) -> None:
    for words in (
        ["report", "one.answer", "-o"],
        ["simulate", "one.answer", "--html"],
        ["explain", "one.answer", "--html"],
    ):
        assert call(*words, "page.html") == 0
        text = check_page(Path("page.html").read_text(encoding="utf-8")).text
        assert "How to reproduce it foretrace simulate job.txt" in text
        assert f"this page foretrace {' '.join(words)} page.html" in text
        assert hashlib.sha256((place / "one.answer").read_bytes()).hexdigest() in text


@pytest.mark.usefixtures("place")
def test_a_page_on_memory_says_how_its_saved_answer_was_made() -> None:
    words = ("predict", "gpt2", "--gpus", "2", "--gbs", "2", *ON, "--save", "gpt2.answer")
    assert call(*words) == 0
    assert call("memory", "gpt2.answer", "--html", "page.html") == 0
    text = check_page(Path("page.html").read_text(encoding="utf-8")).text
    assert f"foretrace {' '.join(words)}" in text
    assert "this page foretrace memory gpt2.answer --html page.html" in text


@pytest.mark.usefixtures("place")
def test_a_copy_of_a_saved_answer_keeps_its_origin() -> None:
    assert call("simulate", "one.answer", "--save", "copy.answer") == 0
    one, copy = (foretrace.open(name) for name in ("one.answer", "copy.answer"))
    assert isinstance(one, Answer) and isinstance(copy, Answer)
    assert one.origin is not None and copy.origin == one.origin
    assert call("simulate", "one.answer", *ON, "--straggler", "0=2x", "--save", "slow.answer") == 0
    slow = foretrace.open("slow.answer")
    assert isinstance(slow, Answer) and slow.origin is not None
    assert slow.origin.words[:2] == ("simulate", "one.answer")
    assert [file.name for file in slow.origin.files] == ["one.answer"]


def test_a_file_of_an_earlier_version_opens_without_origin_and_placement(place: Path) -> None:
    timeline, header = load_timeline(place / "one.answer")
    del header["origin"]
    save_timeline(timeline, place / "old.answer", header)
    old, one = foretrace.open("old.answer"), foretrace.open("one.answer")
    assert isinstance(old, Answer) and isinstance(one, Answer)
    assert old.origin is not None and not old.origin.is_known
    assert old.to_dict() == one.to_dict()
    old.save("copy.answer")
    copy = foretrace.open("copy.answer")
    assert isinstance(copy, Answer) and copy.origin == old.origin
    assert "this page foretrace report old.answer" in report("old.answer").text


@pytest.mark.parametrize("origin", [1, {"words": "x"}, {"words": [], "versions": [], "files": [{"name": 3}]}])
def test_an_origin_of_another_form_is_refused(origin: object, place: Path) -> None:
    timeline, header = load_timeline(place / "one.answer")
    save_timeline(timeline, place / "odd.answer", {**header, "origin": origin})
    assert call("report", "odd.answer", "-o", "page.html") == 3


def test_an_origin_cannot_write_into_the_page(place: Path) -> None:
    answer = foretrace.open("one.answer")
    assert isinstance(answer, Answer) and answer.origin is not None
    evil = "<script>alert(1)</script>"
    origin = replace(answer.origin, words=("simulate", evil), versions=(evil,))
    replace(answer, origin=origin).save(place / "evil.answer")
    page = report("evil.answer")
    assert evil in page.text and len(page.named("script")) == 2


@pytest.mark.usefixtures("place")
def test_what_cannot_be_a_report_is_refused() -> None:
    for code, words in (
        (2, ("one.answer", "-o", "page.svg")),
        (2, ("one.answer", "one.answer", "-o", "page.html")),
        (3, ("job.txt", "-o", "page.html")),
    ):
        assert call("report", *words) == code
        assert not Path(words[-1]).exists()
