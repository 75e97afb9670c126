"""What the documents show runs, and gives what they say."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shared_files import ROOT, shared

PREAMBLE = "from foretrace import Mesh, ProgramBuilder, Scenario, Transfer, pipeline, schedule, simulate\n"


def snippets(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(snippets("docs/programs.md"))))
def test_snippets_of_the_guide(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = snippets("docs/programs.md")[number]
    names: dict[str, object] = {}
    exec(PREAMBLE + code, names)
    if "build" in names:
        from foretrace import simulate

        answer = simulate(names["build"].program())  # type: ignore[attr-defined]
        assert answer.step_time_s > 0
    printed = capsys.readouterr().out
    if "dp exposed 2 ms" in code:
        parts = {"compute": 0.005, "optimizer": 0.001, "dp exposed": 0.002}
        assert ast.literal_eval(printed) == {part: pytest.approx(seconds) for part, seconds in parts.items()}
    if "0.4 s" in code:
        assert float(printed) == pytest.approx(0.4)


@pytest.mark.parametrize("number", range(len(snippets("docs/python.md"))))
def test_snippets_of_the_python_page(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(snippets("docs/python.md")[number], names)
    if "answer" in names:
        assert names["answer"].step_time_s > 0  # type: ignore[attr-defined]


def test_the_search_for_a_microbatch_size(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = (one for one in snippets("docs/predict.md") if "InfeasibleError" in one)
    exec(code, {})
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()] == ["1", "2", "4", "8"]
    assert "MFU" in printed
    assert "does not fit: --" in printed


def test_the_readme_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = snippets("README.md")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert (tmp_path / "job.foretrace").exists()
    assert "bubble" in capsys.readouterr().out


def test_the_readme_shows_what_the_demo_prints() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    words = "predict llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024"
    # The demo runs from the core install, which has no tables of NVIDIA's.
    command = [sys.executable, "-m", "foretrace", *words.split(), "--no-silicon"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    assert done.stdout.strip("\n") in readme
    assert f"$ foretrace {words}\n" in readme
    assert words in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_steps_page(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = snippets("docs/steps.md")
    exec(first, {})
    # The last stage waits for 2 ms: 21 + 4 · 60 + 2 hence, then back, the last backward and the optimizer.
    assert float(capsys.readouterr().out) == pytest.approx(0.021 + 4 * 0.06 + 0.002 + 0.001 + 0.04 + 0.001)
    assert "# 0.305" in first
    exec(second, {})
    assert float(capsys.readouterr().out) == pytest.approx(0.004 + 0.024 + 0.04 + 0.008 + 0.001)
    assert "# 0.077" in second


def test_the_generate_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    page = (ROOT / "docs/generate.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"\$ foretrace (generate .* --no-silicon .*)\n", page)
    words = [sys.executable, "-m", "foretrace", *command.split()]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    shown = printed.partition("note:")[0]
    assert "step:" in shown and shown in page


def test_the_json_page_names_every_key() -> None:
    from foretrace import Mesh, ProgramBuilder, simulate
    from foretrace.inputs.aicb.format import read_workload
    from foretrace.inputs.aicb.inventory import workload_inventory
    from foretrace.inputs.model.inventory import model_inventory
    from foretrace.inputs.program_file.inventory import program_inventory
    from foretrace.models.presets import model
    from foretrace.workload.plan import Plan
    from foretrace.workload.settle import settle

    build = ProgramBuilder(Mesh())
    build.role("only", [0]).compute("work", 1.0)
    program = build.program()
    page = (ROOT / "docs/json.md").read_text(encoding="utf-8")
    workload = workload_inventory(read_workload(ROOT / "examples/moe_128gpu.txt"), "job").to_dict()
    trained = model_inventory(settle(model("llama3-8b"), Plan(gpus=8)), None, "job").to_dict()
    inventories = (*program_inventory(program, 1, "job").to_dict(), *workload, *trained, *trained["model"])
    for key in (*simulate(program).to_dict(), *inventories):
        assert f"`{key}`" in page, key


def test_the_readme_shows_what_simai_explained_prints() -> None:
    tables = shared("data", "simai")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    flags = "-g 128 -g_p_s 8 -n_p_s 8 -g_type H100 -nic_t cx7"
    assert f"--explain -- {flags}" in readme
    words = ["simulate", "examples/moe_128gpu.txt", "--compat", "simai", "--simai-tables", str(tables), "--explain"]
    command = [sys.executable, "-m", "foretrace", *words, "--no-silicon", "--", *flags.split()]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert printed[printed.index("  µs ") :].rstrip() in readme


def test_the_network_page_shows_what_the_command_prints() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    page = (ROOT / "docs/network.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\n\$ foretrace (network [^\n]*)\n(.*?)```", page, re.DOTALL)
    assert len(shown) == 2
    for words, screen in shown:
        command = [sys.executable, "-m", "foretrace", *words.split(), "--no-silicon"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
        assert done.stdout.strip("\n") == screen.strip("\n")


def test_the_network_page_asks_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = snippets("docs/network.md")
    exec(code, {})
    time_s, busbw, algorithm, *words = capsys.readouterr().out.split()
    assert float(time_s) > 0 and float(busbw) > 1e9 and algorithm.isascii() and words


class TestTheNcclPage:
    PAGE = (ROOT / "docs/nccl.md").read_text(encoding="utf-8")

    def test_asks_in_python(self, capsys: pytest.CaptureFixture[str]) -> None:
        (code,) = snippets("docs/nccl.md")
        exec(code, {})
        algorithm, protocol = capsys.readouterr().out.split()
        assert (algorithm, protocol == "ll") == ("ring", False)

    def test_its_log_is_read(self, tmp_path: Path) -> None:
        import foretrace

        (lines,) = re.findall(r"```\n(n1:10:20.*?)```", self.PAGE, re.DOTALL)
        (tmp_path / "nccl.log").write_text(lines, encoding="utf-8")
        said = foretrace.NcclSettings(files=(tmp_path / "nccl.log",))
        ways = [
            (one.algorithm, one.protocol, one.channels)
            for nccl in (said, None)
            for size in ("64MiB", "1GiB")
            for machine in [foretrace.Machine("h100-dgx", prices=foretrace.PriceSources(silicon=False), nccl=nccl)]
            for one in [foretrace.network("all-reduce", size, machine, ranks=16)]
        ]
        assert ways[0] == ("ring", "ll128", 16), "as it was seen to run"
        assert ways[2][:2] != ways[0][:2], "not what the rule says"
        assert ways[1][:2] == ways[3][:2], "beyond what was seen, the rule"

    def test_its_error_is_what_is_printed(self) -> None:
        (words, screen) = re.findall(r"```\n\$ foretrace ([^\n]*)\n(error.*?)```", self.PAGE, re.DOTALL)[0]
        command = [sys.executable, "-m", "foretrace", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert (done.returncode, done.stderr.strip()) == (3, screen.strip())
