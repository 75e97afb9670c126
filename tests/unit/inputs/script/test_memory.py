"""The peak of a recorded step, worked out by hand."""

from __future__ import annotations

from foretrace.inputs.script.memory import WORKSPACE_BYTES, peak_bytes
from foretrace.program.columns import Category, Phase
from script_recordings import Script


def script_of(launches: int) -> Script:
    """A script of some launches."""
    script = Script()
    for _ in range(launches):
        script.launch("aten::mul")
    return script


def test_threads_that_multiply_have_workspaces() -> None:
    script = script_of(1)
    script.launch("aten::mm")
    script.phase = Phase.BACKWARD
    script.launch("aten::mm")
    assert peak_bytes(script.recording()) == 2 * WORKSPACE_BYTES


def test_sizes_are_rounded_up() -> None:
    script = script_of(1)
    script.storage(1, -1)
    script.storage(513, 0)
    script.storage(0, 0)
    assert peak_bytes(script.recording()) == 512 + 1024


def test_what_is_released_makes_room() -> None:
    """Storages of 1, 2 and 4 KiB live over ops 0 to 1, 1 to 2 and 2: at most 2 + 4 KiB at once, with 512 bytes kept."""
    script = script_of(3)
    script.storage(512, -1, kind=Category.WEIGHTS)
    script.storage(1024, 0, 2)
    script.storage(2048, 1, 3)
    script.storage(4096, 2)
    assert peak_bytes(script.recording()) == 512 + 2048 + 4096


def test_what_an_op_needs_only_within_counts() -> None:
    script = script_of(2)
    script.storage(1024, 0, 1)
    script.storage(8192, 1, 1)
    assert peak_bytes(script.recording()) == 8192


def test_only_the_recorded_step_counts() -> None:
    script = script_of(2)
    script.end_step()
    script.launch("aten::neg")
    script.launch("aten::neg")
    script.steps.append((2, 4))
    script.steps.pop(0)
    script.storage(1 << 30, 0, 1)
    script.storage(1024, 1, 3)
    script.storage(2048, 2)
    assert peak_bytes(script.recording()) == 1024 + 2048
