"""Lists of what can be named: complete, true to the code, and readable."""

from __future__ import annotations

import json

import pytest

from foretrace.basics.codes import CODES
from foretrace.basics.errors import InputError
from foretrace.hardware import presets
from foretrace.program.dispatch import STYLES
from foretrace.report.catalogue.lists import LISTS, MAX_WIDTH, ListRow, list_dict, list_lines, list_rows, print_rows
from foretrace.schedules.registry import make, names, resolve
from foretrace.simulation.network.words import EXPERTS, KNOWN, read_collective
from foretrace.workload.plan import WORD_LISTS, WORDS
from foretrace.workload.stacks import STACKS, VERSIONS

NAMES = {
    "stacks": tuple(STACKS),
    "schedules": names(),
    "dispatchers": WORDS["dispatcher"],
    "modules": tuple(dict.fromkeys((*WORD_LISTS["recompute_modules"], *WORD_LISTS["offload_modules"]))),
    "collectives": (*KNOWN, *EXPERTS),
    "precisions": WORDS["precision"],
    "diagnostics": tuple(CODES),
}
RULES = {
    "": lambda stages, microbatches: True,  # noqa: ARG005
    "microbatches a multiple of stages": lambda stages, microbatches: microbatches % stages == 0,
    "microbatches ≥ 2 stages": lambda stages, microbatches: microbatches >= 2 * stages,
    "even stages, even microbatches ≥ 2 stages": lambda stages, microbatches: (
        stages % 2 == 0 and microbatches % 2 == 0 and microbatches >= 2 * stages
    ),
}


def test_a_list_has_exactly_the_names_that_are_accepted() -> None:
    assert tuple(NAMES) == LISTS
    for kind, accepted in NAMES.items():
        assert tuple(row.name for row in list_rows(kind)) == accepted
        assert all(row.description for row in list_rows(kind))


def test_a_kind_that_is_not_listed() -> None:
    with pytest.raises(InputError) as refused:
        list_rows("stack")
    assert refused.value.code == "unknown-name"
    assert "did you mean stacks?" in refused.value.message


@pytest.mark.parametrize("kind", LISTS)
def test_json(kind: str) -> None:
    plain = list_dict(kind)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert (plain["schema"], plain["kind"]) == ("foretrace.list/1", kind)
    assert [(row["name"], row["description"]) for row in plain[kind]] == [
        (row.name, row.description) for row in list_rows(kind)
    ]
    assert len({tuple(row) for row in plain[kind]}) == 1


@pytest.mark.parametrize("kind", LISTS)
def test_a_table_fits_and_shows_everything(kind: str) -> None:
    lines = ["".join(text for text, _ in line) for line in list_lines(kind)]
    assert max(map(len, lines)) <= MAX_WIDTH
    words = " ".join(lines).split()
    for row in list_rows(kind):
        assert row.name in words
        assert set(row.description.split()) <= set(words)


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    print_rows("diagnostics")
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in lines] == lines
    assert max(map(len, lines)) <= MAX_WIDTH


def row_of(kind: str, name: str) -> ListRow:
    return next(row for row in list_rows(kind) if row.name == name)


@pytest.mark.parametrize("row", list_rows("schedules"), ids=lambda row: row.name)
def test_schedules_need_what_the_list_says(row: ListRow) -> None:
    least, most = row.details["min_chunks"], row.details["max_chunks"]
    assert isinstance(least, int)
    for stages in range(1, 7):
        for microbatches in range(1, 2 * stages + 7):
            fits = RULES[str(row.details["needs"])](stages, microbatches)
            assert accepts(row.name, stages, microbatches, least) == fits
    assert not accepts(row.name, 4, 16, least - 1)
    assert accepts(row.name, 4, 16, least + 1) == (most is None)
    assert most in (None, least)
    for alias in row.details["aliases"] or ():  # type: ignore[union-attr]
        assert resolve(alias) == row.name


def accepts(name: str, stages: int, microbatches: int, chunks: int) -> bool:
    try:
        make(name, stages, microbatches, chunks)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("row", list_rows("collectives"), ids=lambda row: row.name)
def test_collectives_are_called_so(row: ListRow) -> None:
    for name in (row.name, *row.details["aliases"]):  # type: ignore[misc]
        assert read_collective(name).name == row.name


def test_dispatchers_are_those_of_programs() -> None:
    assert tuple(row.name for row in list_rows("dispatchers")) == ("alltoall", *STYLES)
    assert [row.name for row in list_rows("dispatchers") if row.details["default"]] == ["alltoall"]
    assert row_of("dispatchers", "deepep").details["held_sms"] == 20
    assert row_of("dispatchers", "alltoall").details["held_sms"] is None


def test_precisions_name_the_gpus_that_have_their_units() -> None:
    able = {row.name: set(row.details["gpus"]) for row in list_rows("precisions")}  # type: ignore[arg-type]
    assert able["bf16"] == set(presets.names("gpu"))
    assert "a100-80g-sxm" not in able["fp8"]
    assert {"h100-sxm", "b200", "mi300x"} <= able["fp8"] == able["fp8_block"]
    assert {"b200", "gb300"} <= able["mxfp8"] == able["nvfp4"]
    assert not {"h100-sxm", "mi300x"} & able["mxfp8"]
    assert [row.name for row in list_rows("precisions") if row.details["default"]] == ["bf16"]


def test_stacks_say_their_habits() -> None:
    assert row_of("stacks", "megatron-core").details["zero"] == 1
    assert row_of("stacks", "fsdp").details["zero"] == 3
    for row in list_rows("stacks"):
        habits = {name: value for name, value in row.details.items() if name not in ("version", "versions")}
        assert habits.items() <= {name: getattr(STACKS[row.name], name) for name in habits}.items()


def test_stacks_list_their_versions_and_the_one_that_is_taken() -> None:
    for row in list_rows("stacks"):
        known = tuple(known.version for known in VERSIONS.get(row.name, ()))
        assert row.details["versions"] == known
        assert row.details["version"] == (STACKS[row.name].version or None)
        assert (row.details["version"] in known) if known else row.details["version"] is None
    assert row_of("stacks", "megatron-bridge").details["versions"] == ("25.11", "26.02", "26.04", "26.06", "26.08")
    words = " ".join("".join(text for text, _ in line) for line in list_lines("stacks")).split()
    assert {"26.04", "0.16", "2024-10"} <= set(words)
