"""Every kind of answer that a user gets in Python shows itself, and gives its values, its tables and its plots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace import Answer, Machine, NetworkAnswer, Plan, PlanRequest, PriceSources, ProfilerTrace
from foretrace.api import compare, explain
from foretrace.basics.errors import InputError
from foretrace.basics.origin import origin_of
from foretrace.basics.viewable import Viewable
from foretrace.inputs.registry import open_input
from foretrace.readings.explain import Explanation
from foretrace.readings.scenario import Scenario
from foretrace.report.views import VIEWS, kind_of, view_of
from page_cases import write_traces
from page_elements import check_page, read_page
from recorded_steps import trace_file
from shared_files import ROOT

pytest.importorskip("pandas")

MACHINE = Machine("h100-dgx", prices=PriceSources(silicon=False))
HEADLINES = {
    "Answer": "breakdown",
    "Comparison": "waterfall",
    "Explanation": "advice",
    "NetworkAnswer": "ways",
    "PlanSearch": "plans",
    "ProfilerTrace": "work",
    "ExplainedTables": "kinds",
    "TraceDiff": "changes",
    "Calibration": "families",
}
"""The class of each answer in Python, and a section that its cell must show next to the answer itself."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Viewable]:
    folder = tmp_path_factory.mktemp("notebook")
    job, other = (foretrace.model("gpt2", Plan(gpus=8, pp=2, tp=tp, gbs=8)) for tp in (1, 2))
    write_traces(folder / "traces")
    traces = [ProfilerTrace.load(folder / "traces" / f"rank{rank}.json") for rank in range(2)]
    calls = "collective,gpus,nodes,bytes,time_us\nall_reduce,8,1,1048576,400\nall_reduce,8,1,1073741824,9000\n"
    (folder / "calls.csv").write_text(calls)
    trace_file(folder)
    calibration, _ = foretrace.make_calibration([folder / "step.json", folder / "calls.csv"], folder / "my.yaml")
    made: tuple[Viewable, ...] = (
        foretrace.simulate(job, MACHINE, try_changes=True),
        compare(job, other, MACHINE, Scenario(), MACHINE),
        explain(job, MACHINE, Scenario()),
        foretrace.network("all-reduce", "1MiB", MACHINE, ranks=16),
        foretrace.plan("gpt2", MACHINE, PlanRequest(Plan(gpus=2, gbs=2), {"tp": "1", "pp": "1", "mbs": "1"})),
        ProfilerTrace.load(folder / "traces"),
        traces[0].diff(traces[1]),
        explain(open_input([ROOT / "examples/moe_fairseq_profile.txt"]), Machine(), Scenario()),
        calibration,
    )
    return {type(answer).__name__: answer for answer in made}


@pytest.fixture(params=HEADLINES)
def answer(request: pytest.FixtureRequest, answers: dict[str, Viewable]) -> Viewable:
    return answers[request.param]


def subclasses(cls: type) -> Iterator[type]:
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def cell(answer: Viewable) -> Any:
    return read_page(answer._repr_html_().partition("</style>")[2].removesuffix("</div>"))


def test_every_answer_in_python_has_a_case() -> None:
    for module in VIEWS.values():
        import_module(f"foretrace.report.views.{module}")
    ours = {cls.__name__ for cls in subclasses(Viewable) if cls.__module__.startswith("foretrace.")}
    assert ours == set(HEADLINES)


@pytest.mark.parametrize("name", VIEWS)
def test_a_module_shows_the_classes_that_are_listed_for_it(name: str) -> None:
    kinds = import_module(f"foretrace.report.views.{VIEWS[name]}").KINDS
    assert [kind for kind in kinds if kind.cls.__name__ == name]
    assert {VIEWS[kind.cls.__name__] for kind in kinds} == {VIEWS[name]}


def test_what_has_no_view_is_refused() -> None:
    class Strange(Viewable):
        pass

    for ask in (view_of, Strange.to_dict, Strange.to_frame, Strange.plot, Strange._repr_html_):
        with pytest.raises(InputError) as caught:
            ask(Strange())
        assert caught.value.code == "bad-value"


def test_an_answer_of_a_derived_class_is_shown_as_its_base(answers: dict[str, Viewable]) -> None:
    class Renamed(Answer):
        pass

    answer = answers["Answer"]
    assert isinstance(answer, Answer)
    renamed = Renamed(**{name: getattr(answer, name) for name in answer.__dataclass_fields__})
    assert kind_of(renamed) is kind_of(answer)


def test_values_are_json(answer: Viewable) -> None:
    values = answer.to_dict()
    assert values["schema"].startswith("foretrace.")
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_the_main_table_is_a_frame_of_the_json(answer: Viewable) -> None:
    table: Any = answer.to_dict()
    for key in kind_of(answer).main_table.split("."):
        table = table[key]
    frame = answer.to_frame()
    assert len(frame) == len(table) > 0
    assert frame.equals(answer.to_frame(kind_of(answer).main_table))


