"""Outputs of all commands: declared, checked before any work, kept apart from inputs, whole after faults."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from foretrace.basics.outputs import write_text
from foretrace.cli.main import COMMANDS, app
from output_jobs import JOBS, NOT_RUN, OUT, words_of, write_inputs
from recorded_steps import trace_file
from shared_files import ROOT
from unit.basics.test_outputs import largest_file
from unit.cli.command_line import call

INPUTS = {"FILE", "DIR", "DIR|FILE", "INPUT..."}
"""Metavars of options and arguments that are read."""

ON = ("--cluster", "h100-dgx", "--no-silicon")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files of a folder and of those in it."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def parameters() -> list[tuple[str, Any]]:
    group: Any = typer.main.get_command(app)
    return [(name, param) for name in COMMANDS for param in group.get_command(None, name).params]


class TestDeclarations:
    """The metavar of an option says whether it is an input or an output."""

    def test_every_path_is_an_input_or_an_output(self) -> None:
        paths = [(name, param) for name, param in parameters() if hasattr(param.type, "readable")]
        assert len(paths) > 50
        undeclared = [
            f"{name} {param.opts[0]} {param.metavar}"
            for name, param in paths
            if not str(param.metavar).startswith("OUT") and param.metavar not in INPUTS
        ]
        assert not undeclared

    def test_every_output_has_a_job_here(self) -> None:
        outputs = {
            (name, next(option for option in param.opts if option.startswith("--")))
            for name, param in parameters()
            if str(param.metavar).startswith("OUT")
        }
        # Of a comparison these are refused.
        assert outputs - {("compare", f"--{name}") for name in ("traces", "heatmap", "save")} - NOT_RUN <= set(JOBS)


def fill(path: Path, name: str) -> None:
    """Makes old outputs of a job."""
    if name == "traces":
        path.mkdir()
        for rank in range(2):
            for axes in ("tp1", "tp2"):
                (path / f"wd2_{axes}_pp1_rank{rank}_20000101000000.txt").write_bytes(b"old")
        return
    path.write_bytes(b"old")
    for neighbour in ("out.kernels.profile", "out.collectives.csv") if name == "out.yaml" else ():
        (path.parent / neighbour).write_bytes(b"old")


class TestFaults:
    """Every output of every command, where it cannot be written."""

    @pytest.mark.parametrize("job", JOBS, ids=" ".join)
    def test_a_full_disk_leaves_what_was_there(
        self, job: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name, words = JOBS[job]
        fill(place / name, name)
        before = contents(place)
        with largest_file(16):
            assert call(*words_of(job[0], words, name)) == 3
        assert contents(place) == before
        error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
        assert len(error) == 1

    @pytest.mark.usefixtures("place")
    @pytest.mark.parametrize("job", JOBS, ids=" ".join)
    def test_a_place_that_cannot_be_written_is_known_before_any_work(
        self, job: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name, words = JOBS[job]
        import_module(f"foretrace.cli.{job[0]}")
        for module in ("foretrace.inputs.registry", "foretrace.inputs.model.input", "foretrace.hardware.presets"):
            monkeypatch.setitem(sys.modules, module, None)  # what any work needs
        assert call(*words_of(job[0], words, f"job.txt/{name}")) == 3
        assert "[unwritable-file]" in capsys.readouterr().err

    def test_the_kernel_table_of_a_gpu(self, place: Path) -> None:
        from foretrace.basics.errors import InputError
        from foretrace.cost.kernels.kernel_profile import KernelTimes, write_profile
        from foretrace.program.kernels import Gemm

        (place / "my.profile").write_bytes(b"old")
        times = [KernelTimes(Gemm(8, 8, 8), 1e-6, 1e-6)]
        with largest_file(16), pytest.raises(InputError) as caught:
            write_profile(place / "my.profile", {"gpu": "NVIDIA H200"}, times)
        assert caught.value.code == "unwritable-file"
        assert (place / "my.profile").read_bytes() == b"old"

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
    @pytest.mark.usefixtures("place")
    def test_a_full_device_behind_a_descriptor(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Path("/dev/full").open("wb") as full:
            assert call("inspect", "job.txt", "-o", f"/dev/fd/{full.fileno()}") == 3
        assert "[unwritable-file]" in capsys.readouterr().err


GPT2 = "gpt2 --gpus 2 --cluster h100-dgx --no-silicon"
JOB = "job.txt --cluster h100-dgx --no-silicon"
CALL = "all-reduce 1MiB --ranks 8"
DEEPSPEED = "--framework deepspeed"
RANK = "wd2_tp1_pp1_rank0_20000101000000.txt"
OVERWRITING = {
    "a workload": f"simulate {JOB} -o job.txt",
    "a workload as CSV": f"sweep {JOB} --over microbatches=1,2 --csv job.txt",
    "a workload by another path": f"explain {JOB} --save run/../job.txt",
    "a job": "memory job.yaml --cluster h100-dgx -o job.yaml",
    "a job as a program": "generate job.yaml --format program -o job.yaml",
    "measured collectives": f"simulate {JOB} --collectives calls.csv -o calls.csv",
    "collectives in a folder": f"simulate {JOB} --collectives . -o calls.csv",
    "a log of NCCL": f"network {CALL} --cluster h100-dgx --nccl n.log -o n.log",
    "the second log": f"network {CALL} --cluster h100-dgx --nccl m.log --nccl n.log -o n.log",
    "a cluster": f"network {CALL} --cluster c.yaml -o c.yaml",
    "a cluster to be shown": "show c.yaml --simai-topology c.yaml",
    "the network of a cluster": f"network {CALL} --cluster c.yaml --network flow -o net.yaml",
    "the network of a cluster, which is read late": "generate job.yaml -o net.yaml",
    "the cluster of a what-if": f"predict {GPT2} --what-if cluster=c.yaml -o c.yaml",
    "the cluster of B": f"compare {GPT2} --with cluster=c.yaml -o c.yaml",
    "the cluster of a job": "predict job.yaml -o c.yaml",
    "the cluster of a job that runs elsewhere": "predict job.yaml --cluster h100-dgx -o c.yaml",
    "a placement": f"simulate {JOB} --placement calls.csv -o calls.csv",
    "a routing": "predict mixtral-8x7b --gpus 8 --cluster h100-dgx --routing calls.csv -o calls.csv",
    "a calibration": f"predict {GPT2} --calibration cal.yaml -o cal.yaml",
    "a new calibration": "calibrate cal.yaml -o cal.yaml",
    "runs": "validate runs.csv --calibration cal.yaml -o cal.yaml",
    "a plot of runs": "validate runs.csv --svg runs.csv",
    "a configuration": "init --hf config.json -o config.json --force",
    "a script": "init --from-megatron t.sh -o t.sh --force",
    "the configuration of a script": "init --from run.sh --model gpt2 -o ds_config.json --force",
    "a rank of a folder": f"simulate run -o run/{RANK}",
    "a rank in Perfetto": f"explain run --perfetto run/{RANK}",
    "a rank of a pattern": f"explain run/*.txt -o run/{RANK}",
    "a folder": "simulate run --traces run",
    "a folder by another name": "simulate run --traces run_again",
    "the folder of a pattern": "simulate run/*.txt --traces run",
    "the folder of a file": f"simulate run/{RANK} --traces run",
    "a trace": "explain step.json --plot step.svg",
    "ratio tables": "simulate job.txt --compat simai --simai-tables . --csv nic_ratio.csv -- -g 2 -g_p_s 8 -n_p_s 8",
    "a snapshot": f"memory {GPT2} --snapshot s.svg --plot s.svg",
    "two outputs": f"predict {GPT2} -o x.svg --heatmap ./x.svg",
    "two outputs by links": f"predict {GPT2} --perfetto out_a --save out_b",
    "a rank and another output": f"simulate {JOB} --traces new -o new/{RANK.replace('tp1', 'tp2')}",
    "a script and its file": f"generate {GPT2} --stack torch-eager --format launch {DEEPSPEED} -o ds_config.json",
}


@pytest.mark.parametrize("case", OVERWRITING)
def test_no_input_is_written_over(case: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("n.log", "t.sh", "m.log"):
        (place / name).write_text("host:1:2 [0] NCCL INFO NCCL version 2.21.5\n")
    clusters = ROOT / "examples" / "clusters"
    cluster = (clusters / "a100_written_out.yaml").read_text().replace("a100_written_out_network", "net")
    (place / "c.yaml").write_text(cluster)
    shutil.copy(clusters / "a100_written_out_network.yaml", place / "net.yaml")
    (place / "job.yaml").write_text("model: gpt2\nplan: {gpus: 2}\ncluster: c.yaml\n")
    sizes = '"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4'
    (place / "config.json").write_text(f'{{"model_type": "llama", "vocab_size": 1024, {sizes}}}')
    (place / "run.sh").write_text("deepspeed --num_nodes 1 --num_gpus 2 train.py --deepspeed_config ds_config.json\n")
    (place / "ds_config.json").write_text('{"train_batch_size": 2}')
    if "cal.yaml" in OVERWRITING[case]:
        assert call("calibrate", "step.json", "calls.csv", "-o", "cal.yaml") == 0
    (place / "s.svg").write_text("{}")
    (place / "step.svg").symlink_to("step.json")
    (place / "run_again").symlink_to("run")
    (place / "out_a").write_text("old")
    os.link("out_a", "out_b")
    (place / "new").mkdir()
    before = contents(place)
    assert call(*OVERWRITING[case].split()) == 2
    assert "[output-overwrites-input]" in capsys.readouterr().err
    assert contents(place) == before


@pytest.mark.parametrize("job", [("simulate", "--output"), ("explain", "--plot")], ids=" ".join)
def test_hard_and_symbolic_links_lead_to_inputs(
    job: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, words = JOBS[job]
    source = place / words[0]
    (place / "folder").mkdir()
    (place / "folder" / "soft.svg").symlink_to(source)
    os.link(source, place / "hard.svg")
    before = contents(place)
    for output in ("folder/soft.svg", "hard.svg", "folder/../hard.svg"):
        assert call(*words_of(job[0], words, output)) == 2
        error = capsys.readouterr().err
        assert "[output-overwrites-input]" in error and f"{Path(output)} is {words[0]}" in error
    assert contents(place) == before


@pytest.mark.parametrize(
    ("output", "code"), [("", "missing-argument"), ("-", "bad-value"), ("--plot", "missing-argument")]
)
@pytest.mark.parametrize("job", [("simulate", "--output"), ("simulate", "--traces"), ("generate", "--output")])
def test_names_that_are_not_those_of_files(
    output: str, code: str, job: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, words = JOBS[job]
    before = contents(place)
    assert call(*words_of(job[0], words, output)) == 2
    assert f"[{code}]" in capsys.readouterr().err
    assert contents(place) == before


def test_a_folder_that_does_not_exist_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, words = JOBS["simulate", "--output"]
    assert call(*words_of("simulate", words, "nowhere/out.json")) == 3
    error = capsys.readouterr().err
    assert "[unwritable-file]" in error and "the folder nowhere" in error
    assert not (place / "nowhere").exists()


def test_the_current_folder_may_be_gone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "gone").mkdir()
    monkeypatch.chdir("gone")
    (place / "gone").rmdir()
    assert call("simulate", str(place / "job.txt"), *ON, "-o", str(place / "out.json")) == 0
    assert call("simulate", str(place / "job.txt"), *ON, "-o", "out.json") == 3
    assert call("simulate", str(place / "job.txt"), *ON, "-o", str(place / "job.txt")) == 2
    monkeypatch.chdir(place)


class TestNeighbours:
    """Files next to a launch script."""

    WORDS = JOBS["generate", "--format launch"][1]

    def test_files_of_others_are_kept(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (place / "ds_config.json").write_text('{"train_batch_size": 7}')
        before = contents(place)
        words = words_of("generate", self.WORDS, "start.sh")
        assert call(*words) == 2
        assert "[file-exists]" in capsys.readouterr().err
        assert contents(place) == before
        assert call(*words, "--force") == 0
        assert (place / "ds_config.json").read_bytes() != b'{"train_batch_size": 7}'

    def test_our_own_are_renewed(self, place: Path) -> None:
        words = words_of("generate", self.WORDS, "start.sh")
        assert call(*words) == 0
        first = (place / "ds_config.json").read_bytes()
        assert call(*words) == call(*words, "--zero", "2") == 0
        assert (place / "ds_config.json").read_bytes() != first


class TestReading:
    """Files that cannot be read, with our own errors."""

    @pytest.mark.parametrize(
        "name", ["x" * 300, "a\0b", "job.txt/a", "loop", "a\ud800", "run", "missing"], ids=lambda name: repr(name)[:20]
    )
    @pytest.mark.parametrize(
        "words",
        [
            *(("inspect", OUT), ("simulate", OUT, *ON), ("explain", OUT), ("predict", OUT), ("validate", OUT)),
            *(("calibrate", OUT, "-o", "new.yaml"), ("calibration", "show", OUT), ("init", "--hf", OUT)),
            *(("init", "--from", OUT), ("show", OUT), ("memory", "gpt2", *ON, "--snapshot", OUT)),
            *(("simulate", "job.txt", *ON, flag, OUT) for flag in ("--collectives", "--placement", "--nccl")),
            *(("simulate", "job.txt", *ON, "--calibration", OUT), ("simulate", "job.txt", "--cluster", OUT)),
            *(("predict", "mixtral-8x7b", "--gpus", "8", *ON, "--routing", OUT),),
            *(("simulate", "job.txt", "--compat", "simai", "--simai-tables", OUT, "--", "-g", "2"),),
        ],
        ids=lambda words: " ".join(words[:1] + words[-2:]),
    )
    def test_names_that_lead_nowhere(
        self, name: str, words: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (place / "loop").symlink_to("loop")
        code = call(*(name if word == OUT else word for word in words))
        error = capsys.readouterr().err
        assert code in (2, 3) or name == "run"
        assert "cannot be written" not in error and "Traceback" not in error

    def test_a_file_without_permission_has_our_code(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (place / "calls.csv").chmod(0)
        if os.access(place / "calls.csv", os.R_OK):
            pytest.skip("this user may read everything")
        assert call("network", "all-reduce", "1MiB", *ON, "--collectives", "calls.csv") == 3
        assert "[unreadable-file]" in capsys.readouterr().err

    def test_left_over_temporary_files_are_not_read(self, place: Path) -> None:
        trace = next((place / "run").iterdir())
        write_text(place / "run" / ".foretrace-0123456789abcdef.tmp", trace.read_text())
        assert call("explain", "run") == 0


class TestPipes:
    """Pipes are read once or refused, never waited for."""

    @pytest.mark.parametrize(
        ("name", "words", "code"),
        [
            ("calls.csv", ("network", "all-reduce", "1MiB", *ON, "--collectives", OUT), 0),
            ("calls.csv", ("network", "all-reduce", "1MiB", *ON, "--nccl", OUT), 3),
            ("job.txt", ("inspect", OUT), 0),
            ("job.txt", ("simulate", OUT, *ON), 0),
            ("calls.csv", ("calibrate", OUT, "-o", "new.yaml"), 3),
            ("step.json", ("calibrate", OUT, "-o", "new.yaml"), 3),
            ("my.yaml", ("calibration", "show", OUT), 0),
        ],
    )
    def test_a_pipe_for_a_file(self, name: str, words: tuple[str, ...], code: int, place: Path) -> None:
        reading, writing = os.pipe()
        os.write(writing, (place / name).read_bytes())
        os.close(writing)
        assert call(*(f"/dev/fd/{reading}" if word == OUT else word for word in words)) == code
        os.close(reading)


def test_a_trace_is_written_to_a_pipe(place: Path) -> None:
    trace_file(place)
    reading, writing = os.pipe()
    assert call("simulate", "job.txt", *ON, "--perfetto", f"/dev/fd/{writing}") == 0
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        through_pipe = stream.read()
    assert call("simulate", "job.txt", *ON, "--perfetto", "out.pftrace") == 0
    assert (place / "out.pftrace").read_bytes() == through_pipe
