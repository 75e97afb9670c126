"""What the documents show runs, and gives what they say."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import answer_picture
import limits
from foretrace.inputs.option_texts import INPUT_OPTIONS
from foretrace.workload.plan import Plan
from shared_files import ROOT

PUBLISHED_EXTRAS = ("fast", "silicon", "packets", "bench")
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
    assert "does not fit: " in printed


def test_the_readme_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = snippets("README.md")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert (tmp_path / "job.foretrace").exists()
    assert "bubble" in capsys.readouterr().out


class TestTheReadme:
    README = (ROOT / "README.md").read_text(encoding="utf-8")

    def test_it_is_short(self) -> None:
        lines = self.README.splitlines()
        assert len(lines) <= 140
        assert not [line for line in lines if len(line) >= 100]

    def test_it_shows_the_demo(self) -> None:
        """That the shown lines are those printed is held in test_console_blocks."""
        assert f"$ foretrace {answer_picture.COMMAND}\n" in self.README
        assert f"foretrace {answer_picture.COMMAND}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")

    def test_the_picture_is_the_screen_of_the_demo(self) -> None:
        shown = answer_picture.picture_lines(answer_picture.PICTURE.read_text(encoding="utf-8"))
        printed = [line.plain.rstrip() for line in answer_picture.screen_lines()]
        assert shown == printed, "run python tools/answer_picture.py"
        assert f"({answer_picture.PICTURE.relative_to(ROOT)})" in self.README


class TestThePages:
    PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

    @staticmethod
    def links(page: Path) -> list[tuple[str, str]]:
        """The files and headings that a page links to, but for other sites."""
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        targets = re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
        parts = [(first or second).partition("#") for first, second in targets]
        return [(path, heading) for path, _, heading in parts if not path.startswith("http")]

    @staticmethod
    def headings(page: Path) -> set[str]:
        """The names of a page's headings as links use them."""
        lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}

    @pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
    def test_links_lead_somewhere(self, page: Path) -> None:
        for path, heading in self.links(page):
            target = page.parent / path if path else page
            assert target.exists(), path
            assert not heading or heading in self.headings(target), f"{path}#{heading}"

    def test_the_index_reaches_every_page(self) -> None:
        reached: set[Path] = set()
        waiting = [ROOT / "docs" / "index.md"]
        while waiting:
            page = waiting.pop()
            if page not in reached:
                reached.add(page)
                waiting += [(page.parent / path).resolve() for path, _ in self.links(page) if path.endswith(".md")]
        assert set(self.PAGES[1:]) <= reached
        listed = {path for path, _ in self.links(ROOT / "docs" / "index.md")}
        assert {page.name for page in self.PAGES[1:]} - {"index.md"} <= listed

    @pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
    def test_files_of_the_repository_are_where_it_says(self, page: Path) -> None:
        rooms = "|".join(path.name for path in (ROOT / "src" / "foretrace").iterdir() if path.is_dir())
        # Rooms of earlier versions must not come back.
        rooms += "|src|tests|benchmarks|tools|analysis|lower|formats"
        named = re.findall(rf"`((?:{rooms})/[\w/.-]+)`", page.read_text(encoding="utf-8").replace("NAME", "h200-sxm"))
        assert not [
            path for path in named if not any((base / path).exists() for base in (ROOT, ROOT / "src/foretrace"))
        ]


def test_the_steps_page(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = snippets("docs/steps.md")
    exec(first, {})
    # The last stage waits for 2 ms: 21 + 4 · 60 + 2 hence, then back, the last backward and the optimizer.
    assert float(capsys.readouterr().out) == pytest.approx(0.021 + 4 * 0.06 + 0.002 + 0.001 + 0.04 + 0.001)
    assert "# 0.305" in first
    exec(second, {})
    assert float(capsys.readouterr().out) == pytest.approx(0.004 + 0.024 + 0.04 + 0.008 + 0.001)
    assert "# 0.077" in second


def test_the_page_about_pages_asks_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    (code,) = snippets("docs/pages.md")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    answer = names["answer"]
    assert answer.to_frame()["breakdown_s"].sum() == pytest.approx(answer.step_time_s)
    assert len(answer.to_frame("remedies")) == len(answer.remedies) > 0
    assert (tmp_path / "memory.svg").read_text(encoding="utf-8").startswith("<svg")


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


def test_the_page_of_limits_is_that_of_the_code() -> None:
    assert (ROOT / "docs/limits.md").read_text(encoding="utf-8") == limits.limits_page()


def test_limits_that_a_user_can_raise_are_listed() -> None:
    """Every folder whose modules have limits on what they read is on the page."""
    checks = re.compile(r"\b(?:limited|check_limit|check_lines|read_whole|unpack|Deadline)\(")
    package = ROOT / "src/foretrace"
    modules = {
        ".".join(path.relative_to(package).with_suffix("").parts)
        for path in package.rglob("*.py")
        if path.parts[-2] != "basics" and checks.search(path.read_text(encoding="utf-8"))
    }
    listed = {limit.partition(":")[0] for row in (*limits.RAISED.values(), *limits.FIXED.values()) for limit in row}
    packages = {name.rpartition(".")[0] for name in listed}
    assert {name for name in modules if name.rpartition(".")[0] not in packages} == set()


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


class TestThePlansPage:
    PAGE = (ROOT / "docs/plans.md").read_text(encoding="utf-8")
    ROWS = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.+?) \| (.+?) \| .+ \|$", PAGE, re.M)

    def test_every_field_has_a_row(self) -> None:
        named = [field for row in self.ROWS for field in re.findall(r"`(\w+)`", row[0])]
        assert sorted(named) == sorted(field.name for field in fields(Plan))

    def test_defaults_and_options_are_those_of_the_code(self) -> None:
        flags = {word.partition("/")[0] for option in INPUT_OPTIONS.values() for word in option.flag.split()}
        stated = {"on": True, "off": False, "required": MISSING, "1 (balanced)": 1.0, "empty": ()}
        defaults = {field.name: field.default for field in fields(Plan)}
        for names, options, given in self.ROWS:
            assert set(re.findall(r"--[a-z0-9-]+", options)) - {"--no-sp"} <= flags
            texts = [text.strip("`") for text in given.split(", ")]
            fixed = [name for name in re.findall(r"`(\w+)`", names) if defaults[name] is not None]
            for name, text in zip(fixed, texts if len(texts) == len(fixed) else texts * len(fixed), strict=True):
                value = defaults[name]
                assert stated.get(text, int(text) if text.isdecimal() else text) == value, name


def test_licences_of_all_dependencies_are_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][name] for name in PUBLISHED_EXTRAS)]
    names = {re.match(r"[\w-]+", line)[0] for group in groups for line in group}  # type: ignore[index]
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    table = page[page.index("| package |") :].partition("\n\n")[0]
    assert {name for name in names if name not in table} == set()
