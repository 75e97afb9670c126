"""`foretrace inspect` on profiler traces, as a person runs it."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from kineto_files import document, small_step
from shared_files import ROOT, shared
from unit.cli.command_line import answer_of, call

SAMPLE = ("data", "kineto", "nccl_parser_config_nccl_data.json.gz")
PAGE = (ROOT / "docs" / "profiler-trace-files.md").read_text(encoding="utf-8")


def keys_of(value: object) -> set[str]:
    """The keys of our own objects in an answer: not those of facts, groups and the like, which are the file's."""
    if isinstance(value, list):
        return {key for one in value for key in keys_of(one)}
    if not isinstance(value, dict):
        return set()
    own = {key: one for key, one in value.items() if key not in ("facts", "groups", "ops")}
    return set(value) | {key for one in own.values() for key in keys_of(one)}


def test_the_screen_is_the_one_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(shared(*SAMPLE), tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    ((words, screen),) = re.findall(r"```\n\$ foretrace (inspect nccl[^\n]*)\n(.*?)```", PAGE, re.DOTALL)
    assert call(*words.split()) == 0
    assert capsys.readouterr().out.strip("\n") == screen.strip("\n")


def test_the_json_page_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    of_run = shared("data", "kineto", "param_resnet_2gpu_et.json.gz")
    answer = answer_of(capsys, "inspect", shared(*SAMPLE))
    execution = answer_of(capsys, "inspect", of_run)
    assert execution["execution_traces"][0]["collectives"] == {"allreduce": 15, "broadcast": 6, "wait": 6}
    for key in keys_of(answer) | keys_of(execution) - {"allreduce", "broadcast", "wait"}:
        assert f"`{key}`" in page, key


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("trace.json", b"", "the file is empty"),
        ("trace.json.gz", b"abcd", "no gzip file"),
        ("trace.json", b'{"a": 1}', "no traceEvents"),
        ("trace.json", json.dumps(document(small_step()))[:-30].encode(), "cut off, after 6 events"),
        (
            "trace.json.gz",
            gzip.compress(json.dumps(document(small_step())).encode(), mtime=0)[:150],
            "the gzip file is cut off",
        ),
        ("trace.json", b'{"traceEvents": []}', "no events"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "simulate"])
def test_files_that_are_broken(
    command: str, name: str, content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert call(command, tmp_path / name) == 3
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / name}: ")
    assert said in error
