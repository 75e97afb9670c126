"""Layouts of a pipeline: Megatron-core's notation, its checks, and how layers are divided where a plan says nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from foretrace.basics.errors import InputError
from foretrace.models.presets import model as preset
from foretrace.workload.layout import Layout, layout_text, parse_layout
from foretrace.workload.plan import Plan
from foretrace.workload.setting import Setting, settled_plan
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import chunks_of, step_spec, works_of
from hand_written_work import setting_of

DEEPSEEK = preset("deepseek-v3")


def deepseek(pp: int, **fields: Any) -> Setting:
    return settle(DEEPSEEK, Plan(pp, pp=pp, gbs=8 * pp, **fields))


def counts(setting: Setting) -> list[int]:
    return [len(chunk) for chunk in setting.chunks]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Et*4|(t*4|)*14tmL", ("Etttt", *["tttt"] * 14, "tmL")),
        ("Et|(tt|)*30mL", ("Et", *["tt"] * 30, "mL")),
        ("Et*3|(tt|)*29,m|L", ("Ettt", *["tt"] * 29, "m", "L")),
        ("E t t , | t\tL", ("Ett", "tL")),
        ("Et(|tt)*2,L", ("Et", "tt", "ttL")),
        ("Et|*3tL", ("Et", "", "", "tL")),
        ("E(t|)*0tL", ("EtL",)),
    ],
)
def test_megatrons_notation(text: str, parts: tuple[str, ...]) -> None:
    assert parse_layout(text).parts == parts
    assert parse_layout(layout_text(parts)).parts == parts


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("Etx|L", 3),
        ("et|L", 1),
        ("E(tt|L", 2),
        ("E((t|)*2|)*2L", 3),
        ("E(tt|)L", 2),
        ("E()*3L", 2),
        ("Et*|L", 3),
        ("Et*2*3|L", 5),
        ("E(t|)*2*3L", 8),
        ("E*-1", 2),
    ],
)
def test_a_mistake_is_named_by_its_position(text: str, position: int) -> None:
    with pytest.raises(InputError) as caught:
        parse_layout(text)
    assert caught.value.code == "bad-value" and caught.value.hint
    assert f"character {position}:" in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "(t*9999999)*9999999",
        "t*" + "9" * 5000,
        "(t|)*" + "9" * 5000,
        "(t*10000)*10000",
        "t*15000" * 1000,
        "t" * 100_000,
        "(" + "t*1000" * 100 + ")*2",
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(text: str) -> None:
    begin = time.perf_counter()
    with pytest.raises(InputError) as caught:
        settle(DEEPSEEK, Plan(4, pp=4, layout=text))
    assert caught.value.code == "out-of-range"
    assert time.perf_counter() - begin < 1


@pytest.mark.parametrize(
    ("pp", "vpp", "layout"),
    [
        (16, 1, "Et*4|(t*4|)*14tmL"),
        (8, 2, "Et*4|(t*4|)*14tmL"),
        (4, 4, "Et*4|(t*4|)*14tmL"),
        (2, 8, "Et*4|(t*4|)*14tmL"),
        (8, 1, "Et*8|(t*8|)*6t*5mL"),
        (4, 2, "Et*8|(t*8|)*6t*5mL"),
        (4, 1, "Et*16|(t*16|)*2t*13mL"),
        (8, 4, "Et|(tt|)*30mL"),
        (61, 1, "E" + "t|" * 60 + "tmL"),
        (62, 1, "E" + "t|" * 61 + "mL"),
        (63, 1, "E|" + "t|" * 61 + "mL"),
    ],
)
def test_layouts_of_megatron_bridge_where_there_is_mtp(pp: int, vpp: int, layout: str) -> None:
    setting = deepseek(pp, vpp=vpp)
    assert parse_layout(setting.layout) == parse_layout(layout)
    assert settled_plan(setting)["layout"] == setting.layout
    assert setting.mtp_chunk == pp * vpp - 1
    uneven = [note.message for note in setting.diagnostics if note.code == "uneven-stages"]
    assert len(uneven) == (61 % (pp * vpp) > 0)
    assert all(setting.layout in message for message in uneven)


def test_layers_that_do_not_divide_without_mtp() -> None:
    setting = settle(preset("llama3.1-405b"), Plan(16, pp=16, gbs=16))
    assert setting.layout == "Et*7|(t*8|)*14t*7L", "as Llama 3 405B was trained"
    third = setting_of(8, Plan(3, pp=3))
    assert counts(third) == [3, 3, 2]
    for each in (setting, third):
        assert [note.code for note in each.diagnostics].count("uneven-stages") == 1


def test_an_explicit_division_is_not_a_note() -> None:
    fields: tuple[dict[str, Any], ...] = (
        {"layout": "Et*16|t*16|t*16|t*13mL"},
        {"stage_layers": (16, 16, 16, 13)},
        {"first_stage_layers": 16, "last_stage_layers": 13},
        {"last_stage_layers": 13},
    )
    for each in fields:
        setting = deepseek(4, **each)
        assert counts(setting) == [16, 16, 16, 13]
        assert "uneven-stages" not in {note.code for note in setting.diagnostics}


def test_a_layout_says_the_chunks_and_the_schedule() -> None:
    setting = deepseek(8, layout="Et|(tt|)*30mL")
    assert (setting.plan.vpp, setting.chunks_per_stage, setting.schedule) == (4, 4, "interleaved-1f1b")
    assert counts(setting) == [1, *[2] * 30, 0]
    assert deepseek(8, layout="Et|(tt|)*30mL", vpp=4).chunks == setting.chunks


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v", "interleaved-zb", "looped-bfs"])
def test_a_layout_of_other_schedules(schedule: str) -> None:
    assert counts(deepseek(4, layout="Et*8|(t*8|)*6t*5mL", schedule=schedule)) == [*[8] * 7, 5]
    assert counts(deepseek(4, layout="Et*16|(t*16|)*2t*13mL", schedule="dualpipe")) == [16, 16, 16, 13]


def test_mtp_in_a_part_of_its_own() -> None:
    setting = deepseek(16, layout="Et*3|(tt|)*29,m|L")
    chunks = chunks_of(setting, works_of(setting))
    names = [[unit.work.name for unit in chunk.units] for chunk in chunks]
    assert names[-2:] == [["mtp"], ["head"]]
    assert names[0] == ["embedding", "layer", "layer", "layer"]
    assert sum(len(chunk.units) for chunk in chunks) == 61 + 3


def test_every_module_of_mtp_is_run() -> None:
    two = replace(DEEPSEEK, mtp=2)
    setting = settle(two, Plan(4, pp=4, gbs=8))
    assert [unit.work.name for unit in chunks_of(setting, works_of(setting))[-1].units][-3:] == ["mtp", "mtp", "head"]


@pytest.mark.parametrize(
    ("layout", "code"),
    [
        ("t*16|t*16|t*16|t*13mL", "bad-plan"),
        ("Et*16|t*16|t*16|t*13m", "bad-plan"),
        ("Et*16|Et*16|t*16|t*13mL", "bad-plan"),
        ("Et*16|t*16|t*16|t*12mL", "bad-plan"),
        ("Et*16|t*16|t*16|t*13L", "bad-plan"),
        ("Et*16|t*16|t*16m|t*13L", "bad-plan"),
        ("t*16|Et*16|t*16|t*13mL", "bad-plan"),
        ("Et*16|t*16|t*13mL", "bad-plan"),
        ("Et*8|t*8|t*8|t*37|m|||L", None),
        ("Et*8|t*8|t*45|m||||L", "bad-plan"),
    ],
)
def test_megatrons_checks_of_layouts(layout: str, code: str | None) -> None:
    if code is None:
        assert deepseek(4, layout=layout).mtp_chunk == 4
        return
    with pytest.raises(InputError) as caught:
        deepseek(4, layout=layout)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"layout": "Et*16|t*16|t*16|t*13mL", "vpp": 2}, "bad-plan"),
        ({"layout": "Et*8|(t*8|)*6t*5mL", "schedule": "1f1b"}, "bad-plan"),
        ({"layout": "Et*8|(t*8|)*6t*5mL", "schedule": "dualpipe"}, "bad-plan"),
        ({"layout": "Et*16|t*16|t*16|t*13mL", "stage_layers": (16, 16, 16, 13)}, "conflicting-options"),
        ({"layout": "Et*16|t*16|t*16|t*13mL", "account_for": ("loss",)}, "conflicting-options"),
        ({"first_stage_layers": 16, "account_for": ("loss",)}, "conflicting-options"),
        ({"account_for": ("embedding", "loss")}, "not-divisible"),
        ({"account_for": ()}, "not-divisible"),
        ({"first_stage_layers": 15}, "not-divisible"),
        ({"first_stage_layers": 62}, "not-divisible"),
        ({"first_stage_layers": 16, "last_stage_layers": 13, "vpp": 2}, "not-divisible"),
        ({"first_stage_layers": 16, "schedule": "zb-v"}, "not-divisible"),
    ],
)
def test_divisions_that_megatron_refuses(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as caught:
        deepseek(4, **fields)
    assert caught.value.code == code
    assert "--" in (caught.value.hint or ""), "the hint names a plan that runs"


def test_ends_that_count_as_layers() -> None:
    model = preset("llama3.1-405b")
    both = settle(model, Plan(16, pp=16, gbs=16, account_for=("embedding", "loss")))
    assert counts(both) == [7, *[8] * 14, 7]
    assert counts(setting_of(7, Plan(4, pp=4, account_for=("loss",)))) == [2, 2, 2, 1]
    assert counts(setting_of(7, Plan(4, pp=2, vpp=2, account_for=("embedding",)))) == [1, 2, 2, 2]


def test_a_layout_is_made_of_counts() -> None:
    assert Layout.of((2, 1, 0), mtp=1, mtp_part=1).parts == ("Ett", "tm", "L")
    assert Layout.of((3,)).parts == ("EtttL",)


def test_a_stage_with_mtp_has_an_embedding_and_a_head() -> None:
    table = DEEPSEEK.hidden * deepseek(4).vocab

    def module(**fields: Any) -> int:
        return works_of(deepseek(4, **fields)).mtp[0].parameters

    shared = module(schedule="zb-v")  # the first stage holds both ends
    assert module() == shared + table, "a copy of the embedding"
    assert module(layout="Et*21|t*20|t*20m|L") == shared + 2 * table, "and of the head"


def test_gradients_of_the_copy_of_the_embedding_are_added_up() -> None:
    def calls(setting: Setting) -> list[list[bool]]:
        return [[entry.item.name == "reduce tied embedding" for entry in role.end] for role in step_spec(setting).roles]

    assert [any(names) for names in calls(deepseek(4))] == [True, False, False, True]
    assert not any(map(any, calls(settle(replace(DEEPSEEK, mtp=0), Plan(4, pp=4, gbs=32)))))
    apart = deepseek(4, layout="Et*21|t*20|t*20m|L")
    assert not any(map(any, calls(apart)))
    assert "not-modelled" in {note.code for note in apart.diagnostics}
