"""`foretrace validate` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from foretrace.cost.silicon import installed
from shared_files import ROOT
from unit.cli.command_line import answer_of, call

SIZES = "layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,gpu,gpus,dtype,tp,mbs,gbs,recompute"
HEAD = f"id,model,{SIZES},step_time_s,complete,family"
ROW = "GPT 22B,48,6144,24576,64,64,51200,2048,A100-80GB SXM,8,FP16,8,4,4,full"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    rows = (f"good,{ROW},1.42,A,korthikanti", f"odd,{ROW.replace('A100-80GB SXM', 'Abacus')},1.42,A,korthikanti")
    rest = (f"vague,{ROW},1.42,C,korthikanti", f"untimed,{ROW},,A,other")
    path.write_text("\n".join((HEAD, *rows, *rest)) + "\n", encoding="utf-8")
    return path


def test_rows_and_what_is_skipped(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "validate", table)
    (row,) = answer["rows"]
    assert row["id"] == "good"
    assert row["error"] == pytest.approx(row["predicted_s"] / 1.42 - 1)
    assert abs(row["error"]) < 0.3
    assert {one["id"]: one["why"] for one in answer["skipped"]} == {
        "untimed": "no step time was measured",
        "vague": "grade C: too much of the run is unknown",
        "odd": 'no cluster has the GPU "Abacus"',
    }


def test_what_a_script_reads_is_at_the_top(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "validate", table)
    (row,) = answer["rows"]
    assert (answer["schema"], answer["graded"], answer["interrupted"]) == ("foretrace.validation/1", "A", False)
    assert answer["mape"] == answer["mean_of_families"] == abs(row["error"])
    assert answer["coverage"] == (1.0 if row["band_s"][0] <= 1.42 <= row["band_s"][1] else 0.0)
    assert answer["memory"] is None
    assert {(one["kind"], one["name"]) for one in answer["groups"]} == {
        ("family", "korthikanti"),
        ("gpu", "a100-80g-sxm"),
        ("axis", "tp"),
    }


def test_the_json_page_names_every_key(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "validate", table)
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    own = page[page.index("foretrace.validation/1") : page.index("foretrace.sweep/2")]
    keys = {*answer, *answer["rows"][0], *answer["groups"][0], *answer["skipped"][0]} - {"schema"}
    assert [key for key in sorted(keys) if f"`{key}`" not in own] == []


@pytest.mark.skipif(not installed(), reason="the extra [silicon] is not installed")
def test_without_silicon(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_tables, without = answer_of(capsys, "validate", table), answer_of(capsys, "validate", table, "--no-silicon")
    assert "NVIDIA" in with_tables["rows"][0]["reason"]
    assert "NVIDIA" not in without["rows"][0]["reason"]


def test_one_family_and_a_plot(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.svg"
    assert call("validate", table, "--family", "other", "--svg", plot) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no row could be predicted" in printed.err
    assert "1: no step time was measured (untimed)" in printed.err
    assert call("validate", table, "--family", "korthikanti", "--svg", plot) == 0
    assert "untimed" not in capsys.readouterr().out
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")


def test_no_prediction_sees_a_measurement(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same rows with other measured times are predicted the same."""
    other = tmp_path / "other.csv"
    other.write_text(table.read_text(encoding="utf-8").replace("1.42", "9.99"), encoding="utf-8")
    first, second = answer_of(capsys, "validate", table), answer_of(capsys, "validate", other)
    assert first["rows"][0]["predicted_s"] == second["rows"][0]["predicted_s"]
    assert second["rows"][0]["measured_s"] == 9.99


def test_a_table_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.csv"
    rows = "known,llama3-8b,H100,8,2,1,2.0", "unknown,our-model,H100,8,2,1,2.0"
    path.write_text("\n".join(("id,model,gpu,gpus,tp,mbs,step_time_s", *rows)) + "\n", encoding="utf-8")
    answer = answer_of(capsys, "validate", path)
    assert [(row["id"], row["grade"]) for row in answer["rows"]] == [("known", "A")]
    assert answer["notes"] == ['there is no column "complete": every row counts as grade A']
    (skipped,) = answer["skipped"]
    assert skipped["why"] == (
        "no preset is called our-model, and the row does not give layers, hidden, ffn_hidden and heads"
    )
    assert call("validate", path) == 0
    assert capsys.readouterr().out.count("every row counts as grade A") == 1


def test_the_json_of_a_table_without_a_usable_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.csv"
    path.write_text("id,model,gpu,gpus,mbs,step_time_s\na,our-model,H100,8,1,2.0\n", encoding="utf-8")
    assert call("validate", path, "--json") == 3
    printed = capsys.readouterr()
    assert [one["id"] for one in json.loads(printed.out)["skipped"]] == ["a"]
    assert "no preset is called our-model" in printed.err


def test_help_names_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("validate", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "id, model, gpu, gpus, mbs, step_time_s" in text
    assert "layers, hidden, ffn_hidden and heads too" in text


def test_several_processes_find_the_same(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer_of(capsys, "validate", table, "--workers", "2") == answer_of(capsys, "validate", table)


def test_errors(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("validate", table, "--family", "kortikanti") == 3
    assert "did you mean korthikanti?" in capsys.readouterr().err
    assert call("validate", tmp_path / "none.csv") == 3
    assert call("validate", table, "--svg", table) == 2
