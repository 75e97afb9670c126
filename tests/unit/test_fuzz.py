"""The fuzzing harness: everything is registered, seeds are reproducible, the oracle sees what is broken, and inputs
that once broke the contract do not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import foretrace
from foretrace.cli import main
from foretrace.inputs.registry import kinds
from fuzz import oracle
from fuzz.__main__ import chosen_targets
from fuzz.calls import COMMAND_LINES
from fuzz.corpus import keep, kept_cases
from fuzz.minimise import minimise
from fuzz.mutators import mutate
from fuzz.oracle import Case, judge
from fuzz.outputs import format_of
from fuzz.run import Store, try_seeds
from fuzz.targets import TARGETS, all_targets

SMOKE = 30
GRAVE = ("traceback", "exit code", "hang", "memory", "warning", "number", "output", "files")
"""Faults that no mutated input may have; the corpus must be free of all."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestRegistration:
    def test_every_kind_of_input_has_a_target(self) -> None:
        covered = {kind for target in TARGETS for kind in target.inputs}
        assert {kind.kind for kind in kinds()} == covered

    def test_every_command_has_a_target(self) -> None:
        assert set(main.COMMANDS) - {"serve"} == set(COMMAND_LINES)
        assert set(main.COMMANDS) == {command for target in all_targets().values() for command in target.commands}

    def test_every_public_name_has_a_target(self) -> None:
        assert {name for target in all_targets().values() for name in target.names} == {*foretrace.__all__} - {
            "__version__"
        }

    def test_a_name_means_its_target_alone_and_a_prefix_several(self) -> None:
        assert chosen_targets(["kineto"]) == ["kineto"]
        assert chosen_targets(["kine", "kineto"]) == ["kineto", "kineto-ranks"]
        assert chosen_targets([]) == list(all_targets())
        with pytest.raises(SystemExit):
            chosen_targets(["kineto", "nothing"])

    @pytest.mark.parametrize("name", [target.name for target in TARGETS])
    def test_samples_are_read(self, name: str, folder: Path) -> None:
        target = all_targets()[name]
        samples = target.samples()
        assert samples
        assert all(sum(map(len, sample.files.values())) < 20_000 for sample in samples)
        if name in ("stage-plan", "script"):
            return  # what is not read is named as such; a script is not run
        cases = [
            Case(name, sample.files, target.entry(Random(seed), sample)) for sample in samples for seed in range(8)
        ]
        assert any(judge(case, folder).code == 0 for case in cases)


class TestMutation:
    @pytest.mark.parametrize("name", ["kineto", "nsight", "program", "job", "words:plan", "api:Plan"])
    def test_a_seed_makes_one_input(self, name: str) -> None:
        target = all_targets()[name]
        assert target.case(7) == target.case(7)
        assert len({str(target.case(seed)) for seed in range(20)}) > 10

    @pytest.mark.parametrize("name", ["a.txt", "a.json", "a.json.gz", "a.yaml", "a.sqlite", "a.foretrace", "a.pickle"])
    def test_broken_files_are_mutated_too(self, name: str) -> None:
        assert all(isinstance(mutate(name, data, Random(1)), bytes) for data in (b"", b"\xff\x00", b"{]"))


class TestOracle:
    @pytest.fixture
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        """Lets `foretrace list` do something else."""

        def set_up(do: Any) -> None:
            monkeypatch.setattr("fuzz.oracle._commands", lambda: lambda *_, **__: do())

        yield set_up

    @pytest.mark.parametrize(
        ("do", "kind"),
        [
            (lambda: {}["x"], "traceback"),
            (lambda: bytearray(1 << 60), "memory"),
            (lambda: 7, "exit code"),
            (lambda: print("\x1b[31m"), "screen"),
            (lambda: print('{"step_time_s": NaN}'), "number"),
            (lambda: print('{"size_bytes": -1}'), "number"),
            (lambda: Path("left.txt").write_text(""), "files"),
            (lambda: Path("a.txt").write_text("other"), "files"),
            (lambda: __import__("warnings").warn("odd", stacklevel=1), "warning"),
        ],
    )
    def test_what_breaks_the_contract_is_seen(self, broken: Any, do: Any, kind: str, folder: Path) -> None:
        broken(do)
        faults = judge(Case("aicb", {"a.txt": b"x"}, ("list", "--json")), folder).faults
        assert kind in [fault.kind for fault in faults]

    @pytest.mark.parametrize(
        "text",
        [
            *("Step  nan ms", "Step      −3.2 ms", "memory  inf GiB of 80 GiB", "±inf %", "gemm   nan  3.0"),
            *("Time  -1.00 µs", "  Step time  -5 s", "0.5 s   -inf s"),
        ],
    )
    def test_numbers_of_screens_are_seen(self, broken: Any, text: str, folder: Path) -> None:
        broken(lambda: print(text))
        assert [fault.kind for fault in judge(Case("aicb", {}, ("list",)), folder).faults] == ["number"]

    @pytest.mark.parametrize("text", ['kernel "nan"', "inference 3 ms", "change  −3.2 ms", "info  5 s", "nan.txt  3 s"])
    def test_words_of_screens_are_not_numbers(self, broken: Any, text: str, folder: Path) -> None:
        broken(lambda: print(text))
        assert judge(Case("aicb", {}, ("list",)), folder).faults == []

    @pytest.mark.parametrize("path", ["step_time_s", "ranks.span_s", "time_s.duration_s"])
    def test_times_are_never_negative(self, broken: Any, path: str, folder: Path) -> None:
        value: Any = -1.0
        for key in reversed(path.split(".")):
            value = {key: value}
        broken(lambda: print(json.dumps(value)))
        assert [fault.kind for fault in judge(Case("aicb", {}, ("list", "--json")), folder).faults] == ["number"]

    @pytest.mark.parametrize(
        ("words", "right", "wrong"),
        [
            ("list -o out", b'{"a": 1}', (b'{"a": NaN}', b"{", b"")),
            (
                "list --plot out",
                b'<svg><g x="1"/></svg>',
                (b'<svg x="nan"/>', b"<svg>", b"<svg>\x01</svg>", b'<svg d="M inf 1"/>'),
            ),
            ("list --csv out", b"a,b\n1,2\n", (b"a,b\n1\n", b'a,"b\n')),
            ("init -o out", b"a: 1.5\n", (b"a: .inf\n", b"a: [\n", b"a: [.nan]\n")),
            ("list --perfetto out", b"\n\x02\x08\x01", (b"\n\x05\x08", b"\x12\x00", b"\xff", b"\n\x01\x0e")),
            ("list --save out.answer", None, (b"", b"x")),
            ("generate --format program -o out.foretrace", None, (b"", b"x")),
        ],
    )
    def test_written_files_are_read(
        self, broken: Any, words: str, right: bytes | None, wrong: tuple[bytes, ...], folder: Path
    ) -> None:
        name = words.split()[-1]
        for content in (right, *wrong):
            broken(lambda content=content: Path(name).write_bytes(content or b"") and None)
            faults = judge(Case("aicb", {}, tuple(words.split())), folder).faults if content is not None else []
            assert [fault.kind for fault in faults] == ([] if content is right else ["output"]), content

    def test_a_loop_is_ended(self, broken: Any, folder: Path) -> None:
        def loop() -> None:
            while True:
                pass

        broken(loop)
        assert [fault.kind for fault in judge(Case("aicb", {}, ("list",)), folder, max_s=0.05).faults] == ["hang"]

    def test_an_error_of_the_family_keeps_it(self, broken: Any, folder: Path) -> None:
        def fail(where: str | None, remarks: int = 0) -> Any:
            def run() -> None:
                print("remark\n" * remarks, end="", file=sys.stderr)
                raise foretrace.ForetraceError("bad-value", "wrong", where=where)

            return run

        broken(fail("a.txt:1"))
        assert judge(Case("aicb", {"a.txt": b""}, ("list",)), folder).faults == []
        broken(fail(None))
        assert [fault.kind for fault in judge(Case("aicb", {"a.txt": b""}, ("list",)), folder).faults] == ["place"]
        broken(fail("a.txt:1", 30))
        assert "message" in [fault.kind for fault in judge(Case("aicb", {"a.txt": b""}, ("list",)), folder).faults]


