"""The way of a question through a real server: its events, its answer, the command that gives the same."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import foretrace
from page_elements import check_page
from server_client import LONG_SEARCH, PREDICTION, SEEDS, Browser, server
from unit.cli.command_line import answer_of

REPOSITORY = Path(__file__).resolve().parents[3]


def changed(question: Mapping[str, Any], **groups: Mapping[str, Any]) -> dict[str, Any]:
    """A question with other values in some of its groups."""
    return {**question, **{name: {**question.get(name, {}), **values} for name, values in groups.items()}}


def test_quick_numbers_come_first_and_are_those_of_the_answer(browser: Browser) -> None:
    events = list(browser.events(browser.begin(PREDICTION)))
    names = [name for name, _ in events if name not in ("queued", "progress")]
    assert names == ["quick", "answer"]
    quick, answer = (values for name, values in events if name in names)
    assert quick["summary"]["step_time_s"] == answer["summary"]["step_time_s"] > 0
    low_s, high_s = answer["summary"]["band_s"]
    assert low_s < answer["summary"]["step_time_s"] < high_s
    assert len(quick["html"]) < len(answer["html"])


def test_events_are_replayed_to_who_comes_late(browser: Browser) -> None:
    job = browser.begin(PREDICTION)
    first = list(browser.events(job))
    again = list(browser.events(job))
    assert [name for name, _ in again][-2:] == ["quick", "answer"]
    assert again[-1] == first[-1]


@pytest.mark.parametrize(
    "question",
    [
        PREDICTION,
        changed(PREDICTION, options={"tp": "4", "sequence_parallel": False, "overlap": "dp,tp", "mbs": "2"}),
        changed(PREDICTION, options={"tp": "1", "gbs": "64", "recompute": "none", "seq_len": "16k"}),
        changed(
            PREDICTION,
            machine={"prices": "model", "overlap_cost": False},
            scenario={"what_if": ["nic=2x", "gpu=h200-sxm"], "straggler": ["3=1.2x"], "jitter": "3%", "steady": False},
        ),
        changed(PREDICTION, machine={"cluster": "gb200-nvl72", "domain_gpus": "8"}),
        {"ask": "step", "input": {"example": "moe_128gpu"}, "machine": {"cluster": "a100-dgx"}},
        {
            "ask": "step",
            "input": {"example": "moe_ex_situ_rank2"},
            "options": {"mesh": "pp=2,ep=8,dp=8", "pp_comm": "8MiB", "microbatches": "8"},
            "machine": {"cluster": "a100-dgx"},
        },
    ],
)
def test_the_command_gives_the_same_step(
    browser: Browser, question: Mapping[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = browser.answer(question)
    monkeypatch.chdir(REPOSITORY)
    program, *words = shlex.split(answer["command"])
    assert program == "foretrace"
    assert answer_of(capsys, *words)["step_time_s"] == answer["summary"]["step_time_s"]


def test_a_search_shows_its_front_and_its_command_finds_the_same_plan(
    browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    question = {
        "ask": "plan",
        "input": {"model": "llama3-8b"},
        "options": {"gpus": "16", "gbs": "32"},
        "machine": {"cluster": "h100-dgx"},
        "search": {"axes": {"tp": "1,2", "pp": "1", "cp": "1"}, "time_s": 30},
    }
    events = browser.ask(question)
    assert "front" in events
    answer = events["answer"]
    _, *words = shlex.split(answer["command"])
    assert answer_of(capsys, *words)["best"]["step_time_s"] == answer["summary"]["step_time_s"]


def test_a_report_of_two_answers_holds_both_and_their_difference(browser: Browser) -> None:
    base = browser.answer(PREDICTION)
    other = browser.answer(changed(PREDICTION, options={"tp": "4"}))
    address = f"/api/answers/{other['answer']}/report"
    page = check_page(browser.http.get(address, params={"with": base["answer"]}).text)
    assert len(page.named("article")) == 3
    for answer in (base, other):
        assert answer["summary"]["step_text"] in page.text and answer["command"] in page.text
    assert browser.http.get(address, params={"with": "A" * 22}).status_code == 404
    assert browser.http.get(address.replace("report", "json"), params={"with": base["answer"]}).status_code == 404


def test_a_cancelled_search_answers_with_what_it_has(browser: Browser) -> None:
    job = browser.begin(LONG_SEARCH)
    for name, values in browser.events(job):
        if name == "front":
            browser.http.post(f"/api/jobs/{job}/cancel")
        last, result = name, values
    assert last == "answer"
    assert result["summary"]["step_time_s"] > 0
    # Asked again, it is searched for again.
    again = browser.begin(LONG_SEARCH)
    names = []
    for name, _ in browser.events(again):
        names.append(name)
        if name == "front":
            browser.http.post(f"/api/jobs/{again}/cancel")
    assert "front" in names


def test_downloads_of_a_search_are_those_of_the_answer_that_was_shown(tmp_path: Path) -> None:
    with server(tmp_path, "--workers", "1") as first, Browser(first.url) as browser:
        cookies = browser.http.cookies
        job = browser.begin(LONG_SEARCH)
        for name, values in browser.events(job):
            if name == "front":
                browser.http.post(f"/api/jobs/{job}/cancel")
            answer = values
    step_s = answer["summary"]["step_time_s"]
    with server(tmp_path, "--workers", "1") as second, Browser(second.url) as browser:
        browser.http.cookies = cookies
        address = f"/api/answers/{answer['answer']}"
        assert browser.http.get(f"{address}/json").json()["best"]["step_time_s"] == step_s
        assert answer["summary"]["step_text"] in browser.http.get(f"{address}/report").text
        assert browser.http.get(f"{address}/launch").text.startswith("#!")


def test_a_question_that_is_asked_again_has_the_same_address(browser: Browser) -> None:
    first, again = (browser.answer(PREDICTION)["answer"] for _ in range(2))
    assert first == again
    assert len(browser.http.get("/api/history").json()["answers"]) == 1


def test_a_relative_state_folder_serves_uploads_and_downloads(tmp_path: Path) -> None:
    with server(Path("state"), "--workers", "1", folder=tmp_path) as running, Browser(running.url) as browser:
        content = (REPOSITORY / "examples" / "moe_128gpu.txt").read_bytes()
        upload = browser.open_upload({"--json.txt": content}).json()["upload"]
        question = {"ask": "step", "input": {"upload": upload}, "machine": {"cluster": "h100-dgx"}}
        answer = browser.answer(question)
        assert "./--json.txt" in shlex.split(answer["command"])
        assert browser.http.get(f"/api/answers/{answer['answer']}/report").status_code == 200
    assert (tmp_path / "state" / "uploads" / upload).is_dir()


def test_a_new_question_replaces_the_one_before(browser: Browser) -> None:
    slow = changed(PREDICTION, options={"gpus": "1024", "pp": "8", "gbs": "8192"}, machine={"network": "flow"})
    before = browser.begin(slow)
    after = browser.begin(PREDICTION, replaces=before)
    assert "answer" in dict(browser.events(after))
    assert "cancelled" in dict(browser.events(before))


def test_two_answers_are_compared(browser: Browser) -> None:
    base = browser.answer(PREDICTION)
    subject = browser.answer(changed(PREDICTION, options={"tp": "4"}))
    comparison = browser.answer({"ask": "compare", "answers": [base["answer"], subject["answer"]]})
    assert comparison["summary"]["step_time_s"] == subject["summary"]["step_time_s"]
    assert comparison["command"] == comparison["answer"] == ""
    assert comparison["downloads"] == []
    listed = browser.http.get("/api/history").json()["answers"]
    assert [row["kind"] for row in listed] == ["model", "model"]
    assert all("saved" in row["downloads"] for row in listed)


def test_every_download_can_be_had(browser: Browser) -> None:
    answer = browser.answer(PREDICTION)
    beginnings = {
        "json": b"{",
        "report": b"<!doctype html>",
        "perfetto": b"\x0a",
        "saved": b"\x93FORETRACE",
        "launch": b"#!",
    }
    assert set(answer["downloads"]) == set(beginnings)
    contents = {}
    for kind in answer["downloads"]:
        response = browser.http.get(f"/api/answers/{answer['answer']}/{kind}")
        assert response.status_code == 200, kind
        assert response.headers["content-disposition"].startswith("attachment")
        contents[kind] = response.content
        assert len(contents[kind]) > len(beginnings[kind])
        assert contents[kind].startswith(beginnings[kind]), (kind, contents[kind][:10])
    assert json.loads(contents["json"])["step_time_s"] == answer["summary"]["step_time_s"]
    opened = browser.open_upload({"again.answer": contents["saved"]}).json()
    assert opened["kind"] == "answer"
    again = browser.answer({"ask": "step", "input": {"upload": opened["upload"]}})
    assert again["summary"]["step_time_s"] == answer["summary"]["step_time_s"]
    assert browser.http.get(f"/api/answers/{answer['answer']}/exe").status_code == 404


def test_a_saved_download_says_how_it_was_made(browser: Browser, tmp_path: Path) -> None:
    answer = browser.answer(PREDICTION)
    (tmp_path / "x.answer").write_bytes(browser.http.get(f"/api/answers/{answer['answer']}/saved").content)
    saved = foretrace.open(tmp_path / "x.answer")
    assert isinstance(saved, foretrace.Answer) and saved.origin is not None
    assert saved.origin.command == answer["command"]


def test_history_lists_the_newest_first_and_forgets_what_is_deleted(browser: Browser) -> None:
    first, second = (browser.answer(changed(PREDICTION, options={"mbs": size}))["answer"] for size in "12")
    listed = browser.http.get("/api/history").json()["answers"]
    assert [answer["answer"] for answer in listed] == [second, first]
    assert listed[0]["question"]["options"]["mbs"] == "2"
    assert browser.http.delete(f"/api/answers/{first}").status_code == 200
    assert browser.http.get(f"/api/answers/{first}").status_code == 404
    assert len(browser.http.get("/api/history").json()["answers"]) == 1


def test_whoever_has_the_id_reads_an_answer_and_nobody_else(browser: Browser, running: Any) -> None:
    answer = browser.answer(PREDICTION)["answer"]
    with Browser(running.url) as other:
        assert other.http.get(f"/api/answers/{answer}").json()["answer"] == answer
        assert other.http.get("/api/history").json() == {"answers": []}
        assert other.http.delete(f"/api/answers/{answer}").status_code == 404
        job = browser.begin(PREDICTION)
        assert other.http.get(f"/api/jobs/{job}/events").status_code == 404
        assert other.http.post(f"/api/jobs/{job}/cancel").status_code == 404
        for guess in ("a" * 22, answer[:-1] + ("A" if answer[-1] != "A" else "B"), "..%2f" * 4, "%00"):
            assert other.http.get(f"/api/answers/{guess}").status_code == 404


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_of_file_can_be_uploaded_and_asked_about(browser: Browser, seed: str) -> None:
    path = REPOSITORY / "examples" / seed
    opened = browser.open_upload({path.name: path.read_bytes()}).json()
    assert opened["title"] == path.name
    ask = "step" if opened["needs_cluster"] else "explain"
    machine = {"cluster": "h100-dgx"} if opened["needs_cluster"] else {}
    answer = browser.answer({"ask": ask, "input": {"upload": opened["upload"]}, "machine": machine})
    assert {field["name"] for field in opened["fields"]} <= set(_all_fields(browser))
    assert answer["html"].startswith("<article")
    assert path.name in answer["command"]


def _all_fields(browser: Browser) -> list[str]:
    return [field["name"] for fields in browser.http.get("/api/start").json()["fields"].values() for field in fields]


def test_examples_of_the_start_page_can_be_asked_as_they_are(browser: Browser) -> None:
    for example in browser.http.get("/api/start").json()["examples"]:
        if not example["id"].startswith("deepseek"):  # takes seconds
            assert browser.answer(example["question"])["html"]


def test_examples_of_the_start_page_state_the_kind_of_their_input(browser: Browser) -> None:
    start = browser.http.get("/api/start").json()
    for example in start["examples"]:
        assert example["kind"] in start["fields"]
        allowed = {field["name"] for field in start["fields"][example["kind"]]}
        assert example["question"].get("options", {}).keys() <= allowed


def test_fields_say_which_flags_have_two_ways_and_which_counts_are_doubled(browser: Browser) -> None:
    start = browser.http.get("/api/start").json()
    fields = {field["name"]: field for part in ("machine", "scenario", "search") for field in start[part]}
    fields |= {field["name"]: field for field in start["fields"]["model"]}
    assert {name for name, field in fields.items() if field["two_way"]} == {
        "sequence_parallel",
        "reshard",
        "overlap_cost",
        "steady",
    }
    assert {"gpus", "tp", "gbs", "seq_len", "domain_gpus"} <= {name for name in fields if fields[name]["doubled"]}
    assert not fields["prefetch"]["doubled"]
    assert fields["overlap_cost"]["flag"] == "--no-overlap-cost"


def test_an_upload_that_was_opened_is_for_everybody_who_has_its_id(browser: Browser, running: Any) -> None:
    content = (REPOSITORY / "examples" / "moe_128gpu.txt").read_bytes()
    with Browser(running.url) as other:
        draft = browser.upload({"moe.txt": content})
        question = {"ask": "step", "input": {"upload": draft}, "machine": {"cluster": "h100-dgx"}}
        assert other.http.post(f"/api/uploads/{draft}/open").status_code == 404
        assert other.error(question)["code"] == "unknown-id"
        opened = browser.http.post(f"/api/uploads/{draft}/open").json()
        assert other.http.post(f"/api/uploads/{draft}/open").json() == opened
        assert other.answer(question)["summary"]["step_time_s"] > 0


def test_the_fields_of_the_form_are_those_of_the_command_line(browser: Browser) -> None:
    start = browser.http.get("/api/start").json()
    fields = {kind: {field["name"] for field in fields} for kind, fields in start["fields"].items()}
    assert {"gpus", "tp", "overlap"} <= fields["model"]
    assert "mesh" not in fields["model"]
    assert {"mesh", "microbatches", "pp_comm"} <= fields["megatron-trace"]
    assert fields["program"] == set()
    assert json.dumps(start).count("llama3-70b") >= 1


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ({**PREDICTION, "input": {"model": "llama3-8"}}, "unknown-name"),
        (changed(PREDICTION, options={"tp": "3"}), "not-divisible"),
        (changed(PREDICTION, options={"tp": "many"}), "bad-value"),
        (changed(PREDICTION, options={"gpus": ""}), "missing-argument"),
        (changed(PREDICTION, options={"mesh": "tp=2"}), "option-not-for-input"),
        (changed(PREDICTION, machine={"cluster": "h100-dgx", "domain_gpus": "x"}), "bad-value"),
        ({**PREDICTION, "machine": {}}, "needs-cluster"),
        (changed(PREDICTION, scenario={"what_if": ["nicc=2x"]}), "unknown-name"),
        (changed(PREDICTION, scenario={"straggler": ["99999=2x"]}), "no-such-rank"),
        ({**PREDICTION, "ask": "plan", "options": {"gpus": "16"}}, "missing-argument"),
        ({**PREDICTION, "input": {"upload": "a" * 22}}, "unknown-id"),
        ({"ask": "compare", "answers": ["a" * 22, "b" * 22]}, "unknown-id"),
    ],
)
def test_a_mistake_has_the_code_that_the_command_line_has(
    browser: Browser, question: Mapping[str, Any], code: str
) -> None:
    assert browser.error(question)["code"] == code


def test_a_job_file_is_uploaded_with_the_cluster_that_it_names(browser: Browser) -> None:
    files = {
        "mine.yaml": b"based_on: h100-dgx\nnodes: 4\nname: a cluster of ours\n",
        "job.yaml": b"model: llama3-8b\nplan: {gpus: 16, tp: 2, gbs: 16}\ncluster: mine.yaml\n",
    }
    opened = browser.open_upload(files)
    assert opened.status_code == 200, opened.text
    answer = browser.answer({"ask": "step", "input": {"upload": opened.json()["upload"]}})
    assert "a cluster of ours" in answer["html"]
    assert "job.yaml" in answer["command"]
    assert "mine.yaml" not in answer["command"]
    del files["job.yaml"]
    unrelated = {**files, "job.yaml": b"model: llama3-8b\nplan: {gpus: 16, tp: 2, gbs: 16}\ncluster: h100-dgx\n"}
    response = browser.open_upload(unrelated)
    assert (response.status_code, response.json()["error"]["code"]) == (422, "several-inputs")
