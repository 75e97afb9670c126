"""`foretrace list` and `foretrace show` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.cli.main import run


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as stopped:
        run([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


def answer_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert call(*arguments, "--json") == 0
    out = capsys.readouterr()
    assert out.err == ""
    return dict(json.loads(out.out))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("based_on: h100-dgx\nnodes: 16\noversubscription: 2\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("kind", "first", "cells"),
    [
        ("gpus", "a100-40g-sxm", ["39.4 GiB", "1.55 TB/s", "312 TFLOP/s", "300 GB/s", "400 W"]),
        ("nics", "cx6", ["200 Gb/s"]),
        ("nodes", "dgx-a100", ["8 × a100-80g-sxm", "8 GPUs, switched", "8 × 200 Gb/s"]),
        ("clusters", "a100-dgx", ["dgx-a100", "8 × a100-80g-sxm"]),
    ],
)
def test_lists(kind: str, first: str, cells: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list", kind) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == kind[:-1]
    assert rows[0].split()[0] == first
    assert all(cell in rows[0] for cell in cells)
    assert len({row.find(" × ") for row in rows}) == 1  # columns line up
    answer = answer_of(capsys, "list", kind)
    assert (answer["schema"], answer["kind"]) == ("foretrace.list/1", kind)
    assert [item["name"] for item in answer[kind]] == [row.split()[0] for row in rows]


def test_json_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "show", "H100-DGX")
    assert (answer["schema"], answer["kind"], answer["name"]) == ("foretrace.show/1", "cluster", "h100-dgx")
    assert answer["nodes"] is None
    gpu = answer["node"]["gpu"]
    assert gpu["memory_bytes"] == round(79.11 * 2**30)
    assert gpu["peak_flops"]["bf16"] == 989.4e12
    assert gpu["link_bytes_per_s"] == 450e9
    assert answer["node"]["nic"]["bytes_per_s"] == 50e9
    assert gpu["sources"]


def test_show_a_cluster_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", "gb200-nvl72") == 0
    text = capsys.readouterr().out
    assert "as many as a job needs" in text
    assert "72 GPUs, through switches" in text
    assert "184 GiB at 8.00 TB/s" in text
    assert "900 GB/s (18 × 50.0 GB/s)" in text
    assert "note" in text
    assert text.count("https://") >= 4


def test_show_a_users_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", file) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].strip() == "mine"
    assert "16, 128 GPUs" in text
    assert "2:1" in text
    assert f"{file}:1" in text
    assert answer_of(capsys, "show", file)["oversubscription"] == 2.0


def test_show_warns_of_figures_that_no_hardware_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("node:\n  gpu: h100-sxm\n  gpus: 8\n  nic: 400GB/s\n", encoding="utf-8")
    (remark,) = answer_of(capsys, "show", file)["diagnostics"]
    assert (remark["code"], remark["where"]) == ("unusual-hardware", f"{file}:4")
    for arguments in (("show", file), ("network", "all-reduce", "1GiB", "--ranks", "16", "--cluster", file)):
        assert call(*arguments) == 0
        assert f"{file}:4" in "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("text", ["\n" * 60_000, "{" * 5 + " " * 60_000])
def test_files_of_blanks_are_told_apart_in_linear_time(text: str, tmp_path: Path) -> None:
    file = tmp_path / "blank.yaml"
    file.write_text(text)
    assert call("show", file) == 3


def test_show_a_network_and_write_it_for_simai(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "network"
    assert call("show", "h100-dgx", "--nodes", "64", "--simai-topology", out) == 0
    text = capsys.readouterr().out
    assert "rail-optimised, 32 leaf ports" in text
    assert "512 GPUs · 64 link switches · 512 NICs · 16 leaves · 8 spines" in text
    header = out.read_text(encoding="utf-8").splitlines()[0]
    assert header == "600 8 64 24 1536 h100-sxm"  # two leaves to a rail, four cables from each leaf to each spine
    again = tmp_path / "again.yaml"
    again.write_text("node: dgx-h100\nnodes: 64\ntopology: {kind: file, path: network}\n", encoding="utf-8")
    answer = answer_of(capsys, "show", again)
    assert answer["devices"] == {"GPUs": 512, "link switches": 64, "leaves": 16, "spines": 8}
    assert (answer["topology"]["kind"], answer["topology"]["path"]) == ("file", str(tmp_path / "network"))


def test_show_names_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad-day.yaml"
    text = "based_on: h100-dgx\nnodes: 16\ntopology: {failed: [leaf 1], background: {nodes: 40Gbps}}\n"
    file.write_text(text, encoding="utf-8")
    assert call("show", file) == 0
    shown = capsys.readouterr().out
    assert "leaf 1" in shown
    assert "nodes: 5.00 GB/s" in shown
    file.write_text(text.replace("leaf 1", "leaf 77"), encoding="utf-8")
    assert call("show", file) == 3
    assert 'no device called "leaf 77"' in capsys.readouterr().err


def test_a_name_that_is_several_things_can_be_pinned(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {kind: answer_of(capsys, "show", "mi300x", "--as", kind)["kind"] for kind in ("cluster", "node", "gpu")}
    assert kinds == {"cluster": "cluster", "node": "node", "gpu": "gpu"}
    assert answer_of(capsys, "show", "mi300x")["kind"] == "cluster"
    assert call("show", "cx7") == 0
    assert "400 Gb/s (50.0 GB/s)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("list", "gpuss"), 2, "did you mean gpus?"),
        (("list",), 2, "foretrace list models|clusters|nodes|gpus|nics|"),
        (("show", "a100"), 3, "may be several things"),
        (("show", "h100-dgz"), 3, "did you mean h100-dgx?"),
        (("show", "h100", "--as", "gpuu"), 2, "did you mean gpu?"),
        (("show", "missing.yaml"), 3, "missing.yaml: cannot read the cluster"),
        (("show", "cx7", "--nodes", "4"), 2, "only the network of a cluster"),
        (("show", "h100-dgx", "--simai-topology", "out"), 2, "say for how many: --nodes 16"),
        (("show", "h100-dgx", "--nodes", "0"), 3, "a network of 0 nodes cannot be built"),
        (
            ("show", "mi300x", "--as", "cluster", "--nodes", "2", "--simai-topology", "out"),
            3,
            "no links from GPU to GPU",
        ),
    ],
)
def test_mistakes(arguments: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == code
    out = capsys.readouterr()
    assert out.out == ""
    assert message in out.err
    assert out.err.startswith("error: ")


def test_a_wrong_line_of_a_file_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("based_on: h100-dgx\nnodes: many\n", encoding="utf-8")
    assert call("show", file) == 3
    error = capsys.readouterr().err
    assert f"{file}:2: " in error
    assert "[bad-value]" in error


@pytest.mark.parametrize("command", ["list", "show"])
def test_help_has_examples_that_work(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(command, "--help") == 0
    examples = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("  foretrace ")]
    assert len(examples) >= 2
    for arguments in examples:
        if not {"my-cluster.yaml", "config.json"} & set(arguments):
            assert call(*arguments) == 0
