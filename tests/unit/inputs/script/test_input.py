"""Training scripts as an input: when they run, with which options, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.basics import files
from foretrace.basics.codes import CODES
from foretrace.basics.errors import ForetraceError, InputError, UsageError
from foretrace.inputs.registry import open_input
from foretrace.inputs.script import tracing
from foretrace.inputs.script.input import ScriptInput
from foretrace.inputs.script.options import ScriptOptions
from foretrace.workload.stack import HostPace
from training_scripts import Tracer, needs_torch, write_script


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write_script(tmp_path)


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Tracer:
    made = Tracer()
    monkeypatch.setattr(tracing, "trace_script", made)
    return made


def opened(script: Path, **options: Any) -> ScriptInput:
    job = open_input([script], options)
    assert isinstance(job, ScriptInput)
    return job


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        ({"world": "1k"}, ScriptOptions(world=1000)),
        ({"gpus": "64"}, ScriptOptions(world=64)),
        ({"world": "64", "trace_ranks": "5,0,60-63"}, ScriptOptions(64, trace_ranks=(0, 5, 60, 61, 62, 63))),
        ({"trace_ranks": "all"}, ScriptOptions(trace_ranks="all")),
        ({"steps": "0"}, ScriptOptions(steps=(0, 0))),
        ({"steps": "2:4"}, ScriptOptions(steps=(2, 4))),
        ({"steps": "2-4"}, ScriptOptions(steps=(2, 4))),
        ({"arguments": "--layers 4 --name 'a b'"}, ScriptOptions(arguments=("--layers", "4", "--name", "a b"))),
        ({"unknown": "-1.5", "routing": "zipf:1.2"}, ScriptOptions(unknown=-1.5, routing="zipf:1.2")),
    ],
)
def test_options_as_texts(script: Path, texts: dict[str, str], options: ScriptOptions) -> None:
    assert opened(script, **texts).options == options


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        ({"world": "0"}, "out-of-range"),
        ({"world": "many"}, "bad-value"),
        ({"world": "8", "gpus": "16"}, "conflicting-options"),
        ({"world": "8", "trace_ranks": "8"}, "no-such-rank"),
        ({"trace_ranks": "first"}, "bad-value"),
        ({"steps": "1,2"}, "bad-value"),
        ({"steps": "4:2"}, "bad-value"),
        ({"steps": "100000"}, "out-of-range"),
        ({"arguments": "'--layers"}, "bad-value"),
        ({"unknown": "much"}, "bad-value"),
        ({"unknown": "nan"}, "out-of-range"),
        ({"tp": "2"}, "option-not-for-input"),
    ],
)
def test_options_that_cannot_be_meant(script: Path, texts: dict[str, str], code: str) -> None:
    with pytest.raises(UsageError) as error:
        opened(script, **texts)
    assert error.value.code == code


def test_the_values_of_the_api(script: Path) -> None:
    job = foretrace.open(script, world=64, arguments=["--layers", "4"], steps=3)
    assert isinstance(job, ScriptInput)
    assert job.options == ScriptOptions(64, ("--layers", "4"), steps=(3, 3))
    for bad in ({"arguments": "--layers 4"}, {"steps": (4, 2)}, {"trace_ranks": ()}, {"routing": 1.2}):
        with pytest.raises(InputError):
            job.with_options(**bad)


def test_it_runs_only_on_a_stated_number_of_gpus_and_when_its_program_is_asked_for(
    script: Path, tracer: Tracer
) -> None:
    job = opened(script)
    for ask in (job.program, job.inventory):
        with pytest.raises(UsageError) as error:
            ask()
        assert error.value.code == "missing-argument"
    with pytest.raises(UsageError) as error:
        foretrace.simulate(job.with_options(world=4))
    assert error.value.code == "needs-cluster"
    assert tracer.requests == []
    assert job.with_options(world=4).program().world == 4
    assert len(tracer.requests) == 1


def test_it_runs_once_for_all_that_ask_the_same(script: Path, tracer: Tracer) -> None:
    job = opened(script, world="4")
    answer = foretrace.simulate(job, "h100-dgx")
    assert answer.world_size == 4
    assert answer.peak_memory is not None
    assert "ranks-filled" in {note.code for note in answer.diagnostics}
    slow = job.on_host(HostPace(1.0, "a test", torch_factor=3.0))
    assert foretrace.simulate(slow.program(), "h100-dgx").step_time_s > answer.step_time_s
    job.inventory()
    assert len(tracer.requests) == 1
    assert tracer.requests[0].gpus == 8


def test_nodes_are_as_large_as_those_of_the_machine(script: Path, tracer: Tracer) -> None:
    foretrace.simulate(opened(script, world="4"), "gb200-nvl72")
    assert [request.gpus for request in tracer.requests] == [4]


@pytest.mark.usefixtures("tracer")
def test_memory_beyond_a_gpu_is_warned_of(script: Path) -> None:
    job = opened(script, world="4")
    machine, small = foretrace.Machine("h100-dgx"), foretrace.Scenario(what_if={"memory": 0.005})
    codes = [{note.code for note in foretrace.simulate(job, machine, each).diagnostics} for each in (None, small)]
    assert ["out-of-memory" in each for each in codes] == [False, True]


@pytest.mark.parametrize(("steps", "events"), [(None, 1), ((0, 0), 0), ((1, 3), 1)])
@pytest.mark.usefixtures("tracer")
def test_the_recorded_steps(script: Path, steps: tuple[int, int] | None, events: int) -> None:
    (made,) = opened(script, world="2").with_options(steps=steps).traced().recordings
    assert made.first_step == events
    assert len(made.steps) == (1 if steps is None else steps[1] - steps[0] + 1)


def test_steps_that_the_script_does_not_make(script: Path, tracer: Tracer) -> None:
    tracer.steps = 1
    assert opened(script, world="2").traced().recordings[0].first_step == 0
    with pytest.raises(InputError) as error:
        opened(script, world="2", steps="4").program()
    assert error.value.code == "no-such-rank"


@pytest.mark.usefixtures("tracer")
def test_the_inventory_says_what_a_rank_issues(script: Path) -> None:
    contents = opened(script, world="4").inventory().to_dict()
    assert contents["schema"] == "foretrace.script/1"
    assert (contents["world_size"], contents["mesh"], contents["torch_version"]) == (4, "dp=4", "2.13.0")
    (role,) = contents["roles"]
    assert (role["rank"], role["ranks"], role["launches"]) == (0, 4, 3)
    assert role["peak_by_category"] == {"optimizer": 2 << 12, "activations": 1 << 30}
    assert role["peak_bytes"] == sum(role["peak_by_category"].values())
    (calls,) = role["collectives"]
    assert (calls["axis"], calls["collective"], calls["calls"], calls["bytes"]) == ("dp", "all_reduce", 1, 4096)


def test_patterns_folders_and_several_files_run_nothing(
    script: Path, tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = script.with_name("other.py")
    other.write_text("raise SystemExit")
    monkeypatch.chdir(script.parent)
    for paths in (["*.py"], ["."], ["train.py", "other.py"]):
        with pytest.raises(ForetraceError):
            open_input(paths, {"world": "4"}).program()
    assert tracer.requests == []


def test_a_process_that_works_for_others_runs_nothing(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = opened(script, world="2")
    monkeypatch.setattr(files, "_allowed", [str(script.parent)])
    with pytest.raises(InputError) as error:
        open_input([script])
    assert error.value.code == "script-not-run"
    with pytest.raises(InputError) as error:
        job.program()
    assert error.value.code == "script-not-run"


def test_without_pytorch(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    job = opened(script, world="2")
    for ask in (job.program, foretrace.trace(world=2).__enter__):
        with pytest.raises(InputError) as error:
            ask()
        assert error.value.code == "missing-package"
    monkeypatch.undo()
    monkeypatch.setattr(tracing, "version", lambda _: "2.4.1")
    with pytest.raises(InputError) as error:
        tracing.check_torch()
    assert error.value.code == "missing-package"


IN_PROCESS = """
import os
import foretrace

