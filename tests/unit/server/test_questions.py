"""A question is read strictly: whatever it holds, it is either a question about presets or an error with a code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import foretrace as ft
from foretrace.basics.errors import ForetraceError
from foretrace.hardware.changes import CHANGES
from foretrace.inputs.option_texts import HOST_WHAT_IFS, split_what_ifs
from foretrace.readings.scenario import Scenario
from foretrace.readings.scenario_texts import read_what_ifs
from foretrace.server.question_nouns import command_words, machine_key
from foretrace.server.questions import MAX_LIST, MAX_TEXT, FilePlace, WebQuestion
from foretrace.server.start import FAMILIES, what_ifs

MODEL = {"ask": "step", "input": {"model": "Llama-3-70B"}}


def code_of(values: object) -> str:
    """The code of the error that a question is."""
    with pytest.raises(ForetraceError) as caught:
        WebQuestion.read(values)
    return caught.value.code


def test_a_question_is_the_same_after_it_was_written() -> None:
    values = {
        **MODEL,
        "options": {"tp": "4", "gpus": "512", "sequence_parallel": False},
        "machine": {"cluster": "H100-DGX", "overlap_cost": False},
        "scenario": {"what_if": ["nic=2x"], "steady": True},
    }
    question = WebQuestion.read(values)
    assert WebQuestion.read(question.to_dict()) == question
    assert question.names == ("llama3-70b",)
    assert dict(question.machine)["cluster"] == "h100-dgx"


@pytest.mark.parametrize(
    ("value", "seconds"), [(90, 90), (0.5, 0.5), ("90", 90), ("90s", 90), ("2 min", 120), (" 0.1h", 360)]
)
def test_the_time_of_a_search_is_a_number_or_a_text(value: object, seconds: float) -> None:
    question = WebQuestion.read({**MODEL, "ask": "plan", "search": {"time_s": value}})
    assert question.search_s == pytest.approx(seconds)


def test_a_time_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ForetraceError) as caught:
        WebQuestion.read({**MODEL, "ask": "plan", "search": {"time_s": "soon"}})
    assert caught.value.where == "search.time_s"


def test_every_what_if_of_the_start_page_can_be_asked() -> None:
    rows = what_ifs()
    texts = [f"{row['name']}={row['value']}" if row["value"] else row["name"] for row in rows]
    for text in texts:
        options, rest = split_what_ifs([text])
        assert options or read_what_ifs(rest)
        WebQuestion.read({**MODEL, "scenario": {"what_if": [text]}})
    assert {*CHANGES, *HOST_WHAT_IFS, "batch"} <= {row["name"] for row in rows}
    job = ft.model("mixtral-8x7b", ft.Plan(gpus=16, tp=2, cp=2, pp=2, ep=2, gbs=16))
    families = Scenario(dict.fromkeys(FAMILIES, 2.0))
    assert ft.simulate(job, ft.Machine("h100-dgx"), families, even_if_oom=True).step_time_s > 0


def test_the_order_of_options_does_not_matter() -> None:
    first = WebQuestion.read({**MODEL, "options": {"tp": "4", "pp": "2"}})
    assert first.text == WebQuestion.read({**MODEL, "options": {"pp": "2", "tp": "4"}}).text


@pytest.mark.parametrize(
    ("values", "code"),
    [
        (None, "bad-value"),
        ([], "bad-value"),
        ("step", "bad-value"),
        ({}, "missing-field"),
        ({**MODEL, "option": {}}, "unknown-field"),
        ({**MODEL, "ask": "stop"}, "unknown-name"),
        ({**MODEL, "ask": 1}, "bad-value"),
        ({**MODEL, "input": {"model": "a", "upload": "b"}}, "bad-value"),
        ({**MODEL, "input": {"model": 7}}, "bad-value"),
        ({**MODEL, "input": {"model": "no-such-model-9"}}, "unknown-name"),
        ({**MODEL, "input": {"model": "/etc/passwd"}}, "unknown-name"),
        ({**MODEL, "input": {"model": "examples/bloom-176b.yaml"}}, "unknown-name"),
        ({**MODEL, "input": {"example": "../../pyproject.toml"}}, "unknown-name"),
        ({**MODEL, "input": {"upload": "../../../etc"}}, "bad-value"),
        ({**MODEL, "input": {"path": "/etc/passwd"}}, "unknown-field"),
        ({**MODEL, "options": {"gpu": "8"}}, "unknown-field"),
        ({**MODEL, "options": {"gpus": 8}}, "bad-value"),
        ({**MODEL, "options": {"gpus": None}}, "bad-value"),
        ({**MODEL, "options": {"sequence_parallel": "yes"}}, "bad-value"),
        ({**MODEL, "options": {"sizes": "a=1"}}, "bad-value"),
        ({**MODEL, "options": {"sizes": ["a=1"] * (MAX_LIST + 1)}}, "bad-value"),
        ({**MODEL, "options": {"gpus": "8" * (MAX_TEXT + 1)}}, "bad-value"),
        ({**MODEL, "options": {"gpus": "8\0"}}, "bad-value"),
        ({**MODEL, "machine": {"placement": "/etc/passwd"}}, "unknown-field"),
        ({**MODEL, "machine": {"calibration": "x"}}, "unknown-field"),
        ({**MODEL, "machine": {"cluster": "/etc/passwd"}}, "unknown-name"),
        ({**MODEL, "machine": {"cluster": "examples/clusters/a100_2x8.yaml"}}, "unknown-name"),
        ({**MODEL, "machine": {"network": "packets"}}, "unknown-name"),
        ({**MODEL, "machine": {"overlap_cost": 1}}, "bad-value"),
        ({**MODEL, "scenario": {"what_if": "nic=2x"}}, "bad-value"),
        ({**MODEL, "scenario": {"what_if": ["cluster=/etc/passwd"]}}, "unknown-name"),
        ({**MODEL, "scenario": {"what_if": [" gpu = ./x.yaml"]}}, "unknown-name"),
        ({**MODEL, "search": {"time_s": 1}}, "unknown-field"),
        ({**MODEL, "ask": "plan", "search": {"time_s": 1e9}}, "out-of-range"),
        ({**MODEL, "ask": "plan", "search": {"time_s": True}}, "out-of-range"),
        ({**MODEL, "ask": "plan", "search": {"time_s": "an hour"}}, "bad-value"),
        ({**MODEL, "ask": "plan", "search": {"time_s": "1h"}}, "out-of-range"),
        ({**MODEL, "ask": "plan", "search": {"time_s": "2m"}}, "bad-value"),
        ({**MODEL, "ask": "plan", "search": {"time_s": "-1"}}, "out-of-range"),
        ({**MODEL, "ask": "plan", "search": {"axes": {"nothing": "1"}}}, "unknown-field"),
        ({**MODEL, "ask": "plan", "input": {"example": "moe_128gpu"}}, "bad-value"),
        ({**MODEL, "ask": "plan", "scenario": {"what_if": ["compute=10x"]}}, "unknown-field"),
        ({**MODEL, "ask": "plan", "scenario": {"jitter": "3%"}}, "unknown-field"),
        ({**MODEL, "answers": ["a", "b"]}, "unknown-field"),
        ({"ask": "compare", "answers": ["x" * 22]}, "bad-value"),
        ({"ask": "compare", "answers": ["x" * 22, "../../../../../etc/pas"]}, "bad-value"),
        ({"ask": "compare", "answers": ["x" * 22] * 2, "input": {"model": "llama3-70b"}}, "unknown-field"),
    ],
)
def test_a_mistake_is_an_error_with_a_code(values: Any, code: str) -> None:
    assert code_of(values) == code


def test_a_search_may_state_an_empty_scenario() -> None:
    for scenario in ({}, {"what_if": [], "jitter": None}):
        question = WebQuestion.read({**MODEL, "ask": "plan", "scenario": scenario})
        assert "scenario" not in question.to_dict()


def test_only_a_prediction_is_asked_for_even_if_it_does_not_fit() -> None:
    step, explanation = (WebQuestion.read({**MODEL, "ask": ask}) for ask in ("step", "explain"))
    assert "--even-if-oom" in command_words(step, (), even_if_oom=True)
    assert "--even-if-oom" not in command_words(explanation, (), even_if_oom=True)


def test_a_file_whose_name_begins_with_a_dash_is_no_option() -> None:
    question = WebQuestion.read({"input": {"upload": "a" * 22}})
    assert command_words(question, ("--json.txt", "a.txt")) == ("simulate", "./--json.txt", "a.txt")


def test_the_place_of_files_is_the_same_after_it_was_sent() -> None:
    for place in (FilePlace(), FilePlace("/uploads/a", ("a.txt", "b.txt"), ("A!.txt", "b.txt"), "b")):
        assert FilePlace.read(json.loads(json.dumps(place.to_dict()))) == place


def test_a_place_that_is_not_there_any_more_is_named(tmp_path: Path) -> None:
    with pytest.raises(ForetraceError) as caught:
        FilePlace(str(tmp_path / "gone"), ("a.txt",)).enter()
    assert caught.value.code == "unknown-id"


def test_the_command_of_a_search_states_the_limit_of_the_page() -> None:
    question = WebQuestion.read({**MODEL, "ask": "plan", "options": {"gpus": "64"}, "machine": {"network": "analytic"}})
    assert command_words(question, ()) == ("plan", "llama3-70b", "--gpus", "64", "--time", "60s")


def test_uploads_with_the_same_names_have_machines_of_their_own() -> None:
    job = ft.model("llama3-8b", ft.Plan(gpus=8))
    first, second = (WebQuestion.read({"input": {"upload": letter * 22}}) for letter in "ab")
    assert machine_key(first, job) != machine_key(second, job)
    cluster = {"machine": {"cluster": "h100-dgx"}}
    first, second = (WebQuestion.read({"input": {"upload": letter * 22}, **cluster}) for letter in "ab")
    assert machine_key(first, job) == machine_key(second, job)