class TestFindings:
    def test_they_are_kept_once_with_their_smallest_input(self, tmp_path: Path) -> None:
        store, fault = Store(tmp_path), oracle.Fault("traceback", "KeyError x.py:f", "…")
        assert store.add_finding(Case("aicb", {"w.txt": b"long input"}, ("inspect", "w.txt"), 3), fault)
        assert not store.add_finding(Case("aicb", {"w.txt": b"x"}, ("inspect", "w.txt"), 4), fault)
        assert not store.add_finding(Case("aicb", {"w.txt": b"longer input"}, ("inspect", "w.txt"), 5), fault)
        ((name, record),) = store.findings()
        assert (record["count"], record["seed"]) == (3, 4)
        assert store.load(name)[0].files == {"w.txt": b"x"}

    def test_a_campaign_goes_on_where_it_ended(self, folder: Path) -> None:
        store = Store(folder / "state")
        tally, _ = try_seeds(all_targets()["stage-plan"], 5, 0.0, folder, lambda _: None)
        store.tally("stage-plan").add(tally)
        store.save()
        assert Store(folder / "state").tally("stage-plan").next == 6

    def test_an_input_is_made_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fault = SimpleNamespace(signature="s")
        monkeypatch.setattr(
            "fuzz.minimise.judge",
            lambda case, _: SimpleNamespace(faults=[fault] if b"bad" in case.files["a"] else []),
        )
        case = Case("aicb", {"a": b"line\n" * 50 + b"x = bad, 3\n" + b"more\n" * 50}, ("inspect", "a"))
        assert minimise(case, "s").files["a"] == b"bad"

    def test_kept_inputs_are_read_back(self, tmp_path: Path) -> None:
        case = Case("aicb", {"w.txt": b"\xff\n"}, ("inspect", "w.txt", "--steps", "a b"))
        call, words = (all_targets()[name].case(3) for name in ("api:Mesh", "words:network"))
        for each in (case, call, words):
            keep(each, "odd", tmp_path)
        kept = [replace(each, seed=-1) for each in (case, call, words)]
        assert [each for _, each in kept_cases(tmp_path)] == kept


@pytest.mark.parametrize(
    ("name", "case"), list(kept_cases()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_once_broke_the_contract_keeps_it(name: str, case: Case, folder: Path) -> None:
    assert judge(case, folder).faults == [], name


@pytest.mark.parametrize("name", list(all_targets()))
def test_mutated_inputs_keep_the_contract(name: str, folder: Path) -> None:
    target = all_targets()[name]
    for seed in range(SMOKE if target.words is None else SMOKE // 3):
        case = target.case(seed)
        faults = [fault for fault in judge(case, folder).faults if fault.kind in GRAVE]
        assert not faults, f"python -m fuzz seed {name} {seed}: {faults[0].signature}\n{faults[0].detail}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("predict gpt2 -o out.csv", "json"),
        ("predict gpt2 --output=out.csv", "json"),
        ("sweep gpt2 -o other --csv out.csv", "csv"),
        ("init -o out.csv", "yaml"),
        ("explain out.csv", ""),
    ],
)
def test_the_format_of_an_output_follows_from_its_option(words: str, expected: str) -> None:
    assert format_of(words.split(), "out.csv") == expected