def build():
    import torch
    model = torch.nn.Linear(512, 512).cuda()
    return model, torch.optim.AdamW(model.parameters())

def step(state):
    import torch
    model, optimizer = state
    model(torch.randn(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

before = dict(os.environ)
traced = foretrace.trace_step(build, step, world=16)
assert os.environ == before
import torch
assert not torch.cuda.is_available()
assert not torch.distributed.is_initialized()
functions = [torch.cuda.synchronize, torch.randn, torch.nn.Module._call_impl, torch.save]
for rank in (3, 20):
    try:
        with foretrace.trace(world=16, rank=rank) as other:
            assert os.environ["RANK"] == "3"
            if torch.randn(2, device="cuda").sum() > 0:
                pass
    except foretrace.ForetraceError as error:
        print(error.code)
try:
    with foretrace.trace(world=1):
        raise KeyError("mine")
except KeyError:
    print("mine")
try:
    with foretrace.trace(world=1), foretrace.trace(world=2):
        pass
except foretrace.ForetraceError as error:
    print(error.code)
assert os.environ == before
assert functions == [torch.cuda.synchronize, torch.randn, torch.nn.Module._call_impl, torch.save]
assert torch.ones(2).sum().item() == 2
print(foretrace.simulate(traced.program(), "h100-dgx").world_size, traced.recording.rank)
"""


@needs_torch
def test_code_of_the_calling_process_leaves_nothing_changed(tmp_path: Path) -> None:
    path = write_script(tmp_path, IN_PROCESS)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["needs-value", "no-such-rank", "mine", "usage", "16", "0"]


def test_every_code_of_the_tracer_is_listed() -> None:
    folder = Path(tracing.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    raised = {"script-failed", "needs-value", "needs-other-rank", "unsupported-op", "roles-unknown", "script-not-run"}
    assert all(any(f'"{code}"' in text for text in texts) for code in raised)
    assert raised <= set(CODES)
