"""What is in a program."""

from __future__ import annotations

import math

import pytest

from foretrace import Mesh, Program, ProgramBuilder
from foretrace.inputs.program_file.inventory import MAX_ROLES, program_inventory


def two_stages(*, second_s: float = 2e-3, repeats: bool = True) -> Program:
    """Two ranks: the first computes 3 ms and sends for 1 ms, the second receives and computes."""
    build = ProgramBuilder(Mesh(pp=2), title="two stages", repeats=repeats, tokens_per_step=1000)
    pair = build.pair("pp", 0, 1)
    first, second = build.role("stage 0", [0]), build.role("stage 1", [1])
    first.resident(weights=1 << 30)
    done = first.compute("layer", 3e-3, phase="forward")
    first.transfer("send", pair, 1e-3, to=1, bytes=4096, after=done)
    received = second.transfer("receive", pair, 1e-3)
    second.compute("layer", second_s, phase="backward", after=received)
    return build.program()


def test_counts() -> None:
    answer = program_inventory(two_stages(), 1234, "job.foretrace").to_dict()
    assert (answer["schema"], answer["format"]) == ("foretrace.inventory/1", "foretrace program")
    assert (answer["title"], answer["file_bytes"]) == ("two stages", 1234)
    assert (answer["world_size"], answer["mesh"], answer["rank_classes"]) == (2, "pp=2", 2)
    assert (answer["ops"], answer["phases"], answer["communicators"]) == (4, ["forward", "backward"], 1)
    first, second = answer["roles"]
    assert (first["name"], first["ranks"], first["ops"], first["resident_bytes"]) == ("stage 0", 1, 2, 1 << 30)
    assert second["seconds_by_kind"] == pytest.approx({"compute": 2e-3, "transfer": 1e-3})
    assert answer["diagnostics"] == []


def test_a_transfer_counts_its_bytes_once() -> None:
    (traffic,) = program_inventory(two_stages(), None, "job").to_dict()["traffic"]
    assert traffic == {"axis": "pp", "collective": "transfer", "ops": 2, "bytes": 4096}


def test_ops_without_a_duration() -> None:
    inventory = program_inventory(two_stages(second_s=math.nan), None, "job")
    assert [one.code for one in inventory.diagnostics] == ["unpriced-op"]
    _, second = inventory.to_dict()["roles"]
    assert set(second["seconds_by_kind"]) == {"transfer"}


def test_a_role_that_does_nothing() -> None:
    build = ProgramBuilder(Mesh(pp=2))
    build.role("busy", [0]).compute("work", 1.0)
    build.role("idle", [1])
    (note,) = program_inventory(build.program(), None, "job").diagnostics
    assert (note.level, note.code, note.where) == ("warning", "odd-input", 'role "idle"')


def test_the_screen() -> None:
    inventory = program_inventory(two_stages(), 2048, "job.foretrace")
    facts = dict(inventory.facts)
    assert (facts["job"], facts["file"], facts["ranks"]) == ("two stages", "2.00 KiB", "2 · pp 2")
    assert facts["step"] == "repeats · 1,000 tokens"
    roles, traffic = inventory.tables
    assert roles.heads == ("role", "ranks", "ops", "compute", "transfer", "resident")
    assert list(roles.rows) == [
        ("stage 0", "1", "2", "3.00 ms", "1.00 ms", "1.00 GiB"),
        ("stage 1", "1", "2", "2.00 ms", "1.00 ms", "0 B"),
    ]
    assert list(traffic.rows) == [("pp", "transfer", "2", "4.00 KiB")]


def test_a_program_that_is_not_in_a_file() -> None:
    inventory = program_inventory(two_stages(repeats=False), None, "job")
    assert "file" not in dict(inventory.facts) and not inventory.see
    assert inventory.to_dict()["file_bytes"] is None
    assert dict(inventory.facts)["step"].startswith("one recorded step")


def test_more_roles_than_a_screen_shows() -> None:
    build = ProgramBuilder(Mesh(pp=MAX_ROLES + 4))
    for rank in range(MAX_ROLES + 4):
        build.role(f"stage {rank}", [rank]).compute("work", 1.0)
    inventory = program_inventory(build.program(), None, "job")
    (roles,) = inventory.tables
    assert len(roles.rows) == MAX_ROLES and "4 more roles" in roles.note
    assert len(inventory.to_dict()["roles"]) == MAX_ROLES + 4