def test_every_table_is_a_frame(answer: Viewable) -> None:
    with pytest.raises(InputError) as caught:
        answer.to_frame("no-such-table")
    assert caught.value.code == "unknown-name"
    tables = (caught.value.hint or "").removeprefix("tables: ").split(", ")
    assert kind_of(answer).main_table in tables
    for name in tables:
        values: Any = answer.to_dict()
        for key in name.split("."):
            values = values[key]
        assert len(answer.to_frame(name)) == len(values or ())


def test_without_a_main_table_one_is_named(answers: dict[str, Viewable], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = answers["NetworkAnswer"]
    kind = replace(kind_of(answer), main_table="")
    monkeypatch.setattr("foretrace.report.notebook.kind_of", lambda _: kind)
    with pytest.raises(InputError) as caught:
        answer.to_frame()
    assert caught.value.code == "missing-argument"
    assert "candidates" in (caught.value.hint or "")


@pytest.mark.parametrize("remedies", [None, ()])
def test_a_table_without_rows_is_an_empty_frame(remedies: tuple[()] | None, answers: dict[str, Viewable]) -> None:
    full = answers["Answer"]
    assert isinstance(full, Answer)
    frame = replace(full, remedies=remedies).to_frame("remedies")
    assert len(frame) == 0
    assert set(frame.columns) <= set(full.to_frame("remedies").columns)
    assert "option" in frame.columns


@pytest.mark.parametrize("name", ["step_time_s", "scenario.what_if.gpu", "scenario.choices", "mesh"])
def test_what_is_no_table_is_no_frame(name: str, answers: dict[str, Viewable]) -> None:
    with pytest.raises(InputError) as caught:
        answers["Answer"].to_frame(name)
    assert caught.value.code == "unknown-name"


def test_a_collective_without_ways_has_an_empty_table(answers: dict[str, Viewable]) -> None:
    collective = answers["NetworkAnswer"]
    assert isinstance(collective, NetworkAnswer)
    frame = replace(collective, candidates=()).to_frame()
    assert len(frame) == 0 and list(frame.columns) == list(collective.to_frame().columns)


def test_a_cell_shows_the_answer_and_its_main_parts(answer: Viewable) -> None:
    page = cell(answer)
    assert page.problems == []
    titles = {section.key: section.title for section in view_of(answer).sections}
    for key in {"step", "best"} & set(titles) | {HEADLINES[type(answer).__name__]}:
        assert titles[key] in page.text
        assert any(name.endswith(f"-{key}") for name in page.ids)


def test_an_explanation_shows_what_to_do(answers: dict[str, Viewable]) -> None:
    explanation = answers["Explanation"]
    assert isinstance(explanation, Explanation)
    text = cell(explanation).text
    assert explanation.advice
    assert all(remark.text in text for remark in explanation.advice)


def test_cells_of_a_notebook_share_no_ids(answers: dict[str, Viewable]) -> None:
    pages = [cell(answer) for answer in answers.values()]
    ids = [name for page in pages for name in page.ids]
    assert len(ids) == len(set(ids))
    for page in pages:
        assert {attributes.get("aria-labelledby") for _, attributes in page.tags} - {None} <= set(page.ids)
    assert cell(answers["Answer"]).ids == pages[0].ids


def test_a_cell_has_no_button_without_a_script(answer: Viewable) -> None:
    assert not cell(answer).named("button")


def test_a_saved_answer_says_how_it_was_made(answers: dict[str, Viewable], tmp_path: Path) -> None:
    answer = answers["Answer"]
    assert isinstance(answer, Answer)
    made = replace(origin_of((), ()), words=("predict", "gpt2"))
    replace(answer, origin=made).save(tmp_path / "x.answer")
    saved = foretrace.open(tmp_path / "x.answer")
    assert isinstance(saved, Answer)
    page = cell(saved)
    assert "foretrace predict gpt2" in page.text and not page.named("button")


def test_plots_are_written(answer: Viewable, tmp_path: Path) -> None:
    answer.plot().save(tmp_path / "whole.htm")
    whole = check_page((tmp_path / "whole.htm").read_text(encoding="utf-8"))
    for section in view_of(answer).sections:
        assert section.title in whole.text
        answer.plot(section.key).save(tmp_path / "part.html")
        part = check_page((tmp_path / "part.html").read_text(encoding="utf-8"))
        assert [name for name in part.ids if name == section.key]
    with pytest.raises(InputError) as caught:
        answer.plot("no-such-section")
    assert caught.value.code == "unknown-name"


def test_a_plot_without_a_picture_is_no_svg(answers: dict[str, Viewable], tmp_path: Path) -> None:
    answers["Comparison"].plot("waterfall").save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<svg")
    for section, name in (("step", "y.svg"), ("waterfall", "y.png")):
        with pytest.raises(InputError) as caught:
            answers["Comparison"].plot(section).save(tmp_path / name)
        assert caught.value.code == "bad-value"
        assert not (tmp_path / name).exists()
